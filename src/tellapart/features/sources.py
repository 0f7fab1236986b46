"""Sources of a captioner's input streams: one protocol for training, captioning, evaluation and timing.

A source loads items (photos or clips) one by one, encodes loaded items as a stream, and keeps its features of a data
set in a store below a features folder.

Encoded      the regions of an encoder
Detected     those, then the boxes of a detector with features of the same encoder
Imported     features that another program made
Attributes   words with their probabilities: by a tagger, a retriever or a detector
Beside       boxes or relations of the regions of another source
Sources      those of all streams of a captioner, by the streams' names

    grid.f16         (rows, R, D) half precision; f32 where D is 2, as attributes have it: half precision cannot hold
                     ids of words above 2,048
    pooled.f16       (rows, D)
    boxes.f16        (rows, R, 4) left, top, right, bottom as fractions of the photo's width and height
    relations.i32    (rows, 512, 3) first region, second region, label: of imported features
    ids.i32          (rows, N) of attributes: numbers of words in the source's own list, most probable first; -1: none
    probability.f32  (rows, N) of each
    rows.jsonl       a line for each item: {"id", "row", ...}; "regions" and "relations" say how many rows it has where
                     items differ in that

The folder of a store is called DATASET.NAME-KEY, KEY the hash of all that features depend on: the encoder with its
weights, settings and preprocessing, the view, the detector.  Imported features are found by their name, as
DATASET.NAME.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from capscore import files
from capscore.errors import UserError
from tellapart.data.examples import Example
from tellapart.data.items import ITEMS, Kind
from tellapart.data.media import clips, photos
from tellapart.data.media.photos import name_of
from tellapart.data.store import Array, FeatureStore, Rows, StoredFeatures
from tellapart.data.streams import ATTRIBUTES, BOXES, REGIONS, RELATIONS, Inputs, Stream, ragged
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.detectors.detector import MOST, Detector, detect, region_features
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.encoders.encoder import Part, in_view, of_photos, pool
from tellapart.errors import BadPhoto
from tellapart.features.extracted import (
    BATCH,
    PHOTO_KEYS,
    EncodedBatch,
    EncodedRows,
    Extracted,
    Extraction,
    add_missing,
    encode_batches,
    encode_items,
    entry_of,
    read_item,
    safe_name,
    unchanged,
)
from tellapart.parallel import batched

_FORMAT = 2
GIVES = "gives"  # in an identity: what it means, if not regions
_ELSEWHERE = "elsewhere"
_NAME = re.compile(r"\w[\w.-]*")  # of imported features
MOST_RELATIONS = 512  # of a photo

Item = photos.Source
Places = Mapping[str, tuple[FeatureStore, str]]  # file -> where its features are, and its id there
DataSets = Iterable[tuple[str, list[tuple[str, str]]]]  # names of data sets, with the files and ids of their items


@dataclass(frozen=True)
class Loaded:
    """An item that was read: pixels to be encoded, or its features where those are there already.

    rows       (R, D)
    boxes      (R, 4) of the regions, where they are known
    relations  (E, 3) between the regions
    """

    sha256: str  # of the item
    pixels: NDArray[np.uint8] | None = None
    rows: Tensor | None = None
    boxes: Tensor | None = None
    relations: Tensor | None = None


class StreamSource(Protocol):
    """The protocol of all sources; those below derive from it, and have its defaults.

    name          as folders and messages have it
    feature_size  D
    most          R: rows of an item, at most; 0 where other programs decided it
    takes         the kinds of items that it loads
    encoder       what makes regions of an item's pixels, if anything does
    part          what a model folder must carry to use it (`models.parts`), if anything
    """

    name: str
    feature_size: int
    most: int = 0
    takes: Collection[Kind] = ITEMS
    encoder: PhotoEncoder | None = None
    part: Part | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Kept in model folders and with stores, and compared: features with the same identity may be used together."""

    @property
    def key(self) -> str:
        """A text for the keys of captions, which depend on it beside the item and the captioner."""

    @property
    def reader(self) -> StreamSource:
        """The source whose `load` reads items for this one."""
        return self

    def load(self, item: Item) -> Loaded:
        """May be called from several threads.  Raises BadPhoto."""

    def encode(self, loaded: Sequence[Loaded], device: torch.device) -> Stream: ...

    def open(self, root: Path, dataset: str) -> StoredFeatures | None:
        """The features of a data set that are kept below a features folder, if there are any."""

    def extract(self, examples: Sequence[Example], root: Path, dataset: str) -> Extracted:
        """The features of these items of a data set; made and kept now where they are missing or items have changed."""

    def view(self, number: int) -> StreamSource:
        """The source that is shown another view of each photo (`data.media.photos.view_of`), from 1."""
        return self  # the words of the whole photo, and the cells of a grid, are the same

    def of_photos(self) -> StreamSource:
        """The source for data sets without clips."""
        return self

    def beside(self, gives: Literal["boxes", "relations"]) -> StreamSource:
        """The source of the boxes or relations of its regions."""
        raise UserError(f"inputs.{gives}: {gives} belong to the regions, so both must have the same source.")

    def kept(self, root: Path | None, data_sets: DataSets) -> StreamSource:
        """The source that asks stored features of these data sets first; refuses where it has no others."""
        return self

    def in_vocabulary(self, tokenizer: Tokenizer) -> StreamSource:
        """The source whose words are those of a captioner's vocabulary."""
        return self

    def named(self, loaded: Sequence[Loaded]) -> list[list[tuple[str, float]]]:
        """Of each item the words that a captioner is given, with their probabilities, most probable first."""
        raise UserError("this captioner uses no attributes, so there are none to show.")

    def manifest(self, root: Path, dataset: str) -> dict[str, Any]:
        """All that stored features depend on beside the items."""
        return {"format": _FORMAT, "encoder": self.identity}

    def folder(self, root: Path, dataset: str) -> Path:
        """The folder of a data set's features below a features folder."""
        manifest = json.dumps(self.manifest(root, dataset), sort_keys=True)
        digest = hashlib.sha256(manifest.encode()).hexdigest()[:12]
        return root / f"{safe_name(dataset)}.{safe_name(Path(self.name).name)}-{digest}"


