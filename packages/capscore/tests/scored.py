"""Word lists to scores, for tests; and a thousand COCO images scored by the programs of the field."""

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from capscore.ngrams import References
from capscore.sentences import Words


@cache
def loo1000():
    with gzip.open(Path(__file__).parent / "golden" / "loo1000.json.gz") as file:
        return json.load(file)


def prepared(captions, references, frequencies=None):
    """Lists of words → (captions, photos, references, grouped references), as the measures take them."""
    words = Words()
    grouped = words.join_groups(references)
    return words.join(captions), np.arange(len(captions)), References(grouped, frequencies), grouped


def ngrams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
