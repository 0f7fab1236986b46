"""Look-alike groups: each photo of a collection with the photos that look like it, and how they are kept on disk.

    {"format": 1, "rule": {...}, "count": P, "photos_sha256": ..., "recall": ..., "failed": {file: why},
     "sets": [{"kind", "photos": [position, ...]}, ...],
     "photos": [
    {"file", "id", "split", "sha256", "look_alikes": [[position, similarity], ...], "near_duplicates", "copies"},
    ...
    ]}

A photo is named by its position in "photos", counted from 0; `file` is relative to the groups file or absolute.
A photo's exact copies and near-duplicates are not among its look-alikes: no caption could tell those apart.  They make
up a set, such as the frames of a burst: every copy and near-duplicate of a photo of the set is in it as well.
"sets" is there for other programs; it follows from the photos and is not read again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.caption_files import absolute, folder_of
from capscore.errors import UserError
from tellapart.data.examples import relative_names
from tellapart.encoders import BUNDLED, PhotoEncoder
from tellapart.retrievers import DEFAULT, EMBEDDED

if TYPE_CHECKING:  # `search` loads a compiler, which captioning does not need
    from tellapart.neighbours.search import Metric

By = Literal["image", "caption"]
Calibrated = Literal["calibrated"]

_FORMAT = 1


@dataclass(frozen=True)
class Photo:
    file: str
    sha256: str  # of its bytes
    id: int | str  # in the data file that it comes from; below a folder, its path there
    split: str = ""


@dataclass(frozen=True)
class Rule:
    """The rule by which groups are made.

    Args:
        by: "image": photos whose vectors are nearest; "caption": photos one of whose captions fits the target best
        metric: which vectors are near: cosine, or Euclidean distance (by image only)
        k: look-alikes of a photo
        duplicates_above: photos whose vectors have a cosine above this are near-duplicates
        alike_above: no look-alike has a lower cosine (or a larger distance) than this; None: the k nearest are
            look-alikes, however unlike the photo they are
        retriever: whose vectors these are
        retriever_sha256: of its weights
    """

    by: By = "image"
    metric: Metric = "cosine"
    k: int = 5
    duplicates_above: float = 1.0
    alike_above: float | None = None
    retriever: str = ""
    retriever_sha256: str = ""


@dataclass(frozen=True)
class Other:
    """A photo beside another."""

    file: str
    similarity: float  # of a look-alike by Euclidean distance: that distance


@dataclass(frozen=True)
class Group:
    """A photo and what is like it, best first."""

    file: str
    look_alikes: list[Other]
    near_duplicates: list[Other]
    copies: list[str]


@dataclass(frozen=True)
class DuplicateSet:
    """Photos that are the same or nearly the same, such as copies, edits or the frames of a burst."""

    positions: list[int]  # in the order of the collection
    exact: bool  # all have the same bytes

    @property
    def kind(self) -> str:
        return "exact copies" if self.exact else "near-duplicates"


@dataclass
class Groups:
    rule: Rule
    photos: list[Photo]
    indices: NDArray[np.int64]  # (P, k) positions of the look-alikes, best first; -1 where there are no more
    scores: NDArray[np.float32]  # (P, k) their similarities, or distances
    near_duplicates: dict[int, list[tuple[int, float]]] = field(default_factory=dict)  # position -> position, cosine
    copies: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # photos that could not be read -> why
    recall: float | None = None  # of the index, where one was used: the share of true neighbours found in a sample

    @classmethod
    def empty(cls, rule: Rule, photos: list[Photo]) -> Groups:
        """Without look-alikes yet."""
        shape = len(photos), rule.k
        return cls(rule, photos, np.full(shape, -1), np.zeros(shape, np.float32))

    def __len__(self) -> int:
        return len(self.photos)

    def __iter__(self) -> Iterator[Group]:
        return map(self.of, range(len(self)))

    def of(self, position: int) -> Group:
        def other(pair: tuple[int, float]) -> Other:
            return Other(self.photos[pair[0]].file, pair[1])

        return Group(
            self.photos[position].file,
            list(map(other, self.look_alikes(position))),
            list(map(other, self.near_duplicates.get(position, []))),
            [self.photos[copy].file for copy in self.copies.get(position, [])],
        )

    def sets(self) -> list[DuplicateSet]:
        """Photos that are copies or near-duplicates of each other, in the order of their first photos.

        Example:
            >>> groups = tellapart.look_alikes("holiday/")
            >>> [[groups.photos[position].file for position in one.positions] for one in groups.sets()]
            [['holiday/a.jpg', 'holiday/copy of a.jpg']]
        """
        pairs = [(position, other) for position, others in self.copies.items() for other in others]
        near = {position: [other for other, _ in others] for position, others in self.near_duplicates.items()}
        pairs += [(position, other) for position, others in near.items() for other in others]
        of_first: dict[int, list[int]] = {}
        for position, first in enumerate(joined(len(self), pairs)):
            of_first.setdefault(first, []).append(position)
        sets = (positions for positions in of_first.values() if len(positions) > 1)
        return [DuplicateSet(positions, all(p not in near for p in positions)) for positions in sets]

    def rows(self) -> list[list[int]]:
        """Every photo once: the positions of each set, and each photo that is in none by itself, in order."""
        sets = {position: same.positions for same in self.sets() for position in same.positions}
        rows = (sets.get(position, [position]) for position in range(len(self)))
        return [row for position, row in enumerate(rows) if row[0] == position]

    def near_duplicate_of(self, position: int, positions: list[int]) -> float | None:
        """Similarity of a photo to the first of its set, or to the nearest one there; None: a copy of the first."""
        if position in self.copies.get(positions[0], []):
            return None
        near = dict(self.near_duplicates.get(position, []))
        return near.get(positions[0], max(near.values()))

    def keep_above(self, least: float | None) -> None:
        """Only these similarities (or, for distances, only smaller ones) make look-alikes; the rule says so then."""
        self.rule = replace(self.rule, alike_above=least)
        if least is not None:
            unlike = self.scores > least if self.rule.metric == "euclidean" else self.scores < least
            self.indices[unlike], self.scores[unlike] = -1, 0

    def look_alikes(self, position: int) -> list[tuple[int, float]]:
        """Positions and similarities, best first."""
        present = self.indices[position] >= 0
        return list(zip(self.indices[position][present].tolist(), self.scores[position][present].tolist(), strict=True))


def joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Numbers below `count` that are joined by pairs, directly or through others: the first of each one's set."""
    first = list(range(count))

    def root(number: int) -> int:
        while first[number] != number:
            first[number] = first[first[number]]
            number = first[number]
        return number

    for pair in pairs:
        low, high = sorted(map(root, pair))
        first[high] = low
    return [root(number) for number in range(count)]


