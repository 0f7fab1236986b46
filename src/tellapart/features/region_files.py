"""Region features that other programs computed, read one photo at a time: no archive is ever held in memory.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from capscore import files
from capscore.errors import UserError

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
