"""Several captions of each photo to choose from.

`candidates`: the likeliest that a beam finds, and random ones beside them.  Beams are alike; samples bring the words
that a caption may be told by.  A photo's samples are drawn with random numbers of its own, so they depend neither on
the batch that it is in nor on what was captioned before it.

`contrastive_search`: contrast at each word, so that a retriever can tell the photo, without training the captioner for
it.  PICL (Ou, Krojer and Fried, 2023, arXiv 2306.08818): the captioner proposes words, and a retriever (their
listener), which reads the caption so far and chooses among photos, weighs in on which is taken.  The score of a
caption, or of a prefix, is

    (1 - weight) * log p(its words | photo)  +  weight * log p(photo | its words)

The retriever's opinion counts once, as it is after the last word: a word adds by how much it raises or lowers it.
Summing the opinions of all prefixes would be the other reading of "at each word"; but it counts an early word as often
as the caption is long, and makes every further word a loss while the retriever is not yet sure, so that captions are
short for no reason.  In our reading the score of a finished caption is that of ranking whole candidates by captioner
and retriever; contrast at each word finds candidates that the captioner alone would not propose.

A retriever knows nothing of fluency, and likes a rare word for being rare.  So it is asked only about words that the
captioner finds plausible: those with p >= `floor` * p of the likeliest word that is allowed here.  EOS is a word like
the others: it must pass the floor, and the retriever judges the words before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.captioners import Captioner
from tellapart.captioners.vision_language import Generates
from tellapart.data.captions import Candidate
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.beam import Hypotheses, beam_search
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
    searched = in_words(best.tokens, best.logp, best.mask, tokenizer)
    if not samples:
        return list(map(_once, searched))
    generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
    uniform = torch.cat(
        [1.0 - torch.rand(samples, rules.max_words, generator=each) for each in generators]
    )  # in (0, 1]
    drawn = sample(captioner, memory, rules, samples=samples, temperature=temperature, uniform=uniform)
    # what was drawn is tempered, and some words are banned: candidates compare by the captioner's own log p
    logp = score(captioner, memory, drawn.tokens, drawn.mask, bos=rules.bos).sum(1)
    shape = (len(seeds), samples)
    more = in_words(drawn.tokens.view(*shape, -1), logp.view(shape), drawn.mask.view(*shape, -1), tokenizer)
    return [_once([*first, *others]) for first, others in zip(searched, more, strict=True)]


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
    shared: dict[str, Any] = {"max_new_tokens": rules.max_words, "min_new_tokens": rules.min_words}
    shared |= {
        "no_repeat_ngram_size": rules.no_repeat,
        "suppress_tokens": list(rules.banned),
        "pad_token_id": rules.pad,
    }

    def read(tokens: Tensor, logp: Tensor) -> list[list[Candidate]]:
        mask = caption_mask(tokens, rules.eos)
        return in_words(tokens, (logp * mask).nan_to_num().sum(2), mask, tokenizer)

    search: dict[str, Any] = {"num_beams": beam, "do_sample": False, "length_penalty": 0.0}
    search |= {"num_return_sequences": n_best, "early_stopping": "never" if beam > 1 else False}
    texts = read(*captioner.generate(memory, **shared, **search))
    if not samples:
        return list(map(_once, texts))
    draw: dict[str, Any] = {"num_beams": 1, "do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    for number, seed in enumerate(seeds):
        with torch.random.fork_rng(devices=[memory[0].device] if memory[0].is_cuda else []):
            torch.manual_seed(seed % 2**63)
            photo = (memory[0][number : number + 1],)
            texts[number] += read(*captioner.generate(photo, **shared, **draw, num_return_sequences=samples))[0]
    return list(map(_once, texts))


def _once(candidates: list[Candidate]) -> list[Candidate]:
    """Each text where it stands first; one without a word only if there is no other."""
    by_text: dict[str, Candidate] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
    return [candidate for candidate in by_text.values() if candidate.text] or candidates[:1]


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


# The retriever, as it reads captions or prefixes of captions:
#   tokens   (M, t)  without BOS; some end with EOS (and padding), which says nothing: the words before it count
#   photos   (M,)    the row of the batch that each is about
#   returns  (M,)    log p(photo | words): finite and not above 0
PhotoLogProbability = Callable[[Tensor, Tensor], Tensor]


def contrastive_search(
    captioner: Captioner,
    memory: Any,
    retriever: PhotoLogProbability,
    rules: Rules,
    *,
    weight: float = 0.9,
    floor: float = 0.01,
    beam: int = 3,
    most_words: int = 50,
    n_best: int = 1,
) -> Hypotheses:
    """The `n_best` captions of each photo by captioner and retriever together; the search is that of `beam_search`.

    weight      of the retriever, from 0 (`beam_search`, but for the floor) to below 1
    floor       words below this share of the likeliest word's p are not chosen; 0 allows all, 1 the likeliest only
    most_words  the retriever is asked about this many words of a hypothesis at most, the likeliest
    returns     `logp` is the captioner's own, summed as everywhere; `score` is the one given above

    The retriever is called once a step, with the candidates of all photos.
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
        logp_photo = retriever(captions, photos[photo]).to(logp.dtype)
        if not bool((logp_photo.isfinite() & (logp_photo < 1e-3)).all()):  # a little above 0 is rounding
            raise ValueError("a retriever must return log-probabilities: finite and at most 0")
        # The score divided by 1 - weight: the same order, and never above the log p, as the search asks.
        scores = likely[places] + weight / (1 - weight) * logp_photo.clamp(max=0)
        return torch.full_like(logp, -torch.inf).index_put_((photo, hypothesis, word[places]), scores)

    best = beam_search(captioner, memory, rules, beam=beam, n_best=n_best, rescore=rescore)
    best.score *= 1 - weight
    return best
