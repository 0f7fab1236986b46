"""What is wrong with an alt text, and whether a machine may do anything about it.

What a person wrote stays.  Only what nobody can have meant as a text is replaced: a file's name, or "image".
"""

from __future__ import annotations

import re
from pathlib import PurePath
from urllib.parse import unquote

from tellapart.desk.lint import caption_words, faults

_PLACEHOLDERS = {
    *("image", "images", "img", "photo", "photos", "photograph", "picture", "pictures", "pic", "graphic", "thumbnail"),
    *("alt", "alt text", "alttext", "alternative text", "image description", "description", "placeholder", "untitled"),
    *(
        "image placeholder",
        "placeholder image",
        "default",
        "todo",
        "tbd",
        "foto",
        "bild",
        "imagen",
        "immagine",
        "null",
        "undefined",
    ),
}
_FILE_NAME = re.compile(
    r"\S+\.(?:jpe?g|jfif|mpo|png|webp|gif|bmp|tiff?|heic|heif|avif|svg|dng|cr2|nef|arw)"
    r"|(?:img|imag|image|_?dsc[fn]?|pict|pxl|mvimg|gopr|dji|screenshot|photo|whatsapp)[-_]?\d+(?:[-_]\S*)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[ _-]*(?<!\d)(?!1[5-9]\d\d|20\d\d)\d{1,4}\Z")  # but a year says something
# Only what is about the picture as a whole: "Aerial photo of" says more than that.
_CUT = re.compile(
    r"\s*(?:(?:this|it|here)(?:\s+is|['\u2019]s)\s+)?(?:(?:an?|the|this)\s+)?(?:photo(?:graph)?|image|picture|pic)\s+of\s+(?=\S)",
    re.IGNORECASE,
)


def is_filler(alt: str, source: str) -> bool:
    """Whether a text is only a file's name or a word that stands for one."""
    words = " ".join(caption_words(alt))
    if _NUMBER.sub("", words) in _PLACEHOLDERS:
        return True
    text, name = alt.strip(" \"'"), PurePath(unquote(source.partition("?")[0]))
    if text.casefold() == name.name.casefold() and name.suffix:
        return True
    is_stem = text.casefold() == name.stem.casefold() and re.search(r"_|\d{3}", text) is not None
    return " " not in text and (is_stem or _FILE_NAME.fullmatch(text) is not None)


def opening(written: str) -> int:
    """How many characters of a text are "Photo of " or the like, before what is to stay."""
    found = _CUT.match(written)
    return found.end() if found else 0


def complaints(alt: str, source: str) -> list[str]:
    """The rules of lint that a text breaks; one that is empty is another matter."""
    return faults(alt, source) if alt.strip() else ["empty"]
