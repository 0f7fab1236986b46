import html
import json
import os
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urljoin, urlparse

import numpy as np
import pytest
from PIL import Image

from tellapart.data.media import photos
from tellapart.errors import BadPhoto
from tellapart.neighbours import collection, groups, mining, search

COLOURS = {"red": (250, 20, 20), "orange": (250, 120, 20), "green": (20, 250, 20), "blue": (20, 20, 250)}


@dataclass
class ByColour:
    """Knows a photo by its mean colour, and a caption by the colours it names."""

    name: str = "colours"
    sha256: str = "c0"
    duplicates_above: float = 0.95
    alike_above = {}  # noqa: RUF012
    sees_photos: bool = True

    def of_photos(self, examples):
        known = collection.CollectionVectors(np.zeros(0, np.int64), np.zeros((0, 3), np.float32), [], {})
        for example in examples:
            try:
                photo = photos.read(example.file, 32)
            except BadPhoto as error:
                known.failed[str(example.file)] = error.reason
                continue
            known.vectors = np.concatenate([known.vectors, photo.pixels.mean((0, 1), dtype=np.float32)[None]])
            known.sha256.append(photo.sha256)
        there = [i for i, example in enumerate(examples) if str(example.file) not in known.failed]
        known.positions = np.array(there, np.int64)
        return known

    def of_captions(self, captions):
        found = [np.sum([COLOURS.get(word, (0, 0, 0)) for word in text.split()], 0) for text in captions]
        return np.array(found, np.float32).reshape(-1, 3)


@pytest.fixture
def lookalikes(tellapart, monkeypatch):
    monkeypatch.setattr(collection, "source", lambda name, device: ByColour())
    return lambda *arguments: tellapart("lookalikes", *arguments)