class Encoded(StreamSource):
    """The regions that an encoder makes."""

    _beside: Mapping[str, tuple[int, ...]] = {}  # arrays of a store beside those of regions, by item

    def __init__(self, encoder: PhotoEncoder, *, photos_once: bool = True):
        """photos_once  a photo has the rows of one frame, not of as many alike as a clip has"""
        self.encoder: PhotoEncoder = encoder
        self.name, self.feature_size, self.most = encoder.config.name, encoder.feature_size, encoder.regions
        self.takes, self.part = getattr(encoder, "takes", ITEMS), getattr(encoder, "part", None)
        self._photos_once, self._key = photos_once, encoder.weights_sha256
        self._places: Places = {}  # features that are asked first
        config = encoder.config
        self._cells = grid_boxes(*config.grids) if encoder.regions == config.cells else None  # boxes of the regions

    @property
    def identity(self) -> dict[str, Any]:
        return self.encoder.identity

    @property
    def key(self) -> str:
        return self._key if not self._places else f"{self._key} stored in half precision"

    def load(self, item: Item) -> Loaded:
        return self._stored(item) or self._read(item)

    def _stored(self, item: Item) -> Loaded | None:
        """An item by its stored features; none if it has changed since."""
        if isinstance(item, Image.Image) or (place := self._places.get(os.fspath(item))) is None:
            return None
        store, id = place
        if (line := store.lines.get(id)) is None or not unchanged(line, Path(item)):
            return None
        count = line.get("regions", self.most)
        boxes = store.read("boxes", [line["row"]], count)[0] if "boxes" in store.arrays else self._cells
        return Loaded(line["sha256"], rows=store.grid([line["row"]], count)[0], boxes=boxes)

    def _read(self, item: Item) -> Loaded:
        encoder = self.encoder
        if self._photos_once and (isinstance(item, Image.Image) or not clips.is_clip(item)):
            encoder = of_photos(encoder)
        photo = read_item(encoder, item)
        return Loaded(photo.sha256, photo.pixels, boxes=self._cells)

    def encode(self, loaded: Sequence[Loaded], device: torch.device) -> Stream:
        rows = iter(self._encoded([item for item in loaded if item.rows is None]))
        return ragged([(next(rows) if item.rows is None else item.rows).to(device) for item in loaded])

    def _encoded(self, loaded: Sequence[Loaded]) -> list[Tensor]:
        """(R, D) of each item, those of photos and of clips through the encoder by themselves."""
        rows = dict[int, Tensor]()
        pixels = [item.pixels for item in loaded if item.pixels is not None]
        for dimensions in {array.ndim for array in pixels}:
            alike = [place for place, array in enumerate(pixels) if array.ndim == dimensions]
            encoder = of_photos(self.encoder) if dimensions == 3 else self.encoder
            features = encoder(np.stack([pixels[place] for place in alike]))
            counts = [features.grid.shape[1]] * len(alike) if features.counts is None else features.counts.tolist()
            rows |= {p: item[:count] for p, item, count in zip(alike, features.grid, counts, strict=True)}
        return [rows[place] for place in range(len(pixels))]

    def manifest(self, root: Path, dataset: str) -> dict[str, Any]:
        return super().manifest(root, dataset) | {"regions": self.most, "features": self.feature_size}

    def store(self, folder: Path) -> FeatureStore:
        """The store in a folder, or a new one there; refuses one that another source filled."""
        arrays = {"grid": (self.most, self.feature_size), "pooled": (self.encoder.pooled_size,), **self._beside}
        counts = bool(self._beside) or getattr(self.encoder, "counts_regions", False)
        keys = (*PHOTO_KEYS, "regions") if counts else PHOTO_KEYS
        return FeatureStore(folder, self.manifest(folder.parent, ""), arrays, keys)

    def open(self, root: Path, dataset: str) -> FeatureStore | None:
        folder = self.folder(root, dataset)
        return self.store(folder) if files.is_file(folder / "manifest.json") else None

    def extract(
        self, examples: Sequence[Example], root: Path, dataset: str, extraction: Extraction | None = None
    ) -> Extracted:
        """extraction  what computes the features with an encoder like this one (default: this process)"""
        return self.fill(self.folder(root, dataset), examples, extraction)

    def fill(self, folder: Path, examples: Sequence[Example], extraction: Extraction | None = None) -> Extracted:
        store = self.store(folder)
        failed, computed = add_missing(store, examples, extraction or self._extraction, f"features of {folder.name}")
        return Extracted(store, failed, computed)

    def _extraction(self, examples: Sequence[Example]) -> Iterator[EncodedBatch]:
        return encode_items(self.encoder, self.encoder, examples)

    def view(self, number: int) -> StreamSource:
        return Encoded(in_view(self.encoder, number), photos_once=self._photos_once)

    def of_photos(self) -> StreamSource:
        single = of_photos(self.encoder)
        return self if single is self.encoder or not self._photos_once else Encoded(single)

    def beside(self, gives: Literal["boxes", "relations"]) -> StreamSource:
        if gives == RELATIONS:
            raise UserError("inputs.relations: only imported features have them (`tellapart features --from`).")
        if self._cells is None:
            raise UserError(f"inputs.boxes: the regions of {self.name} are not the cells of a grid.")
        return Beside(self, "boxes", self._cells)

    def kept(self, root: Path | None, data_sets: DataSets) -> StreamSource:
        if root is None:
            return self
        if not files.is_folder(root):
            raise UserError(f"--features {root}: there is no such folder.")
        kept, places = copy(self), dict[str, tuple[FeatureStore, str]]()
        for dataset, items in data_sets:
            if (store := self.open(root, dataset)) is not None:
                places |= {file: (store, id) for file, id in items}
        kept._places = places
        return kept


