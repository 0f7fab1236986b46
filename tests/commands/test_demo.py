"""The demo on a small album, with small models in the place of the embedded ones."""

import re
import shutil
from contextlib import contextmanager

import pytest
import yaml

from support.written import rows_of
from tellapart import album, retrievers
from tellapart.captioning import captioner
from tellapart.data import examples
from tellapart.data.examples import DataSet

WHOLE = examples.read(album.HERE / "album.json").examples
PHOTOS = [photo for photo in WHOLE if photo.extra["group"] in ("trains", "cats")] + [
    photo for photo in WHOLE if photo.extra["license"] == 7
]


@contextmanager
def replaced(table, by):
    """Other entries for a while; then those from before in their order, which monkeypatch does not keep."""
    before = dict(table)
    table.clear()
    table.update(by)
    try:
        yield
    finally:
        table.clear()
        table.update(before)


@pytest.fixture
def small(tmp_path, small_model, small_retriever, monkeypatch, own_cache):
    """The folder of the small album."""
    folder = tmp_path / "album"
    (folder / "photos").mkdir(parents=True)
    for photo in PHOTOS:
        shutil.copy(photo.file, folder / "photos")
    told = [
        examples.Example(photo.id, folder / "photos" / photo.file.name, photo.split, photo.captions, photo.extra)
        for photo in PHOTOS
    ]
    examples.write(DataSet("album", told), folder / "album.json")
    monkeypatch.setattr(album, "HERE", folder)
    other = shutil.copytree(small_model, tmp_path / "other")
    monkeypatch.setattr(album, "DEFAULT", "plain")
    captioners = replaced(album.EMBEDDED, {"plain": small_model, "other": other})
    with captioners, replaced(retrievers.EMBEDDED, {"word": small_retriever}):
        yield folder


@pytest.fixture
def demo(small, tellapart):
    return lambda *arguments: tellapart("demo", *arguments)


def test_the_whole_story(demo, small, small_model, tmp_path):
    out = tmp_path / "new" / "demo"
    code, printed, err = demo("--out", out)
    assert code == 0, err
    assert {file.name for file in (out / "captions").iterdir()} >= {"album.plain.jsonl", "album.other.jsonl"}
    captions = rows_of(out / "captions" / "album.plain.jsonl")
    assert [row["file"] for row in captions] == [str(small / "photos" / photo.file.name) for photo in PHOTOS]
    assert captions[3]["caption"] == captioner.load(small_model).caption(PHOTOS[3].file).text

    trains = [photo for photo in PHOTOS if photo.extra["group"] == "trains"]
    for photo in trains:  # each with what both captioners say of it, and what tells it apart
        block = printed.split(f"  {photo.file.name}\n")[1].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in block[:3]] == ["plain", "other", "told"]
    assert re.search(r"^plain +[\d.]+", printed, re.MULTILINE)
    assert "R@1" in printed
    assert printed.splitlines()[-1] == str(out / "report.html")
    assert re.fullmatch(r"\d+ seconds", printed.splitlines()[-2])

    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<article data-kinds") == len(PHOTOS)
    assert page.count("data:image/webp;base64,") == len(PHOTOS)
    assert page.count("data-at=") > len(PHOTOS)
    assert '<option value="1">trains</option>' in page
    assert page.index("<article data-kinds") < page.index('<table class="sortable">')  # photos first
    assert "Of 100 captions, so many lead" in page.partition('<table class="sortable">')[0]
    heads = re.findall(
        r'<th scope="col">(.*?)</th>', page.partition('<table class="sortable">')[2].partition("</thead>")[0]
    )
    assert len(heads) > 5
    assert all(head.startswith('<abbr title="') for head in heads)
    footer = page.partition("<footer>")[2]
    assert "CC BY 2.0 (creativecommons.org/licenses/by/2.0)" in footer
    assert all(str(photo.id) in footer for photo in PHOTOS if photo.extra["license"] == 7)

    (out / "mine.txt").write_text("mine")
    kept = out / "captions" / "album.plain.jsonl"
    kept.write_text(kept.read_text().replace('"caption": "', '"caption": "kept '))
    code, printed, _ = demo("--out", out)  # a second time, the captions are there
    assert (code, bool(re.search(r"^ +plain +kept ", printed, re.M))) == (0, True)
    assert (out / "mine.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_captioner_that_learned_from_the_album_is_a_row_of_its_own(demo, tmp_path, monkeypatch):
    out = tmp_path / "out"
    recipe = yaml.safe_load(album.TUNE.read_text()) | {"max_steps": 2, "batch_size": 4}
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.setattr(album, "TUNE", tmp_path / "tune.yaml")
    for _ in range(2):  # the second time it has learned already
        code, printed, err = demo("--train", "--out", out)
        assert code == 0, err
        named = [line.split()[0] for line in printed.splitlines() if re.match(r"(plain|other|tuned) +\d+\.\d", line)]
        assert list(dict.fromkeys(named)) == ["plain", "other", "tuned"]  # the table may have two parts
    logged = rows_of(out / "tuned" / "log.jsonl")
    assert {"reward/log_probability", "reward/repetition"} <= set().union(*logged)
    assert not any("reward/cider_d" in line for line in logged)


def test_a_photo_that_cannot_be_read_is_named_and_the_others_are_shown(demo, small, tmp_path):
    broken = small / "photos" / PHOTOS[1].file.name
    broken.write_bytes(b"no photo")
    code, printed, err = demo("--out", tmp_path / "out")
    assert code == 1
    assert f"{broken}: is not a photo" in err
    assert printed.splitlines()[-1] == str(tmp_path / "out" / "report.html")
    assert (tmp_path / "out" / "report.html").read_text().count("<article data-kinds") == len(PHOTOS) - 1
