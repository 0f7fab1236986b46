"""How a captioner's own captions are drawn and compared with each other: the settings of a policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sampler = Literal["sample", "greedy", "beam", "diverse_beam"]
Baseline = Literal[
    "leave_one_out", "greedy", "second_sample", "mean", "best", "references", "running_mean", "none"
]  # fmt: skip
Whiten = Literal["none", "batch", "photo"]
Reduction = Literal["words", "sentence_mean", "sentence_sum"]
Passes = Literal["auto", "one", "two"]


@dataclass(frozen=True)
class PolicyConfig:
    """Samplers, baselines, advantages and reductions combine freely.

    Args:
        sampler: where captions come from: drawn at random, the likeliest words, or all hypotheses of a beam search
        samples: captions of a photo; the width of a beam; 1 where they are greedy
        temperature: of drawn captions
        top_k: draw among so many likeliest words only; 0: all
        top_p: draw among the fewest likeliest words that together have this probability
        no_repeat: no sequence of so many words is drawn twice in a caption; 0: no constraint
        groups: of a diverse beam
        diversity: of a diverse beam, what it costs to say what an earlier group has said
        baseline: what a caption's reward is compared with: the mean of its photo's other captions, the greedy caption,
            a second independent sample, the mean of all captions, or of the `top_q` best, of the photo, the mean of its
            references (each against the others), the mean of all rewards so far, or nothing
        top_q: captions of a photo that the baseline `best` averages (Q of b2)
        references: so many of a photo's references are learned from beside its samples, with rewards of their own
        whiten: advantages divided by their spread, over the batch or over each photo's captions, after their mean was
            taken off
        reduction: the loss is a mean over all words, over sentences of their mean word, or over sentences of their sum
        kl: weight of the divergence from the model that training started with
        dropout: on while captions are drawn and learned from
        passes: one pass gives captions and their log-probabilities; in two, the captions are drawn without gradients
            and scored at once, which is quicker where a captioner takes all words at a time (auto)
    """

    sampler: Sampler = "sample"
    samples: int = 5
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    no_repeat: int = 0
    groups: int = 1
    diversity: float = 0.5
    baseline: Baseline = "leave_one_out"
    top_q: int = 3
    references: int = 0
    whiten: Whiten = "none"
    reduction: Reduction = "words"
    kl: float = 0.0
    dropout: bool = False
    passes: Passes = "auto"
