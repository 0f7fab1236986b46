"""Validation: captions of held-out photos by the measures, how often captions find their photo, and whether a policy
collapses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capscore.measures import MEASURES, Measure
from capscore.scoring import ScoringInputs
from tellapart.captioners import Captioner
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.pairs import Pairs
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.candidates import candidates
from tellapart.decoding.rules import Rules
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.metrics.retrieval import RECALLS, blocks, ranks, text_to_text
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.recipe import WatchConfig
from tellapart.retrievers import Towers
from tellapart.retrievers.retriever import Retriever

FAULTS = ("Rep", "BadEnd", "Stutter", "UnusualOrder")  # measures of captions that are not right as sentences
# The names that `validate` reports, with any judges
METRICS = ("loss", "accuracy", "CIDEr-D", "unique", "length", *FAULTS)
LAST = "last"  # the name of a validation metric by which the last checkpoint is the best

_FITS = ("words", "loss", "accuracy")  # of a log line of cross-entropy
_BATCH = 32


def measure_of(metric: str) -> Measure | None:
    """The measure of the table that gives a validation metric, if `validate` does not report it anyway."""
    family = None if metric in (*METRICS, LAST) else MEASURES.home.get(metric)
    return MEASURES[family] if family and metric in MEASURES[family].names else None


def measured() -> list[str]:
    """All that the weights of a captioner can be chosen by."""
    other = (name for measure in MEASURES.values() if not lacks(measure) for name in measure.names)
    return list(dict.fromkeys([*METRICS, *other, LAST]))


def lacks(measure: Measure) -> str:
    """The input of a measure that a validation cannot give; mostly none."""
    return next((need for need in measure.needs if need in ("several captions", "training captions")), "")


def reads_references(metric: str) -> bool:
    """True if the photos of a validation need captions by people."""
    measure = measure_of(metric)
    return "references" in measure.needs if measure else metric not in (LAST, "unique", *FAULTS)


@torch.inference_mode()
def validate(
    model: nn.Module,
    data: CaptionedPhotos,
    tokenizer: Tokenizer,
    device: torch.device,
    *,
    beam: int,
    max_words: int,
    metric: str = LAST,
    judges: Sequence[Judge] = (),
    world: ProcessGroup = SINGLE,
) -> dict[str, float]:
    """Every process of a world takes some of the batches, and all get the result.

    Of photos without captions there are only the figures that need none.
    metric  is reported, too, if it is a score of the measure table
    judges  retrievers that know the photos of `data`: how many captions find their own, R@1[judge]
    """
    captioner: Captioner = model  # type: ignore[assignment]
    rules = Rules.of(tokenizer, max_words=max_words)
    described = all(data.captions)
    shares = []  # of each batch its captions, and its words, loss and accuracy
    for start in range(0, len(data), _BATCH)[world.rank :: world.size]:
        photos = np.arange(start, min(start + _BATCH, len(data)))
        # A photo with fewer captions has some twice, so that each photo counts alike.
        counts = [len(data.captions[photo]) for photo in photos]
        chosen = [[k % count for k in range(5)] if described else [] for count in counts]
        batch = data.batch(photos, chosen).to(device)
        memory = captioner.encode(batch.inputs)
        best_captions = candidates(captioner, memory, tokenizer, rules, beam=beam)
        line = cross_entropy_step(captioner, batch, bos=tokenizer.bos).log if described else dict.fromkeys(_FITS, 0.0)
        shares.append(([best.text for best, *_ in best_captions], tuple(line[name] for name in _FITS)))
    of_all = world.gather(shares)
    batches = [of_all[i % world.size][i // world.size] for i in range(sum(map(len, of_all)))]
    captions = [caption for of_batch, _ in batches for caption in of_batch]
    words, loss, accuracy = torch.tensor([numbers for _, numbers in batches], dtype=torch.double).unbind(1)
    scored = ScoringInputs([[caption] for caption in captions], [example.captions for example in data.examples])
    result = {}
    if described:
        result = {name: float((x * words).sum() / words.sum()) for name, x in (("loss", loss), ("accuracy", accuracy))}
        result |= MEASURES["CIDEr-D"].compute(scored).corpus()
    if measure := measure_of(metric):
        result[metric] = measure.compute(scored).corpus()[metric]
    return {
        **result,
        "unique": len(set(captions)) / len(captions),
        "length": float(scored.caption_ids.lengths.mean()),
        **{name: score for fault in FAULTS for name, score in MEASURES[fault].compute(scored).corpus().items()},
        **{f"R@1[{judge.name}]": judge.recall(captions) for judge in judges},
    }


class Judge:
    """A retriever that gives no reward, asked at each validation whether captions find their photos.

    A captioner that learns to please one retriever can lose all others: that is seen here while it happens.

    photos  (P, E) the photos as it sees them, or what it knows of them by their references
    source  (P,) the number of the data set that each is from: a caption is to be found among the photos of its own
    """

    def __init__(self, retriever: Retriever, photos: Tensor, source: NDArray[np.int64]):
        self.name, self._retriever, self._photos, self._source = retriever.name, retriever, photos, source

    @torch.inference_mode()
    def recall(self, captions: Sequence[str]) -> float:
        """R@1: the share of captions, one for each photo, that fit no other photo as well as their own."""
        embedded = self._retriever.embed_captions(captions)
        right = np.zeros(len(captions), bool)
        for source in np.unique(self._source):
            here = torch.from_numpy(np.flatnonzero(self._source == source)).to(embedded.device)
            similarity = self._retriever.similarity(embedded[here], self._photos[here]).float().cpu().numpy()
            right[here.cpu().numpy()] = ranks(similarity, np.arange(len(here))) == 0
        return float(right.mean())


# Retrievers

# What `validate_retriever` reports; recall is the mean of the others
RETRIEVAL_METRICS = (*(f"R@{k}" for k in RECALLS), "recall")

_CAPTIONS = 1000


@torch.inference_mode()
def validate_retriever(retriever: Towers, data: Pairs, device: torch.device) -> dict[str, float]:
    """Caption -> photo among all photos of its data set.  All captions count alike, and so do the data sets."""
    recalls_of = []
    for source in np.unique(data.source):
        photos = np.flatnonzero(data.source == source)
        numbers = [caption for photo in photos for caption in data.captions[photo]]
        photo_of = np.array([i for i, photo in enumerate(photos) for _ in data.captions[photo]], np.int64)
        parts = (data.read(numbers[start : start + _CAPTIONS]) for start in range(0, len(numbers), _CAPTIONS))
        captions = torch.cat([retriever.embed_captions(part.to(device)) for part in parts]).float().cpu().numpy()
        if data.images is None:
            # A photo is the mean of its captions; the caption that asks is not among its own photo's.
            counts = np.bincount(photo_of, minlength=len(photos))
            means = np.zeros((len(photos), captions.shape[1]), np.float32)
            np.add.at(means, photo_of, captions)
            means /= counts[:, None]
            places = text_to_text(captions, photo_of, means, counts, of_people=True).ranks
        else:
            images = retriever.embed_images(data.images[photos].float().to(device)).float().cpu().numpy()
            places = np.concatenate([ranks(part, photo_of[rows]) for rows, part in blocks(captions, images)])
        recalls_of.append([(places < k).mean() for k in RECALLS])
    recalls = np.mean(recalls_of, axis=0).tolist()
    return dict(zip(RETRIEVAL_METRICS, [*recalls, float(np.mean(recalls))], strict=True))


# Collapse

_NORMAL = 1.959964  # deviations that 95 % of a normal distribution lie within


class Watch:
    """photos  how many captions a validation goes by"""

    def __init__(self, config: WatchConfig, photos: int):
        self._config, self._photos = config, photos

    @property
    def stops(self) -> bool:
        return self._config.action == "stop"

    def check(self, first: dict[str, float], now: dict[str, float]) -> str:
        """A sentence about what looks wrong in a validation; an empty string if nothing does."""
        if self._config.action == "off" or not first:
            return ""
        config, signs = self._config, list[str]()
        if now["unique"] < config.unique * first["unique"] and self._rose(now["unique"], first["unique"]):
            before = _percent(first["unique"])
            signs.append(f"{_percent(now['unique'])} of the captions are different ({before} before)")
        length, before_length = now["length"], first["length"]
        # Lengths of captions vary less than a Poisson number does: as if they did as much is to be careful.
        chance = _NORMAL * math.sqrt((before_length + length) / self._photos)
        usual = 1 / config.length <= length / max(before_length, 1e-9) <= config.length
        if not usual and abs(length - before_length) > chance:
            signs.append(f"captions have {length:.1f} words ({before_length:.1f} before)")
        for name, most, what in (
            ("Rep", config.repetition, "repeat a word"),
            ("BadEnd", config.ending, "break off"),
            ("Stutter", config.stutter, "stutter"),
            ("UnusualOrder", config.unusual_order, "have an unusual order of words"),
        ):
            if now[name] > first[name] + most and self._rose(first[name], now[name]):
                signs.append(f"{_percent(now[name])} of the captions {what} ({_percent(first[name])} before)")
        return "captions collapse: " + ", ".join(signs) if signs else ""

    def _rose(self, before: float, now: float) -> bool:
        """True if a share of the captions rose by more than chance: Newcombe's interval (1998, method 10)."""
        low, _ = wilson(now, self._photos)
        _, high = wilson(before, self._photos)
        return now - before > math.hypot(now - low, high - before)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was found among so many (Wilson, 1927).

    >>> [round(end, 3) for end in wilson(1 / 50, 50)]
    [0.004, 0.105]
    """
    square = _NORMAL**2 / count
    middle, half = share + square / 2, _NORMAL * math.sqrt(share * (1 - share) / count + square / count / 4)
    return (middle - half) / (1 + square), (middle + half) / (1 + square)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
