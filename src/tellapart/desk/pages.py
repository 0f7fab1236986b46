"""The images of HTML and Markdown pages: what each means, where its alt text stands, and changes that are checked.

Places are guessed and then proved: marks are put where an image seems to be, and a parser says which of them are the
alt texts of images.  A change holds only if the changed page, parsed again, differs in exactly that alt text.
"""

from __future__ import annotations

import bisect
import html
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import PurePath
from typing import Any
from xml.parsers import expat

from justhtml import JustHTML
from markdown_it import MarkdownIt

from tellapart.desk import front_matter, site_templates
from tellapart.desk.front_matter import FrontMatter

HTML_SUFFIXES = (".html", ".htm", ".xhtml")
MARKDOWN_SUFFIXES = (".md", ".markdown", ".mdx")


@dataclass(frozen=True)
class PageImage:
    source: str  # as the page names it
    alt: str | None  # none: there is none; "": it is empty on purpose
    start: int  # of what becomes the alt text, in the page's text ...
    end: int
    form: str  # ... written so: "html", "attribute" (with its name), "markdown" or "value" (of front matter)
    key: object = None  # what it is in the parsed page
    left: str = ""  # why a person has to write its alt text, if it has none
    fixed: str = ""  # why its alt text cannot be changed at all

    def written(self, alt: str) -> str:
        """An alt text as it stands in the page."""
        if self.form == "markdown":
            return re.sub(r"([\\`*_\[\]<>&|])", r"\\\1", alt)
        if self.form == "value":
            return json.dumps(alt, ensure_ascii=False)  # a string in YAML and in TOML as well
        # Character references are the same in every encoding that a page may have.
        quoted = html.escape(alt).encode("ascii", "xmlcharrefreplace").decode("ascii")
        return f' alt="{quoted}"' if self.form == "attribute" else f'"{quoted}"'


@dataclass(frozen=True)
class Change:
    image: PageImage
    start: int
    end: int
    written: str
    alt: str  # what the image's alt text is then

    @classmethod
    def of(cls, image: PageImage, alt: str, text: str) -> Change:
        """text: the page's"""
        written = image.written(alt)
        if image.form == "value" and image.start == image.end and text[image.start - 1 : image.start] in ":=":
            written = f" {written}"
        return cls(image, image.start, image.end, written, alt)


@dataclass
class Parsed:
    """A page as parsers read it."""

    front: FrontMatter
    nodes: list[Node]
    masked: str  # the text behind the front matter

    @classmethod
    def of(cls, text: str, suffix: str) -> Parsed:
        front = front_matter.read(text) if suffix != ".xhtml" else FrontMatter(0, [], [])
        masked = site_templates.masked(text[front.end :], jsx=suffix == ".mdx", letters=suffix in MARKDOWN_SUFFIXES)
        return cls(front, _nodes(masked, suffix), masked)

    def with_changes(self, changes: Iterable[Change]) -> tuple[list[tuple[front_matter.Path, object]], list[Node]]:
        values, nodes = list(self.front.values), list(self.nodes)
        for change in changes:
            if isinstance(change.image.key, int):
                node = nodes[change.image.key]
                nodes[change.image.key] = replace(node, attributes=node.attributes | {"alt": change.alt})
            else:
                values = [(path, change.alt if path == change.image.key else value) for path, value in values]
        return values, nodes


