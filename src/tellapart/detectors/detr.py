"""DETR and its like in transformers, by folder or hub id: RT-DETR, Conditional and Deformable DETR, YOLOS ...

What they share: a set of boxes, each with the middle, width and height as fractions of the photo and a logit for each
class.  DETR (Carion et al., 2020) has one more logit, "nothing", and takes the softmax; the others a sigmoid for each
class.  Of a box only the likeliest class counts.  Boxes of a class that overlap are one thing, as for YOLOX.

A photo is made ready as the folder says; photos go through one by one, so that none is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capscore import files
from tellapart.data.media import clips
from tellapart.data.media.photos import Photo
from tellapart.detectors.detector import BadDetector, Detections, Failed, settings, sure_ones
from tellapart.encoders import pretrained
from tellapart.encoders.towers import INSTALL
from tellapart.features.extracted import safe_name
from tellapart.hub import reason

_SIZE = {"shortest_edge": 800, "longest_edge": 1333}  # where the folder does not say: as DETR's authors
_LARGEST = 2048  # pixels of a side
_OTHER_NAMES = {  # of COCO's classes, as some detectors have them
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
}


class Detr:
    """A frozen network with its settings."""

    def __init__(self, source: str):
        folder = pretrained.find(source, INSTALL)
        _refuse_others(source, folder)
        self.network, missing = pretrained.read_network(source, folder, "AutoModelForObjectDetection", "detector")
        pretrained.refuse_incomplete(source, missing)
        self.network.eval().requires_grad_(False)
        self.source, self.name = source, safe_name(Path(source).resolve().name)
        self.sha256 = pretrained.sha256(self.network.state_dict())
        self.labels = {int(number): str(name) for number, name in self.network.config.id2label.items()}
        file, processor = pretrained.processor(folder)
        try:
            self.size = _sides(processor.get("size", _SIZE))
            self.resample = pretrained.resampling({"resample": 2} | processor)  # bilinear, as all of them
            self.mean, self.std = [0.0] * 3, [1.0] * 3
            if processor.get("do_normalize", True):
                self.mean, self.std = pretrained.colours(processor, *pretrained.IMAGENET)
        except (TypeError, ValueError, AttributeError) as error:
            raise pretrained.not_ready(file, error) from None
        try:
            self(Photo(np.full((64, 64, 3), 128, np.uint8), ""))
        except Failed as error:
            raise BadDetector(source, f"{error.reason}.") from None

    @property
    def identity(self) -> dict[str, Any]:
        weights = {"name": self.network.config.model_type, "weights_sha256": self.sha256}
        photos = {"image_size": self.size, "resample": int(self.resample), "mean": self.mean, "std": self.std}
        return weights | photos | settings(len(self.labels))

    def read(self, source: clips.Source) -> Photo:
        image, sha256 = clips.upright(source)
        return Photo(np.array(image.resize(resized(image.size, self.size), self.resample)), sha256)

    @torch.inference_mode()
    def __call__(self, photo: Photo) -> Detections:
        images = pretrained.normalised(photo.pixels[None], self.mean, self.std, torch.device("cpu"))
        try:
            output = self.network(pixel_values=images)
            logits, boxes = output.logits[0], output.pred_boxes[0]
        except Exception as error:  # each network refuses in its own way
            raise Failed(self.name, f"cannot be run ({reason(error)[:200]})") from None
        if logits.ndim != 2 or boxes.shape != (len(logits), 4) or logits.shape[1] - len(self.labels) not in (0, 1):
            raise Failed(self.name, f"gives {tuple(logits.shape)} logits and {tuple(boxes.shape)} boxes")
        if not (logits.isfinite().all() and boxes.isfinite().all()):
            raise Failed(self.name, "gives numbers that are not finite")
        has_nothing = logits.shape[1] > len(self.labels)
        scores, classes = (logits.softmax(1)[:, :-1] if has_nothing else logits.sigmoid()).max(1)
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return sure_ones(torch.cat([middle - half, middle + half], 1).numpy(), scores.numpy(), classes.numpy())

    def numbers_of(self, classes: Sequence[str]) -> dict[int, int]:
        place = {name: number for number, name in enumerate(classes)}
        names = {number: name.strip().lower() for number, name in self.labels.items()}
        numbers = {n: place[name] for n, label in names.items() if (name := _OTHER_NAMES.get(label, label)) in place}
        lacking = [name for name in classes if place[name] not in numbers.values()]
        if lacking:
            missing = f"({len(lacking)} of {len(classes)} classes are missing)"
            raise BadDetector(self.source, f"does not know {lacking[0]!r} {missing}.")
        return numbers


def _refuse_others(source: str, folder: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES as KNOWN

    kind = files.read_json(folder / "config.json").get("model_type")
    if kind not in KNOWN:
        raise BadDetector(source, f"is a model of the type {str(kind)[:40]!r}, which does not detect objects.")


def _sides(size: Any) -> dict[str, int]:
    """{"height", "width"}, or {"shortest_edge", "longest_edge"}"""
    for edges in (("height", "width"), ("shortest_edge", "longest_edge")):
        if isinstance(size, dict) and all(isinstance(size.get(edge), int) for edge in edges):
            if not all(32 <= size[edge] <= _LARGEST for edge in edges):
                raise ValueError(f"sides of 32 to {_LARGEST} pixels can be read, not {[size[edge] for edge in edges]}")
            return {edge: size[edge] for edge in edges}
    raise ValueError(f"the size is given as {str(size)[:80]}")


def resized(photo: tuple[int, int], size: dict[str, int]) -> tuple[int, int]:
    """The width and height that a photo of a width and height gets."""
    if "height" in size:
        return size["width"], size["height"]
    shortest, longest = min(photo), max(photo)
    factor = min(size["shortest_edge"] / shortest, size["longest_edge"] / longest)
    width, height = (min(max(1, round(side * factor)), size["longest_edge"]) for side in photo)
    return width, height
