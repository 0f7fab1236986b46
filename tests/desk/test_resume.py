"""What people wrote into a file of captions stays; photos are known again, wherever they are and however named."""

import csv
import json
import shutil
from functools import partial

import pytest
from PIL import ExifTags, Image

from capscore import caption_files
from tellapart.captioning.pipeline import CaptionSource
from tellapart.data.captions import Candidate, Caption
from tellapart.data.items import Input
from tellapart.desk import resume
from tellapart.desk.captions_file import COLUMNS, CaptionsFile, is_by_hand

MINE = "grandma in her garden, 1962"


@pytest.fixture
def caption(tellapart, small_model):
    def run(*arguments):
        code, _, err = tellapart("caption", "--model", small_model, *arguments)
        assert code == 0
        return err

    return run


@pytest.fixture
def jpegs(photo_folder):
    for file in sorted(photo_folder.iterdir()):
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()
    return photo_folder


def rows_of(out):
    return {row["file"].rsplit("/")[-1]: row for row in CaptionsFile(out).rows}


def edit(out, name, caption=MINE):
    """As a person does who knows nothing of what else is in a row."""
    file = CaptionsFile(out)
    file.keep([row | {"caption": caption} if row["file"].endswith(name) else row for row in file.rows])


@pytest.fixture(params=["o.jsonl", "o.csv"])
def out(request, tmp_path):
    return tmp_path / request.param


@pytest.mark.slow
def test_an_edited_caption_survives_new_photos_other_settings_and_a_collection(caption, jpegs, out, small_retriever):
    caption(jpegs, "--out", out)
    edit(out, "3.jpg")
    among = ("--among", jpegs, "--retriever", small_retriever)
    Image.new("RGB", (30, 30), "red").save(jpegs / "9.jpg")
    for options in ([], ["--beam", 2], among, [*among, "--k", 2]):
        err = caption(jpegs, *options, "--out", out)
        rows = rows_of(out)
        assert len(rows) == 7
        assert (rows["3.jpg"]["caption"], rows["3.jpg"]["edited"]) == (MINE, True)
        assert "1 edited by hand" in err
        assert not any("edited" in row for name, row in rows.items() if name != "3.jpg")
    assert all("look_alikes" in row for name, row in rows.items() if name != "3.jpg")


def test_metadata_that_a_program_writes_makes_nothing_anew(caption, jpegs, out):
    caption(jpegs, "--out", out)
    edit(out, "3.jpg")
    before = rows_of(out)
    for name in ("3.jpg", "4.jpg"):
        exif = Image.Exif()
        exif[ExifTags.Base.ImageDescription] = "holiday"
        segment, data = exif.tobytes(), (jpegs / name).read_bytes()  # put in front, as photo programs do
        size = (len(segment) + 2).to_bytes(2, "big")
        (jpegs / name).write_bytes(data[:2] + b"\xff\xe1" + size + segment + data[2:])
        assert Image.open(jpegs / name).getexif()[ExifTags.Base.ImageDescription] == "holiday"
    err = caption(jpegs, "--out", out)
    assert "6 kept" in err
    after = rows_of(out)
    assert (after["3.jpg"]["caption"], after["4.jpg"]) == (MINE, before["4.jpg"])
    assert "changed" not in err


def test_a_caption_by_hand_of_a_picture_that_has_changed_stays_and_is_named(caption, jpegs, out):
    caption(jpegs, "--out", out)
    edit(out, "3.jpg")
    Image.new("RGB", (30, 30), "red").save(jpegs / "3.jpg")
    err = caption(jpegs, "--out", out)
    assert rows_of(out)["3.jpg"]["caption"] == MINE
    assert f"the picture has changed since its caption was edited by hand: {jpegs / '3.jpg'}" in err


def test_rows_by_hand_are_kept_also_in_place_of_an_error_and_a_listed_photo_is_captioned(
    caption, tellapart, small_model, jpegs, out
):
    rows = [{"file": str(jpegs / "1.jpg"), "caption": MINE}, {"file": str(jpegs / "2.jpg"), "caption": ""}]
    CaptionsFile(out).keep(rows)
    (jpegs / "3.jpg").write_bytes(b"")
    assert tellapart("caption", "--model", small_model, jpegs, "--out", out)[0] == 1
    edit(out, "3.jpg")
    caption(jpegs, "--out", out)
    result = rows_of(out)
    for name in ("1.jpg", "3.jpg"):
        assert (result[name]["caption"], result[name]["edited"]) == (MINE, True)
    assert result["2.jpg"]["caption"]
    assert "edited" not in result["2.jpg"]


def test_edits_during_a_run_are_kept(jpegs, out):
    photos = [Input(str(path)) for path in sorted(jpegs.iterdir())]

    def captions(files, name):
        for position, file in enumerate(files):
            yield Caption(file, f"{name} {position}", -1.0)
        if name == "second":  # before the last rows are saved
            edit(out, "1.jpg")

    for name in ("first", "second"):
        source = CaptionSource(partial(captions, name=name), name)
        assert resume.write(source, photos, CaptionsFile(out)) == 0
    expected = ["second 0", MINE, *(f"second {number}" for number in range(2, 6))]
    assert [row["caption"] for row in CaptionsFile(out).rows] == expected


