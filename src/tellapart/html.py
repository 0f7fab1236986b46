"""What our HTML pages share: one file each, no network, no metadata of the photos.

Captions and file names are untrusted, so every text is escaped, and a page forbids itself to load anything and
to run anything but the one script of ours that it may have.  Photos are redrawn as thumbnails: what else is in a
photo's file, such as where it was taken, does not get here.
"""

from __future__ import annotations

import base64
import hashlib
import html

from capscore.printable import printable_lines


def page(title: str, subtitle: str, body: str, *, footer: str = "", style: str = "", script: str = "") -> bytes:
    """A whole page.  `title`, `subtitle` and `footer` are texts; `body` is HTML that the caller has made safe.

    script   what makes the page sort, search and the like; it must be readable without
    """
    hashed = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    filled = _PAGE.format(
        policy=_POLICY + (f"; script-src 'sha256-{hashed}'" if script else ""),
        script=f"<script>{script}</script>\n" if script else "",
        title=escaped(title),
        subtitle=escaped(subtitle),
        body=body,
        footer=f"<footer>{escaped(footer)}</footer>\n" if footer else "",
        style=_STYLE + style,
    )
    return filled.encode("utf-8")


def escaped(text: str) -> str:
    """Safe between tags and in quotes.  A file name need not be UTF-8; a page is, and shows a mark for the odd byte."""
    return html.escape(printable_lines(text).encode("utf-8", "replace").decode("utf-8"))


def abbreviation(text: str, meaning: str) -> str:
    """A text that shows what it means when it is pointed at.  A phone has no pointer: say it beside it as well."""
    return f'<abbr title="{escaped(meaning)}">{escaped(text)}</abbr>' if meaning else escaped(text)


_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{subtitle}</p></header>
<main>
{body}</main>
{footer}{script}</body>
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
abbr[title] { cursor: help; text-decoration: underline dotted var(--soft); text-underline-offset: .2em; }
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
