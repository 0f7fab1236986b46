"""What each measure says, for people: the one table behind tables, pages and help.

`scoring` and `retrieval` compute; here stands in plain words what a figure means, which way it gets better, and whether
people read it times 100.  Nothing is imported before it is needed, so that `--help` stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MeasureInfo:
    """name              as tables and files have it; of a retrieval measure, the kind of `retrieval.Name`
    description       a sentence.  Of a retrieval measure: {by} is the retriever, {place} "first" or "among the first
                      5", {k} the size of a pool
    higher_is_better  None where neither is
    percent           tables for people show it times 100
    """

    name: str
    description: str
    higher_is_better: bool | None = True
    percent: bool = True

    @property
    def direction(self) -> str:
        """For people; nothing where neither way is better."""
        return {True: "higher is better", False: "lower is better", None: ""}[self.higher_is_better]


def _n_grams(n: int) -> str:
    return "Words" if n == 1 else f"Words and runs of up to {n} words"


_FACTS = ("object", "relation", "attribute", "colour", "count", "size")

# What captions are scored by: all names that `scoring` computes, in its order
TEXT = (
    *(MeasureInfo(f"BLEU-{n}", f"{_n_grams(n)} that people's captions of the photo have too.") for n in range(1, 5)),
    MeasureInfo("METEOR", "Agreement with people's captions; stems, synonyms and paraphrases count too."),
    MeasureInfo("ROUGE-L", "Agreement with people's captions by the longest sequence of words in common."),
    MeasureInfo(
        "CIDEr-D",
        "Agreement with people's captions, in which rare phrases count more. Papers and leaderboards call it CIDEr.",
    ),
    MeasureInfo(
        "CIDEr", "The plain form of CIDEr, unclipped and without length penalty. What papers call CIDEr is CIDEr-D."
    ),
    MeasureInfo("SPICE", "Objects, attributes and relations in common with people's captions (runs Java)."),
    *(MeasureInfo(f"SPICE-{part}", f"SPICE, of {part}s alone.") for part in _FACTS),
    MeasureInfo("SGF", "Objects, attributes and relations in common with people's captions, by our own parser."),
    *(MeasureInfo(f"SGF-{part}", f"SGF, of {part}s alone.") for part in _FACTS),
    MeasureInfo("UniCap", "Different captions, as a share of all captions."),
    MeasureInfo("AvgLen", "Words in a caption, on average.", None, percent=False),
    MeasureInfo("Vocabulary", "Different words in all captions together.", percent=False),
    MeasureInfo("distinct-1", "Different words, as a share of all words."),
    MeasureInfo("distinct-2", "Different pairs of neighbouring words, as a share of all pairs."),
    MeasureInfo("RareWords", "Words that few COCO photos are described with, as a share of all words."),
    MeasureInfo("Rep", "Captions that use a content word twice, as a share of all.", False),
    MeasureInfo("BadEnd", 'Captions that break off ("a dog on a"), as a share of all.', False),
    MeasureInfo("Stutter", 'Captions in which a word follows itself ("a dog is is"), as a share of all.', False),
    MeasureInfo("Odd", "Captions with an unusual order of function words, as a share of all.", False),
    MeasureInfo("Prec", "Accuracy: content words that people use of the same photo too, as a share of all of them."),
    MeasureInfo("CIDErBtw", "Agreement with people's captions of the look-alikes (CIDEr-D).", False),
    MeasureInfo("DisWordRate", "Words that nobody uses of the look-alikes, as a share of all words."),
    *(
        MeasureInfo(f"mBLEU-{n}", f"{_n_grams(n)} that several captions of one photo have in common.", False)
        for n in range(1, 5)
    ),
    MeasureInfo("self-CIDEr", "How different several captions of one photo are."),
)

RETRIEVAL = (
    MeasureInfo(
        "TT R",
        "Text to text: a model that only reads compares the caption with what people wrote about every photo; "
        "so many captions bring the right photo {place}.",
    ),
    MeasureInfo(
        "R",
        "By looking: {by}, a model that sees the photos, searches them by the caption; so many captions bring the "
        "right photo {place}.",
    ),
    MeasureInfo("P", "Captions by which {by}, which sees the photos, picks the right one of {k} drawn by chance."),
    MeasureInfo("P-hard", "Captions by which {by}, which sees the photos, picks the right one of the {k} most alike."),
    MeasureInfo("GEG-Avg", "By how much a caption fits its photo better than its look-alikes on average, by {by}."),
    MeasureInfo("GEG-Min", "By how much a caption fits its photo better than the closest look-alike, by {by}."),
    MeasureInfo("self R", "The captioner itself looks for the photo by its caption; so many bring it {place}."),
)

# By a detector, {by}
OBJECTS = (
    MeasureInfo(
        "ObjPrec",
        "Accuracy: object words of the captions (80 kinds) that {by}, a detector, sees in the photo, as a share.",
    ),
    MeasureInfo("ObjRec", "Things that {by}, a detector, clearly sees in the photo and the caption names, as a share."),
)

# What training reports beside these
VALIDATION = (
    MeasureInfo("loss", "Cross-entropy of people's captions of held-out photos.", False, percent=False),
    MeasureInfo("accuracy", "Next words of people's captions that the model expects most."),
    MeasureInfo("unique", "Different captions, as a share of all."),
    MeasureInfo("length", "Words in a caption, on average.", None, percent=False),
    *(MeasureInfo(f"R@{k}", f"Held-out captions whose photo is among the first {k}.") for k in (1, 5, 10)),
    MeasureInfo("recall", "The mean of R@1, R@5 and R@10."),
)

_BY_NAME = {info.name: info for info in (*TEXT, *VALIDATION)}
_BY_KIND = {info.name: info for info in (*RETRIEVAL, *OBJECTS)}


def of(name: str) -> MeasureInfo | None:
    """What is known of a score by its name, `R@5[judge]` too; none for a name that no measure has.

    >>> of("GEG-Avg[judge]").description
    'By how much a caption fits its photo better than its look-alikes on average, by judge.'
    >>> of("Rep").higher_is_better
    False
    """
    from tellapart.metrics import objects, retrieval

    if (seen := objects.parse(name)) is not None:
        info = _BY_KIND[seen[0]]
        return replace(info, name=name, description=info.description.replace("{by}", seen[1]))
    parsed = retrieval.parse(name)
    if parsed is None:
        return _BY_NAME.get(name)
    info, place = _BY_KIND[parsed.kind], "first" if parsed.k == 1 else f"among the first {parsed.k}"
    filled = {"{place}": place, "{k}": str(parsed.k), "{by}": parsed.retriever}  # the name last: it may be any text
    text = info.description
    for gap, value in filled.items():
        text = text.replace(gap, value)
    return replace(info, name=name, description=text)


def lower_is_better(name: str) -> bool:
    """Whether the lowest of some figures of this name is the best one."""
    info = of(name)
    return info is not None and info.higher_is_better is False


def explained(name: str) -> str:
    """A score in a sentence or two, with the way it gets better; nothing of a name that no measure has."""
    info = of(name)
    if info is None:
        return ""
    return f"{info.description} {info.direction.capitalize()}." if info.direction else info.description
