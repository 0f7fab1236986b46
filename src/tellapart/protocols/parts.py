"""Promises of encoders, rewards, measures and readers.

N captions, W words.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capscore.caption_files import TrainingCaptions
from capscore.errors import UserError
from capscore.measures import MEASURES
from capscore.scoring import Scores, compare
from tellapart import album
from tellapart.data import examples
from tellapart.data.batches import padded
from tellapart.data.readers import READERS
from tellapart.encoders.loading import Checked, load
from tellapart.features.extracted import read_item
from tellapart.protocols import Case
from tellapart.recipe import EncoderConfig, RewardsConfig
from tellapart.rewards import Reward, SampledCaptions, Term, of_term, registry
from tellapart.rewards import pool as pools
from tellapart.rewards.caption_reward import PoolContext
from tellapart.rewards.pool import Pool

_LARGEST = 65504  # in half precision, in which features are stored
_PHOTOS = 12  # in a pool; the captions of rewards are of half of them

_CAPTIONS = {
    "bus": ["a red bus on a street", "two buses by a house"],
    "dog": ["a dog runs", "a dog runs over the grass"],
    "cat": ["is that a cat?", "a cat sleeps on a red sofa"],
    "nothing": ["", "a photo of a photo of"],
    "cake": ["people eat cake and cake and cake", "five people around a table with a cake on it"],
    "sea": ["a boat", "blue water; a boat"],
}
_REFERENCES = {
    "bus": ["a red double-decker bus drives down a street", "the bus is red"],
    "dog": ["a brown dog runs over grass", "a dog running"],
    "cat": ["a cat asleep on a couch", "the cat lies on the red sofa"],
    "nothing": ["a wooden door", "a closed door of a house"],
    "cake": ["a family eats cake at a table", "people around a birthday cake"],
    "sea": ["a small boat on the sea", "a sailing boat on blue water"],
}
_OTHER_FILES = {
    "empty": b"",
    "binary": bytes(range(256)),
    "half.json": b'{"images": [{"id": 1, "file": "a.jpg", "capt',
    "list.json": b"[1, null, {}]",
    "deep.json": b"[" * 100_000,
    "nul.tsv": b"a.jpg\x00\ta dog\n",
}


def _close(values: Tensor, expected: Tensor, tolerance: float, what: str = "") -> None:
    off = float((values - expected).abs().max())
    assert off <= tolerance, f"{what}{off:.2g} apart"


class EncoderCase(Case):
    """An encoder (`encoders.PhotoEncoder`) and some photos of the embedded album, as it reads them."""

    def __init__(self, name: str, config: EncoderConfig | None = None):
        self.config = config or EncoderConfig(name=name)
        self.encoder = load(self.config, torch.device("cpu"))
        photos = examples.read(album.HERE / "album.json").examples[:4]
        self.pixels = np.stack([read_item(self.encoder, photo.file).pixels for photo in photos])

    def _features(self, pixels: Any = None) -> tuple[Tensor, Tensor]:
        features = self.encoder(self.pixels if pixels is None else pixels)
        return features.grid.float(), features.pooled.float()

    @staticmethod
    def _same(values: Tensor, expected: Tensor) -> None:
        _close(values, expected, 1e-3 * float(expected.abs().max()))  # batches of another size add up in another order

    def shapes_are_those_declared(self) -> None:
        """Features have the shapes that the encoder declares."""
        Checked(self.config.name, self.encoder)(self.pixels)

    def numbers_can_be_stored(self) -> None:
        """Features are finite and within half precision, in which they are stored."""
        for values in self._features():
            assert values.isfinite().all()
            assert float(values.abs().max()) <= _LARGEST, f"{float(values.abs().max()):.3g}"

    def same_photos_same_features(self) -> None:
        """The same photos give the same features again."""
        for values, expected in zip(self._features(), self._features(), strict=True):
            self._same(values, expected)

    def photos_are_apart(self) -> None:
        """A photo's features do not depend on the others of the batch, or on its place among them."""
        together = self._features()
        for row in range(len(self.pixels)):
            for values, expected in zip(self._features(self.pixels[row : row + 1]), together, strict=True):
                self._same(values[0], expected[row])
        for values, expected in zip(self._features(self.pixels[::-1].copy()), together, strict=True):
            self._same(values.flip(0), expected)

    def photos_matter(self) -> None:
        """Different photos have different features."""
        grid, _ = self._features()
        assert not torch.allclose(grid[0], grid[1], atol=1e-4)

    def identity_is_known_again(self) -> None:
        """`identity` can be kept as JSON, and is the same when the encoder is loaded again."""
        kept = json.loads(json.dumps(self.encoder.identity))
        assert kept == json.loads(json.dumps(load(self.config, torch.device("cpu")).identity))
        assert "weights_sha256" in kept, "it has no weights_sha256"

    def identity_tells_settings_apart(self) -> None:
        """`identity` differs where settings of the encoder differ: a cache would be used for both."""
        try:
            other = load(replace(self.config, image_size=self.config.image_size * 2), torch.device("cpu"))
        except UserError:  # it takes only one size
            return
        assert other.identity != self.encoder.identity


