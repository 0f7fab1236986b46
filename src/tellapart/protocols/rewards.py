"""What rewards promise (`rewards.Term`), on captions of the embedded album.

N captions, W words.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tellapart import album
from tellapart.data import examples
from tellapart.data.batches import padded
from tellapart.protocols import Check
from tellapart.recipe_policy import RewardsConfig
from tellapart.rewards import Reward, SampledCaptions, Term, of_term, registry
from tellapart.rewards import pool as pools
from tellapart.rewards.caption_reward import PoolContext
from tellapart.rewards.pool import Pool

_PHOTOS = 12  # in the pool; the captions are of half of them
_CLOSE = 1e-4


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Term]
    sampled: SampledCaptions

    def reward(self, sampled: SampledCaptions | None = None) -> Reward:
        with torch.no_grad():
            return of_term(self.make(), self.sampled if sampled is None else sampled, self.name)


def pool(held: ExitStack) -> Pool:
    """Of some photos of the album."""
    data = examples.read(album.HERE / "album.json")
    folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
    few = folder / "photos.json"
    examples.write(replace(data, examples=data.examples[:_PHOTOS]), few)
    pools.make(few, folder / "pool", device="cpu")
    return Pool(folder / "pool")


def case(name: str, held: ExitStack, **settings: Any) -> Case:
    """Two captions each of some photos: people's, of another photo, one without words, and one that was cut.

    held      keeps the pool until the reward was asked for the last time
    settings  of the recipe's rewards
    """
    return case_of(name, pool(held), **settings)


def case_of(name: str, pool: Pool, **settings: Any) -> Case:
    context = PoolContext(RewardsConfig(weights={name: 1.0}, **settings), pool, "cpu")
    context.require(name)
    vocabulary = context.vocabulary
    texts, ends = list[str](), list[bool]()
    for place in range(_PHOTOS // 2):
        texts += [pool.examples[place].captions[0], pool.examples[place + 1].captions[-1]]
        ends += [True, True]
    texts[3], ends[5] = "", False
    ids = [vocabulary.encode(text) + [vocabulary.eos] * end for text, end in zip(texts, ends, strict=True)]
    words, mask = padded(ids, vocabulary.pad)
    photos = torch.arange(_PHOTOS // 2).repeat_interleave(2)
    make = partial(registry.make, name, context)
    return Case(name, make, SampledCaptions(words, mask, photos, texts=texts))


def _same(found: Reward, expected: Reward, rows: Tensor | slice = slice(None)) -> None:
    for part in ("sentence", "words"):
        ours, theirs = getattr(found, part), getattr(expected, part)
        assert (ours is None) == (theirs is None), f"{part} are given only now and then"
        if ours is not None:
            theirs = theirs[rows]
            width = min(ours.shape[-1], theirs.shape[-1])  # without padding
            off = float((ours[..., :width] - theirs[..., :width]).abs().max())
            assert off <= _CLOSE * max(1.0, float(theirs.abs().max())), f"{part} are {off:.2g} apart"


def has_the_shape_of_a_reward(case: Case) -> None:
    """It gives a Reward with a finite number for each caption."""
    case.reward()


def padding_gets_nothing(case: Case) -> None:
    """Rewards of words are 0 at padding."""
    words = case.reward().words
    assert words is None or not words[~case.sampled.mask].any()


def same_captions_same_reward(case: Case) -> None:
    """The same captions get the same reward again, and are left as they were."""
    sampled, term = case.sampled, case.make()
    before = sampled.words.clone(), sampled.mask.clone(), sampled.photos.clone()
    with torch.no_grad():
        _same(of_term(term, sampled, case.name), of_term(term, sampled, case.name))
    after = sampled.words, sampled.mask, sampled.photos
    assert all(map(torch.equal, before, after)), "it changed the captions"


def more_padding_changes_nothing(case: Case) -> None:
    """More places for words change nothing."""
    pad = torch.zeros(len(case.sampled.words), 3, dtype=torch.long)
    words = torch.cat([case.sampled.words, pad + case.sampled.words[~case.sampled.mask][0]], 1)
    mask = torch.cat([case.sampled.mask, pad.bool()], 1)
    _same(case.reward(replace(case.sampled, words=words, mask=mask)), case.reward())


def order_of_captions_is_kept(case: Case) -> None:
    """Rewards come in the order of the captions."""
    rows = torch.arange(len(case.sampled.words)).view(-1, 2).flip(0).flatten()  # photo by photo, the last one first
    _same(case.reward(case.sampled.of(rows)), case.reward(), rows)


def captions_are_apart(case: Case) -> None:
    """It depends on the captions of its own photo alone."""
    rows = torch.tensor([2, 3])
    _same(case.reward(case.sampled.of(rows)), case.reward(), rows)


CHECKS: Sequence[Check] = (
    has_the_shape_of_a_reward,
    padding_gets_nothing,
    same_captions_same_reward,
    more_padding_changes_nothing,
    order_of_captions_is_kept,
)
NOTES: Sequence[Check] = (captions_are_apart,)  # a reward may compare the photos of a batch; its author should know
