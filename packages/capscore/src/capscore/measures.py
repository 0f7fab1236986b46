"""The table of measures: what is known of each, and which function computes it, which is imported when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from capscore.table import Table

if TYPE_CHECKING:
    from capscore.scoring_inputs import ScoringInputs
    from capscore.statistics import Statistics

RARE_WORD = 1e-3  # a word is rare if fewer than one photo in a thousand has it in its references
RARE_ORDER = 1 / 500  # of the captions that have the three words before; people do it in one caption of four to six
UNIDIOMATIC = 0.05  # the quantile of people's least expected words below which one is unidiomatic
_FACTS = ("object", "relation", "attribute", "colour", "count", "size")  # kinds that have a score of their own

Need = Literal["references", "several captions", "training captions", "Java"]


@dataclass(frozen=True)
class Score:
    """One figure.

    name              as tables and files have it; of a retrieval measure, the kind of `retrieval.Name`
    description       a sentence for people.  Of a retrieval measure: {by} is the retriever, {place} "first" or "among
                      the first 5", {k} the size of a pool or group
    higher_is_better  None where neither is
    percent           tables for people show it times 100
    digits            after the point in such tables
    """

    name: str
    description: str
    higher_is_better: bool | None = True
    percent: bool = True
    digits: int = 1

    def shown(self, value: float) -> str:
        """A figure as people read it."""
        return f"{100 * value if self.percent else value:.{self.digits}f}"

    @property
    def direction(self) -> str:
        """For people; nothing where neither way is better."""
        return {True: "higher is better", False: "lower is better", None: ""}[self.higher_is_better]


def _nothing() -> str | None:
    return None


@dataclass(frozen=True)
class Measure:
    """scores     the figures that it gives, in the order of its statistics
    compute    from captions, and what they are compared with, to statistics
    needs      what must be given beside one caption of each photo
    signature  what its figures depend on beside the captions: settings of a run (the keys of `scoring.settings`), or
               "key:value" where it is always the same
    missing    what would have to be installed for it to run, in a sentence; nothing if all is there

    >>> from capscore.statistics import mean_of
    >>> questions = Measure(
    ...     (Score("Questions", "Captions that end with a question mark, as a share of all.", False),),
    ...     lambda inputs: mean_of("Questions", [text.endswith("?") for text in inputs.texts]),
    ...     needs=(),
    ...     signature=(),
    ... )
    >>> questions.names
    ('Questions',)
    """

    scores: tuple[Score, ...]
    compute: Callable[[ScoringInputs], Statistics]
    needs: tuple[Need, ...] = ("references",)
    signature: tuple[str, ...] = ("tok", "refs")
    missing: Callable[[], str | None] = _nothing

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.scores)


class By:
    """A function of this package, imported when it is first called, with what it takes of the inputs.

    It returns statistics, or (N,) values whose mean is the score of that name.
    """

    def __init__(self, function: str, *fields: str, mean: str = ""):
        self._function, self._fields, self._mean = function, fields, mean

    def __call__(self, inputs: ScoringInputs) -> Statistics:
        from capscore.statistics import mean_of

        result = called(self._function, *(getattr(inputs, field) for field in self._fields))
        return mean_of(self._mean, result) if self._mean else result


def called(function: str, *arguments: Any) -> Any:
    """The result of "module.function" of this package."""
    module, _, name = function.rpartition(".")
    return getattr(import_module(f"capscore.{module}"), name)(*arguments)


class Measures(Table[Measure]):
    """Measures by their names."""

    def __init__(self, measures: Mapping[str, Measure]):
        super().__init__("measure", measures, Measure)

    def __setitem__(self, name: str, measure: Measure) -> None:
        super().__setitem__(name, measure)
        self.__dict__.pop("home", None)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.__dict__.pop("home", None)

    @cached_property
    def home(self) -> dict[str, str]:
        """The measure that gives each score; a measure's own name is its home too."""
        return {name: measure for measure in self for name in (measure, *self[measure].names)}

    def score(self, name: str) -> Score | None:
        """What is known of one figure."""
        measure = self.home.get(name)
        return next((score for score in self[measure].scores if score.name == name), None) if measure else None


