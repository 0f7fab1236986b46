"""A pool: what rewards need of a set of photos, in a folder that other trainers can open.

    pool.json         the retriever, and each photo's id, file and references
    pool.safetensors  image vectors, look-alikes, document frequencies; memory-mapped, so that processes share them

`make` writes one, `Pool` opens it, and `caption_reward.CaptionReward` scores captions with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from capscore import files
from capscore.caption_files import folder_of
from capscore.errors import UserError
from capscore.ngrams import Frequencies
from tellapart.data import items
from tellapart.data.examples import Example, check, relative_names
from tellapart.models.retrievers import load as load_retriever
from tellapart.neighbours.groups import Photo, Rule, duplicates_above
from tellapart.neighbours.mining import mine
from tellapart.retrievers import DEFAULT, EMBEDDED
from tellapart.retrievers.retriever import Retriever, embed_photos
from tellapart.rewards.agreement import Consensus
from tellapart.rewards.words import RewardVocabulary

FORMAT = 1
_HEAD, _TENSORS = "pool.json", "pool.safetensors"
_SHAPES = {"images": 2, "look_alikes": 2, "closeness": 1, "nearest": 1, "parents": 1, "tokens": 1, "counts": 1}


@dataclass(frozen=True)
class PoolSummary:
    """Result of `make`."""

    photos: int
    references: int
    problems: list[str]  # a sentence for each photo or record that could not be used


def make(
    data: str | Path,
    out: str | Path,
    *,
    retriever: str = DEFAULT,
    k: int = 5,
    split: str | None = None,
    device: str = "auto",
) -> PoolSummary:
    """Write the pool of a data file or a folder of photos.

    k      look-alikes of a photo; copies and near-duplicates are none
    split  only this part of a data file
    """
    opened = items.open_path(data, split=split)
    loaded = load_retriever(retriever, device=device)
    if loaded.encoder is None:
        raise UserError(f"{loaded.name} knows photos by their references; a pool needs a retriever that sees photos.")
    embedded = embed_photos(loaded, list(dict.fromkeys(str(example.file) for example in opened.examples)))
    problems = opened.problems + [f"{file}: {reason}" for file, reason in embedded.failed.items()]
    examples = [example for example in opened.examples if str(example.file) not in embedded.failed]
    if not examples:
        raise UserError(f"{data}: none of its photos can be read" + (f"; {problems[0]}" if problems else "."))
    assert embedded.features is not None
    row_of = {file: row for row, file in enumerate(embedded.files)}
    rows = [row_of[str(example.file)] for example in examples]
    photos = [Photo(str(e.file), embedded.sha256[row], e.id) for e, row in zip(examples, rows, strict=True)]
    vectors, features = embedded.vectors[rows], embedded.features[rows]
    rule = Rule(k=k, duplicates_above=duplicates_above(loaded.encoder))
    alike = mine(photos, vectors, rule, appearance=features)
    nearest = mine(photos, features, Rule(metric="euclidean", k=1)).indices[:, 0]  # the neighbour of GLD
    closeness = np.where(alike.indices[:, 0] >= 0, alike.scores[:, 0], -np.inf)
    # of the n-grams of words, by the numbers of the reward vocabulary, the end counted
    vocabulary = RewardVocabulary(text for example in examples for text in example.captions)
    references = [[vocabulary.encode(text) for text in example.captions] for example in examples]
    frequencies = Consensus(references, end=vocabulary.eos).frequencies.pruned()
    tensors = {
        "images": torch.from_numpy(vectors),
        "look_alikes": torch.from_numpy(alike.indices),
        "closeness": torch.from_numpy(closeness.astype(np.float32)),
        "nearest": torch.from_numpy(nearest.copy()),
        "parents": torch.from_numpy(frequencies.parents),
        "tokens": torch.from_numpy(frequencies.tokens),
        "counts": torch.from_numpy(frequencies.counts),
    }
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    names = relative_names([files.real(example.file) for example in examples], files.real(out))
    records = [{"id": e.id, "file": name, "captions": e.captions} for e, name in zip(examples, names, strict=True)]
    is_own = retriever not in EMBEDDED and files.is_folder(Path(retriever))  # a trainer may run in another folder
    head = {
        "format": FORMAT,
        "retriever": {"load": str(files.real(Path(retriever))) if is_own else retriever, "sha256": loaded.sha256},
        "photos": records,
    }
    # The numbers first: a pool.json beside those of other photos is found out by the fingerprint.
    metadata = {"photos_sha256": _fingerprint(examples)}
    files.replace(out / _TENSORS, save_tensors({n: t.contiguous() for n, t in tensors.items()}, metadata))
    files.replace(out / _HEAD, (json.dumps(head) + "\n").encode("ascii"))
    return PoolSummary(len(examples), sum(map(len, references)), problems)


class Pool:
    """A pool that is open: photos by position, and what is known of them."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        file = self.folder / _HEAD
        if not files.is_file(file):
            raise UserError(f"{self.folder}: this is no pool; `tellapart pool DATA --out POOL` makes one.")
        head = files.read_json(file)
        if head.get("format") != FORMAT:
            raise UserError(
                f"{self.folder}: the pool has format {head.get('format')!r}, and this version reads {FORMAT}; make it "
                "again with `tellapart pool`."
            )
        self.examples, self._retriever = _contents(head, file)
        tensors = _tensors(self.folder / _TENSORS, self.examples)
        self.images, self.look_alikes, self.closeness, self.nearest = (
            tensors[name] for name in ("images", "look_alikes", "closeness", "nearest")
        )
        numbers = (tensors[name].numpy().astype(np.int32) for name in ("parents", "tokens", "counts"))
        self.frequencies = Frequencies(len(self.examples), *numbers)
        self._position = {str(files.real(example.file)): row for row, example in enumerate(self.examples)}
        self._position |= {str(example.id): row for row, example in enumerate(self.examples)}

    def __len__(self) -> int:
        return len(self.examples)

    def positions(self, photos: Sequence[int | str | Path]) -> list[int]:
        """Places of photos, by their ids or files."""
        places = [self._find(photo) for photo in photos]
        if len(photos) > 1 and not any(place is not None for place in places):
            raise UserError(
                f"{self.folder}: none of the {len(photos)} photos is in this pool (the first is {str(photos[0])!r}, "
                f"and the pool begins with {str(self.examples[0].id)!r}); it was made for other photos."
            )
        if None in places:
            raise UserError(f"{self.folder}: the photo {str(photos[places.index(None)])!r} is not in this pool.")
        return [place for place in places if place is not None]

    def _find(self, photo: int | str | Path) -> int | None:
        place = self._position.get(str(photo))
        if place is not None or isinstance(photo, int):
            return place
        try:
            return self._position.get(str(files.real(Path(photo))))
        except ValueError:  # no name of a file: a NUL, or half of a surrogate pair
            return None

    def load_retriever(self, device: str = "auto") -> Retriever:
        """The one whose vectors these are."""
        name, sha256 = self._retriever
        retriever = load_retriever(name, device=device)
        if retriever.sha256 != sha256:
            raise UserError(
                f"{self.folder}: the pool was made with other weights of the retriever {name!r} ({sha256[:8]}; here "
                f"are {retriever.sha256[:8]}); make it again with `tellapart pool`."
            )
        if retriever.size != self.images.shape[1]:
            raise UserError(
                f"{self.folder}: its vectors have {self.images.shape[1]} numbers, those of {name!r} {retriever.size}."
            )
        return replace(retriever, encoder=None)  # photos are embedded already


