"""The pages that people read, their blocks of code, and a folder with all that those take for granted.

A block is run unless a line above it says why not:  <!-- not run: it installs -->
For a whole page:  <!-- no block of this page is run: it says what was run on its day -->
A block with title="NAME" is written to that file; so is one of Python that begins with "# NAME.py".
"""

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from support import region_archives
from tellapart import album
from tellapart.data import examples

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "src" / "tellapart" / "recipes"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        RECIPES / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
PHOTOS = examples.read(album.HERE / "album.json").examples[:40]

# What cannot be run here, or is too slow for once more, and where the same words are run on something smaller.
ELSEWHERE = {
    "--encoder resnet101": "encoders/test_backbone.py",  # its weights come from a hub
    "--encoder ./my_vit": "encoders/test_backbone.py",
    "--ray": "commands/test_ray.py",
    "--detector yolox_s.onnx": "detectors/test_regions.py",  # a file of its authors
    "--nproc-per-node": "training/test_distributed.py",
    "--endpoint http": "commands/test_caption_endpoint.py",  # a server
    "study serve": "study/test_server.py",
    "tellapart serve": "desk/serve/test_server.py",
    "study results": "study/test_results.py",  # of people's answers
}

_PAGE = re.compile(r"^<!-- no block of this page is run: (.+?) -->$", re.M)
_BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<head>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """language  "" for commands
    file      that the block is the content of, or ""
    not_run   the reason, or ""
    """

    language: str
    file: str
    code: str
    not_run: str

    @property
    def commands(self):
        """Each command in a line; continued lines are joined."""
        lines = joined(self.code).splitlines() if self.language == "" else []
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(page):
    text = page.read_text(encoding="utf-8")
    whole = _PAGE.search(text)
    found = []
    for match in _BLOCK.finditer(text):
        language, _, title = match["head"].partition(" ")
        file = re.search(r'title="([^"]+)"', title) or (
            language == "python" and re.match(r"# (\w+\.py)\n", match["code"])
        )
        found.append(
            Block(language, file[1] if file else "", match["code"], match["why"] or (whole[1] if whole else ""))
        )
    return found


def joined(text):
    return re.sub(r"\\\n\s*", "", text)


def is_form(line):
    """Whether a command only shows a form: COMMAND, RECIPE.yaml."""
    return re.search(r"\bCOMMAND\b|\bRECIPE\b", line) is not None


def typed(text):
    """The commands in a text, as words."""
    lines = re.findall(r"^(?:torchrun .* -m )?tellapart (.*)$", joined(text), re.M)
    return [shlex.split(line, comments=True) for line in lines if not is_form(line)]


def put(folder, name, content):
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def home(tmp_path, own_cache, monkeypatch):
    """What pages take for granted: photos, a data set as its authors gave it, captions, somebody's regions."""
    for name, photos in (("holiday", PHOTOS[:4]), ("Images", PHOTOS[4:])):
        (tmp_path / name).mkdir()
        for letter, photo in zip("abcd" if name == "holiday" else [p.file.stem for p in photos], photos, strict=True):
            Image.open(photo.file).convert("RGB").save(tmp_path / name / f"{letter}.jpg")
    for name, letter in (("photo", "a"), ("new", "b"), ("one", "c"), ("two", "d")):
        shutil.copy(tmp_path / "holiday" / f"{letter}.jpg", tmp_path / f"{name}.jpg")
    splits = ["train"] * 20 + ["val"] * 8 + ["test"] * 8
    images = [
        {
            "imgid": n,
            "filename": f"{photo.file.stem}.jpg",
            "split": split,
            "sentences": [{"raw": c} for c in photo.captions],
        }
        for n, (photo, split) in enumerate(zip(PHOTOS[4:], splits, strict=True))
    ]
    put(tmp_path, "dataset_flickr8k.json", {"dataset": "flickr8k", "images": images})
    for name, first in (("flickr8k", 0), ("coco", 391895), ("DATA", 0)):
        rows = [
            {"id": first + image["imgid"], "file": f"Images/{image['filename']}", "split": image["split"]}
            | {"captions": [sentence["raw"] for sentence in image["sentences"]]}
            for image in images
        ]
        put(tmp_path, f"{name}.json", {"dataset": name, "images": rows})
    region_archives.as_tsv(tmp_path / "trainval_36", {str(n): region_archives.photo(n, 3) for n in range(len(images))})
    put(tmp_path, "references.json", {"1": ["a brown dog", "a dog running"], "2": ["a red bus"]})
    put(tmp_path, "captions.json", {"1": "a dog runs", "2": "a red bus on a street"})
    put(tmp_path, "mine.json", {"1": "a brown dog running", "2": "a bus"})
    put(tmp_path, "theirs.json", {"1": "a dog", "2": "a red bus"})
    shutil.copytree(tmp_path / "holiday", tmp_path / "site")
    (tmp_path / "site" / "index.html").write_text('<img src="a.jpg"><img src="b.jpg">')
    monkeypatch.chdir(tmp_path)
    return tmp_path
