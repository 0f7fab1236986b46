"""Build wheel and source archive into dist/, and try the wheel as a stranger would: `make package`

A new environment gets the wheel with its core dependencies alone; `pip check` must agree, and a photo gets a caption.
--python NAME tries another version of Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHOTO = ROOT / "src" / "tellapart" / "album" / "photos" / "coco_000000191893.webp"
BUILD = "from setuptools.build_meta import *; print('', build_sdist('dist'), build_wheel('dist'), sep='\\n')"


def told(*command: str | Path, **environment: str) -> str:
    """What a command prints; its failure is ours."""
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # of this repository
    done = subprocess.run(command, cwd=ROOT, env=outside | environment, text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the Python that the wheel is tried with")
    python = parser.parse_args().python

    epoch = os.environ.get("SOURCE_DATE_EPOCH") or told("git", "log", "-1", "--format=%ct")
    printed = told(sys.executable, "-c", BUILD, SOURCE_DATE_EPOCH=epoch).splitlines()
    archive, wheel = printed[-2:]
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # a later build would take what it finds in it
    for name in (archive, wheel):
        print(f"dist/{name}  {(ROOT / 'dist' / name).stat().st_size / 1e6:.1f} MB")

    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        told(python, "-m", "venv", folder)
        inside = Path(folder) / "bin"
        pip = (inside / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        told(*pip, "install", "-c", ROOT / "constraints.txt", ROOT / "dist" / wheel)
        print(f"installed in {time.monotonic() - began:.0f} s; pip check: {told(*pip, 'check') or 'ok'}")
        print(told(inside / "tellapart", "--version"))
        began = time.monotonic()
        caption = told(inside / "tellapart", "caption", PHOTO, HOME=folder).partition("\t")[2]
        print(f"first caption after {time.monotonic() - began:.0f} s: {caption}")
        files = [file for file in Path(folder).rglob("*") if file.is_file() and not file.is_symlink()]
        print(f"{sum(file.stat().st_size for file in files) / 1e6:.0f} MB on disk, with pip and compiled files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
