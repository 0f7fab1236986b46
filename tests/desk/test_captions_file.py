"""Files of captions: rows come back as they were written, decisions of people stay, and the COCO server's form."""

import json

import pytest
from PIL import Image

from tellapart.captioning.pipeline import CaptionSource
from tellapart.data.captions import Caption
from tellapart.data.items import Input
from tellapart.desk.captions_file import CaptionsFile, review_of, reviewed
from tellapart.desk.resume import write

LISTED = [{"caption": "a cat", "logprob": -1.5}, {"caption": 'a "big", cat', "logprob": None}]
ALIKE = {"look_alikes": ["c, d.jpg", 'it\'s "e".jpg'], "gap": 0.1}
KEY = "0123456789abcdef-01234567-89abcdef"
ROWS = [
    {"file": "a.jpg", "caption": "a dog", "logprob": -1.2345678901234567, "key": "0123456789abcdef"},
    {"file": "b.jpg", "caption": "a dog", "logprob": -2.5, **ALIKE, "key": KEY},
    {"file": "c.jpg", "caption": "", "logprob": None, "look_alikes": [], "gap": None, "key": "k3"},
    {
        "file": "d.jpg",
        "caption": 'a "red", bus',
        "logprob": None,
        "look_alikes": ["x\n.jpg", "\udcff.jpg"],
        "gap": -0.25,
    }
    | {"key": KEY},
    {"file": "e.jpg", "error": "there is no such file"},
    {"file": "f.jpg", "id": "12", "caption": "a cat", "logprob": 0.0, "key": "k5"},
    {"file": "g.jpg", "caption": "a cat", "logprob": -1.5, "captions": LISTED, "key": "k6"},
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_come_back_as_they_were_written(tmp_path, suffix):
    file = CaptionsFile(tmp_path / f"captions.{suffix}")
    file.keep(ROWS[:2])
    file.append(ROWS[2:])
    assert CaptionsFile(file.path).rows == ROWS
    before = file.path.read_bytes()
    CaptionsFile(file.path).keep(CaptionsFile(file.path).rows)
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_row_that_a_kill_cut_off_does_not_count(tmp_path, suffix):
    file = CaptionsFile(tmp_path / f"captions.{suffix}")
    file.keep(ROWS[:3])
    whole = file.path.read_bytes()
    file.append(ROWS[3:4])
    for length in range(len(whole), file.path.stat().st_size - 1):
        (tmp_path / f"cut.{suffix}").write_bytes(file.path.read_bytes()[:length])
        assert CaptionsFile(tmp_path / f"cut.{suffix}").rows == ROWS[:3]
    (tmp_path / f"cut.{suffix}").write_bytes(file.path.read_bytes()[:-1])  # whole, but for the line break
    assert CaptionsFile(tmp_path / f"cut.{suffix}").rows == ROWS[:4]


BROKEN = {
    "jsonl": [
        *('{"file": "b.jpg", "caption: "my words"}', '{"file": "b.jpg", "caption": my words}', '["b.jpg", "my words"]'),
        *('{"file": "b.jpg", "caption": 3}', '{"file": "b.jpg"}', '{"caption": "my words"}', "my words"),
        *('{"file": "b.jpg", "cap', "[" * 100_000),
    ],
    "csv": [
        *('b.jpg,"my words,,,,,,,,,,,', 'b.jpg,"my" words,,,,,,,,,,,', "b.jpg,my words,,,,,,,,,,,,,,one,cell,too,many"),
        *("a.jpg,a dog,-1,,,key,{,0.5,", "a.jpg,a dog,quick,,,key,,,", "a.jpg,a dog,-1,,,key,[],wide,"),
        *("a.jpg,a dog,-1,,,key,,,[", "b.jpg,my words,-1,,,0123456789abcdef,not JSON,,,,,,"),
    ],
}


@pytest.mark.parametrize(("suffix", "line"), [(suffix, line) for suffix in BROKEN for line in BROKEN[suffix]])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_broken_line_costs_no_other_and_is_itself_kept(tmp_path, suffix, line, place):
    file = CaptionsFile(tmp_path / f"captions.{suffix}")
    file.keep(ROWS[:4])
    lines = file.path.read_text().splitlines()
    number = place + (suffix == "csv")
    lines.insert(number, line)
    damaged = "\n".join(lines) + "\n"
    file.path.write_text(damaged)
    read = CaptionsFile(file.path, option="")
    assert read.rows == ROWS[:4]
    (problem,) = read.problems
    assert problem.startswith(f"{file.path}: line {number + 1}: ")
    assert file.path.read_text() == damaged
    with read.writing():  # who only reads leaves it there
        read.keep([*read.rows, ROWS[4]])
    assert read.rejected == 1
    assert (tmp_path / f"captions.{suffix}.rejected").read_text() == line + "\n"
    assert (CaptionsFile(file.path).rows, CaptionsFile(file.path).problems) == (ROWS[:5], [])


def test_a_line_that_is_broken_while_rows_are_made_is_kept_too(tmp_path):
    file = CaptionsFile(tmp_path / "captions.jsonl")
    file.keep(ROWS[:3])
    with file.writing():
        file.path.write_text(file.path.read_text().replace('"a dog"', '"my " words"', 1))
        file.keep([*file.read_again(), ROWS[3]])
    assert '"my " words"' in (tmp_path / "captions.jsonl.rejected").read_text()
    assert CaptionsFile(file.path).rows == ROWS[1:4]


def test_the_look_alikes_of_a_csv_row_are_one_cell_of_json(tmp_path):
    file = CaptionsFile(tmp_path / "captions.csv")
    file.keep(ROWS[1:2])
    header, row = file.path.read_text().splitlines()
    names = "file,caption,logprob,error,id,key,look_alikes,gap,captions,edited,attributes,review,original,language"
    assert header == names
    assert json.dumps(ROWS[1]["look_alikes"]).replace('"', '""') in row


# Reviews


@pytest.fixture
def photos(tmp_path):
    for number, colour in enumerate(("red", "green", "blue", "grey")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{number}.png")
    return [Input(str(path)) for path in sorted(tmp_path.glob("*.png"))]


@pytest.fixture(params=["o.jsonl", "o.csv"])
def out(request, tmp_path):
    return tmp_path / request.param


def captioned(photos, out, settings):
    source = CaptionSource(lambda files: (Caption(file, f"a photo by {settings}", -1.0) for file in files), settings)
    assert write(source, photos, CaptionsFile(out)) == 0
    return CaptionsFile(out).rows


def decide(out, *decisions):
    file = CaptionsFile(out)
    file.keep([reviewed(row, *decision) for row, decision in zip(file.rows, decisions, strict=True)])


def test_approved_and_edited_captions_outlive_another_model_and_rejected_ones_do_not(photos, out):
    captioned(photos, out, "A")
    decide(out, ("approved",), ("rejected",), ("edited", "my cat"), (None,))
    again = captioned(photos, out, "B")
    assert [row["caption"] for row in again] == ["a photo by A", "a photo by B", "my cat", "a photo by B"]
    assert [review_of(row) for row in again] == ["approved", None, "edited", None]
    assert (again[2]["original"], again[2]["edited"]) == ("a photo by A", True)
    assert CaptionsFile(out).rows[2] == again[2]


def test_a_rejected_caption_is_not_made_again_by_the_model_that_made_it(photos, out):
    captioned(photos, out, "A")
    decide(out, *[("rejected",)] * 4)
    assert [review_of(row) for row in captioned(photos, out, "A")] == ["rejected"] * 4


def test_the_approval_of_a_picture_does_not_hold_for_another_one(photos, out):
    captioned(photos, out, "A")
    decide(out, *[("approved",)] * 4)
    Image.new("RGB", (8, 8), "white").save(photos[1].file)
    again = captioned(photos, out, "B")
    assert [row["caption"][-1] for row in again] == ["A", "B", "A", "A"]
    assert [review_of(row) for row in again] == ["approved", None, "approved", "approved"]


def test_a_decision_can_be_taken_back(photos, out):
    (before, *_) = captioned(photos, out, "A")
    edited = reviewed(reviewed(before, "edited", "one"), "edited", "another")
    assert (edited["caption"], edited["original"]) == ("another", "a photo by A")
    assert reviewed(edited, None) == before
    assert reviewed(reviewed(before, "approved"), None) == before
    assert review_of(reviewed(reviewed(edited, "approved"), "rejected")) == "rejected"


def test_a_caption_that_was_changed_in_an_editor_counts_as_edited(photos, out):
    row = captioned(photos, out, "A")[0]
    assert review_of(row) is None
    assert review_of(row | {"caption": "my cat"}) == "edited"
    assert review_of({"file": "a", "error": "broken", "review": "approved"}) is None


def test_a_column_of_the_same_name_with_other_words_is_a_persons_own(photos, out):
    captioned(photos, out, "A")
    file = CaptionsFile(out)
    file.keep([row | {"review": "ask grandma"} for row in file.rows])
    again = captioned(photos, out, "B")
    assert {(row["caption"], row["review"], review_of(row)) for row in again} == {("a photo by B", "ask grandma", None)}


@pytest.mark.parametrize(("review", "text"), [("edited", None), ("approved", "a cat"), (None, "a cat")])
def test_only_an_edit_has_another_caption(review, text):
    with pytest.raises(ValueError, match="edited"):
        reviewed({"file": "a", "caption": "b"}, review, text)


# Results for the COCO server


@pytest.fixture
def data(photo_folder, tmp_path):
    """Six photos with ids in no order, as a data file."""
    ids = [42, 7, 391895, 12, 9, 1001]
    photos = [{"id": id, "file": str(photo_folder / f"{i}.png"), "captions": ["a dog"]} for i, id in enumerate(ids)]
    images = [photo | {"split": "test" if i else "val"} for i, photo in enumerate(photos)]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "six", "images": images}))
    return tmp_path / "data.json", ids[1:]


