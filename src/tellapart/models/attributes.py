"""Where attributes come from: a tagger, the words that a retriever such as CLIP finds in a photo, or a detector.

tagger      the folder of its run; one over imported features reads those
retriever   a name from `tellapart models`, a run folder or a hub id: how well "a photo of WORD" fits, a softmax over
            the 1,000 most frequent content words of COCO's captions
detector    FILE.onnx, a YOLOX export of COCO's classes: the highest score of each
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.object_words import CLASSES
from capscore.stop_words import content
from tellapart import paths
from tellapart.data.streams import REGIONS, ragged
from tellapart.detectors.loading import load as load_detector
from tellapart.encoders import PhotoEncoder, pretrained
from tellapart.features.attributes import AttributeSource, scores_of
from tellapart.features.extracted import read_item
from tellapart.features.imported import from_identity as imported_from
from tellapart.models.encoder import encoder_from
from tellapart.models.parts import Part, TaggerRun, find, is_tagger, read_tagger, tuned_encoder
from tellapart.models.retrievers import load as load_retriever
from tellapart.recipe import EncoderConfig
from tellapart.retrievers import EMBEDDED
from tellapart.retrievers.retriever import Retriever

_ZERO_SHOT = 1000  # words
_PROMPT = "a photo of"  # what CLIP finds before a word
_SHORT = {"hot dog": "hotdog", "teddy bear": "teddy"}  # of other classes with several words the last one is the word


def load(config: EncoderConfig, device: torch.device) -> AttributeSource:
    """By what a recipe says."""
    name, most, threshold = config.name, config.most, config.threshold
    if is_tagger(Path(name)):
        return of_tagger(read_tagger(Path(name)), files.real(Path(name)).name, device, most, threshold)
    if Path(name).suffix == ".onnx":
        return of_detector(Path(name), most, threshold)
    return of_retriever(name, device, most, threshold)


def from_identity(identity: dict[str, Any], device: torch.device, folders: Iterable[Path]) -> AttributeSource:
    """The source that a model's config.json names; refuses one with other weights.

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
        own = name in EMBEDDED or not files.is_folder(Path(name))
        source = of_retriever(name if own else str(_named_by_user(Path(name).name, sha256)), device, most, threshold)
    if source.made_by["weights_sha256"] != sha256:
        raise UserError(
            f"the model was trained on attributes of {name} with weights {sha256[:8]}, but the weights here are "
            f"{str(source.made_by['weights_sha256'])[:8]}."
        )
    return source


def _named_by_user(name: str, sha256: str) -> Path:
    """A downloaded model must not decide what is read from this machine."""
    for path in paths.encoders():
        for found in (path, path / name):
            if found.name == name and (files.is_file(found) or files.is_folder(found)):
                return found
    raise UserError(
        f"the model was trained on attributes of {name}, with weights {sha256[:8]}; a model does not decide what is "
        "read from outside of its own folder.  If you trust that file, name it: TELLAPART_ENCODERS=PATH."
    )


def of_tagger(run: TaggerRun, name: str, device: torch.device, most: int, threshold: float) -> AttributeSource:
    seen = run.config.inputs.get(REGIONS, {})
    imported = imported_from(seen) if seen.get("from") == "elsewhere" else None
    encoder: PhotoEncoder | None = None
    if run.network.encoder is not None:
        looks = {key: seen[key] for key in ("image_size", "grid") if key in seen}
        encoder = tuned_encoder(run.folder, EncoderConfig(name=name, **looks), device)
    elif imported is None:
        encoder = encoder_from(seen, device, [run.folder])
    network = run.network.to(device)

    @torch.inference_mode()
    def probabilities(contents: Sequence[NDArray[Any]]) -> Tensor:
        regions = [torch.from_numpy(one).to(device) if one.dtype != np.uint8 else None for one in contents]
        pixels = [one for one in contents if one.dtype == np.uint8]
        encoded = iter(encoder(np.stack(pixels)).grid if encoder is not None and pixels else ())
        return network.probabilities(ragged([next(encoded) if own is None else own.float() for own in regions]))

    def no_reader(source: Any) -> tuple[NDArray[Any], str]:
        raise UserError(
            f"the tagger {name} learned from imported features ({seen.get('name')}) and cannot read photos; give a "
            "data file whose features were imported, and their folder: --features DIR."
        )

    seen_by = imported or encoder
    assert seen_by is not None
    made_by = {"kind": "tagger", "weights_sha256": run.sha256, "encoder": seen_by.identity}
    read = no_reader if encoder is None else _reader(encoder)
    part = Part(run.folder, run.sha256)
    return AttributeSource(
        *(name, run.words, read, probabilities, made_by, most, threshold),
        part=part,
        region_encoder=encoder,
        imported=imported,
    )


def of_retriever(name: str, device: torch.device, most: int, threshold: float) -> AttributeSource:
    is_clip = name not in EMBEDDED and pretrained.could_be(name)
    retriever = load_retriever(name, device=str(device), prompt=_PROMPT if is_clip else "")
    encoder = retriever.encoder
    if encoder is None:
        raise UserError(f"attributes: the retriever {name} sees references, not photos, and finds no words in them.")
    words = zero_shot_words()
    embedded = retriever.embed_captions(words)  # (W, E)

    def probabilities(contents: Sequence[NDArray[Any]]) -> Tensor:
        return zero_shot(retriever, embedded, np.stack(contents))

    made_by = {"kind": "retriever", "weights_sha256": retriever.sha256, "encoder": encoder.identity}
    return AttributeSource(name, words, _reader(encoder), probabilities, made_by, most, threshold)


def zero_shot(retriever: Retriever, words: Tensor, pixels: NDArray[np.uint8]) -> Tensor:
    """How well each of W words (W, E) fits each photo, against the other words: (B, W)"""
    return (retriever.scale * retriever.embed_pixels(pixels) @ words.T).softmax(1)


@cache
def zero_shot_words() -> tuple[str, ...]:
    from capscore import frequencies  # loads a compiler, which captioning does not need

    counts = frequencies.coco().of_words()
    ordered = sorted((word for word in counts if word.isalpha()), key=lambda word: (-counts[word], word))
    return tuple(content(ordered)[:_ZERO_SHOT])


def of_detector(file: Path, most: int, threshold: float) -> AttributeSource:
    detector = load_detector(str(file), CLASSES)
    words = tuple(_SHORT.get(name, name.split()[-1]) for name in CLASSES)
    numbers = detector.numbers_of(CLASSES)

    def prepare(source: Any) -> tuple[NDArray[Any], str]:
        photo, scores = detector.read(source), np.zeros(len(words), np.float32)
        found = detector(photo)
        for number, score in zip(found.classes.tolist(), found.scores.tolist(), strict=True):
            if number in numbers:
                scores[numbers[number]] = max(scores[numbers[number]], score)
        return scores, photo.sha256

    made_by = {"kind": "detector", "weights_sha256": detector.sha256, "detector": detector.identity}
    return AttributeSource(file.name, words, prepare, scores_of, made_by, most, threshold)


def _reader(encoder: PhotoEncoder) -> Any:
    def prepare(source: Any) -> tuple[NDArray[Any], str]:
        photo = read_item(encoder, source)
        return photo.pixels, photo.sha256

    return prepare