def pool(held: ExitStack) -> Pool:
    """A pool of some photos of the album, kept by `held`."""
    data = examples.read(album.HERE / "album.json")
    folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
    few = folder / "photos.json"
    examples.write(replace(data, examples=data.examples[:_PHOTOS]), few)
    pools.make(few, folder / "pool", device="cpu")
    return Pool(folder / "pool")


class RewardCase(Case):
    """A reward (`rewards.Term`) and two captions each of some photos of a pool: people's, of another photo, one without
    words, and one that was cut."""

    notes = ("captions_are_apart",)  # a reward may compare the photos of a batch; its author should know

    def __init__(self, name: str, pool: Pool, **settings: Any):
        self.name, self.context = name, PoolContext(RewardsConfig(weights={name: 1.0}, **settings), pool, "cpu")
        self.context.require(name)
        vocabulary = self.context.vocabulary
        texts, ends = list[str](), list[bool]()
        for place in range(_PHOTOS // 2):
            texts += [pool.examples[place].captions[0], pool.examples[place + 1].captions[-1]]
            ends += [True, True]
        texts[3], ends[5] = "", False
        ids = [vocabulary.encode(text) + [vocabulary.eos] * end for text, end in zip(texts, ends, strict=True)]
        words, mask = padded(ids, vocabulary.pad)
        self.sampled = SampledCaptions(words, mask, torch.arange(_PHOTOS // 2).repeat_interleave(2), texts=texts)
        self._term()

    def _term(self) -> Term:
        return registry.make(self.name, self.context)

    def _reward(self, sampled: SampledCaptions | None = None, term: Term | None = None) -> Reward:
        with torch.no_grad():
            return of_term(term or self._term(), self.sampled if sampled is None else sampled, self.name)

    @staticmethod
    def _same(reward: Reward, expected: Reward, rows: Tensor | slice = slice(None)) -> None:
        for part in ("sentence", "words"):
            ours, theirs = getattr(reward, part), getattr(expected, part)
            assert (ours is None) == (theirs is None), f"{part} are given only now and then"
            if ours is not None:
                theirs = theirs[rows]
                width = min(ours.shape[-1], theirs.shape[-1])  # without padding
                scale = max(1.0, float(theirs.abs().max()))
                _close(ours[..., :width], theirs[..., :width], 1e-4 * scale, f"{part} are ")

    def has_the_shape_of_a_reward(self) -> None:
        """It gives a Reward with a finite number for each caption."""
        self._reward()

    def padding_gets_nothing(self) -> None:
        """Rewards of words are 0 at padding."""
        words = self._reward().words
        assert words is None or not words[~self.sampled.mask].any()

    def same_captions_same_reward(self) -> None:
        """The same captions get the same reward again, and are left as they were."""
        sampled, term = self.sampled, self._term()
        copies = sampled.words.clone(), sampled.mask.clone(), sampled.photos.clone()
        self._same(self._reward(term=term), self._reward(term=term))
        assert all(map(torch.equal, copies, (sampled.words, sampled.mask, sampled.photos))), "it changed the captions"

    def more_padding_changes_nothing(self) -> None:
        """More places for words change nothing."""
        pad = torch.zeros(len(self.sampled.words), 3, dtype=torch.long)
        words = torch.cat([self.sampled.words, pad + self.sampled.words[~self.sampled.mask][0]], 1)
        mask = torch.cat([self.sampled.mask, pad.bool()], 1)
        self._same(self._reward(replace(self.sampled, words=words, mask=mask)), self._reward())

    def order_of_captions_is_kept(self) -> None:
        """Rewards come in the order of the captions."""
        rows = torch.arange(len(self.sampled.words)).view(-1, 2).flip(0).flatten()  # photo by photo, the last one first
        self._same(self._reward(self.sampled.of(rows)), self._reward(), rows)

    def captions_are_apart(self) -> None:
        """It depends on the captions of its own photo alone."""
        rows = torch.tensor([2, 3])
        self._same(self._reward(self.sampled.of(rows)), self._reward(), rows)


class MeasureCase(Case):
    """A measure (`capscore.measures.Measure`) on captions of a handful of photos."""

    def __init__(self, name: str):
        self.name = name

    def _scores(self, photos: Sequence[str]) -> Scores:
        captions, references = ({photo: by_id[photo] for photo in photos} for by_id in (_CAPTIONS, _REFERENCES))
        training = TrainingCaptions([["a", "dog", "runs"]])
        return compare([captions], references, metrics=MEASURES[self.name].names, training=training)[0]

    def photos_have_rows(self) -> None:
        """It gives the scores that it names, from a finite row for each photo."""
        scores = self._scores(list(_CAPTIONS))
        assert all(np.isfinite(value) for value in scores.corpus.values()), scores.corpus
        assert all(np.isfinite(value) for row in scores.per_photo().values() for value in row.values())

    def order_does_not_matter(self) -> None:
        """Scores do not depend on the order of the photos."""
        scores, others = self._scores(list(_CAPTIONS)), self._scores([*_CAPTIONS][::-1])
        rows, expected_rows = (each.per_photo() | {"": each.corpus} for each in (others, scores))
        for photo, expected in expected_rows.items():
            row = rows[photo]
            assert all(np.isclose(row[name], expected[name]) for name in expected), f"{row} and {expected}"

    def same_captions_same_score(self) -> None:
        """The same captions get the same scores again."""
        assert self._scores(list(_CAPTIONS)).corpus == self._scores(list(_CAPTIONS)).corpus


class ReaderCase(Case):
    """A reader (`data.readers`), and a source of its own if there is one."""

    notes = ("has_a_source",)

    def __init__(self, name: str, source: Path | None, photos: Path | None = None):
        self.name, self.source, self.photos = name, source, photos

    def reads_its_source(self) -> None:
        """It makes a data set of its source, which other commands take."""
        if self.source is None:
            return
        dataset = READERS[self.name].load()(self.source, self.photos)
        assert dataset.examples, "; ".join(dataset.problems[:3]) or "no photo of it can be used"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "data.json"
            examples.write(dataset, file)
            again = examples.read(file)
        assert not again.problems, "; ".join(again.problems[:3])
        assert len(again.examples) == len(dataset.examples)

    def says_what_is_wrong(self) -> None:
        """Of a file that is none of its own it says one sentence (UserError), or takes what it can."""
        with tempfile.TemporaryDirectory() as folder:
            for name, data in _OTHER_FILES.items():
                file = Path(folder) / name
                file.write_bytes(data)
                try:
                    READERS[self.name].load()(file, None)
                except UserError:
                    continue
                except Exception as error:
                    raise AssertionError(f"{type(error).__name__} for the file {name!r}") from None

    def has_a_source(self) -> None:
        """What it makes of its own files was checked: name one (tellapart check SOURCE)."""
        assert self.source is not None
