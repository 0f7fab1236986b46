"""What people decided about captions is kept in the rows of a captions file, and is not overwritten."""

import pytest
from PIL import Image

from tellapart.captioning.pipeline import CaptionSource
from tellapart.data.captions import Caption
from tellapart.data.items import Input
from tellapart.desk.captions_file import CaptionsFile, review_of, reviewed
from tellapart.desk.resume import write


@pytest.fixture
def photos(tmp_path):
    for number, colour in enumerate(("red", "green", "blue", "grey")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{number}.png")
    return [Input(str(path)) for path in sorted(tmp_path.glob("*.png"))]


@pytest.fixture(params=["o.jsonl", "o.csv"])
def out(request, tmp_path):
    return tmp_path / request.param


def caption(photos, out, settings):
    source = CaptionSource(lambda files: (Caption(file, f"a photo by {settings}", -1.0) for file in files), settings)
    assert write(source, photos, CaptionsFile(out)) == 0
    return CaptionsFile(out).rows


def decide(out, *decisions):
    file = CaptionsFile(out)
    file.keep([reviewed(row, *decision) for row, decision in zip(file.rows, decisions, strict=True)])


def test_approved_and_edited_captions_outlive_another_model_and_rejected_ones_do_not(photos, out):
    caption(photos, out, "A")
    decide(out, ("approved",), ("rejected",), ("edited", "my cat"), (None,))
    again = caption(photos, out, "B")
    assert [row["caption"] for row in again] == ["a photo by A", "a photo by B", "my cat", "a photo by B"]
    assert [review_of(row) for row in again] == ["approved", None, "edited", None]
    assert (again[2]["original"], again[2]["edited"]) == ("a photo by A", True)
    assert CaptionsFile(out).rows[2] == again[2]


def test_a_rejected_caption_is_not_made_again_by_the_model_that_made_it(photos, out):
    caption(photos, out, "A")
    decide(out, *[("rejected",)] * 4)
    assert [review_of(row) for row in caption(photos, out, "A")] == ["rejected"] * 4


def test_the_approval_of_a_picture_does_not_hold_for_another_one(photos, out):
    caption(photos, out, "A")
    decide(out, *[("approved",)] * 4)
    Image.new("RGB", (8, 8), "white").save(photos[1].file)
    again = caption(photos, out, "B")
    assert [row["caption"][-1] for row in again] == ["A", "B", "A", "A"]
    assert [review_of(row) for row in again] == ["approved", None, "approved", "approved"]


def test_a_decision_can_be_taken_back(photos, out):
    (before, *_) = caption(photos, out, "A")
    edited = reviewed(reviewed(before, "edited", "one"), "edited", "another")
    assert (edited["caption"], edited["original"]) == ("another", "a photo by A")
    assert reviewed(edited, None) == before
    assert reviewed(reviewed(before, "approved"), None) == before
    assert review_of(reviewed(reviewed(edited, "approved"), "rejected")) == "rejected"


def test_a_caption_that_was_changed_in_an_editor_counts_as_edited(photos, out):
    row = caption(photos, out, "A")[0]
    assert review_of(row) is None
    assert review_of(row | {"caption": "my cat"}) == "edited"
    assert review_of({"file": "a", "error": "broken", "review": "approved"}) is None


def test_a_column_of_the_same_name_with_other_words_is_a_persons_own(photos, out):
    caption(photos, out, "A")
    file = CaptionsFile(out)
    file.keep([row | {"review": "ask grandma"} for row in file.rows])
    again = caption(photos, out, "B")
    assert [(row["caption"], row["review"], review_of(row)) for row in again] == [
        ("a photo by B", "ask grandma", None)
    ] * 4


@pytest.mark.parametrize(("review", "text"), [("edited", None), ("approved", "a cat"), (None, "a cat")])
def test_only_an_edit_has_another_caption(review, text):
    with pytest.raises(ValueError, match="edited"):
        reviewed({"file": "a", "caption": "b"}, review, text)
