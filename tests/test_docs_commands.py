"""What the pages of docs/ tell people to type is run, word for word; only training is cut short.

`make test` runs the three starts, `make docs-test` every page.  How a page says what is not run: support/doc_pages.py.
"""

import doctest
import json
import re
import shlex
import shutil
import sys
from importlib import import_module

import pytest

import tellapart as package
from capscore.measures import MEASURES
from support.doc_pages import ELSEWHERE, PAGES, PHOTOS, ROOT, blocks, is_form, typed
from tellapart import plugins
from tellapart.__main__ import COMMANDS
from tellapart.captioners import CAPTIONERS
from tellapart.commands.train import asked
from tellapart.data.readers import READERS
from tellapart.encoders import ENCODERS
from tellapart.rewards.registry import REWARDS

DOCS = ROOT / "docs"
OWN_TESTS = ("README.md", "CONTRIBUTING.md")  # test_readme.py; what a contributor types are targets of make
RUN = [page for page in PAGES if page.is_relative_to(DOCS) and any(not block.not_run for block in blocks(page))]
LANGUAGES = ("", "python", "yaml", "json", "text", "math")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "log.md"], ids=name_of)
def test_the_program_takes_each_command_of_a_page(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for words in typed(page.read_text(encoding="utf-8")):
        command, *arguments = words
        assert command in COMMANDS, words
        if "--plugin" in words and "brief.py" not in words:
            continue  # it may bring options of its own; such commands are run
        if command == "train":
            if not words[1].endswith(".yaml"):
                asked([word for word in arguments if word not in ("--plugin", "brief.py")])
        elif hasattr(module := import_module(f"tellapart.commands.{command}"), "parser"):
            module.parser().parse_args(arguments)
        elif command != "study":  # whose actions have parsers of their own; its page is run
            assert arguments == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OWN_TESTS], ids=name_of)
def test_a_block_is_run_or_its_page_says_why_not(page):
    for block in blocks(page):
        assert block.language in LANGUAGES
        if not block.not_run:
            others = [line for line in block.commands if not line.startswith("tellapart ")]
            others = [line for line in others if not any(mark in line for mark in ELSEWHERE)]
            assert others == [], "only commands of tellapart are run"


def test_what_is_run_elsewhere_is_on_a_page_and_has_its_tests():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for mark, file in ELSEWHERE.items():
        assert mark in text
        assert (ROOT / "tests" / file).exists()
    for file in re.findall(r"<!-- [^\n]*\btests/([\w/]+\.py)", text):  # in reasons
        assert (ROOT / "tests" / file).exists(), file


# --- pages as a reader lives them -------------------------------------------------------------------------------------


@pytest.fixture
def follow(home, tellapart, small_model, monkeypatch):
    """Do what a page says, from its beginning to its end."""
    monkeypatch.setattr(plugins, "loaded", [])
    for table in (CAPTIONERS, ENCODERS, MEASURES, READERS, REWARDS):
        monkeypatch.setattr(table, "_lines", dict(table._lines))
        monkeypatch.setattr(table, "added", dict(table.added))

    def run(line):
        words = shlex.split(line, comments=True)[1:]
        provide(home, words, small_model, tellapart)
        code, out, err = tellapart(*words, *(["--tiny"] if words[0] == "train" else []))
        found_something = words[0] == "lint" and code == 1
        assert code == 0 or found_something, f"{line}: {out}{err}"

    def follow(page):
        captions, references = ({"1": "a dog runs"}, {"1": ["a brown dog", "a dog running"]})
        photos = sorted((home / "holiday").iterdir())
        names = {"captions": captions, "references": references, "photos": photos, "tellapart": package}
        for block in blocks(page):
            if block.not_run:
                continue
            if block.file:
                (home / block.file).write_text(block.code, encoding="utf-8")
            for line in block.commands:
                if not is_form(line) and not any(mark in line for mark in ELSEWHERE):
                    run(line)
            if block.language == "python" and not block.file:
                exec_block(block.code, names, page)
            elif block.language == "yaml":
                recipe = home / (block.file or "mine.yaml")
                recipe.write_text(block.code, encoding="utf-8")
                asked([str(recipe)])
            elif block.language == "json":
                json.loads(block.code)

    yield follow
    MEASURES.__dict__.pop("home", None)
    for module in [name for name in sys.modules if name.startswith("tellapart_plugin_")]:
        del sys.modules[module]


def exec_block(code, names, page):
    if not code.startswith(">>>"):
        exec(compile(code, str(page), "exec"), names)
        return
    example = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(example).failed == 0


