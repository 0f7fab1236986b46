"""Log-probabilities of given captions.  `score` takes a whole caption in one pass, by teacher forcing.

`log_probabilities_of_pairs` gives log p(caption | photo) of all pairs, which self-retrieval ranks by.  Captions form a
tree, whose nodes are the distinct ways in which they begin.  It is walked level by level, with one step of the
captioner for all nodes of a level and a few photos, so nothing is computed twice: neither the memory of a photo, nor
what captions have in common, nor a caption that occurs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tellapart.captioners import Captioner, select
from tellapart.captioners.layers import shared_prefixes
from tellapart.data.streams import Inputs
from tellapart.parallel import batched


def opening(memory: Any, bos: int) -> Tensor:
    """The token before the first word, once per photo: (B,), on the memory's device."""
    leaf = next(_leaves(memory))
    return torch.full((len(leaf),), bos, device=leaf.device)


def _leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, some of which may be empty."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree:
            yield from _leaves(part)


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax over the last dimension, in single precision at least: sums of half-precision log p drift."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def caption_mask(tokens: Tensor, eos: int) -> Tensor:
    """The tokens that belong to the caption: True up to and including the first EOS.  tokens (..., T) -> (..., T).

    A caption without EOS was cut at its last token, so all of it counts.
    """
    ends = tokens == eos
    return ends.cumsum(-1) - ends.long() == 0  # no EOS strictly before


def score(
    captioner: Captioner,
    memory: Any,
    tokens: Tensor,
    mask: Tensor,
    *,
    bos: int,
    policy: Callable[[Tensor], Tensor] = log_probabilities,
) -> Tensor:
    """log p of every word of given captions; gradients flow, and no gradient passes through what `mask` leaves out.

    memory            B photos
    tokens    (N, T)  N = B*K captions grouped by photo, without BOS, padded with any word id
    mask      (N, T)  True at a caption's words and EOS, False at the padding behind them: see `caption_mask`
    policy            logits (M, V) -> log p: the captioner's own, or what captions were drawn from
    returns   (N, T)  log p(word | the words before it, photo) over the whole vocabulary, 0 where `mask` is False
    """
    previous = torch.cat([torch.full_like(tokens[:, :1], bos), tokens[:, :-1]], dim=1)
    # Padding is never projected onto the vocabulary, and where it can be what follows the same beginning only once;
    # with dropout every caption has a beginning of its own.
    if getattr(captioner, "shares_prefixes", False) and not getattr(captioner, "training", False):
        shared = shared_prefixes(previous, mask, len(opening(memory, bos)))
        logits, row = captioner.forward(previous, memory, shared), shared.which[mask]  # type: ignore[arg-type]
    else:
        logits = captioner.forward(previous, memory, mask)
        row = torch.arange(len(logits), device=tokens.device)
    log_policy = policy(logits)  # (rows, V)
    logp = log_policy.flatten().index_select(0, row * log_policy.shape[1] + tokens[mask])  # (M,)
    return logp.new_zeros(tokens.shape).masked_scatter(mask, logp)


_ROWS = 2048  # of a step, at most: fewer share out the costs of a step less well, more are no faster and take memory
_BYTES = 2**30  # that the rows of a step may take; decides where states are large or captions long

Words = tuple[int, ...]


