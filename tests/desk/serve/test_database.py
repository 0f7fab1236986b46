"""Captions and decisions in a database: the same with SQLite and PostgreSQL."""

import csv
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from capscore.errors import UserError
from support.postgresql import disconnect, remove
from tellapart.captioning.pipeline import CaptionSource
from tellapart.data.captions import Caption
from tellapart.data.items import Input
from tellapart.databases import DatabaseGone
from tellapart.desk.resume import write
from tellapart.desk.serve import database
from tellapart.desk.serve.database import FILTERS, Changed, FolderRows, Photos
from tellapart.desk.serve.job import Job, export, undo_writing
from tellapart.desk.serve.job import write as write_files

CAPTIONS = ["a red bus", "A red bus.", "photo of a cat", "a dog on a bed", "a man riding a wave"]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    names = ["0.png", "1.png", "sub/2.png", "ünï %_.png", b"\xff.png".decode("utf-8", "surrogateescape")]
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (number * 40, 80, 80)).save(folder / name)
    return folder


def captioned(folder, url, captions=CAPTIONS, settings="A"):
    """As the captioner leaves it."""
    photos = Photos(folder, url)
    files = sorted(str(path) for path in folder.rglob("*.png"))
    texts = dict(zip(files, captions, strict=True))
    others = {file: tuple(other for other in files if other != file)[:2] for file in files}
    source = CaptionSource(
        lambda todo: (Caption(file, texts[file], -1.0, look_alikes=others[file]) for file in todo), settings
    )
    write(source, [Input(file) for file in files], FolderRows(photos))
    return photos


@pytest.fixture
def photos(folder, database_url):
    return captioned(folder, database_url)


def texts(photos, **wanted):
    return [photo.caption for photo in photos.find(**wanted)[0]]


def write_texts(photos, which, *, dry_run=False):
    job = Job(id=1, kind="write")
    write_files(job, photos, "txt", which, replace_texts=False, dry_run=dry_run)
    return job.result


def test_filters_and_search(folder, photos):
    everything, total = photos.find()
    assert (total, sorted(photo.caption for photo in everything)) == (5, sorted(CAPTIONS))
    assert sorted(texts(photos, filter="shared")) == ["A red bus.", "a red bus"]
    assert sorted(texts(photos, filter="lint")) == ["A red bus.", "a red bus", "photo of a cat"]
    assert [rule for photo in photos.find("lint", "cat")[0] for rule in photo.findings] == ["opening"]
    assert texts(photos, search="WAVE a") == ["a man riding a wave"]
    assert texts(photos, search="%") == texts(photos, search="ÜNÏ") != []  # of a file's name; no pattern
    assert texts(photos, search="%_bus") == []
    assert len(texts(photos, search="\0")) == 5
    assert photos.find(offset=3, limit=1)[0] == everything[3:4]
    assert photos.counts() == dict.fromkeys(FILTERS, 0) | {"all": 5, "unreviewed": 5, "shared": 2, "lint": 3}
    assert list(photos.counts()) == list(FILTERS)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.png")}
    assert {photo.file for photo in everything} == files
    first = everything[0]
    assert [photo.file for photo in photos.by_file(first.row["look_alikes"])] == first.row["look_alikes"]


