"""Links in place of the files that commands name themselves: none may be written through.

Each command is run once to see which files it makes.  Then it is run again with a link in the place of one of them, as
a folder of a stranger may have it, to a file outside that is there or that is not.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from campaigns import forked, network, world
from campaigns.report import Row, is_wanted

_LEFT_OUT = ("serve",)  # ends only when it is stopped; its files are in tests/attacks/test_links.py
_PRECIOUS = b"precious"


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    """count  of the links, over all commands"""
    place, base, outside = folder / "place", folder / "base", folder / "outside"
    out = place / "out"
    wanted = [name for name in network.requests(place, out) if name not in _LEFT_OUT and is_wanted(name, only)]
    world.preload(wanted)
    out.mkdir(parents=True)
    made = forked.run(lambda: world.make(place), folder / "text", seconds=900)
    if made.code:
        raise RuntimeError(made.text)
    shutil.copytree(place, base)
    for plant in (_links_are_followed, None):
        for name in wanted if plant is None else ["write"]:
            row = Row("links", name if plant is None else "write: links are followed", planted=plant is not None)
            arguments = network.requests(place, out)[name]
            for link in _links(folder, name, arguments, seed, -(-count // len(wanted))):
                _tried(folder, row, name, arguments, link, plant)
            if plant is None:  # what it made is there for the next
                _again(place, base)
                forked.run(world.command(name, *arguments), folder / "text", seconds=1800)
                shutil.rmtree(base)
                shutil.copytree(place, base, symlinks=True)
            yield row
    assert not outside.exists() or not any(outside.iterdir())


def _again(place: Path, base: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(base, place, symlinks=True)


def _links(folder: Path, name: str, arguments: list[object], seed: int, most: int) -> list[Path]:
    """Some of the files that a command makes and that it was not told to make."""
    place = folder / "place"
    _again(place, folder / "base")
    before = set(place.rglob("*"))
    forked.run(world.command(name, *arguments), folder / "text", seconds=1800)
    made = {path for path in place.rglob("*") if path.is_file()} - before - {Path(str(one)) for one in arguments}
    return random.Random(f"{seed}/{name}").sample(sorted(made), min(most, len(made)))


def _tried(folder: Path, row: Row, name: str, arguments: list[object], link: Path, plant: world.Plant | None) -> None:
    outside = folder / "outside"
    for contents in (None, b"", _PRECIOUS):
        _again(folder / "place", folder / "base")
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        target = outside / ".bash_login"
        if contents is not None:
            target.write_bytes(contents)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        done = forked.run(world.command(name, *arguments, plant=plant), folder / "text", seconds=1800)
        row.tried += 1
        there = {path.name: path.read_bytes() for path in outside.iterdir()}
        if there != ({} if contents is None else {target.name: contents}):
            row.failed.append(f"{name}: {link.relative_to(folder)} was written through a link")
        if "Traceback" in done.text:
            row.failed.append(f"{name}: {link.relative_to(folder)}: {done.text[-300:]}")
    shutil.rmtree(outside)


def _links_are_followed() -> None:
    from capscore import files
    from tellapart import journals

    files.refuse_link = lambda path: None
    journals._nofollow = lambda by_user: 0
