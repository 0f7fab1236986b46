"""One run after the other in the same processes, because starting processes is what takes long.

Argument: a folder with runs.json, a list of [name, arguments, fault].  Each process writes NAME.RANK.json there:
how the run ended for it.
"""

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from capscore.errors import UserError
from tellapart.commands.train import parse
from tellapart.distributed import ProcessGroup
from tellapart.training import build


def faulty(kind, step, calls):
    """A step of which the second process's fifth goes wrong."""

    def call(*arguments, **options):
        result = step(*arguments, **options)
        calls.append(None)
        if len(calls) == 5 and kind == "interrupted":
            signal.raise_signal(signal.SIGINT)
        if len(calls) == 5 and kind == "nan":
            result.log["loss"] = float("nan")
        return result

    return call


def run(arguments, fault, world):
    step = build.cross_entropy_step
    try:
        recipe, out, resume = parse(arguments)
        if fault and world.rank == 1:
            build.cross_entropy_step = faulty(fault, step, [])
            recipe.data.limit -= fault == "fewer photos"
        position = build.run(recipe, out, resume=resume, world=world).position
        return asdict(position) | {"drawn": torch.rand(3).tolist()}
    except UserError as error:
        return {"error": str(error)}
    except KeyboardInterrupt:
        return {"error": "interrupted"}
    finally:
        build.cross_entropy_step = step


def main(folder):
    torch.set_num_threads(1)
    with ProcessGroup.from_environment() as world:
        for name, arguments, fault in json.loads((folder / "runs.json").read_text()):
            result = run(arguments, fault, world)
            (folder / f"{name}.{world.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
