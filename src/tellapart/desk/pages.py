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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import PurePath

from tellapart.desk import front_matter, templates, trees
from tellapart.desk.front_matter import FrontMatter
from tellapart.desk.trees import Node, NotParsed

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
    def of(cls, image: PageImage, alt: str, before: str) -> Change:
        """before: the page's text"""
        written = image.written(alt)
        if image.form == "value" and image.start == image.end and before[image.start - 1 : image.start] in ":=":
            written = f" {written}"
        return cls(image, image.start, image.end, written, alt)


@dataclass
class Parsed:
    """What a page means."""

    front: FrontMatter
    nodes: list[Node]
    masked: str  # the text behind the front matter

    @classmethod
    def of(cls, text: str, suffix: str) -> Parsed:
        front = front_matter.read(text) if suffix != ".xhtml" else FrontMatter(0, [], [])
        masked = templates.masked(text[front.end :], jsx=suffix == ".mdx", letters=suffix in MARKDOWN_SUFFIXES)
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
    notes: list[tuple[int, str, str]] = field(
        default_factory=list
    )  # what else a person has to look at: place, what, why
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
        """Those that change the alt texts of their images and nothing else."""
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
                before, now = (_nodes(one, self.suffix) for one in (raw, self.after(changes)[after.front.end :]))
                same = _without_alts(before) == _without_alts(now)
        except (NotParsed, RecursionError):
            return False
        return same

    def _find(self) -> None:
        front, start = self._parsed.front, self._parsed.front.end
        self.language = front.language
        if front.problem:
            self.notes.append((0, "front matter", front.problem))
        for entry in front.entries:
            twice = sum(path == entry.path for path, _ in front.values) > 1
            fixed = "its key is there twice" if twice else entry.fixed
            image = PageImage(entry.source, entry.alt, entry.start, entry.end, "value", entry.path, "", fixed)
            self.images.append(image)
        marks = _Marks(self._parsed, self.suffix)
        doubtful = set[int]()
        if self.suffix in MARKDOWN_SUFFIXES:
            doubtful = trees.code_for_some(self.text[start:], [mark.start for mark in marks.of_node.values()])
        for number, node in enumerate(self._parsed.nodes):
            mark = marks.of_node.get(number)
            place = start if mark is None else start + mark.start
            if node.kind == "img":
                image = _image(self.text, self._parsed, number, mark, self.suffix)
                if not image.fixed and place - start in doubtful:
                    image = replace(image, fixed="some programs take it for code in Markdown")
                self.images.append(image)
            elif reason := _other(self._parsed.nodes, number):
                self.notes.append((place, node.attributes.get("src") or f"<{node.kind.removeprefix('x-')}>", reason))
        located = {start + mark.start for mark in marks.of_node.values()}
        self.unseen = [found.start() for found in _LOOKS_SO.finditer(self.text, start) if found.start() not in located]
        for found in templates.SHORTCODE.finditer(self.text, start):
            self.notes.append((found.start(), " ".join(found[0].split()), "is written for a site generator"))
        for node in self._parsed.nodes:
            if node.kind == "html":
                self.language = self.language or node.attributes.get("lang", "")


_MAY_HAVE_IMAGES = re.compile(
    r"<[A-Za-z.:-]*(?:img|image|photo|picture|input|area|figure)|!\["
    r"|^\s*[\w-]*alt[\w-]*\s*[:=]|\{[{%<]|\.\. |\{(?:figure|image)",
    re.IGNORECASE | re.MULTILINE,
)


def _nodes(masked: str, suffix: str) -> list[Node]:
    if suffix == ".xhtml":
        return trees.of_xml(masked.encode("utf-8", "surrogateescape"))
    if suffix in HTML_SUFFIXES:
        return trees.of_html(masked)
    if suffix == ".mdx":
        masked = _SELF_CLOSED.sub(_closed, _COMPONENT.sub(lambda tag: f"<{tag[1]}x-{tag[2].replace('.', '-')}", masked))
    return trees.of_markdown(masked, mdx=suffix == ".mdx")


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


class _Marks:
    """Which node of a page is written where: what looks like an image is marked, and the page parsed again."""

    def __init__(self, parsed: Parsed, suffix: str):
        self._text, self._suffix, self._name = parsed.masked, suffix, f"tellapart{secrets.token_hex(6)}"
        marks = [_Mark(found.start(), found.end(), found.end(), True) for found in _TAG.finditer(parsed.masked)]
        if suffix in MARKDOWN_SUFFIXES:
            marks += [_Mark(found.start(), *found.span(1), False) for found in _INLINE.finditer(parsed.masked)]
        marks = sorted(marks, key=lambda mark: mark.place)
        self.of_node: dict[int, _Mark] = {}
        for _ in range(4):  # a mark that is no image's may have changed what others are
            nodes, seen = self._seen(marks)
            if len(seen) == len(marks) or not marks:
                break
            marks = [mark for mark in marks if mark in seen.values()]
        if [(node.kind, node.parent) for node in nodes] == [(node.kind, node.parent) for node in parsed.nodes]:
            self.of_node = seen

    def _seen(self, marks: Sequence[_Mark]) -> tuple[list[Node], dict[int, _Mark]]:
        parts, place = [], 0
        for number, mark in enumerate(marks):
            written = f' {self._name}="{number}"' if mark.is_tag else f"{self._name}x{number}x"
            parts += [self._text[place : mark.place], written]
            place = mark.end
        try:
            nodes = _nodes("".join([*parts, self._text[place:]]), self._suffix)
        except NotParsed:
            return [], {}
        seen: dict[int, _Mark] = {}
        for number, node in enumerate(nodes):
            value = node.attributes.get(self._name)
            if value is None and node.kind == "img" and node.attributes.get("alt", "").startswith(f"{self._name}x"):
                value = node.attributes["alt"].removeprefix(f"{self._name}x").removesuffix("x")
            if value is not None and value.isdecimal() and int(value) < len(marks):
                seen[number] = marks[int(value)]
        return nodes, seen


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
    elif templates.IN_SOURCE.search(source) or templates.IN_SOURCE.search(alt or ""):
        fixed = "a program fills it in"
    return PageImage(source, alt, start + first, start + last, form, number, left, fixed)


