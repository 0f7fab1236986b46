"""What a captioner is given of a photo: its streams, made by encoders now or read from stored features."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart import models
from tellapart.data import items
from tellapart.data.media import photos
from tellapart.data.media.clips import is_clip
from tellapart.data.streams import BOXES, REGIONS, Inputs, Stream, ragged
from tellapart.detectors.detector import Detector
from tellapart.detectors.loading import load as load_detector
from tellapart.detectors.regions import DetectedRegions, PhotoWithBoxes
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features
from tellapart.encoders.frames import FrameEncoder
from tellapart.encoders.in_view import in_view
from tellapart.errors import BadPhoto
from tellapart.features import attributes
from tellapart.features.attributes import AttributeSource, captioner_ids
from tellapart.features.boxes import grid_boxes, regions_of
from tellapart.features.extracted import FeatureStore, read_item, stored, unchanged
from tellapart.features.imported import ImportedFeatures, RegionStore, from_identity, store_of
from tellapart.models.attributes import from_identity as attribute_source

Source = str | os.PathLike[str] | Image.Image


@dataclass(frozen=True)
class LoadedPhoto:
    """A photo on its way to a captioner."""

    contents: tuple[Any, ...]  # of each stream: pixels (S, S, 3) to be encoded, or features (R, D), or both with boxes
    sha256: str  # of the photo


class VisualInput:
    """What a captioner is given of photos: all of its streams."""

    def __init__(self, streams: Mapping[str, StreamInput]):
        self.streams = dict(streams)

    @property
    def identity(self) -> str:
        """What captions depend on beside the photo and the captioner."""
        return " ".join(stream.identity for stream in self.streams.values())

    @property
    def encoder(self) -> PhotoEncoder | None:
        """What makes regions of a photo; none where they were imported."""
        regions = self.streams.get(REGIONS)
        return regions.encoder if isinstance(regions, EncoderInput | DetectedInput) else None

    def load(self, source: Source) -> LoadedPhoto:
        """One photo; may be called from several threads.  Raises BadPhoto."""
        makers = dict.fromkeys(stream.maker for stream in self.streams.values())  # boxes come with their regions
        loaded = {maker: maker.load(source) for maker in makers}
        contents = tuple(loaded[stream.maker][0] for stream in self.streams.values())
        return LoadedPhoto(contents, next(sha256 for _, sha256 in loaded.values() if sha256))

    def inputs(self, loaded: Sequence[LoadedPhoto]) -> Inputs:
        return Inputs(
            (name, stream.stream([photo.contents[number] for photo in loaded]))
            for number, (name, stream) in enumerate(self.streams.items())
        )

    def region_boxes(self, source: Source, loaded: LoadedPhoto) -> Tensor | None:
        """(R, 4): where the regions of a photo are, as fractions of what is seen of it, also where the captioner is not
        given that; none where they are unknown, or where the one region is the whole photo."""
        contents = dict(zip(self.streams, loaded.contents, strict=True))
        if BOXES in self.streams:
            return self.streams[BOXES].stream([contents[BOXES]]).values[0].float().cpu()
        regions = self.streams.get(REGIONS)
        if isinstance(regions, DetectedInput):
            found: PhotoWithBoxes | StoredRegions = contents[REGIONS]
            return found.boxes.float()
        if isinstance(regions, StoredInput):
            return regions.boxes(source)
        encoder = self.encoder
        if encoder is None or encoder.regions < 2 or encoder.regions != encoder.config.cells:
            return None
        return grid_boxes(*encoder.config.grids)


class StreamInput(Protocol):
    """One stream of photos."""

    @property
    def identity(self) -> str:
        """What captions depend on beside the photo and the captioner."""

    @property
    def maker(self) -> StreamInput:
        """Whose `load` reads a photo for it: its own, or another stream's."""

    def load(self, source: Source) -> tuple[Any, str]:
        """What `stream` needs of a photo, and the photo's hash where it was read."""

    def stream(self, contents: Sequence[Any]) -> Stream: ...


class _Own:
    """A stream that loads photos for itself."""

    @property
    def maker(self) -> Any:
        return self


