"""What the docs name must exist: files of the package, and what links lead to."""

import fnmatch
import re
import runpy
from importlib import import_module

import pytest

from support.doc_pages import PAGES, RECIPES, ROOT
from tellapart.recipe_files import shipped

PACKAGE = ROOT / "src" / "tellapart"
SCORER = ROOT / "packages" / "capscore" / "src" / "capscore"
DATED = ("log.md",)  # says what was there on its day
OWN = (
    "brief.py",
    "my_captioner.py",
    "my_encoder.py",
    "my_judge.py",
    "my_overlap.py",
    "my_measure.py",
    "my_reader.py",
    "my_reward.py",
    "my_sound.py",
)  # a file that the reader is told to write


def code(text):
    """What stands in backquotes, with blocks of code left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def anchor(heading):
    """A heading's address within its page, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page):
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.M)}


def undated(pages):
    return [page for page in pages if page.name not in DATED]


@pytest.mark.parametrize("page", undated(PAGES), ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page):
    names = [name for name in code(page.read_text()) if re.fullmatch(r"[\w./-]+(\.py|\.svg|/)", name)]
    homes = (PACKAGE, SCORER.parent, SCORER, ROOT, ROOT / "docs")
    missing = [
        name
        for name in names
        if (name.endswith(".py") or (name.endswith("/") and (PACKAGE / name.split("/")[0]).is_dir()))
        and name not in OWN
        and not any((home / name).exists() for home in homes)
    ]
    assert missing == []


def found(name):
    """The module of a dotted name, or what a module defines by it."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        home, _, own = name.rpartition(".")
        return getattr(import_module(home), own)


@pytest.mark.parametrize("page", undated(PAGES), ids=lambda page: page.name)
def test_the_python_names_of_a_page_exist(page):
    text = page.read_text()
    for name in code(text):
        if re.fullmatch(r"tellapart(\.\w+)+", name):
            found(name)
    for module, names in re.findall(r"from (tellapart(?:\.\w+)*) import ([\w, ]+)", text):
        for name in names.split(","):
            found(f"{module}.{name.strip()}")


@pytest.mark.parametrize("page", undated(PAGES), ids=lambda page: page.name)
def test_the_recipes_that_a_page_names_exist(page):
    folders = "|".join(sorted(folder.name for folder in RECIPES.iterdir() if folder.is_dir()))
    recipe = rf"(?<![\w/])((?:{folders})/[\w*]++)(?:\.yaml)?(?![\w/{{]|\.py)"
    named = re.findall(recipe, " ".join(code(page.read_text())))
    missing = [name for name in named if not fnmatch.filter(shipped(), name) and not (PACKAGE / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?:", link):
            continue
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not place or place in anchors(target), link


def test_the_architecture_page_has_the_import_order_and_every_folder():
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("## Import order")[2].partition("## ")[0]
    rows = [re.findall(r"`([^`]+)`", line.split("|")[2]) for line in table.splitlines() if line.startswith("|")]
    shown = [" ".join(name.removesuffix("/").removesuffix(".py") for name in row) for row in rows if row]
    assert shown == list(runpy.run_path(str(ROOT / "tests" / "test_import_order.py"))["ORDER"])
    described = set(re.findall(r"^\| `([^`]+)/` \|", text, re.M))
    assert {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")} <= described


def test_the_tests_that_hold_each_line_of_the_threat_model_exist():
    lines = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 20
    for line in lines:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", line)
        assert named, f"no test holds: {line[:80]}"
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
