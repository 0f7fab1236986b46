"""Photos on a page, each with its look-alikes and the captions of several models.

A card is one photo; or one clip, a strip of its frames above the captions, whose words are coloured by whether the
references have them.  Words that a speaker says of it and of none of its look-alikes are marked; how far down the list
a listener finds the photo stands behind the caption; pointed at, a word shows which part of the photo it rests on.
A list of cards is complete without a script; with it (cards.js), it can be searched, narrowed down and sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from capscore.printable import counted
from capscore.stop_words import STOP_WORDS
from tellapart.data.media.clips import named_as_clip
from tellapart.data.media.thumbnails import LONG_SIDE, strip, thumbnail
from tellapart.data.tokenizers import split_words
from tellapart.errors import BadPhoto
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
    return (resources.files("tellapart.evaluation.pages") / "cards.js").read_text(encoding="utf-8")


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
