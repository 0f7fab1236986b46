"""log p(caption | photo) of all pairs, by which self-retrieval ranks: the embedded captioner, against a plain loop.

    python benchmarks/self_retrieval.py [folder of photos]

plain     one call of the captioner for every caption and photo, encoding and all
encoded   the same, but a photo is encoded once for all captions

The captions are drawn from the captioner at a temperature at which 1,000 of them share about as many beginnings as the
greedy captions of 1,000 COCO photos.  The loops are timed on a part of the pairs, on which both must agree.  Time
grows with the number of photos in proportion, so a few stand for the 1,000.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from timing import side_by_side, table
from torch import Tensor

from tellapart.album import DEFAULT, HERE
from tellapart.captioners import select
from tellapart.captioning.captioner import MAX_WORDS
from tellapart.data.media import photos
from tellapart.data.streams import region_inputs
from tellapart.decoding import Rules, sample, score
from tellapart.decoding.score import log_probabilities_of_pairs
from tellapart.models import Model, encoder_of, load

PHOTOS = 6  # that stand for 1,000
PART = 20  # captions of the plain loop
TEMPERATURE = 0.55


def ours(model: Model, grid: Tensor, captions: list[list[int]]) -> Tensor:
    words = model.tokenizer
    return log_probabilities_of_pairs(model.captioner, [region_inputs(grid)], captions, bos=words.bos, eos=words.eos)


def plain(model: Model, grid: Tensor, captions: list[list[int]]) -> Tensor:
    encode = model.captioner.encode
    return torch.tensor([[one(model, encode(region_inputs(g[None])), c) for g in grid] for c in captions])


def encoded(model: Model, grid: Tensor, captions: list[list[int]]) -> Tensor:
    memory = model.captioner.encode(region_inputs(grid))
    alone = [select(memory, torch.tensor([i])) for i in range(len(grid))]
    return torch.tensor([[one(model, photo, caption) for photo in alone] for caption in captions])


def one(model: Model, photo: object, caption: list[int]) -> float:
    tokens = torch.tensor([caption])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    return score(model.captioner, photo, tokens, mask, bos=model.tokenizer.bos).sum().item()


def draw_captions(model: Model, grid: Tensor, count: int) -> list[list[int]]:
    """`count` captions, about equally many of each photo, without EOS."""
    words = model.tokenizer
    drawn = sample(
        model.captioner,
        model.captioner.encode(region_inputs(grid)),
        Rules.of(words, max_words=MAX_WORDS),
        samples=-(-count // len(grid)),
        temperature=TEMPERATURE,
        generator=torch.Generator().manual_seed(0),
    )
    said = [
        tokens[kept & (tokens != words.eos)].tolist() for tokens, kept in zip(drawn.tokens, drawn.mask, strict=True)
    ]
    return [caption for caption in said if caption][:count]


def read_grid(model: Model, files: list[Path]) -> Tensor:
    encoder = encoder_of(model, torch.device("cpu"))
    pixels = torch.stack([torch.as_tensor(photos.read(file, encoder.config.image_size).pixels) for file in files])
    return encoder(pixels).grid


def compare(model: Model, grid: Tensor, captions: list[list[int]]) -> dict[str, str]:
    """A row of the table."""
    part = captions[:: max(len(captions) // PART, 1)]
    torch.testing.assert_close(ours(model, grid, part), plain(model, grid, part), rtol=0, atol=1e-4)
    loops = {"plain": partial(plain, model, grid, part), "encoded": partial(encoded, model, grid, part)}
    took = side_by_side({"ours": partial(ours, model, grid, captions), **loops}, repeats=3)
    asked = {"ours": len(captions), "plain": len(part), "encoded": len(part)}
    pair = {name: seconds / asked[name] / len(grid) for name, seconds in took.items()}
    shared_prefixes = {tuple(caption[:length]) for caption in captions for length in range(len(caption))}
    row = {
        "captions": str(len(captions)),
        "words": str(sum(map(len, captions))),
        "to compute": str(len(shared_prefixes)),
    }
    row |= {f"{name}, ms a pair": f"{1000 * seconds:.2f}" for name, seconds in pair.items()}
    row["ours, minutes"] = f"{pair['ours'] * len(captions) * 1000 / 60:.1f}"
    return row | {f"{name} / ours": f"{pair[name] / pair['ours']:.1f}" for name in loops}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="All pairs of captions and photos, against a plain loop.")
    parser.add_argument("photos", nargs="?", type=Path, default=HERE / "photos", help="a folder; default: the album")
    files = sorted(parser.parse_args().photos.iterdir())[:100]
    model = load(DEFAULT, torch.device("cpu"))
    grid = read_grid(model, files)
    with torch.inference_mode():
        rows = [compare(model, grid[:PHOTOS], draw_captions(model, grid, count)) for count in (100, 1000)]
    table("log p of all pairs of captions and 1,000 photos", rows)
