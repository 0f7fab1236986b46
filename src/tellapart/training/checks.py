"""Checks of a recipe beyond the types of its fields, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from capscore.errors import UserError
from tellapart import models, recipe_files
from tellapart.captioners import CAPTIONERS
from tellapart.detectors import KINDS
from tellapart.models import VISION_LANGUAGE
from tellapart.recipe import EncoderConfig, PolicyConfig, Recipe
from tellapart.retrievers import RETRIEVERS
from tellapart.rewards import registry
from tellapart.taggers import TAGGERS
from tellapart.training.objectives import OBJECTIVES, Network, learned_by
from tellapart.training.validation import LAST, METRICS, RETRIEVAL_METRICS, lacks, measure_of, measured


def check(recipe: Recipe) -> None:
    recipe_files.check_ranges(recipe)
    if recipe.inputs and recipe.encoder != EncoderConfig():
        raise UserError("encoder is short for inputs with the one stream regions; a recipe has one of the two.")
    if recipe.retriever and recipe.retriever not in RETRIEVERS:
        raise UserError(f"there is no retriever {recipe.retriever!r}; there are {', '.join(RETRIEVERS)}.")
    objective = OBJECTIVES.get(recipe.objective.name)
    kind: Network = "retriever" if recipe.retriever else "captioner"
    if objective is not None and objective.trains == "network":
        kind = "network"
    if objective is None or objective.trains != kind:
        learns = f"a {kind} learns by {' or '.join(learned_by(kind))}"
        raise UserError(f"objective.name: {learns}, not by {recipe.objective.name}.")
    if kind == "retriever":
        models.check_settings(RETRIEVERS, "retriever", recipe.retriever, recipe.model)
    elif recipe.captioner == VISION_LANGUAGE and kind == "captioner":
        if not recipe.init_from:
            raise UserError("init_from: a vision_language captioner starts from a folder or hub id of transformers.")
        if recipe.model or recipe.inputs or recipe.encoder != EncoderConfig():
            raise UserError("model, encoder and inputs of a vision_language captioner are those of init_from.")
    elif kind == "captioner":
        models.check_settings(CAPTIONERS, "captioner", recipe.captioner, recipe.model)
    elif objective.network:
        models.refuse_sizes(recipe.model)
        models.check_settings(TAGGERS, "network", objective.network, recipe.model)
    _check_metric(recipe.validation.metric, RETRIEVAL_METRICS if kind == "retriever" else objective.metrics, kind)
    _check_curve(recipe.objective.scheduled_sampling.curve)
    if recipe.objective.distillation and not recipe.optim.ema_decay:
        raise UserError("objective.distillation: the teacher is a running mean of the weights; give optim.ema_decay.")
    if recipe.objective.sentence_weight:
        if recipe.objective.name != "tagging":
            raise UserError("objective.sentence_weight: only tagging predicts sentences beside words.")
        if not recipe.objective.rewards.text_retriever:
            raise UserError("objective.rewards.text_retriever: sentence_weight needs a run of retrievers/text.")
    if recipe.objective.name == "policy_gradient":
        _check_policy(recipe.objective.policy)
        policy = recipe.objective.policy
        if recipe.objective.rewards.balance and policy.samples + policy.references < 2:
            raise UserError(
                "objective.rewards.balance goes by how much captions of a photo differ; samples must be 2 or more."
            )
        registry.check(recipe.objective.rewards)
        if "detector" in registry.needs_of(recipe.objective.rewards) and not recipe.detector:
            raise UserError(f"objective.rewards.weights: objects needs a detector, which --detector names: {KINDS}.")
    detected = [name for name, one in recipe.streams.items() if one.detected]
    if recipe.retriever and detected:
        raise UserError("encoder.detected: a retriever goes by whole photos, not by the boxes of a detector.")
    if recipe.data.views and detected:
        raise UserError("data.views: a detector's boxes are of whole photos; views of them have none.")
    if detected and not recipe.detector:
        raise UserError(f"inputs.{detected[0]}.detected: boxes need a detector, which --detector names: {KINDS}.")
    if recipe.lora.rank and not recipe.init_from:
        raise UserError("lora.rank: LoRA adapts the layers of a trained model; name it in init_from.")
    if recipe.retriever and recipe.init_from:
        raise UserError("init_from: a retriever starts from fresh weights.")
    by_text = recipe.retriever and RETRIEVERS[recipe.retriever].sees == "references"
    if by_text and recipe.data.captions_per_photo != 2:
        raise UserError(
            f"data.captions_per_photo must be 2: {recipe.retriever} brings two captions of a photo together."
        )


def _check_metric(metric: str, reported: Sequence[str], kind: Network) -> None:
    """What chooses the best checkpoint: of a captioner also any score of the measure table, a plugin's too."""
    if metric == LAST or metric in (METRICS if kind == "captioner" else reported):
        return
    measure = measure_of(metric) if kind == "captioner" else None
    if measure is None or lacks(measure):
        metrics = measured() if kind == "captioner" else [*reported, LAST]
        raise UserError(f"validation.metric: there is no {metric!r} here; there are {', '.join(metrics)}.")
    if why := measure.missing():
        raise UserError(f"validation.metric: {metric} cannot be computed: {why}")


def _check_policy(policy: PolicyConfig) -> None:
    where = "objective.policy"
    if policy.baseline in ("leave_one_out", "mean", "best") and policy.samples + policy.references < 2:
        raise UserError(
            f"{where}.baseline: {policy.baseline} compares the captions of a photo; samples must be 2 or more."
        )
    if policy.sampler == "greedy" and policy.samples != 1:
        raise UserError(f"{where}.samples must be 1 where captions are greedy, not {policy.samples}.")
    if policy.baseline == "best" and policy.top_q > policy.samples + policy.references:
        raise UserError(f"{where}.top_q: a photo has {policy.samples} captions, not {policy.top_q}.")
    if policy.sampler == "diverse_beam" and policy.samples % policy.groups:
        raise UserError(f"{where}.samples must be a multiple of groups, not {policy.samples} with {policy.groups}.")
    if policy.baseline == "second_sample" and policy.sampler != "sample":
        raise UserError(
            f"{where}.baseline: a second sample is drawn where the first is; the sampler is {policy.sampler}."
        )
    if policy.mixer and (policy.sampler != "sample" or policy.references):
        raise UserError(
            f"{where}.mixer: the words after a reference's are drawn; sampler is another, or references set."
        )
    if policy.chunk and (policy.passes == "one" or policy.no_repeat or policy.dropout):
        raise UserError(
            f"{where}.chunk: captions are drawn first and then scored; passes is one, or no_repeat or dropout set."
        )
    if policy.passes == "two" and (policy.no_repeat or policy.dropout):
        raise UserError(f"{where}.passes: with no_repeat or dropout, words are scored as they are drawn, in one pass.")


def _check_curve(curve: list[list[float]]) -> None:
    """Points of scheduled sampling: [share of the training, chance], from left to right."""
    for number, point in enumerate(curve):
        after = curve[number - 1][0] if number else 0
        if len(point) != 2 or not 0 <= after <= point[0] <= 1 or not 0 <= point[1] <= 1:
            raise UserError(
                "objective.scheduled_sampling.curve: a point is [share of the training, chance], both from 0 to 1, and "
                f"points go from left to right; point {number + 1} does not."
            )
