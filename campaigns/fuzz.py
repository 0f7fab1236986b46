"""Files made wrong at random: each is taken, or refused in one sentence, soon and within bounds of memory.

An input is named by seed, kind and number, and can be made again.  One that fails is kept in campaigns/seeds/KIND/, and
tests/test_campaigns.py reads all that are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from campaigns import forked
from campaigns.kinds import KINDS, Kind
from campaigns.report import Row, is_wanted

SEEDS = Path(__file__).parent / "seeds"
_SECONDS = 10.0  # of computing, for an input
_MEMORY = 2 << 30  # bytes beside what the process has when it begins
_UNTIL_FOUND = 400  # inputs in which a planted fault has to show


class _TooLong(BaseException):
    """Not an Exception: whoever catches those must not catch this."""


def wrong_with(read: Callable[[Path], object], path: Path) -> str:
    """Why a file that was read fails; nothing if it was taken or refused as it should be."""
    from capscore.errors import UserError

    try:
        read(path)
    except UserError as error:
        sentence = str(error)
        if "\n" in sentence or not sentence.strip() or len(sentence) > 8000:
            return (
                f"a refusal of {sentence.count(chr(10)) + 1} lines and {len(sentence)} characters: {sentence[:200]!r}"
            )
    except _TooLong:
        return f"more than {_SECONDS:g} s"
    except MemoryError:
        return "out of memory"
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        line = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where else ""
        return f"{type(error).__name__} at {line}: {str(error)[:150]}"
    return ""


def made(kind: Kind, whole: Path, seed: int, number: int) -> tuple[str, bytes]:
    """The input of this number: the name of the file that it was made of, and what became of it."""
    draw = random.Random(f"{seed}/{kind.name}/{number}")
    names = sorted(path.name for path in whole.iterdir() if path.is_file())
    name = draw.choice(names)
    others = [(whole / other).read_bytes() for other in draw.sample(names, min(2, len(names)))]
    return name, kind.mutate(draw, (whole / name).read_bytes(), others)


def place(kind: Kind, whole: Path, work: Path, name: str, data: bytes) -> Path:
    """An input in a folder of its own, or among the other files, which are whole."""
    shutil.rmtree(work, ignore_errors=True)
    if kind.folder:
        shutil.copytree(whole, work)
    else:
        work.mkdir()
    (work / name).write_bytes(data)
    return work / name


def _attack(kind: Kind, whole: Path, work: Path, seed: int, numbers: range, results: Path) -> None:
    """In a process of its own: a line for each input that begins, ends, or fails."""

    def too_long(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGPROF, too_long)
    warnings.simplefilter("ignore")
    with results.open("a", buffering=1) as file:
        for number in numbers:
            path = place(kind, whole, work, *made(kind, whole, seed, number))
            file.write(json.dumps(["begins", number]) + "\n")
            started = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)
            wrong = wrong_with(kind.read, path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            file.write(json.dumps(["ends", number, wrong, time.process_time() - started]) + "\n")


def tried(
    kind: Kind, folder: Path, seed: int, count: int, plant: Callable[[], None] | None = None
) -> Iterator[tuple[int, str, float]]:
    """Number, what is wrong with it, seconds.  A process that an input ends is followed by another."""
    whole, work, results = folder / "whole", folder / "work", folder / "results"
    start = 0
    while start < count:
        results.write_text("")
        numbers = range(start, min(count, start + (500 if plant is None else 40)))

        def attack(numbers: range = numbers) -> None:
            if plant is not None:
                plant()
            _attack(kind, whole, work, seed, numbers, results)

        done = forked.run(attack, folder / "log", seconds=1800, memory=_addresses() + _MEMORY)
        last = None
        for line in map(json.loads, results.read_text().splitlines()):
            if line[0] == "ends":
                yield line[1], line[2], line[3]
                last = None
            else:
                last = line[1]
        if last is not None:
            yield last, "it hangs" if done.late else f"the process ends with {_name(done.code)}", 0.0
            start = last + 1
        elif done.code:
            raise RuntimeError(f"{kind.name}: {done.text[-2000:]}")
        else:
            start = numbers.stop


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _addresses() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def keep(kind: Kind, name: str, data: bytes, seeds: Path = SEEDS) -> str:
    folder = seeds / kind.name.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{hashlib.sha256(data).hexdigest()[:8]}-{name}"
    kept.write_bytes(data)
    return str(kept.relative_to(seeds))


def seeds_of(kind: Kind, folder: Path) -> Path:
    """The valid files, in a folder of their own; they are made in a process of their own."""
    whole = folder / "whole"
    whole.mkdir(parents=True)
    done = forked.run(lambda: kind.seeds(whole), folder / "log", seconds=900)
    if done.code:
        raise RuntimeError(f"{kind.name}: {done.text[-2000:]}")
    return whole


def shared(kinds: Sequence[Kind], count: int) -> list[int]:
    """How many of the inputs each kind gets; together at least as many as asked for."""
    whole = sum(kind.share for kind in kinds)
    return [-(-count * kind.share // whole) for kind in kinds]


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    os.environ["TELLAPART_CACHE"] = str(folder / "cache")
    import torch  # noqa: F401 - once, and not in each process
    from PIL import Image

    Image.init()
    kinds = [kind for kind in KINDS if is_wanted(kind.name, only)]
    for number, (kind, inputs) in enumerate(zip(kinds, shared(kinds, count), strict=True)):
        import_module(kind.needs)
        whole = seeds_of(kind, folder / str(number))
        if kind.plant is not None:
            row = Row("fuzz", f"{kind.name}: {kind.plant[0]}", planted=True)
            for _, wrong, _ in tried(kind, folder / str(number), seed, _UNTIL_FOUND, kind.plant[1]):
                row.tried += 1
                if wrong:
                    row.failed.append(wrong)
                    break
            yield row
        row, slowest, known = Row("fuzz", kind.name), 0.0, set[str]()
        for index, wrong, seconds in tried(kind, folder / str(number), seed, inputs):
            row.tried += 1
            slowest = max(slowest, seconds)
            if wrong:
                row.failed.append(f"{kind.name} {seed}/{index}: {wrong}")
                fault = wrong.partition(":")[0] + wrong.partition(":")[2][:12]  # one seed of each fault
                if fault not in known:
                    known.add(fault)
                    row.kept.append(keep(kind, *made(kind, whole, seed, index)))
        row.note = f"slowest {slowest:.2f} s"
        yield row
