"""The images of HTML and Markdown pages: where each is, its alt text, and where in the page's text that stands.

Pages are changed by splices of alt texts; every other byte stays.  Alt texts that are empty on purpose (`alt=""`,
role=presentation, aria-hidden) are those of decorative images.  In Markdown, `![](a.jpg)` has no alt text.
"""

from __future__ import annotations

import bisect
import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import PurePath

from tellapart.data.media.photos import PHOTO_SUFFIXES

HTML_SUFFIXES = (".html", ".htm", ".xhtml")
MARKDOWN_SUFFIXES = (".md", ".markdown", ".mdx")
_TEMPLATE = re.compile(r"\{\{|\{%|<%|\$\{|^\{")  # filled in by a program


@dataclass(frozen=True)
class PageImage:
    source: str  # as the page names it
    alt: str | None  # none: there is none
    start: int  # of what becomes the alt text ...
    end: int
    form: str  # ... written so: "html", "attribute" (with its name), "markdown" or "value" (of front matter)
    fixed: str = ""  # why its alt text cannot be changed

    @property
    def is_template(self) -> bool:
        return bool(_TEMPLATE.search(self.source) or _TEMPLATE.search(self.alt or ""))

    def written(self, alt: str) -> str:
        """An alt text as it stands in the page."""
        if self.form == "markdown":
            return re.sub(r"([\\`*_\[\]<>&])", r"\\\1", alt)
        if self.form == "value":
            return json.dumps(alt, ensure_ascii=False)  # a string in YAML and in TOML as well
        # Character references are the same in every encoding that a page may have.
        quoted = html.escape(alt).encode("ascii", "xmlcharrefreplace").decode("ascii")
        return f' alt="{quoted}"' if self.form == "attribute" else f'"{quoted}"'


def images(text: str, suffix: str) -> list[PageImage]:
    """Those that may need an alt text, in order; decorative ones are left out."""
    if suffix in HTML_SUFFIXES:
        return list(_html(text))
    front, rest = _front_matter(text)
    body = " " * rest + _without_code(text[rest:])
    return sorted([*front, *_markdown(body), *_html(body)], key=lambda image: image.start)


# HTML

_RAW_TEXT = ("textarea", "title", "iframe", "noembed", "noframes", "xmp")  # `<img>` in these is text
_ATTRIBUTES = re.compile(r"""[\s/]*([^\s/>=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>]*))?""")


class _Images(HTMLParser):
    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self._lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self.found: list[PageImage] = []
        self.feed(text[: text.rfind(">") + 1])  # tags that are never closed would take a square of their number
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _RAW_TEXT:
            self.set_cdata_mode(tag)
        if tag != "img":
            return
        given = {name: value or "" for name, value in reversed(attrs)}  # of two, the first counts
        written = self.get_starttag_text() or ""
        line, column = self.getpos()
        start = self._lines[line - 1] + column
        decorative = given.get("role", "").lower() in ("presentation", "none") or given.get("aria-hidden") == "true"
        if decorative or ("alt" in given and not given["alt"].strip()) or not given.get("src", "").strip():
            return
        place = _place_of_alt(written)
        form = "html" if "alt" in given else "attribute"
        self.found.append(PageImage(given["src"].strip(), given.get("alt"), start + place[0], start + place[1], form))

    handle_startendtag = handle_starttag


def _place_of_alt(tag: str) -> tuple[int, int]:
    """The value of alt with its quotes, or where the attribute can be put: after the tag's name."""
    place = len("<img")
    while (found := _ATTRIBUTES.match(tag, place)) and found[1]:
        if found[1].lower() == "alt" and found[2] is not None:
            return found.span(2)
        place = found.end()
    return len("<img"), len("<img")


def _html(text: str) -> Iterator[PageImage]:
    yield from _Images(text).found


# Markdown

_INLINE = re.compile(
    r"(?<!\\)!\[((?:[^\[\]\\]|\\.|\[[^\[\]]{0,500}\]){0,2000}?)\]"
    r"(?:\(\s{0,50}(<[^<>\n]{0,2000}>|[^\s()<>]{1,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500}){0,5})"
    r"""(?:\s{1,50}(?:"[^"]{0,2000}"|'[^']{0,2000}'|\([^()]{0,2000}\)))?\s{0,50}\)|\[([^\[\]]{0,500})\])?"""
)
_DEFINITION = re.compile(r"^ {0,3}\[([^\[\]\n]{1,500})\]:[ \t]*<?([^\s<>]{1,2000})>?", re.MULTILINE)
_FENCE = re.compile(r" {0,3}(?:> ?)*(`{3,}|~{3,})")
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:.|\n(?!\n)){1,5000}?(?<!`)\1(?!`)")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")