def _contents(head: dict[str, Any], file: Path) -> tuple[list[Example], tuple[str, str]]:
    records, retriever = head.get("photos"), head.get("retriever")
    names = [retriever.get(key) for key in ("load", "sha256")] if isinstance(retriever, dict) else []
    if not isinstance(records, list) or not records or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file}: the pool is damaged; make it again with `tellapart pool`.")
    examples, problems = check(records, source=file, folder=folder_of(file))
    if problems:
        raise UserError(f"{problems[0]} The pool is damaged; make it again with `tellapart pool`.")
    return examples, (str(names[0]), str(names[1]))


def _tensors(file: Path, examples: Sequence[Example]) -> dict[str, Tensor]:
    """Memory-mapped.  Each is checked once, so that no reward can read beyond its end."""
    files.regular(file)
    try:
        with safe_open(file, "pt") as opened:
            made_for = (opened.metadata() or {}).get("photos_sha256")
            if missing := _SHAPES.keys() - opened.keys():
                raise UserError(f"{file}: has no {min(missing)}; make the pool again.")
            tensors = {name: opened.get_tensor(name) for name in _SHAPES}
    except (SafetensorError, OSError):
        raise UserError(f"{file}: this is no file of a pool, or it is damaged; make the pool again.") from None
    if made_for != _fingerprint(examples):
        raise UserError(f"{file}: it was made for other photos than {_HEAD} beside it; make the pool again.")
    count, parents = len(examples), tensors["parents"]
    places = torch.arange(1, len(parents) + 1)
    sound = (
        all(tensors[name].ndim == dimensions for name, dimensions in _SHAPES.items())
        and all(len(tensors[name]) == count for name in ("images", "look_alikes", "closeness", "nearest"))
        and tensors["images"].is_floating_point()
        and all(int(tensors[n].min()) >= -1 and int(tensors[n].max()) < count for n in ("look_alikes", "nearest"))
        and len(tensors["tokens"]) == len(tensors["counts"]) == len(parents)
        and bool(((parents >= 0) & (parents < places) & (tensors["tokens"] >= 0)).all())
    )
    if not sound:
        raise UserError(f"{file}: its numbers do not fit {count} photos; make the pool again.")
    return tensors


def _fingerprint(examples: Sequence[Example]) -> str:
    """Digest of photos, their order and their references; not of where they lie."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([example.id, *example.captions]).encode("ascii"))
    return digest.hexdigest()
