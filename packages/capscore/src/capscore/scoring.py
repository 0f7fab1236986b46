"""`score` and `measure`: run measures over captions and references, which may come in any common form."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capscore import __version__, caption_files, ngrams, overlap
from capscore.caption_files import Captions, Paired, TrainingCaptions
from capscore.errors import UserError
from capscore.measures import MEASURES, Measure, Score
from capscore.ngrams import Frequencies, References, WordFrequencies
from capscore.progress import Progress
from capscore.sentences import Grouped, Sentences, Words, edges, numbered
from capscore.statistics import SAMPLES, Difference, Statistics, differences, intervals
from capscore.tokenize import tokenize_file

Training = TrainingCaptions | str | Path | Sequence[str | Path]  # captions, or files of captions

LOOK_ALIKES = 5
_OF_REFERENCES = ("reference_words", "reference_words_split", "_words", "reference_ids", "references", "look_alikes")


class ScoringInputs:
    """Captions and references of the same photos, in the forms that the measures take, each made when first needed.

    captions     one or more for each photo; the first is the one whose accuracy counts
    references   people's captions of each photo, at least one each
    frequencies  document frequencies for CIDEr; from the references if there are none
    training     the captions that the model was trained on, if they are known
    """

    def __init__(
        self,
        captions: Sequence[Sequence[str]],
        references: Sequence[Sequence[str]],
        frequencies: WordFrequencies | None = None,
        training: TrainingCaptions | None = None,
    ):
        self._raw_captions, self._raw_references, self._frequencies = captions, references, frequencies
        self.training = training
        self.photos = np.arange(len(captions))

    @classmethod
    def of_tokens(
        cls, captions: Sequence[Sequence[Sequence[str]]], references: Sequence[Sequence[Sequence[str]]]
    ) -> ScoringInputs:
        """Inputs of captions and references that are tokenised already."""
        texts, people = (
            [[" ".join(words) for words in of_photo] for of_photo in side] for side in (captions, references)
        )
        inputs = cls(texts, people)
        inputs.words = [list(of_photo[0]) for of_photo in captions]
        inputs.reference_words = [list(map(list, of_photo)) for of_photo in references]
        inputs.caption_ids = inputs._words.join(inputs.words)
        inputs.reference_ids = inputs._words.join_groups(inputs.reference_words)
        return inputs

    def with_captions(self, captions: Sequence[Sequence[str]]) -> ScoringInputs:
        """Other captions of the same photos; what was made of the references is shared."""
        other = ScoringInputs(captions, self._raw_references, self._frequencies, self.training)
        other.__dict__.update({name: self.__dict__[name] for name in _OF_REFERENCES if name in self.__dict__})
        return other

    @property
    def texts(self) -> list[str]:
        """The one caption of each photo that is judged, as it was given."""
        return [captions[0] for captions in self._raw_captions]

    @cached_property
    def words(self) -> list[list[str]]:
        """The words of the one caption of each photo that is judged."""
        (words,) = _tokenized([self.texts])
        return words

    @cached_property
    def all_words(self) -> list[list[list[str]]]:
        """The words of all captions of each photo."""
        others = _tokenized([captions[1:] for captions in self._raw_captions])
        return [[first, *rest] for first, rest in zip(self.words, others, strict=True)]

    @cached_property
    def reference_words(self) -> list[list[list[str]]]:
        return _tokenized(self._raw_references)

    @cached_property
    def _words(self) -> Words:
        return Words(self._frequencies.words if self._frequencies else ())

    @cached_property
    def caption_ids(self) -> Sentences:
        return numbered(self.texts, self._words)

    @cached_property
    def reference_ids(self) -> Grouped:
        flat = list(chain.from_iterable(self._raw_references))
        return Grouped(numbered(flat, self._words), edges(self._raw_references))

    # Where n-grams are counted, the COCO evaluation splits words once more, at blanks of every kind: a fraction such as
    # "1 1/2" is one word with a no-break space to ROUGE-L, and two to BLEU and CIDEr.

    @cached_property
    def reference_words_split(self) -> list[list[list[str]]]:
        return _split(self.reference_words)

    @cached_property
    def references(self) -> References:
        ids = self.reference_ids
        split = self._words.join_groups(self.reference_words_split) if self._words_with_blanks else ids
        return References(split, self._frequencies.ngrams if self._frequencies else None)

    @property
    def reference_frequencies(self) -> Frequencies:
        return self.references.frequencies()

    @cached_property
    def captions_split(self) -> Sentences:
        ids = self.caption_ids
        return self._words.join(*_split([self.words])) if self._words_with_blanks else ids

    @property
    def _words_with_blanks(self) -> bool:
        """True if any word has blanks, of all that have been met."""
        return not all(map(str.isprintable, self._words))

    @cached_property
    def all_captions_split(self) -> Grouped:
        return self._words.join_groups(_split(self.all_words))

    @cached_property
    def look_alikes(self) -> NDArray[np.int64]:
        return overlap.look_alikes(self.reference_ids, LOOK_ALIKES)

    @property
    def caption_counts(self) -> list[int]:
        return list(map(len, self._raw_captions))

    @property
    def reference_counts(self) -> list[int]:
        return list(map(len, self._raw_references))


def _split(groups: list[list[list[str]]]) -> list[list[list[str]]]:
    """Sentences without blanks of any kind within words; those that had none are not copied."""
    with_blanks = {word for word in set(chain.from_iterable(chain.from_iterable(groups))) if not word.isprintable()}
    if not with_blanks:
        return groups
    return [[text if with_blanks.isdisjoint(text) else " ".join(text).split() for text in texts] for texts in groups]


def _tokenized(groups: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    with no_search_for_cycles():
        words = tokenize_file(list(chain.from_iterable(groups)))
    ends = list(accumulate(map(len, groups), initial=0))
    return [words[start:stop] for start, stop in pairwise(ends)]


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Lists of words hold no cycles, and looking for some in a hundred thousand lists takes as long as making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, repr=False)
class Scores:
    """Result of `measure`; a table in terminals and notebooks.

    All scores are fractions on the scale of the COCO evaluation.
    """

    ids: list[str]
    statistics: list[Statistics]
    signature: dict[str, str]  # of each score
    skipped: dict[str, str]  # measures that could not run, and why
    problems: list[str]  # photos that were left out, a sentence each
    warnings: list[str]  # what those should know who go by these scores, a sentence each

    @property
    def corpus(self) -> dict[str, float]:
        scores = {name: score for measured in self.statistics for name, score in measured.corpus().items()}
        return {name: scores[name] for name in self.signature}

    def per_photo(self) -> dict[str, dict[str, float]]:
        columns = {
            name: column
            for measured in self.statistics
            for name, column in zip(measured.names, measured.per_photo().T.tolist(), strict=True)
        }
        return {id: {name: columns[name][row] for name in self.signature} for row, id in enumerate(self.ids)}

    def intervals(self, *, samples: int = SAMPLES, seed: int = 0) -> dict[str, tuple[float, float]]:
        """95 % intervals by drawing photos with replacement."""
        ends = intervals(self.statistics, samples=samples, seed=seed)
        return {name: ends[name] for name in self.signature}

    def against(self, other: Scores, *, samples: int = SAMPLES, seed: int = 0) -> dict[str, Difference]:
        """These scores minus those of other captions of the same photos, by a paired bootstrap."""
        if self.ids != other.ids:
            raise ValueError("the two are not of the same photos in the same order")
        result = differences(self.statistics, other.statistics, samples=samples, seed=seed)
        return {name: result[name] for name in self.signature if name in other.signature}

    def __repr__(self) -> str:
        rows = self._for_people()
        wide = max((len(name) for name, _ in rows), default=0)
        return "\n".join([f"<Scores of {self._size}>", *(f"{name:<{wide}}  {shown:>7}" for name, shown in rows)])

    def _repr_html_(self) -> str:
        cells = (f'<tr><th scope="row">{escape(name)}</th><td>{shown}</td></tr>' for name, shown in self._for_people())
        return f"<p>{escape(self._size)}</p>\n<table>{''.join(cells)}</table>\n"

    @property
    def _size(self) -> str:
        return f"{len(self.ids):,} photo{'' if len(self.ids) == 1 else 's'}; shares and scores times 100"

    def _for_people(self) -> list[tuple[str, str]]:
        return [(name, (MEASURES.score(name) or Score(name, "")).shown(value)) for name, value in self.corpus.items()]


def score(
    captions: Any,
    references: Any,
    *,
    metrics: str | Sequence[str] | None = None,
    df: str | Path = "self",
    training: Training | None = None,
    split: str | None = None,
    allow_missing: bool = False,
) -> dict[str, float]:
    """Score captions against references: {"CIDEr-D": ..., ...}, each photo's first caption.

    captions, references  {id: caption} and {id: [captions]}, two lists in the same order, a pandas Series with the ids
                          as its index, or files (see `capscore --help`)
    metrics               names, or "all"; default: all that need no Java
    df                    document frequencies of CIDEr: "self" (the references'), "coco" (bundled), or a file
    training              files with the captions that the model was trained on, for measures that need them
    split                 of a data file of references
    allow_missing         skip photos that only one of the two has

    What the command says on stderr is a warning here, such as captions and references that look swapped.
    `measure` gives values of each photo, intervals, paired tests and signatures as well.

    Example:
        >>> capscore.score({"1": "a red bus"}, {"1": ["a red bus", "the bus is red"]}, metrics="ROUGE-L")
        {'ROUGE-L': 1.0}
    """
    return _one(
        captions, references, metrics=metrics, df=df, training=training, split=split, allow_missing=allow_missing
    ).corpus


def measure(
    captions: Any,
    references: Any,
    *,
    metrics: str | Sequence[str] | None = None,
    df: str | Path = "self",
    training: Training | None = None,
    split: str | None = None,
    allow_missing: bool = False,
) -> Scores:
    """As `score`, with all that can be known of the scores.

    Example:
        >>> scores = capscore.measure(["a red bus", "a dog"], [["a red bus"], ["a cat"]], metrics="ROUGE-L")
        >>> scores.per_photo()["0"]
        {'ROUGE-L': 1.0}
    """
    return _one(
        captions, references, metrics=metrics, df=df, training=training, split=split, allow_missing=allow_missing
    )


def _one(captions: Any, references: Any, **options: Any) -> Scores:
    (scores,) = compare([captions], references, **options)
    for sentence in scores.warnings:
        warnings.warn(sentence, stacklevel=3)  # at the line that called `score` or `measure`
    return scores


@no_search_for_cycles()
def compare(
    models: Sequence[Any],
    references: Any,
    *,
    metrics: str | Sequence[str] | None = None,
    df: str | Path = "self",
    training: Training | None = None,
    split: str | None = None,
    allow_missing: bool = False,
) -> list[Scores]:
    """`measure` for captions of several models, on the photos that all of them captioned; warnings are not raised."""
    request = chosen(metrics)  # before anything is read: a misspelt name should not cost a minute
    table, training = document_frequencies(df), as_training(training)
    people = as_references(references, split)
    pairs = [caption_files.pair(as_captions(captions), people, allow_missing=allow_missing) for captions in models]
    common = set.intersection(*(set(paired.ids) for paired in pairs))
    if not common:
        raise UserError("there is no photo that all of them captioned.")
    pairs = [paired.only(common) for paired in pairs]
    inputs = ScoringInputs(pairs[0].captions, pairs[0].references, table, training)
    scores = []
    with Progress("scores", len(pairs) * len(request.families), unit="measure") as bar:
        for paired in pairs:
            inputs = inputs.with_captions(paired.captions)  # and with what has been made of the references
            scores.append(_run(inputs, paired, request, notes(metrics), str(df), bar))
    return scores


def _run(inputs: ScoringInputs, paired: Paired, request: Chosen, notes: list[str], df: str, bar: Progress) -> Scores:
    statistics, skipped = [], {}
    for family in request.families:
        measure = MEASURES[family]
        lacking = _lacking(measure, inputs)
        why = lacking or measure.missing()
        if why is None:
            statistics.append(_computed(family, measure, inputs, len(paired.ids)))
        elif request.by_name:
            raise UserError(f"{family} cannot be computed: {why}")
        elif request.all or not lacking:
            skipped[family] = why
        bar.advance(note=family)
    computed = {name for measured in statistics for name in measured.names}
    values, home = settings(inputs, df), MEASURES.home
    signature = {}
    for name in (name for name in request.names if name in computed):
        depends_on = [key if ":" in key else f"{key}:{values[key]}" for key in MEASURES[home[name]].signature]
        signature[name] = "|".join([name, *depends_on, f"v:{__version__}"])
    notes = [*notes, *paired.problems, *(f"{name} is left out: {why}" for name, why in skipped.items())]
    if max(map(len, paired.references)) == 1 < max(map(len, paired.captions)):
        notes.append(
            "Photos have several captions and one reference each: are the two swapped?  Captions come first here, "
            "references second."
        )
    if df == "self" and len(paired.ids) == 1 and any(name.startswith("CIDEr") for name in signature):
        notes.append(
            'CIDEr of a single photo is 0 with its own document frequencies; use --df coco (in Python, df="coco").'
        )
    return Scores(paired.ids, statistics, signature, skipped, paired.problems, notes)


def _computed(family: str, measure: Measure, inputs: ScoringInputs, photos: int) -> Statistics:
    """Statistics of the scores that the measure names, with a row for each photo: it may be a plugin's."""
    result: object = measure.compute(inputs)
    name = MEASURES.named(family)
    if not isinstance(result, Statistics):
        raise UserError(f"{name} must give Statistics, not a {type(result).__name__}.")
    if set(result.names) != set(measure.names):
        raise UserError(
            f"{name} names the scores {', '.join(measure.names)}, and its statistics are of {', '.join(result.names)}."
        )
    if len(result.rows) != photos:
        raise UserError(f"{name} gives {len(result.rows)} rows for {photos} photos.")
    if not np.isfinite(result.rows).all():
        row = int(np.flatnonzero(~np.isfinite(result.rows).all(1))[0])
        raise UserError(f"{name} is not a finite number for photo {row + 1} of {photos}.")
    return result


def _lacking(measure: Measure, inputs: ScoringInputs) -> str | None:
    """A sentence on what a measure needs beside the captions and lacks; nothing if it has all."""
    if "several captions" in measure.needs and max(inputs.caption_counts, default=0) < 2:
        return "it compares several captions of one photo, and there is one each."
    if "training captions" in measure.needs and inputs.training is None:
        return "it needs the captions that the model was trained on: --training DATA.json (in Python, training=...)."
    return None


def settings(inputs: ScoringInputs, df: str) -> dict[str, str]:
    """Settings that figures of a run may depend on beside the captions, for their signatures."""
    return {
        "tok": "ptb",
        "refs": _span(inputs.reference_counts),
        "captions": _span(inputs.caption_counts),
        "df": df if df in ("self", "coco") else Path(df).name,
        "look-alikes": f"references-{LOOK_ALIKES}",
        "training": inputs.training.signature if inputs.training else "none",
    }


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}-{high}"


