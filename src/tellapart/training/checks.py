"""Checks of a recipe against the tables of networks, objectives, rewards and measures, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from capscore.errors import UserError
from tellapart import models, recipe_files
from tellapart.captioners import CAPTIONERS
from tellapart.detectors import KINDS
from tellapart.models import VISION_LANGUAGE
from tellapart.recipe import EncoderConfig, Recipe
from tellapart.retrievers import RETRIEVERS
from tellapart.rewards import registry
from tellapart.taggers import TAGGERS
from tellapart.training.objectives import OBJECTIVES, Network, learned_by
from tellapart.training.validation import LAST, METRICS, RETRIEVAL_METRICS, lacks, measure_of, measured


def check(recipe: Recipe) -> None:
    recipe_files.check_ranges(recipe)
    recipe.check_fields()
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
    if recipe.objective.name == "policy_gradient":
        registry.check(recipe.objective.rewards)
        if "detector" in registry.needs_of(recipe.objective.rewards) and not recipe.detector:
            raise UserError(f"objective.rewards.weights: objects needs a detector, which --detector names: {KINDS}.")
    detected = [name for name, source in recipe.streams.items() if source.detected]
    if detected and not recipe.detector:
        raise UserError(f"inputs.{detected[0]}.detected: boxes need a detector, which --detector names: {KINDS}.")
    by_text = recipe.retriever and RETRIEVERS[recipe.retriever].sees == "references"
    if by_text and recipe.data.captions_per_photo != 2:
        raise UserError(
            f"data.captions_per_photo must be 2: {recipe.retriever} brings two captions of a photo together."
        )


def _check_metric(metric: str, reported: Sequence[str], kind: Network) -> None:
    """Refuses a metric that cannot choose the best checkpoint; a captioner's may be any score of the measure table."""
    if metric == LAST or metric in (METRICS if kind == "captioner" else reported):
        return
    measure = measure_of(metric) if kind == "captioner" else None
    if measure is None or lacks(measure):
        metrics = measured() if kind == "captioner" else [*reported, LAST]
        raise UserError(f"validation.metric: there is no {metric!r} here; there are {', '.join(metrics)}.")
    if why := measure.missing():
        raise UserError(f"validation.metric: {metric} cannot be computed: {why}")
