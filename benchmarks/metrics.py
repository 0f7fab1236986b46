"""Our metrics beside the programs of the field, in one run: pycocoevalcap 1.2 and its METEOR jar (which need Java).

    python benchmarks/metrics.py [CAPTIONS.json]

CAPTIONS.json is a data file of photos with five captions each, such as COCO's; without one, the thousand photos of
tests/golden are taken over and over, with words exchanged.  Of each photo the fifth caption is judged by the others.

reward   CIDEr-D of 250 sampled captions (50 photos, 5 samples each, 5 references), as token ids.  Theirs is what
         programs for self-critical training do at each step: ids to strings, then pycocoevalcap's scorer with document
         frequencies counted beforehand.
text     tokenise and score BLEU, ROUGE-L and CIDEr-D, from raw text.
METEOR   from words; the jar and our index are loaded beforehand.
memory   the largest resident size of a process that does `text` on 40,000 photos; for theirs without that of Java.

Scores must be equal, or the timing means nothing.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
from timing import side_by_side, table

from capscore import meteor
from capscore.caption_files import read_references
from capscore.ngrams import Frequencies
from capscore.scoring import measure
from capscore.tokenize import tokenize
from tellapart.rewards.agreement import Consensus

PHOTOS, MANY = 14_000, 40_000
END = 0

Photos = list[list[str]]  # captions of each


def photos(count: int) -> Photos:
    if len(sys.argv) > 1:
        found = [texts[:5] for texts in read_references(sys.argv[1]).by_id.values() if len(texts) >= 5]
    else:
        with gzip.open(Path(__file__).parents[1] / "tests" / "golden" / "loo1000.json.gz") as file:
            found = [[image["caption"], *image["references"]] for image in json.load(file)["images"]]
    return list(
        chain.from_iterable([_varied(texts, turn) for texts in found] for turn in range(-(-count // len(found))))
    )[:count]


def _varied(texts: list[str], turn: int) -> list[str]:
    """The same captions with one word exchanged, so that the second turn has n-grams of its own."""
    return texts if turn == 0 else [text.replace(" a ", f" a{turn} ", 1) for text in texts]


# CIDEr-D as a reward


class CountedBefore(CiderScorer):
    """pycocoevalcap's scorer with document frequencies that are given, as in programs for self-critical training."""

    def compute_doc_freq(self) -> None:
        pass


def rewards(repeats: int) -> dict[str, str]:
    random = np.random.default_rng(0)
    words: dict[str, int] = {}
    ids = [
        [[words.setdefault(word, len(words) + 1) for word in text] for text in tokenize(texts)] for texts in photos(50)
    ]
    samples = [_sampled(references, random) for references in ids for _ in range(5)]
    tokens = torch.zeros(250, max(map(len, samples)) + 1, dtype=torch.long)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample)] = torch.tensor(sample)
    which = torch.arange(50).repeat_interleave(5)
    once = Consensus(ids, end=END).frequencies  # to theirs, each of the 250 samples is a photo of its own
    five_times = Frequencies(5 * once.documents, once.parents, once.tokens, 5 * once.counts)
    reward = Consensus(ids, end=END, frequencies=five_times)
    arrays = [[np.array([*text, END]) for text in texts] for texts in ids]

    counted = CiderScorer()
    for texts in arrays:
        for _ in range(5):
            counted += ("", [_joined(text) for text in texts])
    counted.compute_doc_freq()
    frequencies: dict[object, float] = counted.document_frequency

    def theirs() -> np.ndarray:
        scorer = CountedBefore()
        scorer.document_frequency = defaultdict(float, frequencies)
        for row, photo in zip(tokens.numpy(), which.tolist(), strict=True):
            scorer += (_joined(row), [_joined(text) for text in arrays[photo]])
        return scorer.compute_score()[1]

    np.testing.assert_allclose(reward(tokens, which).numpy(), theirs(), rtol=1e-5)
    took = side_by_side({"ours": lambda: [reward(tokens, which) for _ in range(20)], "theirs": theirs}, repeats=repeats)
    return _row("CIDEr-D reward, 50 photos x 5 samples x 5 references", took["ours"] / 20, took["theirs"])


def _joined(row: np.ndarray) -> str:
    """Token ids as the text that the scorers of the field take, up to and with the end."""
    text = ""
    for token in row:
        text += f"{token} "
        if token == END:
            break
    return text.strip()


