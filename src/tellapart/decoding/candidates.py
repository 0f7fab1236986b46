"""Several captions of each photo to choose from: the likeliest that a beam finds, and random ones beside them.

Beams are alike; samples bring the words that a caption may be told by.  A photo's samples are drawn with random numbers
of its own, so they depend neither on the batch that it is in nor on what was captioned before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.captioners import Captioner
from tellapart.captioners.vision_language import Generates
from tellapart.data.captions import Candidate
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules
from tellapart.decoding.sample import sample
from tellapart.decoding.score import caption_mask, score


@torch.no_grad()
def candidates(
    captioner: Captioner,
    memory: Any,
    tokenizer: Tokenizer,
    rules: Rules,
    *,
    beam: int,
    n_best: int = 1,
    groups: int = 1,
    diversity: float = 0.5,
    samples: int = 0,
    temperature: float = 1.0,
    seeds: Sequence[int] = (),
) -> list[list[Candidate]]:
    """Different captions of each photo, the best first: the beam's `n_best`, or its whole beam and the samples.

    rules .. diversity  as in `beam_search`; the rules hold for samples too
    seeds              of the samples, one per photo; none are needed without samples
    """
    most = beam if samples else n_best
    if isinstance(captioner, Generates):
        if groups > 1:
            raise UserError("this model is asked by transformers' generate, which knows no --diverse groups.")
        return _generated(captioner, memory, tokenizer, rules, beam, most, samples, temperature, seeds)
    best = beam_search(captioner, memory, rules, beam=beam, n_best=most, groups=groups, diversity=diversity)
    found = in_words(best.tokens, best.logp, best.mask, tokenizer)
    if not samples:
        return list(map(_once, found))
    uniform = torch.stack([_uniform(seed, samples, rules.max_words) for seed in seeds]).flatten(0, 1)  # (B*samples, T)
    drawn = sample(captioner, memory, rules, samples=samples, temperature=temperature, uniform=uniform)
    # what was drawn is tempered, and some words are banned: candidates compare by the captioner's own log p
    logp = score(captioner, memory, drawn.tokens, drawn.mask, bos=rules.bos).sum(1)
    shape = (len(seeds), samples)
    more = in_words(drawn.tokens.view(*shape, -1), logp.view(shape), drawn.mask.view(*shape, -1), tokenizer)
    return [_once([*old, *new]) for old, new in zip(found, more, strict=True)]


def _generated(
    captioner: Generates,
    memory: Any,
    tokenizer: Tokenizer,
    rules: Rules,
    beam: int,
    n_best: int,
    samples: int,
    temperature: float,
    seeds: Sequence[int],
) -> list[list[Candidate]]:
    """The same from a model that is only asked as a whole."""
    usual: dict[str, Any] = {"max_new_tokens": rules.max_words, "min_new_tokens": rules.min_words}
    usual |= {"no_repeat_ngram_size": rules.no_repeat, "suppress_tokens": list(rules.banned), "pad_token_id": rules.pad}

    def read(tokens: Tensor, logp: Tensor) -> list[list[Candidate]]:
        mask = caption_mask(tokens, rules.eos)
        return in_words(tokens, (logp * mask).nan_to_num().sum(2), mask, tokenizer)

    searched: dict[str, Any] = {
        "num_beams": beam,
        "num_return_sequences": n_best,
        "do_sample": False,
        "length_penalty": 0.0,
    }
    found = read(*captioner.generate(memory, **usual, **searched, early_stopping="never" if beam > 1 else False))
    if not samples:
        return list(map(_once, found))
    drawn: dict[str, Any] = {
        "do_sample": True,
        "num_beams": 1,
        "num_return_sequences": samples,
        "temperature": temperature,
    }
    for number, seed in enumerate(seeds):
        with torch.random.fork_rng(devices=[memory[0].device] if memory[0].is_cuda else []):
            torch.manual_seed(seed % 2**63)
            one = (memory[0][number : number + 1],)
            found[number] += read(*captioner.generate(one, **usual, **drawn, top_k=0, top_p=1.0))[0]
    return list(map(_once, found))


def _once(candidates: list[Candidate]) -> list[Candidate]:
    """Each text where it stands first; one without a word only if there is no other."""
    found: dict[str, Candidate] = {}
    for one in candidates:
        found.setdefault(one.text, one)
    return [one for one in found.values() if one.text] or candidates[:1]


def in_words(tokens: Tensor, logp: Tensor, mask: Tensor, tokenizer: Tokenizer) -> list[list[Candidate]]:
    """The captions of each photo: tokens, mask (B, K, T), logp (B, K), -inf where there is none"""
    rows = zip(tokens.tolist(), logp.tolist(), mask.sum(2).tolist(), strict=True)
    return [
        [
            Candidate(tokenizer.decode(caption[:length]), value, length)
            for caption, value, length in zip(captions, likely, lengths, strict=True)
            if value > -math.inf
        ]
        for captions, likely, lengths in rows
    ]


def _uniform(seed: int, samples: int, max_words: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed % 2**63)
    return 1.0 - torch.rand(samples, max_words, generator=generator)  # in (0, 1]
