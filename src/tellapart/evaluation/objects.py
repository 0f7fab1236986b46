"""Measures by a detector: what it sees in the photos of a split, and what each row's captions name of that."""

from __future__ import annotations

from dataclasses import dataclass

from tellapart.detectors.detections import detect
from tellapart.detectors.detector import IOU, Detector
from tellapart.evaluation.grid import Row
from tellapart.evaluation.models import Split
from tellapart.metrics import objects
from tellapart.metrics.object_words import CLASSES
from tellapart.metrics.tokenize.tokenizer import tokenize


@dataclass(frozen=True)
class Seen:
    """The classes that a detector sees in each photo of a split."""

    detector: Detector
    weak: list[frozenset[int]]
    clear: list[frozenset[int]]


def see(detector: Detector, split: Split) -> tuple[Split, Seen]:
    """What is in the photos, and the split without those that cannot be read."""
    found = detect(detector, list(dict.fromkeys(str(photo.file) for photo in split.photos)))
    readable = split.without(found.failed) if found.failed else split
    place = {file: number for number, file in enumerate(found.files)}
    places = detector.numbers_of(CLASSES)
    rows = [place[str(photo.file)] for photo in readable.photos]
    weak, clear = (
        [seen[row] for row in rows] for seen in (found.seen(one, places) for one in (objects.WEAK, objects.CLEAR))
    )
    return readable, Seen(detector, weak, clear)


def add(row: Row, seen: Seen, measured: list[int]) -> None:
    """Add ObjPrec and ObjRec to a row; where people speak, of all their captions."""
    words: list[list[list[str]]] = [[] for _ in seen.weak]
    for photo in measured:
        words[photo] = tokenize(row.captions.of_photo[photo])
    count = sum(map(len, words))
    row.add(
        objects.objects(words, seen.weak, seen.clear, seen.detector.name),
        f"photos:{len(measured)}|captions:{count}|weak:{objects.WEAK:g}|clear:{objects.CLEAR:g}|iou:{IOU:g}"
        f"|w:{seen.detector.sha256[:8]}",
    )
