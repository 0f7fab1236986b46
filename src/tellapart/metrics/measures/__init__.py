"""The table of measures: a line for each.

A measure is one object (`measure.Measure`) in a file of its own, which is imported when it is first asked for.
`retrieval.SCORES` has the figures of retrieval, which are computed all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from importlib import import_module

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.plugins import Table


class Measures(Table[Measure]):
    """Measures by their names.  Ours are given as "module:object" of this package, and imported at need."""

    def __init__(self, lines: dict[str, str]):
        super().__init__("measure", {}, Measure)
        self._ours = dict(lines)

    def __getitem__(self, name: str) -> Measure:
        if name in self._ours and name not in self._lines:
            module, _, variable = self._ours[name].partition(":")
            self._lines[name] = getattr(import_module(f"{__name__}.{module}"), variable)
        return self._lines[name]

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self._lines

    def __setitem__(self, name: str, measure: Measure) -> None:
        super().__setitem__(name, measure)
        self.__dict__.pop("home", None)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.__dict__.pop("home", None)

    def __iter__(self) -> Iterator[str]:
        yield from self._ours
        yield from (name for name in self._lines if name not in self._ours)

    def __len__(self) -> int:
        return len(self._ours.keys() | self._lines.keys())

    @cached_property
    def home(self) -> dict[str, str]:
        """The measure that gives each score; a measure's own name is its home too."""
        return {name: measure for measure in self for name in (measure, *self[measure].names)}

    def score(self, name: str) -> Score | None:
        """What is known of one figure."""
        measure = self.home.get(name)
        return next((score for score in self[measure].scores if score.name == name), None) if measure else None


MEASURES = Measures(
    {
        "BLEU": "bleu:BLEU",
        "METEOR": "meteor:METEOR",
        "ROUGE-L": "rouge_l:ROUGE_L",
        "CIDEr-D": "cider:CIDER_D",
        "CIDEr": "cider:CIDER",
        "SPICE": "spice:SPICE",
        "SGF": "scene_graph:SGF",
        "UniCap": "unique_captions:UNIQUE_CAPTIONS",
        "AvgLen": "average_length:AVERAGE_LENGTH",
        "Vocabulary": "vocabulary:VOCABULARY",
        "distinct-1": "distinct:DISTINCT_1",
        "distinct-2": "distinct:DISTINCT_2",
        "RareWords": "rare_words:RARE_WORDS",
        "Novel": "novel:NOVEL",
        "Rep": "repetition:REPETITION",
        "BadEnd": "bad_end:BAD_END",
        "Stutter": "stutter:STUTTER",
        "UnusualOrder": "unusual_order:UNUSUAL_ORDER",
        "Fluency": "fluency:FLUENCY",
        "Unidiomatic": "unidiomatic:UNIDIOMATIC",
        "Prec": "precision:PRECISION",
        "CHAIR": "chair:CHAIR",
        "CIDErBtw": "cider_between:CIDER_BETWEEN",
        "DisWordRate": "distinctive_words:DISTINCTIVE_WORDS",
        "mBLEU": "mutual_bleu:MUTUAL_BLEU",
        "self-CIDEr": "self_cider:SELF_CIDER",
    }
)

# What training and adapting report beside these
VALIDATION = (
    Score("Preference", "Chance that people prefer the caption to one that they liked, by the feedback they gave."),
    Score("loss", "Cross-entropy of people's captions of held-out photos.", False, percent=False),
    Score("accuracy", "Next words of people's captions that the model expects most."),
    Score("unique", "Different captions, as a share of all."),
    Score("length", "Words in a caption, on average.", None, percent=False),
    *(Score(f"R@{k}", f"Held-out captions whose photo is among the first {k}.") for k in (1, 5, 10)),
    Score("recall", "The mean of R@1, R@5 and R@10."),
    Score("mAP", "Average precision of a tagger's words on held-out photos, the mean over words."),
    Score("mAP[Fang]", "The same as Fang et al. weigh it: by how many captions of a photo have the word."),
)

RENAMED = {"Odd": "UnusualOrder"}  # scores that files of earlier versions have under another name


def of(name: str) -> Score | None:
    """What is known of a score by its name, `R@5[judge]` too; none for a name that no measure has.

    >>> of("GEG-Avg[judge]").description
    'By how much a caption fits its photo better than its look-alikes on average, by judge.'
    >>> of("Rep").higher_is_better
    False
    """
    from tellapart.metrics import objects, retrieval

    if (seen := objects.parse(name)) is not None:
        score = objects.SCORES[seen[0]]
        return replace(score, name=name, description=score.description.replace("{by}", seen[1]))
    parsed = retrieval.parse(name)
    if parsed is None:
        return MEASURES.score(name) or next((score for score in VALIDATION if score.name == name), None)
    score, place = retrieval.SCORES[parsed.kind], "first" if parsed.k == 1 else f"among the first {parsed.k}"
    filled = {"{place}": place, "{k}": str(parsed.k), "{by}": parsed.retriever}  # the name last: it may be any text
    text = score.description
    for gap, value in filled.items():
        text = text.replace(gap, value)
    return replace(score, name=name, description=text)


def lower_is_better(name: str) -> bool:
    """Whether the lowest of some figures of this name is the best one."""
    score = of(name)
    return score is not None and score.higher_is_better is False


def explained(name: str) -> str:
    """A score in a sentence or two, with the way it gets better; nothing of a name that no measure has."""
    score = of(name)
    if score is None:
        return ""
    return f"{score.description} {score.direction.capitalize()}." if score.direction else score.description
