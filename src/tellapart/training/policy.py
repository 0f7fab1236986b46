"""The step of a policy gradient as a recipe describes it, for training and for timing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from tellapart.data.batches import CaptionedPhotos
from tellapart.data.tokenizers import Tokenizer
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.objectives.policy_gradient import PolicyGradient
from tellapart.recipe import Recipe
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import Term, registry
from tellapart.rewards.context import RewardContext, Source
from tellapart.rewards.words import WordView
from tellapart.training.data import not_learned_from

Step = TypeVar("Step", bound=PolicyGradient)


def policy_step(
    kind: type[Step],
    recipe: Recipe,
    captioner: nn.Module,
    tokenizer: Tokenizer,
    sources: Sequence[Source],
    photos: CaptionedPhotos,
    *,
    names: Sequence[str],
    features: Path,
    device: torch.device,
    world: ProcessGroup = SINGLE,
    load: Callable[[str], Retriever] | None = None,
    wrap: Callable[[str, Term], Term] | None = None,
) -> Step:
    """kind      PolicyGradient, or one that also measures itself
    sources   the training photos with their features, data set by data set, and `photos` the same with their captions
    names     of the data sets
    features  the folder of the feature cache
    load      gives the retriever of a name (default: loads it)
    wrap      what becomes of each reward, by its name (default: nothing)
    """
    view = WordView.of(tokenizer, (text for example in photos.examples for text in example.captions))
    context = RewardContext(
        recipe.objective.rewards,
        sources,
        photos,
        view,
        features=features,
        device=device,
        names=names,
        world=world,
        load=load,
        detector=recipe.detector,
        left_out=partial(not_learned_from, recipe),
    )
    return kind(
        captioner,
        tokenizer,
        registry.build(context, wrap),
        recipe.objective.policy,
        max_words=recipe.data.max_words,
        view=view,
        before=frozen(captioner) if recipe.objective.policy.kl else None,
        total=world.sum,
        hide_regions=recipe.objective.hide_regions,
    )


def frozen(captioner: nn.Module) -> nn.Module:
    """A copy that stays as it is."""
    return copy.deepcopy(captioner).eval().requires_grad_(False)
