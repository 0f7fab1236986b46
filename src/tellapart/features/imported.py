"""Imported region features, such as bottom-up attention's: a store with a varying number of regions a photo.

regions.f16   (rows, cap, D) half precision, zeros behind a photo's last region; regions.f32 where D is 2, as
              attributes have it: half precision cannot hold ids of words above 2,048
boxes.f16     (rows, cap, 4) left, top, right, bottom as fractions of the photo's width and height; zeros where unknown
pooled        (rows, D), as regions: the mean over a photo's regions
relations.i32 (rows, 512, 3) first region, second region, label; stores of before relations have none
rows.jsonl    a line per photo: {"id", "regions", "relations", "row"}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart.data.examples import Example
from tellapart.data.store import Array, Number, Rows, Store
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.features import attributes
from tellapart.features.attributes import AttributeSource
from tellapart.features.extracted import Extracted, extract, safe_name, store_folder

FORMAT = 1
MOST_RELATIONS = 512  # of a photo
_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class ImportedFeatures:
    """What takes the place of an encoder: features that were imported, and that no photo can be turned into here."""

    name: str
    feature_size: int  # D

    @property
    def identity(self) -> dict[str, Any]:
        """What features must share to be used together."""
        return {"name": self.name, "from": "elsewhere", "feature_size": self.feature_size}


def from_identity(identity: dict[str, Any]) -> ImportedFeatures | None:
    """The features that a manifest or a model's config.json means; None if it means an encoder.

    Raises ValueError where they are not named.
    """
    if identity.get("from") != "elsewhere":
        return None
    name, size = identity.get("name"), identity.get("feature_size")
    if not isinstance(name, str) or not isinstance(size, int) or size < 1:
        raise ValueError("it does not name the imported features")
    return ImportedFeatures(name, size)


def check_name(name: str) -> None:
    """What imported features may be called: it becomes part of a folder's name, and must not mean an encoder."""
    if not _NAME.fullmatch(name):
        raise UserError(f"--name {name!r}: letters, digits, and _ . - between them can make a name.")
    if name in ENCODERS:
        raise UserError(f"--name {name}: this is the name of an encoder.")


def folder_of(root: Path, dataset: str, name: str) -> Path:
    """Where a data set's imported features lie below a features folder."""
    return root / f"{safe_name(dataset)}.{name}"


class RegionStore(Store):
    """Imported features of a data set's photos, read from disk as they are asked for."""

    def __init__(self, folder: Path, source: ImportedFeatures, cap: int, digest: str, relations: int = MOST_RELATIONS):
        """Opens a store, or makes an empty one.  Refuses one that another import filled.

        cap        regions of a photo that are kept
        digest     of what was imported
        relations  of a photo that are kept
        """
        self.source, self.cap, self.digest, self.relations = source, cap, digest, relations
        self.shape = (cap, source.feature_size)
        number: Number = "f32" if source.feature_size == attributes.SIZE else "f16"
        pooled = Array((source.feature_size,), number)
        arrays = {"regions": Array(self.shape, number), "boxes": Array((cap, 4)), "pooled": pooled}
        if relations:
            arrays["relations"] = Array((relations, 3), "i32")
        super().__init__(folder, manifest(source, cap, digest, relations), arrays, ("regions",))
        for line in self.lines.values():
            counts = line["regions"], line.get("relations", 0)
            if not all(isinstance(count, int) for count in counts) or not (
                1 <= counts[0] <= cap and 0 <= counts[1] <= relations
            ):
                raise UserError(f"{folder / 'rows.jsonl'} is damaged; delete the folder {folder}.")

    def __contains__(self, example: Example) -> bool:
        return str(example.id) in self.lines

    def row(self, example: Example) -> int:
        return self.row_of(str(example.id))

    def count(self, example: Example) -> int:
        """How many regions a photo has."""
        return int(self.lines[str(example.id)]["regions"])

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, D): the first regions of each photo, zeros behind its last"""
        return self.read("regions", rows, most)

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), D)"""
        return self.read("pooled", rows)


def manifest(source: ImportedFeatures, cap: int, digest: str, relations: int) -> dict[str, Any]:
    content = {"format": FORMAT, "encoder": source.identity, "cap": cap, "digest": digest}
    return content | {"relations": relations} if relations else content


def open_store(folder: Path) -> RegionStore | None:
    """The imported features in a folder; None where there are none, or features of an encoder."""
    file = folder / "manifest.json"
    if not files.is_file(file):
        return None
    content = files.read_json(file)
    try:
        source = from_identity(dict(content["encoder"]))
        if source is None:
            return None
        cap, relations = int(content["cap"]), int(content.get("relations", 0))
        if relations < 0:
            raise ValueError
        return RegionStore(folder, source, cap, str(content["digest"]), relations)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} is damaged; delete the folder {folder}.") from None


def find(root: Path, name: str) -> ImportedFeatures | None:
    """The features that were imported into a features folder under this name, of whichever data set."""
    if not _NAME.fullmatch(name):
        return None
    for folder in sorted(root.glob(f"*.{name}")):
        if (store := open_store(folder)) is not None and store.source.name == name:
            return store.source
    return None


def store_of(source: ImportedFeatures, root: Path, dataset: str) -> RegionStore:
    """A data set's imported features; says how to get them if they are not there."""
    folder = folder_of(root, dataset, source.name)
    store = open_store(folder)
    if store is None:
        raise UserError(
            f"{folder}: there are no features {source.name!r} of the data set {dataset!r}; "
            f"`tellapart features DATA.json --from ARCHIVE --name {source.name} --out {root}` imports them."
        )
    if store.source != source:
        raise UserError(f"{folder} has features of {store.source.feature_size} numbers, not {source.feature_size}.")
    return store


def features_of(
    examples: Sequence[Example], encoder: PhotoEncoder | ImportedFeatures | AttributeSource, root: Path, dataset: str
) -> Extracted:
    """The features of a data set's photos: made now where they are missing, or imported before."""
    if isinstance(encoder, AttributeSource):
        regions = encoder.imported and store_of(encoder.imported, root, dataset)
        return attributes.extract(examples, encoder, root, dataset, regions, regions.digest if regions else "")
    if not isinstance(encoder, ImportedFeatures):
        return extract(examples, encoder, store_folder(root, dataset, encoder))
    store = store_of(encoder, root, dataset)
    lacking = f"has no features in {store.folder}"
    return Extracted(store, {str(e.id): lacking for e in examples if e not in store}, 0)
