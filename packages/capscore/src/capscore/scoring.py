"""`score`: run measures over captions and references."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from capscore import bootstrap, caption_files, frequencies, training_captions
from capscore.caption_files import Captions, Paired
from capscore.errors import UserError
from capscore.frequencies import WordFrequencies
from capscore.measures import MEASURES, Measure, Score
from capscore.progress import Progress
from capscore.scoring_inputs import LOOK_ALIKES, ScoringInputs, no_search_for_cycles
from capscore.statistics import Statistics
from capscore.training_captions import TrainingCaptions
from capscore.version import __version__

Training = TrainingCaptions | str | Path | Sequence[str | Path]  # captions, or files of captions


@dataclass(frozen=True, repr=False)
class Scores:
    """What `measure` found; a table in terminals and notebooks.

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
        found = {name: score for statistics in self.statistics for name, score in statistics.corpus().items()}
        return {name: found[name] for name in self.signature}

    def per_photo(self) -> dict[str, dict[str, float]]:
        columns = {
            name: column
            for statistics in self.statistics
            for name, column in zip(statistics.names, statistics.per_photo().T.tolist(), strict=True)
        }
        return {id: {name: columns[name][row] for name in self.signature} for row, id in enumerate(self.ids)}

    def intervals(self, *, samples: int = bootstrap.SAMPLES, seed: int = 0) -> dict[str, tuple[float, float]]:
        """95 % intervals by drawing photos with replacement."""
        found = bootstrap.intervals(self.statistics, samples=samples, seed=seed)
        return {name: found[name] for name in self.signature}

    def against(
        self, other: Scores, *, samples: int = bootstrap.SAMPLES, seed: int = 0
    ) -> dict[str, bootstrap.Difference]:
        """These scores minus those of other captions of the same photos, by a paired bootstrap."""
        if self.ids != other.ids:
            raise ValueError("the two are not of the same photos in the same order")
        found = bootstrap.differences(self.statistics, other.statistics, samples=samples, seed=seed)
        return {name: found[name] for name in self.signature if name in other.signature}

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
    options: dict[str, Any] = {
        "metrics": metrics,
        "df": df,
        "training": training,
        "split": split,
        "allow_missing": allow_missing,
    }
    return _warned(compare([captions], references, **options)[0]).corpus


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
    options: dict[str, Any] = {
        "metrics": metrics,
        "df": df,
        "training": training,
        "split": split,
        "allow_missing": allow_missing,
    }
    return _warned(compare([captions], references, **options)[0])


def _warned(scores: Scores) -> Scores:
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
    asked = chosen(metrics)  # before anything is read: a misspelt name should not cost a minute
    table, known = document_frequencies(df), as_training(training)
    people = as_references(references, split)
    pairs = [caption_files.pair(as_captions(captions), people, allow_missing=allow_missing) for captions in models]
    common = set.intersection(*(set(paired.ids) for paired in pairs))
    if not common:
        raise UserError("there is no photo that all of them captioned.")
    pairs = [paired.only(common) for paired in pairs]
    inputs = ScoringInputs(pairs[0].captions, pairs[0].references, table, known)
    scores = []
    with Progress("scores", len(pairs) * len(asked.families), unit="measure") as bar:
        for paired in pairs:
            inputs = inputs.with_captions(paired.captions)  # and with what has been made of the references
            scores.append(_run(inputs, paired, asked, notes(metrics), str(df), bar))
    return scores


def _run(inputs: ScoringInputs, paired: Paired, chosen: Chosen, notes: list[str], df: str, bar: Progress) -> Scores:
    statistics, skipped = [], {}
    for family in chosen.families:
        measure = MEASURES[family]
        not_given = _not_given(measure, inputs)
        why = not_given or measure.missing()
        if why is None:
            statistics.append(_computed(family, measure, inputs, len(paired.ids)))
        elif chosen.by_name:
            raise UserError(f"{family} cannot be computed: {why}")
        elif chosen.all or not not_given:
            skipped[family] = why
        bar.advance(note=family)
    computed = {name for found in statistics for name in found.names}
    values = settings(inputs, df)
    signature = {
        name: "|".join([name, *_signature(MEASURES[MEASURES.home[name]], values), f"v:{__version__}"])
        for name in chosen.names
        if name in computed
    }
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
    """Statistics of the scores that the measure names, with a row for each photo."""
    found: object = measure.compute(inputs)
    if not isinstance(found, Statistics):
        raise UserError(f"{MEASURES.named(family)} must give Statistics, not a {type(found).__name__}.")
    if set(found.names) != set(measure.names):
        named, given = ", ".join(measure.names), ", ".join(found.names)
        raise UserError(f"{MEASURES.named(family)} names the scores {named}, and its statistics are of {given}.")
    if len(found.rows) != photos:
        raise UserError(f"{MEASURES.named(family)} gives {len(found.rows)} rows for {photos} photos.")
    if not np.isfinite(found.rows).all():
        row = int(np.flatnonzero(~np.isfinite(found.rows).all(1))[0])
        raise UserError(f"{MEASURES.named(family)} is not a finite number for photo {row + 1} of {photos}.")
    return found


