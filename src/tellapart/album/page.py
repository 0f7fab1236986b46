"""One HTML file with photos in their look-alike groups and a caption under each: no network, no scripts, no metadata.

Captions and file names may come from anybody, so every text is escaped, and the page forbids itself to load anything.
Photos are drawn anew as thumbnails: what else is in a photo's file, such as where it was taken, does not get here.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tellapart import files
from tellapart.data import photos
from tellapart.errors import BadPhoto

LONG_SIDE = 320  # pixels of a thumbnail


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
    page = _PAGE.format(
        title=_text(title),
        count=_count(rows),
        groups="".join(_group(name or others, members) for name, members in ordered),
        credit=f"<footer>{_text(credit)}</footer>\n" if credit else "",
        style=_STYLE,
    )
    files.replace(out, page.encode("utf-8"))


def _group(name: str, rows: list[Row]) -> str:
    heading = f"<h2>{_text(name)}&ensp;<small>{_count(rows)}</small></h2>\n" if name else ""
    return f'<section>\n{heading}<div class="row">\n{"".join(map(_figure, rows))}</div>\n</section>\n'


def _figure(row: Row) -> str:
    note = row.note
    try:
        width, height, url = _thumbnail(row.file)
        picture = f'<img src="{url}" width="{width}" height="{height}" alt="{_text(row.caption)}">'
    except BadPhoto as error:
        picture = '<span class="none">no picture</span>'
        note = note or error.reason
    lines = (("caption", row.caption), ("note", note), ("file", row.file.name))
    texts = "".join(f'<p class="{kind}" dir="auto">{_text(text)}</p>' for kind, text in lines if text)
    return f'<figure>\n<div class="photo">{picture}</div>\n<figcaption>{texts}</figcaption>\n</figure>\n'


def _thumbnail(file: Path) -> tuple[int, int, str]:
    """Width, height and data URL."""
    photo = photos.decode(photos.read_bytes(file), file, at_least=LONG_SIDE)
    photo.thumbnail((LONG_SIDE, LONG_SIDE))
    bare, data = Image.frombytes("RGB", photo.size, photo.tobytes()), io.BytesIO()  # the pixels and nothing else
    bare.save(data, "WEBP", quality=82)
    return photo.width, photo.height, "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _count(rows: list[Row]) -> str:
    """4 photos, 2 different captions"""
    different = len({row.caption for row in rows if row.caption})
    return f"{len(rows)} photo{_plural(len(rows))}, {different} different caption{_plural(different)}"


def _plural(number: int) -> str:
    return "" if number == 1 else "s"


def _text(text: str) -> str:
    """Safe between tags and in quotes.  A file name need not be UTF-8; a page is, and shows a mark for the odd byte."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{count}</p></header>
<main>
{groups}</main>
{credit}</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --paper: #f7f6f3; --card: #fff; --ink: #23282d; --soft: #667078; --line: #e3e1db; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16191c; --card: #1f2428; --ink: #e4e7e9; --soft: #98a2aa; --line: #2e353a; } }
* { box-sizing: border-box; margin: 0; }
body { background: var(--paper); color: var(--ink); font: 1rem/1.45 system-ui, sans-serif; margin: 0 auto;
  max-width: 72rem; padding: 2rem clamp(1rem, 4vw, 3rem); overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; font-weight: 650; line-height: 1.2; letter-spacing: -.01em; }
header p, small, footer { color: var(--soft); }
section { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1.25rem; }
h2 { font-size: 1.15rem; font-weight: 600; margin-bottom: .9rem; }
h2::first-letter { text-transform: uppercase; }
small { display: inline-block; font-size: .85rem; font-weight: 400; }
.row { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 12rem), 1fr)); }
figure { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; overflow: hidden; }
.photo { aspect-ratio: 4 / 3; display: grid; margin: .6rem .6rem 0; place-items: center; }
img { display: block; height: 100%; object-fit: contain; width: 100%; min-height: 0; }
figcaption { padding: .5rem .85rem .8rem; }
.note, .file, .none { color: var(--soft); font-size: .75rem; margin-top: .35rem; }
.file { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
footer { border-top: 1px solid var(--line); font-size: .8rem; margin-top: 2.5rem; padding-top: 1rem; }
@media (max-width: 34rem) { body { padding-top: 1.25rem; } .row { gap: .7rem; grid-template-columns: 1fr 1fr; }
  .photo { margin: .4rem .4rem 0; } figcaption { font-size: .9rem; padding: .4rem .6rem .6rem; }
  .file { font-size: .68rem; } }
"""
