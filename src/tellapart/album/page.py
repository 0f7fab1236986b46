"""One HTML file with photos in their look-alike groups and a caption under each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tellapart import files
from tellapart.errors import BadPhoto
from tellapart.pages import LONG_SIDE, counted, escaped, page, thumbnail

__all__ = ["LONG_SIDE", "Row", "write_page"]


@dataclass(frozen=True)
class Row:
    """A photo and what is said of it."""

    file: Path
    caption: str
    group: str = ""  # photos that look alike; empty: like no other
    note: str = ""  # small print under the caption, such as why there is none


def write_page(rows: Iterable[Row], out: Path, *, title: str = "Captions", credit: str = "") -> None:
    """The page in one step.  Groups stand in the order of their first photos, what is in no group at the end."""
    rows = list(rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    ordered = sorted(groups.items(), key=lambda group: group[0] == "")
    others = "other photos" if len(groups) > 1 else ""
    body = "".join(_group(name or others, members) for name, members in ordered)
    files.replace(out, page(title, _count(rows), body, footer=credit))


def _group(name: str, rows: list[Row]) -> str:
    heading = f"<h2>{escaped(name)}&ensp;<small>{_count(rows)}</small></h2>\n" if name else ""
    return f'<section>\n{heading}<div class="row">\n{"".join(map(_figure, rows))}</div>\n</section>\n'


def _figure(row: Row) -> str:
    note = row.note
    try:
        width, height, url = thumbnail(row.file)
        picture = f'<img src="{url}" width="{width}" height="{height}" alt="{escaped(row.caption)}">'
    except BadPhoto as error:
        picture = '<span class="none">no picture</span>'
        note = note or error.reason
    lines = (("caption", row.caption), ("note", note), ("file", row.file.name))
    texts = "".join(f'<p class="{kind}" dir="auto">{escaped(text)}</p>' for kind, text in lines if text)
    return f'<figure>\n<div class="photo">{picture}</div>\n<figcaption>{texts}</figcaption>\n</figure>\n'


def _count(rows: list[Row]) -> str:
    """4 photos, 2 different captions"""
    different = len({row.caption for row in rows if row.caption})
    return f"{counted(len(rows), 'photo')}, {counted(different, 'different caption')}"
