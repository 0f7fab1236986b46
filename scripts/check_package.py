"""Build wheels and source archives of both packages into dist/, and try them as a stranger would: `make package`

A source archive must make the same wheel, byte for byte.  A new environment gets capscore alone, where its own tests
must pass without torch, another one both packages with their core dependencies; `pip check` must agree, and a photo
gets a caption.
--extras tries each extra by itself, in an environment of its own beside that core (--extras heic,video: these).
--python NAME tries another version of Python.  Times are in seconds, and in seconds of one processor.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCORER = ROOT / "packages" / "capscore"
PHOTO = ROOT / "src" / "tellapart" / "album" / "photos" / "coco_000000191893.webp"
BUILD = "from setuptools.build_meta import *; print('', build_sdist('dist'), build_wheel('dist'), sep='\\n')"
# extra: the command that tries it, from the root of this repository; what ends in .py is a file of tests
TRIED = {
    "encoders": "tellapart features src/tellapart/album/photos --encoder efficientnet_lite1 --image-size 64 --out OUT",
    "heic": "tests/data/media/test_camera_files.py -k heic_is_opened",
    "video": "tests/commands/test_caption_clips.py -k middle_frame",
    "score": "packages/capscore/tests/meteor/test_meteor.py",
    "sentences": "tests/retrievers/test_sentences.py -k second_time",
    "clip": "tests/retrievers/test_clip.py -k similarities",
    "backbones": "tests/encoders/test_backbone.py -k captioner_of_a_backbone_captions_photos",
    "language-models": "tests/models/test_clipcap.py -k says_the_same",
    "vlm": "tests/commands/test_caption_vlm.py -k captioned",
    "hub": "tests/models/test_card.py -k fetched_from",
    "ray": "tests/commands/test_ray.py -k features_are",
    "web": "tests/desk/serve/test_server.py -k the_api",
    "serve": "tests/desk/serve/test_server.py -k the_api",
    "postgresql": "tests/desk/serve/test_database.py -k do_not_mix",
    "study": "tests/study/test_server.py -k by_http",
    "words": "tests/evaluation/test_table.py -k spacy",
    "index": "tests/neighbours/test_search.py -k recall",
    "trl": "tests/trainers/test_trl.py",
    "docs": "tests/test_docs_site.py -m docs",
}
BESIDE = {"postgresql": "serve"}  # it is a driver for what another extra brings


def output(*command: str | Path, **environment: str) -> str:
    """What a command prints; its failure is ours."""
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # of this repository
    done = subprocess.run(command, cwd=ROOT, env=outside | environment, text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout.strip()


class Clock:
    """Seconds since it was started, and those of a processor that commands took."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), self._used()

    def _used(self) -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def __str__(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s ({self._used() - self._before:.0f} s of a processor)"


def built(folder: Path, epoch: str) -> list[Path]:
    """Source archive and wheel."""
    printed = output(sys.executable, "-c", f"import os; os.chdir({str(folder)!r}); {BUILD}", SOURCE_DATE_EPOCH=epoch)
    shutil.rmtree(folder / "build", ignore_errors=True)  # a later build would take what it finds in it
    return [folder / "dist" / name for name in printed.splitlines()[-2:]]


def megabytes(folder: Path) -> float:
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_size for file in files) / 1e6


def scored(python: str, folder: Path, wheel: Path) -> str:
    """capscore alone in a new environment: its size, how quickly it starts and scores, and its own tests."""
    own = folder / "scorer"
    output(python, "-m", "venv", own)
    inside = own / "bin" / "python"
    pip = (inside, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "-c", ROOT / "constraints.txt")
    before = megabytes(own)
    output(*pip, "--no-compile", wheel)
    lines = [f"capscore: {megabytes(own) - before:.0f} MB with its dependencies"]
    captions, references = folder / "captions.json", folder / "references.json"
    words = ["red bus", "small dog", "old man", "green hill"]
    texts = {str(i): f"a {words[i % 4]} and {i} {words[i // 4 % 4]}s near a tree" for i in range(1000)}
    captions.write_text(json.dumps(texts))
    references.write_text(json.dumps({id: [text, f"{text} on a day", "the photo"] for id, text in texts.items()}))
    request = (own / "bin" / "capscore", captions, references, "--metrics", "BLEU,ROUGE-L,CIDEr-D")
    for what, command in (("--help", (*request[:1], "--help")), ("first score", request), ("second score", request)):
        clock = Clock()
        output(*command, HOME=str(folder))
        lines.append(f"{what} of 1,000 captions after {clock}" if what != "--help" else f"--help after {clock}")
    output(*pip, "pytest", "hypothesis", f"capscore[meteor] @ {wheel.as_uri()}")
    counts = output(inside, "-m", "pytest", "-p", "no:cacheprovider", SCORER / "tests", HOME=str(folder)).splitlines()[
        -1
    ]
    return "\n".join([*lines, f"capscore's own tests, without torch: {counts}"])


