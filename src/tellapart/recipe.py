"""What a recipe may say: dataclasses with their defaults, and nothing else.

A recipe is YAML with only what differs from these; `tellapart train RECIPE --print_config` shows it whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tellapart.data.streams import REGIONS
from tellapart.encoders import EncoderConfig
from tellapart.objectives.policy import PolicyConfig
from tellapart.rewards.local_config import LocalConfig
from tellapart.training.watch import WatchConfig

Setting = bool | int | float  # of a network


@dataclass
class DataConfig:
    """What is learned from.

    Args:
        files: data files in the one schema; `--data` on the command line is short for this
        features: folder of the feature cache; what is missing there is computed first
        train_split: the split that is learned from; "train+restval" joins two
        val_split: the split that stops the training and picks the best checkpoint
        tokenizer: folder of a language model whose sub-words captions are written in; empty: words of the captions
        min_count: words that occur less often than this in the training captions are not in the vocabulary
        max_words: longer captions are cut
        captions_per_photo: captions of a photo that stand together in a batch
        limit: at most so many photos of each split, for a trial; 0: all
        views: other views of each training photo: parts of it, half of them mirrored.  A step sees one of them or the
            whole photo, as chance has it, against learning by heart.  Each view takes as much disk as the photos' own
        exclude: data files whose photos are left out, by id, by file name, or by captions that they share
    """

    files: list[str] = field(default_factory=list)
    features: str = "features"
    train_split: str = "train"
    val_split: str = "val"
    tokenizer: str = ""
    min_count: int = 5
    max_words: int = 20
    captions_per_photo: int = 5
    limit: int = 0
    views: int = 0
    exclude: list[str] = field(default_factory=list)


@dataclass
class ScheduledSampling:
    """How often a word is followed by one of the captioner's own while it learns.

    Args:
        start: first epoch (counted from 0); -1: never
        every: epochs between two increases
        increase: what the chance grows by, from the first of those epochs on
        most: where it stops growing
    """

    start: int = -1
    every: int = 5
    increase: float = 0.05
    most: float = 0.25


@dataclass
class RewardsConfig:
    """What captions are rewarded for.

    Args:
        weights: name of a reward, from `tellapart models`, and its weight
        dataset_weights: of a reward, what its weight is multiplied with for the photos of a data set, by that one's name
        image_retriever: the retriever that is asked whether captions fit their photos: a name or a run folder
        text_retriever: the retriever from text to text that is asked whether captions fit their photos' references
        look_alikes: a file of `tellapart lookalikes`, or how they are found among the training photos: image, or
            caption (the similar groups of GEG)
        group_size: look-alikes of a photo
        curriculum: photos that look less alike come first, and the nearest at the end
        weight_by_closeness: GD weighs more for photos whose look-alikes are near
        margin: of the hinges of GD
        ld: of LD
        rank_base: the rank from which on a bounded rank reward is 0
        balance: each term is divided by how much it varies among the captions of a photo
        unbalanced: terms that keep their plain weights all the same: penalties, of which most captions have none
        count_end: the end of a caption counts as a word in rewards for saying what people say
    """

    weights: dict[str, float] = field(default_factory=lambda: {"cider_d": 1.0})
    dataset_weights: dict[str, dict[str, float]] = field(default_factory=dict)
    image_retriever: str = "word"
    text_retriever: str = ""
    look_alikes: str = "image"
    group_size: int = 5
    curriculum: bool = False
    weight_by_closeness: bool = False
    margin: float = 0.2
    ld: LocalConfig = field(default_factory=LocalConfig)
    rank_base: int = 200
    balance: bool = False
    unbalanced: list[str] = field(default_factory=lambda: ["repetition", "unusual_order", "ending"])
    count_end: bool = True


@dataclass
class ObjectiveConfig:
    """What is optimised.

    Args:
        name: cross_entropy or policy_gradient for captioners; for retrievers info_nce or max_violation (VSE++)
        label_smoothing: share of the target that is spread over all words
        hide_regions: chance of a region of a photo to be hidden from a captioner in a step, against learning by heart
        scheduled_sampling: the captioner's own words among the reference's
        policy: where the captions of a policy gradient come from, and what they are compared with
        rewards: what they are worth
        margin: of max_violation
        all_negatives: first epochs of max_violation, in which all others count and not the hardest alone
    """

    name: Literal["cross_entropy", "policy_gradient", "info_nce", "max_violation"] = "cross_entropy"
    label_smoothing: float = 0.0
    hide_regions: float = 0.0
    scheduled_sampling: ScheduledSampling = field(default_factory=ScheduledSampling)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    margin: float = 0.2
    all_negatives: int = 0


@dataclass
class OptimConfig:
    """How it is optimised.

    Args:
        lr: the highest learning rate
        weight_decay: of AdamW; not applied to biases, norms and embeddings
        betas: of AdamW
        schedule: how the learning rate falls after the warm-up; noam: with the square root of the step (Vaswani et al.,
            2017), whose own formula has its highest rate, our lr, at (width * warmup)^-.5
        warmup: optimiser steps until the learning rate is reached
        final_lr_ratio: share of the learning rate that linear and cosine end with
        decay: factor of the step schedule
        decay_epochs: epochs between two such factors
        clip_norm: largest norm of all gradients together; 0: no limit
        clip_value: largest value of each gradient; 0: no limit
        accumulate: batches per optimiser step
        ema_decay: what is validated and kept is a running mean of the weights, of which a step leaves so much, such as
            0.99 for about a hundred steps; 0: the weights themselves
    """

    lr: float = 5e-4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    schedule: Literal["constant", "linear", "cosine", "step", "noam"] = "constant"
    warmup: int = 0
    final_lr_ratio: float = 0.0
    decay: float = 0.8
    decay_epochs: int = 3
    clip_norm: float = 0.0
    clip_value: float = 0.0
    accumulate: int = 1
    ema_decay: float = 0.0


@dataclass
class ValidationConfig:
    """How the best checkpoint is found.

    Args:
        every: epochs between two validations
        metric: what decides: of a captioner loss, accuracy, CIDEr-D, unique, Rep, BadEnd, Stutter or UnusualOrder; of
            a retriever R@1, R@5, R@10 or recall, their mean; "last": nothing, the last checkpoint is kept
        patience: validations without a better value before training stops; 0: never
        photos: at most so many photos of the validation split; 0: all
        beam: width of the beam that captions them; 1: greedy
        judges: retrievers that are asked whether captions find their photos; they decide nothing
        watch: for captions that collapse, in a policy gradient
    """

    every: float = 1.0
    metric: str = "CIDEr-D"
    patience: int = 0
    photos: int = 0
    beam: int = 1
    judges: list[str] = field(default_factory=list)
    watch: WatchConfig = field(default_factory=WatchConfig)


@dataclass
class Recipe:
    """A training run.

    Args:
        captioner: name of the captioner, from `tellapart models`
        retriever: name of a retriever, from `tellapart models`, which is then trained instead of a captioner
        model: its settings, where they differ from its own defaults
        encoder: what looks at the photos: short for inputs with the one stream `regions`
        inputs: streams that the captioner takes, by name, and what each comes from, as in `encoder`
        data: what is learned from
        objective: what is optimised
        optim: how
        validation: how the best checkpoint is found
        init_from: run or model folder whose weights and vocabulary this run starts with
        batch_size: photos in a batch, of all processes together
        epochs: passes over the photos
        max_steps: optimiser steps at most; 0: no limit
        save_minutes: minutes between checkpoints; one is also written at each validation
        log_steps: optimiser steps between lines of log.jsonl
        seed: decides the order of the photos, the first weights and every draw
        device: auto, cpu, cuda ...
        dtype: number type; auto measures which is quicker here
        threads: CPU threads; 0: as many as torch thinks fit, which on a busy machine is slower than 1
    """

    captioner: str = "transformer"
    retriever: str = ""
    model: dict[str, Setting] = field(default_factory=dict)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    inputs: dict[str, EncoderConfig] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    init_from: str = ""
    batch_size: int = 16
    epochs: int = 10
    max_steps: int = 0
    save_minutes: float = 5.0
    log_steps: int = 20
    seed: int = 0
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int = 0

    @property
    def streams(self) -> dict[str, EncoderConfig]:
        """What each stream of a captioner's input comes from."""
        return dict(self.inputs) or {REGIONS: self.encoder}
