"""Every hostile photo and clip of tests/attacks, with 2 GB of addresses for all: each is read or refused, in time.

First one by one, then all of them in one folder by `tellapart caption`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from campaigns import forked, fuzz, world
from campaigns.binary import read_clip, read_photo
from campaigns.report import Row

_MEMORY = 2 << 30  # bytes of addresses, with Python and torch in them


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    """count  of the hostile files at most; only  "broken": those that take no time to make"""
    os.environ["TELLAPART_CACHE"] = str(folder / "cache")
    world.preload(["caption"])
    photos, clips = folder / "photos", folder / "clips"
    for place, make in ((photos, _broken if only == "broken" else _photos), (clips, _clips)):
        place.mkdir()
        done = forked.run(lambda place=place, make=make: make(place), folder / "log", seconds=900)
        if done.code:
            raise RuntimeError(done.text)
    row = Row("resources", "removed limits of a photo's size", planted=True)
    _one_by_one(row, read_photo, folder / "planted", [photos / "bomb-endless.png"], _no_limit)
    yield row
    for name, place, read in (("photos", photos, read_photo), ("clips", clips, read_clip)):
        row = Row("resources", f"{name} of tests/attacks, one by one")
        found = sorted(path for path in place.iterdir() if not path.is_dir())[:count]
        _one_by_one(row, read, folder / name, found)
        yield row
    yield _together(folder, photos, clips)


def _broken(folder: Path) -> None:
    from attacks import photos as attacks

    for make in attacks.BROKEN.values():
        make(folder)
    (folder / "bomb-endless.png").write_bytes(attacks.thin_and_whole())


def _photos(folder: Path) -> None:
    from attacks import camera_files
    from attacks import photos as attacks

    _broken(folder)
    for kind, makers in (("odd", attacks.ODD), ("large", attacks.LARGE)):
        for name, make in makers.items():
            own = folder / "".join(letter if letter.isalnum() else "_" for letter in f"made {kind} {name}")
            own.mkdir()
            path = make(own)
            path.rename(folder / f"{own.name}-{path.name}")
    for number, data in enumerate(camera_files.LYING.values()):
        (folder / f"lying-{number}.cr2").write_bytes(data)
    for suffix, raw in camera_files.RAW.items():
        (folder / f"raw.{suffix}").write_bytes(raw(1))
    for name, data in {
        "palette.png": attacks.palette_bomb(),
        "thin.png": attacks.thin(),
    }.items():
        (folder / f"bomb-{name}").write_bytes(data)
    for path in folder.glob("made_*"):
        if path.is_dir():
            shutil.rmtree(path)


def _clips(folder: Path) -> None:
    from attacks import clips

    for make, *_ in (*clips.REFUSED.values(), *clips.TAKEN.values()):
        make(folder)


def _one_by_one(
    row: Row,
    take: Callable[[Path], None],
    folder: Path,
    found: list[Path],
    plant: Callable[[], None] | None = None,
) -> None:
    """In one process after another, each with a file of its own: what one takes does not add to the next."""
    slowest, folder_results = 0.0, folder.with_suffix(".results")
    for path in found:

        def read(path: Path = path) -> None:
            import time

            if plant is not None:
                plant()
            started = time.process_time()
            wrong = fuzz.wrong_with(take, path)
            folder_results.write_text(json.dumps([wrong, time.process_time() - started]))

        folder_results.unlink(missing_ok=True)
        done = forked.run(read, folder.with_suffix(".log"), seconds=600, memory=_MEMORY)
        row.tried += 1
        if done.code or not folder_results.exists():
            row.failed.append(f"{path.name}: {'it hangs' if done.late else fuzz._name(done.code)}")
            continue
        wrong, seconds = json.loads(folder_results.read_text())
        slowest = max(slowest, seconds)
        if wrong or seconds > fuzz._SECONDS:
            row.failed.append(f"{path.name}: {wrong or f'{seconds:.1f} s'}")
    row.note = f"slowest {slowest:.2f} s of computing"


def _together(folder: Path, photos: Path, clips: Path) -> Row:
    row, model, out = Row("resources", "caption, all of them at once in 2 GB"), folder / "captioner", folder / "c.jsonl"

    def make() -> None:
        from support import small_models

        model.mkdir()
        small_models.captioner(model)

    forked.run(make, folder / "log", seconds=600)
    call = world.command("caption", photos, clips, "--model", model, "--out", out)
    done = forked.run(call, folder / "log", seconds=1800, memory=_MEMORY)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    row.tried = len(rows)
    if done.code != 1 or "Traceback" in done.text:
        row.failed.append(f"exit {done.code}: {done.text[-300:]}")
    lines = [one for one in rows if "\n" in one.get("error", "") or ("error" in one) == ("caption" in one)]
    row.failed += [f"{one['file']}: {one}" for one in lines]
    captions = sum("caption" in one for one in rows)
    row.note = f"{captions} captions, {len(rows) - captions} refused; exit {done.code}"
    return row


def _no_limit() -> None:
    """A small file may take whatever it says."""
    from tellapart.data.media import photos

    photos.MAX_PIXELS = 1 << 60
    photos.Image.MAX_IMAGE_PIXELS = None
    photos.MEMORY = 1 << 60
    photos._decoding = photos.Memory(1 << 60)
    photos._refusing = _bare  # or the lack of memory is explained, too


def _bare(_: object) -> object:
    from contextlib import nullcontext

    return nullcontext()
