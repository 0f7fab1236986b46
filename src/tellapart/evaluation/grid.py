"""Measure models on a split: text, retrieval by every retriever, text to text.

All models are measured on the photos that all of them captioned; the other photos of the split remain distractors.

    human    text: the first reference against the others, so that a photo with a single one has no part; retrieval:
             every reference; text to text: every reference against the others, within look-alike groups the first
    no references   such photos have no part in what compares with references: neither as targets nor, in text to
             text, as distractors

Look-alike groups, for measures within them, go by the features of the judge's encoder, by which no captioner, reward or
text-to-text encoder of ours goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capscore import scoring, statistics
from capscore.caption_files import TrainingCaptions
from capscore.objects import CLASSES
from capscore.progress import Progress
from capscore.statistics import Statistics, mean_of_runs
from capscore.tokenize import tokenize
from tellapart import models, numerics
from tellapart.data.streams import REGIONS
from tellapart.decoding.score import log_probabilities_of_pairs
from tellapart.detectors.detector import IOU, Detector, detect
from tellapart.evaluation.models import ModelCaptions, Split
from tellapart.features.extracted import pooled_features
from tellapart.metrics import objects, retrieval
from tellapart.metrics.retrieval import Gallery, Name, Retrieved
from tellapart.neighbours import mining
from tellapart.neighbours.groups import Photo, Rule
from tellapart.parallel import batched, ordered_map
from tellapart.retrievers import HERE, MINILM
from tellapart.retrievers.retriever import Embedded, Retriever, embed_photos
from tellapart.version import __version__

if TYPE_CHECKING:
    from tellapart.captioning.captioner import PhotoCaptioner

Differences = dict[str, dict[str, statistics.Difference]]  # model -> score -> how it differs from another row's

Places = dict[str, dict[int, int]]  # retriever -> photo -> the place, from 1, that its (first) caption gives it

TEXT_TO_TEXT = "TT"
_TOGETHER = 64  # captions that are embedded at once
_TIE = 1e-4  # of sums of log p in single precision
_BATCH = 16  # photos


@dataclass
class Figures:
    """On one split.  The statistics have a row for every photo of the split, 0 where it has no part."""

    statistics: list[Statistics]
    signature: dict[str, str]  # of each score, in the order of tables

    @property
    def scores(self) -> dict[str, float]:
        scores = {name: score for measure in self.statistics for name, score in measure.corpus().items()}
        return {name: scores[name] for name in self.signature}

    def add(self, statistics: Statistics, signature: str) -> None:
        """A measure, and what its figures depend on beside the captions."""
        self.statistics.append(statistics)
        self.signature.update({name: f"{name}|{signature}|v:{__version__}" for name in statistics.names})


@dataclass
class Row(Figures):
    """One model."""

    captions: ModelCaptions
    retrieved: dict[str, Retrieved]  # by each retriever that sees photos
    read: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # text to text: whose captions, and their ranks

    def places(self) -> Places:
        """By each retriever that sees photos; before it by text to text, where that was measured."""
        ranks = {retriever: (by.targets, by.ranks) for retriever, by in self.retrieved.items()}
        if self.read is not None:
            ranks = {TEXT_TO_TEXT: self.read, **ranks}
        return {name: first_of_each(photo_of, rank_of + 1) for name, (photo_of, rank_of) in ranks.items()}


def first_of_each(photo_of: NDArray[np.int64], values: NDArray[Any]) -> dict[int, Any]:
    """Photo -> the value of its first caption; `photo_of` says whose captions the values are of."""
    photos, first = np.unique(photo_of, return_index=True)
    return dict(zip(photos.tolist(), values[first].tolist(), strict=True))


def mean_of(runs: Sequence[Row]) -> Figures:
    """The means over several runs of one recipe of the scores that all of them have."""
    names = [name for name in runs[0].signature if all(name in run.signature for run in runs)]
    measures = [
        mean_of_runs([next(m for m in run.statistics if m.names == measure.names) for run in runs])
        for measure in runs[0].statistics
        if set(measure.names) & set(names)
    ]
    return Figures(measures, {name: f"{runs[0].signature[name]}|runs:{len(runs)}" for name in names})


@dataclass(frozen=True)
class Grid:
    """Models side by side on one split."""

    split: Split
    measured: list[int]  # photos on which all are measured
    rows: dict[str, Row]  # by the model's name
    runs: dict[str, list[str]]  # rows that are runs of one recipe, by the name that they have together
    against: str  # the model or the recipe that the others are compared with
    retrievers: dict[str, str]  # those that see photos, and the hashes of their weights
    look_alikes: NDArray[np.int64]  # (P, K) the photos most like each, by the first retriever; -1: there is none
    skipped: dict[str, str]  # measures that could not be taken, and why
    asked: tuple[str, ...] = ()  # measures of text that were asked for by name

    @cached_property
    def figures(self) -> dict[str, Figures]:
        """Figures of every model, and of every recipe."""
        return {**self.rows, **{name: mean_of([self.rows[run] for run in runs]) for name, runs in self.runs.items()}}

    @property
    def lines(self) -> list[str]:
        """The names that a table has: in the place of its runs stands a recipe."""
        recipe = {run: name for name, runs in self.runs.items() for run in runs}
        return list(dict.fromkeys(recipe.get(name, name) for name in self.rows))

    def row_of(self, line: str) -> str:
        """The row whose captions are shown for a line of the table: of a recipe, the first run's."""
        return self.runs[line][0] if line in self.runs else line

    def first_captions(self) -> dict[str, dict[Path, str]]:
        """Model -> photo -> its (first) caption."""
        photos = self.split.photos
        return {
            name: {photos[photo].file: row.captions.first(photo) for photo in row.captions.of_photo}
            for name, row in self.rows.items()
        }

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        return {name: row.scores for name, row in self.figures.items()}

    def intervals(self) -> dict[str, dict[str, tuple[float, float]]]:
        """95 % intervals of every score."""
        ends = {name: statistics.intervals(row.statistics) for name, row in self.figures.items()}
        return {name: {score: ends[name][score] for score in row.signature} for name, row in self.figures.items()}

    def differences(self) -> Differences:
        """Differences of everything else from `against`, by a paired bootstrap."""
        base, differences = self.figures[self.against], Differences()
        for name, row in self.figures.items():
            if row is not base:
                of_row = statistics.differences(row.statistics, base.statistics)
                differences[name] = {score: of_row[score] for score in row.signature if score in base.signature}
        return differences

    def details(self, differences: Differences) -> dict[str, Any]:
        """All that is known beside the scores, for a file."""
        intervals = self.intervals()
        return {
            "photos": len(self.split.photos),
            "measured": len(self.measured),
            "against": self.against,
            "retrievers": self.retrievers,
            "skipped": self.skipped,
            "models": {
                name: {
                    "given": ",".join(self.rows[run].captions.model.source for run in self.runs.get(name, [name])),
                    "interval": {score: list(ends) for score, ends in intervals[name].items()},
                    "difference": {
                        score: {"difference": change.value, "interval": [change.low, change.high], "p": change.p}
                        for score, change in differences.get(name, {}).items()
                    },
                    "signature": row.signature,
                }
                for name, row in self.figures.items()
            },
        }


