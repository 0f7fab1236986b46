"""Beam search: the likeliest captions a bounded search can find, for a batch of photos at once.

Each photo has `beam` live hypotheses and a bank of finished ones.  A step ranks all continuations of the live
hypotheses by their summed log p, or by what a `Rescore` makes of it:

- those that end (EOS) and stand among the `beam` best go to the bank.  An ending outside them does not, though its
  score might beat a longer caption's: that keeps out the empty and broken captions which exact search prefers, it is
  the field's rule (fairseq, transformers), and it makes a beam of 1 the greedy caption;
- the `beam` best of those that do not end live on;
- at `max_words` tokens the `beam` best go to the bank as they are: a caption that is cut has no EOS and no log p for
  one, and ranks by its own score among the finished.

The bank keeps the `n_best` best.  It never steers the live hypotheses, so a wider bank would only delay the end.
A photo is done when no live hypothesis can still beat the worst in its bank; done photos leave the batch.

Diverse beam search (Vijayakumar et al., 2018, arXiv 1610.02424) is the same search with the beam divided into groups,
each with a bank of its own.  At each step the groups choose in turn, and a word ranks lower by `diversity` for each
hypothesis of an earlier group that has just gone on with it (their Hamming diversity).  As in their equations the
penalty counts at that step only: a caption's score stays its own, and by it the banks are ranked and joined at the
end.  Ending is no word and costs nothing, or later groups would be longer just for being later.

Only the next words are ranked where the captioner is.  What is kept of them is a few numbers a photo, and the books on
those are kept with numpy: at one photo, dozens of torch's small operations a step took longer than a captioner's step.

Equal scores: found first, then from the better hypothesis, then the lower word id.  Where more words tie than fit
in the beam, `torch.topk` picks; it sees one photo at a time, so neither the batch nor the run changes its pick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.captioners import Captioner, select
from tellapart.decoding.rules import Rules
from tellapart.decoding.score import caption_mask, log_probabilities, opening

# What a search may rank captions by in place of their log p; asked once a step, for all photos still searched:
#   tokens   (A, H, t)  the prefixes so far, without BOS
#   logp     (A, H, V)  summed log p of each beginning with one word more, -inf where that is not allowed
#   photos   (A,)       the row of the batch that each photo is
#   returns  (A, H, V)  the score of the beginning with that word.  -inf rules it out; none is above its log p, which
#                       only falls, so that the search knows what a beginning can still reach
Rescore = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Hypotheses:
    """The best captions of each photo, best first.  A place that no caption fills has logp and score -inf."""

    tokens: Tensor  # (B, n_best, T) without BOS, padding after EOS
    mask: Tensor  # (B, n_best, T) True up to and including EOS; all False where there is no caption
    logp: Tensor  # (B, n_best) summed over the words and EOS
    score: Tensor  # (B, n_best) what they are ranked by: logp / length**length_penalty, length = words + EOS


@torch.no_grad()
def beam_search(
    captioner: Captioner,
    memory: Any,
    rules: Rules,
    *,
    beam: int = 3,
    n_best: int = 1,
    groups: int = 1,
    diversity: float = 0.5,
    rescore: Rescore | None = None,
) -> Hypotheses:
    """The `n_best` captions of each photo; log p is over the whole vocabulary, as in `greedy`.

    rules           with `length_penalty`: 0 ranks by the sum of log p, 1 by its mean over words and EOS (perplexity);
                    the higher, the longer the captions
    groups          that the beam is divided into.  Each gives its best, as many as the others; two may find the same
    diversity       the penalty for a word that a hypothesis of an earlier group has at the same place, in log p
    rescore         puts another score in the place of log p in all of the ranking; `Hypotheses.logp` stays log p

    No gradients: `score` gives the log p of the captions found, with them.
    """
    if min(beam, n_best, groups) < 1:
        raise ValueError(f"beam, n_best and groups must be at least 1, not {beam}, {n_best} and {groups}")
    if beam % groups:
        raise ValueError(f"beam must be a multiple of groups, not {beam} with {groups}")
    if not diversity >= 0:
        raise ValueError(f"diversity must be 0 or more, not {diversity}")
    token, max_words, length_penalty = opening(memory, rules.bos), rules.max_words, rules.length_penalty
    device = token.device
    width = beam // groups
    logits, state = captioner.step(token, captioner.start(memory), memory)  # (B, V)
    logp = rules.rule_out_(log_probabilities(logits), token.new_empty(len(token), 0))
    photos = np.arange(len(token))  # (A,) still searched, by their place in the batch
    live = [_Beam.empty(photos, max_words, rules.pad, logp)] * groups
    banks = [_Bank.empty(live[0], -(-n_best // groups)) for _ in live]
    for length in range(1, max_words + 1):
        # (A, groups, H, V); before the first word all groups share one row
        following = logp.view(len(photos), -1, live[0].logp.shape[1], logp.shape[1]).expand(-1, groups, -1, -1)
        rows = np.arange(logp.shape[0]).reshape(len(photos), -1, following.shape[2])  # (A, groups or 1, H) of the state
        taken = None if groups == 1 else logp.new_zeros(len(photos), logp.shape[1])  # (A, V) what words cost
        for group, bank in enumerate(banks):
            total = torch.from_numpy(live[group].logp).to(device)[:, :, None] + following[:, group]  # (A, H, V)
            ranked = total
            if rescore is not None:
                prefix = torch.from_numpy(live[group].tokens[:, :, : length - 1]).to(device)
                ranked = rescore(prefix, total, torch.from_numpy(photos).to(device))
            own_rows = rows[:, min(group, rows.shape[1] - 1)]
            longer = live[group].continuations(total, ranked, taken, own_rows, at=length - 1, count=2 * width)
            ends = longer.tokens[:, :, length - 1] == rules.eos  # (A, 2*width)
            finished = ends | (length == max_words)
            bank.add(photos, longer.first(width), finished[:, :width], divisor=length**length_penalty)
            # A hypothesis has one ending, so of 2*width continuations at least `width` go on (or as many as there are).
            live[group] = longer.without(ends).first(width)
            if taken is not None:
                word = torch.from_numpy(live[group].tokens[:, :, length - 1].copy()).to(device)
                alive = torch.from_numpy(np.isfinite(live[group].logp)).to(device)
                taken.scatter_add_(1, word, diversity * alive.to(taken.dtype))
        if length == max_words:
            break

        furthest = max_words if length_penalty > 0 else length + 1  # the length at which a given log p scores best
        done = np.ones(len(photos), dtype=bool)  # (A,)
        for beams, bank in zip(live, banks, strict=True):  # log p can only fall, and no score is above it
            done &= beams.logp.max(axis=1) / furthest**length_penalty <= bank.score[photos, -1]
        count = int(done.sum())
        if count == len(photos):
            break
        if 4 * count >= len(photos):  # a quarter or more each time: all copies of the memory together are below 3
            keep = np.flatnonzero(~done)
            photos, live = photos[keep], [beams.of(keep) for beams in live]
            memory = select(memory, torch.from_numpy(keep).to(device))
        tokens = np.concatenate([beams.tokens[:, :, :length] for beams in live], axis=1)  # (A, beam, length)
        prefix = torch.from_numpy(tokens.reshape(-1, length)).to(device)
        row = torch.from_numpy(np.concatenate([beams.row for beams in live], axis=1).ravel()).to(device)
        logits, state = captioner.step(prefix[:, -1], select(state, row), memory)
        logp = rules.rule_out_(log_probabilities(logits), prefix)
    return _Bank.joined(banks, n_best).hypotheses(rules.eos, device)


@dataclass
class _Beam:
    """H hypotheses of each of the A photos still searched, all equally long, in the order of choice."""

    tokens: NDArray[np.int64]  # (A, H, max_words)
    logp: NDArray[np.floating]  # (A, H) -inf where there is none
    score: NDArray[np.floating]  # (A, H) what captions are ranked by, -inf where there is none
    row: NDArray[np.int64]  # (A, H) of the state that each continues from

    @classmethod
    def empty(cls, photos: NDArray[np.int64], max_words: int, pad: int, like: Tensor) -> _Beam:
        certain = like.new_zeros(len(photos), 1).cpu().numpy()
        return cls(np.full((len(photos), 1, max_words), pad), certain, certain, photos[:, None])

    def continuations(
        self, logp: Tensor, score: Tensor, cost: Tensor | None, rows: NDArray[np.int64], *, at: int, count: int
    ) -> _Beam:
        """The `count` best ways to add one word at the place `at`.

        logp, score  (A, H, V)  of the longer hypotheses
        cost         (A, V)     of a word, which counts in this choice only
        rows         (A, H)     of the state that each hypothesis has led to
        """
        words = score.shape[2]
        ranked = (score if cost is None else score - cost[:, None]).flatten(1)  # (A, H*V)
        values, places = ranked.topk(min(count, ranked.shape[1]), dim=1, sorted=False)
        choice, value = places.cpu().numpy(), values.cpu().numpy()
        photo = np.arange(len(choice))[:, None]
        order = photo, np.lexsort((choice, -value))  # of equals, the lower index
        choice = choice[order]
        best = value[order] if cost is None else score.flatten(1).gather(1, places).cpu().numpy()[order]
        likely = best
        if logp is not score:
            likely = logp.flatten(1).gather(1, places).cpu().numpy()[order]
            likely[best == -np.inf] = -np.inf
        parent, word = np.divmod(choice, words)
        tokens = self.tokens[photo, parent]
        tokens[:, :, at] = word
        return _Beam(tokens, likely, best, rows[photo, parent])

    def without(self, gone: NDArray[np.bool_]) -> _Beam:
        """The same with those where `gone` (A, H) is True moved behind the others, as if they had never been."""
        if not gone.any():
            return self
        order = np.arange(len(gone))[:, None], gone.argsort(axis=1, kind="stable")
        behind = gone[order]
        logp, score = self.logp[order], self.score[order]
        logp[behind] = score[behind] = -np.inf
        return _Beam(self.tokens[order], logp, score, self.row[order])

    def first(self, count: int) -> _Beam:
        return _Beam(self.tokens[:, :count], self.logp[:, :count], self.score[:, :count], self.row[:, :count])

    def of(self, photos: NDArray[np.int64]) -> _Beam:
        return _Beam(self.tokens[photos], self.logp[photos], self.score[photos], self.row[photos])


@dataclass
class _Bank:
    """The best finished captions of all B photos, in the order of the batch; best first, -inf where there is none."""

    tokens: NDArray[np.int64]  # (B, n_best, max_words)
    logp: NDArray[np.floating]  # (B, n_best)
    score: NDArray[np.floating]  # (B, n_best)

    @classmethod
    def empty(cls, live: _Beam, n_best: int) -> _Bank:
        nothing = np.full((len(live.logp), n_best), -np.inf, dtype=live.logp.dtype)
        return cls(live.tokens.repeat(n_best, axis=1), nothing, nothing.copy())

    def add(self, photos: NDArray[np.int64], beam: _Beam, finished: NDArray[np.bool_], *, divisor: float) -> None:
        """Put in those of `beam` (A, H) that are `finished`, where they are better than what is there."""
        some = finished.any(axis=1)
        if not some.any():
            return
        photos, beam, finished = photos[some], beam.of(np.flatnonzero(some)), finished[some]
        offered = np.where(finished, beam.score / divisor, -np.inf).astype(self.score.dtype, copy=False)
        score = np.concatenate([self.score[photos], offered], axis=1)
        order = np.arange(len(photos))[:, None], (-score).argsort(axis=1, kind="stable")[:, : self.score.shape[1]]
        self.score[photos] = score[order]
        self.logp[photos] = np.concatenate([self.logp[photos], beam.logp], axis=1)[order]
        self.tokens[photos] = np.concatenate([self.tokens[photos], beam.tokens], axis=1)[order]

    @classmethod
    def joined(cls, banks: list[_Bank], n_best: int) -> _Bank:
        """The best of all; of equals, those of the earlier bank."""
        if len(banks) == 1:
            return banks[0]
        score = np.concatenate([bank.score for bank in banks], axis=1)
        order = np.arange(len(score))[:, None], (-score).argsort(axis=1, kind="stable")[:, :n_best]
        logp = np.concatenate([bank.logp for bank in banks], axis=1)[order]
        return cls(np.concatenate([bank.tokens for bank in banks], axis=1)[order], logp, score[order])

    def hypotheses(self, eos: int, device: torch.device) -> Hypotheses:
        tokens, logp, score = (torch.from_numpy(part).to(device) for part in (self.tokens, self.logp, self.score))
        mask = caption_mask(tokens, eos) & logp.isfinite()[:, :, None]
        longest = int(mask.sum(-1).max())
        return Hypotheses(tokens[:, :, :longest], mask[:, :, :longest], logp, score)
