"""The recipes that ship: each can be read, takes steps at a tiny size, and has the settings and sizes of its paper."""

import json
import re
import shutil
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import torch

from tellapart import models, numerics, recipe_files
from tellapart.commands import train as command
from tellapart.data import examples as data_files
from tellapart.data.readers import folder
from tellapart.data.tokenizers import WordTokenizer
from tellapart.features.importing import bring_in
from tellapart.features.sources import import_folder
from tellapart.recipe import EncoderConfig, LoraConfig, Recipe
from tellapart.recipe_files import flat, plain, shipped
from tellapart.training.build import run, shrink
from tellapart.training.chain import jobs
from tellapart.training.preparation import check, learns_without_captions
from training.runs import asked, log_of, tensors_of

ROOT = Path(__file__).parents[2]
SHIPPED = {name: command.asked([name]).recipe for name in shipped()}
RECIPES = {name: what for name, what in SHIPPED.items() if isinstance(what, Recipe)}
GRIDS = {f"{place.path.parent.name}/{place.path.stem}" for place in shipped().values() if place.cell}
CHAINS = [name for name in SHIPPED if name not in RECIPES]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_that_ships_can_be_read_and_says_how_it_is_trained(name):
    what = SHIPPED[name]
    assert jobs(what) if isinstance(what, list) else check(what) is None
    place = shipped()[name]
    shown = name.partition("/")[0] if place.cell or name in GRIDS else f"{name} "
    assert f"tellapart train {shown}" in place.path.read_text()
    assert recipe_files.about(place)


@pytest.mark.parametrize("name", sorted({*CHAINS} - GRIDS))
def test_stages_that_ship_start_from_stages(name):
    """A recipe starts from where its own command puts things (runs/plain_scst); in a chain, that must be a stage."""
    for stage in SHIPPED[name]:
        goes_on = name in ("objectives/switches", "album/distinctive")  # from another chain
        if stage.recipe and stage.recipe.init_from and not goes_on:
            start = re.sub(r"/seed\d+$", "", stage.recipe.init_from)  # one run of a stage
            assert "/" not in start, stage.name


def test_the_chain_of_plain_makes_the_mean_of_a_quarter_cross_entropy_and_two_runs_by_cider_d():
    *_, last = jobs(SHIPPED["album/plain"])
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
        recipe = flat(plain(SHIPPED[name]))
        said = flat(recipe_files.parse_yaml(content, name))
        assert said == {key: recipe.get(key) for key in said}, name


# --- the papers of captions, their rows and sizes ---

CAPTIONING = [
    name
    for name, recipe in RECIPES.items()
    if not recipe.retriever
    and not name.startswith("tiny/")
    and recipe.captioner != "vision_language"  # which needs a folder to start from
]


def choices(value, name=""):
    """What a part of a recipe chooses: names and switches, and of numbers and lists whether they are there."""
    if isinstance(value, dict):
        return {choice for key, part in value.items() for choice in choices(part, f"{name}.{key}")}
    return {(name, value if isinstance(value, str) else bool(value))}


def each_choice_once(names):
    """Without the recipes all of whose choices others make as well."""
    seen = set()
    for name in names:
        recipe = SHIPPED[name]
        objective = asdict(recipe.objective)
        rewards = objective.pop("rewards")
        rewards |= {key: bool(value) for key, value in rewards.items() if isinstance(value, str) and "retriever" in key}
        own = choices({"objective": objective, "rewards": rewards, "optim": asdict(recipe.optim)})
        own |= {(recipe.captioner, recipe.objective.name), ("inputs", *sorted(recipe.inputs))}
        if not own <= seen:
            yield name
        seen |= own


PAPERS = [name for name in CAPTIONING if name.startswith(("gld/", "geg/", "glied/"))]
SEEN = "{name: efficientnet_lite2, image_size: 64, grid: 2, pooling: avg}"
COCO = 9487 + 4  # words that occur more than five times, and the tokens that are no words


