"""Recipes and run folders, as a user meets them: `tellapart train`."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from capscore.errors import UserError
from tellapart import recipe_files
from tellapart.commands.train import asked, parse
from tellapart.recipe import OptimConfig, Recipe
from tellapart.recipe_files import flat, plain, shipped
from tellapart.training.build import shrink
from tellapart.training.chain import jobs
from tellapart.training.checks import check
from tellapart.training.run_folder import claim

ROOT = Path(__file__).parents[2]
SHIPPED = {name: asked([name]).what for name in shipped()}
RECIPES = [name for name, what in SHIPPED.items() if isinstance(what, Recipe)]
GRIDS = {place.path.parent.name + "/" + place.path.stem for place in shipped().values() if place.cell}
CHAINS = [name for name in SHIPPED if name not in RECIPES]


@pytest.fixture
def refused(tellapart, small_world, tmp_path):
    """What a wrong request is answered with: exit code 2 and one line."""

    def run(*arguments, out=tmp_path / "run"):
        code, printed, err = tellapart("train", small_world / "recipe.yaml", "--out", out, *arguments)
        assert (code, printed) == (2, "")
        assert err.startswith("tellapart train: ")
        assert err.count("\n") == 1, err
        return err

    return run


# --- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_that_ships_can_be_read(name):
    recipe, _, _ = parse([name])
    assert isinstance(recipe, Recipe)
    assert recipe.optim.lr > 0
    check(recipe)
    place = shipped()[name]
    assert place.cell or f"tellapart train {name} " in place.path.read_text()


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_that_ships_can_be_read(name):
    chain = asked([name]).what
    assert jobs(chain)
    shown = name if name not in GRIDS else name.partition("/")[0]
    assert f"tellapart train {shown}" in shipped()[name].path.read_text()


@pytest.mark.parametrize("name", sorted({*CHAINS} - GRIDS))
def test_stages_that_ship_start_from_stages(name):
    """A recipe starts from where its own command puts things (runs/plain_scst); in a chain, that must be a stage."""
    for stage in asked([name]).what:
        goes_on = name in ("objectives/switches", "album/distinctive")  # from another chain
        if stage.recipe and stage.recipe.init_from and not goes_on:
            start = re.sub(r"/seed\d+$", "", stage.recipe.init_from)  # one run of a stage
            assert "/" not in start, stage.name


def test_the_chain_of_plain_makes_the_mean_of_a_quarter_cross_entropy_and_two_runs_by_cider_d():
    *_, last = jobs(asked(["album/plain"]).what)
    assert last.name == "plain"
    shares = {last.uses[model]: share / sum(last.shares.values()) for model, share in last.shares.items()}
    assert shares == {"xe": 0.25, "scst/seed0": 0.375, "scst/seed1": 0.375}


def test_a_recipe_that_the_docs_quote_says_what_they_say():
    quoted = [
        (name, text)
        for file in ROOT.glob("docs/**/*.md")
        for name, text in re.findall(r"```yaml\n# tellapart train (\S+/\S+)\n(.*?)```", file.read_text(), re.S)
    ]
    assert quoted
    for name, content in quoted:
        recipe = flat(plain(parse([name])[0]))
        said = flat(recipe_files.parse_yaml(content, name))
        assert said == {key: recipe.get(key) for key in said}, name


def test_there_are_recipes():
    assert len(RECIPES) >= 3
    assert {name.partition("/")[0] for name in RECIPES} >= {"album", "retrievers", "tiny"}


def test_a_recipe_says_only_what_differs_and_the_rest_is_as_by_default(tmp_path):
    (tmp_path / "r.yaml").write_text("optim: {lr: 0.25}\nbatch_size: 3\n")
    recipe, out, resume = parse([str(tmp_path / "r.yaml")])
    assert recipe == replace(Recipe(), batch_size=3, optim=OptimConfig(lr=0.25))
    assert (out, resume) == (Path("runs/latest"), False)


def test_the_command_line_has_the_last_word(tmp_path):
    (tmp_path / "r.yaml").write_text("optim: {lr: 0.25, warmup: 7}\n")
    recipe, out, resume = parse([str(tmp_path / "r.yaml"), "--optim.lr", "4e-4", "--out", "x", "--resume"])
    assert (recipe.optim.lr, recipe.optim.warmup, out, resume) == (4e-4, 7, Path("x"), True)


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["--data", "a.json", "b.json", "--seed", "1"], ["a.json", "b.json"]),
        (["--data=a.json", "--seed", "1"], ["a.json"]),
        (["--seed", "1", "--data", 'it\'s a "file".json', "c:\\d.json", "é, [x].json"], None),
    ],
)
def test_data_takes_one_file_or_several_whatever_they_are_called(arguments, files):
    recipe, _, _ = parse(arguments)
    assert recipe.data.files == (files or arguments[3:])
    assert recipe.seed == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data", "k.json", "RECIPE"],
        ["--data", "k.json", "RECIPE", "--seed", "1"],
        ["--data", "RECIPE", "k.json"],
        ["--seed", "1", "RECIPE", "--data", "k.json"],
        ["--resume", "RECIPE", "--data", "k.json"],
        ["--data=k.json", "RECIPE"],
        ["--out", "x", "RECIPE", "--data=k.json"],
        ["RECIPE", "--data", "k.json"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_a_recipe_is_a_recipe_wherever_it_stands(tmp_path, arguments, suffix):
    (tmp_path / f"r.{suffix}").write_text("batch_size: 7\nseed: 1\n")
    recipe, _, _ = parse([argument.replace("RECIPE", str(tmp_path / f"r.{suffix}")) for argument in arguments])
    assert (recipe.batch_size, recipe.data.files, recipe.seed) == (7, ["k.json"], 1)


def test_a_folder_may_be_called_like_a_recipe(tmp_path):
    (tmp_path / "r.yaml").write_text("batch_size: 7\n")
    recipe, out, _ = parse([str(tmp_path / "r.yaml"), "--out", "out.yaml", "--init_from", "from.yaml"])
    assert (str(out), recipe.init_from, recipe.batch_size) == ("out.yaml", "from.yaml", 7)


def test_two_recipes_are_one_too_many(tellapart, tmp_path):
    (tmp_path / "r.yaml").write_text("batch_size: 7\n")
    code, _, err = tellapart("train", tmp_path / "r.yaml", "--data", "k.json", tmp_path / "r.yaml")
    assert (code, err) == (2, f"tellapart train: {tmp_path / 'r.yaml'}: this is a second recipe; a run takes one.\n")


def test_what_print_config_shows_is_the_whole_recipe_and_can_be_run_again(small_world, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse([str(small_world / "recipe.yaml"), "--optim.lr", "0.5", "--print_config"])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    assert set(Recipe.__dataclass_fields__) <= set(yaml.safe_load(shown))
    (tmp_path / "shown.yaml").write_text(shown)
    assert parse([str(tmp_path / "shown.yaml")])[0] == parse([str(small_world / "recipe.yaml"), "--optim.lr=0.5"])[0]


def test_tiny_shrinks_a_recipe_to_ten_steps_of_a_small_model(small_world):
    first = RECIPES[0]
    recipe, _, _ = parse([first, "--tiny"])
    assert recipe.max_steps == 10
    assert recipe.model["width"] == 32
    assert recipe == shrink(parse([first])[0])


@pytest.mark.parametrize(
    ("options", "kept"),
    [
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
    recipe = flat(plain(parse(["album/plain_xe", "--tiny", *options])[0]))
    assert {name: recipe[name] for name in kept} == kept


def test_tiny_leaves_what_other_options_say_of_a_chain():
    chain = asked(["album/plain", "--tiny", "--max_steps", "3"]).what
    assert {stage.recipe.max_steps for stage in chain if stage.recipe} == {3}


@pytest.mark.slow
def test_a_tiny_run_ends_after_ten_steps_with_a_model_that_can_be_loaded(tellapart, small_world, tmp_path):
    code, out, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--tiny")
    assert code == 0, err
    assert "after 10 steps" in out
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert names == {
        "best.safetensors",
        "config.json",
        "last.safetensors",
        "log.jsonl",
        "recipe.yaml",
        "vocabulary.json",
    }


def test_of_validation_photos_that_are_not_asked_for_no_features_are_computed(tellapart, small_world, tmp_path):
    arguments = ["--max_steps", 1, "--validation.photos", 2, "--data.features", tmp_path / "features"]
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", *arguments)
    assert code == 0, err
    (rows,) = tmp_path.glob("features/*/rows.jsonl")
    assert len(rows.read_text().splitlines()) == 30 + 2  # the world has 30 scenes to train on, and 5 for validation


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--nonsense", "1"], "nonsense"),
        (["--optim.nonsense", "1"], "nonsense"),
        (["--optim.lr", "quick"], "optim.lr"),
        (["--batch_size", "2.5"], "batch_size"),
        (["--optim.schedule", "zigzag"], "optim.schedule"),
        (["--captioner", "parrot"], "there is no captioner 'parrot'; there are transformer"),
        (["--model", "{wings: 2}"], "model.wings: transformer has no such setting; it has "),
        (["--model", "{width: 30, heads: 4}"], "not 30 with 4 heads"),
        (["--encoder.name", "eye"], "there is no encoder 'eye'"),
        (["--validation.metric", "BLEU"], "validation.metric: there is no 'BLEU' here; there are loss"),
        (["--data", "nowhere.json"], "nowhere.json: there is no such file"),
        (["--data.files", "[]"], "names no data"),
        (["--data.train_split", "monday"], "'monday'"),
        (["--data.val_split", "monday"], "'monday'"),
        (["--init_from", "nowhere"], "there is no model 'nowhere'"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--batch_size", "0"], "batch_size must be at least 1, not 0"),
        (["--epochs", "0"], "epochs must be at least 1, not 0"),
        (["--log_steps", "0"], "log_steps must be at least 1"),
        (["--optim.accumulate", "0"], "optim.accumulate must be at least 1"),
        (["--data.captions_per_photo", "0"], "data.captions_per_photo must be at least 1"),
        (["--seed", "-1"], "seed must be at least 0, not -1"),
        (["--objective.distillation", "0.1"], "objective.distillation: the teacher is a running mean"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_request_is_answered_in_one_line(refused, arguments, named, tmp_path):
    assert named in refused(*arguments)
    assert not (tmp_path / "run" / "last.safetensors").exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("nonsense: 1\n", "nonsense"),
        ("epochs: many\n", "epochs"),
        ("epochs: [\n", "r.yaml: this is not YAML"),
        ("- 1\n", "r.yaml"),
    ],
)
def test_a_recipe_that_says_something_wrong_is_answered_in_one_line(tellapart, tmp_path, content, named):
    (tmp_path / "r.yaml").write_text(content)
    code, out, err = tellapart("train", tmp_path / "r.yaml", "--out", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert named in err


def test_a_recipe_that_is_not_there_is_answered_in_one_line(tellapart, tmp_path):
    code, out, err = tellapart("train", tmp_path / "r.yaml")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "r.yaml" in err


# --- run folders ------------------------------------------------------------------------------------------------------


def with_checkpoint(out, recipe):
    claim(recipe, out, resume=False)
    (out / "last.safetensors").write_bytes(b"")
    return out


def test_a_folder_that_holds_a_run_is_not_trained_into_again(tmp_path):
    out = with_checkpoint(tmp_path / "run", Recipe())
    with pytest.raises(UserError, match="holds a run already; --resume continues it"):
        claim(Recipe(), out, resume=False)
    assert claim(Recipe(), out, resume=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (Recipe(epochs=9), "epochs was 10 and is 9 now; a resumed run can get longer, not shorter"),
        (Recipe(max_steps=1000), "max_steps was 0 and is 1000 now; a resumed run can get longer, not shorter"),
        (Recipe(epochs=20, seed=1), "started with another recipe: seed was 0 and is 1 now"),
        (Recipe(optim=OptimConfig(lr=0.1)), r"optim\.lr was 0\.0005 and is 0\.1 now"),
        (Recipe(model={"width": 8}), r"model\.width was None and is 8 now"),
    ],
)
def test_a_run_does_not_go_on_with_a_changed_recipe(tmp_path, changed, message):
    out = with_checkpoint(tmp_path / "run", Recipe())
    with pytest.raises(UserError, match=message):
        claim(changed, out, resume=True)


@pytest.mark.parametrize(
    ("before", "longer"),
    [
        (Recipe(), Recipe(epochs=11)),
        (Recipe(max_steps=5), Recipe(max_steps=6)),
        (Recipe(max_steps=5), Recipe(max_steps=0)),
        (Recipe(max_steps=5), Recipe(max_steps=6, epochs=20)),
    ],
)
def test_a_run_may_get_longer(tmp_path, before, longer):
    assert claim(longer, with_checkpoint(tmp_path / "run", before), resume=True)


def test_a_length_that_is_no_number_in_a_run_folder_is_another_recipe(tmp_path):
    out = with_checkpoint(tmp_path / "run", Recipe())
    (out / "recipe.yaml").write_text((out / "recipe.yaml").read_text().replace("epochs: 10", "epochs: many"))
    with pytest.raises(UserError, match="epochs was many and is 10 now"):
        claim(Recipe(), out, resume=True)


def test_a_recipe_is_the_same_after_a_while_in_a_file(tmp_path):
    recipe = Recipe(model={"width": 8, "dropout": 1e-5}, optim=OptimConfig(lr=1e-7, betas=(0.8, 0.9)))
    assert yaml.safe_load(yaml.safe_dump(plain(recipe))) == plain(recipe)
    assert claim(recipe, with_checkpoint(tmp_path / "run", recipe), resume=True)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        claim(Recipe(), tmp_path, resume=False)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_run_folder(refused, tmp_path):
    (tmp_path / "run").write_text("")
    assert "run is not a folder" in refused()
    assert (tmp_path / "run").read_text() == ""


def test_a_run_that_never_began_leaves_its_folder_to_the_next(refused, tellapart, small_world, tmp_path):
    """Who forgets --data adds it and runs the command again."""
    refused("--data", "nowhere.json")
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--max_steps", 1)
    assert code == 0, err


def test_resume_in_an_empty_folder_begins(tmp_path):
    assert claim(Recipe(), tmp_path / "run", resume=True) is False


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path):
    out = with_checkpoint(tmp_path / "run", Recipe())
    (out / ".tellapart-0123.tmp").write_bytes(b"half a checkpoint")
    claim(Recipe(), out, resume=True)
    assert not list(out.glob(".tellapart-*"))


def test_a_folder_with_only_what_a_kill_left_is_as_good_as_empty(tmp_path):
    (tmp_path / ".tellapart-0123.tmp").write_bytes(b"half a recipe")
    assert claim(Recipe(), tmp_path, resume=False) is False
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_damaged_recipe_in_a_run_folder_is_named(tmp_path):
    out = with_checkpoint(tmp_path / "run", Recipe())
    (out / "recipe.yaml").write_text("epochs: [")
    with pytest.raises(UserError, match=r"recipe\.yaml is damaged"):
        claim(Recipe(), out, resume=True)


def test_a_run_keeps_its_vocabulary_though_the_data_have_grown(tellapart, small_world, tmp_path):
    """The weights belong to the words they were trained with."""
    run = tmp_path / "run"
    arguments = ["train", small_world / "recipe.yaml", "--out", run, "--max_steps", 1]
    assert tellapart(*arguments)[0] == 0
    vocabulary = (run / "vocabulary.json").read_text().replace('"ball"', '"globe"')
    (run / "vocabulary.json").write_text(vocabulary)
    code, _, err = tellapart(*arguments, "--resume")
    assert code == 0, err
    assert (run / "vocabulary.json").read_text() == vocabulary
