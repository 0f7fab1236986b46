"""One captioner from several that started from the same weights: the mean of their weights.

Runs of one recipe with several seeds average to one that generalises better than any of them, at the cost of one (model
soups, Wortsman et al., 2022).  Runs with different rewards average to what lies between them, and the shares choose
where (rewarded soups, Ramé et al., 2023).  With a share below 0, what one run learned is added to another: shares of 1,
1 and -1 for that other, the run, and what the run began with (task arithmetic, Ilharco et al., 2023).  It works only
for runs that began with the same weights: of others the mean means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from capscore.errors import UserError
from tellapart import models
from tellapart.captioners import CAPTIONERS
from tellapart.data.tokenizers import spellings
from tellapart.models.parts import carry, parts_in


def average(folders: Sequence[Path], out: Path, shares: Sequence[float] | None = None) -> None:
    """Write a model folder whose weights are the mean of those of the folders.

    shares  how much each counts, in proportion; default: all alike
    """
    shares = [1.0] * len(folders) if shares is None else shares
    if len(shares) != len(folders):
        raise UserError(f"there are {len(folders)} models and {len(shares)} shares; each model has one.")
    if sum(shares) <= 0:
        raise UserError(f"the shares of all models together must be above 0, not {sum(shares):g}.")
    first = models.read_config(folders[0], "captioner")
    shape = _without_dropout(first)
    tokenizer = models.load_tokenizer(folders[0], first.settings)
    mean, loaded = (models.build(CAPTIONERS, "captioner", first.name, first.settings) for _ in range(2))
    for weight in models.own_weights(mean).values():
        weight.zero_()
    for folder, share in zip(folders, shares, strict=True):
        if _without_dropout(models.read_config(folder, "captioner")) != shape:
            raise UserError(f"{folders[0]} and {folder} differ in their config.json: there is no mean of the two.")
        if spellings(models.load_tokenizer(folder, first.settings)) != spellings(tokenizer):
            raise UserError(f"{folders[0]} and {folder} have different vocabularies: there is no mean of the two.")
        models.load_weights(folder, loaded)
        for total, weight in zip(models.own_weights(mean).values(), models.own_weights(loaded).values(), strict=True):
            total.add_(weight, alpha=share / sum(shares))
    out.mkdir(parents=True, exist_ok=True)
    models.describe(out, first.name, mean, tokenizer, first.inputs)
    carry(parts_in(folders[0]), out)
    models.save_weights(out / "model.safetensors", mean)


def _without_dropout(config: models.Config) -> models.Config:
    """The settings that weights must share: dropout has none."""
    return replace(config, settings={name: value for name, value in config.settings.items() if name != "dropout"})