@dataclass(frozen=True)
class PhotoRetriever:
    """A retriever that sees photos, and the photos of a split as it sees them."""

    retriever: Retriever
    gallery: Gallery
    near_duplicates: float | None  # above this cosine, photos are no hard distractors
    groups: str  # how the look-alikes of GEG are found


def embed(retrievers: Sequence[Retriever], split: Split) -> tuple[Split, list[Embedded]]:
    """The photos as each retriever sees them, and the split without those that cannot be read."""
    files = list(dict.fromkeys(str(photo.file) for photo in split.photos))
    embedded = [embed_photos(retriever, files) for retriever in retrievers]
    failed = {file: why for of_retriever in embedded for file, why in of_retriever.failed.items()}
    return split.without(failed) if failed else split, embedded


def photo_retrievers_of(
    retrievers: Sequence[Retriever], embedded: Sequence[Embedded], split: Split, near_duplicates: float | None
) -> list[PhotoRetriever]:
    """Galleries of the photos of a split, copies of a photo known by their bytes.

    The look-alikes of GEG are found by caption where every photo has captions (its similar groups, Eq. 2, with which
    the reward compares, too), else by image.
    """
    photo_retrievers, by_caption = [], all(photo.captions for photo in split.photos)
    owners = np.repeat(np.arange(len(split.photos)), [len(photo.captions) for photo in split.photos])
    texts = [text for photo in split.photos for text in photo.captions]
    for retriever, of_files in zip(retrievers, embedded, strict=True):
        row_of = {file: row for row, file in enumerate(of_files.files)}
        rows = [row_of[str(photo.file)] for photo in split.photos]
        vectors, hashes = of_files.vectors[rows], [of_files.sha256[row] for row in rows]
        groups, basis = None, f"image-{retrieval.GROUP}"
        if by_caption:
            photos = [Photo(str(photo.file), sha, photo.id) for photo, sha in zip(split.photos, hashes, strict=True)]
            captions = mining.Captions(embed_captions(retriever, texts), owners)
            mined = mining.mine(photos, vectors, Rule("caption", k=retrieval.GROUP), captions)
            groups, basis = mined.indices, f"caption-{retrieval.GROUP}"
            if mined.recall is not None:  # of a search by an index
                basis += f"|recall:{mined.recall:.3f}"
        _, copies = np.unique(hashes, return_inverse=True)
        gallery = retrieval.gallery(vectors, copies, near_duplicates=near_duplicates, groups=groups)
        photo_retrievers.append(PhotoRetriever(retriever, gallery, near_duplicates, basis))
    return photo_retrievers