def test_decisions_and_undo(photos):
    bus, _, cat, dog, wave = photos.all()
    edited, number = photos.decide(bus.id, bus.version, "edited", "our red bus")
    assert (edited.caption, edited.review) == ("our red bus", "edited")
    assert (edited.row["original"], edited.row["edited"]) == (bus.caption, True)
    again, second = photos.decide(bus.id, edited.version, "approved")
    assert (again.caption, again.review, again.row["original"]) == ("our red bus", "approved", bus.caption)
    assert photos.decide(cat.id, cat.version, "rejected")[0].review == "rejected"
    assert photos.decide(dog.id, dog.version, "edited", dog.caption)[0].row == dog.row | {"review": "approved"}
    counts = {"all": 5, "unreviewed": 2, "approved": 2, "rejected": 1}
    assert photos.counts() | {"lint": 0} == dict.fromkeys(FILTERS, 0) | counts
    for stale in (bus.version, edited.version):
        with pytest.raises(Changed, match="has been changed meanwhile"):
            photos.decide(bus.id, stale, "rejected")
    assert photos.decide(bus.id, "whatever", "approved") == (again, 0)  # sent twice: nothing changes
    with pytest.raises(Changed):  # another decision came after it
        photos.undo(number)
    assert photos.undo().id == dog.id  # the last
    assert photos.undo(second) == edited
    assert photos.undo(number) == bus
    assert photos.undo().id == cat.id
    assert photos.undo() is None
    assert photos.undo(number) is None
    rows = [photo.row for photo in (bus, photos.get(bus.id + 1), cat, dog, wave)]
    assert [photo.row for photo in photos.all()] == rows
    assert photos.decide(wave.id, wave.version, None) == (wave, 0)


def test_the_captioner_never_overwrites_what_a_person_decided(folder, photos, database_url):
    bus, other, cat, dog, _ = photos.all()
    photos.decide(bus.id, bus.version, "edited", "our bus")
    photos.decide(other.id, other.version, "approved")
    photos.decide(cat.id, cat.version, "rejected")
    after = captioned(folder, database_url, [f"new {number}" for number in range(5)], "B").all()
    decided = [("our bus", "edited"), (other.caption, "approved"), *((f"new {number}", "") for number in (2, 3, 4))]
    assert [(photo.caption, photo.review) for photo in after] == decided
    with pytest.raises(Changed):  # what was looked at was another caption
        photos.decide(dog.id, dog.version, "approved")
    # written only just now, while the captioner was at it
    rows = FolderRows(photos)
    with rows.writing():
        made = [row | {"caption": "late"} for row in rows.rows]
        dog = photos.get(dog.id)
        photos.decide(dog.id, dog.version, "edited", "our dog")
        rows.append(made)
    assert [photo.caption for photo in photos.all()] == ["our bus", other.caption, "late", "our dog", "late"]


def test_a_photo_that_was_moved_keeps_its_caption_and_decisions(folder, photos, database_url):
    bus = photos.all()[0]
    photos.decide(bus.id, bus.version, "edited", "our bus")
    (folder / bus.file).rename(folder / "zz.png")
    after = {photo.file: photo for photo in captioned(folder, database_url).all()}
    assert (after["zz.png"].id, after["zz.png"].caption) == (bus.id, "our bus")
    assert bus.file not in after


def test_two_people_at_once_never_overwrite_each_other(photos):
    bus = photos.all()[0]
    outcomes = []

    def decide(number):
        try:
            outcomes.append(photos.decide(bus.id, bus.version, "edited", f"bus {number}")[0].caption)
        except Changed:
            outcomes.append(None)

    with ThreadPoolExecutor(8) as people:
        list(people.map(decide, range(8)))
    (won,) = [outcome for outcome in outcomes if outcome]
    assert photos.get(bus.id).caption == won
    assert photos.undo() == bus


def test_export_and_writing(folder, photos):
    bus, _, cat, dog, _ = photos.all()
    photos.decide(bus.id, bus.version, "edited", "our red bus")
    photos.decide(cat.id, cat.version, "rejected")
    photos.decide(dog.id, dog.version, "approved")
    assert len(export(photos, "all", ".jsonl").splitlines()) == 5
    table = export(photos, "approved", ".csv").decode()
    assert "our red bus" in table
    assert "cat" not in table
    assert (write_texts(photos, "approved", dry_run=True)["counts"], sorted(folder.rglob("*.txt"))) == (
        {"write": 2},
        [],
    )
    assert write_texts(photos, "all")["counts"] == {"write": 4}
    assert (folder / bus.file).with_suffix(".txt").read_text() == "our red bus\n"
    assert not (folder / cat.file).with_suffix(".txt").exists()
    job = Job(id=1, kind="write")
    undo_writing(job, folder)
    assert (job.result["counts"], sorted(folder.rglob("*.txt"))) == ({"restored": 4, "failed": 0}, [])
    with pytest.raises(UserError, match="nothing to undo"):
        undo_writing(job, folder)