@dataclass
class PageText:
    text: str
    suffix: str
    images: list[PageImage] = field(default_factory=list)
    notes: list[tuple[int, str, str]] = field(default_factory=list)  # for a person to look at: place, what, why
    language: str = ""  # as the page says it
    unseen: list[int] = field(default_factory=list)  # where in code, comments, scripts or templates images seem to be

    def __post_init__(self) -> None:
        if not _MAY_HAVE_IMAGES.search(self.text):
            return
        try:
            self._parsed = Parsed.of(self.text, self.suffix)
            self._find()
        except (NotParsed, RecursionError) as error:
            self.notes.append((0, "the page", str(error) or "is nested too deeply"))
            self.images = []

    def line_of(self, place: int) -> int:
        return bisect.bisect_right([0, *accumulate(len(line) + 1 for line in self.text.split("\n"))], place)

    def after(self, changes: Iterable[Change]) -> str:
        parts, place = [], 0
        for change in sorted(changes, key=lambda change: change.start):
            parts += [self.text[place : change.start], change.written]
            place = change.end
        return "".join([*parts, self.text[place:]])

    def holding(self, changes: Sequence[Change]) -> list[Change]:
        """The changes that change the alt texts of their images and nothing else."""
        if not changes or self._holds(changes):
            return list(changes)
        if len(changes) == 1:
            return []
        middle = len(changes) // 2
        good = [*self.holding(changes[:middle]), *self.holding(changes[middle:])]
        return good if self._holds(good) else []

    def _holds(self, changes: Sequence[Change]) -> bool:
        try:
            after = Parsed.of(self.after(changes), self.suffix)
            same = (after.front.values, after.nodes) == self._parsed.with_changes(changes)
            # Without the masks, as the page would be without its generator, nothing else may change either.
            raw = self.text[self._parsed.front.end :]
            if same and raw != self._parsed.masked:
                changed = self.after(changes)[after.front.end :]
                same = _without_alts(_nodes(raw, self.suffix)) == _without_alts(_nodes(changed, self.suffix))
        except (NotParsed, RecursionError):
            return False
        return same

    def _find(self) -> None:
        front, start = self._parsed.front, self._parsed.front.end
        if front.problem:
            self.notes.append((0, "front matter", front.problem))
        for entry in front.entries:
            twice = sum(path == entry.path for path, _ in front.values) > 1
            fixed = "its key is there twice" if twice else entry.fixed
            image = PageImage(entry.source, entry.alt, entry.start, entry.end, "value", entry.path, "", fixed)
            self.images.append(image)
        marks = _marks(self._parsed, self.suffix)
        doubtful = set[int]()
        if self.suffix in MARKDOWN_SUFFIXES:
            doubtful = code_for_some(self.text[start:], [mark.start for mark in marks.values()])
        for number, node in enumerate(self._parsed.nodes):
            mark = marks.get(number)
            place = start if mark is None else start + mark.start
            if node.kind == "img":
                image = _image(self.text, self._parsed, number, mark, self.suffix)
                if not image.fixed and place - start in doubtful:
                    image = replace(image, fixed="some programs take it for code in Markdown")
                self.images.append(image)
            elif reason := _other(self._parsed.nodes, number):
                self.notes.append((place, node.attributes.get("src") or f"<{node.kind.removeprefix('x-')}>", reason))
        located = {start + mark.start for mark in marks.values()}
        self.unseen = [match.start() for match in _LOOKS_SO.finditer(self.text, start) if match.start() not in located]
        for match in site_templates.SHORTCODE.finditer(self.text, start):
            self.notes.append((match.start(), " ".join(match[0].split()), "is written for a site generator"))
        languages = (node.attributes.get("lang", "") for node in self._parsed.nodes if node.kind == "html")
        self.language = front.language or next(filter(None, languages), "")


_MAY_HAVE_IMAGES = re.compile(
    r"<[A-Za-z.:-]*(?:img|image|photo|picture|input|area|figure)|!\["
    r"|^\s*[\w-]*alt[\w-]*\s*[:=]|\{[{%<]|\.\. |\{(?:figure|image)",
    re.IGNORECASE | re.MULTILINE,
)


def _nodes(masked: str, suffix: str) -> list[Node]:
    if suffix == ".xhtml":
        return of_xml(masked.encode("utf-8", "surrogateescape"))
    if suffix in HTML_SUFFIXES:
        return of_html(masked)
    if suffix == ".mdx":
        masked = _SELF_CLOSED.sub(_closed, _COMPONENT.sub(lambda tag: f"<{tag[1]}x-{tag[2].replace('.', '-')}", masked))
    return of_html(str((_MDX if suffix == ".mdx" else _MARKDOWN).render(masked)))


def _without_alts(nodes: list[Node]) -> list[Node]:
    return [replace(node, attributes=node.attributes | {"alt": ""}) if node.kind == "img" else node for node in nodes]


# In MDX, <Title/> is a component, and <iframe/> is closed.
_COMPONENT = re.compile(r"<(/?)([A-Z][\w.]{0,100})")
_SELF_CLOSED = re.compile(
    r"""<([A-Za-z][\w-]*)((?:\s+[^\s"'<>/=]+(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>/=]+))?)*)\s*/>"""
)
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


def _closed(tag: re.Match[str]) -> str:
    return tag[0] if tag[1].lower() in _VOID else f"<{tag[1]}{tag[2]}></{tag[1]}>"


# Where images stand


@dataclass(frozen=True)
class _Mark:
    start: int  # of the tag, or of the image in Markdown; in the masked text
    place: int  # where the mark goes ...
    end: int  # ... and what it replaces
    is_tag: bool


