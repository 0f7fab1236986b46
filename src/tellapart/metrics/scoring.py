"""Every measure of text by its name, and `score`, which runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import UserError
from tellapart.metrics import bleu, bootstrap, caption_files, distinctiveness, diversity, frequencies, usage
from tellapart.metrics import meteor as meteor_metric
from tellapart.metrics import scene_graph as scene_graph_metric
from tellapart.metrics import spice as spice_metric
from tellapart.metrics.caption_files import Captions, Paired
from tellapart.metrics.cider import cider, cider_d
from tellapart.metrics.frequencies import WordFrequencies
from tellapart.metrics.material import LOOK_ALIKES, Material
from tellapart.metrics.rouge import rouge_l
from tellapart.metrics.statistics import Statistics, mean_of
from tellapart.progress import Progress
from tellapart.version import __version__


@dataclass(frozen=True)
class Measure:
    """names       the scores that it gives
    compute     from captions and references to statistics
    signature   what its figures depend on beside the captions, by the keys of `_signature`
    lacks       what it would need to be installed to run: a sentence, or nothing
    several     it compares several captions of one photo
    java        it runs a Java program, so that it must be asked for

    What its scores mean to people, and which way they get better, is in `measures`.
    """

    names: tuple[str, ...]
    compute: Callable[[Material], Statistics]
    signature: tuple[str, ...] = ("tok", "refs")
    lacks: Callable[[], str | None] = lambda: None
    several: bool = False
    java: bool = False


MEASURES: dict[str, Measure] = {
    "BLEU": Measure(bleu.NAMES, lambda m: bleu.bleu(m.captions_split, m.photos, m.references)),
    "METEOR": Measure(
        ("METEOR",),
        lambda m: Statistics(("METEOR",), meteor_metric.load().statistics(m.said, m.told), _meteor),
        ("meteor", "tok", "refs"),
        meteor_metric.available,
    ),
    "ROUGE-L": Measure(("ROUGE-L",), lambda m: mean_of("ROUGE-L", rouge_l(m.caption_ids, m.photos, m.reference_ids))),
    "CIDEr-D": Measure(
        ("CIDEr-D",),
        lambda m: mean_of("CIDEr-D", cider_d(m.captions_split, m.photos, m.references)),
        ("df", "tok", "refs"),
    ),
    "CIDEr": Measure(
        ("CIDEr",), lambda m: mean_of("CIDEr", cider(m.captions_split, m.photos, m.references)), ("df", "tok", "refs")
    ),
    "SPICE": Measure(
        spice_metric.NAMES,
        lambda m: Statistics(spice_metric.NAMES, spice_metric.spice(m.said, m.told), spice_metric.value),
        ("spice", "tok", "refs"),
        spice_metric.available,
        java=True,
    ),
    "SGF": Measure(
        scene_graph_metric.NAMES,
        lambda m: Statistics(
            scene_graph_metric.NAMES, scene_graph_metric.statistics(m.said, m.told), scene_graph_metric.value
        ),
    ),
    "UniCap": Measure(("UniCap",), lambda m: distinctiveness.unique_captions(m.said), ("tok",)),
    "AvgLen": Measure(("AvgLen",), lambda m: distinctiveness.average_length(m.said), ("tok",)),
    "Vocabulary": Measure(("Vocabulary",), lambda m: distinctiveness.vocabulary(m.said), ("tok",)),
    "distinct-1": Measure(("distinct-1",), lambda m: distinctiveness.distinct(m.said, 1), ("tok",)),
    "distinct-2": Measure(("distinct-2",), lambda m: distinctiveness.distinct(m.said, 2), ("tok",)),
    "RareWords": Measure(
        ("RareWords",),
        lambda m: distinctiveness.rare_words(
            m.said, frequencies.coco().of_words(), frequencies.coco().ngrams.documents
        ),
        ("rare", "tok"),
    ),
    "Rep": Measure(("Rep",), lambda m: distinctiveness.repetition(m.said), ("tok",)),
    "BadEnd": Measure(("BadEnd",), lambda m: distinctiveness.broken_off(m.said), ("tok",)),
    "Stutter": Measure(("Stutter",), lambda m: distinctiveness.stuttering(m.said), ("tok",)),
    "Odd": Measure(("Odd",), lambda m: distinctiveness.oddity(m.said, usage.coco()), ("usage", "tok")),
    "Prec": Measure(("Prec",), lambda m: distinctiveness.precision(m.said, m.told)),
    "CIDErBtw": Measure(
        ("CIDErBtw",),
        lambda m: distinctiveness.cider_between(m.captions_split, m.references, m.look_alikes),
        ("look-alikes", "df", "tok", "refs"),
    ),
    "DisWordRate": Measure(
        ("DisWordRate",),
        lambda m: distinctiveness.distinctive_words(m.said, m.told, m.look_alikes),
        ("look-alikes", "tok", "refs"),
    ),
    "mBLEU": Measure(
        tuple(f"m{name}" for name in bleu.NAMES),
        lambda m: diversity.mutual_bleu(m.all_captions_split),
        ("captions", "tok"),
        several=True,
    ),
    "self-CIDEr": Measure(
        ("self-CIDEr",),
        lambda m: diversity.self_cider(m.all_captions_split, m.references.frequencies()),
        ("captions", "df", "tok"),
        several=True,
    ),
}

# a score's family; a family may bear the name of its first score
_HOME = {name: family for family, measure in MEASURES.items() for name in (family, *measure.names)}


def _meteor(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return meteor_metric.value(sums)[..., None]


@dataclass(frozen=True)
class Scores:
    """What `measure` found.  All scores are fractions on the scale of the COCO evaluation."""

    ids: list[str]
    statistics: list[Statistics]
    signature: dict[str, str]  # of each score
    skipped: dict[str, str]  # measures that could not run, and why
    problems: list[str]  # photos that were left out, a sentence each
    perhaps_swapped: bool  # every photo has several captions and one reference

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


def score(
    captions: Any, references: Any, *, metrics: str | Sequence[str] | None = None, df: str | Path = "self"
) -> dict[str, float]:
    """Score captions against references: {"CIDEr-D": ..., ...}, each photo's first caption.

    captions, references  {id: caption} and {id: [captions]}, two lists in the same order, or files (see `tellapart
                          score --help`)
    metrics               names, or "all"; default: all that need no Java
    df                    document frequencies of CIDEr: "self" (the references'), "coco" (bundled), or a file

    `measure` gives values of each photo, intervals, paired tests and signatures as well.

    Example:
        >>> tellapart.score({"1": "a red bus"}, {"1": ["a red bus", "the bus is red"]}, metrics="ROUGE-L")
        {'ROUGE-L': 1.0}
    """
    return measure(captions, references, metrics=metrics, df=df).corpus


def measure(
    captions: Any,
    references: Any,
    *,
    metrics: str | Sequence[str] | None = None,
    df: str | Path = "self",
    split: str | None = None,
    allow_missing: bool = False,
) -> Scores:
    """As `score`, with all that can be known of the scores.

    Example:
        >>> scores = tellapart.measure(["a red bus", "a dog"], [["a red bus"], ["a cat"]], metrics="ROUGE-L")
        >>> scores.per_photo()["0"]
        {'ROUGE-L': 1.0}
    """
    return compare([captions], references, metrics=metrics, df=df, split=split, allow_missing=allow_missing)[0]


def compare(
    models: Sequence[Any],
    references: Any,
    *,
    metrics: str | Sequence[str] | None = None,
    df: str | Path = "self",
    split: str | None = None,
    allow_missing: bool = False,
) -> list[Scores]:
    """`measure` for captions of several models, on the photos that all of them captioned."""
    asked = chosen(metrics)  # before anything is read: a misspelt name should not cost a minute
    told, table = as_references(references, split), document_frequencies(df)
    pairs = [caption_files.pair(as_captions(captions), told, allow_missing=allow_missing) for captions in models]
    common = set.intersection(*(set(paired.ids) for paired in pairs))
    if not common:
        raise UserError("there is no photo that all of them captioned.")
    pairs = [paired.only(common) for paired in pairs]
    material = Material(pairs[0].captions, pairs[0].references, table)
    scores = []
    with Progress("scores", len(pairs) * len(asked.families), unit="measure") as bar:
        for paired in pairs:
            material = material.with_captions(paired.captions)  # and with what has been made of the references
            scores.append(_run(material, paired, asked, str(df), bar))
    return scores


def _run(material: Material, paired: Paired, chosen: Chosen, df: str, bar: Progress) -> Scores:
    statistics, skipped = [], {}
    for family in chosen.families:
        lacks = _lacks(MEASURES[family], material)
        if lacks is None:
            statistics.append(MEASURES[family].compute(material))
        elif chosen.by_name:
            raise UserError(f"{family} cannot be computed: {lacks}")
        elif chosen.all or not MEASURES[family].several:
            skipped[family] = lacks
        bar.advance(note=family)
    there = {name for found in statistics for name in found.names}
    values = _settings(material, df)
    signature = {
        name: "|".join([name, *(f"{key}:{values[key]}" for key in MEASURES[_HOME[name]].signature), f"v:{__version__}"])
        for name in chosen.names
        if name in there
    }
    swapped = min(map(len, paired.captions)) > 1 == max(map(len, paired.references))
    return Scores(paired.ids, statistics, signature, skipped, paired.problems, swapped)


def _lacks(measure: Measure, material: Material) -> str | None:
    """Why a measure cannot be computed; nothing if it can."""
    if measure.several and material.most_captions < 2:
        return "it compares several captions of one photo, and there is one each."
    return measure.lacks()


def _settings(material: Material, df: str) -> dict[str, str]:
    """What signatures say of a run."""
    references = [len(texts) for texts in material.told]
    captions = [len(texts) for texts in material.all_said]
    return {
        "tok": "ptb",
        "refs": _span(references),
        "captions": _span(captions),
        "df": df if df in ("self", "coco") else Path(df).name,
        "look-alikes": f"references-{LOOK_ALIKES}",
        "rare": f"coco<{distinctiveness.RARE:g}",
        "usage": f"coco<{usage.RARE:g}",
        "meteor": "1.5",
        "spice": "1.0",
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
        return list(dict.fromkeys(_HOME[name] for name in self.names))


def chosen(metrics: str | Sequence[str] | None) -> Chosen:
    """What names of measures and scores ask for; refuses those that there are not."""
    if metrics is None:
        return Chosen([name for measure in MEASURES.values() if not measure.java for name in measure.names])
    asked = [name.strip() for name in (metrics.split(",") if isinstance(metrics, str) else metrics)]
    asked = [name for name in asked if name]
    if "all" in map(str.lower, asked):
        return Chosen([name for measure in MEASURES.values() for name in measure.names], all=True)
    by_case = {name.lower(): name for name in _HOME}
    found: list[str] = []
    for name in asked:
        known = by_case.get(name.lower())
        if known is None:
            raise UserError(f"there is no metric {name!r}; there are {', '.join(MEASURES)}, and all.")
        # SPICE and SGF are names of a family and of its first score; asked for by name, all of it is shown
        found += MEASURES[known].names if known in MEASURES else (known,)
    return Chosen(list(dict.fromkeys(found)), by_name=True)


def notes(metrics: str | Sequence[str] | None) -> list[str]:
    """What those should know who ask for measures by these names."""
    asked = chosen(metrics)
    if not (asked.by_name and "CIDEr" in asked.names):
        return []
    return ["CIDEr is the plain form, as asked; what papers and leaderboards print as CIDEr is CIDEr-D here."]


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
    return frequencies.count(Material([], list(references.by_id.values())).told_split)


def as_captions(captions: Any) -> Captions:
    if isinstance(captions, str | Path):
        return caption_files.read(captions)
    if isinstance(captions, Mapping):
        return caption_files.from_mapping(captions, "the captions")
    captions = list(captions)
    if captions and all(isinstance(row, Mapping) for row in captions):
        return caption_files.from_rows(captions, "the captions")
    return caption_files.from_sequence(captions, "the captions")


def as_references(references: Any, split: str | None = None) -> Captions:
    if isinstance(references, str | Path):
        return caption_files.read_references(references, split)
    if isinstance(references, Mapping):
        return caption_files.references_from(references, Path("the references"), split)
    return caption_files.from_sequence(list(references), "the references")
