"""What a user names: models, data sets, and whose captions are of which photo."""

import json

import pytest

from capscore.errors import UserError
from evaluation import world
from tellapart.evaluation import models


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (
            ["plain", "human", "runs/gld/", "a/said.json.gz", "b/table.csv", "c/rows.jsonl"],
            ["plain", "human", "gld", "said", "table", "rows"],
        ),
        (["a/x/said.json", "b/x/said.json", "b/other.json"], ["a/x/said.json", "b/x/said.json", "other"]),
        (["human", "a/human.json"], ["human", "human.json"]),
        (["plain", "runs/plain"], ["plain", "runs/plain"]),
        (["runs/one", "said/one.json"], ["runs/one", "one.json"]),
        (["a.json", "a.csv"], ["a.json", "a.csv"]),
        (["plain+runs/gld/one", "runs/gld/two"], ["plain+one", "two"]),
        (["a/one+a/two", "b/one+b/two", "c/d+e.json"], ["a/one+a/two", "b/one+b/two", "d+e"]),
    ],
)
def test_rows_are_called_as_their_files_and_folders_are_and_longer_where_two_would_share_a_name(given, names):
    assert [model.name for model in models.models(given)] == names


def test_files_captioners_and_people_are_told_by_their_names():
    found = models.models(["plain", "human", "runs/gld/", "a/said.json.gz", "b/table.csv", "c/rows.jsonl"])
    assert [model.kind for model in found] == ["captioner", "human", "captioner", "file", "file", "file"]


def test_runs_of_one_recipe_are_called_by_what_their_names_begin_with(tmp_path):
    found = models.models(["runs/geg_10,runs/geg_11", "a/plain.json", "x.json,y.json", "gld_0,gld_1", "gld"])
    assert [model.source for model in found][:2] == ["runs/geg_10", "runs/geg_11"]
    recipes = ["geg", "geg", "", "x,y", "x,y", "gld_0,gld_1", "gld_0,gld_1", ""]
    assert [model.recipe for model in found] == recipes
    (tmp_path / "a,b.json").write_text("{}")
    (model,) = models.models([str(tmp_path / "a,b.json")])  # a file whose name has a comma
    assert (model.name, model.recipe) == ("a,b", "")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        *(([name], "has no name before or after a comma") for name in ("a,", ",", "a,,b")),
        (["plain", "plain"], "is named twice"),
        (["a.json", "./a.json"], "is named twice"),
        (["human", "plain", "human"], "is named twice"),
        (["a,b", "a"], "is named twice"),
    ],
)
def test_a_model_without_a_name_and_one_named_twice_are_refused(given, word):
    with pytest.raises(UserError, match=word):
        models.models(given)


def test_data_sets_of_one_name_are_refused(tmp_path):
    one, other = world.make(tmp_path / "a", 2), world.make(tmp_path / "b", 2)
    with pytest.raises(UserError, match="are both called 'world'"):
        models.splits([str(one), str(other)], "test")
    with pytest.raises(UserError, match="has no split 'val'; it has 'test'"):
        models.splits([str(one)], "val")


def test_a_data_file_without_a_usable_record_says_why(tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({"images": [{"id": 1909, "file": "a.jpg", "split": "test", "captions": "a dog"}]}))
    with pytest.raises(UserError, match=r'none of its records .* image 1909: "captions" must be a list of strings'):
        models.splits([str(file)], "test")


def test_a_folder_of_photos_is_a_data_set_without_references(tmp_path):
    world.make(tmp_path / "a", 3)
    (split,) = models.splits([str(tmp_path / "a")], "test")
    assert len(split.photos) == 3
    assert models.by_people(models.models(["human"])[0], split).of_photo == {}


@pytest.fixture
def said(tmp_path):
    """Captions in a file, as the rows of a split."""
    data = world.make(tmp_path / "w", 4)
    (split,) = models.splits([str(data)], "test")

    def read(content):
        file = tmp_path / "said.json"
        file.write_text(json.dumps(content))
        (model,) = models.models([str(file)])
        return models.from_file(model, split), split

    return read


def test_captions_of_a_copy_go_by_the_names_of_files_and_odd_names_mean_nothing(said):
    of_photos, split = said({"a\0b": "no file", "0": "zero"})
    assert of_photos.of_photo == {0: ["zero"]}
    copies = {f"copy/{photo.file.name}": str(row) for row, photo in enumerate(split.photos)}
    assert said(copies)[0].of_photo == {row: [str(row)] for row in range(4)}


def test_captions_in_a_file_go_by_id_or_by_file(said):
    of_ids, split = said({"2": "two", "0": ["zero", "another"], "99": "of another split"})
    assert of_ids.of_photo == {2: ["two"], 0: ["zero"]}
    of_files, _ = said([{"file": str(split.photos[3].file), "caption": "three"}, {"image_id": 1, "caption": "one"}])
    assert of_files.of_photo == {3: ["three"], 1: ["one"]}


def test_two_captions_of_one_photo_are_refused(said):
    _, split = said({})
    with pytest.raises(UserError, match="two of its captions are of one photo"):
        said([{"file": str(split.photos[3].file), "caption": "three"}, {"image_id": 3, "caption": "drei"}])


def test_photos_without_a_caption_are_named(said):
    partial, split = said({"0": "zero", "2": "two", "3": ""})
    there, measured, problems = models.taking_part([partial], split, alone=True)
    assert (there, measured) == ([partial], [0, 2, 3])  # an empty caption is one
    (problem,) = problems
    assert problem.endswith("said.json: no caption for 1 photos of world: '1'; all are measured without them.")


def test_among_several_data_sets_a_file_belongs_where_it_has_half_the_captions(said):
    few, split = said({"0": "of another data set, in which ids begin at 0 too"})
    there, measured, problems = models.taking_part([few], split, alone=False)
    assert (there, measured) == ([], [])
    assert problems[0].endswith("has captions of 1 of the 4 photos of world; left out.")
    half, _ = said({"0": "zero", "1": "one"})
    assert models.taking_part([half], split, alone=False)[0] == [half]


def test_a_data_file_can_name_its_split_and_another_text_can_stand_for_the_captions(tmp_path):
    records = [
        {"id": i, "file": f"{i}.png", "split": split, "captions": ["Kigali"], "descriptions": [f"a city {i}"]}
        for i, split in enumerate(("near", "out", "out"))
    ]
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"dataset": "nocaps", "images": records}))
    near, out = models.splits([f"{data}:near", f"{data}:out"], "test", "descriptions")
    assert (near.name, near.source, out.name) == ("nocaps near", str(data), "nocaps out")
    assert [photo.captions for photo in out.photos] == [("a city 1",), ("a city 2",)]
    with pytest.raises(UserError, match="--text summaries: no photo has a text under this key"):
        models.splits([f"{data}:near"], "test", "summaries")
