"""What a recipe's types cannot say; found before anything is computed."""

from __future__ import annotations

import math
from typing import Any

from tellapart import models
from tellapart.captioners import CAPTIONERS
from tellapart.errors import UserError
from tellapart.recipe import EncoderConfig, PolicyConfig, Recipe
from tellapart.retrievers import RETRIEVERS
from tellapart.rewards import registry
from tellapart.training.loop import LAST
from tellapart.training.objectives import OBJECTIVES, Network, learned_by
from tellapart.training.retrieval_validation import METRICS as RETRIEVAL_METRICS
from tellapart.training.run_folder import flat, plain
from tellapart.training.validation import METRICS

_MANY, _LARGE, _HUGE = 10_000, 10**6, 10**9  # captions of a photo or the like; weights; photos or steps
_RANGES: dict[str, tuple[float, float]] = {  # least and most of every number
    "seed": (0, 2**63 - 1),
    **dict.fromkeys(("epochs", "log_steps", "data.min_count", "optim.accumulate", "optim.decay_epochs"), (1, _HUGE)),
    **dict.fromkeys(("max_steps", "save_minutes", "data.limit", "optim.warmup", "objective.all_negatives"), (0, _HUGE)),
    **dict.fromkeys(("validation.every", "validation.patience", "validation.photos"), (0, _HUGE)),
    **dict.fromkeys(("batch_size", "objective.rewards.group_size", "objective.rewards.rank_base"), (1, _LARGE)),
    **dict.fromkeys(("data.max_words", "data.captions_per_photo", "validation.beam"), (1, _MANY)),
    **dict.fromkeys(("threads", "data.views"), (0, _MANY)),
    "encoder.image_size": (8, 2048),
    "encoder.grid": (1, 64),
    **dict.fromkeys(("optim.lr", "optim.weight_decay", "optim.decay"), (0, _LARGE)),
    **dict.fromkeys(("optim.clip_norm", "optim.clip_value"), (0, _LARGE)),
    **dict.fromkeys(("optim.betas", "optim.final_lr_ratio"), (0, 1)),
    "optim.ema_decay": (0, 1 - 1e-9),
    **dict.fromkeys(("objective.label_smoothing", "objective.hide_regions"), (0, 1)),
    "objective.distillation": (0, _LARGE),
    **dict.fromkeys(("objective.margin", "objective.rewards.margin"), (0, 2)),
    "objective.scheduled_sampling.start": (-1, _HUGE),
    "objective.scheduled_sampling.every": (1, _HUGE),
    **dict.fromkeys(("objective.scheduled_sampling.increase", "objective.scheduled_sampling.most"), (0, 1)),
    **dict.fromkeys(("objective.policy.samples", "objective.policy.top_q", "objective.policy.groups"), (1, _MANY)),
    **dict.fromkeys(("objective.policy.no_repeat", "objective.policy.references"), (0, _MANY)),
    "objective.policy.top_k": (0, _HUGE),
    **dict.fromkeys(("objective.policy.diversity", "objective.policy.kl"), (0, _LARGE)),
    "objective.policy.temperature": (1e-3, _LARGE),
    "objective.policy.top_p": (1e-6, 1),
    **dict.fromkeys(("objective.rewards.ld.threshold", "objective.rewards.ld.word_threshold"), (-_LARGE, _LARGE)),
    **dict.fromkeys(("objective.rewards.ld.ngram_quantile", "objective.rewards.ld.word_quantile"), (0, 1)),
    **dict.fromkeys(("objective.rewards.ld.share", "objective.rewards.ld.bonus"), (0, _LARGE)),
    **dict.fromkeys(("validation.watch.unique", "validation.watch.repetition", "validation.watch.ending"), (0, 1)),
    **dict.fromkeys(("validation.watch.stutter", "validation.watch.unusual_order"), (0, 1)),
    "validation.watch.length": (1, _LARGE),
}
_WEIGHT = (-_LARGE, _LARGE)


def check(recipe: Recipe) -> None:
    values: dict[str, Any] = flat(plain(recipe))
    for name, (least, most) in _RANGES.items():
        for number in values[name] if isinstance(values[name], list) else [values[name]]:
            _check_range(name, number, least, most)
    rewarded, where = recipe.objective.rewards, "objective.rewards"
    for term, weight in rewarded.weights.items():
        _check_range(f"{where}.weights.{term}", weight, *_WEIGHT)
    for term, factors in rewarded.dataset_weights.items():
        for data, factor in factors.items():
            _check_range(f"{where}.dataset_weights.{term}.{data}", factor, *_WEIGHT)
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
    elif kind == "captioner":
        models.check_settings(CAPTIONERS, "captioner", recipe.captioner, recipe.model)
    reported = {"retriever": RETRIEVAL_METRICS, "captioner": METRICS, "network": objective.metrics}[kind]
    metrics = (*reported, LAST)
    if recipe.validation.metric not in metrics:
        raise UserError(
            f"validation.metric: there is no {recipe.validation.metric!r} here; there are {', '.join(metrics)}."
        )
    _check_curve(recipe.objective.scheduled_sampling.curve)
    if recipe.objective.distillation and not recipe.optim.ema_decay:
        raise UserError("objective.distillation: the teacher is a running mean of the weights; give optim.ema_decay.")
    if recipe.objective.name == "policy_gradient":
        _check_policy(recipe.objective.policy)
        policy = recipe.objective.policy
        if recipe.objective.rewards.balance and policy.samples + policy.references < 2:
            raise UserError(
                "objective.rewards.balance goes by how much captions of a photo differ; samples must be 2 or more."
            )
        registry.check(recipe.objective.rewards)
    if recipe.retriever and recipe.init_from:
        raise UserError("init_from: a retriever starts from fresh weights.")
    by_text = recipe.retriever and RETRIEVERS[recipe.retriever].sees == "references"
    if by_text and recipe.data.captions_per_photo != 2:
        raise UserError(
            f"data.captions_per_photo must be 2: {recipe.retriever} brings two captions of a photo together."
        )


def _check_range(name: str, number: float, least: float, most: float) -> None:
    if not least <= number <= most:  # also where it is not a number
        meant = f"at least {least}" if number < least else f"at most {most}"
        raise UserError(f"{name} must be {'a number' if math.isnan(number) else meant}, not {number}.")


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
