"""Photos on a page, each with its look-alikes and the captions of several models.

A card is one photo; or one clip, a strip of its frames above the captions, whose words are coloured by whether the
references have them.  Words that a model says of it and of none of its look-alikes are marked; how far down the list
a retriever finds the photo stands behind the caption; pointed at, a word shows which part of the photo it rests on.
A list of cards is complete without a script; with it (pages/cards.js), it can be searched, narrowed down and sorted.

An evaluation's photos are sampled by a seed; those whose ranks changed most come with them.  A page that opens with two
equal captions, or with a false one, says nothing of either model.  So photos can be put in an order by data alone
(`Clarity`): first those whose caption differs from the other model's and is confirmed by the references.  A page that
does so says it, and shows the other photos too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from capscore.printable import counted
from capscore.progress import Progress
from capscore.words import STOP_WORDS
from tellapart.data.media.clips import named_as_clip
from tellapart.data.media.thumbnails import LONG_SIDE, strip, thumbnail
from tellapart.data.tokenizers import split_words
from tellapart.errors import BadPhoto
from tellapart.evaluation.grid import TEXT_TO_TEXT, Grid, Places, Row
from tellapart.html import escaped, render

TABLES, STYLE, SCRIPT = (f"evaluation/pages/{name}" for name in ("tables.css", "cards.css", "cards.js"))
CHANGES = 4  # photos whose rank rose most, and as many whose rank fell most, for each model
_SMALL = 160  # pixels of a look-alike that has no card of its own
_SEED = 0
_PLACE_BY_TEXT = (
    "The photo's place among all, 1 if it is found: a model that only reads compares the caption with what people "
    "wrote about every photo."
)
_PLACE_BY = "The photo's place among all, 1 if it is found, by {by}, a model that sees the photos."

# Cards


@dataclass(frozen=True)
class WordRegions:
    """The part of the photo that each word rests on.

    levels  a text for each word, of a digit for each window, row by row: 0 not at all, 9 most of all words
    middle  the captioner sees only the middle of the photo, a square
    """

    levels: Sequence[str]
    middle: bool = False


@dataclass(frozen=True)
class Line:
    """A model's caption."""

    name: str
    caption: str
    of_look_alikes: frozenset[str] = frozenset()  # the words of its captions of them
    figures: Mapping[str, float] = field(default_factory=dict)  # by the name of their column
    regions: WordRegions | None = None
    colour: Markup | str = ""  # a dot before the name


@dataclass(frozen=True)
class Card:
    file: Path
    look_alikes: Sequence[Path]
    lines: Sequence[Line]
    references: Sequence[str] = ()

    @property
    def is_clip(self) -> bool:
        return named_as_clip(self.file)

    @property
    def frame(self) -> str:
        """The part of the photo over which words show what they rest on: whole or middle; empty: none."""
        regions = [line.regions for line in self.lines if line.regions]
        return "" if self.is_clip or not regions else "middle" if regions[0].middle else "whole"

    @cached_property
    def confirmed(self) -> frozenset[str]:
        """The words of the references."""
        return frozenset(word for text in self.references for word in split_words(text))

    def words(self, line: Line) -> Iterator[tuple[str, str, str]]:
        """Each word of a caption with its classes and what it rests on.

        Words that tell the photo apart are "told" if a reference has them, else "untold", or "own" where there are no
        references; of a clip, content words are "in" or "out" of the references.
        """
        texts = line.caption.split()
        levels = line.regions.levels if line.regions and len(line.regions.levels) == len(texts) else [""] * len(texts)
        for text, level in zip(texts, levels, strict=True):
            content = frozenset(split_words(text)) - STOP_WORDS
            telling, kinds = content - line.of_look_alikes, []
            if telling:
                kinds.append("own" if not self.references else "told" if telling <= self.confirmed else "untold")
            if self.is_clip and self.references and content:
                kinds.append("in" if content <= self.confirmed else "out")
            yield text, " ".join(kinds), level


@dataclass(frozen=True)
class Order:
    """A way to sort: by a number of each card, the least first."""

    name: str
    keys: Sequence[float]


@dataclass(frozen=True)
class Kind:
    """A way to narrow down: the cards, by their places, that are of this kind."""

    name: str
    cards: frozenset[int]
    at_first: bool = False  # these are shown when the page is opened, not all


@dataclass(frozen=True)
class Columns:
    """Figures behind captions: what stands above all of them, those that are places in a list, and what they mean."""

    names: Sequence[str]
    places: frozenset[str] = frozenset()
    above: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict)


