"""The contact sheet: a row for each photo, or set of copies and near-duplicates, with its look-alikes beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from capscore import files
from capscore.printable import counted
from capscore.progress import Progress
from tellapart.data.media.thumbnails import thumbnail
from tellapart.errors import BadPhoto
from tellapart.html import render_page
from tellapart.neighbours.groups import Groups

_LONG_SIDE = 220  # pixels of a thumbnail
_SAME = 12  # photos of a set that are shown; the others are counted


def write_sheet(groups: Groups, out: Path, *, most: int, captions: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The page, in one step, with at most `most` rows, nearest look-alikes first.  Returns how many, and of how many.

    captions  file -> what is written below the photo
    """
    rows = nearest_first(groups)
    folder = os.path.abspath(out.parent)  # noqa: PTH100 - as a browser sees it: links are not resolved

    @cache  # a photo may stand in several rows
    def picture(file: str) -> dict[str, Any]:
        # A relative URL, so that photos and page can move together; every odd character is escaped, a colon too.
        link = quote(os.fsencode(os.path.relpath(os.path.abspath(file), folder)))  # noqa: PTH100
        shown = {"file": file, "name": Path(file).name, "link": link, "caption": (captions or {}).get(file)}
        try:
            width, height, url = thumbnail(Path(file), _LONG_SIDE)
        except BadPhoto as error:
            return {**shown, "url": "", "problem": error.reason}
        return {**shown, "url": url, "width": width, "height": height}

    def figure(position: int, kind: str, label: str = "") -> dict[str, Any]:
        return {**picture(groups.photos[position].file), "kind": kind, "label": label}

    def row(positions: list[int]) -> dict[str, Any]:
        """The first photo, what is the same as it, and what looks like it."""
        first, *others = positions
        figures = [figure(first, "own")]
        for other in others[: _SAME - 1]:
            similarity = groups.near_duplicate_of(other, positions)
            kind, label = ("copy", "exact copy") if similarity is None else ("near", f"near-duplicate {similarity:.2f}")
            figures.append(figure(other, kind, label))
        look_alikes = groups.look_alikes(first)
        figures += [figure(position, "alike", f"{similarity:.2f}") for position, similarity in look_alikes]
        left_out = max(len(positions) - _SAME, 0)
        notes = [f"and {left_out:,} more of this set"] if left_out else []
        return {"figures": figures, "notes": notes + ([] if look_alikes else ["no look-alikes"])}

    with Progress("contact sheet", min(most, len(rows))) as bar:
        shown = []
        for positions in rows[:most]:
            shown.append(row(positions))
            bar.advance()
    page = render_page(
        "neighbours/sheet.html",
        title="Look-alikes",
        subtitle=_subtitle(groups, len(rows), most),
        footer=_footer(groups),
        styles=["neighbours/sheet.css"],
        rows=shown,
        failed=groups.failed,
    )
    files.replace(out, page, by_user=True)
    return len(shown), len(rows)


def nearest_first(groups: Groups) -> list[list[int]]:
    """The positions of each row's photos: sets, or photos with look-alikes.

    Sets with copies come first, then near-duplicates, then the others by their nearest look-alike.
    """

    def key(positions: list[int]) -> tuple[bool, float, bool, float]:
        near = [similarity for position in positions for _, similarity in groups.near_duplicates.get(position, [])]
        first = positions[0]
        alike = groups.indices[first, 0] >= 0
        score = float(groups.scores[first, 0])
        nearness = score if groups.rule.metric == "euclidean" else -score
        copies = any(position in groups.copies for position in positions)
        return not copies, -max(near, default=0.0), not alike, nearness if alike else 0.0

    return sorted((row for row in groups.rows() if len(row) > 1 or groups.indices[row[0], 0] >= 0), key=key)


def _subtitle(groups: Groups, rows: int, most: int) -> str:
    sets = groups.sets()
    bursts = sum(not same.exact for same in sets)
    parts = [counted(len(groups), "photo")]
    parts += [counted(len(sets) - bursts, "set") + " of exact copies"] if len(sets) > bursts else []
    parts += [counted(bursts, "set") + " of near-duplicates"] if bursts else []
    alone = len(groups.rows()) - rows
    parts += [f"{alone:,} without a look-alike or duplicate, not shown"] if alone else []
    parts += [f"{counted(len(groups.failed), 'file')} that could not be used"] if groups.failed else []
    if rows:
        parts.append("nearest look-alikes first" if rows <= most else f"the {most:,} with the nearest look-alikes")
    return "; ".join(parts)


def _footer(groups: Groups) -> str:
    rule = groups.rule
    text = f"By {rule.by}, {rule.metric}, {rule.retriever}. Near-duplicates: cosine above {rule.duplicates_above:g}."
    if rule.alike_above is not None:
        text += f" Look-alikes: {'distance' if rule.metric == 'euclidean' else 'cosine'} "
        text += f"{'up to' if rule.metric == 'euclidean' else 'from'} {rule.alike_above:.3g}."
    return text
