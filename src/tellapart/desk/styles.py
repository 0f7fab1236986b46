"""Captions as alternative text or tags, and in other languages: prompts for a server, and the form of its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from capscore.errors import UserError
from capscore.stop_words import NEVER_LAST, content
from tellapart.data.captions import PROMPT, Caption
from tellapart.data.tokenizers import split_words
from tellapart.desk.chatter import LONGEST_ALT, caption_in, whole_sentences
from tellapart.desk.contrast_prompt import CONTRAST_PROMPT
from tellapart.desk.endpoint import Question, ServerCaptions
from tellapart.desk.sources import CaptionSource
from tellapart.parallel import batched

Style = Literal["caption", "alt", "tags"]
MOST_TAGS = 10
_BATCH = 16  # captions that are translated together

PROMPTS: dict[Style, str] = {
    "caption": PROMPT,
    "alt": "Write alternative text for this photo, for people who cannot see it: one plain sentence of at most "
    f'{LONGEST_ALT} characters that says what can be seen, without "photo of" or "image of". Answer with the sentence '
    "only.",
    "tags": f"List 5 to {MOST_TAGS} tags for this photo: single words or short names of what can be seen, in lower "
    "case, on one line, separated by commas. Answer with the tags only.",
}
_TAGS_APART = (
    "The first photo is easily taken for the {count} after it. Tags of the first photo that do not tell them apart: "
    f'"{{caption}}" {{others}}List 5 to {MOST_TAGS} tags, in lower case, on one line, separated by commas, that are '
    "true of the first photo: first those that only the first one shows. Answer with the tags only."
)
CONTRAST_PROMPTS: dict[Style, str] = {
    "caption": CONTRAST_PROMPT,
    "alt": CONTRAST_PROMPT.replace("Use at most 20 words.", f"Use at most {LONGEST_ALT} characters."),
    "tags": _TAGS_APART,
}
_TRANSLATE = 'Translate this caption of the photo into {language}: "{caption}" Answer with the translation only.'


def in_language(prompt: str, language: str) -> str:
    """A prompt whose answer is in that language."""
    return f"{prompt} Write it in {checked(language)}."


def checked(language: str) -> str:
    if not re.fullmatch(r"[^\W\d_][^\W_]*(?:[ -][^\W_]+){0,4}", language) or len(language) > 40:
        raise UserError(f"--language {language!r}: name a language, such as German or pt-BR.")
    return language


def styled(source: CaptionSource, style: Style) -> CaptionSource:
    """Captions in that style, from any source."""

    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        for one in source.caption(photos):
            text = finished(one.text, style)
            yield one if one.error else replace(one, text=text, error="" if text else "no caption was generated")

    return replace(source, caption=caption, settings=f"{source.settings} style={style}")


def translated(
    source: CaptionSource, ask: Callable[[Iterable[Question]], Iterator[ServerCaptions]], language: str
) -> CaptionSource:
    """Captions that were chosen in English, in another language: retrievers read English only."""
    prompt = _TRANSLATE.replace("{language}", checked(language))

    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        known: dict[str, str] = {}  # copies of a photo share the translation too
        for batch in batched(source.caption(photos), _BATCH):
            new: dict[str, str] = {}  # caption -> the first photo that has it
            for one in batch:
                if not one.error and one.text not in known:
                    new.setdefault(one.text, one.file)
            asked = [Question(file, prompt=prompt.replace("{caption}", text), answers=1) for text, file in new.items()]
            reasons = {}
            for text, answer in zip(new, ask(asked) if asked else (), strict=True):
                if answer.captions:
                    known[text] = answer.captions[0]
                reasons[text] = answer.error
            for one in batch:
                if one.error or one.text in known:
                    yield one if one.error else replace(one, text=known[one.text])
                else:
                    yield Caption(one.file, error=reasons.get(one.text) or "no translation was generated")

    return replace(source, caption=caption, settings=f"{source.settings} language={language}")


def finished(caption: str, style: Style) -> str:
    """
    >>> finished("The image shows a dog on a beach.", "alt")
    'A dog on a beach.'
    >>> finished("a dog on the beach", "tags")
    'dog, beach'
    """
    if style == "alt":
        return _short(caption_in(caption))
    if style == "tags":
        parts = re.split(r"[,;\n]", caption) if re.search(r"[,;\n]", caption) else content(split_words(caption))
        tags = (re.sub(r"^[\W_]+|[\W_]+$", "", part).lower() for part in parts)
        return ", ".join(list(dict.fromkeys(tag for tag in tags if tag))[:MOST_TAGS])
    return caption


def _short(text: str) -> str:
    """Whole sentences if one fits, else whole words that a text can end with."""
    if len(text) <= LONGEST_ALT:
        return text
    if sentences := whole_sentences(text[: LONGEST_ALT + 1]).strip():
        return sentences[:LONGEST_ALT]
    words = text[: LONGEST_ALT + 1].rpartition(" ")[0].split() or [text[:LONGEST_ALT]]
    while len(words) > 1 and words[-1].lower() in NEVER_LAST:
        words.pop()
    return " ".join(words).rstrip(",;:")
