"""The fields of a recipe: dataclasses with defaults, ranges and a help line for each field.

A recipe is YAML with the fields that differ from the defaults; `tellapart train RECIPE --print_config` shows all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from tellapart.data.streams import REGIONS
from tellapart.recipe_policy import PolicyConfig, RewardsConfig
from tellapart.recipe_ranges import Count, CountOrNone, Few, FewOrNone, Range, Share, Size

Setting = bool | int | float | str  # of a network


Pooling = Literal["avg", "max", "projected"]


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder, and the features that are taken from it.

    Args:
        name: a name from `tellapart models`, a folder, a hub id, or the name of imported features
        image_size: width and height in pixels of the photo that the network gets
        grid: the features are a grid of so many cells on each side; 1: one vector for the whole photo
        pooling: a cell is the mean (avg) or maximum (max) of its part of the map; projected: CLIP's vector, as it is
        coarse: adds a second, coarser grid with so many cells on each side, as further regions; 0: no second grid
        detected: at most so many boxes of the recipe's detector as regions; with grid 1 the whole photo, too; 0: none
        frames: number of frames of a clip, evenly in time, each with its own grid; 0: only the middle frame
        around: each of those frames stands between the ones so many before and after it; 0: alone
        most: of the stream attributes, how many words a photo has at most
        threshold: of the stream attributes, words that are no more probable than this are left out
    """

    name: str = "efficientnet_lite2"
    image_size: Annotated[int, Range(8, 2048)] = 256
    grid: Annotated[int, Range(1, 64)] = 8
    pooling: Pooling = "avg"
    coarse: Annotated[int, Range(0, 64)] = 0
    frames: Annotated[int, Range(0, 64)] = 0
    around: Annotated[int, Range(0, 10_000)] = 0
    most: Annotated[int, Range(1, 1000)] = 50
    threshold: Share = 0.0
    detected: Annotated[int, Range(0, 100)] = 0

    @property
    def identity(self) -> dict[str, Any]:
        """As manifests and model folders keep it; those from before there was a choice say nothing of it."""
        defaults = {"pooling": "avg", "coarse": 0, "frames": 0, "around": 0, "detected": 0}
        defaults |= {"most": self.most, "threshold": self.threshold}
        return {key: value for key, value in asdict(self).items() if key not in defaults or value != defaults[key]}

    @property
    def grids(self) -> tuple[int, ...]:  # cells a side of each
        return (self.grid, self.coarse) if self.coarse else (self.grid,)

    @property
    def cells(self) -> int:  # of all grids together
        return sum(side**2 for side in self.grids)