@pytest.fixture
def folder(tmp_path):
    """Four colours; a copy of the red photo, and the same picture saved anew."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (48, 32), colour).save(folder / f"{name}.png")
    (folder / "red-copy.png").write_bytes((folder / "red.png").read_bytes())
    Image.new("RGB", (40, 40), COLOURS["red"]).save(folder / "red-again.png")
    return folder


def lines_of(out, folder):
    rows = [line.replace(f"{folder}/", "").replace(".png", "").split("\t") for line in out.splitlines()]
    return [(file, kind, other) for file, kind, other, _ in rows]


def data_file(folder, records):
    file = folder / "data.json"
    file.write_text(json.dumps({"dataset": "d", "images": records}))
    return file


def alike(out, folder):
    return {(file, other) for file, kind, other in lines_of(out, folder) if kind == "look-alike"}


def test_a_line_for_each_look_alike_and_what_is_the_same_is_told_apart(lookalikes, folder, monkeypatch):
    code, out, err = lookalikes(folder, "--k", 1)
    assert code == 0
    assert lines_of(out, folder) == [
        ("blue", "look-alike", "orange"),
        ("green", "look-alike", "orange"),
        ("orange", "look-alike", "red-again"),  # as near as red: the earlier name
        ("red-again", "near-duplicate", "red-copy"),  # the three are a set, and a set has one row
        ("red-again", "near-duplicate", "red"),
        ("red-again", "look-alike", "orange"),
    ]
    assert "6 photos; 6 (100.0%) have 1 look-alikes by colours" in err
    assert "2 (33.3%) have exact copies" in err
    assert "3 (50.0%) have near-duplicates (cosine above 0.95)" in err
    assert lookalikes(folder, folder, "--k", 1)[1] == out  # each once
    monkeypatch.setattr(mining, "LARGE", 5)
    monkeypatch.setattr(mining, "has_index", lambda: False)
    monkeypatch.setattr(search, "has_index", lambda: False)
    assert "`pip install 'tellapart[index]'` is quicker" in lookalikes(folder, "--k", 1)[2]


def test_thresholds_can_be_moved(lookalikes, folder):
    _, out, _ = lookalikes(folder, "--k", 1, "--duplicates-above", 1)
    assert ("red-copy", "exact copy", "red") in lines_of(out, folder)
    assert ("red-copy", "red-again") in alike(out, folder)
    assert not any(kind == "near-duplicate" for _, kind, _ in lines_of(out, folder))
    _, out, _ = lookalikes(folder, "--k", 1, "--duplicates-above", 0.9)
    assert ("orange", "near-duplicate", "red") in lines_of(out, folder)
    # cosine and distance of orange and red: 0.94 and 100; of green and orange: 0.52 and 264
    for arguments, limit in (
        (["--alike-above", 0.9], "cosine from 0.9"),
        (["--metric", "euclidean", "--alike-above", 150], "distance up to 150"),
    ):
        code, out, err = lookalikes(folder, *arguments)
        assert code == 0
        assert alike(out, folder) == {("orange", "red-again"), ("red-again", "orange")}
        assert f"have none: beside duplicates their split has no other photos that are similar enough ({limit})" in err
    assert len(alike(lookalikes(folder, "--alike-above", "none")[1], folder)) == 4 * 3


def test_vectors_that_were_not_measured_take_a_quantile_of_the_collection_if_it_is_large_enough(
    lookalikes, folder, tmp_path
):
    """Sixty photos between red and green, vectors in a plane: of 1770 pairs 0.5% are nine, all of neighbours."""
    _, out, err = lookalikes(folder)
    assert len(alike(out, folder)) == 4 * 3
    assert "similar enough" not in err
    circle = tmp_path / "circle"
    circle.mkdir()
    for number, angle in enumerate(np.deg2rad(np.linspace(0, 90, 60))):
        colour = (round(250 * np.cos(angle)), round(250 * np.sin(angle)), 0)
        Image.new("RGB", (8, 8), colour).save(circle / f"{number:02}.png")
    _, out, err = lookalikes(circle, "--duplicates-above", 1)
    pairs = set(map(frozenset, alike(out, circle)))
    assert all(abs(int(one) - int(other)) == 1 for one, other in map(sorted, pairs))
    assert 8 <= len(pairs) <= 10  # with a tie
    assert "similar enough (cosine from" in err


def test_splits_are_mined_by_themselves_and_one_can_be_chosen(lookalikes, folder):
    splits = {"red": "train", "orange": "test", "green": "train", "blue": "test"}
    records = [{"id": n, "file": f"{n}.png", "split": split} for n, split in splits.items()]
    file = data_file(folder, records)
    code, out, err = lookalikes(file)
    assert code == 0
    assert [(file, other) for file, _, other in lines_of(out, folder)] == [
        ("red", "green"),
        ("orange", "blue"),
        ("green", "red"),
        ("blue", "orange"),
    ]
    assert "4 (100.0%) have fewer: their split has no more other photos" in err
    assert alike(lookalikes(file, "--split", "test")[1], folder) == {("orange", "blue"), ("blue", "orange")}
    code, _, err = lookalikes(file, "--split", "val")
    assert (code, "has no split 'val'; it has 'test', 'train'" in err) == (2, True)
    _, out, err = lookalikes(data_file(folder, [*records, {"id": 9, "file": "red-copy.png", "split": "test"}]))
    assert "2 (40.0%) have an exact copy in another split" in err


def test_by_caption_the_best_fitting_words_decide(lookalikes, folder, monkeypatch):
    """The blue photo is said to be red, too."""
    captions = {"red": ["a wall"], "orange": ["orange"], "green": ["green"], "blue": ["blue", "red"]}
    records = [{"id": n, "file": f"{n}.png", "captions": texts} for n, texts in captions.items()]
    file = data_file(folder, [*records, {"id": 5, "file": "red-again.png"}])
    code, out, err = lookalikes(file, "--by", "caption")
    assert code == 0
    of_red = [(other, kind) for file, kind, other in lines_of(out, folder) if file == "red"]
    assert not any(file == "red-again" for file, _, _ in lines_of(out, folder))
    assert of_red[:3] == [("red-again", "near-duplicate"), ("blue", "look-alike"), ("orange", "look-alike")]
    assert "1 (20.0%) have no caption and so cannot be look-alikes" in err
    monkeypatch.setattr(collection, "source", lambda name, device: ByColour("readers", sees_photos=False))
    code, _, err = lookalikes(file)
    assert (code, "knows photos by their captions only" in err) == (2, True)
    code, out, _ = lookalikes(file, "--by", "caption", "--k", 1)
    assert code == 0
    assert ("red", "blue") in alike(out, folder)


def test_an_encoder_mines_by_its_features_and_reads_no_captions(tellapart, folder, own_cache):
    file = data_file(folder, [{"id": n, "file": f"{n}.png", "captions": [n]} for n in COLOURS])
    request = ("lookalikes", file, "--retriever", "efficientnet_lite2", "--k", 1)
    code, out, err = tellapart(*request)
    assert code == 0
    assert "by efficientnet_lite2" in err
    assert tellapart(*request)[1] == out
    code, _, err = tellapart(*request, "--by", "caption")
    assert (code, "efficientnet_lite2 reads no captions" in err) == (2, True)


def test_from_python(folder, monkeypatch):
    monkeypatch.setattr(collection, "source", lambda name: ByColour())
    (orange,) = [group for group in collection.look_alikes(folder, k=1) if group.file.endswith("orange.png")]
    assert [other.file for other in orange.look_alikes] == [str(folder / "red-again.png")]
    some = collection.look_alikes([folder / "red.png", str(folder / "blue.png")])
    assert [len(group.look_alikes) for group in some] == [1, 1]


def test_photos_that_cannot_be_used_are_named_with_the_reason_in_the_output_too(lookalikes, folder, tmp_path):
    (folder / "bad\x1b[31m.jpg").write_bytes(b"no photo")
    (folder / "empty.jpg").write_bytes(b"")
    code, out, err = lookalikes(folder)
    assert code == 1
    assert out.count("31m.jpg") == err.count("31m.jpg") == 1
    assert "\x1b" not in out + err
    assert f"{folder}/empty.jpg\terror\tthe file is empty\t\n" in out
    assert f"{folder}/empty.jpg: the file is empty\n" in err
    code, out, err = lookalikes(folder, "--k", 2, "--out", tmp_path / "groups.json")
    assert (code, out, "2 (25.0%) could not be used" in err) == (1, "", True)
    assert groups.load(tmp_path / "groups.json").failed[f"{folder}/empty.jpg"] == "the file is empty"
    for _ in range(2):
        assert lookalikes(folder, "--out", tmp_path / "sheet.html")[0] == 1
        page = (tmp_path / "sheet.html").read_text()
        assert "empty.jpg: the file is empty" in page.split("Could not be used")[1]
        assert "2 files that could not be used" in page
        for file in folder.glob("*.png"):  # then none can be used
            file.unlink()


def test_a_data_file_goes_on_past_broken_records(lookalikes, folder):
    records = [{"id": 1, "file": "red.png"}, {"id": 2, "file": 7}, {"id": 3, "file": "gone.png"}]
    code, _, err = lookalikes(data_file(folder, [*records, {"id": 4, "file": "blue.png"}]))
    assert (code, "image 2" in err, "2 photos" in err) == (1, True, True)


# Sets


def test_groups_are_written_and_can_be_loaded(lookalikes, folder, tmp_path):
    assert lookalikes(folder, "--k", 2, "--out", tmp_path / "groups.json")[:2] == (0, "")
    loaded = groups.load(tmp_path / "groups.json")
    orange = next(group for group in loaded if group.file == str(folder / "orange.png"))
    assert [other.file for other in orange.look_alikes] == [  # of a set only one
        str(folder / f"{name}.png") for name in ("red-again", "green")
    ]
    content = json.loads((tmp_path / "groups.json").read_text())
    files = [photo["file"].removeprefix("photos/") for photo in content["photos"]]
    sets = [(one["kind"], [files[position] for position in one["photos"]]) for one in content["sets"]]
    assert sets == [("near-duplicates", ["red-again.png", "red-copy.png", "red.png"])]


def test_a_burst_is_one_row(lookalikes, folder, tmp_path):
    """Five frames, each nearly the same as the next; the first and the last are less alike than the threshold."""
    for number in range(5):
        Image.new("RGB", (8, 8), (20 + 12 * number, 20, 250)).save(folder / f"blue-{number}.png")
    cosines = ("--duplicates-above", 0.995)
    _, out, err = lookalikes(folder, *cosines)
    blue = [(file, kind, other) for file, kind, other in lines_of(out, folder) if "blue" in file]
    assert [line for line in blue if line[1] != "look-alike"] == [
        ("blue-0", "near-duplicate", other) for other in ("blue-1", "blue-2", "blue-3", "blue-4", "blue")
    ]
    assert {file for file, _, _ in blue} == {"blue-0"}
    assert len([other for file, other in alike(out, folder) if file == "green" and "blue" in other]) == 1
    assert "2 sets of near-duplicates, such as bursts" in err
    lookalikes(folder, *cosines, "--out", tmp_path / "sheet.html")
    assert (tmp_path / "sheet.html").read_text().count("<section>") == 4  # blue, red, orange, green


# The contact sheet


def test_the_sheet_shows_each_photo_beside_its_look_alikes(lookalikes, folder, tmp_path):
    (folder / "orange.png").rename(folder / "<b onload='x'>.png")
    code, _, err = lookalikes(folder, "--k", 2, "--out", tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert code == 0
    assert page.count("<section>") == 4  # a set has one row
    assert "6 photos; 1 set of near-duplicates; nearest look-alikes first" in page
    first = page.split("<section>")[1]
    assert re.findall(r'<figure class="(\w+)">', first) == ["own", "near", "near", "alike", "alike"]
    assert re.findall(r'class="mark">([^<]+)<', first)[:2] == ["near-duplicate 1.00", "near-duplicate 1.00"]
    assert "<b onload" not in page
    assert "script" not in page
    assert "4 of 4 rows of look-alikes and duplicates" in err
    assert set(re.findall(r'(?:src|href)="([^:"]+):', page)) == {"data"}
    _, _, err = lookalikes(folder, "--out", tmp_path / "sheet.html", "--most", 2)
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<section>") == 2
    assert "the 2 with the nearest look-alikes" in page
    assert "--most shows more" in err


def test_the_sheet_shows_captions_of_the_data_or_of_a_file_by_whatever_name_it_gives_a_photo(
    lookalikes, folder, tmp_path
):
    records = [{"id": n, "file": f"{n}.png", "captions": [f"all <i>{n}</i>", "more"]} for n in COLOURS]
    lookalikes(data_file(folder, records), "--out", tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert 'dir="auto">all &lt;i&gt;red&lt;/i&gt;</p>' in page
    assert "more" not in re.findall(r'class="text"[^>]*>([^<]*)<', page)
    names = [str(folder / "red.png"), "blue.png", str(folder.parent / "photos" / ".." / "photos" / "green.png")]
    rows = [{"file": name, "caption": f"number {number}", "logprob": -1.0} for number, name in enumerate(names)]
    (tmp_path / "captions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert lookalikes(folder, "--captions", tmp_path / "captions.jsonl", "--out", tmp_path / "sheet.html")[0] == 0
    page = (tmp_path / "sheet.html").read_text()
    for number, name in enumerate(("red", "blue", "green")):
        figures = [one for one in re.findall(r"<figcaption>.*?</figcaption>", page, re.S) if f">{name}.png<" in one]
        assert figures
        assert all(f">number {number}</p>" in figure for figure in figures)
    assert page.count('class="text"') < page.count("<figcaption>")  # orange has none


NAMES = ["a b#c?d%20.png", "javascript:alert(1).png", "\"onclick='x'.png", "zoë&lt;.png", os.fsdecode(b"caf\xe9.png")]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_links_lead_to_the_files_and_nowhere_else(lookalikes, folder, tmp_path, name):
    (folder / "orange.png").rename(folder / name)
    (tmp_path / "sheets").mkdir()
    assert lookalikes(folder, "--out", tmp_path / "sheets" / "sheet.html")[0] == 0
    links = set(re.findall(r'href="([^"]*)"', (tmp_path / "sheets" / "sheet.html").read_text()))
    targets = {urljoin(f"file://{tmp_path}/sheets/sheet.html", html.unescape(link)) for link in links}
    files = {os.fsdecode(unquote_to_bytes(urlparse(target).path)) for target in targets}
    assert all(urlparse(target).scheme == "file" and not urlparse(target).query for target in targets)
    assert files == {str(file) for file in folder.iterdir()}
    assert not any(link.startswith(("/", "file:")) for link in links)  # relative: photos and sheet can move together