def _sampled(references: list[list[int]], random: np.random.Generator) -> list[int]:
    """Half of one reference and half of another: some n-grams are right, as in training."""
    one, other = (references[i] for i in random.choice(len(references), 2, replace=False))
    return one[: len(one) // 2] + other[len(other) // 2 :]


# Text


def ours_from_text(given: Photos) -> dict[str, float]:
    captions, references = [texts[-1] for texts in given], [texts[:-1] for texts in given]
    return measure(captions, references, metrics="BLEU,ROUGE-L,CIDEr-D").corpus


def theirs_from_text(given: Photos) -> dict[str, float]:
    tokenizer = PTBTokenizer()
    references = tokenizer.tokenize({i: [{"caption": text} for text in texts[:-1]] for i, texts in enumerate(given)})
    captions = tokenizer.tokenize({i: [{"caption": texts[-1]}] for i, texts in enumerate(given)})
    return _theirs(captions, references)


def _theirs(captions: dict[int, list[str]], references: dict[int, list[str]]) -> dict[str, float]:
    bleu, _ = Bleu(4).compute_score(references, captions, verbose=0)
    scores = {f"BLEU-{n}": value for n, value in enumerate(bleu, start=1)}
    scores["ROUGE-L"] = Rouge().compute_score(references, captions)[0]
    scores["CIDEr-D"] = Cider().compute_score(references, captions)[0]
    return {name: float(value) for name, value in scores.items()}


def text(repeats: int) -> dict[str, str]:
    given = photos(PHOTOS)
    _must_agree(ours_from_text(given), theirs_from_text(given), 1e-9)
    took = side_by_side(
        {"ours": lambda: ours_from_text(given), "theirs": lambda: theirs_from_text(given)}, repeats=repeats
    )
    what = f"tokenise + BLEU + ROUGE-L + CIDEr-D, {PHOTOS:,} photos x 4 references, from raw text"
    return _row(what, took["ours"], took["theirs"])


def _must_agree(ours: dict[str, float], theirs: dict[str, float], within: float) -> None:
    for name, value in theirs.items():
        if abs(ours[name] - value) > within:
            raise SystemExit(f"{name}: ours {ours[name]:.12f}, theirs {value:.12f}")


# METEOR


def meteors(repeats: int) -> dict[str, str]:
    words = [tokenize(texts) for texts in photos(PHOTOS)]
    captions, references = [texts[-1] for texts in words], [texts[:-1] for texts in words]
    index, jar = meteor.load(), Meteor()
    said = {i: [" ".join(text)] for i, text in enumerate(captions)}
    told = {i: [" ".join(text) for text in texts] for i, texts in enumerate(references)}

    def ours() -> float:
        return float(meteor.value(index.statistics(captions, references).sum(0)))

    def theirs() -> float:
        return float(jar.compute_score(told, said)[0])

    _must_agree({"METEOR": ours()}, {"METEOR": theirs()}, 1e-4)
    took = side_by_side({"ours": ours, "theirs": theirs}, repeats=repeats)
    return _row(f"METEOR, {PHOTOS:,} photos x 4 references, warm", took["ours"], took["theirs"])


# Memory

OURS = """
from capscore.scoring import measure
measure(captions, references, metrics="BLEU,ROUGE-L,CIDEr-D").corpus
"""
THEIRS = """
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
tokenize = PTBTokenizer().tokenize
references = tokenize({i: [{"caption": text} for text in texts] for i, texts in references.items()})
captions = tokenize({i: [{"caption": text}] for i, text in captions.items()})
Bleu(4).compute_score(references, captions, verbose=0)
Rouge().compute_score(references, captions)
Cider().compute_score(references, captions)
"""


def memory() -> dict[str, str]:
    given = photos(MANY)
    size = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "captions.json"
        file.write_text(json.dumps([{i: t[-1] for i, t in enumerate(given)}, {i: t[:-1] for i, t in enumerate(given)}]))
        before = f"import json\ncaptions, references = json.load(open({str(file)!r}))\n"
        # of this process alone; getrusage would count what its parent had when it began
        after = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
        for name, work in (("ours", OURS), ("theirs", THEIRS)):
            ended = subprocess.run([sys.executable, "-c", before + work + after], capture_output=True, check=True)
            size[name] = int(ended.stdout.split()[-1]) / 1024
    return {
        "what": f"largest resident size, text, {MANY:,} photos x 4 references",
        "ours": f"{size['ours']:,.0f} MB",
        "theirs": f"{size['theirs']:,.0f} MB",
        "theirs / ours": f"{size['theirs'] / size['ours']:.1f}",
    }


def _row(what: str, ours: float, theirs: float) -> dict[str, str]:
    return {"what": what, "ours": _time(ours), "theirs": _time(theirs), "theirs / ours": f"{theirs / ours:.1f}"}


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.2f} ms"


if __name__ == "__main__":
    rows = [rewards(repeats=9), text(repeats=3), meteors(repeats=3), memory()]
    table("Metrics, beside pycocoevalcap 1.2", rows)
