"""Faults of captions that accessibility checkers flag: nothing of the picture is said, or several share a caption.

A screen reader speaks the caption where others see the picture, after the word "image".  Lengths and words are counted
as a person would, in any language; only openings ("photo of ..."), refusals and chatter go by English words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import PurePath

from tellapart.data.examples import clean
from tellapart.desk.chatter import LONGEST_ALT, has_chatter, has_opening, is_refusal

LONGEST = LONGEST_ALT
RUN = 3  # pictures in a row with one caption, and words in a row that are the same

RULES = {
    "missing": "the picture has no caption",
    "empty": "the caption has no words that a screen reader can read",
    "file-name": "the caption is only a file name",
    "refusal": "the caption is a refusal by a model, such as \"I'm sorry, but I can't help with that\"",
    "one-word": "the caption is a single word",
    "long": f"the caption has more than {LONGEST} characters",
    "opening": 'the caption begins with "photo of", "this image shows" or similar (English only)',
    "chatter": 'the caption contains "Sure! Here is a caption:", markdown, hashtags or reasoning (English only)',
    "repeated-word": f"the caption has the same word {RUN} or more times in a row",
    "shared": "several pictures have the same caption",
    "shared-look-alike": "pictures that look alike have the same caption",
    "run": f"{RUN} or more pictures in a row have the same caption",
}


@dataclass(frozen=True)
class Finding:
    file: str  # or the picture's id, as the captions name it
    rule: str
    caption: str = ""


@dataclass(frozen=True)
class Shared:
    """One caption and the pictures that have it, in the order of the captions."""

    captions: dict[str, str]  # of each picture, its spelling of the caption
    look_alikes: list[tuple[str, str]]  # which of the pictures look alike

    @property
    def files(self) -> list[str]:
        return list(self.captions)


def check(
    captions: Mapping[str, Sequence[str]], shared: Iterable[Shared] = (), missing: Iterable[str] = ()
) -> list[Finding]:
    """All findings, by rule in the order of `RULES`, then in the order of the captions.

    captions   of each picture
    shared     what `shared_captions` found in them
    missing    further pictures that are known to have no caption
    """
    findings = [Finding(file, "missing") for file in missing]
    position = {file: place for place, file in enumerate(captions)}
    for file, texts in captions.items():
        if not texts:
            findings.append(Finding(file, "missing"))
        for text in map(clean, texts):
            findings += [Finding(file, rule, text) for rule in faults(text, file)]
    for group in shared:
        findings += [Finding(file, "shared", text) for file, text in group.captions.items()]
        alike = {file for pair in group.look_alikes for file in pair}
        findings += [Finding(file, "shared-look-alike", group.captions[file]) for file in group.files if file in alike]
        findings += [Finding(file, "run", group.captions[file]) for file in _in_runs(group.files, position)]
    order = list(RULES)
    return sorted(findings, key=lambda finding: order.index(finding.rule))  # stable: groups of pictures stay together


def faults(caption: str, file: str = "") -> list[str]:
    """The rules that a caption breaks by itself; `file` is the picture's name."""
    words = caption_words(caption)
    if not words:
        return ["empty"]
    if _is_file_name(caption, file):
        return ["file-name"]
    if is_refusal(caption):
        return ["refusal"]
    repeated = max(len(list(same)) for _, same in groupby(words))
    broken = {
        "one-word": len(words) == 1 and not any(map(_is_unspaced, words[0])),
        "long": length(caption) > LONGEST,
        "opening": has_opening(caption),
        "chatter": has_chatter(caption),
        "repeated-word": repeated >= RUN,
    }
    return [rule for rule, is_broken in broken.items() if is_broken]