def provide(home, words, small_model, tellapart):
    """What earlier steps of somebody else made: models (small ones), captions, clips."""
    text = " ".join(words)
    for run in re.findall(r"runs/\w+", text):
        if not (home / run).exists() and words[words.index(run) - 1 if run in words else 0] != "--out":
            shutil.copytree(small_model, home / run)
    made = words[words.index("--out") + 1] if "--out" in words else ""
    if "captions.jsonl" in words and made != "captions.jsonl" and not (home / "captions.jsonl").exists():
        assert tellapart("caption", "holiday/", "--out", "captions.jsonl")[0] == 0
    if words[0] == "evaluate" and "captions.jsonl" in words:  # of the photos that are evaluated
        test = [row for row in json.loads((home / "flickr8k.json").read_text())["images"] if row["split"] == "test"]
        rows = [{"file": row["file"], "caption": row["captions"][0]} for row in test]
        (home / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if "mine.jsonl" in words:
        rows = [{"file": f"holiday/{name}.jpg", "captions": ["a bus", f"a {name}"]} for name in "abcd"]
        (home / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if "album.json" in words:
        records = [{"id": p.id, "file": str(p.file), "split": "test", "captions": p.captions} for p in PHOTOS]
        (home / "album.json").write_text(json.dumps({"dataset": "album", "images": records}))
        for place, name in enumerate(("plain", "distinctive")):
            rows = [{"file": str(photo.file), "caption": photo.captions[place]} for photo in PHOTOS]
            (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if re.search(r"\.mp4|clips/|msrvtt", text) and not (home / "clips").exists():
        from support.clips import write_clip

        (home / "clips").mkdir()
        for name in ("trip.mp4", "clips/one.mp4", "clips/two.mp4"):
            write_clip(home / name, 60)
        videos = [{"id": 1, "file": "clips/one.mp4", "split": "train", "captions": ["a number"]}]
        (home / "msrvtt.json").write_text(json.dumps({"dataset": "msrvtt", "videos": videos}))


@pytest.mark.slow
def test_the_start_with_photos_makes_a_sheet_and_takes_sidecars_back(follow, home):
    before = sorted((home / "holiday").iterdir())
    follow(DOCS / "start" / "photos.md")
    rows = [json.loads(line) for line in (home / "told_apart.jsonl").read_text().splitlines()]
    assert [row["file"].rpartition("/")[2] for row in rows] == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    assert all(row["caption"] and "look_alikes" in row for row in rows)
    sheet = (home / "sheet.html").read_text()
    assert all(row["caption"] in sheet for row in rows)
    assert sorted((home / "holiday").iterdir()) == before
    page = (DOCS / "start" / "photos.md").read_text()
    assert page.index("tellapart write told_apart.jsonl\n") < page.index("--undo")


@pytest.mark.slow
def test_the_start_with_a_site_fills_its_alt_texts(follow, home, capfd):
    follow(DOCS / "start" / "web.md")
    alts = re.findall(r'<img src="[ab].jpg" alt="([^"]+)">|alt="([^"]+)"', (home / "site" / "index.html").read_text())
    texts = [one or other for one, other in alts]
    assert len(set(texts)) == 2
    assert all(len(text) <= 125 for text in texts)


def test_the_checks_of_alt_texts_are_as_the_page_says(home, tellapart):
    (block,) = [block for block in blocks(DOCS / "start" / "web.md") if block.file]
    (home / block.file).write_text(block.code)
    code, out, _ = tellapart("lint", block.file)
    assert code == 1
    found = {line.split("\t")[0]: line.split("\t")[1] for line in out.splitlines()}
    assert found == {"team.jpg": "opening", "office.jpg": "file-name"}


@pytest.mark.slow
def test_the_start_with_research_makes_tables(follow, home):
    follow(DOCS / "start" / "research.md")
    (figures,) = json.loads((home / "results" / "results.json").read_text()).values()
    assert set(figures) == {"plain", "distinctive", "human"}
    assert {"CIDEr-D", "Prec", "UniCap", "R@1[word]", "R@1[judge]"} <= set(figures["plain"])
    assert (home / "results" / "report.html").stat().st_size > 0


@pytest.mark.docs
@pytest.mark.parametrize("page", [page for page in RUN if page.parent.name != "start"], ids=name_of)
def test_the_blocks_of_a_page_run(page, follow):
    follow(page)


@pytest.mark.slow
def test_the_notebook_runs_from_end_to_end(own_cache, capsys):
    notebook = json.loads((DOCS / "album.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names = {}
    for place, cell in enumerate(notebook["cells"]):
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # they would soon be others
            exec(compile("".join(cell["source"]), f"cell {place}", "exec"), names)
    printed = capsys.readouterr().out
    assert "plain        a train" in printed
    assert len(names["told_apart"]) == len(names["trains"]) > 3
    assert {"CIDEr-D", "UniCap", "Rep"} == set(names["scores"])
