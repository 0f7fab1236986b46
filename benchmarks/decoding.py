"""Beam search (width 3), features given: a plain loop in torch against ours.

    python benchmarks/decoding.py
    python benchmarks/decoding.py plain runs/up_down_xe

plain       what one writes first with the captioner protocol: photo by photo, the hypotheses of a photo in one batch,
            with the captioner's state kept from word to word; weights as they are loaded
ours        `beam_search`: all photos in one batch, weights laid out for few rows

Both in single precision, on one thread, in CPU time.  They must find the same captions, or the timing means nothing.
Models are folders or names; the name of a captioner, such as up_down, is one with random weights and its own default
sizes, whose captions are all made 12 words long.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial

import torch
from timing import side_by_side, table
from torch import Tensor, nn

from tellapart import models
from tellapart.album import HERE
from tellapart.captioners import CAPTIONERS, Captioner, select
from tellapart.captioning.captioner import MAX_WORDS
from tellapart.data.media import photos
from tellapart.data.streams import region_inputs
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules
from tellapart.models import build, encoder_of, find, for_inference, load, load_weights, read_config

BEAM = 3
FIXED = 12  # words of a captioner that knows no end


@dataclass
class Ways:
    """A captioner as loaded, and as laid out for decoding."""

    name: str
    words: Tokenizer
    plain: nn.Module
    for_beams: nn.Module
    min_words: int = 0
    max_words: int = MAX_WORDS

    @classmethod
    def of(cls, name: str) -> Ways:
        if name in CAPTIONERS:
            words = load("plain", torch.device("cpu")).tokenizer
            torch.manual_seed(0)
            make = models.build_captioner(name, {}, vocab_size=len(words), feature_sizes={"regions": 1280})
            plain, ours = (
                make.eval(),
                models.build_captioner(name, {}, vocab_size=len(words), feature_sizes={"regions": 1280}),
            )
            ours.load_state_dict(plain.state_dict())
            length = {"min_words": FIXED - 1, "max_words": FIXED}
        else:
            folder = find(name)
            config = read_config(folder, "captioner")
            words, length = models.load_tokenizer(folder, config.settings), {}
            plain, ours = (build(CAPTIONERS, "captioner", config.name, config.settings).eval() for _ in range(2))
            load_weights(folder, plain)
            load_weights(folder, ours)
        return cls(name, words, plain, for_inference(ours), **length)

    def ours(self, captioner: Captioner, grid: Tensor) -> list[list[int]]:
        memory = captioner.encode(region_inputs(grid))
        rules = Rules.of(self.words, min_words=self.min_words, max_words=self.max_words)
        best = beam_search(captioner, memory, rules, beam=BEAM)
        return [caption[mask].tolist() for caption, mask in zip(best.tokens[:, 0], best.mask[:, 0], strict=True)]

    def one_by_one(self, grid: Tensor) -> list[list[int]]:
        return [self.one(photo[None]) for photo in grid]

    def one(self, photo: Tensor) -> list[int]:
        """The plain loop."""
        captioner: Captioner = self.plain  # type: ignore[assignment]
        never = list(self.words.banned_ids)
        memory = captioner.encode(region_inputs(photo))
        logits, state = captioner.step(torch.tensor([self.words.bos]), captioner.start(memory), memory)
        live: list[tuple[float, list[int]]] = [(0.0, [])]
        best: tuple[float, list[int]] = (-torch.inf, [])
        for length in range(1, self.max_words + 1):
            logp = logits.log_softmax(-1)
            logp[:, never] = -torch.inf
            if length <= self.min_words:
                logp[:, self.words.eos] = -torch.inf
            scores = torch.tensor([total for total, _ in live])[:, None] + logp
            found, choice = scores.flatten().topk(2 * BEAM)
            rows, going = [], []
            for rank, (total, at) in enumerate(zip(found.tolist(), choice.tolist(), strict=True)):
                row, word = divmod(at, logp.shape[1])
                hypothesis = (total, [*live[row][1], word])
                if word == self.words.eos or length == self.max_words:
                    best = max(best, hypothesis, key=lambda one: one[0]) if rank < BEAM else best
                elif len(going) < BEAM:
                    going.append(hypothesis)
                    rows.append(row)
            live = going
            if not live or live[0][0] <= best[0]:
                break
            token = torch.tensor([said[-1] for _, said in live])
            logits, state = captioner.step(token, select(state, torch.tensor(rows)), memory)
        return best[1]

    def time(self, grid: Tensor) -> list[dict[str, str]]:
        rows = []
        for size in (1, 16, 64):
            batch = torch.stack([grid[i % len(grid)] for i in range(size)])
            parts = {
                "plain": partial(self.one_by_one, batch),
                "ours": partial(self.ours, self.for_beams, batch),
            }
            assert parts["plain"]() == parts["ours"]()
            took = side_by_side(parts, repeats={1: 25, 16: 5, 64: 3}[size], clock=time.process_time)
            row = {"photos at once": str(size)}
            row |= {f"{name}, ms a caption": f"{1000 * seconds / size:.1f}" for name, seconds in took.items()}
            row["plain / ours"] = f"{took['plain'] / took['ours']:.1f}"
            rows.append(row)
        return rows


def album() -> Tensor:
    """Features (16, R, D) of embedded photos."""
    encoder = encoder_of(load("plain", torch.device("cpu")), torch.device("cpu"))
    files = sorted((HERE / "photos").iterdir())[:16]
    pixels = torch.stack([torch.as_tensor(photos.read(file, encoder.config.image_size).pixels) for file in files])
    return encoder(pixels).grid


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["plain", "up_down"])
    request = parser.parse_args()
    torch.set_num_threads(1)
    grid = album()
    for name in request.models:
        with torch.inference_mode():
            table(f"{name}: beam search, width 3, features given", Ways.of(name).time(grid))
