"""`base:` in a recipe, and recipes that are found by name."""

import pytest
import yaml

from capscore.errors import UserError
from tellapart import recipe_files
from tellapart.commands.train import parse
from tellapart.recipe_files import merged


@pytest.fixture
def write(tmp_path):
    def write(name, **content):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
        return str(file)

    return write


def recipe(*arguments):
    return parse(list(arguments))[0]


def test_a_file_has_the_last_word_over_its_base_part_by_part(write):
    write("below.yaml", optim={"lr": 0.25, "warmup": 7}, batch_size=3)
    found = recipe(write("over.yaml", base="below.yaml", optim={"lr": 0.5}))
    assert (found.optim.lr, found.optim.warmup, found.batch_size) == (0.5, 7, 3)


def test_the_command_line_has_the_last_word_over_both(write):
    write("below.yaml", optim={"lr": 0.25, "warmup": 7})
    found = recipe(write("over.yaml", base="below.yaml", optim={"lr": 0.5}), "--optim.lr", "0.125")
    assert (found.optim.lr, found.optim.warmup) == (0.125, 7)


def test_bases_have_bases(write):
    write("a/first.yaml", seed=1, epochs=1, batch_size=1)
    write("second.yaml", base="a/first", seed=2, epochs=2)
    found = recipe(write("third.yaml", base="second", seed=3))
    assert (found.seed, found.epochs, found.batch_size) == (3, 2, 1)


def test_a_base_of_another_folder_looks_for_its_own_base_in_its_own_folder(write):
    write("first.yaml", seed=1)
    write("a/first.yaml", seed=2)
    write("a/second.yaml", base="first.yaml")
    assert recipe(write("third.yaml", base="a/second.yaml")).seed == 2


def test_recipes_of_a_recipes_folder_find_each_other_by_name(write):
    write("recipes/common/plain.yaml", batch_size=7)
    assert recipe(write("recipes/mine/deep/r.yaml", base="common/plain")).batch_size == 7


def test_a_recipe_that_ships_can_be_a_base(write):
    shipped, found = recipe("tiny/photos_xe"), recipe(write("r.yaml", base="tiny/photos_xe", epochs=3))
    assert shipped.epochs != 3
    assert found.epochs == 3
    assert (found.model, found.encoder) == (shipped.model, shipped.encoder)


def test_terms_of_a_reward_are_one_value():
    """A reward without a term of its base can be said."""
    below = {"objective": {"rewards": {"weights": {"cider_d": 1.0, "geg_avg": 1.0}, "balance": True}}}
    over = {"objective": {"rewards": {"weights": {"geg_avg": 2.0}}}}
    assert merged(below, over) == {"objective": {"rewards": {"weights": {"geg_avg": 2.0}, "balance": True}}}


def test_settings_of_a_network_are_merged_as_long_as_it_is_the_same_network():
    below = {"captioner": "up_down", "model": {"width": 8, "attention_width": 4}}
    assert merged(below, {"model": {"width": 9}})["model"] == {"width": 9, "attention_width": 4}
    assert merged(below, {"captioner": "transformer", "model": {"width": 9}})["model"] == {"width": 9}
    assert "model" not in merged(below, {"captioner": "transformer"})
    assert "model" not in merged(below, {"retriever": "word_tower"})
    assert merged(below, {"captioner": "up_down"})["model"] == below["model"]


def test_inputs_take_the_place_of_the_encoder_of_a_base_and_the_other_way_round():
    encoder, inputs = {"encoder": {"grid": 3}}, {"inputs": {"regions": {"grid": 5}}}
    assert merged(encoder, inputs) == inputs
    assert merged(inputs, encoder) == encoder
    more = {"boxes": {"grid": 1}}
    assert merged(inputs, {"inputs": more}) == {"inputs": inputs["inputs"] | more}


def test_a_wrong_value_of_a_base_is_looked_for_in_the_base(write):
    below = write("below.yaml", optim={"lr": "quick"})
    with pytest.raises(UserError, match=r"optim\.lr must be a number") as refused:
        recipe(write("over.yaml", base="below.yaml", optim={"lr": 0.5}))
    assert str(refused.value).startswith(below)


@pytest.mark.parametrize("name", ["tiny/photos_xe", "tiny/photos_xe.yaml", "recipes/tiny/photos_xe.yaml"])
def test_a_recipe_that_ships_is_found_by_its_name_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe(name).data.limit == 2000


def test_a_file_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "photos_xe.yaml").write_text("batch_size: 7")
    assert recipe("tiny/photos_xe.yaml").batch_size == 7


def test_a_name_can_stand_anywhere_among_the_options():
    found = recipe("--seed", "3", "tiny/photos_xe", "--data", "a.json", "b.json")
    assert (found.seed, found.data.limit, found.data.files) == (3, 2000, ["a.json", "b.json"])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("tiny/photo_xe", "there is no recipe 'tiny/photo_xe'; did you mean tiny/photos_xe?"),
        ("toy_scst", "there is no recipe 'toy_scst'; did you mean tiny/toy_scst?"),
        ("tiny/toy_scts.yaml", "tiny/toy_scts.yaml: there is no such file; there is a recipe tiny/toy_scst."),
        ("zzz", "there is no recipe 'zzz'; `tellapart models` lists them."),
    ],
)
def test_a_wrong_name_suggests_a_close_one(tellapart, name, answer):
    assert tellapart("train", name) == (2, "", f"tellapart train: {answer}\n")


def test_models_lists_recipes_with_what_they_are_for(tellapart):
    code, out, _ = tellapart("models")
    assert code == 0
    listed = dict(line.split(maxsplit=1) for line in out.partition("recipes")[2].splitlines()[1:] if line.strip())
    assert set(listed) == set(recipe_files.shipped())
    assert listed["tiny/photos_xe"].startswith("Cross-entropy on photos of your own")
