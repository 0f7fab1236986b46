"""The sources of a captioner's streams, from what a recipe or a model's config.json says.

Attributes are those of a tagger, of a retriever such as CLIP, or of a detector:

tagger      the folder of its run; one over imported features reads those
retriever   a name from `tellapart models`, a run folder or a hub id: how well "a photo of WORD" fits, a softmax over
            the 1,000 most frequent content words of COCO's captions
detector    FILE.onnx, a YOLOX export of COCO's classes: the highest score of each
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.objects import CLASSES
from capscore.words import content
from tellapart import models, paths
from tellapart.data import items
from tellapart.data.streams import ATTRIBUTES, BOXES, REGIONS, RELATIONS
from tellapart.detectors import load as load_detector
from tellapart.detectors.detector import Detector
from tellapart.encoders import ENCODERS, pretrained
from tellapart.encoders.encoder import Part
from tellapart.features.sources import (
    GIVES,
    Attributes,
    Detected,
    Encoded,
    Item,
    Loaded,
    Sources,
    StreamSource,
    find_imported,
    imported_from,
    regions_of,
)
from tellapart.models.parts import TaggerRun, encoder_from, find, is_tagger, load_encoder, read_tagger, tuned_encoder
from tellapart.recipe import EncoderConfig
from tellapart.retrievers import EMBEDDED

_ZERO_SHOT = 1000  # words
_PROMPT = "a photo of"  # what CLIP finds before a word
_SHORT = {"hot dog": "hotdog", "teddy bear": "teddy"}  # of other classes with several words the last one is the word


def of_streams(
    streams: Mapping[str, EncoderConfig], root: Path, detector: str, device: torch.device, *, photos_once: bool = True
) -> Sources:
    """The sources that a recipe names.

    root         the folder of the feature cache, where imported features may be
    detector     of the boxes of regions, where regions have any
    photos_once  a photo has the rows of one frame, not of as many alike as a clip has
    """
    load, sources = cache(load_detector), dict[str, StreamSource]()
    for name, config in streams.items():
        if name not in (BOXES, RELATIONS):
            sources[name] = of_stream(name, config, root, detector, device, load, photos_once=photos_once)
    for name in streams.keys() & {BOXES, RELATIONS}:
        if REGIONS not in sources or streams[name] != streams[REGIONS]:
            raise UserError(f"inputs.{name}: {name} belong to the regions, so both must have the same source.")
        sources[name] = sources[REGIONS].beside(name)  # type: ignore[arg-type]
    return Sources({name: sources[name] for name in streams}, device)


def of_stream(
    stream: str,
    config: EncoderConfig,
    root: Path,
    detector: str,
    device: torch.device,
    load: Callable[[str], Detector] = load_detector,
    *,
    photos_once: bool = True,
) -> StreamSource:
    """The source of one stream of a recipe, unless it is boxes or relations, which belong to regions."""
    if (imported := find_imported(root, config.name)) is not None:
        if config.detected:
            raise UserError(f"inputs.{stream}.detected: the regions of {config.name} were imported, and have boxes.")
        return imported
    # a captioner of a plugin may take features of an encoder by this name as well
    if stream == ATTRIBUTES and config.name not in ENCODERS:
        return attributes(config, device)
    encoder = load_encoder(config, device)
    return Detected(encoder, load(detector)) if config.detected else Encoded(encoder, photos_once=photos_once)


def of_model(
    model: models.Model,
    device: torch.device,
    features: Path | None = None,
    named: Iterable[str] = (),
    detector: str | os.PathLike[str] | None = None,
) -> Sources:
    """The sources that a model learned from.

    features  the folder of stored features: streams that no encoder makes need it, others need not be made again
    named     the data files and folders of photos whose features may be there
    detector  what finds the boxes of a model's regions, for models that need one
    """
    data_sets = []
    for path in () if features is None else named:
        if files.is_folder(Path(path)) or items.is_data_file(path):
            dataset = items.open_path(path)
            data_sets.append((dataset.name, [(str(e.file), str(e.id)) for e in dataset.examples]))
    if model.encoder is not None:
        return Sources({REGIONS: Encoded(model.encoder).kept(features, data_sets)}, device)
    sources = dict[str, StreamSource]()
    for name, identity in model.inputs.items():
        if regions_of(identity)[1] is None:
            source = _from_identity(identity, model, device, detector).kept(features, data_sets)
            sources[name] = source.in_vocabulary(model.tokenizer)
    for name, identity in model.inputs.items():
        regions, gives = regions_of(identity)
        if gives is not None:
            if regions != model.inputs.get(REGIONS):
                raise UserError(f"the model's config.json does not say which regions its {gives} belong to.")
            sources[name] = sources[REGIONS].beside(gives)
    return Sources({name: sources[name] for name in model.inputs}, device)


def _from_identity(
    identity: dict[str, Any], model: models.Model, device: torch.device, detector: str | os.PathLike[str] | None
) -> StreamSource:
    if identity.get(GIVES) == ATTRIBUTES:
        return attributes_from(identity, device, model.folders)
    if not identity.keys().isdisjoint(("detector", "detected")):
        named = _detector(identity, detector)
        alone = {key: value for key, value in identity.items() if key != "detector"}
        return Detected(encoder_from(alone, device), named)
    try:
        imported = imported_from(identity)
    except ValueError:
        raise UserError("the model's config.json does not say which features it was trained with.") from None
    return imported or Encoded(encoder_from(identity, device, model.folders))


def _detector(identity: dict[str, Any], source: str | os.PathLike[str] | None) -> Detector:
    """The detector that a model was trained with; refuses another."""
    wanted = named if isinstance(named := identity.get("detector"), dict) else {}
    learned = (
        f"this model was trained with regions of the detector {str(wanted.get('name'))[:40]} "
        f"(sha256 {str(wanted.get('weights_sha256'))[:12]})"
    )
    if not source:
        raise UserError(f"{learned}; give it: --detector {'FILE.onnx' if wanted.get('name') == 'yolox' else 'FOLDER'}.")
    detector = load_detector(os.fspath(source))
    if json.loads(json.dumps(detector.identity)) != wanted:
        raise UserError(f"{learned}; --detector {source} is another one (sha256 {detector.sha256[:12]}).")
    return detector


def attributes(config: EncoderConfig, device: torch.device) -> Attributes:
    """The source of attributes that a recipe names."""
    name, most, threshold = config.name, config.most, config.threshold
    if is_tagger(Path(name)):
        return of_tagger(read_tagger(Path(name)), files.real(Path(name)).name, device, most, threshold)
    if Path(name).suffix == ".onnx":
        return of_detector(Path(name), most, threshold)
    return of_retriever(name, device, most, threshold)


def attributes_from(identity: dict[str, Any], device: torch.device, folders: Iterable[Path]) -> Attributes:
    """The source of attributes that a model's config.json names; refuses one with other weights.

    folders  of the model, which carry its tagger; other files and folders are those that the user names
    """
    try:
        name, kind, sha256 = (str(identity[key]) for key in ("name", "kind", "weights_sha256"))
        most, threshold = int(identity["most"]), float(identity["threshold"])
    except (KeyError, TypeError, ValueError):
        raise UserError("the model's config.json does not say where its attributes come from.") from None
    if kind == "tagger":
        source = of_tagger(read_tagger(find(folders, sha256, name)), name, device, most, threshold)
    elif kind == "detector":
        source = of_detector(_named_by_user(name, sha256), most, threshold)
    else:
        is_named = name in EMBEDDED or not files.is_folder(Path(name))
        source = of_retriever(
            name if is_named else str(_named_by_user(Path(name).name, sha256)), device, most, threshold
        )
    if source.made_by["weights_sha256"] != sha256:
        raise UserError(
            f"the model was trained on attributes of {name} with weights {sha256[:8]}, but the weights here are "
            f"{str(source.made_by['weights_sha256'])[:8]}."
        )
    return source


def _named_by_user(name: str, sha256: str) -> Path:
    """A downloaded model must not decide what is read from this machine."""
    for path in paths.encoders():
        for candidate in (path, path / name):
            if candidate.name == name and (files.is_file(candidate) or files.is_folder(candidate)):
                return candidate
    raise UserError(
        f"the model was trained on attributes of {name}, with weights {sha256[:8]}; a model does not decide what is "
        "read from outside of its own folder.  If you trust that file, name it: TELLAPART_ENCODERS=PATH."
    )


def of_tagger(run: TaggerRun, name: str, device: torch.device, most: int, threshold: float) -> Attributes:
    learned_from = run.config.inputs.get(REGIONS, {})
    regions: StreamSource | None = imported_from(learned_from)
    if run.network.encoder is not None:
        looks = {key: learned_from[key] for key in ("image_size", "grid") if key in learned_from}
        regions = Encoded(tuned_encoder(run.folder, EncoderConfig(name=name, **looks), device), photos_once=False)
    elif regions is None:
        regions = Encoded(encoder_from(learned_from, device, [run.folder]), photos_once=False)
    network, source = run.network.to(device), regions

    @torch.inference_mode()
    def probabilities(loaded: Sequence[Loaded]) -> Tensor:
        return network.probabilities(source.encode(loaded, device))

    made_by = {"kind": "tagger", "weights_sha256": run.sha256, "encoder": regions.identity}
    part = Part(run.folder, run.sha256)
    return Attributes(name, run.words, regions.load, probabilities, made_by, most, threshold, part, regions)


def of_retriever(name: str, device: torch.device, most: int, threshold: float) -> Attributes:
    from tellapart.models.retrievers import load as load_retriever

    is_clip = name not in EMBEDDED and pretrained.could_be(name)
    retriever = load_retriever(name, device=str(device), prompt=_PROMPT if is_clip else "")
    encoder = retriever.encoder
    if encoder is None:
        raise UserError(f"attributes: the retriever {name} sees references, not photos, and finds no words in them.")
    words = zero_shot_words()
    embedded = retriever.embed_captions(words)  # (W, E)

    def probabilities(loaded: Sequence[Loaded]) -> Tensor:
        """The fit of each word to each photo, against the other words: (B, W)"""
        pixels = np.stack([item.pixels for item in loaded if item.pixels is not None])
        return (retriever.scale * retriever.embed_pixels(pixels) @ embedded.T).softmax(1)

    made_by = {"kind": "retriever", "weights_sha256": retriever.sha256, "encoder": encoder.identity}
    read = Encoded(encoder, photos_once=False).load
    return Attributes(name, words, read, probabilities, made_by, most, threshold)


@cache
def zero_shot_words() -> tuple[str, ...]:
    from capscore import ngrams

    counts = ngrams.coco().of_words()
    ordered = sorted((word for word in counts if word.isalpha()), key=lambda word: (-counts[word], word))
    return tuple(content(ordered)[:_ZERO_SHOT])


def of_detector(file: Path, most: int, threshold: float) -> Attributes:
    detector = load_detector(str(file), CLASSES)
    words = tuple(_SHORT.get(name, name.split()[-1]) for name in CLASSES)
    numbers = detector.numbers_of(CLASSES)

    def read(item: Item) -> Loaded:
        photo, scores = detector.read(item), torch.zeros(len(words))
        detections = detector(photo)
        for number, score in zip(detections.classes.tolist(), detections.scores.tolist(), strict=True):
            if number in numbers:
                scores[numbers[number]] = max(scores[numbers[number]], score)
        return Loaded(photo.sha256, rows=scores)

    def probabilities(loaded: Sequence[Loaded]) -> Tensor:
        return torch.stack([item.rows for item in loaded if item.rows is not None])

    made_by = {"kind": "detector", "weights_sha256": detector.sha256, "detector": detector.identity}
    return Attributes(file.name, words, read, probabilities, made_by, most, threshold)
