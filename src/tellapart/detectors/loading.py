"""From a name to a detector: a file is YOLOX's, a folder or hub id one of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capscore import files
from tellapart.detectors import yolox
from tellapart.detectors.detector import Detector
from tellapart.encoders import pretrained


def load(source: str, classes: Sequence[str] = ()) -> Detector:
    """classes  names of classes that it must know, if any are given"""
    detector: Detector
    if not files.is_file(Path(source)) and pretrained.could_be(source):
        from tellapart.detectors.detr import Detr  # transformers loads slowly

        detector = Detr(source)
    else:
        detector = yolox.load(source)
    if classes:
        detector.numbers_of(classes)
    return detector
