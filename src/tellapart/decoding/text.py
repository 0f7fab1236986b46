"""The one place where decoding meets words: from features to the text to show."""

from __future__ import annotations

from torch import Tensor

from tellapart.captioners import Captioner
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.beam import beam_search


def most_likely(
    captioner: Captioner, tokenizer: Tokenizer, features: Tensor, mask: Tensor, *, beam: int, max_words: int
) -> list[tuple[str, float]]:
    """The likeliest caption of each photo that the beam finds, and its log p.  features (B, R, D), mask (B, R)"""
    best = beam_search(
        captioner,
        captioner.encode(features, mask),
        beam=beam,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        pad=tokenizer.pad,
        max_words=max_words,
        banned=tokenizer.never_said,
    )
    texts = [tokenizer.decode(tokens) for tokens in best.tokens[:, 0].tolist()]
    return list(zip(texts, best.logp[:, 0].tolist(), strict=True))
