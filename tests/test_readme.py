"""What the README tells people to type must be what the program takes."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from tellapart.__main__ import COMMANDS
from tellapart.commands.train import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SCALING = (ROOT / "docs" / "scaling.md").read_text()


def typed(text):
    """The commands in a text, but for those that only show a form: COMMAND, RECIPE.yaml."""
    lines = re.findall(r"^(?:torchrun .* -m )?tellapart (.*)$", text, re.M)
    return [shlex.split(line, comments=True) for line in lines if not re.search(r"\bCOMMAND\b|\bRECIPE\b", line)]


TYPED = typed(README)


PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_readme_shows_commands():
    shown = {words[0] for words in TYPED}
    assert shown >= {"caption", "train", "prepare", "models", "doctor", "evaluate", "lookalikes", "lint"}


@pytest.mark.parametrize("words", [*TYPED, *typed(SCALING)], ids=" ".join)
def test_each_command_of_the_readme_is_understood(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, *arguments = words
    assert command in COMMANDS
    if command == "train":
        recipe, out, _ = parse(arguments)
        assert recipe.data.files == ["flickr8k.json"]
        assert out in (Path("runs/mine"), Path("runs/told_apart"))
    elif hasattr(module := import_module(COMMANDS[command][0]), "parser"):
        module.parser().parse_args(arguments)
    else:  # takes no arguments
        assert arguments == []


def test_the_python_of_the_readme_runs(small_model, photo_folder, own_cache, monkeypatch, capsys):
    (code,) = [block for block in PYTHON if "import tellapart" in block]
    for name, photo in (("photo.jpg", "0.png"), ("one.jpg", "1.png"), ("two.jpg", "2.png")):
        (photo_folder / photo).rename(photo_folder / name)
    monkeypatch.chdir(photo_folder)
    exec(compile(code.replace("load()", f"load({str(small_model)!r})"), "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_the_links_of_the_readme_lead_somewhere(link):
    assert link.startswith("http") or (ROOT / link).exists()