@pytest.fixture(scope="module")
def attributes(small_world, tmp_path_factory):
    """Imported for every scene: the words of its first caption, as a recipe with that stream would have them."""
    examples = data_files.read(small_world / "toy" / "captions.json").examples
    words = WordTokenizer.build((text for e in examples if e.split == "train" for text in e.captions), 1)
    folder = tmp_path_factory.mktemp("attributes")
    for example in examples:
        rows = [[id, 0.9] for id in words.encode(example.captions[0])]
        np.save(folder / f"{example.id}.npy", np.array(rows, np.float32))
    bring_in(examples, [folder], import_folder(small_world / "features", "toy_world", "attributes"), "attributes")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(each_choice_once(CAPTIONING)))
def test_a_recipe_takes_two_steps(name, small_world, retrievers, attributes, tmp_path):
    (listener, reader), whole = retrievers, SHIPPED[name]
    rewards = "--objective.rewards"
    recipe = asked(
        name,
        f"--data={small_world / 'toy' / 'captions.json'}",
        f"--data.features={small_world / 'features'}",
        "--data.train_split=train",
        *(sees(whole.inputs) if whole.inputs else [f"--encoder={SEEN}"]),
        f"{rewards}.image_retriever={listener}",
        *[f"{rewards}.text_retriever={reader}"] * bool(whole.objective.rewards.text_retriever),
        *[f"{rewards}.other_retrievers=[{listener}]"] * bool(whole.objective.rewards.other_retrievers),
        *[f"--validation.judges=[{listener}]"] * bool(whole.validation.judges),
        f"{rewards}.dataset_weights={{}}",  # of other data sets
        "--data.repeat={}",
        "--dtype=fp32",
    )
    recipe = shrink(recipe)
    recipe.max_steps = 2
    assert run(recipe, tmp_path / "run").position.step == 2


def sees(inputs):
    """A small encoder in the place of those that a recipe names; attributes are imported."""
    return [f"--inputs.{stream}={'{name: attributes}' if stream == 'attributes' else SEEN}" for stream in inputs]


def linear(inputs, outputs):
    return inputs * outputs + outputs


def lstm(inputs, width):
    return 4 * width * (inputs + width) + 8 * width


WORDS_OF = COCO * 512 + linear(2048, 512)
LAYER = 8 * linear(512, 512) + linear(512, 2048) + linear(2048, 512)
LOOKS = 2 * linear(512, 512) + linear(512, 1)
GEG_WORDS = 10_200
SIZES = {  # name of a recipe: how many parameters, and how near to that; the first that fits
    # GEG: X-modaler's programs, from which the paper takes its captioners; what ours have more or less is in
    # docs/paper_index.md: a place for each of the 2,000 most frequent words, of which 1,000 are attributes; all of Xu
    # et al.; output layer = embedding
    "geg/lstm_a3_*": (32_419_800 + 1000 * 1024, 0.001),
    "geg/attention_*": (36_638_680 + 3 * linear(1024, 1024) + linear(1024, 1) + 1024 * 1024, 0.001),
    "geg/up_down_*": (53_424_088, 0.001),
    "geg/gcn_lstm_*": (72_872_942, 0.001),
    "geg/transformer_*": (55_644_632 - GEG_WORDS * 512, 0.001),
    "geg/meshed_memory_*": (38_421_464, 0.001),
    "geg/x_lan_*": (76_648_669, 0.001),
    # by hand, of the papers' sizes: words of 512, features of 2,048; which biases there are is a matter of taste
    "gld/st_*": (WORDS_OF + lstm(512, 512) + linear(512, COCO), 0.02),
    "gld/tda_*": (WORDS_OF + lstm(3 * 512, 512) + lstm(2 * 512, 512) + LOOKS + linear(512, COCO), 0.02),
    # What these two have beyond the paper's 11.5 and 27.5 million is in docs/paper_index.md.
    "glied/lstm_*": (WORDS_OF + lstm(2 * 512, 512) + linear(512, COCO), 0.02),
    "glied/ct_*": (WORDS_OF + 6 * LAYER, 0.02),
    # by the paper, its Table 2
    "glied/base_*": (12.3e6, 0.05),
    "glied/glied_*": (18.3e6, 0.05),
    "glied/up_*": (50.1e6, 0.05),
    "*": (5.25e7, 0.91),  # between 5 and 100 million
}
GEG = [name.split("/")[1].removesuffix("_*") for name in SIZES if name.startswith("geg/")]