def _left(nodes: list[Node], number: int) -> str:
    """Why the text of an image that has none is for a person to write."""
    node = nodes[number]
    given = node.attributes
    if not given.get("src", "").strip():
        lazy = next((name for name in given if name.startswith(("data-", "srcset"))), "")
        return f"its picture is named by {lazy} only" if lazy else "it has no src"
    if given.get("role", "").lower() in ("presentation", "none") or given.get("aria-hidden") == "true":
        return "decorative"
    for name in ("aria-label", "aria-labelledby", "title"):
        if given.get(name, "").strip():
            return f"its {name} may be its text"
    if "usemap" in given or "ismap" in given:
        return "it is a map of links"
    if all(
        given.get(name, "").strip().removesuffix("px").isdecimal()
        and float(given[name].strip().removesuffix("px")) <= 32
        for name in ("width", "height")
    ):
        return "it is shown tiny"
    for outer in trees.above(nodes, number):
        if outer.kind in _LINKS or outer.attributes.get("role") in ("link", "button", "tab", "menuitem"):
            return "it is in a link or a button: its text should say what that does"
        if outer.kind in _UNSHOWN or outer.attributes.get("aria-hidden") == "true" or "hidden" in outer.attributes:
            return f"it is in <{outer.kind}>" if outer.kind in _UNSHOWN else "it is in a hidden part"
        language = outer.attributes.get("lang") or outer.attributes.get("xml:lang")
        if language:
            return _foreign(language)
    return ""


def _foreign(language: str) -> str:
    is_english = re.match(r"en(?:[-_]|\Z)|mul|und|c\b", language.strip(), re.IGNORECASE) or templates.IN_SOURCE.search(
        language
    )
    return "" if is_english else f"the page's language is {language[:20]!r}, and the captions are English"


def language_problem(page: PageText, name: str) -> str:
    """Why none of a page's images is captioned: it is in another language than captions are."""
    suffixes = PurePath(name).suffixes
    named = (
        suffixes[-2][1:]
        if len(suffixes) > 1 and re.fullmatch(r"\.[a-z]{2}(?:[-_][A-Za-z]{2,4})?", suffixes[-2])
        else ""
    )
    return _foreign(page.language) if page.language else _foreign(named) if named else ""


def _other(nodes: list[Node], number: int) -> str:
    """What has to be said of an element that is no image, but shows one."""
    node = nodes[number]
    given = {name: value for name, value in node.attributes.items() if value.strip()}
    named = any(name in given for name in ("alt", "aria-label", "aria-labelledby", "title"))
    if node.kind == "input" and given.get("type", "").lower() == "image" and not named:
        return "is a button with a picture, whose alt text should say what it does"
    if node.kind == "area" and "href" in given and not named:
        return "is a link of a map, whose alt text should say where it leads"
    if (
        _TAG.match(f"<{node.kind}>")
        and node.kind not in ("img", "input", "area", "image")
        and ("src" in given or "image" in given)
    ):
        return "" if named else "is a component, and not looked at"
    if node.kind in ("a", "button") and not named:
        inside = list(trees.below(nodes, number))
        is_empty = not any(part.kind == "#text" and part.text.strip() for part in inside)
        pictures = [part for part in inside if part.kind in ("img", "svg:svg")]
        if (
            is_empty
            and len(pictures) == 1
            and pictures[0].attributes.get("alt") == ""
            and "aria-label" not in pictures[0].attributes
        ):
            return "a link or button without a text: its picture's alt text is empty"
    return ""


_ATTRIBUTES = re.compile(r"""[\s/]*([^\s/>=][^\s/>=]*|=[^\s/>=]*)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>]*))?""")


def _place_of_alt(text: str, place: int) -> tuple[tuple[int, int], int]:
    """The value of alt with its quotes, or where the attribute can be put: after the tag's name.  And the tag's end."""
    span, at = (place, place), place
    while (found := _ATTRIBUTES.match(text, at)) and found.end() > at:
        if found[1].lower() == "alt" and found[2] is not None and span[0] == span[1]:
            span = found.span(2)
        at = found.end()
    end = text.find(">", at)
    return span, end + 1 if end >= 0 else len(text)
