"""Region features that other programs computed, imported into a store photo by photo: no archive is ever held in
memory, and a run that was stopped continues.

    FOLDER/ID.npz .npy .safetensors     one photo each
    ALL.npz, ALL.safetensors            one array per photo, named ID, or ID/features beside ID/boxes and ID/relations
    ALL.tsv                             lines of bottom-up attention (Anderson et al., 2018): image_id, image_w,
                                        image_h, num_boxes, boxes, features, the last two float32 in base64; or
                                        those of LXMERT

Nothing is unpickled.  A fault in one photo's features is reported for that photo, and the others are imported.
"""

from __future__ import annotations

import base64
import hashlib
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.progress import Progress
from tellapart.data.examples import Example
from tellapart.features.sources import MOST_RELATIONS, Imported, RegionStore, check_import_name, open_imported
from tellapart.parallel import batched

CAP = 100  # the most regions that bottom-up attention gives a photo
_TOGETHER = 64  # photos that are written at once
_FRACTIONS = 1.5  # boxes with a coordinate above this are in pixels


@dataclass
class Result:
    store: RegionStore
    existing: int  # photos that were there before
    added: int = 0
    failed: list[str] = field(default_factory=list)  # a sentence for each part of the archives that cannot be used
    missing: list[str] = field(default_factory=list)  # ids of the photos that have no features
    notes: list[str] = field(default_factory=list)  # what was done to regions and boxes before they could be used


def bring_in(examples: Sequence[Example], sources: Sequence[Path], folder: Path, name: str, cap: int = CAP) -> Result:
    """Import the features of these photos under a name.

    sources  archives and folders, as `read` takes them
    folder   of the store
    cap      regions of a photo that are kept: the first ones, which detectors are surest of
    """
    check_import_name(name)
    archives = expand(sources)
    fingerprint, names = digest(archives), _names(examples)
    store = open_imported(folder)
    if store is None or (store.source.name, store.cap, store.digest) != (name, cap, fingerprint):
        source = Imported(name, _feature_size(archives, names, str(examples[0].id) if examples else ""))
        store = RegionStore(folder, source, cap, fingerprint)  # refuses a folder that another import filled
    with store.writing():
        return _fill(store, examples, archives, names)


Names = Mapping[str, Example]  # photos by what archives call them


def _names(examples: Sequence[Example]) -> Names:
    """Photos by their ids, and where only one photo is meant by the names of their files."""
    names = [({e.file.name, e.file.stem} - {""}, e) for e in examples]
    meant = Counter(name for of_photo, _ in names for name in of_photo)
    by_file = {name: example for of_photo, example in names for name in of_photo if meant[name] == 1}
    return by_file | {str(example.id): example for example in examples}


def _feature_size(archives: Sequence[Path], names: Names, first: str) -> int:
    """D of the first photo that the archives have; refuses archives that have none of the photos.

    first  the id of a photo here, for comparison
    """
    theirs: list[str] = []

    def wanted(id: str) -> bool:
        theirs[:] = theirs or [id]
        return id in names

    first_failure = ""
    for part in read(archives, wanted):
        if isinstance(part, Regions) and part.features.size:
            return int(part.features.shape[1])
        reason = part.reason if isinstance(part, Broken) else "has no regions"
        first_failure = first_failure or f"{part.where}: {reason}"
    if first_failure:
        raise UserError(f"there are no features that can be used ({first_failure}).")
    example = f": a photo is {theirs[0]!r} there and {first!r} here" if theirs else ""
    raise UserError(f"{archives[0]}: has features of none of the photos; it may belong to another data set{example}.")


def _fill(store: RegionStore, examples: Sequence[Example], archives: Sequence[Path], names: Names) -> Result:
    waiting = {str(example.id) for example in examples if example not in store}
    result = Result(store, existing=len(examples) - len(waiting))
    changed = Counter[str]()

    def wanted(id: str) -> bool:
        bar.advance(0)  # much of an archive may be of other photos
        example = names.get(id)
        return example is not None and str(example.id) in waiting

    def usable() -> Iterator[tuple[tuple[Tensor, ...], dict[str, Any]]]:
        for part in read(archives if waiting else (), wanted):
            example = names.get(part.id)
            try:
                row = _row(part, example, store, changed)
            except ValueError as error:
                image = f" image {example.id!r}:" if example else ""
                result.failed.append(f"{part.where}:{image} {error}")
                bar.message(result.failed[-1])
            else:
                waiting.discard(str(row[1]["id"]))
                yield row

    with Progress(f"features of {store.folder.name}", len(examples), done=result.existing) as bar:
        for batch in batched(usable(), _TOGETHER):
            rows, entries = zip(*batch, strict=True)
            store.append([torch.stack(column) for column in zip(*rows, strict=True)], list(entries))
            result.added += len(batch)
            bar.advance(len(batch))
    result.missing = [str(example.id) for example in examples if str(example.id) in waiting]
    result.notes = _notes(changed, store.cap)
    return result


