"""The documentation as a web site (`make docs`): reference pages hold what the program has, and nothing is fetched."""

import re
import runpy
from html.parser import HTMLParser

import pytest

import tellapart
from capscore.measures import MEASURES
from support.doc_pages import ROOT
from tellapart import recipe_files
from tellapart.__main__ import COMMANDS
from tellapart.recipe import Recipe
from tellapart.rewards.registry import REWARDS


@pytest.fixture(scope="module")
def reference():
    return runpy.run_path(str(ROOT / "scripts" / "build_reference.py"))["pages"]()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("commands", [f"## tellapart {name}" for name in COMMANDS]),
        ("python", [f"## tellapart.{name}" for name in tellapart.__all__]),
        ("recipe_fields", [f"| `{field.name}` |" for field in recipe_files.listed(Recipe())]),
        ("measures", [f"| `{score.name}` |" for name in MEASURES for score in MEASURES[name].scores]),
        ("rewards", [f"| `{name}` | {entry.description}"[:40] for name, entry in REWARDS.items()]),
        ("models", ["distinctive", "up_down", "efficientnet_lite2", "tiny/photos_xe"]),
    ],
)
def test_a_reference_page_has_all_there_is(reference, page, names):
    text = reference[f"reference/{page}.md"]
    assert [name for name in names if name not in text] == []


def test_options_of_a_command_are_in_its_reference(reference):
    text = reference["reference/commands.md"]
    caption = text.partition("## tellapart caption")[2].partition("## tellapart train")[0]
    for option in ("--among", "--n-best", "--segments"):
        assert option in caption
    assert "### tellapart study simulate" in text


def test_the_navigation_has_every_page_of_docs():
    listed = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - listed == set()
    made = {"album.md", "repository/src/tellapart/recipes/README.md"}
    assert {page for page in listed - pages if not page.startswith("reference/")} == made


def test_a_link_to_a_file_of_the_repository_leads_to_a_page_of_the_site():
    site = runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))
    text = "[a](../../LICENSE) [b](../log.md#x) [c](../../src/tellapart/recipes/README.md) [d](https://x.org/LICENSE)"
    found = site["rewritten"](text, "docs/papers/gld.md")
    assert found == (
        "[a](../repository/LICENSE.md) [b](../log.md#x) [c](../repository/src/tellapart/recipes/README.md) "
        "[d](https://x.org/LICENSE)"
    )
    recipes = site["rewritten"]("[a](../../../docs/log.md#x)", "src/tellapart/recipes/README.md")
    assert recipes == "[a](../../../../log.md#x)"


class Fetched(HTMLParser):
    """Addresses that a browser asks for when it opens a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src"))
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href"))


@pytest.mark.docs
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path, monkeypatch):
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build(config)  # a link or an anchor that leads nowhere is an error
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        parser = Fetched()
        parser.feed(text)
        assert [address for address in parser.found if address and re.match(r"(https?:)?//", address)] == []
    assert not any(re.search(r"url\([\"']?(https?:)?//|@import", css.read_text()) for css in tmp_path.rglob("*.css"))
    assert "<math" in (tmp_path / "papers" / "geg.html").read_text()