def test_photos_that_are_gone_or_changed_get_nothing_written_and_are_named(folder, photos):
    bus, other, cat, _, _ = photos.all()
    (folder / bus.file).unlink()
    Image.new("RGB", (9, 9), "white").save(folder / other.file)
    photos.decide(cat.id, cat.version, "edited", "=1+1")
    result = write_texts(photos, "all")
    assert result["counts"] == {"write": 3, "failed": 2}
    reasons = {photo["file"]: photo["reason"] for photo in result["failed"]}
    assert reasons[bus.file] == "there is no such file"
    assert "has changed since it was captioned" in reasons[other.file]
    assert len(list(folder.rglob("*.txt"))) == 3
    cells = [cell for line in csv.reader(export(photos, "all", ".csv").decode().splitlines()) for cell in line]
    assert any("1+1" in cell for cell in cells)
    assert not any(cell.startswith("=") for cell in cells)  # which a spreadsheet would compute


def test_folders_in_one_database_do_not_mix(folder, postgresql):
    photos = captioned(folder, postgresql)
    other = folder.parent / "other"
    other.mkdir()
    Image.new("RGB", (8, 8)).save(other / "0.png")
    there = captioned(other, postgresql, ["a red bus"])
    assert (photos.counts()["all"], there.counts()["all"], there.counts()["shared"]) == (5, 1, 0)
    assert there.get(photos.all()[0].id) is None
    bus = photos.all()[0]
    photos.decide(bus.id, bus.version, "approved")
    assert there.undo() is None


def test_a_sqlite_database_moves_with_its_folder(folder):
    captioned(folder, None)
    moved = folder.rename(folder.parent / "elsewhere")
    assert Photos(moved).counts()["all"] == 5


def test_a_database_that_goes_away_is_one_sentence(folder, photos, database_url):
    bus = photos.all()[0]
    remove(database_url, folder / database.NAME)
    sentence = r"(tellapart\.db|the database): captions cannot be stored or read \([^{]+\)"
    for ask in (photos.find, photos.undo, lambda: photos.decide(bus.id, bus.version, "approved")):
        with pytest.raises(DatabaseGone, match=sentence):
            ask()


def test_a_database_that_was_started_again_is_used_again(folder, postgresql):
    photos = captioned(folder, postgresql)
    bus = photos.all()[0]
    disconnect(postgresql)
    assert photos.decide(bus.id, bus.version, "approved")[0].review == "approved"
    disconnect(postgresql)
    assert photos.undo() == bus


def test_a_database_that_is_none_is_one_sentence(folder, tmp_path):
    (folder / database.NAME).write_bytes(b"not a database" * 100)
    with pytest.raises(DatabaseGone, match="file is not a database"):
        Photos(folder)
    with pytest.raises(UserError, match="the database cannot be made"):
        Photos(tmp_path / "missing")


def sql(folder, command, *values):
    with sqlite3.connect(folder / database.NAME) as connection:
        connection.execute(command, values)


FIELDS = {"caption": 5, "error": [1], "original": [1], "look_alikes": [1, {}], "near_duplicates": "x"}
DAMAGED = ['{"file": "0.pn', "[1]", "null", "5", '{"caption": "x"}', '{"file": 7, "caption": "x"}', "[" * 100_000]
DAMAGED += [json.dumps({"file": "0.png", field: value}) for field, value in FIELDS.items()]


