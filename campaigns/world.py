"""A small world to attack: photos, models with random weights, data, a site, captions, a study; all made by code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

Plant = Callable[[], None]  # changes tellapart, in the process that is attacked


def command(*arguments: object, plant: Plant | None = None) -> Callable[[], int]:
    """`tellapart ARGUMENTS`, to be called in a process of its own."""

    def call() -> int:
        import torch

        from tellapart.__main__ import main

        torch.set_num_threads(1)
        if plant is not None:
            plant()
        return main([str(argument) for argument in arguments])

    return call


def make(folder: Path) -> None:
    """Runs tellapart, so it is called in a process of its own."""
    from capscore import files
    from study import studies
    from support import small_models
    from support.toy import world as toy_world

    for name in ("captioner", "retriever"):
        (folder / name).mkdir()
        getattr(small_models, name)(folder / name)
    small_models.photos(folder / "photos", 12, "{:02}.png")
    small_models.photos(folder / "holiday", 36, "{:02}.png")
    small_models.photos(folder / "jpegs", 8, "{:02}.jpg")
    toy_world.make(folder / "toy", groups=6, group_size=(4, 4), size=64)
    files.replace(folder / "recipe.yaml", yaml.safe_dump(_recipe(folder)).encode())
    names = sorted(path.name for path in (folder / "jpegs").iterdir())
    rows = [{"file": f"jpegs/{name}", "caption": f"a red bus on street {name[:2]}"} for name in names]
    files.replace(folder / "captions.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    (folder / "site").mkdir()
    page = '<title>Trip</title>\n<p><img src="{0}">\n<img src="{1}" alt="">\n<img alt="photo" src="{1}">\n'
    for number in range(4):
        for name in names[2 * number : 2 * number + 2]:
            (folder / "site" / name).write_bytes((folder / "jpegs" / name).read_bytes())
        pair = names[2 * number : 2 * number + 2]
        (folder / "site" / f"{number}.html").write_text(page.format(*pair))
        (folder / "site" / f"{number}.md").write_text(f"# {number}\n\n![]({pair[0]}) and ![x]({pair[1]})\n")
    (folder / "plugin.py").write_text(_PLUGIN)
    (folder / "colours").mkdir()
    studies.study(folder / "colours", "choose", sets=24, per_person=12, catch=1)


_PLUGIN = """
from capscore.measures import MEASURES, Measure, Score
from capscore.statistics import mean_of

MEASURES["Questions"] = Measure(
    (Score("Questions", "Captions that end with a question mark.", higher_is_better=False),),
    lambda inputs: mean_of("Questions", [text.endswith("?") for text in inputs.texts]),
    needs=(),
    signature=(),
)
"""


def _recipe(folder: Path) -> dict[str, Any]:
    return {
        "model": {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feed_forward": 64},
        "encoder": {"image_size": 64, "grid": 2},
        "data": {
            "files": [str(folder / "toy" / "captions.json")],
            "features": str(folder / "features"),
            "min_count": 1,
            "captions_per_photo": 3,
        },
        "optim": {"lr": 0.003, "schedule": "linear", "warmup": 5, "clip_norm": 1.0},
        "validation": {"every": 1.5, "metric": "loss"},
        "batch_size": 8,
        "epochs": 2,
        "save_minutes": 0,
        "log_steps": 1,
        "dtype": "fp32",
        "threads": 1,
    }


def preload(commands: Iterable[str]) -> None:
    """Imports, and nothing else: what is forked after this starts at once."""
    for name in ("torch", "tellapart.captioning.captioner", *(f"tellapart.commands.{command}" for command in commands)):
        import_module(name)
    for command, module in _LATER.items():
        if command in commands:
            import_module(f"tellapart.{module}")


_LATER = {
    "adapt": "adapting.adapt",
    "alt": "desk.alt",
    "train": "training.build",
    "evaluate": "evaluation.evaluate",
    "serve": "desk.serve.api",
    "pool": "trainers.scorer",
}
