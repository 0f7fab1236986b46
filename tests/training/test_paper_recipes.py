"""Recipes of the papers: each takes steps at a tiny size, and has the parameters of the paper at its own."""

from pathlib import Path

import pytest
import torch

from tellapart import models
from tellapart.commands.train import parse
from tellapart.training.build import run, shrink

RECIPES = Path(__file__).parents[2] / "recipes"
CAPTIONING = [
    file
    for file in sorted(RECIPES.rglob("*.yaml"))
    if not parse([str(file)])[0].retriever and file.parent.name != "tiny"
]
PAPERS = [file for file in CAPTIONING if file.parent.name in ("gld", "geg")]
COCO = 9487 + 4  # words that occur more than five times, and the tokens that are no words


def name_of(file):
    return f"{file.parent.name}/{file.stem}"


@pytest.fixture(scope="module")
def retrievers(small_world):
    """A listener and a reader in the place of those that a recipe names."""
    made = []
    for name, more in (("word_tower", []), ("text_tower", ["--data.captions_per_photo=2"])):
        recipe, out, _ = parse(
            [
                str(small_world / "recipe.yaml"),
                f"--out={small_world / f'tiny_{name}'}",
                f"--retriever={name}",
                "--model={size: 32, word_size: 16, channels: 16}",
                "--objective.name=info_nce",
                "--validation.metric=R@1",
                "--max_steps=2",
                *more,
            ]
        )
        run(recipe, out)
        made.append(out)
    return made


@pytest.mark.parametrize("file", CAPTIONING, ids=name_of)
def test_a_recipe_takes_two_steps(file, small_world, retrievers, tmp_path):
    listener, reader = retrievers
    recipe, _, _ = parse(
        [
            str(file),
            f"--data={small_world / 'toy' / 'captions.json'}",
            f"--data.features={small_world / 'features'}",
            "--data.train_split=train",
            "--encoder={name: efficientnet_lite2, image_size: 64, grid: 2}",
            f"--objective.rewards.listener={listener}",
            *([f"--objective.rewards.reader={reader}"] if "reader:" in file.read_text() else []),
            *([f"--validation.judges=[{listener}]"] if "judges:" in file.read_text() else []),
            *(["--objective.rewards.factors={}"] if "factors:" in file.read_text() else []),  # of other data sets
            "--dtype=fp32",
        ]
    )
    recipe = shrink(recipe)
    recipe.max_steps = 2
    assert run(recipe, tmp_path / "run").position.step == 2


def linear(inputs, outputs):
    return inputs * outputs + outputs


def lstm(inputs, width):
    return 4 * width * (inputs + width) + 8 * width


EXPECTED = {  # by hand, of the papers' sizes: words of 512, features of 2,048
    "gld/st": COCO * 512 + linear(2048, 512) + lstm(512, 512) + linear(512, COCO),
    "gld/tda": COCO * 512
    + linear(2048, 512)
    + lstm(3 * 512, 512)
    + lstm(2 * 512, 512)
    + 2 * linear(512, 512)
    + linear(512, 1)
    + linear(512, COCO),
}


@pytest.mark.parametrize("file", PAPERS, ids=name_of)
def test_parameters_at_the_size_of_the_paper(file):
    recipe, _, _ = parse([str(file)])
    with torch.device("meta"):
        captioner = models.build_captioner(
            recipe.captioner, recipe.model, vocab_size=COCO, feature_sizes={"regions": 2048}
        )
    count = sum(parameter.numel() for parameter in captioner.parameters())
    expected = EXPECTED.get(f"{file.parent.name}/{file.stem.split('_')[0]}")
    if expected is None:
        assert 5e6 < count < 1e8
    else:
        assert count == pytest.approx(expected, rel=0.02)  # which biases there are is a matter of taste


def test_all_rows_of_a_table_have_one_captioner_and_start_from_one_run():
    for paper, names in (("gld", ("st", "tda")), ("geg", ("transformer", "attention", "up_down", "show_tell"))):
        for name in names:
            rows = [
                parse([str(file)])[0] for file in PAPERS if file.parent.name == paper and file.stem.startswith(name)
            ]
            assert len({(row.captioner, str(row.model), str(row.encoder)) for row in rows}) == 1
            starts = {row.init_from for row in rows}
            assert starts == ({"", f"runs/gld/{name}_xe"} if paper == "gld" else
                              {"", f"runs/geg/{name}_xe", f"runs/geg/{name}_scst"})  # fmt: skip