def visual_input(
    model: models.Model,
    device: torch.device,
    features: Path | None = None,
    paths: Iterable[str] = (),
    detector: str | os.PathLike[str] | None = None,
) -> VisualInput:
    """What a model sees photos by.

    features  the folder of stored features: streams that no encoder makes need it, others need not be made again
    paths     the data files and folders of photos whose features may be there
    detector  what finds the boxes of a model's regions, for models that need one
    """
    paths, streams = list(paths), dict[str, StreamInput]()
    if model.encoder is not None:
        found = {} if features is None else _seen_before(model.encoder, features, paths)
        return VisualInput({REGIONS: EncoderInput(model.encoder, device, found)})
    detected: list[tuple[dict[str, Any], DetectedInput]] = []  # regions and their boxes share one
    for name, identity in model.inputs.items():
        if identity.keys().isdisjoint(("detector", "detected")):
            streams[name] = _stream_input(model, name, device, features, paths)
            continue
        regions, _ = regions_of(identity)
        own = next((one for other, one in detected if other == regions), None)
        if own is None:
            own = DetectedInput(regions, _detector(regions, detector), device, features, paths)
            detected.append((regions, own))
        streams[name] = own if regions == identity else DetectedBoxes(own)
    return VisualInput(streams)


def _detector(identity: dict[str, Any], source: str | os.PathLike[str] | None) -> Detector:
    """The detector that a model was trained with; refuses another."""
    wanted = named if isinstance(named := identity.get("detector"), dict) else {}
    known = (
        f"this model was trained with regions of the detector {str(wanted.get('name'))[:40]} "
        f"(sha256 {str(wanted.get('weights_sha256'))[:12]})"
    )
    if not source:
        raise UserError(f"{known}; give it: --detector {'FILE.onnx' if wanted.get('name') == 'yolox' else 'FOLDER'}.")
    found = load_detector(os.fspath(source))
    if json.loads(json.dumps(found.identity)) != wanted:
        raise UserError(f"{known}; --detector {source} is another one (sha256 {found.sha256[:12]}).")
    return found


def _stream_input(
    model: models.Model, name: str, device: torch.device, features: Path | None, paths: Sequence[str]
) -> StreamInput:
    identity = model.inputs[name]
    if identity.get("gives") == attributes.GIVES:
        source = attribute_source(identity, device, model.folders)
        if source.imported and features is not None:
            regions = StoredInput(source.imported, features, paths, device, REGIONS)
            source = replace(source, prepare=regions.load)
        return AttributeInput(source, captioner_ids(source.words, model.tokenizer), device)
    identity, gives = regions_of(identity)
    try:
        imported = from_identity(identity)
    except ValueError:
        raise UserError("the model's config.json does not say which features it was trained with.") from None
    if imported is None and gives == "boxes":
        return GridBoxes(identity, device)
    if imported is None:
        encoder = models.encoder_from(identity, device, model.folders)
        return EncoderInput(encoder, device, {} if features is None else _seen_before(encoder, features, paths))
    if features is None:
        raise UserError(
            f"this model was trained on imported features ({imported.name}) and cannot encode photos; "
            "give a data file whose features were imported, and their folder: --features DIR."
        )
    return StoredInput(imported, features, paths, device, gives or "regions")