@dataclass(frozen=True)
class WatchConfig:
    """Compare each validation with the one before the first step, to detect captions that degrade.

    A change counts if it exceeds its limit and is statistically significant: its 95 % interval does not contain 0.

    Args:
        action: what to do if captions degrade: print a warning, stop the run, or do not check (off)
        unique: smallest share of unique captions, as a fraction of the first value
        length: largest factor by which the mean length may grow or shrink
        repetition: largest increase of the share of captions that repeat a content word
        ending: largest increase of the share of captions that are incomplete, such as "a dog on a"
        stutter: largest increase of the share of captions in which a word follows itself
        unusual_order: largest increase of the share of captions with an unusual order of function words
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
    """The training data.

    Args:
        files: data files of `tellapart prepare`; `--data` on the command line is short for this
        features: folder of the feature cache; missing features are computed first
        train_split: the split to train on; "train+restval" joins two
        val_split: the split for early stopping and for choosing the best checkpoint
        tokenizer: folder of a language model whose sub-words are used; empty: the words of the training captions
        min_count: words that occur less often than this in the training captions are not in the vocabulary
        max_words: longer captions are cut, and have no end; rewards compare with whole ones
        captions_per_photo: captions of each photo in a batch
        by_length: put captions of about the same length, and items with as many regions, into a batch, so that little
            padding is computed
        limit: use at most so many photos of each split, for a trial; 0: all
        views: number of random crops of each training photo, half of them mirrored.  Each step uses one of them or the
            whole photo, against overfitting.  Each needs as much disk space as the features of the photos
        repeat: data sets whose items come several times in an epoch, by name of the data set: {msrvtt: 10}
        exclude: data files whose photos are left out: photos with the same id, file name or captions
    """

    files: list[str] = field(default_factory=list)
    features: str = "features"
    train_split: str = "train"
    val_split: str = "val"
    tokenizer: str = ""
    min_count: Count = 5
    max_words: Few = 20
    captions_per_photo: Few = 5
    by_length: bool = False
    limit: CountOrNone = 0
    views: FewOrNone = 0
    repeat: dict[str, Few] = field(default_factory=dict)
    exclude: list[str] = field(default_factory=list)


@dataclass
class ScheduledSampling:
    """The probability that the next word is predicted from the captioner's own word instead of the reference's.

    Args:
        start: first epoch (counted from 0); -1: never
        every: number of epochs between two increases
        increase: increase of the probability, from the first epoch on
        most: largest probability
        curve: replaces all of these: points [share of the training, probability], joined by lines
    """

    start: Annotated[int, Range(-1, 10**9)] = -1
    every: Count = 5
    increase: Share = 0.05
    most: Share = 0.25
    curve: list[list[float]] = field(default_factory=list)


@dataclass
class CaptionWeights:
    """The weight of each reference in cross-entropy.

    Args:
        by: none: all weights are 1; leave_one_out: agreement with the other references of the photo (DXE of GL-RG);
            cider_between: smaller, the better the reference fits the photo's look-alikes (CIDErBtw-Cap)
        metric: measure of leave_one_out: CIDEr-D, CIDEr, BLEU-1 to BLEU-4, ROUGE-L or METEOR
        normalise: none; item: mean weight 1 per photo; global: mean weight 1 over all references
    """

    by: Literal["none", "leave_one_out", "cider_between"] = "none"
    metric: str = "CIDEr-D"
    normalise: Literal["none", "item", "global"] = "none"


@dataclass
class ObjectiveConfig:
    """The training objective.

    Args:
        name: cross_entropy, policy_gradient; for retrievers info_nce, max_violation (VSE++); or of a plugin
        label_smoothing: share of the target probability that is spread over all words
        distillation: weight of the mean squared difference between the captioner's logits and those of the running mean
            of its weights (optim.ema_decay), its teacher in cross-entropy (CaMEL); 0: no teacher
        hide_regions: probability that a region is hidden from the captioner in a step, against overfitting
        caption_weights: weights of the references in cross-entropy
        scheduled_sampling: train on the captioner's own words
        policy: sampling and baseline of a policy gradient
        rewards: rewards of a policy gradient
        sentence_weight: of tagging: weight of a second loss, by which the photo's captions are found among those of all
            training photos (rewards.text_retriever embeds them); 0: words alone
        margin: of max_violation
        all_negatives: number of first epochs in which max_violation uses all negatives instead of the hardest
    """

    name: str = "cross_entropy"
    label_smoothing: Share = 0.0
    distillation: Size = 0.0
    hide_regions: Share = 0.0
    caption_weights: CaptionWeights = field(default_factory=CaptionWeights)
    scheduled_sampling: ScheduledSampling = field(default_factory=ScheduledSampling)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    sentence_weight: Size = 0.0
    margin: Annotated[float, Range(0, 2)] = 0.2
    all_negatives: CountOrNone = 0


@dataclass
class OptimConfig:
    """The optimiser, AdamW.

    Args:
        lr: highest learning rate
        weight_decay: not applied to biases, norms and embeddings
        betas: of AdamW
        schedule: of the learning rate after the warm-up; noam: inverse square root of the step, highest at lr
        warmup: optimiser steps in which the learning rate rises to lr
        final_lr_ratio: linear and cosine schedules end with this share of lr
        decay: factor of the step schedule
        decay_epochs: number of epochs between two such factors
        clip_norm: largest norm of all gradients together; 0: no clipping
        clip_value: largest absolute value of each gradient; 0: no clipping
        accumulate: batches per optimiser step
        ema_decay: validate and save a moving average of the weights with this decay, such as 0.99; 0: the weights
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
    """Validation and the choice of the best checkpoint.

    Args:
        every: number of epochs between two validations
        metric: chooses the best checkpoint.  Captioners: loss, accuracy, unique, or any score of `tellapart score` or
            of a plugin, such as CIDEr-D, METEOR or BLEU-4; retrievers: R@1, R@5, R@10 or recall, their mean; "last":
            keep the last checkpoint.  The model that a run starts from competes
        patience: stop after so many validations without improvement; 0: never
        photos: use at most so many photos of the validation split; 0: all
        beam: beam width; 1: greedy search
        judges: retrievers whose R@1 of the captions is reported; it has no effect on the training
        watch: detects captions that degrade, in a policy gradient
    """

    every: Annotated[float, Range(0, 10**9)] = 1.0
    metric: str = "CIDEr-D"
    patience: CountOrNone = 0
    photos: CountOrNone = 0
    beam: Few = 1
    judges: list[str] = field(default_factory=list)
    watch: WatchConfig = field(default_factory=WatchConfig)