class Pictures:
    """The photos of a page.  Each is in it once, as a style, however often it is shown."""

    def __init__(self) -> None:
        self._shown: dict[Path, Markup] = {}
        self._strips: dict[Path, tuple[Markup, float]] = {}
        self.style = ""

    def show(self, file: Path, long_side: int = _SMALL) -> Markup:
        """In the size in which it was first asked for."""
        if file not in self._shown:
            try:
                self._shown[file] = self._styled(file, *thumbnail(file, long_side), f"p{len(self._shown)}")
            except BadPhoto as error:
                self._shown[file] = _no_picture(error)
        return self._shown[file]

    def strip(self, clip: Path) -> tuple[Markup, float]:
        """Frames of a clip; and how much of the colours changes between two of them at most."""
        if clip not in self._strips:
            try:
                width, height, url, change = strip(clip)
                self._strips[clip] = self._styled(clip, width, height, url, f"s{len(self._strips)}"), change
            except BadPhoto as error:
                self._strips[clip] = _no_picture(error), 0.0
        return self._strips[clip]

    def _styled(self, file: Path, width: int, height: int, url: str, name: str) -> Markup:
        self.style += f'.{name} {{ background-image: url("{url}"); --shape: {width / height:.4f}; }}\n'
        return Markup(f'<span class="picture {name}" role="img" aria-label="{escaped(file.name)}"></span>')


def _no_picture(error: BadPhoto) -> Markup:
    return Markup(f'<span class="none">no picture: {escaped(error.reason)}</span>')


def section(
    cards: Sequence[Card],
    pictures: Pictures,
    columns: Columns,
    *,
    orders: Sequence[Order] = (),
    kinds: Sequence[Kind] = (),
    sorted_by: str = "the order of the data",
    fold: str = "",
) -> Markup:
    """A list of cards below the tools that its script needs.

    sorted_by  names the order in which they are given
    fold       what opens the tools, where photos should come first
    """
    for card in cards:  # before they are asked for as look-alikes of others
        if not card.is_clip:
            pictures.show(card.file, LONG_SIDE)
    return render(
        "evaluation/pages/cards.html",
        cards=cards,
        pictures=pictures,
        columns=columns,
        orders=orders,
        kinds=kinds,
        sorted_by=sorted_by,
        fold=fold,
        every=counted(len(cards), "photo"),
    )


def legend(cards: Sequence[Card]) -> str:
    """Sentences that one needs to read the cards."""
    sentences = []
    if any(card.look_alikes for card in cards):
        so = ", with a solid line if the references have them" if any(card.references for card in cards) else ""
        sentences.append("Beside each photo are those that look most like it.")
        sentences.append(f"Words that a model uses for none of these are underlined{so}.")
    if any(card.is_clip and card.references for card in cards):
        sentences.append("Of clips, words that the references have are green, others red.")
    if any(line.regions for card in cards for line in card.lines):
        sentences.append("Point at a word, or tap it, to see which part of the photo it rests on.")
    return " ".join(sentences)


# Which photos show best what a model adds


@dataclass(frozen=True, order=True)
class Clarity:
    """The case for a photo.  Compared field by field, the first that differs decides; more is better.

    differs    the two captions are not of the same words
    right      references have every content word of the model's caption, and it agrees with them at least as well
    found      text to text finds the photo by it; where that was not measured, nothing is held against it
    telling    how many of these words are in neither the other caption nor the model's captions of the look-alikes
    found_now  text to text does not find the photo by the other caption
    gain       of agreement with the references, CIDEr-D
    """

    differs: bool
    right: bool
    found: bool
    telling: int
    found_now: bool
    gain: float

    @property
    def is_clear(self) -> bool:
        return self.differs and self.right and self.found and self.telling > 0


def clarity(card: Card, model: str, base: str, *, by: str, gain: float = 0.0) -> Clarity:
    """Clarity of the lines of a card that have these names; `by` is the column with places by text to text."""
    ours, theirs = (next(line for line in card.lines if line.name == name) for name in (model, base))
    words, others = (frozenset(split_words(line.caption)) for line in (ours, theirs))
    content = words - STOP_WORDS
    place, other_place = (line.figures.get(by) for line in (ours, theirs))
    return Clarity(
        differs=words != others,
        right=bool(content) and content <= card.confirmed and gain >= 0,
        found=place is None or place == 1,
        telling=len((content & card.confirmed) - others - ours.of_look_alikes),
        found_now=place == 1 and other_place != 1,
        gain=gain,
    )


def positions(clarities: Sequence[Clarity]) -> list[int]:
    """The place of each photo when the clearest are first; equal ones keep their order."""
    order = sorted(range(len(clarities)), key=lambda number: clarities[number], reverse=True)
    return [place for place, _ in sorted(enumerate(order), key=lambda pair: pair[1])]