def shared_captions(
    captions: Mapping[str, Sequence[str]],
    *,
    contents: Mapping[str, str] | None = None,
    neighbours: Mapping[str, Collection[str]] | None = None,
) -> list[Shared]:
    """The captions that more than one picture has; capitals and punctuation, which are silent, make no difference.

    contents     what a picture's bytes are known by: exact copies are one picture, and may well share a caption
    neighbours   contents to the nearest other contents; two pictures look alike if each is among the other's
    """
    contents, neighbours = contents or {}, neighbours or {}
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for file, texts in captions.items():
        for text in map(clean, texts):
            if words := caption_words(text):
                groups.setdefault(tuple(words), {}).setdefault(file, text)
    return [
        Shared(group, list(_look_alikes(group, contents, neighbours)))
        for group in groups.values()
        if len({contents.get(file, file) for file in group}) > 1
    ]


def length(text: str) -> int:
    """In characters as a person sees them: accents and the parts of a joined emoji do not count on their own."""
    if text.isascii():
        return len(text)
    count, flag_letters, joined = 0, 0, False
    for character in unicodedata.normalize("NFC", text):
        kind = unicodedata.category(character)
        is_part = kind in ("Mn", "Me", "Mc", "Cf") or "\U0001f3fb" <= character <= "\U0001f3ff"  # marks, skin tones
        if "\U0001f1e6" <= character <= "\U0001f1ff":
            flag_letters += 1
        elif not is_part and not (joined and kind == "So"):
            count += 1
        joined = character == "\u200d"
    return count + (flag_letters + 1) // 2  # two of them make a flag


def _look_alikes(
    files: Iterable[str], contents: Mapping[str, str], neighbours: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, str]]:
    earlier: dict[str, list[str]] = {}  # content to the pictures with it
    for file in files:
        if (content := contents.get(file)) is not None:
            for other in neighbours.get(content, ()):
                if other in earlier and content in neighbours.get(other, ()):
                    yield from ((copy, file) for copy in earlier[other])
            earlier.setdefault(content, []).append(file)


def _in_runs(files: Sequence[str], position: Mapping[str, int]) -> list[str]:
    """The pictures that stand in a row of `RUN` or more."""
    # Along a row, place and rank grow together: their difference is the row's own.
    rows = groupby(enumerate(files), key=lambda ranked: position[ranked[1]] - ranked[0])
    runs = ([file for _, file in row] for _, row in rows)
    return [file for run in runs if len(run) >= RUN for file in run]


# Words


def caption_words(text: str) -> list[str]:
    """Lower-case words without the punctuation around them; what is punctuation only is no word."""
    words = map(_word, unicodedata.normalize("NFC", text).casefold().split())
    return [word for word in words if word]


@lru_cache(maxsize=1 << 16)  # captions repeat their words, and Unicode's tables are slow to ask
def _word(token: str) -> str:
    silent = "".join(character for character in token if unicodedata.category(character) not in _PRONOUNCED)
    word = token.strip(silent)
    return word if any(unicodedata.category(character)[0] != "M" for character in word) else ""


# Letters, their marks, numbers, emoji and the like, currencies.
_PRONOUNCED = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "So", "Sc"})

_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def _is_unspaced(character: str) -> bool:
    """True for scripts without spaces between words: a word may be a whole sentence."""
    return unicodedata.name(character, "").startswith(_UNSPACED)


def _is_file_name(caption: str, file: str) -> bool:
    """The picture's own file name, or what can only be one."""
    text, name = caption.strip(" \"'.").casefold(), PurePath(file.casefold())
    if " " in text:  # a file may be named with its caption, and the caption is right all the same
        return text == name.name and name.suffix != ""
    return text in (name.name, name.stem) or _FILE_NAME.fullmatch(text) is not None


_FILE_NAME = re.compile(
    r"\S+\.(?:jpe?g|jfif|mpo|png|webp|gif|bmp|tiff?|heic|heif|avif|svg|dng|cr2|nef|arw)"
    # what cameras, telephones and messengers call their photos
    r"|(?:img|imag|image|_?dsc[fn]?|pict?|pxl|mvimg|sam|gopr|dji|screenshot|photo|wp|p|whatsapp)[-_]?\d{3,}\S*"
)