@dataclass
class LoraConfig:
    """LoRA: what is trained in place of the layers of a captioner that a run starts from (init_from).

    Args:
        rank: of the matrices beside each linear layer; 0: none
        alpha: their factor is alpha / rank
    """

    rank: FewOrNone = 0
    alpha: Count = 32


@dataclass
class Recipe:
    """A training run.

    Args:
        captioner: the captioner to train, a name from `tellapart models`
        retriever: the retriever to train instead of a captioner, a name from `tellapart models`
        model: settings of the network that differ from its defaults
        encoder: the encoder of the photos: short for inputs with the one stream `regions`
        inputs: the captioner's input streams by name, each with an encoder
        detector: the object detector, for regions (encoder.detected) and the reward `objects`: a YOLOX export
            (FILE.onnx), or a DETR or RT-DETR of transformers by folder or hub id
        data: the training data
        objective: the training objective
        optim: the optimiser
        validation: validation and the choice of the best checkpoint
        init_from: start with the weights and vocabulary of this run or model folder (vision_language: of transformers)
        lora: small matrices beside its frozen layers
        batch_size: photos per batch, over all processes
        epochs: passes over the training photos
        max_steps: stop after so many optimiser steps; 0: no limit
        max_minutes: stop after so many minutes of training, features not counted; 0: no limit
        save_minutes: minutes between two checkpoints; each validation also writes one
        log_steps: optimiser steps between two lines of log.jsonl
        seed: of data order, initial weights and sampling
        device: auto, cpu, cuda ...
        dtype: number type of training; auto: bf16 on a GPU that has it, else fp32.  A run's own recipe says which
        threads: CPU threads; 0: PyTorch's choice, which on a busy machine is slower than 1
    """

    captioner: str = "transformer"
    retriever: str = ""
    model: dict[str, Setting] = field(default_factory=dict)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    inputs: dict[str, EncoderConfig] = field(default_factory=dict)
    detector: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    init_from: str = ""
    lora: LoraConfig = field(default_factory=LoraConfig)
    batch_size: Annotated[int, Range(1, 10**6)] = 16
    epochs: Count = 10
    max_steps: CountOrNone = 0
    max_minutes: Annotated[float, Range(0, 10**9)] = 0.0
    save_minutes: Annotated[float, Range(0, 10**9)] = 5.0
    log_steps: Count = 20
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    threads: FewOrNone = 0

    def is_over(self, seconds: float) -> bool:
        """Whether so many seconds of training are all that there may be."""
        return 0 < 60 * self.max_minutes <= seconds

    @property
    def streams(self) -> dict[str, EncoderConfig]:
        """What each stream of a captioner's input comes from."""
        return dict(self.inputs) or {REGIONS: self.encoder}