def _markdown(text: str) -> Iterator[PageImage]:
    references = {_label(name): source for name, source in reversed(_DEFINITION.findall(text))}
    for found in _INLINE.finditer(text):
        source, fixed = found[2], ""
        if source is None:
            source = references.get(_label(found[3] or found[1]), "")
            fixed = "" if found[3] else "its alt text is also the name of its link"
        if source:
            alt = re.sub(r"\\([^\w\s])", r"\1", found[1])
            yield PageImage(source.strip("<>"), alt if alt.strip() else None, *found.span(1), "markdown", fixed)


def _label(name: str) -> str:
    return " ".join(name.casefold().split())


def _without_code(text: str) -> str:
    """With spaces in place of code and comments: images there are examples."""
    lines, fence, in_list, after_blank = list[str](), "", False, True
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        is_code = bool(fence)
        if fence and opened and opened[1].startswith(fence) and not line[opened.end() :].strip(" `~\r"):
            fence = ""
        elif not fence and opened:
            fence, is_code = opened[1], True
        elif not fence and line.startswith(("    ", "\t")):
            is_code = after_blank and not in_list
        elif line.strip():
            in_list = bool(_LIST_ITEM.match(line)) or (in_list and line.startswith(" "))
        after_blank = not line.strip() or (is_code and after_blank)
        lines.append(" " * len(line) if is_code else line)
    body = "\n".join(lines)
    for pattern in (_COMMENT, _CODE):
        body = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), body)
    return body


# Front matter

_FRONT = re.compile(r"\A(---|\+\+\+)[ \t]*\r?\n(.*?\n)\1[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"^([ \t]*(?:- )?[ \t]*)([\w-]+)[ \t]*[:=][ \t]*(.*?)[ \t]*\r?$", re.MULTILINE)
_ALT_KEY = re.compile(r"(.*?)[_-]?alt(?:[_-]?text)?", re.IGNORECASE)


def _front_matter(text: str) -> tuple[list[PageImage], int]:
    """Alt texts beside an image, as in `image: a.jpg` and `image_alt:`; and where the page itself begins."""
    front = _FRONT.match(text)
    if front is None:
        return [], 0
    blocks: list[tuple[int, list[re.Match[str]]]] = []  # entries of one depth that follow each other
    for entry in _ENTRY.finditer(text, front.start(2), front.end(2)):
        depth = len(entry[1])
        if not blocks or blocks[-1][0] != depth or "- " in entry[1]:
            blocks.append((depth, []))
        blocks[-1][1].append(entry)
    return [image for _, entries in blocks for image in _entries(entries)], front.end()


def _entries(entries: list[re.Match[str]]) -> Iterator[PageImage]:
    sources = {entry[2].lower(): _value(entry[3]) for entry in entries}
    sources = {key: value for key, value in sources.items() if PurePath(value or "").suffix.lower() in PHOTO_SUFFIXES}
    for entry in entries:
        key = _ALT_KEY.fullmatch(entry[2])
        alt = _value(entry[3])
        if key is None or alt == "" or "\n" in entry[3] or entry[3][:1] in ("|", ">", "{", "[", "&", "*"):
            continue  # `alt: ""` is empty on purpose
        own = [name for name in sources if name.startswith(key[1].lower())] if key[1] else list(sources)
        if len(own) == 1:
            yield PageImage(sources[own[0]] or "", alt, *entry.span(3), "value")


def _value(written: str) -> str | None:
    """A scalar of YAML or TOML; none where nothing stands."""
    if not written or written in ("null", "~") or written.startswith("#"):
        return None
    if len(written) > 1 and written[0] == written[-1] and written[0] in "\"'":
        return written[1:-1]
    return written.partition(" #")[0].strip()


def line_of(text: str, place: int) -> int:
    return bisect.bisect_right([0, *accumulate(len(line) + 1 for line in text.split("\n"))], place)
