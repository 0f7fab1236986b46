"""How much captioners know their training photos by heart: CIDEr-D of their captions of those photos, of views of them
(`data.views`), and of validation photos.

    python scripts/by_heart.py plain distinctive --data flickr8k/captions.json coco/captions.json

Greedy captions of some photos of each split of each data set, drawn by a seed; references are the photos' own.
"""

import argparse
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capscore.overlap import cider_d
from capscore.scoring import ScoringInputs
from tellapart import models
from tellapart.data import examples as data_files
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.data.streams import region_inputs
from tellapart.decoding.candidates import candidates
from tellapart.decoding.rules import Rules
from tellapart.encoders import PhotoEncoder

CPU = torch.device("cpu")
SHOWN = {"training photos": ("train", 0), "views of them": ("train", 1), "validation photos": ("val", 0)}


def draw(files: list[Path], split: str, count: int, seed: int) -> list[Example]:
    chosen = []
    for file in files:
        found = [example for example in data_files.read(file).examples if example.split == split]
        chosen += random.Random(seed).sample(found, min(count, len(found)))
    return chosen


def features(encoder: PhotoEncoder, shown: list[Example], view: int) -> Tensor:
    fit = replace(encoder.fit, view=view)
    pixels = [photos.read(example.file, encoder.config.image_size, fit).pixels for example in shown]
    return torch.cat([encoder(np.stack(pixels[i : i + 16])).grid for i in range(0, len(pixels), 16)])


@torch.inference_mode()
def score_baseline(model: models.Model, grid: Tensor, shown: list[Example]) -> float:
    said, rules = [], Rules.of(model.tokenizer)
    for part in grid.split(32):
        memory = model.captioner.encode(region_inputs(part, torch.ones(part.shape[:2], dtype=torch.bool)))
        said += [best.text for best, *_ in candidates(model.captioner, memory, model.tokenizer, rules, beam=1)]
    scored = ScoringInputs([[caption] for caption in said], [example.captions for example in shown])
    return float(cider_d(scored.captions_split, scored.photos, scored.references).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names, model or run folders")
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="data files")
    parser.add_argument("--photos", type=int, default=200, help="of each split of each data file (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    request = parser.parse_args()
    loaded = {name: models.load(name, CPU) for name in request.models}
    encoder = models.encoder_of(next(iter(loaded.values())), CPU)
    print("| captioner | " + " | ".join(SHOWN) + " |\n|" + "---|" * (len(SHOWN) + 1))
    drawn = {split: draw(request.data, split, request.photos, request.seed) for split in ("train", "val")}
    seen = {name: features(encoder, drawn[split], view) for name, (split, view) in SHOWN.items()}
    for name, model in loaded.items():
        values = [score_baseline(model, seen[shown], drawn[split]) for shown, (split, _) in SHOWN.items()]
        print(f"| {name} | " + " | ".join(f"{100 * value:.1f}" for value in values) + " |", flush=True)


if __name__ == "__main__":
    main()