def measure(
    split: Split,
    captions: Sequence[ModelCaptions],
    measured: list[int],
    photo_retrievers: Sequence[PhotoRetriever],
    reader: Retriever | None,
    *,
    against: str,
    metrics: str | Sequence[str] | None = None,
    training: TrainingCaptions | None = None,
    groups: LookAlikes | None = None,
) -> Grid:
    """`measured` are photos with captions of all models; `reader` is the text-to-text encoder, if there is one, and
    `groups` look-alike groups, for TT@6."""
    rows = {of_model.model.name: Row([], {}, of_model, {}) for of_model in captions}
    skipped: dict[str, str] = {}
    for photo_retriever in photo_retrievers:
        for row in rows.values():
            skipped |= _add_retrieval(row, photo_retriever, measured)
    if reader is not None and any(photo.captions for photo in split.photos):
        references = References(split, reader)
        for row in rows.values():
            _add_text_to_text(row, split, references, measured, groups)
        if groups is None or not (groups.nearest >= 0).all(1).any():
            skipped[str(Name("TT", retrieval.GROUP + 1))] = (
                f"a group has {retrieval.GROUP + 1} photos with references, and there are {len(references.photos)}."
            )
    elif reader is not None:
        skipped["TT"] = "there are no references."
    skipped |= _add_text(rows, split, measured, metrics, training)
    runs: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row.captions.model.recipe:
            runs.setdefault(row.captions.model.recipe, []).append(name)
    chosen = scoring.chosen(metrics)
    return Grid(
        split,
        measured,
        rows,
        runs,
        against,
        {of.retriever.name: of.retriever.sha256 for of in photo_retrievers},
        photo_retrievers[0].gallery.look_alikes if photo_retrievers else np.full((len(split.photos), 0), -1),
        skipped,
        tuple(chosen.names) if chosen.by_name else (),
    )


def _add_retrieval(row: Row, photo_retriever: PhotoRetriever, measured: list[int]) -> dict[str, str]:
    """A retriever's measures; returns which could not be taken, and why."""
    retriever, gallery = photo_retriever.retriever, photo_retriever.gallery
    photo_of, texts = queries(row.captions, measured)
    vectors, what = embed_captions(retriever, texts), f"{row.captions.model.name} by {retriever.name}"
    row.retrieved[retriever.name] = retrieval.find(vectors, photo_of, gallery, what)
    statistics, lacks = retrieval.measured(row.retrieved[retriever.name], gallery, retriever.name)
    near_duplicates = photo_retriever.near_duplicates
    depends: dict[retrieval.Kind, str] = {
        "R": "",
        "P": f"|shuffles:{retrieval.SHUFFLES}",
        "P-hard": f"|without:{'copies' if near_duplicates is None else f'{near_duplicates:g}'}",
        "GEG-Avg": f"|look-alikes:{photo_retriever.groups}",
    }
    for kind, of_kind in statistics.items():
        shared = f"photos:{len(gallery.photos)}|captions:{len(texts)}|w:{retriever.sha256[:8]}"
        row.add(of_kind, shared + depends[kind])
    return lacks


def queries(captions: ModelCaptions, photos: Sequence[int]) -> tuple[NDArray[np.int64], list[str]]:
    """The captions of photos, one after another, and whose each is."""
    photo_of = [photo for photo in photos for _ in captions.of_photo[photo]]
    return np.array(photo_of, np.int64), [text for photo in photos for text in captions.of_photo[photo]]


def embed_captions(retriever: Retriever, texts: Sequence[str]) -> NDArray[np.float32]:
    """(N, E); a caption that many photos have is embedded once."""
    different = list(dict.fromkeys(texts))
    parts = [np.zeros((0, retriever.size), np.float32)]
    with Progress(f"captions, {retriever.name}", len(different), unit="caption") as bar:
        for start in range(0, len(different), _TOGETHER):
            part = different[start : start + _TOGETHER]
            parts.append(retriever.embed_captions(part).numpy(force=True).astype(np.float32))
            bar.advance(len(part))
    row_of = {text: row for row, text in enumerate(different)}
    vectors: NDArray[np.float32] = np.concatenate(parts)[[row_of[text] for text in texts]]
    return vectors


