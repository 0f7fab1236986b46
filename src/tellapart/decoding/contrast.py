"""Contrast at each word: captions from which a listener can tell their photo, without training the captioner for it.

PICL (Ou, Krojer and Fried, 2023, arXiv 2306.08818): the captioner proposes words, and a listener, who reads the caption
so far and chooses among photos, weighs in on which is taken.  The score of a caption, or of a prefix, is

    (1 - weight) * log p(its words | photo)  +  weight * log p(photo | its words)

The listener's opinion counts once, as it is after the last word: a word adds by how much it raises or lowers it.
Summing the opinions of all beginnings would be the other reading of "at each word"; but it counts an early word as
often as the caption is long, and makes every further word a loss while the listener is not yet sure, so that captions
are short for no reason.  In our reading the score of a finished caption is that of ranking whole candidates by
captioner and listener; contrast at each word finds candidates that the captioner alone would not propose.

A listener knows nothing of fluency, and likes a rare word for being rare.  So it is asked only about words that the
captioner finds plausible: those with p >= `floor` * p of the likeliest word that is allowed here.  EOS is a word like
the others: it must pass the floor, and the listener judges the words before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tellapart.captioners import Captioner
from tellapart.decoding.beam import Hypotheses, beam_search
from tellapart.decoding.rules import Rules

# What a listener believes who reads captions, or prefixes of captions:
#   tokens   (M, t)  without BOS; some end with EOS (and padding), which says nothing: the words before it count
#   photos   (M,)    the row of the batch that each is about
#   returns  (M,)    log p(photo | words): finite and not above 0
Listener = Callable[[Tensor, Tensor], Tensor]


def contrastive_search(
    captioner: Captioner,
    memory: Any,
    listener: Listener,
    rules: Rules,
    *,
    weight: float = 0.9,
    floor: float = 0.01,
    beam: int = 3,
    most_words: int = 50,
    n_best: int = 1,
) -> Hypotheses:
    """The `n_best` captions of each photo by captioner and listener together; the search is that of `beam_search`.

    weight      of the listener, from 0 (`beam_search`, but for the floor) to below 1
    floor       words below this share of the likeliest word's p are not chosen; 0 allows all, 1 the likeliest only
    most_words  the listener is asked about this many words of a hypothesis at most, the likeliest
    returns     `logp` is the captioner's own, summed as everywhere; `score` is the one given above

    The listener is called once a step, with the candidates of all photos.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight must be at least 0 and below 1, not {weight}")
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be from 0 to 1, not {floor}")
    if most_words < 1:
        raise ValueError(f"most_words must be at least 1, not {most_words}")
    depth = math.log(floor) if floor else -math.inf

    def rescore(tokens: Tensor, logp: Tensor, photos: Tensor) -> Tensor:
        likely, word = logp.topk(min(most_words, logp.shape[2]), dim=2)  # (A, H, W), likeliest first
        kept = (likely > -torch.inf) & (likely >= likely[:, :, :1] + depth)
        photo, hypothesis, _ = places = kept.nonzero(as_tuple=True)  # (M,) each
        captions = torch.cat([tokens[photo, hypothesis], word[places][:, None]], dim=1)  # (M, t + 1)
        found = listener(captions, photos[photo]).to(logp.dtype)
        if not bool((found.isfinite() & (found < 1e-3)).all()):  # a little above 0 is rounding
            raise ValueError("a listener must return log-probabilities: finite and at most 0")
        # The score divided by 1 - weight: the same order, and never above the log p, as the search asks.
        score_baseline = likely[places] + weight / (1 - weight) * found.clamp(max=0)
        return torch.full_like(logp, -torch.inf).index_put_((photo, hypothesis, word[places]), score_baseline)

    best = beam_search(captioner, memory, rules, beam=beam, n_best=n_best, rescore=rescore)
    best.score *= 1 - weight
    return best