class Detected(Encoded):
    """The cells of an encoder's grid and the boxes of a detector: (R, D), the cells first, so that a photo in which
    nothing is found has regions too.  With `grid: 1` the whole photo is the one region that is always there."""

    def __init__(self, encoder: PhotoEncoder, detector: Detector):
        config = encoder.config
        if not 1 <= config.detected <= MOST:
            raise UserError(f"encoder: detected must be from 1 to {MOST}, not {config.detected}.")
        if not hasattr(encoder, "feature_map"):
            raise UserError(f"encoder: {config.name} does not show its feature map, which boxes are pooled from.")
        super().__init__(encoder)
        self.detector, self.most, self._grid = detector, config.cells + config.detected, grid_boxes(*config.grids)
        self._beside, self._key = {"boxes": (self.most, 4)}, f"{encoder.weights_sha256} {detector.sha256}"

    @property
    def identity(self) -> dict[str, Any]:
        return self.encoder.identity | {"detector": self.detector.identity}

    def _read(self, item: Item) -> Loaded:
        """Raises BadPhoto, also where the detector fails."""
        ready = self.detector.read(item)
        try:
            boxes = self.detector(ready).boxes
        except BadPhoto as error:  # a detector does not know what the photo is called
            raise BadPhoto(name_of(item), error.reason) from None
        return self._with_boxes(item, torch.from_numpy(boxes))

    def _with_boxes(self, item: Item, detected: Tensor) -> Loaded:
        photo = clips.read(item, self.encoder.config.image_size, self.encoder.fit)
        boxes = torch.cat([self._grid, detected[: self.encoder.config.detected].float()])
        return Loaded(photo.sha256, photo.pixels, boxes=boxes)

    def _encoded(self, loaded: Sequence[Loaded]) -> list[Tensor]:
        return self._features(loaded)[0] if loaded else []

    @torch.inference_mode()
    def _features(self, loaded: Sequence[Loaded]) -> tuple[list[Tensor], Tensor]:
        """(R, D) of each photo, and all their pooled features (B, D)"""
        encoder: Any = self.encoder
        feature_map: Tensor = encoder.feature_map(np.stack([item.pixels for item in loaded]))  # type: ignore[misc]
        cells, pooled, _ = pool(feature_map, encoder.config)
        rows = []
        for grid, of_photo, item in zip(cells, feature_map, loaded, strict=True):
            assert item.boxes is not None
            rows.append(torch.cat([grid, region_features(of_photo, item.boxes[len(grid) :], encoder.config.pooling)]))
        return rows, pooled

    def _extraction(self, examples: Sequence[Example]) -> Iterator[EncodedBatch]:
        """With the detections that are in the detector's cache."""
        detected = detect(self.detector, list(dict.fromkeys(str(example.file) for example in examples)))
        boxes_of = {file: detected.boxes[row][detected.mask[row]] for row, file in enumerate(detected.files)}

        def read(file: Path) -> Loaded:
            if str(file) in detected.failed:
                raise BadPhoto(file, detected.failed[str(file)])
            return self._with_boxes(file, boxes_of[str(file)])

        return encode_batches(read, self._encoded_rows, examples)

    def _encoded_rows(self, loaded: Sequence[Loaded]) -> EncodedRows:
        rows, pooled = self._features(loaded)
        boxes = [item.boxes for item in loaded if item.boxes is not None]
        grids, places = (
            pad_sequence([*parts, parts[0].new_zeros(self.most, parts[0].shape[1])], batch_first=True)[:-1]
            for parts in (rows, boxes)
        )
        return EncodedRows([grids, pooled, places], list(map(len, boxes)))

    def view(self, number: int) -> StreamSource:
        raise UserError("data.views: a detector's boxes are of whole photos; views of them have none.")

    def beside(self, gives: Literal["boxes", "relations"]) -> StreamSource:
        return super().beside(gives) if gives == RELATIONS else Beside(self, "boxes")


