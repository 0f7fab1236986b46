"""Recipes of the GL-RG paper: its settings, and the rows of its tables."""

import pytest

from tellapart.commands.train import asked, parse

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
    recipe, _, _ = parse([f"glrg/{name}"])
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
    stages = {stage.name: stage for stage in asked([f"glrg/{name}"]).what}
    recipes = {key: stage.recipe for key, stage in stages.items()}
    assert recipes["long_range"].model["words"] == 300
    for row, streams in STREAMS.items():  # Table 2
        assert set(recipes[row].inputs) == streams
        assert recipes[row].objective.caption_weights.by == "leave_one_out"
    metrics = {"dxe": "CIDEr-D", "dxe_bleu": "BLEU-4", "dxe_meteor": "METEOR", "dxe_rouge": "ROUGE-L"}
    assert {row: recipes[row].objective.caption_weights.metric for row in metrics} == metrics  # Table 3
    assert (recipes["b2"].init_from, recipes["b2_from_xe"].init_from) == ("dxe", "xe/seed0")  # Table 4
    found = {row: recipes[row].objective.policy for row in BOOSTING}  # Table 5
    assert {row: policy.baseline for row, policy in found.items()} == BOOSTING
    assert len({policy.samples for policy in found.values()}) == 1
    assert all(stages[row].seeds == (0, 1, 2) for row in ("xe", "dxe", "b2"))
    assert (
        len({(str(one.model), one.batch_size, str(one.data)) for key, one in recipes.items() if key != "long_range"})
        == 1
    )
