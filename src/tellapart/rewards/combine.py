"""Several rewards as one: their weighted sum, each term logged apart, and if asked for brought to the same scale.

Terms differ in scale by orders of magnitude: of five captions of a photo, CIDEr-D varies by .3 and a gap of cosines by
.05.  A policy gradient feels only how much a term varies within a photo, its *spread*: weights mean what they say once
each term is divided by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import add
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.batches import padded
from tellapart.distributed import ProcessGroup
from tellapart.rewards import Reward, SampledCaptions, Term, of_term

_MEMORY = "memory"
_ROUNDING = 1e-6  # a smaller spread is none: equal captions may differ by this much in a batch


@runtime_checkable
class Remembers(Protocol):
    """A term that goes by earlier captions.  Calling it changes nothing; `remember` gets those learned from."""

    def remember(self, sampled: SampledCaptions | None) -> None:
        """None where this process has no captions of the batch."""

    def state(self) -> Tensor: ...

    def restore(self, state: Tensor) -> None: ...


class Combined:
    """The sum over terms of weight times reward.

    terms       by name
    weights     by the same names; below zero for a penalty, zero for a term that is only logged
    balance     divide each term by its spread: sum_i weight_i * term_i / spread_i, times target / max(1, sum |w| / 2)
    decay       of the running mean of spreads, by which terms are divided
    target      the spread that a lone term of weight 1 gets: that of CIDEr-D, so that a learning rate carries over
    unbalanced  terms that are added with their plain weight, after the balanced sum
    factors     of a term (P,): what it is multiplied with for each photo, before anything else is done with it
    total       of each of some numbers, the sum over all processes, so that all of them divide by the same
    gather      captions of this process, or None -> the same, which know those of all others; none: there are no others

    The running spreads, and what terms remember, are all that changes between calls.  A step in which a term is the
    same for all captions of a photo says nothing of the term's scale, and leaves its running spread as it is.  A term
    that has always been so is not divided: a baseline takes away all that it adds.
    """

    def __init__(
        self,
        terms: Mapping[str, Term],
        weights: Mapping[str, float],
        *,
        balance: bool = False,
        decay: float = 0.95,
        target: float = 0.30,
        unbalanced: frozenset[str] = frozenset(),
        factors: Mapping[str, Tensor] | None = None,
        total: Callable[[Sequence[float]], list[float]] = list,
        gather: Callable[[SampledCaptions | None], SampledCaptions | None] | None = None,
    ):
        self._terms, self._of_photos = dict(terms), dict(factors or {})
        self._weights = {name: float(weights[name]) for name in terms}
        self._balanced = [name for name in terms if balance and name not in unbalanced]
        named: dict[str, object] = {**terms}
        self._remembering = {name: term for name, term in named.items() if isinstance(term, Remembers)}
        self._decay, self._total, self._gather = decay, total, gather
        self._target = target / max(1.0, sum(abs(self._weights[name]) for name in self._balanced) / 2)
        # A row for each balanced term: the decaying sum of its spreads, and of the ones that it is to be divided by.
        self._running = torch.zeros(len(self._balanced), 2, dtype=torch.double)

    @property
    def names(self) -> list[str]:
        """Fields of the log line: reward/NAME and spread/NAME before any weight, and the mean of the sum, `reward`."""
        return [f"{what}/{name}" for what in ("reward", "spread") for name in self._terms] + ["reward"]

    def __call__(self, sampled: SampledCaptions, samples: int) -> tuple[Reward, dict[str, float]]:
        """The sum for captions that are learned from, `samples` of each photo, and its log line."""
        rewards = self._rewards(sampled)
        values = torch.stack([reward.per_caption(sampled.mask) for reward in rewards.values()])  # (terms, N)
        by_photo = values.view(len(values), -1, samples)
        spreads = by_photo.std(2).mean(1) if samples > 1 else values.new_zeros(len(values))
        means, means_of_spreads = torch.stack([values.mean(1), spreads]).tolist()  # one transfer
        if self._balanced:
            spread_of = dict(zip(rewards, means_of_spreads, strict=True))
            self._learn([spread_of[name] for name in self._balanced], by_photo.shape[1])
        for term in self._remembering.values():
            term.remember(sampled)
        total = self._sum(rewards)
        figures = [*means, *means_of_spreads, total.per_caption(sampled.mask).mean().item()]
        return total, dict(zip(self.names, figures, strict=True))

    def score_baseline(self, sampled: SampledCaptions) -> Reward:
        """The sum for captions that others are compared with, on the scale of those that were learned from last."""
        return self._sum(self._rewards(sampled))

    def skip_batch(self) -> None:
        """This process has no captions of the batch: the others' spreads are its own, and their captions."""
        self.skip_baseline()
        if self._balanced:
            self._learn([0.0] * len(self._balanced), 0)
        for term in self._remembering.values():
            term.remember(None)

    def skip_baseline(self) -> None:
        """This process has no captions to compare with, and others may have."""
        if self._gather is not None:
            self._gather(None)

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint: by name of a balanced term (2,), and NAME/memory of a term that remembers."""
        spreads = {name: row.clone() for name, row in zip(self._balanced, self._running, strict=True)}
        return spreads | {f"{name}/{_MEMORY}": term.state() for name, term in self._remembering.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        spreads = {name for name in state if not name.endswith(f"/{_MEMORY}")}
        if spreads != set(self._balanced):
            kept, here = (", ".join(sorted(names)) or "no reward" for names in (spreads, self._balanced))
            raise UserError(f"the checkpoint has running spreads of {kept}, but the recipe balances {here}.")
        for row, name in enumerate(self._balanced):
            self._running[row] = state[name].cpu()
        for name, term in self._remembering.items():
            if f"{name}/{_MEMORY}" not in state:
                raise UserError(f"the checkpoint has no state of {name}: it is of another recipe.")
            term.restore(state[f"{name}/{_MEMORY}"])

    def _rewards(self, sampled: SampledCaptions) -> dict[str, Reward]:
        if self._gather is not None:
            sampled = self._gather(sampled) or sampled
        # In single precision, also for a captioner in bf16: in bf16, cosines of thousands of photos are often equal.
        with torch.autocast(sampled.words.device.type, enabled=False):
            rewards = {name: of_term(term, sampled, name) for name, term in self._terms.items()}
        for name, factors in self._of_photos.items():
            rewards[name] *= factors[sampled.photos.cpu()].to(sampled.words.device)
        return rewards

    def _sum(self, rewards: Mapping[str, Reward]) -> Reward:
        factors = self._factors()
        return reduce(add, (reward * factors[name] for name, reward in rewards.items()))

    def _learn(self, spreads: list[float], photos: int) -> None:
        """Take the mean spread over the photos of all processes into the running one."""
        count, *sums = self._total([photos, *(photos * spread for spread in spreads)])
        latest = torch.tensor(sums, dtype=torch.double) / count
        varies = latest > _ROUNDING
        update = torch.stack([latest, torch.ones_like(latest)], 1)
        self._running[varies] = (self._decay * self._running + (1 - self._decay) * update)[varies]

    def _factors(self) -> dict[str, float]:
        """The factor of each term."""
        factors = dict(self._weights)
        for name, (spreads, ones) in zip(self._balanced, self._running.tolist(), strict=True):
            factors[name] *= self._target * (ones / spreads if ones else 1.0)
        return factors


def gathered(world: ProcessGroup, sampled: SampledCaptions | None) -> SampledCaptions | None:
    """The same captions, which know those of the other processes.

    All processes must call it; None from one that has no captions of the batch, and for it.
    """
    share: list[object] | None = None  # as JSON can hold it: words, photos, references, texts
    if sampled is not None:
        rows = zip(sampled.words.tolist(), sampled.mask.sum(1).tolist(), strict=True)
        reference = [] if sampled.reference is None else sampled.reference.tolist()
        share = [[row[:length] for row, length in rows], sampled.photos.tolist(), reference, list(sampled.texts or ())]
    shares = [other or [[]] * 4 for other in world.gather(share)]
    if sampled is None:
        return None
    device = sampled.words.device
    ids, photos, references, texts = (list(chain.from_iterable(parts)) for parts in zip(*shares, strict=True))
    words, mask = padded(ids, 0)  # a reader stops at the end of a caption, whatever the padding
    batch = SampledCaptions(
        words.to(device),
        mask.to(device),
        torch.tensor(photos, device=device),
        None if sampled.reference is None else torch.tensor(references, device=device),
        sampled.progress,
        None if sampled.texts is None else texts,
    )
    return replace(sampled, gathered=batch, first=sum(len(ids) for ids, *_ in shares[: world.rank]))