@dataclass(frozen=True)
class Imported(StreamSource):
    """Features that were imported under a name, and that no photo can be turned into here.

    places   where the features of items are kept
    digests  of what was imported, where they are kept
    """

    name: str
    feature_size: int
    places: Places = field(default_factory=dict, compare=False, repr=False)
    digests: str = field(default="", compare=False, repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "from": _ELSEWHERE, "feature_size": self.feature_size}

    @property
    def key(self) -> str:
        return self.digests or self.name

    def load(self, item: Item) -> Loaded:
        """The photo itself need not be there."""
        if isinstance(item, Image.Image) or (place := self.places.get(os.fspath(item))) is None:
            raise BadPhoto(name_of(item), "belongs to no data set with imported features")
        store, id = place
        if id not in store.lines:
            raise BadPhoto(item, f"has no features in {store.folder}")
        line = store.lines[id]
        try:
            sha256 = photos.sha256(item)
        except BadPhoto:
            sha256 = hashlib.sha256(f"{store.digest} {id}".encode()).hexdigest()  # type: ignore[attr-defined]
        counts = {"grid": line["regions"], "boxes": line["regions"], "relations": line["relations"]}
        rows, boxes, relations = (store.read(name, [line["row"]], n)[0].float() for name, n in counts.items())
        return Loaded(sha256, rows=rows, boxes=boxes, relations=relations)

    def encode(self, loaded: Sequence[Loaded], device: torch.device) -> Stream:
        return ragged([item.rows.to(device) for item in loaded if item.rows is not None])

    def folder(self, root: Path, dataset: str) -> Path:
        return import_folder(root, dataset, self.name)

    def open(self, root: Path, dataset: str) -> RegionStore | None:
        return open_imported(self.folder(root, dataset))

    def _store(self, root: Path, dataset: str) -> RegionStore:
        store, folder = self.open(root, dataset), self.folder(root, dataset)
        if store is None:
            raise UserError(
                f"{folder}: there are no features {self.name!r} of the data set {dataset!r}; "
                f"`tellapart features DATA.json --from ARCHIVE --name {self.name} --out {root}` imports them."
            )
        if store.source != self:
            raise UserError(f"{folder} has features of {store.source.feature_size} numbers, not {self.feature_size}.")
        return store

    def extract(self, examples: Sequence[Example], root: Path, dataset: str) -> Extracted:
        store = self._store(root, dataset)
        lacking = f"has no features in {store.folder}"
        return Extracted(store, {str(e.id): lacking for e in examples if e not in store}, 0)

    def view(self, number: int) -> StreamSource:
        raise UserError(f"data.views: features of {self.name} were imported; there is no encoder to see views with.")

    def beside(self, gives: Literal["boxes", "relations"]) -> StreamSource:
        return Beside(self, gives)

    def kept(self, root: Path | None, data_sets: DataSets) -> StreamSource:
        if root is None:
            raise UserError(
                f"this model was trained on imported features ({self.name}) and cannot encode photos; "
                "give a data file whose features were imported, and their folder: --features DIR."
            )
        places, digests = dict[str, tuple[FeatureStore, str]](), set[str]()
        for dataset, items in data_sets:
            store = self._store(root, dataset)
            digests.add(store.digest)
            places |= {file: (store, id) for file, id in items}
        if not places:
            raise UserError(f"--features {root}: features are stored per data set; give a data file or a whole folder.")
        return replace(self, places=places, digests=" ".join(sorted(digests)))


