"""The fields of a recipe: dataclasses with defaults, ranges and a help line for each field.

A recipe is YAML with the fields that differ from the defaults; `tellapart train RECIPE --print_config` shows all.
The type of a field says its range, or which kind of thing outside the recipe it names.  `visited` goes by these types
through all fields, so that what a run depends on is listed nowhere else.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from capscore.errors import UserError
from tellapart.data.streams import REGIONS

Config = TypeVar("Config")  # a dataclass


@dataclass(frozen=True)
class Range:
    """The least and the largest value of a field; `recipe_files.check_ranges` checks them."""

    least: float
    most: float


Share = Annotated[float, Range(0, 1)]
Size = Annotated[float, Range(0, 10**6)]
Weight = Annotated[float, Range(-(10**6), 10**6)]
Count = Annotated[int, Range(1, 10**9)]  # photos, steps, epochs
CountOrNone = Annotated[int, Range(0, 10**9)]
Few = Annotated[int, Range(1, 10_000)]  # captions of a photo, words of a caption
FewOrNone = Annotated[int, Range(0, 10_000)]

Kind = Literal["model", "encoder", "detector", "data", "file"]
ModelName = Annotated[str, "model"]  # a run or model folder, a hub id, the name of an embedded model
EncoderName = Annotated[str, "encoder"]  # also the name of an encoder or of imported features, or a file of weights
DetectorName = Annotated[str, "detector"]  # an ONNX file, or a folder or hub id of transformers
DataFile = Annotated[str, "data"]  # of `tellapart prepare`
FileName = Annotated[str, "file"]  # another file or folder, or a word that stands for none

Setting = bool | int | float | FileName  # of a network
UNIONS = (Union, types.UnionType)
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

    name: EncoderName = "efficientnet_lite2"
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

    files: list[DataFile] = field(default_factory=list)
    features: str = "features"
    train_split: str = "train"
    val_split: str = "val"
    tokenizer: FileName = ""
    min_count: Count = 5
    max_words: Few = 20
    captions_per_photo: Few = 5
    by_length: bool = False
    limit: CountOrNone = 0
    views: FewOrNone = 0
    repeat: dict[str, Few] = field(default_factory=dict)
    exclude: list[DataFile] = field(default_factory=list)


Sampler = Literal["sample", "greedy", "beam", "diverse_beam"]
Baseline = Literal["leave_one_out", "greedy", "second_sample", "mean", "best", "references", "running_mean", "none"]
Whiten = Literal["none", "batch", "photo"]
Reduction = Literal["words", "sentence_mean", "sentence_sum"]
Passes = Literal["auto", "one", "two"]


@dataclass(frozen=True)
class PolicyConfig:
    """Sampling, baseline, advantage and loss of a policy gradient.  All settings can be combined.

    Args:
        sampler: random sampling, greedy search, or all hypotheses of a (diverse) beam search
        samples: captions per photo; for a beam search its width; 1 for greedy search
        temperature: of random sampling
        top_k: sample only from the k most likely words; 0: from all words
        top_p: sample only from the smallest set of words whose probabilities add up to this
        no_repeat: no sequence of this many words occurs twice in a sampled caption; 0: no constraint
        groups: number of groups of a diverse beam search
        diversity: penalty of a diverse beam search for words that an earlier group has chosen
        baseline: what is subtracted from the reward of a caption: the mean of the photo's other captions
            (leave_one_out), the reward of the greedy caption, of a second sample, the mean over all captions of the
            photo, over its `top_q` best, over its references (each scored against the others), the mean of all rewards
            so far, or none
        top_q: number of captions that the baseline `best` averages (Q of b2)
        references: number of references per photo that are added to the samples and get rewards like them
        mixer: the first so many words of sampled captions are a reference's, learned by cross-entropy; fewer and fewer
            in the course of the training, none at its end (MIXER)
        whiten: subtract the mean of the advantages and divide by their standard deviation, per batch or per photo
        reduction: mean over all words, mean over captions of their word mean, or mean over captions of their sum
        kl: weight of the KL divergence from the model that the training started with
        dropout: keep dropout on while captions are sampled and scored
        chunk: photos whose captions are scored at once in the pass with gradients; fewer than the batch size need less
            memory (100 candidates fit) and about a third more time; 0: all
        passes: two: sample without gradients, then score all words at once; one: both together; auto: the faster
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
    mixer: FewOrNone = 0
    whiten: Whiten = "none"
    reduction: Reduction = "words"
    kl: Size = 0.0
    dropout: bool = False
    chunk: CountOrNone = 0
    passes: Passes = "auto"

    def check_fields(self) -> None:
        """Refuses choices that exclude each other."""
        where = "objective.policy"
        if self.baseline in ("leave_one_out", "mean", "best") and self.samples + self.references < 2:
            raise UserError(
                f"{where}.baseline: {self.baseline} compares the captions of a photo; samples must be 2 or more."
            )
        if self.sampler == "greedy" and self.samples != 1:
            raise UserError(f"{where}.samples must be 1 where captions are greedy, not {self.samples}.")
        if self.baseline == "best" and self.top_q > self.samples + self.references:
            raise UserError(f"{where}.top_q: a photo has {self.samples} captions, not {self.top_q}.")
        if self.sampler == "diverse_beam" and self.samples % self.groups:
            raise UserError(f"{where}.samples must be a multiple of groups, not {self.samples} with {self.groups}.")
        if self.baseline == "second_sample" and self.sampler != "sample":
            raise UserError(
                f"{where}.baseline: a second sample is drawn where the first is; the sampler is {self.sampler}."
            )
        if self.mixer and (self.sampler != "sample" or self.references):
            raise UserError(
                f"{where}.mixer: the words after a reference's are drawn; sampler is another, or references set."
            )
        if self.chunk and (self.passes == "one" or self.no_repeat or self.dropout):
            raise UserError(
                f"{where}.chunk: captions are drawn first and then scored; passes is one, or no_repeat or dropout set."
            )
        if self.passes == "two" and (self.no_repeat or self.dropout):
            raise UserError(
                f"{where}.passes: with no_repeat or dropout, words are scored as they are drawn, in one pass."
            )