@pytest.mark.parametrize("name", PAPERS)
def test_parameters_at_the_size_of_the_paper(name):
    recipe = SHIPPED[name]
    with torch.device("meta"):
        captioner = models.build_captioner(
            recipe.captioner,
            recipe.model,
            vocab_size=GEG_WORDS if name.startswith("geg/") else COCO,
            feature_sizes={stream: {"attributes": 2, "boxes": 4}.get(stream, 2048) for stream in recipe.streams},
        )
    expected, near = next(size for names, size in SIZES.items() if fnmatchcase(name, names))
    assert sum(parameter.numel() for parameter in captioner.parameters()) == pytest.approx(expected, rel=near)


@pytest.mark.parametrize("name", GEG)
def test_recipes_of_the_geg_paper_have_the_settings_of_its_library(name):
    """X-modaler's configurations: epochs, rates, schedules, scheduled sampling and label smoothing."""
    cross_entropy, rl, group = (SHIPPED[f"geg/{name}_{stage}"] for stage in ("xe", "scst", "geg"))
    optim, sampling = cross_entropy.optim, cross_entropy.objective.scheduled_sampling
    assert all(recipe.optim.clip_value == 0.1 and recipe.data.max_words == 20 for recipe in (cross_entropy, rl, group))
    if name in ("transformer", "meshed_memory", "x_lan"):
        assert (optim.schedule, optim.warmup) == ("noam", 10_000)
        assert optim.lr == pytest.approx((cross_entropy.model["width"] * 10_000) ** -0.5, rel=0.02)
    else:
        assert (optim.schedule, optim.lr, optim.decay) == ("step", 5e-4, 0.8)
        # GCN-LSTM's epochs have one caption of each photo
        assert optim.decay_epochs / (5 / cross_entropy.data.captions_per_photo) == 3
    smoothed = name in ("transformer", "meshed_memory")
    assert cross_entropy.objective.label_smoothing == (0.1 if smoothed else 0)
    assert (sampling.start, sampling.most) == ((-1, 0.25) if smoothed else (6, 0.5) if name == "x_lan" else (0, 0.25))
    assert cross_entropy.epochs == {"x_lan": 70, "gcn_lstm": 300}.get(name, 30)
    assert (rl.optim.lr, rl.epochs) == {
        "transformer": (1e-5, 30), "meshed_memory": (1e-5, 60), "x_lan": (1e-5, 35), "gcn_lstm": (5e-5, 60)
    }.get(name, (5e-5, 30))  # fmt: skip
    assert (group.optim.lr, group.epochs) == (5e-5, 10)


def test_all_rows_of_a_table_have_one_captioner_and_start_from_one_run():
    for paper, names in (("gld", ("st", "tda")), ("geg", (*GEG, "show_tell"))):
        for name in names:
            rows = [SHIPPED[row] for row in PAPERS if row.startswith(f"{paper}/{name}")]
            assert len({(row.captioner, str(row.model), str(row.streams)) for row in rows}) == 1
            started = {f"runs/{paper}/{name}_{stage}" for stage in ("xe", "scst")[: 1 + (paper == "geg")]}
            assert {row.init_from for row in rows} == {"", *started}


