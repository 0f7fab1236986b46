"""Beam search (width 3) with the embedded captioner against two references that cache nothing.

    python benchmarks/decoding.py

plain      what one writes first: photo by photo and hypothesis by hypothesis, the whole model (photo and words so far)
           is run for every word
together   all hypotheses of all photos in one batch, by the same search, but still without a cache: what caching alone
           brings

All three must find the same captions, or the timing means nothing.
"""

from __future__ import annotations

from functools import partial

import torch
from timing import side_by_side, table
from torch import Tensor

from tellapart.album import DEFAULT, HERE
from tellapart.captioners import Captioner
from tellapart.captioning import MAX_WORDS
from tellapart.data import photos
from tellapart.decoding.candidates import candidates
from tellapart.models import Model, encoder_of, load

BEAM = 3


def texts(model: Model, captioner: Captioner, grid: Tensor) -> list[str]:
    memory = captioner.encode(grid, everywhere(grid))
    said = candidates(captioner, memory, model.tokenizer, beam=BEAM, max_words=MAX_WORDS)
    return [best.text for best, *_ in said]


def ours(model: Model, grid: Tensor) -> list[str]:
    return texts(model, model.captioner, grid)


def together(model: Model, grid: Tensor) -> list[str]:
    return texts(model, Uncached(model.captioner), grid)


class Uncached:
    """A captioner whose memory is the features and whose state is the words so far."""

    def __init__(self, captioner: Captioner):
        self.captioner = captioner

    def encode(self, features: Tensor, mask: Tensor) -> tuple[Tensor]:
        return (features,)

    def start(self, memory: tuple[Tensor]) -> tuple[Tensor]:
        return (torch.empty(len(memory[0]), 0, dtype=torch.long),)

    def step(self, token: Tensor, state: tuple[Tensor], memory: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        words = torch.cat([state[0], token[:, None]], 1)
        return self.forward(words, memory)[:, -1], (words,)

    def forward(self, tokens: Tensor, memory: tuple[Tensor], spoken: Tensor | None = None) -> Tensor:
        return self.captioner.forward(tokens, self.captioner.encode(memory[0], everywhere(memory[0])), spoken)


def everywhere(grid: Tensor) -> Tensor:
    return torch.ones(grid.shape[:2], dtype=torch.bool)


def plain(model: Model, grid: Tensor) -> list[str]:
    return [plain_one(model, photo[None]) for photo in grid]


def plain_one(model: Model, photo: Tensor) -> str:
    captioner, words = model.captioner, model.tokenizer
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    best: tuple[float, list[int]] = (-torch.inf, [])
    for length in range(1, MAX_WORDS + 1):
        found: list[tuple[float, list[int]]] = []
        for score, said in live:
            tokens = torch.tensor([[words.bos, *said]])
            logp = captioner.forward(tokens, captioner.encode(photo, everywhere(photo)))[0, -1].log_softmax(-1)
            logp[list(words.never_said)] = -torch.inf
            scores, choices = logp.topk(2 * BEAM)
            found += [(score + s, [*said, c]) for s, c in zip(scores.tolist(), choices.tolist(), strict=True)]
        found.sort(key=lambda hypothesis: -hypothesis[0])
        ended = [hypothesis for hypothesis in found[:BEAM] if hypothesis[1][-1] == words.eos or length == MAX_WORDS]
        best = max([best, *ended], key=lambda hypothesis: hypothesis[0])
        live = [hypothesis for hypothesis in found if hypothesis[1][-1] != words.eos][:BEAM]
        if live[0][0] <= best[0]:
            break
    return words.decode(best[1])


if __name__ == "__main__":
    model = load(DEFAULT, torch.device("cpu"))
    encoder = encoder_of(model, torch.device("cpu"))
    files = sorted((HERE / "photos").iterdir())
    pixels = torch.stack([torch.as_tensor(photos.read(file, encoder.config.image_size).pixels) for file in files])
    grid = encoder(pixels).grid
    rows = []
    for size in (1, 16, 64):
        batch = torch.stack([grid[i % len(grid)] for i in range(size)])
        with torch.inference_mode():
            assert ours(model, batch) == plain(model, batch) == together(model, batch)
            parts = {way.__name__: partial(way, model, batch) for way in (ours, plain, together)}
            took = side_by_side(parts, repeats=9 if size == 1 else 3)
        row = {"photos at once": str(size)}
        row |= {f"{name}, ms a caption": f"{1000 * seconds / size:.1f}" for name, seconds in took.items()}
        row |= {f"{name} / ours": f"{took[name] / took['ours']:.1f}" for name in ("plain", "together")}
        rows.append(row)
    table("Beam search, width 3, features given", rows)