def _row(
    part: Regions | Broken, example: Example | None, store: RegionStore, changed: Counter[str]
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """A photo's rows of the store's arrays, and its line.  Raises ValueError if there is nothing to take."""
    if isinstance(part, Broken) or example is None:
        raise ValueError(part.reason if isinstance(part, Broken) else "is no photo of the data set")
    count, size = part.features.shape
    if count == 0:
        raise ValueError("has no regions")
    if size != store.source.feature_size:
        raise ValueError(f"has features of {size} numbers, the others of {store.source.feature_size}")
    changed["cut"] += count > store.cap
    kept = torch.from_numpy(part.features[: store.cap])
    regions, boxes = torch.zeros(store.shape, dtype=store.dtype("grid")), torch.zeros(store.cap, 4)
    if not kept.to(regions.dtype).isfinite().all():
        raise ValueError("has features that are no numbers, or too large for half precision")
    regions[: len(kept)] = kept
    boxes[: len(kept)] = torch.from_numpy(_fractions(part, changed)[: store.cap])
    edges, relations = _relations(part, len(kept), changed), torch.zeros(MOST_RELATIONS, 3, dtype=torch.int32)
    changed["relations"] += len(edges) > MOST_RELATIONS
    edges = edges[:MOST_RELATIONS]
    relations[: len(edges)] = torch.from_numpy(edges)
    entry = {"id": example.id, "regions": len(kept), "relations": len(edges)}
    return (regions, boxes, kept.mean(0), relations), entry


def _relations(part: Regions, regions: int, changed: Counter[str]) -> NDArray[np.int32]:
    """(E, 3) between the regions that are kept; of several from one region to another the first."""
    if part.relations is None:
        return np.zeros((0, 3), np.int32)
    edges = part.relations[(part.relations[:, :2] < regions).all(1)]
    _, first = np.unique(edges[:, :2], axis=0, return_index=True)
    changed["labels"] = max(changed["labels"], int(edges[:, 2].max(initial=-1)) + 1)
    return edges[np.sort(first)]


def _fractions(part: Regions, changed: Counter[str]) -> NDArray[np.float32]:
    """A photo's boxes as fractions of its width and height, (R, 4); zeros where that cannot be known."""
    if part.boxes is None:
        return np.zeros((len(part.features), 4), np.float32)
    boxes = part.boxes
    if not np.isfinite(boxes).all():
        raise ValueError("has boxes that are no numbers")
    if boxes.max() > _FRACTIONS:
        if not (part.width > 0 and part.height > 0):
            changed["unknown"] += 1
            return np.zeros_like(boxes)
        boxes = (boxes / np.array([part.width, part.height, part.width, part.height])).astype(np.float32)
    inside = boxes.clip(0, 1)
    changed["outside"] += bool(np.abs(boxes - inside).max() > 1e-3)  # what is less is rounding
    return inside


def _notes(changed: Counter[str], cap: int) -> list[str]:
    sentences = {
        "cut": f"more than {cap} regions; the first {cap} are kept",
        "relations": f"more than {MOST_RELATIONS} relations; the first {MOST_RELATIONS} are kept",
        "outside": "boxes that reach outside the photo; they end at its edges now",
        "unknown": "boxes in pixels and nothing that says how large the photo is; the boxes are left out",
    }
    notes = [f"{changed[what]} photos have {text}" for what, text in sentences.items() if changed[what]]
    if labels := changed["labels"]:
        notes.append(f"relations have labels up to {labels - 1}: a captioner needs model.relation_labels={labels}")
    return notes


# Archives, read one photo at a time

SUFFIXES = (".npz", ".npy", ".safetensors", ".tsv")
_FEATURES = ("features", "feat", "x", "arr_0")  # what programs call them
_BOXES = ("boxes", "bbox")
_RELATIONS = "relations"
_WIDTH, _HEIGHT = ("image_w", "img_w"), ("image_h", "img_h")
_OURS = (*_FEATURES, *_BOXES, _RELATIONS, *_WIDTH, *_HEIGHT, "num_boxes")
_COLUMNS = {  # of a TSV line, by how many there are
    6: ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features"),
    10: ("image_id", "image_h", "image_w", "", "", "", "", "num_boxes", "boxes", "features"),
}
_MOST_LABELS = 1 << 16
_LARGEST = 1 << 28  # bytes of a photo's array, unpacked: 2,000 regions of 25,000 numbers
_LONGEST_LINE = 1 << 28
_SAMPLE = 1 << 16  # bytes
_DAMAGE = (  # what libraries raise when a file is not what its name says
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    EOFError,
    MemoryError,
    RuntimeError,  # a ZIP archive that is encrypted, or packed in a way that is not known
    zipfile.BadZipFile,
    zlib.error,
    SafetensorError,
)


@dataclass
class Regions:
    """The features of a photo in an archive."""

    id: str  # as the archive calls it
    where: str  # the file, and the line if there are lines
    features: NDArray[np.float32]  # (R, D)
    boxes: NDArray[np.float32] | None = None  # (R, 4) left, top, right, bottom; in pixels or as fractions
    relations: NDArray[np.int32] | None = None  # (E, 3) the places of two regions and the label of their relation
    width: float = 0.0  # of the photo, in pixels; 0 where it is unknown
    height: float = 0.0


@dataclass
class Broken:
    """A part of an archive that cannot be used."""

    id: str  # empty where even that cannot be read
    where: str
    reason: str


Wanted = Callable[[str], bool]  # by id; of what is not wanted nothing else is read


def expand(sources: Iterable[Path]) -> list[Path]:
    """The files that paths stand for: themselves, or those in a folder that have one of our suffixes."""
    archives: list[Path] = []
    for source in sources:
        if files.is_folder(source):
            inside = sorted(files.regular(file) for file in source.iterdir() if file.suffix.lower() in SUFFIXES)
            if not inside:
                raise UserError(f"{source}: there are no features in this folder (no {', '.join(SUFFIXES)}).")
            archives += inside
        elif not files.is_file(source):
            raise UserError(f"{source}: there is no such file or folder.")
        elif source.suffix.lower() not in SUFFIXES:
            raise UserError(f"{source}: features are read from {', '.join(SUFFIXES)}, or from a folder of such files.")
        else:
            archives.append(source)
    return archives


def digest(archives: Sequence[Path]) -> str:
    """A hash of names, sizes, and samples of up to 16 of the files: archives need not be read as a whole."""
    fingerprint = hashlib.sha256()
    sampled = set(archives[:: -(-len(archives) // 16)])
    for file in archives:
        size = file.stat().st_size
        fingerprint.update(f"{file.name} {size}\n".encode(errors="surrogateescape"))
        if file in sampled:
            with file.open("rb") as handle:
                for place in (0, size // 2, max(size - _SAMPLE, 0)):
                    handle.seek(place)
                    fingerprint.update(handle.read(_SAMPLE))
    return fingerprint.hexdigest()


def read(archives: Iterable[Path], wanted: Wanted) -> Iterator[Regions | Broken]:
    """Every wanted photo of the files, in their order."""
    readers = {".tsv": _tsv, ".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
    for file in archives:
        try:
            yield from readers[file.suffix.lower()](file, wanted)
        except _DAMAGE as error:
            yield Broken(file.stem if wanted(file.stem) else "", str(file), _why(error))


def _attempt(id: str, where: str, make: Callable[[], Mapping[str, Any]]) -> Regions | Broken:
    """A fault in a photo's arrays concerns this photo alone."""
    try:
        return _regions(id, where, make())
    except _DAMAGE as error:
        return Broken(id, where, _why(error))


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "pickle" in text:  # numpy would tell the user how to load it nevertheless
        return "it holds pickled objects, which can carry programs and are not read"
    return text or type(error).__name__


def _npy(file: Path, wanted: Wanted) -> Iterator[Regions | Broken]:
    if wanted(file.stem):

        def load() -> Mapping[str, Any]:
            _check_size(file.stat().st_size)
            return {"features": np.load(file, allow_pickle=False)}

        yield _attempt(file.stem, str(file), load)


def _npz(file: Path, wanted: Wanted) -> Iterator[Regions | Broken]:
    with zipfile.ZipFile(file) as members, np.load(file, allow_pickle=False) as archive:
        sizes = {info.filename.removesuffix(".npy"): info.file_size for info in members.infolist()}

        def get(key: str) -> NDArray[Any]:
            _check_size(sizes[key])
            array: NDArray[Any] = archive[key]
            return array

        yield from _arrays(file, archive.files, get, wanted)


def _safetensors(file: Path, wanted: Wanted) -> Iterator[Regions | Broken]:
    with safe_open(file, "pt") as archive:  # by way of torch, because numpy does not know bf16

        def get(key: str) -> NDArray[Any]:
            _check_size(4 * math.prod(archive.get_slice(key).get_shape()))
            array: NDArray[Any] = archive.get_tensor(key).float().numpy()
            return array

        yield from _arrays(file, archive.keys(), get, wanted)


def _check_size(size: int) -> None:
    if size > _LARGEST:
        raise ValueError(f"has, unpacked, {size >> 20} MB; {_LARGEST >> 20} MB is the most")


def _arrays(
    file: Path, keys: Iterable[str], get: Callable[[str], NDArray[Any]], wanted: Wanted
) -> Iterator[Regions | Broken]:
    """Of a file with named arrays: those of one photo, which the file is named after, or those of many."""
    keys = list(keys)
    photos: dict[str, dict[str, str]] = {}  # id -> what -> key
    if set(keys) & set(_FEATURES):
        photos[file.stem] = {key: key for key in keys if key in _OURS}
    else:
        for key in keys:
            id, _, what = key.rpartition("/")
            named = bool(id) and what in _OURS
            photos.setdefault(id if named else key, {})[what if named else "features"] = key
    for id, parts in photos.items():
        if wanted(id):
            yield _attempt(id, str(file), lambda parts=parts: {what: get(key) for what, key in parts.items()})  # type: ignore[misc]


def _tsv(file: Path, wanted: Wanted) -> Iterator[Regions | Broken]:
    with file.open("rb") as lines:
        for number, line in enumerate(iter(partial(lines.readline, _LONGEST_LINE), b""), 1):
            if len(line) == _LONGEST_LINE:
                yield Broken("", f"{file}: line {number}", "has no end; this is no archive of features")
                return
            cells = line.rstrip(b"\r\n").split(b"\t")
            id = cells[0].decode(errors="replace").strip()
            if not line.strip() or (number == 1 and id in ("image_id", "img_id")):
                continue  # the names of the columns, which most archives leave out
            where = f"{file}: line {number}"
            if len(cells) not in _COLUMNS:
                yield Broken(id if wanted(id) else "", where, f"has {len(cells)} columns, not 6 or 10")
            elif wanted(id):
                named = dict(zip(_COLUMNS[len(cells)], cells, strict=True))
                yield _attempt(id, where, partial(_decoded, named))


def _decoded(cells: Mapping[str, bytes]) -> dict[str, Any]:
    """The numbers of a TSV line."""
    count = int(cells["num_boxes"])
    if count < 0:
        raise ValueError(f"says that it has {count} regions")
    parts: dict[str, Any] = {"num_boxes": count, "image_w": cells["image_w"], "image_h": cells["image_h"]}
    for part in ("boxes", "features"):
        data = base64.b64decode(cells[part], validate=True)
        if len(data) % (4 * max(count, 1)):
            raise ValueError(f"{part}: {len(data)} bytes cannot be those of {count} regions")
        parts[part] = np.frombuffer(data, "<f4").reshape(count, -1) if count else np.zeros((0, 4), np.float32)
    return parts


def _regions(id: str, where: str, parts: Mapping[str, Any]) -> Regions:
    """Arrays as programs write them, in one form.  Raises ValueError where that cannot be."""

    def first_of(names: Iterable[str]) -> Any:
        return next((parts[name] for name in names if name in parts), None)

    features = np.asarray(first_of(_FEATURES))
    if features.dtype.kind not in "fiu":
        raise ValueError(f"its features are no numbers ({features.dtype})")
    if not 1 <= features.ndim <= 3:
        raise ValueError(f"its features have the shape {features.shape}, not (regions, numbers)")
    features = features.reshape(-1, features.shape[-1]).astype(np.float32)  # one vector, or a grid, is regions too
    boxes = first_of(_BOXES)
    if boxes is not None:
        boxes = np.asarray(boxes, np.float32)
        if boxes.ndim != 2 or boxes.shape[1] < 4 or len(boxes) != len(features):
            raise ValueError(f"its boxes have the shape {boxes.shape}, not ({len(features)}, 4)")
        boxes = boxes[:, :4]
    count = int(np.asarray(parts.get("num_boxes", len(features))).item())  # what is behind it only fills up
    if not 0 <= count <= len(features):
        raise ValueError(f"says that it has {count} regions, and has {len(features)}")
    relations = None if _RELATIONS not in parts else _whole_relations(np.asarray(parts[_RELATIONS]), count)
    width, height = (float(0.0 if (value := first_of(names)) is None else value) for names in (_WIDTH, _HEIGHT))
    return Regions(id, where, features[:count], None if boxes is None else boxes[:count], relations, width, height)


def _whole_relations(relations: NDArray[Any], regions: int) -> NDArray[np.int32]:
    """(E, 3), every one between two of so many regions.  Raises ValueError where that is not so."""
    if relations.size == 0:
        return np.zeros((0, 3), np.int32)
    if relations.dtype.kind not in "fiu" or relations.ndim != 2 or relations.shape[1] != 3:
        raise ValueError(f"its relations have the shape {relations.shape}, not (relations, 3)")
    if not ((relations >= 0) & (relations < _MOST_LABELS) & (relations == np.floor(relations))).all():
        raise ValueError(f"has a relation that is not three whole numbers from 0 to {_MOST_LABELS - 1}")
    whole = relations.astype(np.int32)
    if whole[:, :2].max() >= regions:
        raise ValueError(f"has a relation of region {whole[:, :2].max()} (counted from 0), and has {regions} regions")
    return whole
