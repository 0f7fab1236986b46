"""A large collection through `tellapart caption`: does memory stay flat, is time linear, is every bad file named?

    python benchmarks/collection.py PHOTOS [--count 10000] [--model M] [--work DIR]

The photos of a folder (and of the folders in it) are repeated under new names until there are --count of them, one in
each hundred cut off in the middle.  The command runs as a process of its own, whose memory and output are watched.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import table

from tellapart.data.media.photos import PHOTO_SUFFIXES

EVERY = 1000  # photos between two lines of the table
CORRUPT = 100  # one photo in so many is cut off


def make(source: Path, folder: Path, count: int) -> list[str]:
    """Photos under new names; returns the names of those that are cut off."""
    photos = sorted(file for file in source.rglob("*") if file.suffix.lower() in PHOTO_SUFFIXES)
    if not photos:
        sys.exit(f"{source}: there are no photos in it")
    cut = []
    for number, photo in zip(range(count), itertools.cycle(photos), strict=False):
        new = folder / f"{number:06}{photo.suffix}"
        if number % CORRUPT == CORRUPT // 2:
            new.write_bytes(photo.read_bytes()[: photo.stat().st_size // 3])
            cut.append(new.name)
        else:
            new.write_bytes(photo.read_bytes())
    return cut


def resident(pid: int) -> float:
    """MB that the process and those that it started hold now."""
    total = 0.0
    for process in (pid, *_children(pid)):
        try:
            status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        except OSError:  # it has just ended
            continue
        if found := re.search(r"VmRSS:\s+(\d+) kB", status):
            total += int(found[1]) / 1024
    return total


def _children(pid: int) -> list[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    except OSError:
        return []
    return [int(child) for child in listed.split()]


def watch(command: list[str], out: Path, count: int) -> tuple[list[tuple[int, float, float]], str]:
    """Lines of the table, and what was said on stderr.

    A line has the rows written, seconds since the first of them, and the most memory since the line before.
    """
    seen, highest, began = [], 0.0, None
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stderr=said)
        due, rows, read = EVERY, 0, 0
        while process.poll() is None:
            time.sleep(0.2)
            highest = max(highest, resident(process.pid))
            if out.exists() and out.stat().st_size > read:
                with out.open("rb") as file:
                    file.seek(read)
                    fresh = file.read()
                read += len(fresh)
                rows += fresh.count(b"\n")
                began = began or time.monotonic()
                while rows >= due and due <= count:
                    seen.append((due, time.monotonic() - began, highest))
                    due, highest = due + EVERY, 0.0
        said.seek(0)
        return seen, said.read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--model", default="plain")
    parser.add_argument("--work", type=Path, help="folder for the photos (default: a temporary one)")
    request = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=request.work) as work:
        folder, out = Path(work, "photos"), Path(work, "captions.jsonl")
        folder.mkdir()
        cut = make(request.photos, folder, request.count)
        command = [sys.executable, "-m", "tellapart", "caption", str(folder), "--out", str(out)]
        seen, said = watch([*command, "--model", request.model], out, request.count)
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    lines, before, base = [], 0.0, seen[0][2]
    for count, seconds, memory in seen:
        lines.append(
            {
                "photos": f"{count:,}",
                "seconds": f"{seconds:.0f}",
                "of the last thousand": f"{seconds - before:.1f}",
                "most memory, MB": f"{memory:.0f}",
                "to the first thousand": f"{memory / base:.3f}",
            }
        )
        before = seconds
    table(f"{request.count:,} photos through `tellapart caption`", lines)
    unnamed = [name for name in cut if name not in said]
    wrong = [row["file"] for row in rows if ("error" in row) != (Path(row["file"]).name in cut)]
    print(f"\n{len(rows)} rows; {len(cut)} broken photos, {len(unnamed)} of them not named; {len(wrong)} rows wrong")
    return 1 if unnamed or wrong or len(rows) != request.count else 0


if __name__ == "__main__":
    sys.exit(main())
