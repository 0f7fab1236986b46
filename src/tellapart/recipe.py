"""What a recipe may say: dataclasses with their defaults, and nothing else.

A recipe is YAML with only what differs from these; `tellapart train RECIPE --print_config` shows it whole.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from tellapart.data.streams import REGIONS

Setting = bool | int | float  # of a network


@dataclass(frozen=True)
class Range:
    """The least and the largest value of a field; `recipe_values.check_ranges` checks them."""

    least: float
    most: float


Share = Annotated[float, Range(0, 1)]
Size = Annotated[float, Range(0, 10**6)]
Weight = Annotated[float, Range(-(10**6), 10**6)]
Count = Annotated[int, Range(1, 10**9)]  # photos, steps, epochs
CountOrNone = Annotated[int, Range(0, 10**9)]
Few = Annotated[int, Range(1, 10_000)]  # captions of a photo, words of a caption
FewOrNone = Annotated[int, Range(0, 10_000)]

Pooling = Literal["avg", "max"]


@dataclass(frozen=True)
class EncoderConfig:
    """Which encoder, and how it looks at a photo.

    Args:
        name: from `tellapart models`, a folder or hub id, or the name that features from elsewhere were imported under
        image_size: pixels a side that the network sees
        grid: cells a side that a captioner may look at, pooled from the network's own map; 1: one vector
        pooling: whether a cell is the mean or, number by number, the largest of what it covers of that map
        coarse: cells a side of a second grid over the same map, whose cells follow those of the first as regions, so
            that a captioner sees the photo at two scales; 0: no second grid
        frames: of a clip, evenly in time, whose cells follow each other as regions; 0: the middle frame alone
        around: each of those frames stands between the ones so many before and after it; 0: alone
    """

    name: str = "efficientnet_lite2"
    image_size: Annotated[int, Range(8, 2048)] = 256
    grid: Annotated[int, Range(1, 64)] = 8
    pooling: Pooling = "avg"
    coarse: Annotated[int, Range(0, 64)] = 0
    frames: Annotated[int, Range(0, 64)] = 0
    around: Annotated[int, Range(0, 10_000)] = 0

    @property
    def identity(self) -> dict[str, Any]:
        """As manifests and model folders keep it; those from before there was a choice say nothing of it."""
        unsaid = {"pooling": "avg", "coarse": 0, "frames": 0, "around": 0}
        return {key: value for key, value in asdict(self).items() if key not in unsaid or value != unsaid[key]}

    @property
    def grids(self) -> tuple[int, ...]:
        """Cells a side of each grid."""
        return (self.grid, self.coarse) if self.coarse else (self.grid,)

    @property
    def cells(self) -> int:
        """Of all grids together."""
        return sum(side**2 for side in self.grids)


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
    samples: Few = 5
    temperature: Annotated[float, Range(1e-3, 10**6)] = 1.0
    top_k: CountOrNone = 0
    top_p: Annotated[float, Range(1e-6, 1)] = 1.0
    no_repeat: FewOrNone = 0
    groups: Few = 1
    diversity: Size = 0.5
    baseline: Baseline = "leave_one_out"
    top_q: Few = 3
    references: FewOrNone = 0
    whiten: Whiten = "none"
    reduction: Reduction = "words"
    kl: Size = 0.0
    dropout: bool = False
    passes: Passes = "auto"


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

    threshold: Weight = 5.0
    word_threshold: Weight = 1.0
    tf: Frequency = "count"
    length_penalty: bool = True
    centre: bool = False
    at_most_references: bool = False
    share: Size = 0.0
    qualify: Literal["rare", "contrast"] = "rare"
    ngram_quantile: Share = 0.0
    word_quantile: Share = 0.0
    bonus: Size = 1.0


@dataclass(frozen=True)
class WatchConfig:
    """Each validation is compared with the one before the first step.

    A change counts if it is larger than what is said here, and larger than chance would make it on so many photos: the
    95 % interval of the change must not have 0 in it.

    Args:
        action: what to do about captions that look wrong: say so, stop the run, or do not look
        unique: least share of different captions, of what it was
        length: most that captions may grow or shrink, as a factor
        repetition: most that the share of captions which repeat a content word may rise
        ending: most that the share of captions which break off, as "a dog on a" does, may rise
        stutter: most that the share of captions in which a word follows itself may rise
        unusual_order: most that the share of captions with an unusual order of function words may rise
    """

    action: Literal["warn", "stop", "off"] = "warn"
    unique: Share = 0.5
    length: Annotated[float, Range(1, 10**6)] = 1.5
    repetition: Share = 0.25
    ending: Share = 0.05
    stutter: Share = 0.02
    unusual_order: Share = 0.02


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
    min_count: Count = 5
    max_words: Few = 20
    captions_per_photo: Few = 5
    limit: CountOrNone = 0
    views: FewOrNone = 0
    exclude: list[str] = field(default_factory=list)


@dataclass
class ScheduledSampling:
    """How often a word is followed by one of the captioner's own while it learns.

    Args:
        start: first epoch (counted from 0); -1: never
        every: epochs between two increases
        increase: what the chance grows by, from the first of those epochs on
        most: where it stops growing
        curve: instead of these, points [share of the training, chance] that are joined by lines: it may rise and fall
    """

    start: Annotated[int, Range(-1, 10**9)] = -1
    every: Count = 5
    increase: Share = 0.05
    most: Share = 0.25
    curve: list[list[float]] = field(default_factory=list)


@dataclass
class CaptionWeights:
    """How much each reference counts in cross-entropy.

    Args:
        by: none, every reference counts as 1; leave_one_out, by its agreement with the item's other references (DXE of
            GL-RG); cider_between, less the more it fits the item's look-alikes (CIDErBtw-Cap)
        metric: of leave_one_out: CIDEr-D, CIDEr, BLEU-1 to BLEU-4, ROUGE-L or METEOR
        normalise: weights as they are (none), with mean 1 over the references of each item, or of all items (global)
    """

    by: Literal["none", "leave_one_out", "cider_between"] = "none"
    metric: str = "CIDEr-D"
    normalise: Literal["none", "item", "global"] = "none"


@dataclass
class RewardsConfig:
    """What captions are rewarded for.

    Args:
        weights: name of a reward, from `tellapart models`, and its weight
        dataset_weights: of a reward, what its weight is multiplied with for the photos of a data set, by its name
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

    weights: dict[str, Weight] = field(default_factory=lambda: {"cider_d": 1.0})
    dataset_weights: dict[str, dict[str, Weight]] = field(default_factory=dict)
    image_retriever: str = "word"
    text_retriever: str = ""
    look_alikes: str = "image"
    group_size: Annotated[int, Range(1, 10**6)] = 5
    curriculum: bool = False
    weight_by_closeness: bool = False
    margin: Annotated[float, Range(0, 2)] = 0.2
    ld: LocalConfig = field(default_factory=LocalConfig)
    rank_base: Annotated[int, Range(1, 10**6)] = 200
    balance: bool = False
    unbalanced: list[str] = field(default_factory=lambda: ["repetition", "unusual_order", "ending"])
    count_end: bool = True