def _ngrams(n: int) -> str:
    return "Words" if n == 1 else f"Words and runs of up to {n} words"


_OVERLAP = ("captions_split", "photos", "references")

MEASURES = Measures(
    {
        "BLEU": Measure(
            tuple(
                Score(f"BLEU-{n}", f"{_ngrams(n)} that people's captions of the photo have too.") for n in range(1, 5)
            ),
            By("bleu.bleu", *_OVERLAP),
        ),
        "METEOR": Measure(
            (Score("METEOR", "Agreement with people's captions; stems, synonyms and paraphrases count too."),),
            By("meteor.statistics", "words", "reference_words"),
            signature=("meteor:1.5", "tok", "refs"),
            missing=lambda: called("meteor.available"),
        ),
        "ROUGE-L": Measure(
            (Score("ROUGE-L", "Agreement with people's captions by the longest sequence of words in common."),),
            By("rouge.rouge_l", "caption_ids", "photos", "reference_ids", mean="ROUGE-L"),
        ),
        "CIDEr-D": Measure(
            (
                Score(
                    "CIDEr-D",
                    "Agreement with people's captions, in which rare phrases count more. "
                    "Papers and leaderboards call it CIDEr.",
                ),
            ),
            By("cider.cider_d", *_OVERLAP, mean="CIDEr-D"),
            signature=("df", "tok", "refs"),
        ),
        "CIDEr": Measure(
            (
                Score(
                    "CIDEr",
                    "The plain form of CIDEr, unclipped and without length penalty. What papers call CIDEr is CIDEr-D.",
                ),
            ),
            By("cider.cider", *_OVERLAP, mean="CIDEr"),
            signature=("df", "tok", "refs"),
        ),
        "SPICE": Measure(
            (
                Score("SPICE", "Objects, attributes and relations in common with people's captions (runs Java)."),
                *(Score(f"SPICE-{fact}", f"SPICE, of {fact}s alone.") for fact in _FACTS),
            ),
            By("spice.statistics", "words", "reference_words"),
            needs=("references", "Java"),
            signature=("spice:1.0", "tok", "refs"),
            missing=lambda: called("spice.available"),
        ),
        "SGF": Measure(
            (
                Score("SGF", "Objects, attributes and relations in common with people's captions, by our own parser."),
                *(Score(f"SGF-{fact}", f"SGF, of {fact}s alone.") for fact in _FACTS),
            ),
            By("scene_graph.scorer.score", "words", "reference_words"),
        ),
        "UniCap": Measure(
            (Score("UniCap", "Different captions, as a share of all captions."),),
            By("wording.unique_captions", "words"),
            needs=(),
            signature=("tok",),
        ),
        "AvgLen": Measure(
            (Score("AvgLen", "Words in a caption, on average.", None, percent=False),),
            By("wording.average_length", "words"),
            needs=(),
            signature=("tok",),
        ),
        "Vocabulary": Measure(
            (Score("Vocabulary", "Different words in all captions together.", percent=False, digits=0),),
            By("wording.vocabulary", "words"),
            needs=(),
            signature=("tok",),
        ),
        "distinct-1": Measure(
            (Score("distinct-1", "Different words, as a share of all words."),),
            By("wording.distinct_1", "words"),
            needs=(),
            signature=("tok",),
        ),
        "distinct-2": Measure(
            (Score("distinct-2", "Different pairs of neighbouring words, as a share of all pairs."),),
            By("wording.distinct_2", "words"),
            needs=(),
            signature=("tok",),
        ),
        "RareWords": Measure(
            (Score("RareWords", "Words that few COCO photos are described with, as a share of all words."),),
            By("wording.rare_in_coco", "words"),
            needs=(),
            signature=(f"rare:coco<{RARE_WORD:g}", "tok"),
        ),
        "Novel": Measure(
            (Score("Novel", "Captions that equal no training caption, as a share of all (with --training)."),),
            By("wording.novel", "words", "training"),
            needs=("training captions",),
            signature=("training", "tok"),
        ),
        "Rep": Measure(
            (Score("Rep", "Captions that use a content word twice, as a share of all.", False),),
            By("wording.repetition", "words"),
            needs=(),
            signature=("tok",),
        ),
        "BadEnd": Measure(
            (Score("BadEnd", 'Captions that break off ("a dog on a"), as a share of all.', False),),
            By("wording.bad_end", "words"),
            needs=(),
            signature=("tok",),
        ),
        "Stutter": Measure(
            (Score("Stutter", 'Captions in which a word follows itself ("a dog is is"), as a share of all.', False),),
            By("wording.stutter", "words"),
            needs=(),
            signature=("tok",),
        ),
        "UnusualOrder": Measure(
            (Score("UnusualOrder", "Captions with an unusual order of function words, as a share of all.", False),),
            By("unusual_order.by_coco", "words"),
            needs=(),
            signature=(f"order:coco<{RARE_ORDER:g}", "tok"),
        ),
        "Fluency": Measure(
            (
                Score(
                    "Fluency",
                    "How expected a word is after the three before it, beyond its frequency, on average (SLOR, in "
                    "nats).",
                    percent=False,
                    digits=2,
                ),
            ),
            By("fluency.by_coco", "words"),
            needs=(),
            signature=("lm:coco-odd", "tok"),
        ),
        "Unidiomatic": Measure(
            (
                Score(
                    "Unidiomatic",
                    "Captions with a word less expected where it stands than people's captions of these photos have in "
                    "95 of 100 cases, as a share of all; people's own are near 5 %.",
                    False,
                ),
            ),
            By("fluency.unidiomatic_by_coco", "words", "reference_words"),
            signature=(f"below:{UNIDIOMATIC:g}", "lm:coco-odd", "tok", "refs"),
        ),
        "Prec": Measure(
            (
                Score(
                    "Prec", "Accuracy: content words that people use of the same photo too, as a share of all of them."
                ),
            ),
            By("wording.precision", "words", "reference_words"),
        ),
        "CHAIR": Measure(
            (
                Score("CHAIRi", "Object words (80 kinds) whose object no reference names, as a share of all.", False),
                Score("CHAIRs", "Captions with an object that no reference names, as a share of all.", False),
            ),
            By("wording.chair", "words", "reference_words"),
        ),
        "CIDErBtw": Measure(
            (Score("CIDErBtw", "Agreement with people's captions of the look-alikes (CIDEr-D).", False),),
            By("cider.cider_between", "captions_split", "references", "look_alikes", mean="CIDErBtw"),
            signature=("look-alikes", "df", "tok", "refs"),
        ),
        "DisWordRate": Measure(
            (Score("DisWordRate", "Words that nobody uses of the look-alikes, as a share of all words."),),
            By("wording.distinctive_words", "words", "reference_words", "look_alikes"),
            signature=("look-alikes", "tok", "refs"),
        ),
        "mBLEU": Measure(
            tuple(
                Score(f"mBLEU-{n}", f"{_ngrams(n)} that several captions of one photo have in common.", False)
                for n in range(1, 5)
            ),
            By("diversity.mutual_bleu", "all_captions_split"),
            needs=("several captions",),
            signature=("captions", "tok"),
        ),
        "self-CIDEr": Measure(
            (Score("self-CIDEr", "How different several captions of one photo are."),),
            By("diversity.self_cider", "all_captions_split", "reference_frequencies"),
            needs=("references", "several captions"),
            signature=("captions", "df", "tok"),
        ),
    }
)