# The photos of an evaluation

FindRegions = Callable[[str, Path, str], WordRegions | None]  # model, photo, caption -> what its words rest on


def no_regions(_model: str, _photo: Path, _caption: str) -> None:
    """For captions whose captioner is not at hand."""


def photo_list(grid: Grid, pictures: Pictures, find_regions: FindRegions, examples: int, first: int) -> Markup:
    """Photos drawn by chance, and for each model those whose places changed most from the base's.

    first  so many are shown at first, of those that show best what the second model adds; 0: those drawn by chance
    """
    count = min(examples, len(grid.measured))
    drawn = set(np.random.default_rng(_SEED).choice(grid.measured, count, replace=False).tolist())
    base, names = grid.row_of(grid.against), shown_rows(grid)
    places = {name: grid.rows[name].places() for name in names}
    by = list(grid.retrievers)[-1] if grid.retrievers else ""  # by custom the judge, which chose and rewarded nothing
    ours = [name for name in names if not grid.rows[name].captions.of_people]
    changed = {name: _changes(places[name][by], places[base][by]) for name in ours if by and name != base}
    photos = sorted(drawn.union(*changed.values()))

    wanted = {(photo, name) for photo in drawn for name in ours}
    wanted |= {(photo, either) for name, of_name in changed.items() for photo in of_name for either in (name, base)}
    files = {(grid.split.photos[photo].file, name) for photo, name in wanted}
    with Progress("what words rest on", len(files), unit="caption") as bar:  # it takes time

        def find(name: str, file: Path, caption: str) -> WordRegions | None:
            if (file, name) not in files:
                return None
            bar.advance()
            return find_regions(name, file, caption)

        cards = [card(grid, photo, places, find) for photo in photos]
    clear = {name: _clarities(grid, cards, photos, name, base) for name in ours if name != base}
    best = next(iter(clear), "") if first else ""
    kinds, orders, sorted_by = [], [], "the order of the data"
    scene_changes = [-pictures.strip(card.file)[1] if card.is_clip else 0.0 for card in cards]
    if best or any(scene_changes):
        order = np.argsort(positions(clear[best]) if best else scene_changes, kind="stable").tolist()
        photos, cards = [photos[number] for number in order], [cards[number] for number in order]
        clear = {name: [of_name[number] for number in order] for name, of_name in clear.items()}
        orders.append(Order(sorted_by, photos))
        sorted_by = "scene changes, the most drastic first"
    if best:
        shown = frozenset([number for number, case in enumerate(clear[best]) if case.is_clear][:first])
        sorted_by = f"{best} right, and not the same as {base}"
        if shown:
            kinds.append(Kind(f"{counted(len(shown), 'photo')}: {sorted_by}", shown, at_first=True))
    elif len(drawn) < len(photos):
        kinds.append(Kind(f"{counted(count, 'photo')} drawn by chance", frozenset(map(photos.index, drawn)), True))
    groups: dict[str, set[int]] = {}
    for number, photo in enumerate(photos):  # that the data set itself puts together
        if name := grid.split.photos[photo].extra.get("group"):
            groups.setdefault(str(name), set()).add(number)
    kinds += [Kind(name, frozenset(group)) for name, group in groups.items()]
    for name, most in changed.items():
        of_ranks = _by_rank(photos, places, name, base, by, most)
        kinds, orders = kinds + of_ranks[0], orders + of_ranks[1]
        if name != best:
            orders.append(Order(f"{name} right, and not the same as {base}", positions(clear[name])))
    orders += [Order(f"{name}: rank, by {by}", [places[name][by][photo] for photo in photos]) for name in names if by]

    by_text = any(TEXT_TO_TEXT in of_model for of_model in places.values())
    meanings = {TEXT_TO_TEXT: _PLACE_BY_TEXT} if by_text else {}
    meanings |= {by: _PLACE_BY.replace("{by}", by) for by in grid.retrievers}
    columns = Columns(list(meanings), frozenset(meanings), "place by" if meanings else "", meanings)
    fold = ""
    note = Markup('<p class="notes">{}</p>\n').format(_how_to_read(cards, columns, len(grid.split.photos)))
    above = Markup("<h3>Photos</h3>\n") + note
    if best:
        above = Markup("<p>{}</p>\n").format(_why_these(cards, kinds, best, base))
        fold = f"Search, sort, and see all {counted(len(cards), 'photo')}"
    listed = section(cards, pictures, columns, orders=orders, kinds=kinds, sorted_by=sorted_by, fold=fold)
    return above + listed + (note if best else "")


