"""The part of a recipe that says what is trained by LoRA."""

from __future__ import annotations

from dataclasses import dataclass

from tellapart.recipe_ranges import Count, FewOrNone


@dataclass
class LoraConfig:
    """LoRA: what is trained in place of the layers of a captioner that a run starts from (init_from).

    Args:
        rank: of the matrices beside each linear layer; 0: none
        alpha: their factor is alpha / rank
    """

    rank: FewOrNone = 0
    alpha: Count = 32