class EncoderInput(_Own):
    """A stream that an encoder makes of photos, but for those whose features are stored and that have not changed."""

    def __init__(self, encoder: PhotoEncoder, device: torch.device, stored: Mapping[str, tuple[FeatureStore, str]]):
        """stored  file -> where its features are, and its id there"""
        self.encoder, self.device, self._stored = encoder, device, stored

    @property
    def identity(self) -> str:
        return self.encoder.weights_sha256 + (" stored in half precision" if self._stored else "")

    def load(self, source: Source) -> tuple[NDArray[Any], str]:
        """Pixels or stored features, and the hash of the photo."""
        if not isinstance(source, Image.Image) and (found := _line(self._stored, source)) is not None:
            store, line = found
            row = line["row"]
            return store.grid([row], store.count_of(row))[0].numpy(), line["sha256"]
        photo = self.read(source)
        return photo.pixels, photo.sha256

    def read(self, source: Source, view: int = 0) -> photos.Photo:
        """view  which of its views (`data.views`), from 1; 0: the whole photo"""
        encoder = self.encoder
        if isinstance(encoder, FrameEncoder) and (isinstance(source, Image.Image) or not is_clip(source)):
            encoder = encoder.of_photos  # a clip of one frame
        return read_item(in_view(encoder, view) if view else encoder, source)

    def stream(self, contents: Sequence[NDArray[Any]]) -> Stream:
        pixels = [content for content in contents if content.dtype == np.uint8]
        encoded = {
            dimensions: iter(self._encoded([one for one in pixels if one.ndim == dimensions]))
            for dimensions in {one.ndim for one in pixels}
        }
        rows = [
            next(encoded[content.ndim]) if content.dtype == np.uint8 else torch.from_numpy(content).to(self.device)
            for content in contents
        ]
        return ragged(rows)

    def _encoded(self, pixels: Sequence[NDArray[Any]]) -> list[Tensor]:
        """Of photos alone, or of clips alone."""
        is_photo = isinstance(self.encoder, FrameEncoder) and pixels[0].ndim == 3
        encoder: PhotoEncoder = self.encoder.of_photos if is_photo else self.encoder  # type: ignore[attr-defined]
        return _existing(encoder(np.stack(pixels)))


class DetectedInput(_Own):
    """Regions that an encoder makes with the boxes of a detector, but for those that are stored."""

    def __init__(
        self,
        identity: dict[str, Any],
        detector: Detector,
        device: torch.device,
        features: Path | None,
        paths: Sequence[str],
    ):
        alone = {key: value for key, value in identity.items() if key != "detector"}
        self.encoder = DetectedRegions(models.encoder_from(alone, device), detector)
        self.device = device
        self._stored = {} if features is None else _seen_before(self.encoder, features, paths)

    @property
    def identity(self) -> str:
        weights = f"{self.encoder.weights_sha256} {self.encoder.detector.sha256}"
        return weights + (" stored in half precision" if self._stored else "")

    def load(self, source: Source) -> tuple[PhotoWithBoxes | StoredRegions, str]:
        if not isinstance(source, Image.Image) and (found := _line(self._stored, source)) is not None:
            store, line = found
            count = int(store.read("count", [line["row"]]))
            regions, boxes = (store.read(array, [line["row"]], count)[0] for array in ("grid", "boxes"))
            return StoredRegions(regions, boxes), line["sha256"]
        photo = self.encoder.read(source)
        return photo, photo.sha256

    def stream(self, contents: Sequence[PhotoWithBoxes | StoredRegions]) -> Stream:
        seen = [content for content in contents if isinstance(content, PhotoWithBoxes)]
        encoded = iter(self.encoder.features(seen)[0] if seen else ())
        return ragged([one.regions if isinstance(one, StoredRegions) else next(encoded) for one in contents]).to(
            self.device
        )


@dataclass(frozen=True)
class StoredRegions:
    regions: Tensor  # (R, D)
    boxes: Tensor  # (R, 4)


class DetectedBoxes:
    """Where the regions of a `DetectedInput` are."""

    identity = "boxes"

    def __init__(self, regions: DetectedInput):
        self.maker, self.load = regions, regions.load

    def stream(self, contents: Sequence[PhotoWithBoxes | StoredRegions]) -> Stream:
        return ragged([content.boxes for content in contents]).to(self.maker.device)


def _line(
    stored: Mapping[str, tuple[FeatureStore, str]], source: str | os.PathLike[str]
) -> tuple[FeatureStore, dict[str, Any]] | None:
    """Where a photo's features are, and its line there; none if it has changed since."""
    store, id = stored.get(os.fspath(source), (None, ""))
    line = None if store is None else store.lines.get(id)
    return None if store is None or line is None or not unchanged(line, Path(source)) else (store, line)


def _seen_before(encoder: PhotoEncoder, root: Path, paths: Iterable[str]) -> dict[str, tuple[FeatureStore, str]]:
    if not files.is_folder(root):
        raise UserError(f"--features {root}: there is no such folder.")
    found: dict[str, tuple[FeatureStore, str]] = {}
    for dataset, of_dataset in _data_sets(paths):
        if (store := stored(root, dataset, encoder)) is not None:
            found |= {file: (store, id) for file, id in of_dataset}
    return found


