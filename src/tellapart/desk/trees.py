"""Pages as their readers understand them: a flat list of nodes, made by parsers of HTML, XML and Markdown.

Two texts of a page mean the same where their lists are equal.  Markdown is rendered to HTML first.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from xml.parsers import expat

from justhtml import JustHTML
from markdown_it import MarkdownIt

_MOST_NODES = 400_000
XHTML = "http://www.w3.org/1999/xhtml"


class NotParsed(Exception):
    """Says why, to go after the page's name."""


@dataclass
class Node:
    kind: str  # the name of an element of HTML; "svg:...", "math:..." of others; "#text", "#comment" and the like
    parent: int  # its place in the list; -1: none
    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


def of_html(text: str) -> list[Node]:
    """As browsers make it, without scripts: what stands in <noscript> counts."""
    document = JustHTML(text, sanitize=False, scripting_enabled=False)
    nodes: list[Node] = []
    waiting: list[tuple[Any, int]] = [(document.root, -1)]
    while waiting:
        node, parent = waiting.pop()
        space = getattr(node, "namespace", None)
        kind = node.name if space in (None, "html") else f"{space}:{node.name}"
        attributes = {name: value or "" for name, value in (getattr(node, "attrs", None) or {}).items()}
        nodes.append(Node(str(kind), parent, _data(node), attributes))
        if len(nodes) > _MOST_NODES:
            raise NotParsed("has too many elements")
        place, content = len(nodes) - 1, getattr(node, "template_content", None)
        inside = [*(getattr(node, "children", None) or ()), *([content] if content is not None else ())]
        waiting += [(child, place) for child in reversed(inside)]
    return nodes


def _data(node: Any) -> str:
    data = getattr(node, "data", None)
    if data is None or isinstance(data, str):
        return data or ""
    return " ".join(str(getattr(data, name, None)) for name in ("name", "public_id", "system_id"))


def of_xml(data: bytes) -> list[Node]:
    """Of a page in XHTML; entities of its own are refused."""
    nodes = [Node("#document", -1)]
    opened = [0]

    def begin(name: str, attributes: dict[str, str]) -> None:
        space, _, local = name.rpartition(" ")
        kind = local if space in ("", XHTML) else f"{space}:{local}"
        nodes.append(Node(kind, opened[-1], "", {key.rpartition(" ")[2]: value for key, value in attributes.items()}))
        opened.append(len(nodes) - 1)
        if len(nodes) > _MOST_NODES or len(opened) > 2000:
            raise NotParsed("has too many elements")

    def text(part: str) -> None:
        if nodes[-1].kind == "#text" and nodes[-1].parent == opened[-1]:
            nodes[-1].text += part
        else:
            nodes.append(Node("#text", opened[-1], part))

    def refuse(*_: object) -> None:
        raise NotParsed("declares entities of its own")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = begin
    parser.EndElementHandler = lambda _: opened.pop()
    parser.CharacterDataHandler = text
    parser.CommentHandler = lambda part: nodes.append(Node("#comment", opened[-1], part))
    parser.ProcessingInstructionHandler = lambda name, part: nodes.append(Node("#pi", opened[-1], f"{name} {part}"))
    parser.SkippedEntityHandler = lambda name, _: text(f"&{name};")
    parser.EntityDeclHandler = refuse
    parser.UseForeignDTD(True)  # &nbsp; and the like are left as they are
    parser.ExternalEntityRefHandler = lambda *_: 1
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise NotParsed(f"is not well-formed XML ({error})") from None
    return nodes


def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser


_MARKDOWN = _markdown()
_MDX = _markdown().disable("code")  # an indented line is no code there


def of_markdown(text: str, *, mdx: bool) -> list[Node]:
    return of_html(str((_MDX if mdx else _MARKDOWN).render(text)))


_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])\s")


def code_for_some(text: str, places: list[int]) -> set[int]:
    """Those places in a text of Markdown that other programs than CommonMark's may take for something else.

    Within fences, comments and addresses wherever their marks stand, between other than single backticks, and indented
    after a list that has text directly before it.
    """
    doubtful = set[int]()
    for place in places:
        start = text.rfind("\n\n", 0, place) + 1
        end = text.find("\n\n", place) % (len(text) + 1)
        before, after = (re.findall("`+", part) for part in (text[start:place], text[place:end]))
        is_code = bool(after) and (len(before) % 2 == 1 or any(len(mark) > 1 for mark in before))
        is_comment = text.rfind("<!--", 0, place) > text.rfind("-->", 0, place)
        is_address = re.search(r"\]\([^)]*\Z", text[start:place]) is not None
        if is_code or is_comment or is_address:
            doubtful.add(place)
    lines = list(_doubtful_lines(text.split("\n")))
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    return doubtful | {place for place in places if lines[bisect.bisect_right(starts, place) - 1]}


def _doubtful_lines(lines: list[str]) -> Iterator[bool]:
    fenced = {"`": False, "~": False}
    in_list = is_indented = False  # is_indented: the lines since the last blank one began so
    for number, line in enumerate(lines):
        marks = [mark[0] for mark in re.findall("`{3,}|~{3,}", line)]
        doubtful = bool(marks) or any(fenced.values())
        for mark in marks:
            fenced[mark] = not fenced[mark]
        begins = number == 0 or (not lines[number - 1].strip() and not (number == 1 and lines[0]))
        if line.startswith(("    ", "\t")):
            is_indented = is_indented or begins
            doubtful |= not in_list
        elif line.strip():
            is_item = _LIST_ITEM.match(line) is not None
            in_list = is_item if begins else in_list and not marks and (is_item or not is_indented)
            is_indented = is_indented and not begins
        yield doubtful


def above(nodes: list[Node], place: int) -> Iterator[Node]:
    """The elements that a node is in, from the inside."""
    place = nodes[place].parent
    while place >= 0:
        yield nodes[place]
        place = nodes[place].parent


def below(nodes: list[Node], place: int) -> Iterator[Node]:
    """What is in an element, in order."""
    for number in range(place + 1, len(nodes)):
        if nodes[number].parent < place:
            return
        yield nodes[number]