class RegionStore(FeatureStore):
    """Imported features of a data set."""

    def __init__(self, folder: Path, source: Imported, cap: int, digest: str):
        """Opens a store, or makes an empty one.  Refuses one that another import filled.

        cap     regions of a photo that are kept
        digest  of what was imported
        """
        self.source, self.cap, self.digest = source, cap, digest
        size = source.feature_size
        grid = Array((cap, size), "f32" if size == Attributes.feature_size else "f16")
        boxes, relations = Array((cap, 4)), Array((MOST_RELATIONS, 3), "i32")
        arrays = {"grid": grid, "boxes": boxes, "pooled": Array((size,), grid.number), "relations": relations}
        manifest = {"format": _FORMAT, "encoder": source.identity, "cap": cap, "digest": digest}
        super().__init__(folder, manifest, arrays, ("regions", "relations"))


def import_folder(root: Path, dataset: str, name: str) -> Path:
    """The folder of a data set's imported features below a features folder."""
    return root / f"{safe_name(dataset)}.{name}"


def open_imported(folder: Path) -> RegionStore | None:
    """The imported features in a folder; none where there are no features, or those of an encoder."""
    file = folder / "manifest.json"
    if not files.is_file(file):
        return None
    manifest = files.read_json(file)
    try:
        if (source := imported_from(dict(manifest["encoder"]))) is None:
            return None
        return RegionStore(folder, source, int(manifest["cap"]), str(manifest["digest"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} is damaged; delete the folder {folder}.") from None


def imported_from(identity: dict[str, Any]) -> Imported | None:
    """The imported features that an identity means; none if it means an encoder.  Raises ValueError where they are not
    named."""
    if identity.get("from") != _ELSEWHERE:
        return None
    name, size = identity.get("name"), identity.get("feature_size")
    if not isinstance(name, str) or not isinstance(size, int) or size < 1:
        raise ValueError("it does not name the imported features")
    return Imported(name, size)


def find_imported(root: Path, name: str) -> Imported | None:
    """The features that were imported into a features folder under this name, of any data set."""
    if not _NAME.fullmatch(name):
        return None
    for folder in sorted(root.glob(f"*.{name}")):
        if (store := open_imported(folder)) is not None and store.source.name == name:
            return store.source
    return None


def check_import_name(name: str) -> None:
    """Refuses names that cannot be part of a folder's, or that mean an encoder."""
    if not _NAME.fullmatch(name):
        raise UserError(f"--name {name!r}: letters, digits, and _ . - between them can make a name.")
    if name in ENCODERS:
        raise UserError(f"--name {name}: this is the name of an encoder.")


@dataclass(frozen=True, eq=False)
class Attributes(StreamSource):
    """The words of an item with their probabilities: of a tagger, a retriever or a detector.

    A captioner knows words by ids of its own vocabulary.  They are looked up when attributes are encoded or read from
    a store, and words that it does not have are no attributes to it.

    words          (W,) that it knows
    read           an item -> what `probabilities` takes of it
    probabilities  of B loaded items, (B, W)
    made_by        what attributes must share to be used together, beside the fields here
    limit          N: attributes of an item
    threshold      words that are no more probable than this are no attributes
    regions        the source of the regions that `probabilities` takes, if it takes regions
    ids            (W,) of each word in a captioner's vocabulary, -1 where it has none; none: the places in `words`
    """

    name: str
    words: tuple[str, ...]
    read: Callable[[Item], Loaded]
    probabilities: Callable[[Sequence[Loaded]], Tensor]
    made_by: dict[str, Any]
    limit: int
    threshold: float
    part: Part | None = None
    regions: StreamSource | None = None
    ids: Tensor | None = None
    feature_size: int = 2  # a word's id and its probability

    @property
    def most(self) -> int:  # type: ignore[override]
        return min(self.limit, len(self.words))

    @property
    def identity(self) -> dict[str, Any]:
        settings = {"name": self.name, GIVES: ATTRIBUTES, "most": self.limit, "threshold": self.threshold}
        return settings | self.made_by

    @property
    def key(self) -> str:
        return json.dumps(self.identity, sort_keys=True)

    def load(self, item: Item) -> Loaded:
        return self.read(item)

    def best(self, loaded: Sequence[Loaded]) -> tuple[Tensor, Tensor]:
        """Numbers of words (B, N), -1 where there is none, and their probabilities (B, N), most probable first."""
        probability, numbers = self.probabilities(loaded).float().cpu().topk(self.most)
        has = probability > self.threshold
        return numbers.where(has, -1), probability.where(has, 0.0)

    def encode(self, loaded: Sequence[Loaded], device: torch.device) -> Stream:
        numbers, probability = self.best(loaded)
        return Stream(_word_rows(numbers, probability, self.ids), numbers >= 0).to(device)

    def named(self, loaded: Sequence[Loaded]) -> list[list[tuple[str, float]]]:
        usable = torch.ones(len(self.words), dtype=torch.bool) if self.ids is None else self.ids >= 0
        items = zip(*(part.tolist() for part in self.best(loaded)), strict=True)
        rows = [zip(numbers, chances, strict=True) for numbers, chances in items]
        return [[(self.words[word], chance) for word, chance in row if word >= 0 and usable[word]] for row in rows]

    def in_vocabulary(self, tokenizer: Tokenizer) -> StreamSource:
        return replace(self, ids=captioner_ids(self.words, tokenizer))

    def _imported(self, root: Path, dataset: str) -> RegionStore | None:
        """The imported features that it reads in place of photos, if it does."""
        regions = self.regions
        return regions._store(root, dataset) if isinstance(regions, Imported) else None

    def manifest(self, root: Path, dataset: str) -> dict[str, Any]:
        imported = self._imported(root, dataset)
        return super().manifest(root, dataset) | ({"made_from": imported.digest} if imported else {})

    def open(self, root: Path, dataset: str) -> AttributeStore | None:
        folder = self.folder(root, dataset)
        return AttributeStore(folder, self, dataset) if files.is_file(folder / "manifest.json") else None

    def extract(self, examples: Sequence[Example], root: Path, dataset: str) -> Extracted:
        folder = self.folder(root, dataset)
        store, imported = AttributeStore(folder, self, dataset), self._imported(root, dataset)
        of_photos = partial(encode_batches, self.load, self._encoded_rows)
        extraction = of_photos if imported is None else partial(self._of_imported, imported)
        failed, computed = add_missing(store, examples, extraction, f"attributes of {folder.name}")
        return Extracted(store, failed, computed)

    def _encoded_rows(self, loaded: Sequence[Loaded]) -> EncodedRows:
        numbers, probability = self.best(loaded)
        return EncodedRows([numbers, probability], (numbers >= 0).sum(1).tolist())

    def _of_imported(self, regions: RegionStore, examples: Sequence[Example]) -> Iterator[EncodedBatch]:
        """From stored regions; the photos need not be there."""
        for batch in batched(examples, BATCH):
            loaded, entries, lacking = list[Loaded](), list[dict[str, Any]](), list[tuple[Example, str]]()
            for example in batch:
                if example not in regions:
                    lacking.append((example, f"has no imported features ({regions.source.name})"))
                    continue
                rows = regions.grid([regions.row(example)], regions.count(example))[0]
                loaded.append(Loaded(f"{regions.digest} {example.id}", rows=rows))
                entries.append(entry_of(example, loaded[-1].sha256))
            encoded = self._encoded_rows(loaded) if loaded else EncodedRows((), [])
            for entry, count in zip(entries, encoded.counts or [], strict=True):
                entry["regions"] = count
            yield EncodedBatch(encoded.arrays, entries, lacking)

    def kept(self, root: Path | None, data_sets: DataSets) -> StreamSource:
        """Only what it reads in place of photos: others are not stored as words of new photos would be made."""
        if not isinstance(self.regions, Imported):
            return self
        if root is None:
            raise UserError(
                f"the tagger {self.name} learned from imported features ({self.regions.name}) and cannot read photos; "
                "give a data file whose features were imported, and their folder: --features DIR."
            )
        return self.reading(self.regions.kept(root, data_sets))

    def reading(self, regions: StreamSource) -> Attributes:
        """The same of regions from another source."""
        return replace(self, read=regions.load)


class AttributeStore(FeatureStore):
    """The attributes of a data set."""

    def __init__(self, folder: Path, source: Attributes, dataset: str):
        self.words, self._ids = source.words, source.ids
        arrays = {"ids": Array((source.most,), "i32"), "probability": Array((source.most,), "f32")}
        super().__init__(folder, source.manifest(folder.parent, dataset), arrays, (*PHOTO_KEYS, "regions"), main="ids")
        self.shape = (source.most, source.feature_size)

    def use(self, tokenizer: Tokenizer) -> None:
        self._ids = captioner_ids(self.words, tokenizer)

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, 2)"""
        return _word_rows(self.read("ids", rows, most), self.read("probability", rows, most), self._ids)

    pooled = StoredFeatures.pooled


def captioner_ids(words: Sequence[str], tokenizer: Tokenizer) -> Tensor:
    """(W,) the id of each word in a captioner's vocabulary; -1 where it has none, or not as one token

    >>> captioner_ids(["dog", "kazoo"], WordTokenizer(["a", "dog"]))
    tensor([ 5, -1])
    """
    unknown = tokenizer.unk if isinstance(tokenizer, WordTokenizer) else None
    tokens = map(tokenizer.encode, words)
    return torch.tensor([ids[0] if len(ids) == 1 and ids[0] != unknown else -1 for ids in tokens])


def _word_rows(numbers: Tensor, probability: Tensor, ids: Tensor | None) -> Tensor:
    """(B, N, 2), as captioners take it: rows without a word have the id -1

    numbers  (B, N) in a source's list
    ids      (W,) the captioner's id of each; none: the numbers themselves
    """
    if ids is not None:
        numbers = torch.where(numbers >= 0, ids[numbers.long().clamp(min=0)], -1)
    return torch.stack([numbers.float(), probability], -1)


class Beside(StreamSource):
    """The boxes of another source's regions, or the relations between them."""

    def __init__(self, regions: StreamSource, gives: Literal["boxes", "relations"], cells: Tensor | None = None):
        """cells  (R, 4) where the boxes of every photo are the same: the cells of grids"""
        self.regions, self.gives, self.cells = regions, gives, cells
        self.name, self.most, self.takes = regions.name, regions.most, regions.takes
        self.feature_size = 4 if gives == BOXES else 3

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.regions.identity, GIVES: self.gives}

    @property
    def key(self) -> str:
        return self.gives

    @property
    def reader(self) -> StreamSource:
        return self.regions

    def load(self, item: Item) -> Loaded:
        return self.regions.load(item)

    def encode(self, loaded: Sequence[Loaded], device: torch.device) -> Stream:
        rows = [item.boxes if self.gives == BOXES else item.relations for item in loaded]
        return ragged([rows_of_item.float() for rows_of_item in rows if rows_of_item is not None]).to(device)

    def open(self, root: Path, dataset: str) -> StoredFeatures | None:
        regions = self.regions.open(root, dataset)
        return None if regions is None else self.of(regions)

    def extract(self, examples: Sequence[Example], root: Path, dataset: str) -> Extracted:
        extracted = self.regions.extract(examples, root, dataset)
        return replace(extracted, store=self.of(extracted.store))

    def of(self, regions: Any) -> StoredFeatures:
        """The boxes or relations of stored regions."""
        if self.gives == RELATIONS and not any(line["relations"] for line in regions.lines.values()):
            raise UserError(
                f"inputs.relations: {regions.folder} has none; import archives that have `relations` beside the boxes."
            )
        return StoredBeside(regions, self.identity, self.gives, self.cells)


