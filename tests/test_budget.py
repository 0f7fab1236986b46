"""Lines and files of each part may only fall: who needs more names, beside the number, the feature that they buy."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ROOT / "src" / "tellapart"
SCORER = ROOT / "packages" / "capscore"
DESK = ("desk", "study")


def files(*folders):
    return [file for folder in folders for file in folder.rglob("*.py")]


def lines(of):
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in of)


PARTS = {
    "capscore": lambda: files(SCORER / "src"),
    "research core": lambda: [file for file in files(OURS) if file.relative_to(OURS).parts[0] not in DESK],
    "desk and study": lambda: files(*(OURS / name for name in DESK)),
    "tests": lambda: files(ROOT / "tests", SCORER / "tests"),
}
MOST_LINES = {
    "capscore": 7200,
    "research core": 34850,
    "desk and study": 8140,
    "tests": 43850,
}
MOST_FILES = 245  # of both packages


@pytest.mark.parametrize("part", PARTS)
def test_a_part_keeps_its_budget(part):
    assert lines(PARTS[part]()) <= MOST_LINES[part]


def test_the_packages_keep_to_so_many_files():
    assert len(files(OURS, SCORER / "src")) <= MOST_FILES