RULES = {  # by which the weights of a run are chosen (metric, patience), and where that is said
    # GLD: its program keeps model-best, by CIDEr on the validation split; VSE++'s the best sum of recalls.
    "gld/vse": ("recall", 0),
    "gld/*": ("CIDEr-D", 0),
    # GEG, section 4.1: "trained with GEG reward for 10 epochs" on "the best SCST model"; Table 3: equally many epochs.
    "geg/*_er": ("last", 0),
    "geg/*_geg": ("last", 0),
    "geg/*_geg_min": ("last", 0),
    "geg/*_geg_sole": ("last", 0),
    "geg/*_scst_more": ("last", 0),
    "geg/*": ("CIDEr-D", 0),
    "glied/*": ("CIDEr-D", 5),  # GLIED, section 4.2: "early stopping based on CIDEr"; its length is ours
    "glrg/long_range": ("mAP", 0),  # ours: the paper says nothing of it
    "glrg/*": ("CIDEr-D", 0),  # GL-RG's program keeps the best CIDEr on the validation split
    # DiscriTune, section 4: a number of epochs; before it ClipCap's program and CaMEL's early stopping.
    "discritune/camel_xe": ("CIDEr-D", 5),
    "discritune/*_xe": ("CIDEr-D", 0),
    "discritune/*": ("last", 0),
    # Ours: cross-entropy by a measure of captions or by its loss, rewards to the end
    "tiny/toy_word": ("recall", 0),
    "tiny/toy_xe": ("loss", 0),
    "tiny/photos_xe": ("CIDEr-D", 0),
    "tiny/photos_scst": ("CIDEr-D", 0),
    "tiny/*": ("last", 0),
    "album/plain_scst": ("last", 0),
    "album/*": ("CIDEr-D", 0),
}


@pytest.mark.parametrize("name", [name for name in shipped() if name.partition("/")[0] + "/*" in RULES])
def test_a_run_ends_with_the_weights_that_its_paper_ends_with(name):
    rows = {name: SHIPPED[name]}
    if name in CHAINS:  # its stages are called otherwise, and of the same rules
        folder = name.partition("/")[0]
        rows = {f"{folder}/{stage.name}": stage.recipe for stage in SHIPPED[name] if folder in ("gld", "glrg")}
    for row, recipe in rows.items():
        rule = next(rule for names, rule in RULES.items() if fnmatchcase(row, names))
        assert recipe is None or (recipe.validation.metric, recipe.validation.patience) == rule


@pytest.mark.parametrize("captioner", ["st", "tda"])
def test_rows_of_gld_draw_one_caption_and_compare_it_as_their_program_does(captioner):
    """Its base rows are SCST (the greedy caption); the others compare with a second sample (`CSGD_trainpro.py`)."""
    for row in ("scst", "strengthen", "gd", "luo", "ld", "ld_diff", "gld"):
        policy = SHIPPED[f"gld/{captioner}_{row}"].objective.policy
        baseline = "greedy" if row in ("scst", "strengthen") else "second_sample"
        assert (policy.sampler, policy.samples, policy.baseline) == ("sample", 1, baseline)


def test_table_3_of_geg_has_its_five_rows_and_one_by_the_least_gap():
    """alpha .1 and beta 10 (section 4.1); GEG-sole has no CIDEr, ER no group, SCST++ neither.  Global vectors are of
    ResNet-101 (also GLD, section IV-A3), and the same wherever they are used: its LSTM-A3 sees them.
    """
    rows = {"scst": {}, "scst_more": {}, "er": {"similarity": 10}, "geg": {"geg_avg": 10}, "geg_min": {"geg_min": 10}}
    weights = {row: {"cider_d": 0.1 if more else 1} | more for row, more in rows.items()} | {
        "geg_sole": {"geg_avg": 10}
    }
    assert {row: SHIPPED[f"geg/x_lan_{row}"].objective.rewards.weights for row in weights} == weights
    first, *others = (SHIPPED[name].streams["regions"] for name in ("gld/vse", "gld/st_xe", "geg/lstm_a3_geg"))
    assert others == [first, first]
    assert (first.name, first.grid, first.pooling) == ("resnet101", 1, "avg")


def test_rows_of_glied_differ_in_their_switches_alone():
    rows = {name.removeprefix("glied/"): SHIPPED[name] for name in PAPERS if name.startswith("glied/")}
    rows = {name: row for name, row in rows.items() if row.captioner == "glied"}  # the others are those of Table 2
    table_4 = {"base", "visual", "attribute", "global", "local", "glied"}
    made = {name.removesuffix("_xe") for name in rows if name.endswith("_xe")}
    assert made == table_4 | {"attributes_attend", "semantic_aspect"}
    for name, row in rows.items():
        assert row.captioner == "glied"
        assert (row.inputs, row.data, row.batch_size) == (rows["base_xe"].inputs, rows["base_xe"].data, 80)
        sizes = {key: value for key, value in row.model.items() if not isinstance(value, bool)}
        assert sizes == {"word_width": 256, "width": 512, "heads": 8, "feed_forward": 2048, "dropout": 0.1}
        if name.endswith("_xe"):
            assert (row.objective.name, row.optim.lr, row.epochs, row.init_from) == ("cross_entropy", 1e-4, 25, "")
        else:
            start = name.replace("_scst", "_xe")
            assert (row.optim.lr, row.objective.policy.baseline) == (1e-5, "greedy")
            assert (row.init_from, row.model) == (f"runs/glied/{start}", rows[start].model)
    switches = {name: tuple(sorted(row.model.items())) for name, row in rows.items() if name.endswith("_xe")}
    assert len(set(switches.values())) == 8


