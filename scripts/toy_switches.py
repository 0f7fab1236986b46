"""What the switches of distinctive training do, in the toy world, where it is known which details are right.

    PYTHONPATH=tests python scripts/toy_switches.py --out runs/toy [--seeds 3]

Draws the world, trains the captioner and the listener that all runs share, then every row with every seed, and prints
the table of the recipes' README: means over seeds, with the least and the most.  About half a minute a run on one core;
started again, it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from support.toy import world
from tellapart.captioning import captioner
from tellapart.commands.train import parse
from tellapart.data import examples
from tellapart.evaluation.trec import file_name
from tellapart.training.build import run

# What is said of a row: its recipe, and what differs from it.  "SCST" is the run of that row with the same seed.
ROWS: dict[str, tuple[str, list[str]]] = {
    "SCST": ("scst", []),
    "SCST, baseline: greedy": ("scst", ["--objective.policy.baseline=greedy"]),
    "GLD": ("gld", []),
    "GLD, baseline: greedy (self-critical)": ("gld", ["--objective.policy.baseline=greedy"]),
    "GLD, baseline: a second sample": ("gld", ["--objective.policy.baseline=second_sample"]),
    "GLD, relative to the group (mean, whitened)": (
        "gld",
        ["--objective.policy.baseline=mean", "--objective.policy.whiten=photo"],
    ),
    "GLD, thresholds from the data": (
        "gld",
        ["--objective.rewards.ld.ngram_quantile=0.5", "--objective.rewards.ld.word_quantile=0.5"],
    ),
    "GLD, words that contrast": ("gld", ["--objective.rewards.ld.qualify=contrast"]),
    "GLD, weight per photo": ("gld", ["--objective.rewards.weight_by_closeness=true"]),
    "GLD, two references among the samples": ("gld", ["--objective.policy.references=2"]),
    "GLD, from SCST": ("gld", ["--init_from=SCST"]),
    "GLD, running mean of weights": ("gld", ["--optim.ema_decay=0.99"]),
    "GEG": ("geg", []),
    "GEG, curriculum": ("geg", ["--objective.rewards.curriculum=true"]),
    "GEG, from SCST": ("geg", ["--init_from=SCST"]),
}
COLUMNS = ("found", "tells_apart", "object", "details", "details_true")


def main(out: Path, seeds: int) -> None:
    toy = out / "world" / "captions.json"
    if not toy.exists():
        world.make(toy.parent)
    scenes = examples.read(toy).split("test")
    start = train("xe", toy, out / "xe", [])
    listener = train("word", toy, out / "listener", ["--epochs=24"])
    print("| | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|", flush=True)
    for name, (recipe, changes) in ROWS.items():
        found = []
        for seed in range(seeds):
            begun = [change.replace("=SCST", f"={out / f'SCST.{seed}'}") for change in changes]
            if not any(change.startswith("--init_from") for change in begun):
                begun.append(f"--init_from={start}")
            arguments = [*begun, f"--seed={seed}", f"--objective.rewards.image_retriever={listener}"]
            folder = out / file_name(f"{name}.{seed}")
            said = captioner.load(train(recipe, toy, folder, arguments)).caption([scene.file for scene in scenes])
            found.append(world.measure([caption.text for caption in said], scenes))
        cells = (spread([one[column] * (1 if column == "details" else 100) for one in found]) for column in COLUMNS)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def train(recipe: str, toy: Path, out: Path, changes: list[str]) -> Path:
    data = [f"--data={toy}", f"--data.features={toy.parent.parent / 'features'}"]
    parsed, folder, _ = parse([f"tiny/toy_{recipe}", *data, f"--out={out}", *changes])
    run(parsed, folder, resume=(folder / "last.safetensors").exists())
    return folder


def spread(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the world and all runs")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row (default: 3)")
    request = parser.parse_args()
    main(request.out, request.seeds)