def test_one_photo_has_one_row_however_its_path_is_typed(caption, jpegs, out, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(jpegs)
    caption("photos", "--out", out)
    edit(out, "3.jpg")
    for typed in (jpegs, "./photos/", "photos/../photos", "link"):
        assert "6 kept" in caption(typed, "--out", out)
        assert len(CaptionsFile(out).rows) == 6
        assert rows_of(out)["3.jpg"]["caption"] == MINE
    caption("photos/1.jpg", jpegs / "1.jpg", jpegs, "--out", out)
    assert len(CaptionsFile(out).rows) == 6


def test_moved_photos_take_their_rows_with_them(caption, jpegs, out, tmp_path):
    caption(jpegs, "--out", out)
    edit(out, "3.jpg")
    before = rows_of(out)
    (jpegs / "2024").mkdir()
    (jpegs / "3.jpg").rename(jpegs / "2024" / "garden.jpg")
    (jpegs / "4.jpg").rename(tmp_path / "x")  # 4 and 5 change names
    (jpegs / "5.jpg").rename(jpegs / "4.jpg")
    (tmp_path / "x").rename(jpegs / "5.jpg")
    err = caption(jpegs, "--out", out)
    after = rows_of(out)
    assert "6 kept" in err
    assert list(after) == ["0.jpg", "1.jpg", "2.jpg", "garden.jpg", "4.jpg", "5.jpg"]
    assert (after["garden.jpg"]["caption"], after["garden.jpg"]["edited"]) == (MINE, True)
    for name, earlier in (("4.jpg", "5.jpg"), ("5.jpg", "4.jpg")):
        assert after[name] | {"file": ""} == before[earlier] | {"file": ""}
    assert "changed" not in err


def test_a_photo_that_comes_where_there_was_none_takes_its_row_with_it(caption, tellapart, small_model, jpegs, out):
    caption(jpegs, "--out", out)
    edit(out, "3.jpg")
    new = jpegs / "7.jpg"
    assert tellapart("caption", "--model", small_model, new, "--out", out)[0] == 1  # a row with an error
    (jpegs / "3.jpg").rename(new)
    caption(jpegs, "--out", out)
    assert len(rows_of(out)) == len(CaptionsFile(out).rows) == 6
    assert rows_of(out)["7.jpg"]["caption"] == MINE


def test_copies_of_a_photo_and_links_to_it_get_rows_of_their_own(caption, jpegs, out):
    caption(jpegs, "--out", out)
    edit(out, "3.jpg")
    shutil.copy(jpegs / "3.jpg", jpegs / "8.jpg")
    (jpegs / "link.jpg").symlink_to(jpegs / "3.jpg")
    caption(jpegs, "--out", out)
    rows = rows_of(out)
    assert len(rows) == len(CaptionsFile(out).rows) == 8
    assert rows["3.jpg"]["caption"] == MINE not in (rows["8.jpg"]["caption"], rows["link.jpg"]["caption"])


def test_rows_that_are_not_marked_as_ours_are_a_persons(caption, jpegs, out):
    caption(jpegs, "--out", out)
    file = CaptionsFile(out)
    file.keep([row | {"key": row["key"][:16]} for row in file.rows])
    assert "6 kept; 6 edited by hand" in caption(jpegs, "--beam", 2, "--out", out)


# Spreadsheets


def as_spreadsheet(out, columns, *, separator=";", mark="\ufeff", end="\r\n", encoding="utf-8"):
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with out.open("w", newline="", encoding=encoding) as file:
        file.write(mark)
        writer = csv.DictWriter(file, columns, extrasaction="ignore", delimiter=separator, lineterminator=end)
        writer.writeheader()
        writer.writerows(row | {"logprob": row["logprob"].replace(".", ",")} for row in rows)


@pytest.mark.parametrize("columns", [("file", "caption"), ("caption", "file", "logprob"), COLUMNS])
@pytest.mark.parametrize(
    "options", [{}, {"separator": ",", "mark": ""}, {"separator": "\t"}, {"mark": "", "encoding": "cp1252"}], ids=str
)
def test_a_table_that_went_through_a_spreadsheet_is_read_and_kept(caption, jpegs, tmp_path, columns, options):
    out = tmp_path / "o.csv"
    caption(jpegs, "--out", out)
    edit(out, "3.jpg", "café; =1 & more")
    as_spreadsheet(out, columns, **options)
    assert caption_files.read(out).by_id[str(jpegs / "3.jpg")] == ["café; =1 & more"]
    Image.new("RGB", (30, 30), "red").save(jpegs / "9.jpg")
    caption(jpegs, "--out", out)
    rows = rows_of(out)
    assert len(rows) == 7
    assert (rows["3.jpg"]["caption"], rows["3.jpg"]["edited"]) == ("café; =1 & more", True)
    assert ("edited" in rows["2.jpg"]) == ("key" not in columns)  # without a key nobody knows who wrote it
    data = out.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf") == (options.get("mark") is None)
    assert data.removeprefix(b"\xef\xbb\xbf").startswith(f"file{options.get('separator', ';')}caption".encode())


def test_all_that_we_write_into_rows_is_known_as_ours():
    full = Caption("a", "b", -1.0, sha256="c", look_alikes=("d",), gap=0.5, candidates=(Candidate("b"),))
    assert set(full.row()) | set(Caption("a", error="b").row()) <= set(COLUMNS)


def test_programs_may_space_and_compose_a_caption_otherwise():
    row = resume.new_row({"file": "a", "caption": "un café noir"}, [], "0" * 64, "settings")
    assert not is_by_hand(row | {"caption": "un  cafe\u0301 noir "})
    assert is_by_hand(row | {"caption": "un cafe noir"})
    assert is_by_hand(json.loads(json.dumps(row)) | {"caption": ""})
