"""Things in a photo by a detector that the user provides: boxes, scores and classes.

detector.py  what every detector gives; what it finds in photos, kept between runs; what an encoder's map has in a box
yolox.py     an ONNX file as a detector
detr.py      DETR and its like in transformers
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from capscore import files

if TYPE_CHECKING:
    from tellapart.detectors.detector import Detector

KINDS = "a YOLOX export (FILE.onnx), or a DETR or RT-DETR of transformers by folder or hub id"


def load(source: str, classes: Sequence[str] = ()) -> Detector:
    """The detector that a name means: a file is YOLOX's, a folder or hub id one of transformers.

    classes  names of classes that it must know, if any are given
    """
    from tellapart.encoders import pretrained

    detector: Detector
    if not files.is_file(Path(source)) and pretrained.could_be(source):
        from tellapart.detectors.detr import Detr  # transformers loads slowly

        detector = Detr(source)
    else:
        from tellapart.detectors import yolox

        detector = yolox.load(source)
    if classes:
        detector.numbers_of(classes)
    return detector
