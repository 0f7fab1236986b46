"""Recipes as a user meets them: by file or name, over their bases, in grids, changed on the command line."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from capscore.errors import UserError
from tellapart.commands.train import asked, parse
from tellapart.recipe import OptimConfig, Recipe
from tellapart.recipe_files import flat, merged, plain, shipped
from tellapart.training import chain
from tellapart.training.build import shrink


@pytest.fixture
def write(tmp_path):
    def write(name, **content):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        return str(file)

    return write


def recipe(*arguments):
    return parse(list(arguments))[0]


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_recipe_says_only_what_differs_and_the_command_line_has_the_last_word(write):
    file = write("r.yaml", optim={"lr": 0.25, "warmup": 7}, batch_size=3)
    read, out, resume = parse([file])
    assert read == replace(Recipe(), batch_size=3, optim=OptimConfig(lr=0.25, warmup=7))
    assert (out, resume) == (Path("runs/latest"), False)
    read, out, resume = parse([file, "--optim.lr", "4e-4", "--out", "x", "--resume"])
    assert (read.optim.lr, read.optim.warmup, out, resume) == (4e-4, 7, Path("x"), True)


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["--data", "a.json", "b.json", "--seed", "1"], ["a.json", "b.json"]),
        (["--data=a.json", "--seed", "1"], ["a.json"]),
        (["--seed", "1", "--data", 'it\'s a "file".json', "c:\\d.json", "é, [x].json"], None),
    ],
)
def test_data_takes_one_file_or_several_whatever_they_are_called(arguments, files):
    read = recipe(*arguments)
    assert (read.data.files, read.seed) == (files or arguments[3:], 1)


@pytest.mark.parametrize(
    "arguments",
    [
        "--data k.json RECIPE",
        "--data k.json RECIPE --seed 1",
        "--data RECIPE k.json",
        "--seed 1 RECIPE --data k.json",
        "--resume RECIPE --data k.json",
        "--out out.yaml --init_from from.yaml RECIPE --data=k.json",  # a folder may be called like a recipe
    ],
)
@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_a_recipe_is_a_recipe_wherever_it_stands(write, arguments, suffix):
    file = write(f"r.{suffix}", batch_size=7, seed=1)
    read = recipe(*arguments.replace("RECIPE", file).split())
    assert (read.batch_size, read.data.files, read.seed) == (7, ["k.json"], 1)
    assert read.init_from == ("from.yaml" if "--init_from" in arguments else "")


def test_what_print_config_shows_is_the_whole_recipe_and_can_be_run_again(small_world, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse([str(small_world / "recipe.yaml"), "--optim.lr", "0.5", "--print_config"])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    assert set(Recipe.__dataclass_fields__) <= set(yaml.safe_load(shown))
    (tmp_path / "shown.yaml").write_text(shown)
    assert recipe(str(tmp_path / "shown.yaml")) == recipe(str(small_world / "recipe.yaml"), "--optim.lr=0.5")


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ([], {"max_steps": 10, "model.width": 32}),
        (["--max_steps", "3"], {"max_steps": 3}),
        (["--model.width", "64"], {"model.width": 64, "model.heads": 2}),
        (["--model", "{width: 64}"], {"model.width": 64, "model.heads": 2}),
        (["--encoder", "{grid: 4}"], {"encoder.grid": 4, "encoder.image_size": 64}),
        (["--data.limit", "7", "--batch_size", "2"], {"data.limit": 7, "batch_size": 2, "max_steps": 10}),
        (["--init_from", "runs/tiny"], {"init_from": "runs/tiny"}),
        (["--validation.judges", "[word]", "--dtype", "fp32"], {"validation.judges": ["word"], "dtype": "fp32"}),
        (["--data.repeat", "{}"], {"max_steps": 10}),
        (["--detector", "a: [b"], {"detector": "a: [b"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_tiny_leaves_what_other_options_say(options, kept):
    """`--tiny --max_steps 3` took ten steps."""
    values = flat(plain(recipe("album/plain_xe", "--tiny", *options)))
    assert {name: values[name] for name in kept} == kept
    assert recipe("album/plain_xe", "--tiny") == shrink(recipe("album/plain_xe"))


def test_tiny_leaves_what_other_options_say_of_a_chain():
    stages = asked(["album/plain", "--tiny", "--max_steps", "3"]).recipe
    assert {stage.recipe.max_steps for stage in stages if stage.recipe} == {3}


@pytest.mark.slow
def test_a_tiny_run_ends_after_ten_steps_with_a_model_that_can_be_loaded(small_world, tmp_path, tellapart):
    file = small_world / "recipe.yaml"
    code, out, err = tellapart("train", file, "--out", tmp_path / "run", "--tiny")
    assert code == 0, err
    assert "after 10 steps" in out
    files = "best.safetensors config.json last.safetensors log.jsonl recipe.yaml vocabulary.json"
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == files.split()


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_recipe_that_ships_is_found_by_its_name_from_anywhere_but_a_file_comes_first(write, monkeypatch):
    monkeypatch.chdir(Path(write("tiny/photos_xe.txt")).parents[1])
    for name in ("tiny/photos_xe", "tiny/photos_xe.yaml", "recipes/tiny/photos_xe.yaml"):
        assert recipe(name).data.limit == 2000
    write("tiny/photos_xe.yaml", batch_size=7)
    assert recipe("tiny/photos_xe.yaml").batch_size == 7


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("tiny/photo_xe", "there is no recipe 'tiny/photo_xe'; did you mean tiny/photos_xe?"),
        ("toy_scst", "there is no recipe 'toy_scst'; did you mean tiny/toy_scst?"),
        ("geg/up_down_gge", "there is no recipe 'geg/up_down_gge'; did you mean geg/up_down_geg?"),
        ("tiny/toy_scts.yaml", "tiny/toy_scts.yaml: there is no such file; there is a recipe tiny/toy_scst."),
        ("zzz", "there is no recipe 'zzz'; `tellapart models` lists them."),
        ("FILE --data k.json FILE", "FILE: this is a second recipe; a run takes one."),
    ],
)
def test_a_wrong_name_suggests_a_close_one(tellapart, write, name, answer):
    name, answer = (text.replace("FILE", write("r.yaml", batch_size=7)) for text in (name, answer))
    assert tellapart("train", *name.split()) == (2, "", f"tellapart train: {answer}\n")


def test_models_lists_recipes_with_what_they_are_for(tellapart):
    code, out, _ = tellapart("models")
    assert code == 0
    listed = dict(line.split(maxsplit=1) for line in out.partition("recipes")[2].splitlines()[1:] if line.strip())
    assert set(listed) == set(shipped())
    assert listed["tiny/photos_xe"].startswith("Cross-entropy on photos of your own")
    assert listed["gld/st_gd"].startswith("Show-Tell (ST) of the GLD paper: CIDEr-D and the global discriminative")


# --- bases ------------------------------------------------------------------------------------------------------------


def test_a_file_has_the_last_word_over_its_base_part_by_part_and_the_command_line_over_both(write):
    """Bases have bases, and look for them in their own folder."""
    write("first.yaml", seed=1, epochs=9)
    write("a/first.yaml", seed=1, epochs=1, batch_size=1, optim={"lr": 0.25, "warmup": 7})
    write("a/second.yaml", base="first", seed=2, epochs=2)
    over = write("third.yaml", base="a/second", seed=3, optim={"lr": 0.5})
    read = recipe(over)
    assert (read.seed, read.epochs, read.batch_size, read.optim.lr, read.optim.warmup) == (3, 2, 1, 0.5, 7)
    assert recipe(over, "--optim.lr", "0.125").optim == replace(read.optim, lr=0.125)


def test_recipes_of_a_recipes_folder_and_those_that_ship_are_bases_by_name(write):
    write("recipes/common/plain.yaml", batch_size=7)
    assert recipe(write("recipes/mine/deep/r.yaml", base="common/plain")).batch_size == 7
    below, over = recipe("tiny/photos_xe"), recipe(write("r.yaml", base="tiny/photos_xe", epochs=3))
    assert below.epochs != over.epochs == 3
    assert (over.model, over.encoder) == (below.model, below.encoder)


UP_DOWN = {"captioner": "up_down", "model": {"width": 8, "attention_width": 4}}
BALANCED = {"weights": {"cider_d": 1.0, "geg_avg": 1.0}, "balance": True}
ENCODER, INPUTS = {"encoder": {"grid": 3}}, {"inputs": {"regions": {"grid": 5}}}


@pytest.mark.parametrize(
    ("below", "over", "expected"),
    [
        # terms of a reward are one value: a reward without a term of its base can be said
        (
            {"objective": {"rewards": BALANCED}},
            {"objective": {"rewards": {"weights": {"geg_avg": 2.0}}}},
            {"objective": {"rewards": {"weights": {"geg_avg": 2.0}, "balance": True}}},
        ),
        # settings of a network are merged as long as it is the same network
        (UP_DOWN, {"model": {"width": 9}}, UP_DOWN | {"model": {"width": 9, "attention_width": 4}}),
        (UP_DOWN, {"captioner": "up_down"}, UP_DOWN),
        (UP_DOWN, {"captioner": "transformer", "model": {"width": 9}},
         {"captioner": "transformer", "model": {"width": 9}}),
        (UP_DOWN, {"captioner": "transformer"}, {"captioner": "transformer"}),
        (UP_DOWN, {"retriever": "word_tower"}, {"captioner": "up_down", "retriever": "word_tower"}),
        # inputs take the place of the encoder of a base, and the other way round
        (ENCODER, INPUTS, INPUTS),
        (INPUTS, ENCODER, ENCODER),
        (INPUTS, {"inputs": {"boxes": {"grid": 1}}}, {"inputs": INPUTS["inputs"] | {"boxes": {"grid": 1}}}),
    ],
)  # fmt: skip
def test_what_is_merged_and_what_is_one_value(below, over, expected):
    assert merged(below, over) == expected


def test_a_wrong_value_of_a_base_is_looked_for_in_the_base(write):
    below = write("below.yaml", optim={"lr": "quick"})
    with pytest.raises(UserError, match=r"optim\.lr must be a number") as refused:
        recipe(write("over.yaml", base="below.yaml", optim={"lr": 0.5}))
    assert str(refused.value).startswith(below)


# --- grids ------------------------------------------------------------------------------------------------------------

GRID = {
    "runs": "runs/mine",
    "epochs": 2,
    "optim": {"warmup": 5},
    "grid": {
        "captioner": {"wide": {"about": "A wide one", "model": {"width": 64}}, "narrow": {"model": {"width": 32}}},
        "row": {
            "xe": {"about": "people's words", "optim": {"lr": 0.25}},
            "more": {"base": "{captioner}_xe", "init_from": "{runs}/{captioner}_xe", "epochs": 7},
            "last": {"base": "{captioner}_more", "seed": 3},
        },
    },
    "cells": {"narrow_xe": {"seed": 9}, "wide_last": None},
}


def test_every_cell_of_a_grid_is_a_recipe_by_its_name(write):
    folder = Path(write("mine/tables.yaml", **GRID)).parent
    wide, narrow = recipe(str(folder / "wide_xe")), recipe(str(folder / "narrow_xe"))
    assert wide == replace(Recipe(), model={"width": 64}, optim=OptimConfig(lr=0.25, warmup=5), epochs=2)
    assert narrow == replace(wide, model={"width": 32}, seed=9)
    assert recipe(str(folder / "wide_more")) == replace(wide, init_from="runs/mine/wide_xe", epochs=7)
    above = recipe(write("mine/r.yaml", base="narrow_last", batch_size=5))
    assert above == replace(narrow, init_from="runs/mine/narrow_xe", epochs=7, seed=3, batch_size=5)
    with pytest.raises(UserError, match="there is no recipe"):
        recipe(str(folder / "wide_last"))


def test_the_file_of_a_grid_is_a_chain_of_its_cells(write):
    stages = asked([write("tables.yaml", **GRID), "--batch_size", "3"]).recipe
    assert [stage.name for stage in stages] == ["wide_xe", "wide_more", "narrow_xe", "narrow_more", "narrow_last"]
    assert [dict(job.uses) for job in chain.jobs(stages)][1] == {"wide_xe": "wide_xe"}
    assert {stage.recipe.batch_size for stage in stages} == {3}


LABELS = {f"x{number}": {} for number in range(199)}


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"grid": 3}, "grid must be an object of labels"),
        ({"grid": {}}, "grid must be an object of labels"),
        ({"grid": {"a": {"x y": {}}}}, "grid.a must be an object of labels"),
        ({"grid": {"a": {"x": 3}}}, "x: a cell is an object of values for a single run."),
        ({"grid": {"a": {"x": {"stages": []}}}}, "x: a cell is an object of values for a single run."),
        ({"grid": {"a": {"x": {"base": "y"}, "y": {"base": "x"}}}}, "base leads back to where it came from"),
        ({"grid": {"a": {"x": {"epochs": "many"}}}}, "tables.yaml: x: epochs must be a whole number"),
        ({"grid": {axis: {f"{axis}{n}": {} for n in range(11)} for axis in "abc"}}, "more than 200 cells"),
        ({"model": {f"a{n}": 1 for n in range(9000)}, "grid": {"a": LABELS}}, "1000000 values"),
        ({"init_from": "{a}" * 30_000, "grid": {"a": LABELS}}, "1000000 values"),
        ({"cells": {"wide_ex": {}}}, "cells: the grid has no wide_ex."),
        ({"stages": []}, "a file with a grid has no stages"),
        ({"runs": 3}, "runs is the name of a folder"),
    ],
)
def test_grids_that_are_none(write, tellapart, change, answer):
    cells = {} if "grid" in change else {"cells": GRID["cells"]}
    file = write("tables.yaml", **{key: GRID[key] for key in GRID if key != "cells"} | cells | change)
    code, out, err = tellapart("train", file, "--print_config")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert answer in err


def test_a_grid_is_no_base_and_its_cells_are_read_within_the_folder(write, tmp_path):
    write("mine/tables.yaml", **GRID)
    with pytest.raises(UserError, match="has a grid of recipes; name one of them"):
        recipe(write("mine/r.yaml", base="tables"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.yaml").symlink_to(tmp_path / "mine" / "tables.yaml")
    with pytest.raises(UserError, match="there is no recipe 'wide_xe'"):
        recipe(write("other/r.yaml", base="wide_xe"))
