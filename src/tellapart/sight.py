"""What a captioner sees of a photo: an encoder looks at it, or features that were stored before are remembered."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.utils.rnn import pad_sequence

from tellapart import files, models
from tellapart.data import examples, photos
from tellapart.data.features import FeatureStore, stored, unchanged
from tellapart.data.readers import folder
from tellapart.data.regions import Elsewhere, RegionStore, from_identity, store_of
from tellapart.data.streams import Inputs, region_inputs
from tellapart.encoders import PhotoEncoder
from tellapart.errors import BadPhoto, UserError

Source = str | os.PathLike[str] | Image.Image


@dataclass(frozen=True)
class Look:
    """A photo as it comes to a captioner's eyes."""

    content: NDArray[Any]  # pixels (S, S, 3), or features (R, D)
    sha256: str  # of the photo


class Sight(Protocol):
    @property
    def identity(self) -> str:
        """What captions depend on beside the photo and the captioner."""

    def look(self, source: Source) -> Look:
        """One photo; may be called from several threads.  Raises BadPhoto."""

    def inputs(self, looks: Sequence[Look]) -> Inputs:
        """What a captioner is given of the photos."""


def sight_of(
    model: models.Model, device: torch.device, features: Path | None = None, paths: Iterable[str] = ()
) -> Sight:
    """What a model sees with.

    features  the folder of stored features: a model that cannot look needs it, one that can need not look again
    paths     the data files and folders of photos whose features may be there
    """
    try:
        elsewhere = from_identity(model.encoder)
    except ValueError:
        raise UserError("the model's config.json does not say which features it was trained with.") from None
    if elsewhere is None:
        encoder = models.encoder_of(model, device)
        return Eyes(encoder, device, {} if features is None else _seen_before(encoder, features, paths))
    if features is None:
        raise UserError(
            f"this model learned from {elsewhere.name}, features that were made elsewhere, and cannot look at photos; "
            "give it a data file whose features were imported, and their folder: --features DIR."
        )
    return Memory(elsewhere, features, paths, device)


class Eyes:
    """An encoder looks, but for photos that it has seen before and that are what they were."""

    def __init__(self, encoder: PhotoEncoder, device: torch.device, before: Mapping[str, tuple[FeatureStore, str]]):
        """before  file -> where its features are, and its id there"""
        self.encoder, self.device, self._before = encoder, device, before

    @property
    def identity(self) -> str:
        return self.encoder.weights_sha256 + (" stored in half precision" if self._before else "")

    def look(self, source: Source) -> Look:
        size, fit = self.encoder.config.image_size, self.encoder.fit
        if isinstance(source, Image.Image):
            photo = photos.from_image(source, size, fit)
        elif (seen := self._remember(source)) is not None:
            return seen
        else:
            photo = photos.read(source, size, fit)
        return Look(photo.pixels, photo.sha256)

    def _remember(self, source: str | os.PathLike[str]) -> Look | None:
        store, id = self._before.get(os.fspath(source), (None, ""))
        line = None if store is None else store.lines.get(id)
        if store is None or line is None or not unchanged(line, Path(source)):
            return None
        return Look(store.grid([line["row"]])[0].numpy(), line["sha256"])

    def inputs(self, looks: Sequence[Look]) -> Inputs:
        new = [look.content for look in looks if look.content.dtype == np.uint8]
        seen = iter(self.encoder(np.stack(new)).grid if new else ())
        grid = torch.stack(
            [
                next(seen) if look.content.dtype == np.uint8 else torch.from_numpy(look.content).to(self.device)
                for look in looks
            ]
        )
        return region_inputs(grid)


def _seen_before(encoder: PhotoEncoder, root: Path, paths: Iterable[str]) -> dict[str, tuple[FeatureStore, str]]:
    if not files.is_folder(root):
        raise UserError(f"--features {root}: there is no such folder.")
    found: dict[str, tuple[FeatureStore, str]] = {}
    for dataset, photos_there in _data_sets(paths):
        if (store := stored(root, dataset, encoder)) is not None:
            found |= {file: (store, id) for file, id in photos_there}
    return found


class Memory:
    """A store remembers what another program saw; the photo itself need not be there."""

    def __init__(self, elsewhere: Elsewhere, root: Path, paths: Iterable[str], device: torch.device):
        """paths  data files, and folders of photos"""
        self.device = device
        self._places: dict[str, tuple[RegionStore, str]] = {}  # file -> where its features are, and its id there
        digests = set()
        for dataset, photos_there in _data_sets(paths):
            store = store_of(elsewhere, root, dataset)
            digests.add(store.digest)
            self._places |= {file: (store, id) for file, id in photos_there}
        if not self._places:
            raise UserError(f"--features {root}: features are known by data set; give a data file, or a whole folder.")
        self.identity = " ".join(sorted(digests))

    def look(self, source: Source) -> Look:
        if isinstance(source, Image.Image) or os.fspath(source) not in self._places:
            name = getattr(source, "filename", "image") if isinstance(source, Image.Image) else source
            raise BadPhoto(name, "is of no data set whose features were imported")
        store, id = self._places[os.fspath(source)]
        if id not in store.lines:
            raise BadPhoto(source, f"has no features in {store.folder}")
        line = store.lines[id]
        features = store.grid([line["row"]], line["regions"])[0].numpy()
        try:
            sha256 = photos.sha256(source)
        except BadPhoto:
            sha256 = hashlib.sha256(f"{store.digest} {id}".encode()).hexdigest()
        return Look(features, sha256)

    def inputs(self, looks: Sequence[Look]) -> Inputs:
        counts = torch.tensor([len(look.content) for look in looks])
        features = pad_sequence([torch.from_numpy(look.content) for look in looks], batch_first=True)
        mask = torch.arange(features.shape[1]) < counts[:, None]
        return region_inputs(features, mask).to(self.device)


def _data_sets(paths: Iterable[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The name of each data set, and of its photos the files, as `inputs.gather` names them, and the ids."""
    for path in paths:
        if files.is_folder(Path(path)):
            found = folder.read(Path(path))
            yield found.name, [(str(Path(path, str(example.id))), str(example.id)) for example in found.examples]
        elif path.endswith((".json", ".json.gz")):
            found = examples.read(path)
            yield found.name, [(str(example.file), str(example.id)) for example in found.examples]