@dataclass
class ObjectiveConfig:
    """What is optimised.

    Args:
        name: cross_entropy or policy_gradient for captioners; info_nce or max_violation (VSE++) for retrievers; or one
            of a plugin
        label_smoothing: share of the target that is spread over all words
        hide_regions: chance of a region of a photo to be hidden from a captioner in a step, against learning by heart
        caption_weights: how much each reference counts
        scheduled_sampling: the captioner's own words among the reference's
        policy: where the captions of a policy gradient come from, and what they are compared with
        rewards: what they are worth
        margin: of max_violation
        all_negatives: first epochs of max_violation, in which all others count and not the hardest alone
    """

    name: str = "cross_entropy"
    label_smoothing: Share = 0.0
    hide_regions: Share = 0.0
    caption_weights: CaptionWeights = field(default_factory=CaptionWeights)
    scheduled_sampling: ScheduledSampling = field(default_factory=ScheduledSampling)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    margin: Annotated[float, Range(0, 2)] = 0.2
    all_negatives: CountOrNone = 0


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

    lr: Size = 5e-4
    weight_decay: Size = 0.01
    betas: tuple[Share, Share] = (0.9, 0.98)
    schedule: Literal["constant", "linear", "cosine", "step", "noam"] = "constant"
    warmup: CountOrNone = 0
    final_lr_ratio: Share = 0.0
    decay: Size = 0.8
    decay_epochs: Count = 3
    clip_norm: Size = 0.0
    clip_value: Size = 0.0
    accumulate: Count = 1
    ema_decay: Annotated[float, Range(0, 1 - 1e-9)] = 0.0


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

    every: Annotated[float, Range(0, 10**9)] = 1.0
    metric: str = "CIDEr-D"
    patience: CountOrNone = 0
    photos: CountOrNone = 0
    beam: Few = 1
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
    batch_size: Annotated[int, Range(1, 10**6)] = 16
    epochs: Count = 10
    max_steps: CountOrNone = 0
    save_minutes: Annotated[float, Range(0, 10**9)] = 5.0
    log_steps: Count = 20
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    threads: FewOrNone = 0

    @property
    def streams(self) -> dict[str, EncoderConfig]:
        """What each stream of a captioner's input comes from."""
        return dict(self.inputs) or {REGIONS: self.encoder}