_TAG = re.compile(
    r"<(img|image|input|area|[A-Za-z][\w.:-]*?(?:image|img|photo|picture|figure)[\w.:-]*)(?=[\s/>])", re.IGNORECASE
)
_INLINE = re.compile(r"(?<![\\$])!\[((?:[^\[\]\\]|\\.|\[[^\[\]]{0,500}\]){0,2000}?)\](?=[(\[])")


def _marks(parsed: Parsed, suffix: str) -> dict[int, _Mark]:
    """The place of each node in the text: what looks like an image is marked, and the page parsed again."""
    marks = [_Mark(match.start(), match.end(), match.end(), True) for match in _TAG.finditer(parsed.masked)]
    if suffix in MARKDOWN_SUFFIXES:
        marks += [_Mark(match.start(), *match.span(1), False) for match in _INLINE.finditer(parsed.masked)]
    marks = sorted(marks, key=lambda mark: mark.place)
    for _ in range(4):  # a mark that is no image's may have changed what others are
        nodes, of_node = _with_marks(parsed.masked, suffix, marks)
        if len(of_node) == len(marks) or not marks:
            break
        marks = [mark for mark in marks if mark in of_node.values()]
    same = [(node.kind, node.parent) for node in nodes] == [(node.kind, node.parent) for node in parsed.nodes]
    return of_node if same else {}


def _with_marks(text: str, suffix: str, marks: Sequence[_Mark]) -> tuple[list[Node], dict[int, _Mark]]:
    parts, place, name = [], 0, f"tellapart{secrets.token_hex(6)}"
    for number, mark in enumerate(marks):
        parts += [text[place : mark.place], f' {name}="{number}"' if mark.is_tag else f"{name}x{number}x"]
        place = mark.end
    try:
        nodes = _nodes("".join([*parts, text[place:]]), suffix)
    except NotParsed:
        return [], {}
    of_node: dict[int, _Mark] = {}
    for number, node in enumerate(nodes):
        value = node.attributes.get(name)
        if value is None and node.kind == "img" and node.attributes.get("alt", "").startswith(f"{name}x"):
            value = node.attributes["alt"].removeprefix(f"{name}x").removesuffix("x")
        if value is not None and value.isdecimal() and int(value) < len(marks):
            of_node[number] = marks[int(value)]
    return nodes, of_node


# What an image is


_LOOKS_SO = re.compile(r"<img(?=[\s/>])|(?<!\\)!\[[^\[\]\n]{0,1000}\](?=[(\[])", re.IGNORECASE)
_LINKS = ("a", "button", "summary", "label")
_UNSHOWN = ("template", "noscript", "pre", "code", "samp", "kbd", "textarea", "select", "object", "dialog")
_OWN_ALT = re.compile(r"(?:.*[\W_]|ng-?attr-?)alt\]?(?:text)?|alt[.:].*", re.IGNORECASE)
_ATTRIBUTE_LIST = re.compile(r"\](?:\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\]\n]*\])[ ]?\{[^}\n]*\balt\s*=")


def _image(text: str, parsed: Parsed, number: int, mark: _Mark | None, suffix: str) -> PageImage:
    node, start = parsed.nodes[number], parsed.front.end
    source, alt, left = node.attributes.get("src", "").strip(), node.attributes.get("alt"), _left(parsed.nodes, number)
    if mark is None:
        alt = alt if suffix in HTML_SUFFIXES else alt or None
        fixed = "its alt text is also the name of its link, or it cannot be told where it is written"
        return PageImage(source, alt, start, start, "html", number, left, fixed)
    if mark.is_tag:
        (first, last), end = _place_of_alt(parsed.masked, mark.place)
        form = "html" if first < last else "attribute"
    else:
        alt = alt or None
        first, last, end = mark.place, mark.end, parsed.masked.find(")", mark.end) + 1
        form = "markdown"
    whole = text[start + mark.start : start + end]
    fixed = ""
    if whole != parsed.masked[mark.start : end]:
        fixed, source = "a program fills it in", " ".join(whole.split())[:80]
        alt = "{}" if re.search(r"\balt\b", whole) else alt
    elif mark.is_tag and any(name != "alt" and _OWN_ALT.fullmatch(name) for name in node.attributes):
        fixed = "its alt text is named by another attribute, too"
    elif not mark.is_tag and _ATTRIBUTE_LIST.match(parsed.masked, mark.end):
        fixed = "an attribute list stands beside it"
    elif site_templates.IN_SOURCE.search(source) or site_templates.IN_SOURCE.search(alt or ""):
        fixed = "a program fills it in"
    return PageImage(source, alt, start + first, start + last, form, number, left, fixed)