class StoredInput(_Own):
    """A stream that another program made and that was imported; the photo itself need not be there."""

    def __init__(self, imported: ImportedFeatures, root: Path, paths: Iterable[str], device: torch.device, array: str):
        """
        paths  data files, and folders of photos
        array  of the store: regions, boxes or relations
        """
        self.device, self.name, self._array = device, imported.name, array
        self._places: dict[str, tuple[RegionStore, str]] = {}  # file -> where its features are, and its id there
        digests = set()
        for dataset, of_dataset in _data_sets(paths):
            store = store_of(imported, root, dataset)
            digests.add(store.digest)
            self._places |= {file: (store, id) for file, id in of_dataset}
        if not self._places:
            raise UserError(f"--features {root}: features are stored per data set; give a data file or a whole folder.")
        self.identity = " ".join(sorted(digests))

    def load(self, source: Source) -> tuple[NDArray[Any], str]:
        if isinstance(source, Image.Image) or os.fspath(source) not in self._places:
            name = getattr(source, "filename", "image") if isinstance(source, Image.Image) else source
            raise BadPhoto(name, "belongs to no data set with imported features")
        features = self._read(source, self._array).numpy()
        store, id = self._places[os.fspath(source)]
        try:
            sha256 = photos.sha256(source)
        except BadPhoto:
            sha256 = hashlib.sha256(f"{store.digest} {id}".encode()).hexdigest()
        return features, sha256

    def boxes(self, source: Source) -> Tensor | None:
        """(R, 4), if they were imported, too."""
        found = self._read(source, "boxes").float()
        return found if found.any() else None

    def _read(self, source: Any, array: str) -> Tensor:
        store, id = self._places[os.fspath(source)]
        if id not in store.lines:
            raise BadPhoto(source, f"has no features in {store.folder}")
        line = store.lines[id]
        count = line.get("relations", 0) if array == "relations" else line["regions"]
        return store.read(array, [line["row"]], count)[0].float()

    def stream(self, contents: Sequence[NDArray[Any]]) -> Stream:
        return ragged([torch.from_numpy(content) for content in contents]).to(self.device)


def _existing(features: Features) -> list[Tensor]:
    """The rows of each item that exist."""
    if features.counts is None:
        return list(features.grid)
    return [rows[:count] for rows, count in zip(features.grid, features.counts.tolist(), strict=True)]


class AttributeInput(_Own):
    """The words of photos, by the ids that they have in the captioner's vocabulary."""

    def __init__(self, source: AttributeSource, known: Tensor, device: torch.device):
        """known  (W,) the captioner's id of each word"""
        self.source, self.device, self.known = source, device, known
        self.identity = json.dumps(source.identity, sort_keys=True)

    def load(self, source: Source) -> tuple[NDArray[Any], str]:
        return self.source.prepare(source)

    def stream(self, contents: Sequence[NDArray[Any]]) -> Stream:
        return attributes.as_stream(self.source, contents, self.known).to(self.device)


class GridBoxes(_Own):
    """The cells of an encoder's grid, which are the same for every photo."""

    def __init__(self, identity: dict[str, Any], device: torch.device):
        grids = [identity.get("grid"), *([identity["coarse"]] if "coarse" in identity else [])]
        sides = [side for side in grids if isinstance(side, int) and 1 <= side <= 64]
        if sides != grids:
            raise UserError("the model's config.json does not say which grid its boxes belong to.")
        self.identity = " and ".join(f"{side} x {side} cells" for side in sides)
        self.device, self._boxes = device, grid_boxes(*sides).numpy()

    def load(self, source: Source) -> tuple[NDArray[Any], str]:
        """Boxes (R, 4), and no hash: nothing of the photo is needed."""
        return self._boxes, ""

    def stream(self, contents: Sequence[NDArray[Any]]) -> Stream:
        values = torch.from_numpy(np.stack(contents)).to(self.device)
        return Stream(values, torch.ones(values.shape[:2], dtype=torch.bool, device=self.device))


def _data_sets(paths: Iterable[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The name of each data set, and the files, as the user names them, and ids of its items."""
    for path in paths:
        if files.is_folder(Path(path)) or items.is_data_file(path):
            found = items.open_path(path, takes=("photos", "clips"))
            yield found.name, [(str(example.file), str(example.id)) for example in found.examples]
