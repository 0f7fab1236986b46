"""Table 2 of the GLIED paper for every captioner: weights, training time, speed, work of a word, CIDEr-D.

    python benchmarks/captioners.py                             # sizes of the papers
    python benchmarks/captioners.py --small                     # small/*_xe
    python benchmarks/captioners.py glied/base_xe glied/glied_xe glied/ct_xe
    python benchmarks/captioners.py runs/table_2/up_down_xe runs/table_2/glied_xe --data flickr8k/captions.json

A row is a recipe or a run folder.  Features and weights are random; those of a run folder are its own.

pass       time of a cross-entropy step of 16 photos x 5 captions of 12 words, Adam and all, times the steps of a pass
photos/s   beam search of width 3, batches of 16, features given, captions of 12 words
work       multiply-adds of the seventh word of a caption, and of what is computed once per photo

All on one thread, in CPU time; the rows take turns, and each is built anew in its turn, so that memory stays small.
Below the table: GLIED beside its base model, and beside a Transformer with six decoder blocks of the same width.
With --data, CIDEr-D of the run folders on the test photos, beam 3.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from timing import table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tellapart
from tellapart import models, recipe_files
from tellapart.captioners import CAPTIONERS, select
from tellapart.data.batches import Batch
from tellapart.data.streams import ATTRIBUTES, BOXES, REGIONS, RELATIONS, Inputs, Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.recipe import Recipe

PHOTOS, CAPTIONS, LENGTH, BEAM = 16, 5, 12, 3
WORD = 7  # whose multiply-adds are counted: half of a caption stands before it
BASE, FULL, BLOCKS = "glied/base_xe", "glied/glied_xe", "glied/ct_xe"
PAPER = (
    "glied/lstm_xe", "glied/attention_xe", "glied/up_down_xe", BLOCKS, BASE, FULL,
    "geg/lstm_a3_xe", "geg/attention_xe", "geg/up_down_xe", "geg/gcn_lstm_xe", "geg/transformer_xe",
    "geg/meshed_memory_xe", "geg/x_lan_xe",
)  # fmt: skip
SMALL = tuple(
    f"small/{name}_xe"
    for name in (
        "show_tell", "lstm_a3", "attention", "up_down", "gcn_lstm", "transformer", "meshed_memory", "x_lan", "glied"
    )
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Of what captioners are given."""

    words: int
    regions: int
    features: int
    photos: int  # of a pass


COCO, HERE = Sizes(9487, 36, 2048, 113_287), Sizes(4600, 64, 1408, 12_329)


