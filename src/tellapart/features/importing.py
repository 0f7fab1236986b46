"""Import region features of other programs into a store, photo by photo; a run that was stopped continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from capscore.progress import Progress
from tellapart.data.examples import Example
from tellapart.features import region_files
from tellapart.features.region_files import Broken, Regions
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

    sources  archives and folders, as `region_files` reads them
    folder   of the store
    cap      regions of a photo that are kept: the first ones, which detectors are surest of
    """
    check_import_name(name)
    archives = region_files.expand(sources)
    digest, names = region_files.digest(archives), Names(examples)
    store = open_imported(folder)
    if store is None or (store.source.name, store.cap, store.digest) != (name, cap, digest):
        source = Imported(name, _feature_size(archives, names))
        store = RegionStore(folder, source, cap, digest)  # refuses a folder that another import filled
    with store.writing():
        return _fill(store, examples, archives, names)


class Names:
    """Photos by what archives call them: their ids, and where only one photo is meant the names of their files."""

    def __init__(self, examples: Sequence[Example]):
        self.first = str(examples[0].id) if examples else ""
        self._by_id = {str(example.id): example for example in examples}
        meant = Counter(name for example in examples for name in _file_names(example))
        self._by_file = {name: example for example in examples for name in _file_names(example) if meant[name] == 1}

    def find(self, name: str) -> Example | None:
        return self._by_id.get(name) or self._by_file.get(name)


def _file_names(example: Example) -> set[str]:
    return {example.file.name, example.file.stem} - {""}


def _feature_size(archives: Sequence[Path], names: Names) -> int:
    """D of the first photo that the archives have; refuses archives that have none of the photos."""
    theirs: list[str] = []

    def wanted(id: str) -> bool:
        theirs[:] = theirs or [id]
        return names.find(id) is not None

    first_failure = ""
    for part in region_files.read(archives, wanted):
        if isinstance(part, Regions) and part.features.size:
            return int(part.features.shape[1])
        reason = part.reason if isinstance(part, Broken) else "has no regions"
        first_failure = first_failure or f"{part.where}: {reason}"
    if first_failure:
        raise UserError(f"there are no features that can be used ({first_failure}).")
    example = f": a photo is {theirs[0]!r} there and {names.first!r} here" if theirs else ""
    raise UserError(f"{archives[0]}: has features of none of the photos; it may belong to another data set{example}.")


def _fill(store: RegionStore, examples: Sequence[Example], archives: Sequence[Path], names: Names) -> Result:
    waiting = {str(example.id) for example in examples if example not in store}
    result = Result(store, existing=len(examples) - len(waiting))
    changed = Counter[str]()

    def wanted(id: str) -> bool:
        bar.advance(0)  # much of an archive may be of other photos
        example = names.find(id)
        return example is not None and str(example.id) in waiting

    def usable() -> Iterator[tuple[tuple[Tensor, ...], dict[str, Any]]]:
        for part in region_files.read(archives if waiting else (), wanted):
            example = names.find(part.id)
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