class References:
    """Photos as a text-to-text encoder compares them: by their references.

    photos   those that have some
    vectors  the mean of each one's references' vectors, so that a product with a caption is the mean cosine
    counts   how many references each has
    """

    def __init__(self, split: Split, reader: Retriever):
        self.reader = reader
        self.photos = [row for row, photo in enumerate(split.photos) if photo.captions]
        self.counts = np.array([len(split.photos[row].captions) for row in self.photos], np.int64)
        references = [text for row in self.photos for text in split.photos[row].captions]
        vectors = embed_captions(reader, references)
        starts = np.cumsum(self.counts) - self.counts
        sums: NDArray[np.float32] = np.add.reduceat(vectors, starts, axis=0)
        self.vectors = (sums / self.counts[:, None]).astype(np.float32)
        self._row_of, self._references = {text: row for row, text in enumerate(references)}, vectors

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Captions; what people say is among the references, and costs nothing."""
        if all(text in self._row_of for text in texts):
            return self._references[[self._row_of[text] for text in texts]]
        return embed_captions(self.reader, texts)


def _add_text_to_text(
    row: Row, split: Split, references: References, measured: list[int], groups: LookAlikes | None
) -> None:
    least = 2 if row.captions.of_people else 1  # a person's caption is compared with the other persons'
    photos = [photo for photo in measured if len(split.photos[photo].captions) >= least]
    if not photos:
        return
    photo_of, texts = queries(row.captions, photos)
    place_of = np.full(len(split.photos) + 1, -1, np.int64)  # the last is that of -1
    place_of[references.photos] = np.arange(len(references.photos))
    alike = groups.nearest[references.photos] if groups else np.full((len(references.photos), 0), -1)
    read = retrieval.text_to_text(
        references.embed(texts),
        place_of[photo_of],
        references.vectors,
        references.counts,
        place_of[alike],
        of_people=row.captions.of_people,
    )
    row.read = photo_of, read.ranks
    reader, count, photos_compared = references.reader, len(split.photos), f"photos:{len(references.photos)}"
    name, weights = "" if reader.name == MINILM else reader.name, f"w:{reader.sha256[:8]}"
    recalls = retrieval.recalls(read.ranks, photo_of, count, "TT R", name)
    row.add(recalls, f"{photos_compared}|captions:{len(texts)}|{weights}")
    if groups is not None:
        first = np.flatnonzero(np.diff(photo_of, prepend=-1))  # people are asked for one caption, as models
        within = retrieval.within_groups(read.only(first), photo_of[first], count, retrieval.GROUP + 1, name)
        if within is not None:
            row.add(within, f"{photos_compared}|captions:{len(first)}|groups:{groups.signature}|{weights}")


def _add_text(
    rows: dict[str, Row],
    split: Split,
    measured: list[int],
    metrics: str | Sequence[str] | None,
    training: TrainingCaptions | None,
) -> dict[str, str]:
    """The measures of text; returns which could not be taken, and why."""
    skipped: dict[str, str] = {}
    count = len(split.photos)
    models = [row for row in rows.values() if not row.captions.of_people]
    references = {str(photo): list(split.photos[photo].captions) for photo in measured if split.photos[photo].captions}
    if models and not references:
        skipped["measures that compare with references"] = f"no photo of {split.name} has any."
    if models:
        compared = references or {str(photo): [""] for photo in measured}  # which measures of captions alone do not use
        captions = [{photo: row.captions.first(int(photo)) for photo in compared} for row in models]
        possible = metrics if references else scoring.without_references(training)
        all_scores = scoring.compare(captions, compared, metrics=possible, training=training)
        for row, scores in zip(models, all_scores, strict=True):
            skipped |= _add_scores(row, scores, count)
    others = {photo: texts[1:] for photo, texts in references.items() if len(texts) > 1}
    for row in rows.values():
        if row.captions.of_people and others:
            first = {photo: references[photo][0] for photo in others}
            [scores] = scoring.compare([first], others, metrics=metrics, training=training)
            skipped |= _add_scores(row, scores, count)
        elif row.captions.of_people:
            skipped[f"text of {row.captions.model.name}"] = "no photo has two references to compare with each other."
    return skipped


def _add_scores(row: Row, scores: scoring.Scores, photos: int) -> dict[str, str]:
    """Their ids are photos' numbers."""
    numbers = [int(id) for id in scores.ids]
    for measured in scores.statistics:
        spread = np.zeros((photos, measured.rows.shape[1]))
        spread[numbers] = measured.rows
        row.statistics.append(Statistics(measured.names, spread, measured.value))
    row.signature.update(scores.signature)
    return scores.skipped


