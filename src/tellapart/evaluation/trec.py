"""Rankings in the form of TREC, which trec_eval, ir_measures and ranx read.

    run     qid Q0 docid rank score tag     the 100 best photos of each caption, best first
    qrels   qid 0 docid 1                   each caption's own photo

A caption's qid is the id of its photo, with "#2" and so on behind it where a photo has several.  Readers order by score
and break ties as they like; a tie counts against the caption here, so that scores are written in steps of at least a
millionth: every reader then finds the ranks that we found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from string import punctuation
from urllib.parse import quote

import numpy as np

from tellapart.evaluation.grid import Grid
from tellapart.metrics.retrieval import Numbers, Retrieved

_STEP = 1e-6
_SAFE = punctuation.replace("%", "")


def word(text: str) -> str:
    """A text without white space, such as a photo's id; different texts stay different."""
    return quote(text, safe=_SAFE, errors="surrogatepass")


def file_name(text: str) -> str:
    """A text as part of a file's name."""
    return quote(text, safe=" @[]()+,=", errors="surrogatepass")


def run_lines(retrieved: Retrieved, ids: Sequence[str], tag: str) -> Iterator[str]:
    """The lines of a run; `ids` are of all photos."""
    names = [word(id) for id in ids]
    for qid, photos, scores in zip(query_ids(retrieved.targets, ids), retrieved.best, retrieved.scores, strict=True):
        millionths = np.round(scores.astype(np.float64) / _STEP).astype(np.int64)
        down = np.arange(len(millionths))
        strict = np.minimum.accumulate(millionths + down) - down  # each at least one below the last
        for rank, (photo, score) in enumerate(zip(photos.tolist(), (strict * _STEP).tolist(), strict=True), start=1):
            yield f"{qid} Q0 {names[photo]} {rank} {score:.6f} {word(tag)}\n"


def qrels_lines(targets: Numbers, ids: Sequence[str]) -> Iterator[str]:
    for qid, photo in zip(query_ids(targets, ids), targets.tolist(), strict=True):
        yield f"{qid} 0 {word(ids[photo])} 1\n"


def of_grid(grid: Grid) -> Iterator[tuple[str, Iterator[str]]]:
    """Names and lines of all files of a grid: runs by each retriever, and the qrels that they share.

    People have several captions of a photo, and so qrels of their own.
    """
    data, ids = file_name(grid.split.name), [str(photo.id) for photo in grid.split.photos]
    yield f"{data}.qrels", qrels_lines(np.array(grid.measured, np.int64), ids)
    for name, row in grid.rows.items():
        model = f"{data}.{file_name(name)}"
        for retriever, retrieved in row.retrieved.items():
            yield f"{model}.{file_name(retriever)}.run", run_lines(retrieved, ids, f"{name}.{retriever}")
        if row.captions.of_people and row.retrieved:
            yield f"{model}.qrels", qrels_lines(next(iter(row.retrieved.values())).targets, ids)


def query_ids(targets: Numbers, ids: Sequence[str]) -> list[str]:
    """One for each caption: the photo's id, and its number if it is not the photo's first."""
    times = Counter[int]()
    names = []
    for photo in targets.tolist():
        times[photo] += 1
        names.append(word(ids[photo]) + (f"#{times[photo]}" if times[photo] > 1 else ""))
    return names
