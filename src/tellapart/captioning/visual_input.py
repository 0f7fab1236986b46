"""What a captioner is given of a photo: its streams, made by encoders now or read from stored features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tellapart import files, models
from tellapart.data import items
from tellapart.data.media import photos
from tellapart.data.streams import REGIONS, Inputs, Stream
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features
from tellapart.errors import BadPhoto, UserError
from tellapart.features.boxes import grid_boxes, regions_of
from tellapart.features.extracted import FeatureStore, read_item, stored, unchanged
from tellapart.features.imported import ImportedFeatures, RegionStore, from_identity, store_of

Source = str | os.PathLike[str] | Image.Image


@dataclass(frozen=True)
class LoadedPhoto:
    """A photo on its way to a captioner."""

    contents: tuple[NDArray[Any], ...]  # of each stream: pixels (S, S, 3) to be encoded, or features (R, D)
    sha256: str  # of the photo


class VisualInput:
    """What a captioner is given of photos: all of its streams."""

    def __init__(self, streams: Mapping[str, EncoderInput | StoredInput | GridBoxes]):
        self.streams = dict(streams)

    @property
    def identity(self) -> str:
        """What captions depend on beside the photo and the captioner."""
        return " ".join(stream.identity for stream in self.streams.values())

    @property
    def encoder(self) -> PhotoEncoder | None:
        """What makes regions of a photo; none where they were imported."""
        regions = self.streams.get(REGIONS)
        return regions.encoder if isinstance(regions, EncoderInput) else None

    def load(self, source: Source) -> LoadedPhoto:
        """One photo; may be called from several threads.  Raises BadPhoto."""
        loaded = [stream.load(source) for stream in self.streams.values()]
        return LoadedPhoto(tuple(content for content, _ in loaded), next(sha256 for _, sha256 in loaded if sha256))

    def inputs(self, loaded: Sequence[LoadedPhoto]) -> Inputs:
        return Inputs(
            (name, stream.stream([photo.contents[number] for photo in loaded]))
            for number, (name, stream) in enumerate(self.streams.items())
        )


def visual_input(
    model: models.Model, device: torch.device, features: Path | None = None, paths: Iterable[str] = ()
) -> VisualInput:
    """What a model sees photos by.

    features  the folder of stored features: streams that no encoder makes need it, others need not be made again
    paths     the data files and folders of photos whose features may be there
    """
    paths = list(paths)
    return VisualInput(
        {name: _stream_input(identity, device, features, paths) for name, identity in model.inputs.items()}
    )


def _stream_input(
    identity: dict[str, Any], device: torch.device, features: Path | None, paths: Sequence[str]
) -> EncoderInput | StoredInput | GridBoxes:
    boxes, identity = regions_of(identity) is not None, regions_of(identity) or identity
    try:
        elsewhere = from_identity(identity)
    except ValueError:
        raise UserError("the model's config.json does not say which features it was trained with.") from None
    if elsewhere is None and boxes:
        return GridBoxes(identity, device)
    if elsewhere is None:
        encoder = models.encoder_from(identity, device)
        return EncoderInput(encoder, device, {} if features is None else _seen_before(encoder, features, paths))
    if features is None:
        raise UserError(
            f"this model learned from {elsewhere.name}, features that were made elsewhere, and cannot look at photos; "
            "give it a data file whose features were imported, and their folder: --features DIR."
        )
    return StoredInput(elsewhere, features, paths, device, "boxes" if boxes else "regions")


class EncoderInput:
    """A stream that an encoder makes of photos, but for those whose features are stored and that have not changed."""

    def __init__(self, encoder: PhotoEncoder, device: torch.device, stored: Mapping[str, tuple[FeatureStore, str]]):
        """stored  file -> where its features are, and its id there"""
        self.encoder, self.device, self._stored = encoder, device, stored

    @property
    def identity(self) -> str:
        return self.encoder.weights_sha256 + (" stored in half precision" if self._stored else "")

    def load(self, source: Source) -> tuple[NDArray[Any], str]:
        """Pixels or stored features, and the hash of the photo."""
        if not isinstance(source, Image.Image) and (found := self._find(source)) is not None:
            return found
        photo = read_item(self.encoder, source)
        return photo.pixels, photo.sha256

    def _find(self, source: str | os.PathLike[str]) -> tuple[NDArray[Any], str] | None:
        store, id = self._stored.get(os.fspath(source), (None, ""))
        line = None if store is None else store.lines.get(id)
        if store is None or line is None or not unchanged(line, Path(source)):
            return None
        return store.grid([line["row"]])[0].numpy()[: line.get("regions")], line["sha256"]

    def stream(self, contents: Sequence[NDArray[Any]]) -> Stream:
        pixels = [content for content in contents if content.dtype == np.uint8]
        encoded = iter(_existing(self.encoder(np.stack(pixels))) if pixels else ())
        rows = [
            next(encoded) if content.dtype == np.uint8 else torch.from_numpy(content).to(self.device)
            for content in contents
        ]
        return _padded(rows)


def _seen_before(encoder: PhotoEncoder, root: Path, paths: Iterable[str]) -> dict[str, tuple[FeatureStore, str]]:
    if not files.is_folder(root):
        raise UserError(f"--features {root}: there is no such folder.")
    found: dict[str, tuple[FeatureStore, str]] = {}
    for dataset, photos_there in _data_sets(paths):
        if (store := stored(root, dataset, encoder)) is not None:
            found |= {file: (store, id) for file, id in photos_there}
    return found


class StoredInput:
    """A stream that another program made and that was imported; the photo itself need not be there."""

    def __init__(self, elsewhere: ImportedFeatures, root: Path, paths: Iterable[str], device: torch.device, array: str):
        """
        paths  data files, and folders of photos
        array  of the store: regions, or boxes
        """
        self.device, self._array = device, array
        self._places: dict[str, tuple[RegionStore, str]] = {}  # file -> where its features are, and its id there
        digests = set()
        for dataset, photos_there in _data_sets(paths):
            store = store_of(elsewhere, root, dataset)
            digests.add(store.digest)
            self._places |= {file: (store, id) for file, id in photos_there}
        if not self._places:
            raise UserError(f"--features {root}: features are known by data set; give a data file, or a whole folder.")
        self.identity = " ".join(sorted(digests))

    def load(self, source: Source) -> tuple[NDArray[Any], str]:
        if isinstance(source, Image.Image) or os.fspath(source) not in self._places:
            name = getattr(source, "filename", "image") if isinstance(source, Image.Image) else source
            raise BadPhoto(name, "is of no data set whose features were imported")
        store, id = self._places[os.fspath(source)]
        if id not in store.lines:
            raise BadPhoto(source, f"has no features in {store.folder}")
        line = store.lines[id]
        features = store.read(self._array, [line["row"]], line["regions"])[0].numpy()
        try:
            sha256 = photos.sha256(source)
        except BadPhoto:
            sha256 = hashlib.sha256(f"{store.digest} {id}".encode()).hexdigest()
        return features, sha256

    def stream(self, contents: Sequence[NDArray[Any]]) -> Stream:
        return _padded([torch.from_numpy(content) for content in contents]).to(self.device)


def _existing(features: Features) -> list[Tensor]:
    """The rows of each item that exist."""
    if features.counts is None:
        return list(features.grid)
    return [rows[:count] for rows, count in zip(features.grid, features.counts.tolist(), strict=True)]


def _padded(rows: Sequence[Tensor]) -> Stream:
    """(R, D) of each item -> one stream; where no item has a row there is one that does not exist."""
    values = pad_sequence(list(rows), batch_first=True)
    if not values.shape[1]:
        values = values.new_zeros(len(rows), 1, values.shape[2])
    counts = torch.tensor([len(one) for one in rows], device=values.device)
    return Stream(values, torch.arange(values.shape[1], device=values.device) < counts[:, None])


class GridBoxes:
    """The cells of an encoder's grid, which are the same for every photo."""

    def __init__(self, identity: dict[str, Any], device: torch.device):
        grids = [identity.get("grid"), *([identity["coarse"]] if "coarse" in identity else [])]
        sides = [side for side in grids if isinstance(side, int) and 1 <= side <= 64]
        if sides != grids:
            raise UserError("the model's config.json does not say which grid its boxes are of.")
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
