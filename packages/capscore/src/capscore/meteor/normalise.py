"""METEOR's own tokeniser (its option -norm), which runs over captions that the PTB tokeniser has split already.

It follows the tokeniser of the Moses toolkit and adds its own treatment of hyphens, quotes and apostrophes: "t-shirt"
becomes "t shirt", "dog 's" becomes "dog ' s" and "is n't" becomes "is n 't".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLAIN = re.compile("[0-9a-z ]*")  # nothing to do but to split at the blanks

_LETTERS = (
    "A-Za-z\u0160\u017d\u0161\u017e\u0178\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u04ff\u0500-\u0527"
    "\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
)
_SPACES = "\u2000-\u200a\u202f\u205f\u3000\u00a0 "
_CONTROLS = "".join(map(chr, range(33)))  # what Java's trim() takes off both ends
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# A dot of "..." while the other rules run.  METEOR writes letters, DOTMULTI, and takes these for dots in a caption too;
# this one no caption has.
_DOT = "\ud800"


def _rules(*rules: tuple[str, str]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern, re.ASCII), replacement) for pattern, replacement in rules]


_SYMBOLS = _rules((rf"([^0-9{_LETTERS}\s.'`,\-\u2018\u2019])", r" \1 "))
_DOTS = re.compile(r"\.\.+")

# In this order.  A rule sees what the one before it left, and a character taken by one match is not seen by the next:
# of "a-b-c" only the first hyphen goes.
_PUNCTUATION = _rules(
    (r"([^0-9]),([^0-9])", r"\1 , \2"),
    (r"([0-9]),([^0-9])", r"\1 , \2"),
    (r"([^0-9]),([0-9])", r"\1 , \2"),
    (r"[`\u2018\u2019]", "'"),
    (r"[\u201c\u201d]|''", ' " '),
    (r"\u2013", "-"),
    (r"--", "-"),
    (rf"([0-9{_LETTERS}.])-([0-9{_LETTERS}])", r"\1 \2"),
    (rf"([^{_LETTERS}])'([^{_LETTERS}])", r"\1 ' \2"),
    (rf"([^0-9{_LETTERS}])'([{_LETTERS}])", r"\1 ' \2"),
    (rf"([{_LETTERS}])'([^{_LETTERS}])", r"\1 ' \2"),
    (rf"([{_LETTERS}])'([{_LETTERS}])", r"\1 '\2"),
    (r"([0-9])'(s)", r"\1 '\2"),
)
_BLANKS = re.compile("[ \t\n\r\f]+")
_LETTER = re.compile(f"[{_LETTERS}]")
_UNICODE_SPACES = re.compile(f"[{_SPACES}]+")

Prefixes = Mapping[str, bool]
"""Abbreviations that keep their dot: True for those which do so only before a number ("No. 5")."""


def normalise(caption: str, prefixes: Prefixes) -> list[str]:
    """The words that METEOR compares."""
    if _PLAIN.fullmatch(caption):
        return caption.split()
    line = " " + _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", caption.strip(_CONTROLS)) + " "
    for pattern, replacement in _SYMBOLS:
        line = pattern.sub(replacement, line)
    line = _DOTS.sub(lambda dots: f" {_DOT * len(dots[0])} ", line)
    for pattern, replacement in _PUNCTUATION:
        line = pattern.sub(replacement, line)
    line = " ".join(_final_dots([word for word in _BLANKS.split(line) if word], prefixes)).replace(_DOT, ".")
    line = _UNICODE_SPACES.sub(" ", line).strip(_CONTROLS).lower()
    return [word for word in _BLANKS.split(line) if word]


def _final_dots(words: list[str], prefixes: Prefixes) -> list[str]:
    """A dot at the end of a word is a word of its own, unless the word is an abbreviation or the sentence goes on."""
    result = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        kept = word[:-1]
        if not kept or not word.endswith("."):
            result.append(word)
        elif "." in kept and _LETTER.search(kept):
            result.append(word.replace(".", ""))  # u.s.
        elif "a" <= following[:1] <= "z" or _is_abbreviation(kept, following, prefixes):
            result.append(word)
        else:
            result += [kept, "."]
    return result


def _is_abbreviation(word: str, following: str, prefixes: Prefixes) -> bool:
    return word in prefixes and (not prefixes[word] or "0" <= following[:1] <= "9")


def read_prefixes(text: str) -> dict[str, bool]:
    """The list of abbreviations in the format of Moses: one a line, remarks after #."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {line[0]: line[1:2] == ["#NUMERIC_ONLY#"] for line in lines}