def _not_given(measure: Measure, inputs: ScoringInputs) -> str | None:
    """What a measure needs and was not given; nothing if it has all."""
    if "several captions" in measure.needs and max(inputs.caption_counts, default=0) < 2:
        return "it compares several captions of one photo, and there is one each."
    if "training captions" in measure.needs and inputs.training is None:
        return "it needs the captions that the model was trained on: --training DATA.json (in Python, training=...)."
    return None


def _signature(measure: Measure, values: dict[str, str]) -> list[str]:
    return [key if ":" in key else f"{key}:{values[key]}" for key in measure.signature]


def settings(inputs: ScoringInputs, df: str) -> dict[str, str]:
    """What figures of a run may depend on beside the captions, for their signatures."""
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
    """What is to be computed."""

    names: list[str]  # scores, in the order asked for
    by_name: bool = False  # each was asked for, and has to be there
    all: bool = False  # everything was asked for

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(MEASURES.home[name] for name in self.names))


def chosen(metrics: str | Sequence[str] | None) -> Chosen:
    """What names of measures and scores ask for; refuses those that there are not, and that cannot run here."""
    if metrics is None:
        return Chosen([name for measure in MEASURES.values() if "Java" not in measure.needs for name in measure.names])
    asked = [name.strip() for name in (metrics.split(",") if isinstance(metrics, str) else metrics)]
    asked = [name for name in asked if name]
    if "all" in map(str.lower, asked):
        return Chosen([name for measure in MEASURES.values() for name in measure.names], all=True)
    by_case = {name.lower(): name for name in MEASURES.home}
    found: list[str] = []
    for name in asked:
        known = by_case.get(name.lower())
        if known is None:
            raise UserError(f"there is no metric {name!r}; there are {', '.join(MEASURES)}, and all.")
        # SPICE and SGF are names of a family and of its first score; asked for by name, all of it is shown
        found += MEASURES[known].names if known in MEASURES else (known,)
    result = Chosen(list(dict.fromkeys(found)), by_name=True)
    for family in result.families:
        if why := MEASURES[family].missing():
            raise UserError(f"{family} cannot be computed: {why}")
    return result


def without_references(training: TrainingCaptions | None) -> list[str]:
    """Measures that can be computed of photos without references."""
    lacking = {"references", "several captions", "Java"} | (set() if training else {"training captions"})
    return [name for name, measure in MEASURES.items() if lacking.isdisjoint(measure.needs)]


def notes(metrics: str | Sequence[str] | None) -> list[str]:
    """What those should know who ask for measures by these names."""
    asked = chosen(metrics)
    found: list[str] = []
    if asked.by_name and "CIDEr" in asked.names:
        found.append("CIDEr is the plain form, as asked; what papers and leaderboards print as CIDEr is CIDEr-D here.")
    return found


def document_frequencies(df: str | Path) -> WordFrequencies | None:
    """The table that `df` names; nothing for "self"."""
    if df == "self":
        return None
    if df == "coco":
        return frequencies.coco()
    if Path(df).suffix == ".npz":
        return frequencies.load(Path(df))
    references = caption_files.read_references(df)
    if not any(references.by_id.values()):
        raise UserError(f"{df}: there are no captions in it to count.")
    return frequencies.count(ScoringInputs([], list(references.by_id.values())).reference_words_split)


def as_training(training: Training | None) -> TrainingCaptions | None:
    if training is None or isinstance(training, TrainingCaptions):
        return training
    return training_captions.read(training)


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


def _collected(given: Any, what: str) -> Mapping[Any, Any] | list[Any]:
    """A mapping as it is, or by its index if it is a Series of pandas; else a list of what there is, in its order."""
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "index") and callable(getattr(given, "items", None)) and getattr(given, "ndim", 0) == 1:
        pairs = list(given.items())
        if len(by_id := dict(pairs)) < len(pairs):
            raise UserError(f"{what}: an id occurs twice in the index.")
        return by_id
    if isinstance(given, bytes | Set) or getattr(given, "ndim", 1) != 1 or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise UserError(f"{what}: must be a mapping by id, a list in the order of the photos, or a file, not {kind}.")
    return list(given)
