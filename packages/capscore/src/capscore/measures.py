"""The table of measures: what is known of each, and which function computes it, which is imported when it is needed.

Tables to which code of the user's own adds (`Table`) are here too: this is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from capscore.errors import UserError

if TYPE_CHECKING:
    from capscore.scoring import ScoringInputs
    from capscore.statistics import Statistics

_importing: list[str] = []  # the plugin that is being imported

Line = TypeVar("Line")


class Table(MutableMapping[str, Line]):
    """Lines by name, to which plugins add theirs.  A name that another has is refused: recipes may mean that one.

    what   one of its lines is, for messages
    kinds  of its lines
    """

    def __init__(self, what: str, lines: Mapping[str, Line], *kinds: type):
        self.what, self._lines, self._kinds = what, dict(lines), kinds
        self.added: dict[str, str] = {}  # lines that are not ours: name -> the plugin

    def __getitem__(self, name: str) -> Line:
        return self._lines[name]

    def __setitem__(self, name: str, line: Line) -> None:
        plugin = _importing[-1] if _importing else ""
        where = f"{plugin}: " if plugin else ""
        if name in self and self.added.get(name) != plugin:
            raise UserError(f"{where}there is a {self.what} {name!r} already; give yours another name.")
        if self._kinds and not isinstance(line, self._kinds):
            wanted = " or ".join(kind.__name__ for kind in self._kinds)
            raise UserError(f"{where}the {self.what} {name!r} must be a {wanted}, not a {type(line).__name__}.")
        self._lines[name], self.added[name] = line, plugin

    def __delitem__(self, name: str) -> None:
        del self._lines[name]
        self.added.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def named(self, name: str) -> str:
        """A line in messages, with the plugin that it is from."""
        plugin = self.added.get(name)
        return f"{plugin}: the {self.what} {name!r}" if plugin else f"the {self.what} {name!r}"


@contextmanager
def importing_now(name: str) -> Iterator[None]:
    """Lines that are added to a table meanwhile are this plugin's."""
    _importing.append(Path(name).name)
    try:
        yield
    finally:
        _importing.pop()


RARE_WORD = 1e-3  # a word is rare if fewer than one photo in a thousand has it in its references
RARE_ORDER = 1 / 500  # of the captions that have the three words before; people do it in one caption of four to six
UNIDIOMATIC = 0.05  # the quantile of people's least expected words below which one is unidiomatic
FACTS = ("object", "relation", "attribute", "colour", "count", "size")  # kinds that have a score of their own

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
    missing: Callable[[], str | None] = lambda: None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.scores)


class Measures(Table[Measure]):
    """Measures by their names."""

    def __init__(self, measures: Mapping[str, Measure]):
        super().__init__("measure", measures, Measure)

    @property
    def home(self) -> dict[str, str]:
        """The measure that gives each score; a measure's own name is its home too."""
        return {name: measure for measure in self for name in (measure, *self[measure].names)}

    def score(self, name: str) -> Score | None:
        measure = self.home.get(name)
        return next((score for score in self[measure].scores if score.name == name), None) if measure else None


def called(function: str, *arguments: Any) -> Any:
    """The result of "module.function" of this package, imported when it is first needed: `--help` stays fast."""
    module, _, name = function.rpartition(".")
    return getattr(import_module(f"capscore.{module}"), name)(*arguments)


def _by(function: str, *fields: str) -> Callable[[ScoringInputs], Statistics]:
    """The function called with these fields of the inputs."""
    return lambda inputs: called(function, *(getattr(inputs, field) for field in fields))


def _mean(name: str, function: str, *fields: str) -> Callable[[ScoringInputs], Statistics]:
    """The same where it gives (N,) values, whose mean is the score of that name."""
    return lambda inputs: called("statistics.mean_of", name, _by(function, *fields)(inputs))


def _one(score: Score, compute: Callable[[ScoringInputs], Statistics], **facts: Any) -> dict[str, Measure]:
    """A measure of one score, whose name it has."""
    return {score.name: Measure((score,), compute, **facts)}


def _of_words(score: Score, function: str, *depends_on: str) -> dict[str, Measure]:
    """The same of the captions' words alone."""
    return _one(score, _by(function, "words"), needs=(), signature=(*depends_on, "tok"))


def _to_four(name: str, description: str, better: bool = True) -> tuple[Score, ...]:
    """Scores of n-grams, n = 1 to 4."""
    ngrams = ["Words", *(f"Words and runs of up to {n} words" for n in range(2, 5))]
    return tuple(Score(f"{name}-{n}", f"{which} {description}", better) for n, which in enumerate(ngrams, 1))


def _of_facts(name: str, description: str) -> tuple[Score, ...]:
    """A score of all facts, and of each kind of them."""
    return Score(name, description), *(Score(f"{name}-{fact}", f"{name}, of {fact}s alone.") for fact in FACTS)


_OVERLAP = ("captions_split", "photos", "references")
_WORDS = ("words", "reference_words")