@pytest.fixture
def caption(tellapart, small_model):
    return lambda *arguments: tellapart("caption", "--model", small_model, *arguments)


def test_results_are_a_list_of_ids_and_captions_in_the_order_of_the_data_and_what_people_wrote(caption, data, tmp_path):
    (file, ids), out, rows = data, tmp_path / "r.json", tmp_path / "r.jsonl"
    assert caption(file, "--split", "test", "--out", out)[0] == 0
    lines = [line.split("\t")[1] for line in caption(file, "--split", "test")[1].splitlines()]
    results = [{"image_id": id, "caption": text} for id, text in zip(ids, lines, strict=True)]
    assert json.loads(out.read_text()) == results
    edited = [json.loads(line) for line in rows.read_text().splitlines()]
    edited[2]["caption"] = results[2]["caption"] = "our dog Rex"
    rows.write_text("".join(json.dumps(row) + "\n" for row in edited))
    code, _, err = caption(file, "--split", "test", "--out", out)
    assert code == 0
    assert "5 kept; 1 edited by hand" in err
    assert json.loads(out.read_text()) == results


def test_a_photo_that_cannot_be_read_is_left_out_and_named(caption, data, tmp_path):
    file, ids = data
    content = json.loads(file.read_text())
    (tmp_path / "broken.png").write_bytes(b"no photo")
    content["images"][3]["file"] = str(tmp_path / "broken.png")
    file.write_text(json.dumps(content))
    code, _, err = caption(file, "--split", "test", "--out", tmp_path / "r.json")
    assert code == 1
    assert "broken.png" in err
    kept = [id for id in ids if id != content["images"][3]["id"]]
    assert [row["image_id"] for row in json.loads((tmp_path / "r.json").read_text())] == kept