Frequency = Literal["count", "normalised"]


@dataclass(frozen=True)
class LocalConfig:
    """The word rewards of LD.

    Args:
        threshold: λ: an n-gram adds to the rewards of its words only if its TF-IDF weight is above this
        word_threshold: η: a word gets a reward only if its TF-IDF weight is above this
        tf: term frequency of an n-gram: its "count" in the caption, or "normalised" by the number of such n-grams
        length_penalty: reduce the reward if the caption is longer or shorter than the reference
        at_most_references: a word gets no reward for more occurrences than the reference with the most of it has
        share: scale the word rewards of a caption so that their sum is this many times its CIDEr-D; 0: no scaling
        centre: at the end, subtract from each word reward the mean over all rewarded words of the batch
        bonus: factor of all word rewards
        qualify: which words get a reward: "rare": by `word_threshold`; "contrast": content words that are in the
            photo's references and in those of fewer than half of its look-alikes; all their n-grams count
        ngram_quantile: choose λ as this quantile of the weights of all n-grams of the references; 0: use `threshold`
        word_quantile: choose η as this quantile of the weights of all words of the references; 0: use `word_threshold`
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


@dataclass
class RewardsConfig:
    """The rewards of captions.

    Args:
        weights: names of rewards, from `tellapart models`, and their weights
        dataset_weights: per reward: factors of its weight for the photos of a data set, by name of the data set
        image_retriever: the retriever that compares captions with photos: a name or a run folder
        other_retrievers: they take turns with it, batch by batch, in log_probability, accuracy and similarity
        candidates: the photos that those rewards choose from: the batch, or the photo and its look-alikes
        near_duplicates: photos with a higher cosine are not used as look-alikes (DiscriTune: 0.8); 1: all are used
        scale: factor of the cosines before the softmax of log_probability; 0: the retriever's own logit scale
        positives: number of other views of a photo for the reward hard_positives
        text_retriever: the retriever that compares captions with references
        look_alikes: image, caption (the similar groups of GEG), or a file of `tellapart lookalikes`
        group_size: number of look-alikes per photo
        curriculum: start with the least similar look-alikes and end with the most similar
        weight_by_closeness: give GD more weight for photos with close look-alikes
        margin: of the hinge losses of GD
        ld: settings of LD
        rank_base: bounded rank rewards are 0 from this rank on
        balance: divide each reward by its spread among the captions of a photo
        unbalanced: rewards that `balance` leaves as they are: penalties, which are 0 for most captions
        preferences: the file of preferences for the reward preference, which `tellapart adapt --feedback` makes
        count_end: the end token counts as a word in CIDEr-D and other n-gram rewards
        fluency_text: data files whose captions teach the language model of the reward fluency, without val and test
            photos and COCO's odd ids; none: COCO captions that come with the package
    """

    weights: dict[str, Weight] = field(default_factory=lambda: {"cider_d": 1.0})
    dataset_weights: dict[str, dict[str, Weight]] = field(default_factory=dict)
    image_retriever: ModelName = "word"
    other_retrievers: list[ModelName] = field(default_factory=list)
    candidates: Literal["batch", "look_alikes"] = "batch"
    near_duplicates: Annotated[float, Range(-1, 1)] = 1.0
    scale: Size = 0.0
    positives: Few = 2
    text_retriever: ModelName = ""
    look_alikes: FileName = "image"
    group_size: Annotated[int, Range(1, 10**6)] = 5
    curriculum: bool = False
    weight_by_closeness: bool = False
    margin: Annotated[float, Range(0, 2)] = 0.2
    ld: LocalConfig = field(default_factory=LocalConfig)
    rank_base: Annotated[int, Range(1, 10**6)] = 200
    balance: bool = False
    unbalanced: list[str] = field(default_factory=lambda: ["repetition", "unusual_order", "ending"])
    preferences: FileName = ""
    count_end: bool = True
    fluency_text: list[DataFile] = field(default_factory=list)


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

    def check_fields(self) -> None:
        for number, point in enumerate(self.curve):
            after = self.curve[number - 1][0] if number else 0
            if len(point) != 2 or not 0 <= after <= point[0] <= 1 or not 0 <= point[1] <= 1:
                raise UserError(
                    "objective.scheduled_sampling.curve: a point is [share of the training, chance], both from 0 to 1, "
                    f"and points go from left to right; point {number + 1} does not."
                )


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
    judges: list[ModelName] = field(default_factory=list)
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
    detector: DetectorName = ""
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    init_from: ModelName = ""
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
        """True if so many seconds of training are all that there may be."""
        return 0 < 60 * self.max_minutes <= seconds

    @property
    def streams(self) -> dict[str, EncoderConfig]:
        """The source of each input stream of a captioner."""
        return dict(self.inputs) or {REGIONS: self.encoder}

    def check_fields(self) -> None:
        """Refuses fields that exclude or need each other, as far as this file knows them."""
        objective, policy = self.objective, self.objective.policy
        detected = any(source.detected for source in self.streams.values())
        if self.inputs and self.encoder != EncoderConfig():
            raise UserError("encoder is short for inputs with the one stream regions; a recipe has one of the two.")
        if self.retriever and self.init_from:
            raise UserError("init_from: a retriever starts from fresh weights.")
        if self.lora.rank and not self.init_from:
            raise UserError("lora.rank: LoRA adapts the layers of a trained model; name it in init_from.")
        if self.retriever and detected:
            raise UserError("encoder.detected: a retriever goes by whole photos, not by the boxes of a detector.")
        if self.data.views and detected:
            raise UserError("data.views: a detector's boxes are of whole photos; views of them have none.")
        if objective.distillation and not self.optim.ema_decay:
            raise UserError(
                "objective.distillation: the teacher is a running mean of the weights; give optim.ema_decay."
            )
        if objective.sentence_weight and objective.name != "tagging":
            raise UserError("objective.sentence_weight: only tagging predicts sentences beside words.")
        if objective.sentence_weight and not objective.rewards.text_retriever:
            raise UserError("objective.rewards.text_retriever: sentence_weight needs a run of retrievers/text.")
        objective.scheduled_sampling.check_fields()
        if objective.name == "policy_gradient":
            policy.check_fields()
            if objective.rewards.balance and policy.samples + policy.references < 2:
                raise UserError(
                    "objective.rewards.balance goes by how much captions of a photo differ; samples must be 2 or more."
                )

    @property
    def unused_fields(self) -> set[str]:
        """Fields, or whole parts, that a run by this recipe does not look at; what they name does not matter."""
        objective = self.objective
        rewards = {f"objective.rewards.{part.name}" for part in fields(RewardsConfig)}
        if objective.name == "policy_gradient":
            rewards = set()
        if objective.name == "cross_entropy" and objective.caption_weights.by == "cider_between":
            rewards -= {"objective.rewards.image_retriever", "objective.rewards.look_alikes"}
        if objective.sentence_weight:
            rewards -= {"objective.rewards.text_retriever"}
        return rewards | ({"encoder"} if self.inputs else set())


class Reference(NamedTuple):
    """Something outside a recipe that a run by it uses."""

    field: str  # that names it, such as objective.rewards.image_retriever
    name: str
    kind: Kind


def references(recipe: Recipe) -> list[Reference]:
    """All models, encoders, detectors and files that a run by the recipe uses, in the order of its fields."""
    listed: list[Reference] = []

    def note(reference: Reference) -> str:
        listed.append(reference)
        return reference.name

    _with_references(recipe, note)
    return listed


def renamed(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    """The recipe with other names in the place of its models' and encoders'."""
    places = ("model", "encoder")
    return _with_references(recipe, lambda at: names.get(at.name, at.name) if at.kind in places else at.name)


def _with_references(recipe: Recipe, change: Callable[[Reference], str]) -> Recipe:
    unused = recipe.unused_fields

    def changed(field: str, value: Any, annotation: object) -> Any:
        is_name = isinstance(annotation, str) and isinstance(value, str) and value
        if not is_name or any(f"{field}.".startswith(f"{part}.") for part in unused):
            return value
        return change(Reference(field, value, annotation))  # type: ignore[arg-type]

    return visited(recipe, changed)


def visited(config: Config, change: Callable[[str, Any, object], Any]) -> Config:
    """The dataclass with `change(field, value, annotation)` in the place of each value of an annotated type.

    Values are found in dataclasses, dictionaries, lists, tuples and unions alike; `field` is the dotted name.
    """
    return _visited(type(config), config, "", change)  # type: ignore[no-any-return]


def _visited(hint: Any, value: Any, name: str, change: Callable[[str, Any, object], Any]) -> Any:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return change(name, value, hint.__metadata__[0])
    if origin in UNIONS:
        return next((_visited(arm, value, name, change) for arm in inside if type(value) is _plain(arm)), value)
    if is_dataclass(value):
        hints = get_type_hints(type(value), include_extras=True)
        prefix = f"{name}." if name else ""
        parts = {key: _visited(hints[key], getattr(value, key), f"{prefix}{key}", change) for key in hints}
        return replace(value, **parts)  # type: ignore[type-var]
    if isinstance(value, dict):
        return {key: _visited(inside[1], part, f"{name}.{key}", change) for key, part in value.items()}
    if isinstance(value, list):
        return [_visited(inside[0], part, name, change) for part in value]
    if isinstance(value, tuple):
        return tuple(_visited(arm, part, name, change) for arm, part in zip(inside, value, strict=True))
    return value


def _plain(hint: Any) -> Any:
    """The class of values of a type."""
    hint = hint.__origin__ if get_origin(hint) is Annotated else hint
    return get_origin(hint) or hint