@pytest.mark.parametrize("row", DAMAGED, ids=lambda row: row[:30])
def test_a_damaged_row_is_that_photos_error_and_the_others_go_on(folder, row):
    photos = captioned(folder, None)
    bus, other, cat, *_ = photos.all()
    photos.decide(cat.id, cat.version, "approved")
    photos.decide(bus.id, bus.version, "approved")
    sql(folder, "update photos set row = ? where id = ?", row, bus.id)
    found = photos.get(bus.id)
    assert (found.file, found.caption, found.row["error"]) == (bus.file, "", "what is stored of this photo is damaged")
    assert [photo.caption for photo in photos.all()] == ["", *CAPTIONS[1:]]
    assert [photo.row for photo in photos.by_file([bus.file, other.file])] == [found.row, other.row]
    assert export(photos, "all", ".csv").decode().count("\n") == 6
    assert write_texts(photos, "approved", dry_run=True)["counts"]["write"] == 1
    captioned(folder, None, ["new"] * 5, "B")  # nothing comes in the place of what a person approved
    assert photos.get(bus.id).row == found.row
    mended, _ = photos.decide(bus.id, found.version, "edited", "our bus")
    assert (mended.caption, mended.review, photos.get(bus.id)) == ("our bus", "edited", mended)


def test_a_damaged_decision_is_one_sentence_and_the_others_can_be_undone(folder):
    photos = captioned(folder, None)
    bus, other, *_ = photos.all()
    photos.decide(other.id, other.version, "rejected")
    _, number = photos.decide(bus.id, bus.version, "approved")
    sql(folder, "update decisions set before = '{' where id = ?", number)
    with pytest.raises(Changed, match="damaged"):
        photos.undo(number)
    assert photos.undo() == other


def test_undo_goes_on_after_a_photo_was_moved_or_captioned_anew(folder, photos, database_url):
    bus, other, cat, *_ = photos.all()
    photos.decide(other.id, other.version, "approved")
    photos.decide(bus.id, bus.version, "edited", "our bus")
    edited = photos.get(bus.id)
    photos.decide(bus.id, edited.version, "approved")
    (folder / bus.file).rename(folder / "zz.png")
    captioned(folder, database_url)
    back = photos.undo()  # of the photo that was moved, both decisions
    assert (back.id, back.file, back.caption, back.review) == (bus.id, "zz.png", "our bus", "edited")
    back = photos.undo()
    assert (back.file, back.caption, back.review) == ("zz.png", bus.caption, "")
    photos.decide(cat.id, cat.version, "rejected")
    captioned(
        folder, database_url, [f"new {number}" for number in range(5)], "B"
    )  # in the place of a caption that was rejected
    assert photos.get(cat.id).caption.startswith("new")
    assert photos.undo().row == other.row
    assert photos.undo() is None


def test_two_captioners_at_once_on_one_database(folder, database_url, monkeypatch):
    photos, second = Photos(folder, database_url), Photos(folder, database_url)
    look, rows = Photos.by_file, [{"file": "0.png", "caption": "a red bus", "key": "1" * 16 + "-00000000-00000000"}]

    def late(self, names):
        found = look(self, names)
        if self is photos:
            monkeypatch.setattr(Photos, "by_file", look)
            second.add([rows[0] | {"caption": "a bus"}])
        return found

    monkeypatch.setattr(Photos, "by_file", late)
    photos.add(rows)
    assert [photo.file for photo in photos.all()] == ["0.png"]


def test_a_view_without_end_is_stopped(folder, monkeypatch):
    from tellapart import databases

    photos = captioned(folder, None)
    sql(folder, "alter table photos rename to real")
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n"
    sql(folder, f"create view photos as select real.* from real, ({endless})")
    monkeypatch.setattr(databases, "_LONGEST", 0.2)
    with pytest.raises(DatabaseGone, match="interrupted"):
        photos.counts()


AFTER_USER = ("SEC@RET@127.0.0.1:1", "SEC/RET@127.0.0.1:1", "SECRET@127.0.0.1:bad", "SEC@RET@127.0.0.1:bad")


@pytest.mark.parametrize(
    "url",
    [
        *(f"postgresql+pg8000://u:{rest}/x" for rest in (*AFTER_USER, "SECRET@[::1", "SECRET@127.0.0.1:1")),
        *("sqlite://", "sqlite:///:memory:", "nothing", "nosuch://x", "postgresql+pg8000://tests@127.0.0.1:1/none"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_sentence_without_the_password(folder, url):
    with pytest.raises(UserError, match="database") as raised:
        Photos(folder, url)
    assert not any(part in str(raised.value) for part in ("SEC", "RET"))
    assert len(str(raised.value).splitlines()) == 1
