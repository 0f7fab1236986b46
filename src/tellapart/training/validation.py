"""What a run is judged by while it trains: the loss on held-out captions, and captions of held-out photos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capscore.measures import MEASURES, Measure
from capscore.scoring_inputs import ScoringInputs
from tellapart.captioners import Captioner
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.candidates import candidates
from tellapart.decoding.rules import Rules
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.metrics.retrieval import ranks
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.retrievers.retriever import Retriever

FAULTS = ("Rep", "BadEnd", "Stutter", "UnusualOrder")  # measures of captions that are not right as sentences
# What `validate` reports, with any judges
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
    """What a validation cannot give a measure; mostly nothing."""
    return next((need for need in measure.needs if need in ("several captions", "training captions")), "")


def reads_references(metric: str) -> bool:
    """Whether the photos of a validation need captions by people."""
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
    own = []  # of each batch its captions, and its words, loss and accuracy
    for photos in list(_chunks(len(data)))[world.rank :: world.size]:
        chosen = [_as_many(data.captions[photo]) if described else [] for photo in photos]
        batch = data.batch(photos, chosen).to(device)
        memory = captioner.encode(batch.inputs)
        best_captions = candidates(captioner, memory, tokenizer, rules, beam=beam)
        line = cross_entropy_step(captioner, batch, bos=tokenizer.bos).log if described else dict.fromkeys(_FITS, 0.0)
        own.append(([best.text for best, *_ in best_captions], tuple(line[name] for name in _FITS)))
    of_all = world.gather(own)
    batches = [of_all[i % world.size][i // world.size] for i in range(sum(map(len, of_all)))]
    captions = [caption for best_captions, _ in batches for caption in best_captions]
    words, loss, accuracy = torch.tensor([numbers for _, numbers in batches], dtype=torch.double).unbind(1)
    scored = ScoringInputs([[caption] for caption in captions], [example.captions for example in data.examples])
    compared = (
        {
            "loss": _mean(loss, words),
            "accuracy": _mean(accuracy, words),
            **MEASURES["CIDEr-D"].compute(scored).corpus(),
        }
        if described
        else {}
    )
    measure = measure_of(metric)
    return {
        **compared,
        **({metric: measure.compute(scored).corpus()[metric]} if measure else {}),
        "unique": len(set(captions)) / len(captions),
        "length": float(scored.caption_ids.lengths.mean()),
        **{name: score for fault in FAULTS for name, score in MEASURES[fault].compute(scored).corpus().items()},
        **{f"R@1[{judge.name}]": judge.found(captions) for judge in judges},
    }


def _mean(values: Tensor, weights: Tensor) -> float:
    return float((values * weights).sum() / weights.sum())


def _as_many(captions: list[list[int]], count: int = 5) -> list[int]:
    """The first `count` captions; a photo with fewer has some twice, so that each photo counts alike."""
    return [k % len(captions) for k in range(count)]


def _chunks(count: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, count, _BATCH):
        yield np.arange(start, min(start + _BATCH, count))


class Judge:
    """A retriever that gives no reward, asked at each validation whether captions find their photos.

    A captioner that learns to please one retriever can lose all others: that is seen here while it happens.

    photos  (P, E) the photos as it sees them, or what it knows of them by their references
    source  (P,) the number of the data set that each is from: a caption is to be found among the photos of its own
    """

    def __init__(self, retriever: Retriever, photos: Tensor, source: NDArray[np.int64]):
        self.name, self._retriever, self._photos, self._source = retriever.name, retriever, photos, source

    @torch.inference_mode()
    def found(self, captions: Sequence[str]) -> float:
        """R@1: the share of captions, one for each photo, that fit no other photo as well as their own."""
        embedded = self._retriever.embed_captions(captions)
        right = np.zeros(len(captions), bool)
        for source in np.unique(self._source):
            here = torch.from_numpy(np.flatnonzero(self._source == source)).to(embedded.device)
            similarity = self._retriever.similarity(embedded[here], self._photos[here]).float().cpu().numpy()
            right[here.cpu().numpy()] = ranks(similarity, np.arange(len(here))) == 0
        return float(right.mean())