def _clarities(grid: Grid, cards: Sequence[Card], photos: Sequence[int], name: str, base: str) -> list[Clarity]:
    """Clarity of each photo: does it show what a model adds to the base?"""

    def agreement(row: Row, score: str = "CIDEr-D") -> NDArray[np.float64]:
        for measure in row.statistics:
            if score in measure.names:
                return measure.per_photo()[:, measure.names.index(score)]
        return np.zeros(len(grid.split.photos))

    gains = (agreement(grid.rows[name]) - agreement(grid.rows[base]))[photos].tolist()
    return [clarity(card, name, base, by=TEXT_TO_TEXT, gain=gain) for card, gain in zip(cards, gains, strict=True)]


def _by_rank(
    photos: Sequence[int], places: Mapping[str, Places], name: str, base: str, by: str, most: Sequence[int]
) -> tuple[list[Kind], list[Order]]:
    """Kinds and orders by ranks: photos to which a model's captions lead better or worse than the base's."""
    ours, theirs = (np.array([places[row][by][photo] for photo in photos]) for row in (name, base))
    gained, rise = np.flatnonzero((ours == 1) & (theirs > 1)), np.log(theirs / ours)
    largest = frozenset(index for index, photo in enumerate(photos) if photo in set(most))
    kinds = [
        Kind(f"{name}: the largest changes of rank against {base}, by {by}", largest),
        Kind(f"found by {by} through {name}, not through {base}", frozenset(gained.tolist())),
    ]
    orders = [
        Order(f"{name}: rank risen most, by {by}", (-rise).tolist()),
        Order(f"{name}: rank fallen most, by {by}", rise.tolist()),
    ]
    return kinds, orders


def _why_these(cards: Sequence[Card], kinds: Sequence[Kind], best: str, base: str) -> str:
    """A sentence on the photos that are shown first: they are no fair sample."""
    shown = len(kinds[0].cards) if kinds and kinds[0].at_first else 0
    if not shown:
        return f"Those photos first of which {best} says other things than {base}, in people's words."
    return (
        f"{shown} of {counted(len(cards), 'photo')}, chosen by figures: {best} says something else than {base}, and "
        "what people wrote about the photo bears it out. This is no fair sample: the list has the other "
        f"{len(cards) - shown} too, mistakes among them."
    )


def _how_to_read(cards: Sequence[Card], columns: Columns, photos: int) -> str:
    sentences = [legend(cards)]
    if columns.names:
        seeing = [name for name in columns.names if name != TEXT_TO_TEXT]
        by = (
            [f"{TEXT_TO_TEXT} (text to text: by what people wrote about the photos)"]
            if TEXT_TO_TEXT in columns.names
            else []
        )
        by += [f"{' and '.join(seeing)} (by looking at the photos)"] if seeing else []
        among = counted(photos, "photo")
        sentences.append(
            f"Behind a caption is its photo's place among the {among}, 1 if it is found, by {' and by '.join(by)}."
        )
    return " ".join(sentences)


def shown_rows(grid: Grid) -> list[str]:
    """The rows whose captions are shown: of a recipe, one run."""
    return list(dict.fromkeys([*map(grid.row_of, grid.lines), grid.row_of(grid.against)]))


def card(grid: Grid, photo: int, places: Mapping[str, Places], find_regions: FindRegions) -> Card:
    """A photo of a grid: the captions of the models that have places, of it and of its look-alikes."""
    example = grid.split.photos[photo]
    alike = [other for other in grid.look_alikes[photo].tolist() if other >= 0]
    lines = []
    for name, of_retrievers in places.items():
        captions = grid.rows[name].captions.of_photo
        of_others = frozenset(
            word for other in alike for text in captions.get(other, [])[:1] for word in split_words(text)
        )
        figures = {by: float(ranks[photo]) for by, ranks in of_retrievers.items() if photo in ranks}
        caption = captions[photo][0]
        lines.append(Line(name, caption, of_others, figures, find_regions(name, example.file, caption)))
    return Card(example.file, [grid.split.photos[other].file for other in alike], lines, example.captions)


def _changes(ours: dict[int, int], theirs: dict[int, int]) -> list[int]:
    """Photos whose place rose most, then those whose place fell most; from 1 to 10 is as much as from 10 to 100."""
    change = {photo: math.log(theirs[photo] / place) for photo, place in ours.items() if theirs[photo] != place}
    order = sorted(change, key=lambda photo: -change[photo])
    risen = [photo for photo in order[:CHANGES] if change[photo] > 0]
    fallen = [photo for photo in order[: -CHANGES - 1 : -1] if change[photo] < 0]
    return risen + fallen
