"""Photos on a page, each with its look-alikes and the captions of several models.

A card is one photo; or one clip, a strip of its frames above the captions, whose words are coloured by whether the
references have them.  Words that a speaker says of it and of none of its look-alikes are marked; how far down the list
a listener finds the photo stands behind the caption; pointed at, a word shows which part of the photo it rests on.
A list of cards is complete without a script; with it (cards.js), it can be searched, narrowed down and sorted.

An evaluation's photos are sampled by a seed; those whose ranks changed most come with them.  A page that opens with two
equal captions, or with a false one, says nothing of either model.  So photos can be put in an order by data alone
(`Clarity`): first those whose caption differs from the other model's and is confirmed by the references.  A page that
does so says it, and shows the other photos too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore.printable import counted
from capscore.progress import Progress
from capscore.stop_words import STOP_WORDS
from tellapart.data.media.clips import named_as_clip
from tellapart.data.media.thumbnails import LONG_SIDE, strip, thumbnail
from tellapart.data.tokenizers import split_words
from tellapart.errors import BadPhoto
from tellapart.evaluation.grid import Grid, Row
from tellapart.html import abbreviation, escaped

_SMALL = 160  # pixels of a look-alike that has no card of its own


@dataclass(frozen=True)
class WordRegions:
    """Which part of the photo each word rests on.

    levels  a text for each word, of a digit for each window, row by row: 0 not at all, 9 most of all words
    middle  the captioner sees only the middle of the photo, a square
    """

    levels: Sequence[str]
    middle: bool = False


@dataclass(frozen=True)
class Line:
    """What one speaker says."""

    name: str
    caption: str
    of_look_alikes: frozenset[str] = frozenset()  # the words that it says of them
    figures: Mapping[str, float] = field(default_factory=dict)  # by the name of their column
    regions: WordRegions | None = None
    colour: str = ""  # HTML before the name


@dataclass(frozen=True)
class Card:
    file: Path
    look_alikes: Sequence[Path]
    lines: Sequence[Line]
    references: Sequence[str] = ()

    @property
    def is_clip(self) -> bool:
        return named_as_clip(self.file)


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
        self._shown: dict[Path, str] = {}  # file -> HTML
        self._strips: dict[Path, tuple[str, float]] = {}  # clip -> HTML, and how much changes in it
        self.style = ""

    def show(self, file: Path, long_side: int = _SMALL) -> str:
        """In the size in which it was first asked for."""
        if file not in self._shown:
            self._shown[file] = self._make(file, long_side, f"p{len(self._shown)}")
        return self._shown[file]

    def strip(self, clip: Path) -> tuple[str, float]:
        """Frames of a clip; and how much of the colours changes between two of them at most."""
        if clip not in self._strips:
            try:
                width, height, url, change = strip(clip)
                self._strips[clip] = self._styled(clip, width, height, url, f"s{len(self._strips)}"), change
            except BadPhoto as error:
                self._strips[clip] = _no_picture(error), 0.0
        return self._strips[clip]

    def _make(self, file: Path, long_side: int, name: str) -> str:
        try:
            return self._styled(file, *thumbnail(file, long_side), name)
        except BadPhoto as error:
            return _no_picture(error)

    def _styled(self, file: Path, width: int, height: int, url: str, name: str) -> str:
        self.style += f'.{name} {{ background-image: url("{url}"); --shape: {width / height:.4f}; }}\n'
        return f'<span class="picture {name}" role="img" aria-label="{escaped(file.name)}"></span>'


def _no_picture(error: BadPhoto) -> str:
    return f'<span class="none">no picture: {escaped(error.reason)}</span>'


def section(
    cards: Sequence[Card],
    pictures: Pictures,
    columns: Columns,
    *,
    orders: Sequence[Order] = (),
    kinds: Sequence[Kind] = (),
    sorted_by: str = "the order of the data",
    fold: str = "",
) -> str:
    """A list of cards below the tools that its script needs.

    sorted_by  names the order in which they are given
    fold       what opens the tools, where photos should come first
    """
    for card in cards:  # before they are asked for as look-alikes of others
        if not card.is_clip:
            pictures.show(card.file, LONG_SIDE)
    articles = "".join(_article(number, card, pictures, columns, orders, kinds) for number, card in enumerate(cards))
    tools = _tools(len(cards), orders, kinds, sorted_by)
    if fold:
        tools = f'<details class="fold" hidden><summary>{escaped(fold)}</summary>\n{tools}</details>\n'
    return f'<div class="cards">\n{tools}{articles}</div>\n'


def legend(cards: Sequence[Card]) -> str:
    """What one has to know to read them, as text."""
    sentences = []
    if any(card.look_alikes for card in cards):
        sentences.append("Beside each photo are those that look most like it.")
        has_references = any(card.references for card in cards)
        so = ", with a solid line if the references have them" if has_references else ""
        sentences.append(f"Words that a model uses for none of these are underlined{so}.")
    if any(card.is_clip and card.references for card in cards):
        sentences.append("Of clips, words that the references have are green, others red.")
    if any(line.regions for card in cards for line in card.lines):
        sentences.append("Point at a word, or tap it, to see which part of the photo it rests on.")
    return " ".join(sentences)


def script() -> str:
    return (resources.files("tellapart") / "evaluation" / "pages" / "cards.js").read_text(encoding="utf-8")


def _tools(count: int, orders: Sequence[Order], kinds: Sequence[Kind], sorted_by: str) -> str:
    every = f'<option value="">all of these {counted(count, "photo")}</option>'
    which = "".join(
        f'<option value="{n}"{" selected" if kind.at_first else ""}>{escaped(kind.name)}</option>'
        for n, kind in enumerate(kinds)
    )
    how = "".join(f'<option value="{n}">{escaped(order.name)}</option>' for n, order in enumerate(orders))
    parts = [
        '<label>Search <input type="search" name="search" placeholder="a word, or a file"></label>',
        f'<label>Show <select name="kind">{every}{which}</select></label>' if kinds else "",
        f'<label>Sort by <select name="order"><option value="">{escaped(sorted_by)}</option>{how}</select></label>'
        if orders
        else "",
        "<output></output>",
    ]
    return f'<form class="tools" hidden>{"".join(parts)}</form>\n'


def _article(
    number: int,
    card: Card,
    pictures: Pictures,
    columns: Columns,
    orders: Sequence[Order],
    kinds: Sequence[Kind],
) -> str:
    of = " ".join(str(n) for n, kind in enumerate(kinds) if number in kind.cards)
    keys = " ".join(f"{order.keys[number]:.6g}" for order in orders)
    alike = "".join(pictures.show(file) for file in card.look_alikes)
    beside = f'<div class="alike">{alike}</div>' if alike else ""
    parts = [
        f'<article{" class=clip" if card.is_clip else ""} data-kinds="{of}" data-keys="{keys}">\n<div class="photos">',
        f'<figure>{_own(card, pictures)}<figcaption class="file" dir="auto">{escaped(card.file.name)}</figcaption>',
        f"</figure>{beside}</div>\n<div>",
        _table(card, columns),
        _people(card.references),
        "</div>\n</article>\n",
    ]
    return "".join(parts)


def _own(card: Card, pictures: Pictures) -> str:
    """The photo, and over it a place where words show what they rest on; of a clip, frames."""
    if card.is_clip:
        return f'<div class="own">{pictures.strip(card.file)[0]}</div>'
    regions = [line.regions for line in card.lines if line.regions]
    frame = "middle" if regions and regions[0].middle else "whole"
    overlay = f'<canvas class="{frame}"></canvas>' if regions else ""
    return f'<div class="own">{pictures.show(card.file, LONG_SIDE)}{overlay}</div>'


def _table(card: Card, columns: Columns) -> str:
    known = frozenset(word for text in card.references for word in split_words(text))
    head = "".join(
        f'<th scope="col">{abbreviation(column, columns.meanings.get(column, ""))}</th>' for column in columns.names
    )
    lines = "".join(
        f'<tr><th scope="row" dir="auto">{line.colour}{escaped(line.name)}</th>'
        f'<td class="said" dir="auto">{_caption(line, known, card)}</td>'
        + "".join(_figure(line.figures.get(column), column in columns.places) for column in columns.names)
        + "</tr>\n"
        for line in card.lines
    )
    above = f'<thead><tr><td></td><td class="said">{escaped(columns.above)}</td>{head}</tr></thead>\n' if head else ""
    return f'<div class="wide"><table>\n{above}<tbody>{lines}</tbody></table></div>\n'


def _figure(value: float | None, is_place: bool) -> str:
    if value is None:
        return "<td></td>"
    return f'<td class="{"found" if is_place and value == 1 else ""}">{value:,.0f}</td>'


def _caption(line: Line, known: frozenset[str], card: Card) -> str:
    """The caption, with the words that tell the photo apart marked, and what each word rests on."""
    texts, has_references = line.caption.split(), bool(card.references)
    levels = line.regions.levels if line.regions and len(line.regions.levels) == len(texts) else [""] * len(texts)
    shown = []
    for text, at in zip(texts, levels, strict=True):
        content = frozenset(split_words(text)) - STOP_WORDS
        kind = _kind(content - line.of_look_alikes, known, has_references)
        if card.is_clip and has_references and content:
            kind = f"{kind} {'in' if content <= known else 'out'}".strip()
        shown.append(_word(text, kind, at))
    return " ".join(shown)


def _kind(own: frozenset[str], known: frozenset[str], has_references: bool) -> str:
    """Of the words of one text that tell apart: what a person said too, what nobody did, or that nobody knows."""
    if not own:
        return ""
    return ("told" if own <= known else "untold") if has_references else "own"


def _word(text: str, kind: str, at: str) -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' data-at="{at}"' if at else "")
    tag = "mark" if {"told", "untold", "own"} & set(kind.split()) else "span"
    return f"<{tag}{attributes}>{escaped(text)}</{tag}>" if attributes else escaped(text)


def _people(references: Sequence[str]) -> str:
    if not references:
        return ""
    items = "".join(f'<li dir="auto">{escaped(text)}</li>' for text in references)
    return f"<details><summary>References</summary>\n<ul>{items}</ul></details>\n"


TABLES = """
:root { --good: #1a7a4c; --bad: #b3372f; --other: #8a6a12; }
@media (prefers-color-scheme: dark) { :root { --good: #62c795; --bad: #ef8a80; --other: #d8b75a; } }
body { max-width: 80rem; overflow-wrap: normal; }
h3 { font-size: 1.05rem; font-weight: 600; margin: 2rem 0 .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .6rem; text-align: right; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
thead th { vertical-align: bottom; }
tr th:first-child { text-align: left; }
.notes { color: var(--soft); font-size: .85rem; margin: .8rem 0; max-width: 60rem; }
@media (max-width: 48rem) { th, td { padding: .4rem .35rem; } }
"""

STYLE = """
.tools { align-items: end; background: var(--paper); display: flex; flex-wrap: wrap; gap: .6rem 1.2rem;
  margin-bottom: .8rem; padding: .5rem 0; position: sticky; top: 0; z-index: 2; }
.tools[hidden], .fold[hidden] { display: none; }
.fold { margin: .6rem 0; } .fold .tools { position: static; }
.tools label { color: var(--soft); display: grid; font-size: .75rem; gap: .15rem; }
.tools input, .tools select { background: var(--card); border: 1px solid var(--line); border-radius: .35rem;
  color: var(--ink); font: inherit; font-size: .9rem; max-width: min(22rem, 85vw); padding: .35rem .5rem; }
.tools output { color: var(--soft); font-size: .85rem; padding-bottom: .4rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; display: grid;
  gap: 1rem 1.2rem; grid-template-columns: 21rem minmax(0, 1fr); margin-bottom: 1rem; padding: .8rem; }
article[hidden] { display: none; }
.photos { align-items: start; display: grid; gap: .5rem; grid-template-columns: minmax(0, 1fr) 7rem; }
.photos:not(:has(.alike)) { grid-template-columns: minmax(0, 1fr); }
.alike { display: grid; gap: .3rem; grid-template-columns: 1fr 1fr; }
.alike .picture { aspect-ratio: 1; background-size: cover; }
.picture { aspect-ratio: var(--shape); background-position: center; background-size: 100% 100%; border-radius: .3rem;
  display: block; print-color-adjust: exact; -webkit-print-color-adjust: exact; width: 100%; }
.own { position: relative; width: fit-content; max-width: 100%; }
.own .picture { max-width: 100%; width: calc(13rem * var(--shape)); }
.own canvas { border-radius: .3rem; pointer-events: none; position: absolute; }
canvas.whole { height: 100%; inset: 0; width: 100%; }
canvas.middle { aspect-ratio: 1; inset: 0; margin: auto; max-height: 100%; max-width: 100%; min-height: 0;
  height: 100%; }
article.clip { grid-template-columns: minmax(0, 1fr); } .clip .own, .clip .own .picture { width: 100%; }
.photos figure { background: none; border: 0; border-radius: 0; display: grid;
  grid-template-columns: minmax(0, 1fr); justify-items: center; }
.photos figcaption { color: var(--soft); max-width: 100%; padding: .25rem 0 0; }
article table { font-size: .92rem; width: 100%; }
article tr:last-child th, article tr:last-child td { border-bottom: 0; }
article th:first-child { padding-left: 0; }
article thead th, article thead td { color: var(--soft); font-size: .75rem; font-weight: 400; padding-top: 0; }
td.said { overflow-wrap: anywhere; text-align: left; white-space: normal; width: 100%; min-width: 7rem; }
article thead td.said { text-align: right; vertical-align: bottom; }
.found { color: var(--good); font-weight: 650; }
article details { color: var(--soft); font-size: .82rem; margin: .5rem 0 0; }
article summary { margin-bottom: .2rem; } article ul { padding-left: 1.1rem; }
[data-at] { border-radius: .25rem; cursor: crosshair; }
[data-at].on { background: #ff6a2b; box-shadow: 0 0 0 .15em #ff6a2b; color: #1b1206; }
mark { background: none; color: inherit; font-weight: 600; text-decoration: underline 2px; text-underline-offset: 3px; }
.said .in { color: var(--good); } .said .out { color: var(--bad); }
mark.told { text-decoration-color: var(--good); }
mark.untold { text-decoration-color: var(--bad); text-decoration-style: dashed; }
@media (max-width: 48rem) { article { grid-template-columns: minmax(0, 1fr); }
  article tr { border-bottom: 1px solid var(--line); display: flex; flex-wrap: wrap; }
  article tr:last-child { border-bottom: 0; }
  article tr > * { border-bottom: 0; flex: 0 0 3.2rem; padding: .15rem 0; }
  article tbody th:first-child { flex-basis: 100%; font-size: .8rem; padding-top: .4rem; }
  article thead td:first-child { display: none; } article td.said { flex: 1 1 0; }
  .tools { position: static; } .tools label, .tools input, .tools select { width: 100%; max-width: 100%; } }
"""


CHANGES = 4  # photos whose rank rose most, and as many whose rank fell most, for each model
_SEED = 0
_BY_TEXT = "TT"  # the column of places by text to text
_PLACE_BY_TEXT = (
    "The photo's place among all, 1 if it is found: a model that only reads compares the caption with what people "
    "wrote about every photo."
)
_PLACE_BY = "The photo's place among all, 1 if it is found, by {by}, a model that sees the photos."

FindRegions = Callable[[str, Path, str], WordRegions | None]  # speaker, photo, caption -> what its words rest on


def no_regions(_speaker: str, _photo: Path, _caption: str) -> None:
    """Of captions whose captioner is not at hand."""


def photo_list(grid: Grid, pictures: Pictures, find_regions: FindRegions, examples: int, first: int) -> str:
    """Those drawn by chance, and for each speaker those whose places changed most from the base's.

    first  so many are shown at first, of those that show best what the second speaker adds; 0: those drawn by chance
    """
    count = min(examples, len(grid.measured))
    drawn = set(np.random.default_rng(_SEED).choice(grid.measured, count, replace=False).tolist())
    base, names = grid.speaker(grid.against), speakers(grid)
    places = {name: places_of(grid.rows[name]) for name in names}
    by = list(grid.retrievers)[-1] if grid.retrievers else ""  # by custom the judge, which chose and rewarded nothing
    ours = [name for name in names if not grid.rows[name].captions.of_people]
    changed = {name: _changes(places[name][by], places[base][by]) for name in ours if by and name != base}
    photos = sorted(drawn.union(*changed.values()))

    wanted = {(photo, name) for photo in drawn for name in ours}
    wanted |= {(photo, one) for name, own in changed.items() for photo in own for one in (name, base)}
    cards = _cards(grid, photos, places, find_regions, wanted)
    clear = {name: _clarities(grid, cards, photos, name, base) for name in ours if name != base}
    best = next(iter(clear), "") if first else ""
    kinds, orders, sorted_by = [], [], "the order of the data"
    is_changing = [-pictures.strip(one.file)[1] if one.is_clip else 0.0 for one in cards]
    if best or any(is_changing):
        order = np.argsort(positions(clear[best]) if best else is_changing, kind="stable").tolist()
        photos, cards = [photos[number] for number in order], [cards[number] for number in order]
        clear = {name: [own[number] for number in order] for name, own in clear.items()}
        orders.append(Order(sorted_by, photos))
        sorted_by = "scene changes, the most drastic first"
    if best:
        shown = frozenset([number for number, one in enumerate(clear[best]) if one.is_clear][:first])
        sorted_by = f"{best} right, and not the same as {base}"
        if shown:
            kinds.append(Kind(f"{counted(len(shown), 'photo')}: {sorted_by}", shown, at_first=True))
    elif len(drawn) < len(photos):
        chance = f"{counted(count, 'photo')} drawn by chance"
        kinds.append(Kind(chance, frozenset(map(photos.index, drawn)), at_first=True))
    kinds += [Kind(name, frozenset(map(photos.index, own))) for name, own in _groups(grid, photos).items()]
    for name, most in changed.items():
        rise_kinds, rise_orders = _by_rank(photos, places, name, base, by, most)
        kinds, orders = kinds + rise_kinds, orders + rise_orders
        if name != best:
            orders.append(Order(f"{name} right, and not the same as {base}", positions(clear[name])))
    orders += [Order(f"{name}: rank, by {by}", [places[name][by][photo] for photo in photos]) for name in names if by]

    columns, fold = _columns(grid, places), ""
    note = f'<p class="notes">{escaped(_how_to_read(cards, columns, len(grid.split.photos)))}</p>\n'
    above = f"<h3>Photos</h3>\n{note}"
    if best:
        above = f"<p>{escaped(_why_these(cards, kinds, best, base))}</p>\n"
        fold = f"Search, sort, and see all {counted(len(cards), 'photo')}"
    listed = section(cards, pictures, columns, orders=orders, kinds=kinds, sorted_by=sorted_by, fold=fold)
    return above + listed + (note if best else "")


def _clarities(grid: Grid, cards: Sequence[Card], photos: Sequence[int], name: str, base: str) -> list[Clarity]:
    """How well each photo shows what a speaker adds to the base."""
    ours, theirs = (_per_photo(grid.rows[one], "CIDEr-D", len(grid.split.photos)) for one in (name, base))
    gains = ours - theirs
    return [
        clarity(card, name, base, by=_BY_TEXT, gain=float(gains[photo]))
        for card, photo in zip(cards, photos, strict=True)
    ]


def _per_photo(row: Row, score: str, photos: int) -> NDArray[np.float64]:
    """A score of every photo of the split; 0 where it was not taken."""
    for one in row.statistics:
        if score in one.names:
            return one.per_photo()[:, one.names.index(score)]
    return np.zeros(photos)


def _by_rank(
    photos: Sequence[int], places: Mapping[str, Places], name: str, base: str, by: str, most: Sequence[int]
) -> tuple[list[Kind], list[Order]]:
    """Which photos a speaker's captions lead to better or worse than the base's."""
    now, before = (np.array([places[one][by][photo] for photo in photos]) for one in (name, base))
    found, rise = np.flatnonzero((now == 1) & (before > 1)), np.log(before / now)
    largest = frozenset(index for index, photo in enumerate(photos) if photo in set(most))
    kinds = [
        Kind(f"{name}: the largest changes of rank against {base}, by {by}", largest),
        Kind(f"found by {by} through {name}, not through {base}", frozenset(found.tolist())),
    ]
    orders = [
        Order(f"{name}: rank risen most, by {by}", (-rise).tolist()),
        Order(f"{name}: rank fallen most, by {by}", rise.tolist()),
    ]
    return kinds, orders


def _columns(grid: Grid, places: Mapping[str, Places]) -> Columns:
    """Places behind captions: by text to text first, then by the retrievers that see photos."""
    by_text = any(_BY_TEXT in own for own in places.values())
    meanings = {_BY_TEXT: _PLACE_BY_TEXT} if by_text else {}
    meanings |= {by: _PLACE_BY.replace("{by}", by) for by in grid.retrievers}
    return Columns(list(meanings), frozenset(meanings), "place by" if meanings else "", meanings)


def _why_these(cards: Sequence[Card], kinds: Sequence[Kind], best: str, base: str) -> str:
    """Which photos are shown first, in a sentence: they are no fair sample."""
    shown = len(kinds[0].cards) if kinds and kinds[0].at_first else 0
    if not shown:
        return f"Those photos first of which {best} says other things than {base}, in people's words."
    return (
        f"{shown} of {counted(len(cards), 'photo')}, chosen by figures: {best} says something else than {base}, and "
        "what people wrote about the photo bears it out. This is no fair sample: the list has the other "
        f"{len(cards) - shown} too, mistakes among them."
    )


def _how_to_read(cards: Sequence[Card], columns: Columns, photos: int) -> str:
    """What one has to know of the list of cards."""
    sentences = [legend(cards)]
    if columns.names:
        seeing = [name for name in columns.names if name != _BY_TEXT]
        by = [f"{_BY_TEXT} (text to text: by what people wrote about the photos)"] if _BY_TEXT in columns.names else []
        by += [f"{' and '.join(seeing)} (by looking at the photos)"] if seeing else []
        among = counted(photos, "photo")
        sentences.append(
            f"Behind a caption is its photo's place among the {among}, 1 if it is found, by {' and by '.join(by)}."
        )
    return " ".join(sentences)


def _groups(grid: Grid, photos: Sequence[int]) -> dict[str, list[int]]:
    """Photos that the data set itself puts together, by the key `group` of its records."""
    found: dict[str, list[int]] = {}
    for photo in photos:
        if name := grid.split.photos[photo].extra.get("group"):
            found.setdefault(str(name), []).append(photo)
    return found


def _cards(
    grid: Grid,
    photos: Sequence[int],
    places: Mapping[str, Places],
    find_regions: FindRegions,
    wanted: set[tuple[int, str]],
) -> list[Card]:
    """wanted  photos and speakers of whose words is shown what they rest on: it takes time"""
    files = {(grid.split.photos[photo].file, name) for photo, name in wanted}
    with Progress("what words rest on", len(files), unit="caption") as bar:

        def find(name: str, file: Path, caption: str) -> WordRegions | None:
            if (file, name) not in files:
                return None
            bar.advance()
            return find_regions(name, file, caption)

        return [card(grid, photo, places, find) for photo in photos]


def speakers(grid: Grid) -> list[str]:
    """The rows whose captions are shown: of a recipe, one run."""
    return list(dict.fromkeys([*map(grid.speaker, grid.lines), grid.speaker(grid.against)]))


def card(grid: Grid, photo: int, places: Mapping[str, Places], find_regions: FindRegions) -> Card:
    """A photo of a grid: what the speakers that have places say of it, and not of its look-alikes."""
    here = grid.split.photos[photo]
    alike = [other for other in grid.look_alikes[photo].tolist() if other >= 0]
    lines = []
    for name, of_retrievers in places.items():
        captions = grid.rows[name].captions.of_photo
        of_others = frozenset(
            word for other in alike for text in captions.get(other, [])[:1] for word in split_words(text)
        )
        figures = {by: float(own[photo]) for by, own in of_retrievers.items() if photo in own}
        lines.append(
            Line(name, captions[photo][0], of_others, figures, find_regions(name, here.file, captions[photo][0]))
        )
    return Card(here.file, [grid.split.photos[other].file for other in alike], lines, here.captions)


def _changes(ours: dict[int, int], theirs: dict[int, int]) -> list[int]:
    """Photos whose place rose most, then those whose place fell most; from 1 to 10 is as much as from 10 to 100."""
    change = {photo: math.log(theirs[photo] / place) for photo, place in ours.items() if theirs[photo] != place}
    order = sorted(change, key=lambda photo: -change[photo])
    risen = [photo for photo in order[:CHANGES] if change[photo] > 0]
    fallen = [photo for photo in order[: -CHANGES - 1 : -1] if change[photo] < 0]
    return risen + fallen


Places = dict[str, dict[int, int]]  # retriever -> photo -> the place, from 1, that its (first) caption gives it


def places_of(row: Row) -> Places:
    """By text to text too, where it was measured."""
    ranks = {retriever: (by.own, by.ranks) for retriever, by in row.found.items()}
    if row.read is not None:
        ranks = {_BY_TEXT: row.read, **ranks}
    found = {}
    for name, (own, of_own) in ranks.items():
        photos, first = np.unique(own, return_index=True)
        found[name] = dict(zip(photos.tolist(), (of_own[first] + 1).tolist(), strict=True))
    return found


@dataclass(frozen=True, order=True)
class Clarity:
    """What speaks for a photo.  Compared field by field, the first that differs decides; more is better.

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
    """Of the lines of a card that have these names; `by` is the column with places by text to text."""
    ours, theirs = (next(line for line in card.lines if line.name == name) for name in (model, base))
    words, others = (frozenset(split_words(line.caption)) for line in (ours, theirs))
    content = words - STOP_WORDS
    known = frozenset(word for text in card.references for word in split_words(text))
    places = [line.figures.get(by) for line in (ours, theirs)]
    return Clarity(
        differs=words != others,
        right=bool(content) and content <= known and gain >= 0,
        found=places[0] is None or places[0] == 1,
        telling=len((content & known) - others - ours.of_look_alikes),
        found_now=places[0] == 1 and places[1] != 1,
        gain=gain,
    )


def positions(found: Sequence[Clarity]) -> list[int]:
    """The place of each photo when the clearest are first; equal ones keep their order."""
    order = sorted(range(len(found)), key=lambda number: found[number], reverse=True)
    return [place for place, _ in sorted(enumerate(order), key=lambda pair: pair[1])]