def _left(nodes: list[Node], number: int) -> str:
    """A reason why the text of an image that has none is for a person to write; or empty."""
    node = nodes[number]
    attributes = node.attributes
    if not attributes.get("src", "").strip():
        lazy = next((name for name in attributes if name.startswith(("data-", "srcset"))), "")
        return f"its picture is named by {lazy} only" if lazy else "it has no src"
    if attributes.get("role", "").lower() in ("presentation", "none") or attributes.get("aria-hidden") == "true":
        return "decorative"
    for name in ("aria-label", "aria-labelledby", "title"):
        if attributes.get(name, "").strip():
            return f"its {name} may be its text"
    if "usemap" in attributes or "ismap" in attributes:
        return "it is a map of links"
    sides = [attributes.get(name, "").strip().removesuffix("px") for name in ("width", "height")]
    if all(side.isdecimal() and float(side) <= 32 for side in sides):
        return "it is shown tiny"
    for outer in above(nodes, number):
        if outer.kind in _LINKS or outer.attributes.get("role") in ("link", "button", "tab", "menuitem"):
            return "it is in a link or a button: its text should say what that does"
        if outer.kind in _UNSHOWN or outer.attributes.get("aria-hidden") == "true" or "hidden" in outer.attributes:
            return f"it is in <{outer.kind}>" if outer.kind in _UNSHOWN else "it is in a hidden part"
        language = outer.attributes.get("lang") or outer.attributes.get("xml:lang")
        if language:
            return _foreign(language)
    return ""


def _foreign(language: str) -> str:
    is_english = re.match(r"en(?:[-_]|\Z)|mul|und|c\b", language.strip(), re.IGNORECASE)
    if is_english or site_templates.IN_SOURCE.search(language):
        return ""
    return f"the page's language is {language[:20]!r}, and the captions are English"


def language_problem(page: PageText, name: str) -> str:
    """A reason to caption no image of a page: it is in another language than captions are."""
    named = (suffix[1:] for suffix in PurePath(name).suffixes[-2:-1])
    language = page.language or next((tag for tag in named if re.fullmatch("[a-z]{2}(?:[-_][A-Za-z]{2,4})?", tag)), "")
    return _foreign(language) if language else ""


def _other(nodes: list[Node], number: int) -> str:
    """A note on an element that is no image, but shows one; or empty."""
    node = nodes[number]
    attributes = {name: value for name, value in node.attributes.items() if value.strip()}
    named = any(name in attributes for name in ("alt", "aria-label", "aria-labelledby", "title"))
    if node.kind == "input" and attributes.get("type", "").lower() == "image" and not named:
        return "is a button with a picture, whose alt text should say what it does"
    if node.kind == "area" and "href" in attributes and not named:
        return "is a link of a map, whose alt text should say where it leads"
    is_component = _TAG.match(f"<{node.kind}>") and node.kind not in ("img", "input", "area", "image")
    if is_component and ("src" in attributes or "image" in attributes):
        return "" if named else "is a component, and not looked at"
    if node.kind in ("a", "button") and not named:
        inside = list(below(nodes, number))
        is_empty = not any(part.kind == "#text" and part.text.strip() for part in inside)
        pictures = [part.attributes for part in inside if part.kind in ("img", "svg:svg")]
        if is_empty and len(pictures) == 1 and pictures[0].get("alt") == "" and "aria-label" not in pictures[0]:
            return "a link or button without a text: its picture's alt text is empty"
    return ""


_ATTRIBUTES = re.compile(r"""[\s/]*([^\s/>=][^\s/>=]*|=[^\s/>=]*)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>]*))?""")


def _place_of_alt(text: str, place: int) -> tuple[tuple[int, int], int]:
    """The value of alt with its quotes, or where the attribute can be put: after the tag's name.  And the tag's end."""
    span, at = (place, place), place
    while (match := _ATTRIBUTES.match(text, at)) and match.end() > at:
        if match[1].lower() == "alt" and match[2] is not None and span[0] == span[1]:
            span = match.span(2)
        at = match.end()
    end = text.find(">", at)
    return span, end + 1 if end >= 0 else len(text)


# Pages as their readers understand them: a flat list of nodes, made by parsers of HTML, XML and Markdown.  Two texts of
# a page mean the same where their lists are equal.  Markdown is rendered to HTML first.

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
    """Nodes of a page in XHTML; entities of its own are refused."""
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


_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])\s")


def code_for_some(text: str, places: list[int]) -> set[int]:
    """The places in a text of Markdown that other programs than CommonMark's may take for something else.

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
    """The nodes in an element, in order."""
    for number in range(place + 1, len(nodes)):
        if nodes[number].parent < place:
            return
        yield nodes[number]