@torch.no_grad()
def log_probabilities_of_pairs(
    captioner: Captioner,
    batches: Iterable[Inputs],
    captions: Sequence[Sequence[int]],
    *,
    bos: int,
    eos: int,
    with_eos: bool = False,
    advance: Callable[[int], object] | None = None,
) -> Tensor:
    """log p(caption | photo), summed over the words of the caption, for all pairs: (captions, photos).

    batches   what is seen of one batch of photos after the other; only one is held at a time
    captions  word ids without BOS, up to the first EOS if there is one
    with_eos  whether the EOS behind a caption counts, given or not.  Without it, an empty caption has log p 0
    advance   called with how many more photos are done: `Progress.advance`

    Each word is scored over the whole vocabulary, as in `score`, which gives gradients and is for given pairs.
    """
    end = (eos,) if with_eos else ()
    words = [(*takewhile(lambda word: word != eos, caption), *end) for caption in captions]
    distinct = sorted(set(words))  # neighbours begin alike
    trees: list[_Tree] = []
    at_once = 1  # photos
    logp: list[Tensor] = []  # (photos, distinct captions)
    for inputs in batches:
        memory, device = captioner.encode(inputs), inputs.device
        if not trees:  # now there is a photo to learn from how large a state is
            rows = _affordable_rows(captioner, memory, bos, longest=max(map(len, distinct), default=0))
            trees = [_tree(group, device) for group in _evenly(distinct, at_most=rows)]
            at_once = max(rows // max(tree.width for tree in trees), 1)
        for block in batched(range(inputs.items_count), at_once):
            part = select(memory, torch.tensor(block, device=device))
            logp.append(torch.cat([_walk(captioner, part, tree, bos) for tree in trees], 1))
            if advance:
                advance(len(block))
    place = {caption: i for i, caption in enumerate(distinct)}
    pairs = torch.cat(logp) if logp else torch.zeros(0, len(distinct))
    return pairs.T[[place[caption] for caption in words]]


def _affordable_rows(captioner: Captioner, memory: Any, bos: int, *, longest: int) -> int:
    """The rows that a step may have.  A first step tells the size of a state, which may grow with every word."""
    first = select(memory, torch.zeros_like(opening(memory, bos)[:1]))
    logits, state = captioner.step(opening(first, bos), captioner.start(first), first)
    # A state exists three times when the next one is made of a selection of its rows, logits beside their log softmax.
    row = 3 * longest * _bytes(state) + 2 * _bytes(logits)
    return max(min(_ROWS, _BYTES // row), 1)


def _bytes(tree: Any) -> int:
    return tree.nbytes if isinstance(tree, Tensor) else sum(map(_bytes, tree))


def _evenly(captions: list[Words], *, at_most: int) -> list[list[Words]]:
    """Stretches of at most so many captions, all about as long; one at least."""
    count = max(ceil(len(captions) / at_most), 1)
    ends = [len(captions) * i // count for i in range(count + 1)]
    return [captions[start:end] for start, end in pairwise(ends)]


class _Level(NamedTuple):
    """The beginnings of one length, P in all.  Those that go on stand before those that are only whole captions."""

    parent: Tensor  # (P,) its place among the shorter beginnings
    word: Tensor  # (P,) its last word
    going_on: int
    whole: Tensor  # the places of those that are captions


class _Tree(NamedTuple):
    levels: list[_Level]  # of beginnings of 1, 2, ... words
    order: Tensor  # (C,) where each caption stands when those of all levels are put behind each other
    empty: int  # 1 if one of the captions has no words, which comes first
    width: int  # the most rows that a step needs for a photo


def _tree(captions: list[Words], device: torch.device) -> _Tree:
    """captions: distinct"""
    levels, order = [], [caption for caption in captions if not caption]
    empty, width = len(order), 1
    place: dict[Words, int] = {(): 0}
    whole = set(captions)
    for length in range(1, max(map(len, captions), default=0) + 1):
        going_on = dict.fromkeys(caption[:length] for caption in captions if len(caption) > length)
        shared_prefixes = [*going_on, *(c for c in captions if len(c) == length and c not in going_on)]
        parent, word = [place[b[:-1]] for b in shared_prefixes], [b[-1] for b in shared_prefixes]
        place = {beginning: i for i, beginning in enumerate(shared_prefixes)}
        ended = [beginning for beginning in shared_prefixes if beginning in whole]
        levels.append(
            _Level(
                torch.tensor(parent, device=device),
                torch.tensor(word, device=device),
                len(going_on),
                torch.tensor([place[e] for e in ended], dtype=torch.long, device=device),
            )
        )
        order += ended
        width = max(width, len(going_on))
    column = {caption: i for i, caption in enumerate(order)}
    at = torch.tensor([column[caption] for caption in captions], dtype=torch.long, device=device)
    return _Tree(levels, at, empty, width)


def _walk(captioner: Captioner, memory: Any, tree: _Tree, bos: int) -> Tensor:
    """log p (B, C) of the C captions of a tree for each of the B photos of a memory."""
    token, state = opening(memory, bos), captioner.start(memory)  # B rows: before the first word all captions are one
    photo = torch.arange(len(token), device=token.device)[:, None]  # (B, 1)
    logp = torch.zeros_like(photo, dtype=torch.float32)  # (B, P) of the beginnings of one length
    done = [logp[:, : tree.empty]]
    for level in tree.levels:
        logits, state = captioner.step(token, state, memory)
        row = photo * (len(token) // len(photo)) + level.parent  # (B, P)
        logp = logp[:, level.parent] + log_probabilities(logits)[row, level.word]
        done.append(logp[:, level.whole])
        token = level.word[: level.going_on].repeat(len(photo))
        state = select(state, row[:, : level.going_on].flatten())
    return torch.cat(done, 1)[:, tree.order]
