"""What the README tells people to type must be what the program takes, and what it does."""

import json
import re
import shlex
from pathlib import Path

import pytest

from support.doc_pages import ELSEWHERE, ROOT, typed
from tellapart import album
from tellapart.captioning import captioner as captioning
from tellapart.commands.train import parse
from tellapart.rewards import registry

README = (ROOT / "README.md").read_text()
PICTURE = README[README.index("| | ![") :].partition("\n\n")[0]


TYPED = typed(README)


PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_readme_shows_commands():
    shown = {words[0] for words in TYPED}
    assert shown >= {"caption", "train", "prepare", "models", "doctor", "evaluate", "lookalikes", "lint"}


@pytest.mark.parametrize("words", [words for words in TYPED if words[0] == "train"], ids=" ".join)
def test_each_training_of_the_readme_is_of_the_data_and_the_folder_that_it_names(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe, out, _ = parse([word for word in words[1:] if word not in ("--plugin", "brief.py")])
    assert recipe.data.files == ["flickr8k.json"]
    assert out in (Path("runs/mine"), Path("runs/told_apart"), Path("runs/brief"))


def test_the_python_of_the_readme_runs(small_model, photo_folder, own_cache, monkeypatch, capsys):
    (code,) = [block for block in PYTHON if "import tellapart" in block]
    for name, photo in (("photo.jpg", "0.png"), ("one.jpg", "1.png"), ("two.jpg", "2.png")):
        (photo_folder / photo).rename(photo_folder / name)
    monkeypatch.chdir(photo_folder)
    exec(compile(code.replace("load()", f"load({str(small_model)!r})"), "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


# --- the README as a new user lives it --------------------------------------------------------------------------------

MAKERS = ["prepare", "train", "caption"]  # of what others read


@pytest.mark.parametrize("name", ["plain", "distinctive"])
def test_the_picture_of_the_readme_shows_what_the_captioners_say(name, own_cache):
    photos, _, *rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in PICTURE.splitlines()]
    files = [ROOT / re.search(r"\]\((.*)\)", cell)[1] for cell in photos]
    names = [name for line in PICTURE.splitlines() for name in re.findall(r"^\| `(\w+)`", line)]
    shown = dict(zip(names, rows, strict=True))
    captioner = captioning.load(name)
    assert [captioner.caption(file).text for file in files] == shown[name]


@pytest.mark.slow
def test_every_command_of_the_readme_runs(home, tellapart, monkeypatch):
    """Word for word; only training is cut short."""
    (home / "brief.py").write_text(next(block for block in PYTHON if "RewardEntry" in block))
    monkeypatch.setattr(registry, "REWARDS", dict(registry.REWARDS))
    here = "\n".join(line for line in README.splitlines() if not any(mark in line for mark in ELSEWHERE))
    order = {name: place for place, name in enumerate(MAKERS)}
    for words in sorted(typed(here), key=lambda words: order.get(words[0], len(order))):
        code, out, err = tellapart(*words, *(["--tiny"] if words[0] == "train" else []))
        found_something = words[0] == "lint" and code == 1
        assert code == 0 or found_something, f"{shlex.join(words)}: {out}{err}"
    for made in ("sheet.html", "results/report.html", "comparison/report.html"):
        assert (home / made).stat().st_size > 0
    rows = [json.loads(line) for line in (home / "captions.jsonl").read_text().splitlines()]
    assert {Path(row["file"]).name for row in rows} == {"a.jpg", "b.jpg", "c.jpg", "d.jpg"}
    assert all(row["caption"] for row in rows)


# --- figures have one home, album/figures.json (scripts/collect_figures.py) -------------------------------------------

FIGURES = json.loads((album.HERE / "figures.json").read_text())
CARDS = {name: (album.HERE / name / "README.md").read_text() for name in ("plain", "distinctive")}
COLUMNS = {"Unidiomatic (lower is better)": "Unidiomatic", "different captions": "UniCap"}
NUMBER = r"-?\d+\.\d"


def rows_of_results(text):
    """Of each table that has TT R@1: the first cells of head and row, and the figures of each score."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        if "TT R@1" in head:
            for row in rows:
                cells = zip(head[1:], row[1:], strict=True)
                yield head[0], row[0], {COLUMNS.get(k, k): [float(n) for n in re.findall(NUMBER, v)] for k, v in cells}


def test_the_tables_of_the_readme_and_of_the_model_cards_are_the_figures():
    compared = 0
    for card, text in {"": README, **CARDS}.items():
        for head, first, figures in rows_of_results(text):
            data = "flickr8k" if "Flickr8k" in head + first else "coco"
            row = card or re.search("plain|distinctive|people", first)[0].replace("people", "human")
            for score, shown in figures.items():
                assert shown == FIGURES[data][row][score][: len(shown)], (card or "README", data, row, score)
                compared += 1
    assert compared >= 6 * 6 + 2 * 2 * 9


def test_what_distinctive_pays_is_what_was_found():
    value, low, high = FIGURES["coco"]["differences"]["distinctive"]["CIDEr-D"]
    for text in (README, CARDS["distinctive"]):
        assert f"({value} [{low}, {high}])" in text


def test_figures_of_the_questions_are_those_of_the_results():
    """Whatever is given in per cent with a digit behind the point, and TT R@1."""
    questions = (ROOT / "docs" / "faq.md").read_text()
    shown = re.findall(r"(\d+\.\d) %|have (\d+\.\d)|`distinctive` (\d+\.\d)", questions)
    assert len(shown) >= 6
    results = {
        score[0]
        for of_data in FIGURES.values()
        for row in ("plain", "distinctive", "human")
        for score in of_data[row].values()
    }
    for figure in filter(None, (number for numbers in shown for number in numbers)):
        assert float(figure) in results, figure
