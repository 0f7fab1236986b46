"""The part of a recipe that is about policy gradients: where captions come from, and their rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tellapart.recipe_ranges import CountOrNone, Few, FewOrNone, Range, Share, Size, Weight

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
    image_retriever: str = "word"
    other_retrievers: list[str] = field(default_factory=list)
    candidates: Literal["batch", "look_alikes"] = "batch"
    near_duplicates: Annotated[float, Range(-1, 1)] = 1.0
    scale: Size = 0.0
    positives: Few = 2
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
    preferences: str = ""
    count_end: bool = True
    fluency_text: list[str] = field(default_factory=list)