def save(groups: Groups, path: Path) -> None:
    """In one step; gzipped where the name ends in .gz."""
    head = {
        "format": _FORMAT,
        "rule": asdict(groups.rule),
        "count": len(groups),
        "photos_sha256": _fingerprint(groups.photos),
        "recall": groups.recall,
        "failed": groups.failed,
        "sets": [{"kind": duplicates.kind, "photos": duplicates.positions} for duplicates in groups.sets()],
    }

    def rounded(others: Iterable[tuple[int, float]]) -> list[list[float]]:
        return [[position, round(similarity, 6)] for position, similarity in others]

    lines = []
    names = relative_names((Path(photo.file) for photo in groups.photos), folder_of(path))
    for position, (photo, name) in enumerate(zip(groups.photos, names, strict=True)):
        record: dict[str, Any] = {"file": name, "id": photo.id, "split": photo.split, "sha256": photo.sha256}
        record["look_alikes"] = rounded(groups.look_alikes(position))
        record["near_duplicates"] = rounded(groups.near_duplicates.get(position, []))
        record["copies"] = groups.copies.get(position, [])
        lines.append(json.dumps(record))
    text = f'{json.dumps(head)[:-1]}, "photos": [\n' + ",\n".join(lines) + "\n]}\n"
    data = text.encode("ascii")
    files.replace(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data, by_user=True)


def load(path: Path) -> Groups:
    """A groups file, if it is whole."""
    content = files.read_json(path)
    if not isinstance(content.get("rule"), dict) or not isinstance(content.get("photos"), list):
        raise UserError(f"{path}: this is not a groups file; `tellapart lookalikes DATA --out F.json` makes one.")
    if content.get("format") != _FORMAT:
        raise UserError(f"{path}: has format {content.get('format')!r}; this version reads {_FORMAT}. Mine it again.")
    try:
        return _groups(content, folder_of(path))
    except ValueError as error:
        raise UserError(f"{path}: {error}; mine the groups again.") from None