# --- GL-RG ---

SEEDING = {"xe": ("none", "CIDEr-D"), "sampling_xe": ("none", "CIDEr-D"), "dxe": ("leave_one_out", "CIDEr-D")}
BOOSTING = {"b2": "best", "b1": "references", "scst": "greedy", "no_baseline": "none"}
STREAMS = {
    "local": {"classes"},
    "short": {"actions"},
    "long": {"words"},
    "local_short": {"actions", "classes"},
    "local_long": {"words", "classes"},
    "short_long": {"words", "actions"},
    "dxe": {"words", "actions", "classes"},
}


@pytest.mark.parametrize("name", [*SEEDING, *BOOSTING])
def test_settings_are_those_of_the_paper(name):
    """Seeding 30 epochs at 3e-4, boosting to the hundredth at 1e-4; 32 clips with 20 captions each; clipped at .25."""
    recipe = SHIPPED[f"glrg/{name}"]
    assert (recipe.captioner, recipe.model["width"], recipe.model["dropout"]) == ("gl_rg", 512, 0.5)
    assert (recipe.batch_size, recipe.data.captions_per_photo, recipe.data.max_words) == (32, 20, 30)
    assert recipe.optim.clip_norm == 0.25
    assert set(recipe.inputs) == {"words", "actions", "classes"}
    if name in SEEDING:
        assert (recipe.epochs, recipe.optim.lr, recipe.objective.name) == (30, 3e-4, "cross_entropy")
        weights = recipe.objective.caption_weights
        assert (weights.by, weights.metric, weights.normalise) == (*SEEDING[name], "none")
        # the reference's word is fed with a chance of .75, then 1, then .75
        curve = [1 - own for _, own in recipe.objective.scheduled_sampling.curve]
        assert curve == ([0.75, 1, 0.75] if name == "sampling_xe" else [])
        assert recipe.model["every_step"] == (name != "sampling_xe")
    else:
        policy, rewards = recipe.objective.policy, recipe.objective.rewards
        assert (recipe.epochs + 30, recipe.optim.lr, recipe.init_from) == (100, 1e-4, "runs/glrg/dxe")
        assert (policy.baseline, policy.samples, policy.top_q) == (BOOSTING[name], 20, 20)
        assert (rewards.weights, rewards.count_end) == ({"cider_d": 1}, True)


@pytest.mark.parametrize("name", ["tables", "small_tables"])
def test_stages_are_the_rows_of_the_tables(name):
    stages = {stage.name: stage for stage in SHIPPED[f"glrg/{name}"]}
    recipes = {key: stage.recipe for key, stage in stages.items()}
    assert recipes["long_range"].model["words"] == 300
    for row, streams in STREAMS.items():  # Table 2
        assert set(recipes[row].inputs) == streams
        assert recipes[row].objective.caption_weights.by == "leave_one_out"
    metrics = {"dxe": "CIDEr-D", "dxe_bleu": "BLEU-4", "dxe_meteor": "METEOR", "dxe_rouge": "ROUGE-L"}
    assert {row: recipes[row].objective.caption_weights.metric for row in metrics} == metrics  # Table 3
    assert (recipes["b2"].init_from, recipes["b2_from_xe"].init_from) == ("dxe", "xe/seed0")  # Table 4
    policies = {row: recipes[row].objective.policy for row in BOOSTING}  # Table 5
    assert {row: policy.baseline for row, policy in policies.items()} == BOOSTING
    assert len({policy.samples for policy in policies.values()}) == 1
    assert all(stages[row].seeds == (0, 1, 2) for row in ("xe", "dxe", "b2"))
    recipes.pop("long_range")
    assert len({(str(each.model), each.batch_size, str(each.data)) for each in recipes.values()}) == 1


