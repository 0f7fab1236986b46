"""What tells caption files apart: photos that only one of two identifies (Fig. 2 of DiscriTune), and their words."""

from __future__ import annotations

from itertools import permutations, zip_longest

import numpy as np

from capscore.errors import UserError
from capscore.printable import counted
from tellapart.data.media.thumbnails import LONG_SIDE
from tellapart.evaluation import word_use
from tellapart.evaluation.grid import Grid
from tellapart.evaluation.pages.cards import Pictures
from tellapart.evaluation.pages.figures import Figure
from tellapart.evaluation.pages.photo_cards import speakers
from tellapart.html import escaped

SHOWN = 6  # photos of a gallery, as in the paper
_SEED = 0


def identified_by_one(grid: Grid, one: str, other: str, by: str) -> list[tuple[int, int]]:
    """Photos that a retriever finds first by one speaker's (first) caption and not by the other's, each with the photo
    that the other's picks."""
    firsts = {}
    for name in (one, other):
        found = grid.rows[name].found[by]
        photos, first = np.unique(found.own, return_index=True)
        picked = found.best[first, 0]  # the own photo stands behind those that tie with it
        firsts[name] = dict(zip(photos.tolist(), picked.tolist(), strict=True))
    return [
        (photo, firsts[other][photo])
        for photo in grid.measured
        if firsts[one][photo] == photo and firsts[other][photo] != photo
    ]


def galleries(grid: Grid, pictures: Pictures) -> list[Figure]:
    """Of the row that others are compared with, and each of these; both ways, so that no side is flattered."""
    if not grid.retrievers:
        return []
    by, base = list(grid.retrievers)[-1], grid.speaker(grid.against)  # the last is by custom the judge
    figures = []
    for name in speakers(grid):
        for one, other in permutations((name, base)) if name != base else ():
            found = identified_by_one(grid, one, other, by)
            if found:
                figures.append(_gallery(grid, pictures, found, one, other, by))
    return figures


def _gallery(grid: Grid, pictures: Pictures, found: list[tuple[int, int]], one: str, other: str, by: str) -> Figure:
    drawn = np.random.default_rng(_SEED).permutation(len(found))[:SHOWN]
    cells = []
    for photo, picked in (found[place] for place in sorted(drawn.tolist())):
        right, wrong = (grid.rows[name].captions.of_photo[photo][0] for name in (one, other))
        shown = (
            (photo, one, right, "the photo"),
            (picked, other, wrong, "picked instead"),
        )
        sides = "".join(
            f"<figure>{pictures.show(grid.split.photos[place].file, LONG_SIDE)}<figcaption><small>{what}</small> "
            f'<span dir="auto"><b>{escaped(name)}</b>: {escaped(text)}</span></figcaption></figure>'
            for place, name, text, what in shown
        )
        cells.append(f'<div class="pair">{sides}</div>\n')
    of = f"{len(cells)} of " if len(cells) < len(found) else ""
    note = (
        f"{of}{counted(len(found), 'photo')} that {by} finds by the caption of {one} and not by that of {other}, drawn "
        f"by chance. Left the photo, right the one that {by} picked by the caption of {other}."
    )
    body = f'<div class="pairs">\n{"".join(cells)}</div>\n'
    return Figure(f"Identified by {one} only, not by {other}", note, body)


def words(grid: Grid) -> list[Figure]:
    """The adjectives and nouns of each row's captions, where spaCy is installed and there are rows to compare."""
    if len(grid.lines) < 2:
        return []
    try:
        found = word_use.of_grid(grid)
    except UserError:  # it is installed apart
        return []
    figures = []
    for kind, by_model in found.items():
        head = "".join(f'<th scope="col" dir="auto">{escaped(name)}</th>' for name in by_model)
        rows = zip_longest(*by_model.values())
        cells = (
            "".join(f"<td>{escaped(one.word)} <small>{one.times}</small></td>" if one else "<td></td>" for one in row)
            for row in rows
        )
        body = "".join(f"<tr>{row}</tr>\n" for row in cells)
        title = f"{word_use.KINDS[kind].capitalize()} most associated with each row"
        note = "By local mutual information, highest first; below a word, how often it occurs in those captions."
        table = f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'
        figures.append(Figure(title, note, table))
    return figures


STYLE = """
.pairs { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); }
.pair { display: grid; gap: .5rem; grid-template-columns: 1fr 1fr; }
.pair .picture { aspect-ratio: 1; background-size: cover; }
"""
