"""The photos of an evaluation as a list of cards: which of them, in which order, and the details of a caption.

Photos are sampled by a seed; those whose ranks changed most come with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore.printable import counted
from capscore.progress import Progress
from tellapart.data.tokenizers import split_words
from tellapart.evaluation.clearest import Clarity, clarity, positions
from tellapart.evaluation.grid import Grid, Row
from tellapart.evaluation.pages.cards import Card, Columns, Kind, Line, Order, Pictures, WordRegions, legend, section
from tellapart.html import escaped

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