# --- DiscriTune's game ---

GAME = [name for name in RECIPES if name.startswith("discritune/") and not name.endswith(("_xe", "/adapt"))]


@pytest.fixture
def small(own_cache, photo_folder, small_model, small_retriever, tmp_path):
    """The same choices with a captioner, a retriever and photos that take no time."""
    files = sorted(example.file for example in folder.read(photo_folder).examples)
    images = [{"id": i, "file": str(file), "split": "val" if i > 3 else "train"} for i, file in enumerate(files)]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "six", "images": images}))
    network = json.loads((small_model / "config.json").read_text())["settings"]

    def read(name):
        recipe, rewards = SHIPPED[name], "objective.rewards"
        changes = {
            "captioner": "transformer",
            "model": {key: value for key, value in network.items() if not key.endswith("_size")},
            "encoder": {"name": "efficientnet_lite2", "image_size": 64, "grid": 2, "pooling": "avg"},
            "init_from": str(small_model),
            "data.files": [str(tmp_path / "data.json")],
            "data.features": str(tmp_path / "features"),
            "data.train_split": "train",
            f"{rewards}.image_retriever": str(small_retriever),
            f"{rewards}.other_retrievers": [str(small_retriever)] * len(recipe.objective.rewards.other_retrievers),
            "objective.policy.chunk": min(2, recipe.objective.policy.chunk),
            "batch_size": 3,
            "max_steps": 2,
            "log_steps": 1,
            "dtype": "fp32",
        }
        for field, value in changes.items():
            recipe = recipe_files.with_value(recipe, field, value)
        return recipe

    return read


@pytest.mark.parametrize("name", GAME)
def test_a_recipe_of_the_game_learns_from_photos_alone(name, small, tmp_path):
    recipe = small(name)
    assert learns_without_captions(recipe)
    assert run(recipe, tmp_path / "run").position.step == 2
    *_, last = log_of(tmp_path / "run")
    assert "val/unique" in last
    assert not any("CIDEr" in key for key in last)


def test_conceptual_captions_train_as_documented(small, photo_folder, tmp_path, tellapart):
    """The documented commands ended with "no data file has a photo in the split 'val'"."""
    photos = sorted(example.file for example in folder.read(photo_folder).examples)
    sources = [tmp_path / "Train_GCC-training.tsv", tmp_path / "Validation_GCC-1.1.0-Validation.tsv"]
    for source, name, chosen in zip(sources, ("training", "validation"), (photos[:4], photos[4:]), strict=True):
        (tmp_path / "cc" / name).mkdir(parents=True)
        source.write_text("".join(f"caption {n}\thttp://a.example/{n}.jpg\n" for n in range(len(chosen))))
        for n, file in enumerate(chosen):
            shutil.copy(file, tmp_path / "cc" / name / f"{n:09}.jpg")
    data = tmp_path / "concap.json"
    code, _, err = tellapart("prepare", "conceptual", *sources, "--photos", tmp_path / "cc", "--out", data)
    assert code == 0, err
    recipe = small("discritune/clipcap_concap")
    recipe = replace(recipe, data=replace(recipe.data, files=[str(data)]))
    assert run(recipe, tmp_path / "run").position.step == 2


def test_a_run_ends_when_its_time_is_over_and_may_get_more(small, tmp_path):
    recipe = small("discritune/kl")
    ended = run(replace(recipe, max_minutes=1e-6), tmp_path / "run").position
    assert (ended.step, ended.finished) == (1, "the time is over")
    longer = run(replace(recipe, max_minutes=60.0), tmp_path / "run", resume=True).position
    assert (longer.step, longer.finished) == (2, "all epochs done")


