"""The contact sheet: a row for each photo, or set of copies and near-duplicates, with its look-alikes beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from capscore import files
from capscore.printable import counted
from capscore.progress import Progress
from tellapart.data.media.thumbnails import thumbnail
from tellapart.errors import BadPhoto
from tellapart.html import escaped, page
from tellapart.neighbours.groups import Groups

_LONG_SIDE = 220  # pixels of a thumbnail
_SAME = 12  # photos of a set that are shown; the others are counted


def write_sheet(groups: Groups, out: Path, *, most: int, captions: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The page, in one step, with at most `most` rows, nearest look-alikes first.  Returns how many, and of how many.

    captions  file -> what is written below the photo
    """
    rows = nearest_first(groups)
    sheet = _Sheet(groups, out, captions or {})
    body = []
    with Progress("contact sheet", min(most, len(rows))) as bar:
        for positions in rows[:most]:
            body.append(sheet.row(positions))
            bar.advance()
    body.append(_unusable(groups.failed))
    subtitle = _subtitle(groups, len(rows), most)
    sheet_page = page("Look-alikes", subtitle, "".join(body), footer=_footer(groups), style=_STYLE)
    files.replace(out, sheet_page, by_user=True)
    return min(most, len(rows)), len(rows)


def nearest_first(groups: Groups) -> list[list[int]]:
    """The positions of each row's photos: sets, or photos with look-alikes.

    Sets with copies come first, then near-duplicates, then the others by their nearest look-alike.
    """

    def key(positions: list[int]) -> tuple[bool, float, bool, float]:
        near = [similarity for one in positions for _, similarity in groups.near_duplicates.get(one, [])]
        first = positions[0]
        alike = groups.indices[first, 0] >= 0
        score = float(groups.scores[first, 0])
        nearness = score if groups.rule.metric == "euclidean" else -score
        copies = any(one in groups.copies for one in positions)
        return not copies, -max(near, default=0.0), not alike, nearness if alike else 0.0

    return sorted((one for one in groups.rows() if len(one) > 1 or groups.indices[one[0], 0] >= 0), key=key)


def _subtitle(groups: Groups, rows: int, most: int) -> str:
    sets = groups.sets()
    bursts = sum(not one.exact for one in sets)
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


def _unusable(failed: Mapping[str, str]) -> str:
    if not failed:
        return ""
    lines = "".join(f"<li>{escaped(file)}: {escaped(reason)}</li>\n" for file, reason in failed.items())
    return f"<section>\n<h2>Could not be used</h2>\n<ul>\n{lines}</ul>\n</section>\n"


class _Sheet:
    """What the rows of a page share."""

    def __init__(self, groups: Groups, out: Path, captions: Mapping[str, str]):
        self.groups, self.captions = groups, captions
        self._folder = os.path.abspath(out.parent)  # noqa: PTH100 - as a browser sees it: links are not resolved
        self._pictures: dict[str, str] = {}  # a photo may stand in several rows

    def row(self, positions: list[int]) -> str:
        """The first photo, what is the same as it, and what looks like it."""
        first, *others = positions
        figures = [self._figure(self.groups.photos[first].file, "own", "")]
        for other in others[: _SAME - 1]:
            similarity = self.groups.near_duplicate_of(other, positions)
            kind, label = ("copy", "exact copy") if similarity is None else ("near", f"near-duplicate {similarity:.2f}")
            figures.append(self._figure(self.groups.photos[other].file, kind, label))
        for position, similarity in self.groups.look_alikes(first):
            figures.append(self._figure(self.groups.photos[position].file, "alike", f"{similarity:.2f}"))
        left_out = max(len(positions) - _SAME, 0)
        notes = [f"and {left_out:,} more of this set"] if left_out else []
        notes += [] if self.groups.look_alikes(first) else ["no look-alikes"]
        note = f'<p class="note">{escaped("; ".join(notes))}</p>\n' if notes else ""
        return f'<section>\n<div class="line">\n{"".join(figures)}</div>\n{note}</section>\n'

    def _figure(self, file: str, kind: str, label: str) -> str:
        if file not in self._pictures:
            self._pictures[file] = _picture(file)
        link = escaped(self._link(file))
        mark = f'<p class="mark">{escaped(label)}</p>' if label else ""
        text = f'<p class="text" dir="auto">{escaped(self.captions[file])}</p>' if file in self.captions else ""
        name = f'<p class="file" dir="auto" title="{escaped(file)}"><a href="{link}">{escaped(Path(file).name)}</a></p>'
        return (
            f'<figure class="{kind}">\n<a class="photo" href="{link}">{self._pictures[file]}</a>\n'
            f"<figcaption>{mark}{text}{name}</figcaption>\n</figure>\n"
        )

    def _link(self, file: str) -> str:
        """A relative URL, so that photos and page can move together; every odd character is escaped, a colon too."""
        return quote(os.fsencode(os.path.relpath(os.path.abspath(file), self._folder)))  # noqa: PTH100


def _picture(file: str) -> str:
    try:
        width, height, url = thumbnail(Path(file), _LONG_SIDE)
    except BadPhoto as error:
        return f'<span class="none">{escaped(error.reason)}</span>'
    return f'<img src="{url}" width="{width}" height="{height}" alt="{escaped(Path(file).name)}">'


_STYLE = """
body { max-width: 90rem; }
section { margin-top: 1rem; padding-top: 1rem; }
.line { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); }
.photo { margin: .35rem .35rem 0; }
figcaption { padding: .25rem .5rem .4rem; }
figcaption p { margin: 0; }
.mark { font-size: .8rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.text { font-size: .8rem; }
.file { font-size: .7rem; }
.file a { color: inherit; }
ul { padding-left: 1.2rem; }
.own { border: 2px solid var(--ink); }
.near, .copy { border-style: dashed; }
.near .mark, .copy .mark { color: #b4521b; }
@media (max-width: 34rem) { .line { gap: .45rem; grid-template-columns: repeat(3, 1fr); }
  .own { grid-column: 1 / -1; } .own .photo { aspect-ratio: 16 / 9; }
  figure:not(.own) .file { display: none; } }
"""