@dataclass(frozen=True)
class Chosen:
    """A request for scores."""

    names: list[str]  # scores, in the order asked for
    by_name: bool = False  # each was asked for, and has to be there
    all: bool = False  # everything was asked for

    @property
    def families(self) -> list[str]:
        home = MEASURES.home
        return list(dict.fromkeys(home[name] for name in self.names))


def chosen(metrics: str | Sequence[str] | None) -> Chosen:
    """The request in names of measures and scores; refuses those that there are not, and that cannot run here."""
    if metrics is None:
        return Chosen([name for measure in MEASURES.values() if "Java" not in measure.needs for name in measure.names])
    names = [name.strip() for name in (metrics.split(",") if isinstance(metrics, str) else metrics)]
    names = [name for name in names if name]
    if "all" in map(str.lower, names):
        return Chosen([name for measure in MEASURES.values() for name in measure.names], all=True)
    by_case = {name.lower(): name for name in MEASURES.home}
    scores: list[str] = []
    for name in names:
        if (match := by_case.get(name.lower())) is None:
            raise UserError(f"there is no metric {name!r}; there are {', '.join(MEASURES)}, and all.")
        # SPICE and SGF are names of a family and of its first score; asked for by name, all of it is shown
        scores += MEASURES[match].names if match in MEASURES else (match,)
    result = Chosen(list(dict.fromkeys(scores)), by_name=True)
    for family in result.families:
        if why := MEASURES[family].missing():
            raise UserError(f"{family} cannot be computed: {why}")
    return result