def test_the_games_settings_are_those_of_the_paper():
    rows = {"clipcap_coco", "clipcap_concap", "camel", "blip", "reward_accuracy", "reward_cosine", "baseline_none"}
    assert {f"discritune/{name}" for name in rows} <= set(GAME)
    recipe = SHIPPED["discritune/clipcap_coco"]
    policy, rewards = recipe.objective.policy, recipe.objective.rewards
    assert (recipe.batch_size, recipe.epochs, recipe.optim.lr, recipe.optim.schedule) == (100, 20, 1e-7, "constant")
    assert (policy.sampler, policy.baseline, policy.reduction) == ("greedy", "running_mean", "sentence_mean")
    assert (rewards.weights, rewards.scale, policy.kl) == ({"log_probability": 1.0}, 0, 0)  # the retriever's own scale
    accuracy, hard = (SHIPPED[f"discritune/{row}"].objective.rewards for row in ("reward_accuracy", "hard_distractors"))
    assert {name for name, weight in accuracy.weights.items() if weight} == {"accuracy"}
    assert (hard.group_size, hard.near_duplicates) == (99, 0.8)


@pytest.fixture
def blip(small, tmp_path):
    """DiscriTune's recipe of BLIP, for one of few weights."""
    pytest.importorskip("transformers", reason="BLIP is loaded with transformers")
    from support import tiny_vlms

    folder = tiny_vlms.blip(tmp_path / "blip")
    recipe = replace(small("discritune/blip"), captioner="vision_language", model={}, encoder=EncoderConfig())
    return lambda **more: replace(recipe, init_from=str(folder), epochs=10, **more)


@pytest.mark.parametrize("rank", [0, 2])
def test_blip_learns_over_its_tower_and_the_run_is_a_model(blip, tmp_path, photo_folder, tellapart, rank):
    out, recipe = tmp_path / "run", blip(lora=LoraConfig(rank))
    recipe = replace(recipe, optim=replace(recipe.optim, lr=1e-4))
    assert run(recipe, out).position.step == 2
    saved = tensors_of(out, "best")
    assert saved
    assert all(name.startswith("network.text_decoder.") for name in saved)  # no tower
    assert all(name.endswith(("lora_a", "lora_b")) for name in saved) == bool(rank)
    assert run(replace(recipe, max_steps=3), out, resume=True).position.step == 3
    code, said, err = tellapart("caption", photo_folder / "0.png", "--model", out)  # its base lies beside it
    assert code == 0, err
    assert said.startswith(str(photo_folder / "0.png"))


@pytest.mark.parametrize("rank", [0, 2])
def test_blip_learns_by_small_steps_in_bf16_too(blip, tmp_path, monkeypatch, rank):
    """A step of 1e-7 is nothing to a weight that is kept in bf16.  As on a graphics card, where that is the default."""
    cpu, recipe = torch.device("cpu"), blip(lora=LoraConfig(rank), dtype="auto", max_steps=3)
    began = dict(models.load_trainable(recipe.init_from, cpu).captioner.named_parameters())
    with monkeypatch.context() as card:
        choose = numerics.choose_dtype
        card.setattr(
            numerics, "choose_dtype", lambda device, wanted="auto": choose(device, wanted.replace("auto", "bf16"))
        )
        assert run(recipe, tmp_path / "run").recipe.dtype == "bf16"
        in_bf16 = models.load(Path(recipe.init_from), cpu)
    learned = tensors_of(tmp_path / "run", "best")
    assert {tensor.dtype for tensor in learned.values()} == {torch.float32}
    zero = torch.zeros(())  # where B of LoRA begins; A only follows it
    moved = [
        (tensor != (zero if rank else began[name])).float().mean()
        for name, tensor in learned.items()
        if tensor.numel() > 1 and not name.endswith("lora_a")
    ]
    assert sum(moved) / len(moved) > 0.8
    in_fp32 = models.load(Path(recipe.init_from), cpu)  # and the run opens here
    assert in_bf16.captioner.network.dtype != in_fp32.captioner.network.dtype
    assert in_bf16.sha256 == in_fp32.sha256
    differs = in_bf16.encoder.identity.items() ^ in_fp32.encoder.identity.items()
    assert differs == {("dtype", "bfloat16")}  # features are kept apart
    assert models.load(tmp_path / "run", cpu).captioner.network.dtype == torch.float32
