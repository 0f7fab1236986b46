"""The contact sheet: a row for each photo with its copies, near-duplicates and look-alikes beside it."""

from __future__ import annotations

from pathlib import Path

from tellapart import files
from tellapart.errors import BadPhoto
from tellapart.neighbours.groups import Groups
from tellapart.pages import counted, escaped, page, thumbnail
from tellapart.progress import Progress

_LONG_SIDE = 220  # pixels of a thumbnail
_SAME = 5  # copies and near-duplicates shown, of each; the others are counted


def write_sheet(groups: Groups, out: Path, *, most: int) -> int:
    """The page, in one step, with at most `most` rows: the photos with the nearest look-alikes.  Returns how many."""
    different = nearest_first(groups)
    chosen = different[:most]
    pictures: dict[str, str] = {}  # a photo stands in several rows
    rows = []
    with Progress("contact sheet", len(chosen)) as bar:
        for position in chosen:
            rows.append(_row(groups, position, pictures))
            bar.advance()
    shown = "nearest look-alikes first"
    if len(chosen) < len(different):
        shown = f"the {len(chosen):,} with the nearest look-alikes"
    footer = f"By {groups.rule.by}, {groups.rule.metric}, {groups.rule.retriever}. "
    footer += f"Near-duplicates: cosine above {groups.rule.duplicates_above:g}."
    files.replace(
        out,
        page("Look-alikes", f"{counted(len(groups), 'photo')}; {shown}", "".join(rows), footer=footer, style=_STYLE),
    )
    return len(chosen)


def nearest_first(groups: Groups) -> list[int]:
    """Positions: photos with copies, then near-duplicates, then by the nearest look-alike; those without any last.

    Of exact copies only the first: the row of another would be the same.
    """

    def key(position: int) -> tuple[bool, float, bool, float]:
        near = groups.near_duplicates.get(position)
        there = groups.indices[position, 0] >= 0
        score = float(groups.scores[position, 0])
        nearness = score if groups.rule.metric == "euclidean" else -score
        return position not in groups.copies, -near[0][1] if near else 0.0, not there, nearness if there else 0.0

    different = (
        position for position in range(len(groups)) if position <= min(groups.copies.get(position, [position]))
    )
    return sorted(different, key=key)


def _row(groups: Groups, position: int, pictures: dict[str, str]) -> str:
    group = groups.of(position)
    figures = [_figure(group.file, "", "", pictures)]
    figures += [_figure(file, "copy", "exact copy", pictures) for file in group.copies[:_SAME]]
    for other in group.near_duplicates[:_SAME]:
        figures.append(_figure(other.file, "near", f"near-duplicate {other.similarity:.2f}", pictures))
    for other in group.look_alikes:
        figures.append(_figure(other.file, "alike", f"{other.similarity:.2f}", pictures))
    left_out = max(len(group.copies) - _SAME, 0) + max(len(group.near_duplicates) - _SAME, 0)
    notes = [f"and {counted(left_out, 'more copy or near-duplicate')}"] if left_out else []
    notes += [] if group.look_alikes else ["no look-alikes"]
    note = f'<p class="note">{escaped("; ".join(notes))}</p>\n' if notes else ""
    return f'<section>\n<div class="line">\n{"".join(figures)}</div>\n{note}</section>\n'


def _figure(file: str, kind: str, label: str, pictures: dict[str, str]) -> str:
    if file not in pictures:
        pictures[file] = _picture(file)
    mark = f'<p class="mark">{escaped(label)}</p>' if label else ""
    name = f'<p class="file" dir="auto" title="{escaped(file)}">{escaped(Path(file).name)}</p>'
    return (
        f'<figure class="{kind or "own"}">\n<div class="photo">{pictures[file]}</div>\n'
        f"<figcaption>{mark}{name}</figcaption>\n</figure>\n"
    )


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
.file { font-size: .7rem; }
.own { border: 2px solid var(--ink); }
.near, .copy { border-style: dashed; }
.near .mark, .copy .mark { color: #b4521b; }
@media (max-width: 34rem) { .line { gap: .45rem; grid-template-columns: repeat(3, 1fr); }
  .own { grid-column: 1 / -1; } .own .photo { aspect-ratio: 16 / 9; }
  figure:not(.own) .file { display: none; } }
"""