def without_references(training: TrainingCaptions | None) -> list[str]:
    """Measures that can be computed of photos without references."""
    lacking = {"references", "several captions", "Java"} | (set() if training else {"training captions"})
    return [name for name, measure in MEASURES.items() if lacking.isdisjoint(measure.needs)]


def notes(metrics: str | Sequence[str] | None) -> list[str]:
    """Sentences for those who ask for measures by these names."""
    request = chosen(metrics)
    if request.by_name and "CIDEr" in request.names:
        return ["CIDEr is the plain form, as asked; what papers and leaderboards print as CIDEr is CIDEr-D here."]
    return []


def document_frequencies(df: str | Path) -> WordFrequencies | None:
    """The table that `df` names; nothing for "self"."""
    if df == "self":
        return None
    if df == "coco":
        return ngrams.coco()
    if Path(df).suffix == ".npz":
        return ngrams.load(Path(df))
    references = caption_files.read_references(df)
    if not any(references.by_id.values()):
        raise UserError(f"{df}: there are no captions in it to count.")
    return ngrams.count(ScoringInputs([], list(references.by_id.values())).reference_words_split)


def as_training(training: Training | None) -> TrainingCaptions | None:
    if training is None or isinstance(training, TrainingCaptions):
        return training
    return caption_files.read_training(training)


