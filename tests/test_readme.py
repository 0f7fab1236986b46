"""What the README tells people to type must be what the program takes, and what it does."""

import json
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from support import region_archives
from tellapart import album
from tellapart.__main__ import COMMANDS
from tellapart.captioning import captioner as captioning
from tellapart.commands.train import parse
from tellapart.data import examples
from tellapart.rewards import registry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PICTURE = README[README.index("| | ![") :].partition("\n\n")[0]
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
        recipe, out, _ = parse([word for word in arguments if word not in ("--plugin", "brief.py")])
        assert recipe.data.files == ["flickr8k.json"]
        assert out in (Path("runs/mine"), Path("runs/told_apart"), Path("runs/brief"))
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


# --- the README as a new user lives it --------------------------------------------------------------------------------

# What cannot be run here, or is too slow for once more, and where the same words are run on something smaller.
ELSEWHERE = {
    "--encoder resnet101": "encoders/test_backbone.py",  # its weights come from a hub
    "--ray": "commands/test_ray.py",
    "--detector yolox_s.onnx": "detectors/test_regions.py",  # a file of its authors
    "--nproc-per-node": "training/test_distributed.py",
}
MAKERS = ["prepare", "train", "caption"]  # of what others read
PHOTOS = examples.read(album.HERE / "album.json").examples[:40]


@pytest.mark.parametrize("name", ["plain", "distinctive"])
def test_the_picture_of_the_readme_shows_what_the_captioners_say(name, own_cache):
    photos, _, *rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in PICTURE.splitlines()]
    files = [ROOT / re.search(r"\]\((.*)\)", cell)[1] for cell in photos]
    names = [name for line in PICTURE.splitlines() for name in re.findall(r"^\| `(\w+)`", line)]
    shown = dict(zip(names, rows, strict=True))
    captioner = captioning.load(name)
    assert [captioner.caption(file).text for file in files] == shown[name]


@pytest.fixture
def home(tmp_path, own_cache, monkeypatch):
    """What the README takes for granted: photos, a data set as its authors gave it, captions, somebody's regions."""

    def put(name, content):
        (tmp_path / name).write_text(json.dumps(content))

    for name, photos in (("holiday", PHOTOS[:4]), ("Images", PHOTOS[4:])):
        (tmp_path / name).mkdir()
        for photo in photos:
            shutil.copy(photo.file, tmp_path / name)
    splits = ["train"] * 20 + ["val"] * 8 + ["test"] * 8
    images = [
        {"imgid": n, "filename": photo.file.name, "split": split, "sentences": [{"raw": c} for c in photo.captions]}
        for n, (photo, split) in enumerate(zip(PHOTOS[4:], splits, strict=True))
    ]
    put("dataset_flickr8k.json", {"dataset": "flickr8k", "images": images})
    region_archives.as_tsv(tmp_path / "trainval_36", {str(n): region_archives.photo(n, 3) for n in range(len(images))})
    put("references.json", {"1": ["a brown dog", "a dog running"], "2": ["a red bus"]})
    put("captions.json", {"1": "a dog runs", "2": "a red bus on a street"})
    put("mine.json", {"1": "a brown dog running", "2": "a bus"})
    put("theirs.json", {"1": "a dog", "2": "a red bus"})
    shutil.copytree(tmp_path / "holiday", tmp_path / "site")
    page = "".join(f'<img src="{photo.file.name}">' for photo in PHOTOS[:2])
    (tmp_path / "site" / "index.html").write_text(page)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    for made in ("sheet.html", "results/report.html", "comparison/report.html", "mine_int8/config.json"):
        assert (home / made).stat().st_size > 0
    rows = [json.loads(line) for line in (home / "captions.jsonl").read_text().splitlines()]
    assert {Path(row["file"]).name for row in rows} == {photo.file.name for photo in PHOTOS[:4]}
    assert all(row["caption"] for row in rows)


def test_what_is_run_elsewhere_is_in_the_readme_and_has_its_tests():
    for mark, file in ELSEWHERE.items():
        assert mark in README
        assert (ROOT / "tests" / file).exists()
