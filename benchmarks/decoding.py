"""Beam search (width 3), features given: a plain loop in torch against ours in torch and on onnxruntime.

    python benchmarks/decoding.py
    python benchmarks/decoding.py plain runs/up_down_xe
    python benchmarks/decoding.py plain runs/up_down_xe --data flickr8k/captions.json coco/captions.json

plain       what one writes first with the captioner protocol: photo by photo, the hypotheses of a photo in one batch,
            with the captioner's state kept from word to word; weights as they are loaded
torch       `beam_search`: all photos in one batch, weights laid out for few rows
ort fp32    the same search with the captioner exported to onnxruntime
ort int8    the same with its matrices in 8 bits

All in single precision but the last, and all on one thread, in CPU time.  The first three must find the same captions,
or the timing means nothing.  Models are folders or names; the name of a captioner, such as up_down, is one with random
weights and its own default sizes, whose captions are all made 12 words long.

With --data, the CIDEr-D of the captions in single precision and in 8 bits, of photos that no captioner learned from.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from timing import side_by_side, table
from torch import Tensor, nn

from tellapart import models
from tellapart.album import HERE
from tellapart.captioners import CAPTIONERS, Captioner, select
from tellapart.captioning.captioner import MAX_WORDS
from tellapart.data import examples
from tellapart.data.media import photos
from tellapart.data.streams import region_inputs
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules
from tellapart.features.extracted import FeatureStore, store_folder
from tellapart.metrics.scoring import score
from tellapart.models import build, encoder_of, find, for_inference, load, load_weights, read_config
from tellapart.models.onnx.captioner import ExportedCaptioner
from tellapart.models.onnx.export import Graphs, graphs
from tellapart.models.onnx.int8 import quantised

BEAM = 3
FIXED = 12  # words of a captioner that knows no end


@dataclass
class Ways:
    """A captioner in four forms."""

    name: str
    words: Tokenizer
    plain: nn.Module
    torch: nn.Module
    fp32: ExportedCaptioner
    int8: ExportedCaptioner
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
        exact = graphs(plain, {"regions": 1280})
        fp32, int8 = exact, Graphs(quantised(exact.encode, but_rows=(1280,)), quantised(exact.step))
        exported = [
            ExportedCaptioner(one.encode.SerializeToString(), one.step.SerializeToString()) for one in (fp32, int8)
        ]
        return cls(name, words, plain, for_inference(ours), *exported, **length)

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
                "torch": partial(self.ours, self.torch, batch),
                "ort fp32": partial(self.ours, self.fp32, batch),
                "ort int8": partial(self.ours, self.int8, batch),
            }
            assert parts["plain"]() == parts["torch"]() == parts["ort fp32"]()
            took = side_by_side(parts, repeats={1: 25, 16: 5, 64: 3}[size], clock=time.process_time)
            row = {"photos at once": str(size)}
            row |= {f"{name}, ms a caption": f"{1000 * seconds / size:.1f}" for name, seconds in took.items()}
            row |= {f"plain / {name}": f"{took['plain'] / took[name]:.1f}" for name in parts if name != "plain"}
            rows.append(row)
        return rows

    def quality(self, files: list[Path], split: str, features: Path, most: int) -> list[dict[str, str]]:
        rows = []
        encoder = encoder_of(load(self.name, torch.device("cpu")), torch.device("cpu"))
        for file in files:
            dataset = examples.read(file)
            chosen = [example for example in dataset.split(split) if example.captions][:most]
            store = FeatureStore(store_folder(features, dataset.name, encoder), encoder)
            row = {"photos": f"{dataset.name} {split}, {len(chosen)}"}
            said, figures = {}, {}
            for name, captioner in {"fp32": self.torch, "int8": self.int8}.items():
                captions = []
                for start in range(0, len(chosen), 16):
                    grid = store.grid([store.row(example) for example in chosen[start : start + 16]])
                    captions += [self.words.decode(caption) for caption in self.ours(captioner, grid)]
                said[name] = captions
                references = {example.id: list(example.captions) for example in chosen}
                hypotheses = {example.id: caption for example, caption in zip(chosen, captions, strict=True)}
                figures[name] = score(hypotheses, references, metrics=["CIDEr-D"])["CIDEr-D"]
                row[f"CIDEr-D {name}, x100"] = f"{100 * figures[name]:.2f}"
            row["int8 / fp32"] = f"{100 * figures['int8'] / figures['fp32']:.2f} %"
            same = sum(one == other for one, other in zip(*said.values(), strict=True))
            row["same captions"] = f"{100 * same / len(chosen):.0f} %"
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
    parser.add_argument("--data", nargs="*", type=Path, default=[])
    parser.add_argument("--split", default="val")
    parser.add_argument("--features", type=Path, default=Path("features"))
    parser.add_argument("--photos", type=int, default=300, help="of each data file")
    request = parser.parse_args()
    torch.set_num_threads(1)
    grid = album()
    for name in request.models:
        ways = Ways.of(name)
        with torch.inference_mode():
            table(f"{name}: beam search, width 3, features given", ways.time(grid))
            if request.data and name not in CAPTIONERS:
                scored = ways.quality(request.data, request.split, request.features, request.photos)
                table(f"{name}: captions in single precision and in 8 bits, beam 3", scored)
