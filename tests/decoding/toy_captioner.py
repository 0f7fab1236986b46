"""Captioners small enough to enumerate, in double precision, and the enumeration itself."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from tellapart.captioners import by_steps
from tellapart.data.streams import region_inputs

PAD, BOS, EOS, UNK = 0, 1, 2, 3
IDS = {"bos": BOS, "eos": EOS, "pad": PAD}


class ToyCaptioner(nn.Module):
    """A recurrent captioner with random weights.  Notes the photos and captions that each step was asked for."""

    def __init__(self, vocab_size: int = 6, width: int = 5, seed: int = 0, sharpness: float = 1.0):
        super().__init__()
        self.sharpness, self.width, self.steps = sharpness, width, []
        draw = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=draw, dtype=torch.double))

        self.embed, self.recur, self.look = weight(vocab_size, width), weight(width, width), weight(width, width)
        self.word, self.bias, self.drift = weight(width, vocab_size), weight(width, vocab_size), weight(vocab_size)

    def encode(self, inputs):
        features, mask = inputs["regions"]
        photo = (features * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # (B, width)
        return photo @ self.look, (photo @ self.bias,)

    def start(self, memory):
        look, _ = memory
        return torch.zeros_like(look), (torch.zeros(len(look), dtype=torch.long),)  # hidden, number of words

    def step(self, token: Tensor, state, memory):
        (hidden, (count,)), (look, (bias,)) = state, memory
        assert len(token) == len(hidden) == len(count)
        assert len(token) % len(look) == 0
        captions = len(token) // len(look)
        self.steps.append((len(look), len(token)))
        hidden = torch.tanh(self.embed[token] + hidden @ self.recur + look.repeat_interleave(captions, 0))
        logits = hidden @ self.word + bias.repeat_interleave(captions, 0) + 0.2 * count[:, None] * self.drift
        return self.sharpness * logits, (hidden, (count + 1,))

    def forward(self, tokens: Tensor, memory, token_mask: Tensor | None = None) -> Tensor:
        logits = by_steps(self, tokens, memory, len(memory[0]))
        return logits if token_mask is None else logits[token_mask]


class TableCaptioner:
    """The next word depends on the last one alone: the memory is a table of logits (B, V, V), last word by next."""

    def __init__(self):
        self.steps = []

    def encode(self, inputs):
        return (inputs["regions"].values,)

    def start(self, memory):
        return ()

    def step(self, token: Tensor, state, memory):
        (table,) = memory
        self.steps.append((len(table), len(token)))
        return table[torch.arange(len(token)) // (len(token) // len(table)), token], state

    def forward(self, tokens: Tensor, memory, token_mask: Tensor | None = None) -> Tensor:
        (table,) = memory
        logits = table[(torch.arange(len(tokens)) // (len(tokens) // len(table)))[:, None], tokens]
        return logits if token_mask is None else logits[token_mask]


def photos(count: int, width: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features (B, R, width) and mask (B, R) of photos with one to three regions."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 3, width, generator=draw, dtype=torch.double)
    return features, torch.arange(3) <= torch.randint(0, 3, (count, 1), generator=draw)


def table_of(rows: dict[int, dict[int, float]], vocab_size: int) -> Tensor:
    """Log-probabilities (V, V) from {last word: {next word: probability}}; after a word not named, EOS is certain."""
    table = torch.zeros(vocab_size, vocab_size, dtype=torch.double)
    table[:, EOS] = 1.0
    for last, following in rows.items():
        table[last] = 0.0
        for word, probability in following.items():
            table[last, word] = probability
    return table.log()


def every_caption(words: list[int], max_words: int) -> list[tuple[int, ...]]:
    """All captions over `words`: those that end with EOS within `max_words` tokens, and those cut there."""
    ended = [(*words_so_far, EOS) for length in range(max_words) for words_so_far in product(words, repeat=length)]
    return ended + list(product(words, repeat=max_words))


def padded(captions: list[tuple[int, ...]], length: int) -> tuple[Tensor, Tensor]:
    """Tokens (N, T) and mask (N, T)."""
    tokens = torch.tensor([[*caption, *[PAD] * (length - len(caption))] for caption in captions])
    return tokens, torch.arange(length) < torch.tensor([len(caption) for caption in captions])[:, None]


def toy(count: int = 1, *, seed: int = 0, **settings):
    """A captioner, the memory of some photos, and the memory of each of them alone."""
    captioner, (features, regions) = ToyCaptioner(seed=seed, **settings), photos(count, seed=seed)
    alone = [captioner.encode(region_inputs(features[i, None], regions[i, None])) for i in range(count)]
    return captioner, captioner.encode(region_inputs(features, regions)), alone


def captions_of(best, photo: int) -> list[tuple[int, ...]]:
    """Those that a search found."""
    return unpadded(best.tokens[photo], best.mask[photo])


def unpadded(tokens: Tensor, mask: Tensor) -> list[tuple[int, ...]]:
    """The captions as tuples.  tokens, mask (N, T)."""
    return [tuple(row[kept].tolist()) for row, kept in zip(tokens, mask, strict=True)]


def log_probability(captioner, memory, captions: list[tuple[int, ...]]) -> Tensor:
    """Summed log p (B, C) of the same C captions for every photo, straight from `forward`."""
    count = len(memory[0])
    tokens, mask = padded(captions, max(map(len, captions)))
    tokens, mask = tokens.repeat(count, 1), mask.repeat(count, 1)
    before = torch.cat([torch.full_like(tokens[:, :1], BOS), tokens[:, :-1]], 1)
    logp = captioner.forward(before, memory).log_softmax(-1).gather(2, tokens[..., None]).squeeze(2)
    return logp.where(mask, 0.0).sum(1).view(count, -1).detach()


def next_words(captioner, memory, prefix: tuple[int, ...]) -> list[float]:
    """log p of each word after the prefix, asked afresh."""
    return captioner.forward(torch.tensor([[BOS, *prefix]]), memory)[0, -1].log_softmax(0).tolist()


def naive_beam(
    captioner,
    memory,
    *,
    beam,
    max_words,
    n_best,
    banned=(),
    length_penalty=0.0,
    groups=1,
    diversity=0.0,
    allowed=lambda logp: range(len(logp)),
    value=lambda caption, logp: logp,
):
    """(Diverse) beam search for one photo in plain Python: no batch and no early end.

    allowed  the words that are ranked, of the log p of all
    value    what a caption is ranked by
    returns  (score, log p, caption), best first
    """
    width, share = beam // groups, math.ceil(n_best / groups)
    live = [[(0.0, ())] for _ in range(groups)]
    banks = [[] for _ in range(groups)]
    for length in range(1, max_words + 1):
        chosen = []  # words of the earlier groups, at this step
        for group in range(groups):
            continuations = []
            for logp, prefix in live[group]:
                words = next_words(captioner, memory, prefix)
                for word in set(allowed(words)) - set(banned):
                    caption, total = (*prefix, word), logp + words[word]
                    worth = value(caption, total)
                    continuations.append((worth - diversity * chosen.count(word), worth, total, caption))
            continuations.sort(key=lambda each: -each[0])
            banks[group] += [
                (worth / length**length_penalty, logp, caption)
                for _, worth, logp, caption in continuations[:width]
                if caption[-1] == EOS or length == max_words
            ]
            live[group] = [(logp, caption) for *_, logp, caption in continuations if caption[-1] != EOS][:width]
            chosen += [caption[-1] for _, caption in live[group]]
    best = [each for bank in banks for each in sorted(bank, key=lambda each: -each[0])[:share]]
    return sorted(best, key=lambda each: -each[0])[:n_best]


def assert_best(best, photo: int, expected, *, captions: bool = True) -> None:
    """That a search found these (score, log p, caption) for a photo, in this order, and no more."""
    count = len(expected)
    if captions:
        assert captions_of(best, photo)[:count] == [caption for _, _, caption in expected]
    assert best.score[photo].tolist()[:count] == pytest.approx([score for score, _, _ in expected])
    assert best.logp[photo].tolist()[:count] == pytest.approx([logp for _, logp, _ in expected])
    assert (best.score[photo, count:] == -torch.inf).all()
    assert (best.logp[photo, count:] == -torch.inf).all()


def searched(search, chain: dict[int, dict[int, float]], vocab_size: int = 10, **options):
    """The captions that a search finds for a photo with this chain of words, and the result."""
    best = search(TableCaptioner(), (table_of(chain, vocab_size)[None],), **IDS | options)
    return captions_of(best, 0), best
