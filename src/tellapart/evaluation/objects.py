"""Measures by a detector: what it sees in the photos of a split, and what each row's captions name of that."""

from __future__ import annotations

from dataclasses import dataclass

from capscore import objects
from capscore.object_words import CLASSES
from capscore.tokenize.tokenizer import tokenize
from tellapart.detectors.detections import detect
from tellapart.detectors.detector import IOU, Detector
from tellapart.evaluation.grid import Row
from tellapart.evaluation.models import Split


@dataclass(frozen=True)
class DetectedObjects:
    """The classes that a detector sees in each photo of a split."""

    detector: Detector
    weak: list[frozenset[int]]
    clear: list[frozenset[int]]


def detect_objects(detector: Detector, split: Split) -> tuple[Split, DetectedObjects]:
    """What is in the photos, and the split without those that cannot be read."""
    found = detect(detector, list(dict.fromkeys(str(photo.file) for photo in split.photos)))
    readable = split.without(found.failed) if found.failed else split
    place = {file: number for number, file in enumerate(found.files)}
    places = detector.numbers_of(CLASSES)
    rows = [place[str(photo.file)] for photo in readable.photos]
    weak, clear = (
        [detected[row] for row in rows]
        for detected in (found.seen(one, places) for one in (objects.WEAK, objects.CLEAR))
    )
    return readable, DetectedObjects(detector, weak, clear)


def add(row: Row, detected: DetectedObjects, measured: list[int]) -> None:
    """Add ObjPrec and ObjRec to a row; for people, of all their captions."""
    words: list[list[list[str]]] = [[] for _ in detected.weak]
    for photo in measured:
        words[photo] = tokenize(row.captions.of_photo[photo])
    count = sum(map(len, words))
    row.add(
        objects.objects(words, detected.weak, detected.clear, detected.detector.name),
        f"photos:{len(measured)}|captions:{count}|weak:{objects.WEAK:g}|clear:{objects.CLEAR:g}|iou:{IOU:g}"
        f"|w:{detected.detector.sha256[:8]}",
    )