class StoredBeside(StoredFeatures):
    """The boxes or relations of stored regions, to those that learn from them."""

    def __init__(self, regions: Any, identity: dict[str, Any], gives: str, cells: Tensor | None):
        self._regions, self.identity, self._gives, self._cells = regions, identity, gives, cells
        self.shape = (regions.shape[0], 4) if gives == BOXES else (MOST_RELATIONS, 3)

    def __contains__(self, example: Example) -> bool:
        return example in self._regions

    def row(self, example: Example) -> int:
        return int(self._regions.row(example))

    def count(self, example: Example) -> int:
        """A photo may have no relations."""
        if self._gives == BOXES:
            return int(self._regions.count(example))
        return int(self._regions.lines[str(example.id)]["relations"])

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, 4), or (len(rows), most, 3) of relations"""
        if self._cells is not None:
            return self._cells[:most].expand(len(rows), -1, -1)
        values: Tensor = self._regions.read(self._gives, rows, most)
        return values.float()


class Sources(dict[str, StreamSource]):
    """The sources of all streams of a captioner, by the streams' names."""

    def __init__(self, sources: Mapping[str, StreamSource] | None = None, device: torch.device | str = "cpu"):
        super().__init__(sources or {})
        self.device = torch.device(device)

    @property
    def identities(self) -> dict[str, dict[str, Any]]:
        """The identity of each stream's source."""
        return {name: source.identity for name, source in self.items()}

    @property
    def feature_sizes(self) -> dict[str, int]:
        """D of each stream"""
        return {name: source.feature_size for name, source in self.items()}

    @property
    def takes(self) -> tuple[Kind, ...]:
        """The kinds of items that all of them take; none where there are no streams."""
        return tuple(kind for kind in ITEMS if self and all(kind in source.takes for source in self.values()))

    @property
    def parts(self) -> list[Part]:
        """The parts that a model folder must carry to use them."""
        return [source.part for source in self.values() if source.part is not None]

    @property
    def identity(self) -> str:
        """A text for the keys of captions, which depend on it beside the item and the captioner."""
        return " ".join(source.key for source in self.values())

    @property
    def encoder(self) -> PhotoEncoder | None:
        """The encoder of the regions; none where they were imported."""
        return self[REGIONS].encoder if REGIONS in self else None

    def load(self, item: Item) -> dict[str, Loaded]:
        """One item for each stream; may be called from several threads.  Raises BadPhoto."""
        loaded = {reader: reader.load(item) for reader in dict.fromkeys(source.reader for source in self.values())}
        return {name: loaded[source.reader] for name, source in self.items()}

    def inputs(self, items: Sequence[Mapping[str, Loaded]]) -> Inputs:
        return Inputs(
            (name, source.encode([item[name] for item in items], self.device)) for name, source in self.items()
        )

    def region_boxes(self, item: Mapping[str, Loaded]) -> Tensor | None:
        """(R, 4) where the regions of a photo are, as fractions of what is seen of it; none where that is unknown, or
        where the one region is the whole photo."""
        boxes = item[REGIONS].boxes if REGIONS in self else None
        whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
        return None if boxes is None or not boxes.any() or boxes.equal(whole) else boxes.float()


def regions_of(identity: dict[str, Any]) -> tuple[dict[str, Any], Literal["boxes", "relations"] | None]:
    """The identity of the regions whose boxes or relations an identity means, and which of the two; else itself."""
    gives = identity.get(GIVES)
    if gives != "boxes" and gives != "relations":
        return identity, None
    return {key: value for key, value in identity.items() if key != GIVES}, gives


def grid_boxes(*sides: int) -> Tensor:
    """The cells of square grids, one grid after another, each row by row: (R, 4)

    sides  cells a side of each grid

    >>> grid_boxes(2, 1)[[1, 4]]
    tensor([[0.5000, 0.0000, 1.0000, 0.5000],
            [0.0000, 0.0000, 1.0000, 1.0000]])
    """
    grids = []
    for side in sides:
        edges = torch.arange(side + 1) / side
        top, left = torch.meshgrid(edges[:-1], edges[:-1], indexing="ij")
        bottom, right = torch.meshgrid(edges[1:], edges[1:], indexing="ij")
        grids.append(torch.stack([left, top, right, bottom], -1).view(-1, 4))
    return torch.cat(grids)