@dataclass(frozen=True)
class Row:
    """A captioner: how it is made, and what it is given."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Inputs
    words: WordTokenizer

    @classmethod
    def of(cls, name: str, sizes: Sizes) -> Row:
        if Path(name).is_dir():
            config = models.read_config(Path(name), "captioner")
            captioner, settings = config.name, config.settings
        else:
            recipe = recipe_files.filled(Recipe(), recipe_files.read(name).content)
            streams = models.stream_sizes({REGIONS: sizes.features, BOXES: 4, ATTRIBUTES: 2})
            taken = {f"{stream}_size" for stream in recipe.streams} | {"feature_size"}
            captioner = recipe.captioner
            settings = recipe.model | {"vocab_size": sizes.words} | {k: v for k, v in streams.items() if k in taken}

        def make() -> nn.Module:
            torch.manual_seed(0)
            network = models.build(CAPTIONERS, "captioner", captioner, settings)
            if Path(name).is_dir():
                models.load_weights(Path(name), network)
            return network

        words = WordTokenizer([f"word{i}" for i in range(settings["vocab_size"] - len(WordTokenizer([])))])
        inputs = made_up(models.streams_of(captioner), sizes.regions, settings["feature_size"])
        return cls(name, make, inputs, words)

    def learn(self) -> Callable[[], object]:
        """A step of cross-entropy."""
        network = self.make().train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True)
        tokens = torch.randint(len(self.words), (PHOTOS * CAPTIONS, LENGTH))
        batch = Batch(np.arange(PHOTOS), self.inputs, tokens, torch.ones_like(tokens, dtype=torch.bool))

        def step() -> None:
            cross_entropy_step(network, batch, bos=self.words.bos).loss.backward()  # type: ignore[arg-type]
            optimizer.step()
            optimizer.zero_grad()

        return step

    def caption(self) -> Callable[[], object]:
        """Beam search of a batch; captions are as long as each other, whatever the weights are."""
        network = models.for_inference(self.make())
        rules = Rules.of(self.words, min_words=LENGTH - 1, max_words=LENGTH)

        @torch.inference_mode()
        def search() -> object:
            return beam_search(network, network.encode(self.inputs), rules, beam=BEAM)  # type: ignore[arg-type, operator]

        return search

    @torch.no_grad()
    def work(self) -> tuple[int, int, int]:
        """Weights; multiply-adds of a word of one caption; and of encoding one photo."""
        network: nn.Module = self.make().eval()
        one = select_photo(self.inputs)
        with FlopCounterMode(display=False) as encoding:
            memory = network.encode(one)  # type: ignore[operator]
        state = network.start(memory)  # type: ignore[operator]
        for _ in range(WORD):
            with FlopCounterMode(display=False) as step:
                _, state = network.step(torch.tensor([self.words.bos]), state, memory)  # type: ignore[operator]
        weights = sum(weight.numel() for weight in network.parameters())
        return weights, step.get_total_flops() // 2, encoding.get_total_flops() // 2


def made_up(streams: Iterable[str], regions: int, features: int) -> Inputs:
    draw = torch.Generator().manual_seed(0)
    mask = torch.ones(PHOTOS, regions, dtype=torch.bool)
    corner = torch.rand(PHOTOS, regions, 2, generator=draw) * 0.5
    attributes = torch.stack([torch.arange(4.0, 4 + regions), torch.linspace(0.9, 0.1, regions)], 1)
    values = {
        REGIONS: torch.randn(PHOTOS, regions, features, generator=draw).relu(),
        BOXES: torch.cat([corner, corner + 0.4], 2),
        RELATIONS: torch.tensor([[n, n + 1.0, 0] for n in range(regions)]).repeat(PHOTOS, 1, 1),
        ATTRIBUTES: attributes.repeat(PHOTOS, 1, 1),
    }
    return Inputs({stream: Stream(values[stream], mask) for stream in streams})


def select_photo(inputs: Inputs) -> Inputs:
    return Inputs({name: Stream(*select((values, mask), torch.tensor([0]))) for name, (values, mask) in inputs.items()})


def seconds(rows: list[Row], repeats: int, doing: Callable[[Row], Callable[[], object]]) -> dict[str, float]:
    """The median CPU seconds of each row; they take turns."""
    took: dict[str, list[float]] = {row.name: [] for row in rows}
    for _ in range(repeats):
        for row in rows:
            part = doing(row)
            part()  # pays for setting up
            began = time.process_time()
            part()
            took[row.name].append(time.process_time() - began)
            del part
            gc.collect()
    return {name: statistics.median(each) for name, each in took.items()}


def cider_d(names: list[str], data: list[Path], features: Path) -> dict[str, str]:
    """Of run folders, x100, one figure for each data file."""
    runs = [name for name in names if Path(name).is_dir()]
    if not runs or not data:
        return {}
    scores = tellapart.evaluate(runs, data, metrics="CIDEr-D", retrievers="word", features=features).scores
    found = [list(on.values()) for on in scores.values()]
    return {run: ", ".join(f"{100 * on[i]['CIDEr-D']:.1f}" for on in found) for i, run in enumerate(runs)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="recipes, run folders")
    parser.add_argument("--small", action="store_true", help="sizes of the photos and recipes of small/")
    parser.add_argument("--data", nargs="*", type=Path, default=[])
    parser.add_argument("--features", type=Path, default=Path("features"))
    parser.add_argument("--repeats", type=int, default=3)
    request = parser.parse_args()
    torch.set_num_threads(1)
    sizes = HERE if request.small else COCO
    names = request.rows or (SMALL if request.small else PAPER)
    rows = [Row.of(name, sizes) for name in names]
    quality = cider_d(list(names), request.data, request.features)
    learning, captioning = (seconds(rows, request.repeats, doing) for doing in (Row.learn, Row.caption))
    shown = []
    for row in rows:
        weights, word, encoding = row.work()
        speed = PHOTOS / captioning[row.name]
        hours = learning[row.name] * sizes.photos / PHOTOS / 3600
        shown.append(
            {
                "captioner": row.name,
                "weights, M": f"{weights / 1e6:.1f}",
                f"hours a pass, {sizes.photos:,} photos": f"{hours:.2f}",
                "photos/s": f"{speed:.1f}",
                "a word, M multiply-adds": f"{word / 1e6:.1f}",
                "a photo, M multiply-adds": f"{encoding / 1e6:.1f}",
                "CIDEr-D": quality.get(row.name, ""),
            }
        )
    table(f"Captioners, {sizes.regions} regions of {sizes.features}, {sizes.words:,} words, beam {BEAM}", shown)
    for other, bar in ((BASE, 0.55), (BLOCKS, 1.5)):
        if {FULL, other} <= captioning.keys():
            print(f"\nphotos/s of {FULL} / {other}: {captioning[other] / captioning[FULL]:.2f} (at least {bar} wanted)")
