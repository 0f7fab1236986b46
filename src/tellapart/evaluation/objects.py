"""Measures by a detector: what it sees in the photos of a split, and what each row's captions name of that."""

from __future__ import annotations

from dataclasses import dataclass

from tellapart.detectors import yolox
from tellapart.detectors.detections import detect
from tellapart.detectors.yolox import Detector
from tellapart.errors import UserError
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


def load(file: str) -> Detector:
    """A detector of COCO's classes."""
    detector = yolox.load(file)
    if detector.classes != len(CLASSES):
        raise UserError(
            f"{file}: knows {detector.classes} classes, and captions are checked by the {len(CLASSES)} of COCO."
        )
    return detector


def see(detector: Detector, split: Split) -> tuple[Split, Seen]:
    """What is in the photos, and the split without those that cannot be read."""
    found = detect(detector, list(dict.fromkeys(str(photo.file) for photo in split.photos)))
    readable = split.without(found.failed) if found.failed else split
    place = {file: number for number, file in enumerate(found.files)}
    rows = [place[str(photo.file)] for photo in readable.photos]
    weak, clear = ([seen[row] for row in rows] for seen in (found.seen(objects.WEAK), found.seen(objects.CLEAR)))
    return readable, Seen(detector, weak, clear)


def add(row: Row, seen: Seen, measured: list[int]) -> None:
    """Add ObjPrec and ObjRec to a row; where people speak, of all their captions."""
    words: list[list[list[str]]] = [[] for _ in seen.weak]
    for photo in measured:
        words[photo] = tokenize(row.captions.of_photo[photo])
    count = sum(map(len, words))
    row.add(
        objects.objects(words, seen.weak, seen.clear, seen.detector.name),
        f"photos:{len(measured)}|captions:{count}|weak:{objects.WEAK:g}|clear:{objects.CLEAR:g}|iou:{yolox.IOU:g}"
        f"|w:{seen.detector.sha256[:8]}",
    )