MEASURES = Measures(
    {
        "BLEU": Measure(
            _to_four("BLEU", "that people's captions of the photo have too."), _by("overlap.bleu", *_OVERLAP)
        ),
        **_one(
            Score("METEOR", "Agreement with people's captions; stems, synonyms and paraphrases count too."),
            _by("meteor.statistics", *_WORDS),
            signature=("meteor:1.5", "tok", "refs"),
            missing=lambda: called("meteor.available"),
        ),
        **_one(
            Score("ROUGE-L", "Agreement with people's captions by the longest sequence of words in common."),
            _mean("ROUGE-L", "overlap.rouge_l", "caption_ids", "photos", "reference_ids"),
        ),
        **_one(
            Score(
                "CIDEr-D",
                "Agreement with people's captions, in which rare phrases count more. "
                "Papers and leaderboards call it CIDEr.",
            ),
            _mean("CIDEr-D", "overlap.cider_d", *_OVERLAP),
            signature=("df", "tok", "refs"),
        ),
        **_one(
            Score(
                "CIDEr",
                "The plain form of CIDEr, unclipped and without length penalty. What papers call CIDEr is CIDEr-D.",
            ),
            _mean("CIDEr", "overlap.cider", *_OVERLAP),
            signature=("df", "tok", "refs"),
        ),
        "SPICE": Measure(
            _of_facts("SPICE", "Objects, attributes and relations in common with people's captions (runs Java)."),
            _by("spice.statistics", *_WORDS),
            needs=("references", "Java"),
            signature=("spice:1.0", "tok", "refs"),
            missing=lambda: called("spice.available"),
        ),
        "SGF": Measure(
            _of_facts("SGF", "Objects, attributes and relations in common with people's captions, by our own parser."),
            _by("scene_graph.statistics", *_WORDS),
        ),
        **_of_words(Score("UniCap", "Different captions, as a share of all captions."), "words.unique_captions"),
        **_of_words(Score("AvgLen", "Words in a caption, on average.", None, percent=False), "words.average_length"),
        **_of_words(
            Score("Vocabulary", "Different words in all captions together.", percent=False, digits=0),
            "words.vocabulary",
        ),
        **_of_words(Score("distinct-1", "Different words, as a share of all words."), "words.distinct_1"),
        **_of_words(
            Score("distinct-2", "Different pairs of neighbouring words, as a share of all pairs."), "words.distinct_2"
        ),
        **_of_words(
            Score("RareWords", "Words that few COCO photos are described with, as a share of all words."),
            "words.rare_in_coco",
            f"rare:coco<{RARE_WORD:g}",
        ),
        **_one(
            Score("Novel", "Captions that equal no training caption, as a share of all (with --training)."),
            _by("words.novel", "words", "training"),
            needs=("training captions",),
            signature=("training", "tok"),
        ),
        **_of_words(
            Score("Rep", "Captions that use a content word twice, as a share of all.", False), "words.repetition"
        ),
        **_of_words(
            Score("BadEnd", 'Captions that break off ("a dog on a"), as a share of all.', False), "words.bad_end"
        ),
        **_of_words(
            Score("Stutter", 'Captions in which a word follows itself ("a dog is is"), as a share of all.', False),
            "words.stutter",
        ),
        **_of_words(
            Score("UnusualOrder", "Captions with an unusual order of function words, as a share of all.", False),
            "words.unusual_order",
            f"order:coco<{RARE_ORDER:g}",
        ),
        **_of_words(
            Score(
                "Fluency",
                "How expected a word is after the three before it, beyond its frequency, on average (SLOR, in nats).",
                percent=False,
                digits=2,
            ),
            "fluency.fluency",
            "lm:coco-odd",
        ),
        **_one(
            Score(
                "Unidiomatic",
                "Captions with a word less expected where it stands than people's captions of these photos have in "
                "95 of 100 cases, as a share of all; people's own are near 5 %.",
                False,
            ),
            _by("fluency.unidiomatic", *_WORDS),
            signature=(f"below:{UNIDIOMATIC:g}", "lm:coco-odd", "tok", "refs"),
        ),
        **_one(
            Score("Prec", "Accuracy: content words that people use of the same photo too, as a share of all of them."),
            _by("words.precision", *_WORDS),
        ),
        "CHAIR": Measure(
            (
                Score("CHAIRi", "Object words (80 kinds) whose object no reference names, as a share of all.", False),
                Score("CHAIRs", "Captions with an object that no reference names, as a share of all.", False),
            ),
            _by("words.chair", *_WORDS),
        ),
        **_one(
            Score("CIDErBtw", "Agreement with people's captions of the look-alikes (CIDEr-D).", False),
            _mean("CIDErBtw", "overlap.cider_between", "captions_split", "references", "look_alikes"),
            signature=("look-alikes", "df", "tok", "refs"),
        ),
        **_one(
            Score("DisWordRate", "Words that nobody uses of the look-alikes, as a share of all words."),
            _by("words.distinctive_words", *_WORDS, "look_alikes"),
            signature=("look-alikes", "tok", "refs"),
        ),
        "mBLEU": Measure(
            _to_four("mBLEU", "that several captions of one photo have in common.", False),
            _by("overlap.mutual_bleu", "all_captions_split"),
            needs=("several captions",),
            signature=("captions", "tok"),
        ),
        **_one(
            Score("self-CIDEr", "How different several captions of one photo are."),
            _by("overlap.self_cider", "all_captions_split", "reference_frequencies"),
            needs=("references", "several captions"),
            signature=("captions", "df", "tok"),
        ),
    }
)
