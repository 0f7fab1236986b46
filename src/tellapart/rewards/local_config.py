"""Settings of the local discriminative reward (LD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Frequency = Literal["count", "normalised"]


@dataclass(frozen=True)
class LocalConfig:
    """Which words of a caption get a bonus, and how much of one.

    Args:
        threshold: λ: n-grams that weigh no more than this add nothing to a word's bonus
        word_threshold: η: words that weigh no more than this get no bonus
        tf: an n-gram weighs by its "count" in the caption, or by its share of the n-grams of that length, "normalised"
        length_penalty: a caption that is longer or shorter than a reference earns less by it
        at_most_references: a word said more often than any one reference has it gets nothing from then on
        share: a caption's bonuses are scaled to sum up to so many times its CIDEr-D; 0 leaves them as they are
        centre: from each bonus the mean over the qualifying words of the batch is taken away, after all of the above
        bonus: what all bonuses are multiplied with
        qualify: "rare", by `word_threshold`; or "contrast": content words that the photo's references have and those of
            fewer than half of its look-alikes have, with all their n-grams whatever these weigh
        ngram_quantile: λ is the weight that this share of all n-grams of the references does not exceed; 0: `threshold`
        word_quantile: η is the weight that this share of all their words does not exceed; 0: `word_threshold`
    """

    threshold: float = 5.0
    word_threshold: float = 1.0
    tf: Frequency = "count"
    length_penalty: bool = True
    centre: bool = False
    at_most_references: bool = False
    share: float = 0.0
    qualify: Literal["rare", "contrast"] = "rare"
    ngram_quantile: float = 0.0
    word_quantile: float = 0.0
    bonus: float = 1.0