def as_captions(captions: Any) -> Captions:
    if isinstance(captions, str | Path):
        return caption_files.read(captions)
    captions = _collected(captions, "the captions")
    if isinstance(captions, Mapping):
        return caption_files.from_mapping(captions, "the captions")
    if captions and all(isinstance(row, Mapping) for row in captions):
        return caption_files.from_rows(captions, "the captions")
    return caption_files.from_sequence(captions, "the captions")


def as_references(references: Any, split: str | None = None) -> Captions:
    if isinstance(references, str | Path):
        return caption_files.read_references(references, split)
    references = _collected(references, "the references")
    if isinstance(references, Mapping):
        return caption_files.references_from(references, Path("the references"), split)
    return caption_files.from_sequence(references, "the references")


def _collected(source: Any, what: str) -> Mapping[Any, Any] | list[Any]:
    """A mapping as it is, or by its index if it is a Series of pandas; else a list of what there is, in its order."""
    if isinstance(source, Mapping):
        return source
    if hasattr(source, "index") and callable(getattr(source, "items", None)) and getattr(source, "ndim", 0) == 1:
        pairs = list(source.items())
        if len(by_id := dict(pairs)) < len(pairs):
            raise UserError(f"{what}: an id occurs twice in the index.")
        return by_id
    if isinstance(source, bytes | Set) or getattr(source, "ndim", 1) != 1 or not isinstance(source, Iterable):
        kind = type(source).__name__
        raise UserError(f"{what}: must be a mapping by id, a list in the order of the photos, or a file, not {kind}.")
    return list(source)
