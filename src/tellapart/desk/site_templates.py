"""Templates in a page, which a program fills in: masked before the page is parsed.

A mask has the same length and the same lines, so that places in the masked text are places in the page.  Where it is
not clear whether something is a template, it counts as one: what is masked is never edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt

_SPAN = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|<%.*?(?:%>|\Z)|<\?(?!xml[\s?-]).*?(?:\?>|\Z)|\[%.*?%\]", re.DOTALL | re.IGNORECASE
)
_OPENING = re.compile(r"(?:\{%|\{\{[<%]?)[-~+]?\s*#?\s*([\w.-]+)(.*)", re.DOTALL)
_CLOSING = re.compile(r"(?:\{%|\{\{[<%]?)[-~+]?\s*(?:end[_ ]?([\w.-]+)|/\s*([\w.-]+))")
# Between these and their ends stands what is shown; between others may stand code, another language, or a variable.
_SHOWN = {
    *("if", "unless", "for", "each", "case", "block", "with", "section"),
    *("autoescape", "spaceless", "range", "define"),
}
IN_SOURCE = re.compile(r"\{\{|\{%|\{#|<%|<\?|\$\{|\[%|\[\[|^\{")  # an address or a text that a program makes
# Pictures that are not written as HTML or Markdown.
SHORTCODE = re.compile(
    r"\{\{[<%]?[-~]?\s*(?:figure|img|image|picture|photo|gallery)\b"
    r"|\{%-?\s*(?:picture|img|image|figure|responsive_image|include\s+\S*(?:image|figure|picture|img))\b"
    r"|!\[\[|(?:```|:::)\s*\{(?:figure|image)\}|^[ \t]*\.\. (?:figure|image)::",
    re.MULTILINE,
)


def masked(text: str, *, jsx: bool = False, letters: bool = False) -> str:
    """The text with something else in place of templates.

    jsx      expressions, imports and exports of MDX, too
    letters  letters everywhere, for spaces mean something in Markdown; else only within tags
    """
    characters = list(text)
    for start, end in [*_templates(text), *(_scripts(text) if jsx else ())]:
        opened = max(text.rfind("<", 0, start), -1)
        in_tag = (
            opened >= 0 and text.find(">", opened, start) < 0 and re.match(r"</?[A-Za-z]", text[opened : opened + 3])
        )
        mask = "x" if letters or in_tag else " "
        characters[start:end] = [letter if letter in "\r\n" else mask for letter in text[start:end]]
    return "".join(characters)


def _templates(text: str) -> Iterator[tuple[int, int]]:
    """Each span, and all from the beginning to the end of a block that may be no part of the page."""
    spans = list(_SPAN.finditer(text))
    ends: dict[str, list[int]] = {}
    for span in spans:
        if closing := _CLOSING.match(span[0]):
            ends.setdefault(closing[1] or closing[2], []).append(span.end())
    for places in ends.values():
        places.reverse()
    done = 0
    for span in spans:
        if span.start() < done:
            continue
        done, opening = span.end(), _OPENING.match(span[0])
        if opening and opening[1] not in _SHOWN and not _CLOSING.match(span[0]):
            places = ends.get(opening[1], [])
            while places and places[-1] <= span.end():
                places.pop()
            if places and not (opening[1] == "set" and "=" in opening[2]):
                done = places[-1]
        yield span.start(), done


# MDX

_MODULE = re.compile(r"(?:import|export)\b")
_QUOTES = "\"'`"


def _scripts(text: str) -> Iterator[tuple[int, int]]:
    """Expressions in braces, and statements up to a blank line; to the end of the page where their end is not clear."""
    code = _code(text)
    place, blank = 0, True  # whether a statement can begin in this line
    while place < len(text):
        if code and place >= code[0][0]:
            place = max(place, code.pop(0)[1])
            blank = True
            continue
        if blank and (place == 0 or text[place - 1] == "\n") and _MODULE.match(text, place):
            end = _end_of_script(text, place, statement=True)
            yield place, end
            place = end
        elif text[place] == "{":
            end = _end_of_script(text, place, statement=False)
            yield place, end
            place = end
        elif text[place] == "`":
            mark = re.compile("`+").match(text, place)
            assert mark is not None
            closed = re.compile(rf"(?<!`){mark[0]}(?!`)").search(
                text, mark.end(), text.find("\n\n", place) % (len(text) + 1)
            )
            place = closed.end() if closed else mark.end()
        else:
            if text[place] == "\n":
                blank = True
            elif not text[place].isspace():
                blank = blank and text[place - 1 : place] in ("", "\n") and bool(_MODULE.match(text, place))
            place += 1


def _code(text: str) -> list[tuple[int, int]]:
    """Fenced code blocks, which have braces of other languages."""
    if "```" not in text and "~~~" not in text:
        return []
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    tokens = MarkdownIt("commonmark").disable("code").parse(text)
    lines = [token.map for token in tokens if token.type == "fence" and token.map]
    return [(starts[first], min(starts[min(last, len(starts) - 1)], len(text))) for first, last in lines]


def _end_of_script(text: str, place: int, *, statement: bool) -> int:
    """Behind the closing brace, or for a statement at the first blank line where all brackets are closed."""
    depth = 0
    while place < len(text):
        letter = text[place]
        if letter in _QUOTES:
            place = _end_of_string(text, place)
            continue
        if text.startswith("/*", place):
            place = text.find("*/", place) + 2 if "*/" in text[place:] else len(text)
            continue
        if text.startswith("//", place) and text[place - 1 : place] != ":":
            place = text.find("\n", place) if "\n" in text[place:] else len(text)
            continue
        depth += (letter in "{[(") - (letter in "}])")
        place += 1
        if not statement and depth == 0:
            return place
        if statement and depth <= 0 and letter == "\n" and re.compile(r"[ \t\r]*(?:\n|\Z)").match(text, place):
            return place
    return len(text)


def _end_of_string(text: str, place: int) -> int:
    """Behind a string; an apostrophe is one whose line ends before it is closed."""
    quote, end = text[place], place + 1
    while end < len(text) and text[end] != quote:
        if text[end] == "\n" and quote != "`":
            return place + 1
        end += 2 if text[end] == "\\" else 1
    return min(end + 1, len(text))