# Look-alike groups, objects, and a captioner that looks for its own photos


@dataclass(frozen=True)
class LookAlikes:
    """nearest    (P, 5) the photos of a split that look most like each, nearest first; -1: there is none
    signature  what they go by
    """

    nearest: NDArray[np.int64]
    signature: str


def groups_of(split: Split, device: str = "auto") -> LookAlikes | None:
    """Look-alikes of the photos that have references and can be read; none if these are too few for a single group."""
    described = [row for row, photo in enumerate(split.photos) if photo.captions]
    if len(described) <= retrieval.GROUP:
        return None
    identity = models.read_config(HERE / "judge", "retriever").inputs[REGIONS]
    encoder = models.encoder_from(identity, numerics.choose_device(device))
    pooled = pooled_features(encoder, list(dict.fromkeys(str(split.photos[row].file) for row in described)))
    row_of = {file: row for row, file in enumerate(pooled.files)}
    rows = [row for row in described if str(split.photos[row].file) in row_of]
    places = [row_of[str(split.photos[row].file)] for row in rows]
    vectors = pooled.vectors[places]
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    _, copies = np.unique([pooled.sha256[place] for place in places], return_inverse=True)
    alike = retrieval.neighbours(vectors, copies, retrieval.GROUP)
    nearest = np.full((len(split.photos), retrieval.GROUP), -1, np.int64)
    nearest[rows] = np.where(alike >= 0, np.array(rows, np.int64)[alike], -1)
    return LookAlikes(nearest, f"{encoder.config.name}-{identity['weights_sha256'][:8]}-{retrieval.GROUP}")


@dataclass(frozen=True)
class DetectedObjects:
    """The classes that a detector sees in each photo of a split."""

    detector: Detector
    weak: list[frozenset[int]]
    clear: list[frozenset[int]]


def detect_objects(detector: Detector, split: Split) -> tuple[Split, DetectedObjects]:
    """The objects in the photos, and the split without those that cannot be read."""
    detections = detect(detector, list(dict.fromkeys(str(photo.file) for photo in split.photos)))
    readable = split.without(detections.failed) if detections.failed else split
    row_of = {file: row for row, file in enumerate(detections.files)}
    numbers = detector.numbers_of(CLASSES)
    weak, clear = (
        [classes[row_of[str(photo.file)]] for photo in readable.photos]
        for classes in (detections.classes_above(least, numbers) for least in (objects.WEAK, objects.CLEAR))
    )
    return readable, DetectedObjects(detector, weak, clear)


def add_objects(row: Row, detected: DetectedObjects, measured: list[int]) -> None:
    """Add ObjPrec and ObjRec to a row; for people, of all their captions."""
    words: list[list[list[str]]] = [[] for _ in detected.weak]
    for photo in measured:
        words[photo] = tokenize(row.captions.of_photo[photo])
    count = sum(map(len, words))
    row.add(
        objects.objects(words, detected.weak, detected.clear, detected.detector.name),
        f"photos:{len(measured)}|captions:{count}|weak:{objects.WEAK:g}|clear:{objects.CLEAR:g}|iou:{IOU:g}"
        f"|w:{detected.detector.sha256[:8]}",
    )


def add_self_retrieval(row: Row, captioner: PhotoCaptioner, split: Split, measured: list[int]) -> None:
    """Add "self R@K" (GLD): a captioner looks for photos by its own captions, ranked by log p(caption | photo).

    The end of a caption does not count.
    """
    photo_of, texts = queries(row.captions, measured)
    words, visual = captioner.tokenizer, captioner.streams
    batches = batched(ordered_map(lambda photo: visual.load(photo.file), split.photos), _BATCH)
    with Progress(f"self-retrieval, {row.captions.model.name}", len(split.photos)) as bar:
        logp = log_probabilities_of_pairs(
            captioner.network,
            map(visual.inputs, batches),
            [words.encode(text) for text in texts],
            bos=words.bos,
            eos=words.eos,
            advance=bar.advance,
        )
    ranks = retrieval.ranks(logp.numpy(force=True).astype(np.float32), photo_of, tie=_TIE)
    row.add(
        retrieval.recalls(ranks, photo_of, len(split.photos), "self R"),
        f"photos:{len(split.photos)}|captions:{len(texts)}|w:{captioner.model.sha256[:8]}",
    )