def _groups(content: dict[str, Any], folder: Path) -> Groups:
    values = {key: _value(content["rule"], key, kind, " of the rule") for key, kind in _RULE.items()}
    rule, photos = Rule(**values), []
    if rule.by not in get_args(By) or rule.metric not in ("cosine", "euclidean") or rule.k < 1:
        raise ValueError("the rule is one that this version does not know")
    for number, record in enumerate(content["photos"], 1):
        try:
            file, id, sha256, split = (_value(record, key, kind) for key, kind in _PHOTO.items())
        except (ValueError, AttributeError):
            raise ValueError(f"photo number {number} is damaged") from None
        photos.append(Photo(str(absolute(file, folder)), sha256, id, split))
    if content.get("count") != len(photos) or content.get("photos_sha256") != _fingerprint(photos):
        raise ValueError("the photos are not those that were mined, for the file was changed")
    groups = Groups.empty(rule, photos)
    groups.recall, groups.failed = _value(content, "recall", float | None), _value(content, "failed", dict)

    def positions(values: Iterable[Any]) -> list[int]:
        values = list(values)
        if not all(type(value) is int and 0 <= value < len(photos) for value in values):
            raise ValueError
        return values

    def others(pairs: list[Any]) -> list[tuple[int, float]]:
        similarities = [similarity for _, similarity in pairs]
        if not all(isinstance(similarity, int | float) and isfinite(similarity) for similarity in similarities):
            raise ValueError
        return list(zip(positions(position for position, _ in pairs), map(float, similarities), strict=True))

    for position, record in enumerate(content["photos"]):
        try:
            look_alikes, near_duplicates = others(record["look_alikes"]), others(record["near_duplicates"])
            copies = positions(record["copies"])
            if len(look_alikes) > rule.k:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"photo number {position + 1} ({photos[position].file}) has damaged look-alikes") from None
        for place, (other, similarity) in enumerate(look_alikes):
            groups.indices[position, place], groups.scores[position, place] = other, similarity
        if near_duplicates:
            groups.near_duplicates[position] = near_duplicates
        if copies:
            groups.copies[position] = copies
    return groups


_RULE: dict[str, type | UnionType] = {
    "by": str,
    "metric": str,
    "k": int,
    "duplicates_above": int | float,
    "alike_above": int | float | None,
    "retriever": str,
    "retriever_sha256": str,
}
_PHOTO: dict[str, type | UnionType] = {"file": str, "id": int | str, "sha256": str, "split": str}


def _value(record: dict[str, Any], key: str, kind: type | UnionType, of: str = "") -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, float) and not isfinite(value)):
        raise ValueError(f'"{key}"{of} is missing or damaged')
    return value


def _fingerprint(photos: Iterable[Photo]) -> str:
    """Hash of the photos and their order; not of where they lie."""
    digest = hashlib.sha256()
    for photo in photos:
        digest.update(json.dumps([photo.id, photo.split, photo.sha256]).encode("ascii"))
    return digest.hexdigest()


# From which similarity on photos look alike, and from which on they are nearly the same: measured for some weights by
# scripts/calibrate_look_alikes.py, which the folders of these say (look_alikes.json; docs/look_alikes.md)

OTHERWISE = 0.95  # near-duplicates, for encoders that were not measured
QUANTILE = 0.995  # of the pairs of a collection, for vectors that were not measured: what those amount to
ENOUGH = 50  # photos; the quantile of fewer says nothing
_SAMPLE = 1000  # photos that it is taken from


@cache
def measured_encoders() -> dict[str, dict[str, Any]]:
    """By name: the hash of the weights, `alike_above`, and `duplicates_above` by pixels a side.

    No pair of different photos has pooled features with a cosine above the latter, and most frames of a burst do.
    """
    measured: dict[str, dict[str, Any]] = files.read_json(BUNDLED / "look_alikes.json")
    return measured


def duplicates_above(encoder: PhotoEncoder | None) -> float:
    """The cosine of an encoder's pooled features above which two photos are near-duplicates."""
    by_size = _measured(encoder).get("duplicates_above", {})
    return float(by_size.get(str(encoder.config.image_size), OTHERWISE)) if encoder else OTHERWISE


def alike_above(encoder: PhotoEncoder) -> dict[str, float]:
    """The cosine of an encoder's pooled features from which on photos look alike, if it was measured."""
    return dict(_measured(encoder).get("alike_above", {}))


def _measured(encoder: PhotoEncoder | None) -> dict[str, Any]:
    of_weights = {entry["weights_sha256"]: entry for entry in measured_encoders().values()}
    return of_weights.get(encoder.weights_sha256, {}) if encoder else {}


def embedded_thresholds() -> tuple[float, float]:
    """The default retriever's for look-alikes and near-duplicates, without loading it."""
    folder = EMBEDDED[DEFAULT]
    encoder = files.read_json(folder / "config.json")["encoder"]
    duplicates = measured_encoders()[encoder["name"]]["duplicates_above"][str(encoder["image_size"])]
    return files.read_json(folder / "look_alikes.json")["alike_above"]["image"], duplicates


def sampled(count: int) -> NDArray[np.int64]:
    """The photos of a collection from which its quantile is taken: all, or some that are spread evenly."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, _SAMPLE)).astype(np.int64))


def quantile_of_pairs(scores: NDArray[np.floating], different: NDArray[np.bool_], *, distances: bool) -> float | None:
    """The similarity that only the most similar pairs of a collection reach; None where it is too small to tell.

    scores     (n, n) of some photos with each other, 0 where there is none, such as of a photo without a caption
    different  (n, n) False where two are copies or near-duplicates, which must not count: bursts would raise the bar
    """
    if len(scores) < ENOUGH:
        return None
    pairs = scores[different & ~np.eye(len(scores), dtype=bool)]
    if not len(pairs):
        return None
    return float(np.quantile(pairs, 1 - QUANTILE if distances else QUANTILE))