def tried(python: str, folder: Path, core: Path, wheel: Path, extra: str) -> str:
    """What became of an extra in a new environment that sees the core's packages, as a line of a table."""
    own, tools = folder / extra, folder / "tools"  # tools: pytest, which no extra has
    output(python, "-m", "venv", "--without-pip", own)
    (site,) = own.glob("lib/python*/site-packages")
    (beside,) = core.glob("lib/python*/site-packages")
    (site / "core.pth").write_text(f"{beside}\n")
    inside, wanted = own / "bin" / "python", ",".join(filter(None, (extra, BESIDE.get(extra))))
    pip = (inside, "-m", "pip", "--quiet", "--disable-pip-version-check")
    try:
        output(
            *pip, "install", "--no-compile", "-c", ROOT / "constraints.txt", f"tellapart[{wanted}] @ {wheel.as_uri()}"
        )
        output(*pip, "check")
        size = megabytes(own)
        command = TRIED[extra].replace("OUT", str(own / "out")).split()
        if command[0] == "tellapart":
            output(inside, "-m", *command, HOME=str(own))
        else:
            words = [inside, "-m", "pytest", "-p", "no:cacheprovider", *command]
            counts = output(*words, PYTHONPATH=str(tools), HOME=str(own)).splitlines()[-1]
            if " passed" not in counts or " skipped" in counts:
                return f"| `{extra}` | {size:.0f} | `{TRIED[extra]}` | NOT TRIED: {counts} |"
    except subprocess.CalledProcessError as error:
        reason = f"{' '.join(map(str, error.cmd))[:300]} {error.stdout[-1500:]}"
        return f"| `{extra}` | | `{TRIED[extra]}` | FAILED: {reason} |"
    finally:
        shutil.rmtree(own)
    return f"| `{extra}` | {size:.0f} | `{TRIED[extra]}` | works |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that the wheel is tried with")
    parser.add_argument("--extras", nargs="?", const=",".join(TRIED), default="", help="with commas (default: all)")
    parser.add_argument("--photo", type=Path, default=PHOTO, help="the one that gets a caption")
    request = parser.parse_args()

    epoch = os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct")
    (archive, wheel), (scorer_archive, scorer) = built(ROOT, epoch), built(SCORER, epoch)
    for file in (archive, wheel, scorer_archive, scorer):
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.1f} MB")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for source, made in ((archive, wheel), (scorer_archive, scorer)):
            with tarfile.open(source) as packed:
                packed.extractall(folder, filter="data")
            again = built(folder / source.name.removesuffix(".tar.gz"), epoch)[1]
            if again.read_bytes() != made.read_bytes():
                print(f"{source.name} makes another wheel")
                return 1
        print("the source archives make the same wheels, byte for byte", flush=True)

        print(scored(request.python, folder, scorer), flush=True)
        clock, core = Clock(), folder / "core"
        output(request.python, "-m", "venv", core)
        pip = (core / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        output(*pip, "install", "-c", ROOT / "constraints.txt", scorer, wheel)
        print(f"installed in {clock}; pip check: {output(*pip, 'check') or 'ok'}")
        print(output(core / "bin" / "tellapart", "--version"))
        for which in ("first", "second"):
            clock = Clock()
            caption = output(core / "bin" / "tellapart", "caption", request.photo.resolve(), HOME=str(folder))
            print(f"{which} caption after {clock}: {caption.partition(chr(9))[2]}")
        print(f"{megabytes(core):.0f} MB on disk, with pip and compiled files", flush=True)

        lines = list[str]()
        if request.extras:
            target = ("--target", folder / "tools", "-c", ROOT / "constraints.txt")
            output(*pip, "install", "--no-compile", *target, "pytest", "hypothesis")
            print("\n| extra | MB more | tried by | result |\n|---|---|---|---|", flush=True)
        for extra in filter(None, request.extras.split(",")):
            lines.append(tried(request.python, folder, core, wheel, extra))
            print(lines[-1], flush=True)
    return 0 if all(line.endswith("| works |") for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
