"""What a chat completion holds: texts, why each ended, tokens; or the server's words about an error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tellapart.desk.chatter import caption_in, is_refusal, one_line, whole_sentences, without_thoughts

LONGEST_MESSAGE = 200  # characters of what a server says about an error
_STREAM = re.compile(rb"\s*(?:data|event|id|retry)?:")  # server-sent events
_LARGEST_COUNT = 10**9  # tokens; what claims more is not counted


class Unusable(Exception):
    """An answer that no caption can be taken from, with the reason."""


@dataclass(frozen=True)
class Answer:
    """One of the choices."""

    text: str = ""
    refusal: str = ""  # some servers give it a field of its own
    is_cut: bool = False  # by the limit of tokens
    is_filtered: bool = False
    has_thoughts: bool = False  # in a field of their own, or in the text

    def caption(self, max_tokens: int) -> str:
        if self.refusal or is_refusal(self.text):
            words = one_line(self.refusal or without_thoughts(self.text))[:LONGEST_MESSAGE]
            raise Unusable(f'the model refused to caption it ("{words}")')
        caption = caption_in(self.text)
        if caption and self.is_cut:
            # Finished sentences will do, and so will a text that was cut only after the caption.
            unfinished = caption if self.text.rstrip().endswith(caption) else ""
            caption = whole_sentences(caption) if unfinished else caption
        if caption:
            return caption
        if self.is_cut:
            thinking = ", while the model was still thinking" if self.has_thoughts else ""
            raise Unusable(
                f"the answer was cut after {max_tokens} tokens{thinking}, before a caption was complete; "
                "--max-tokens allows more"
            )
        if self.is_filtered:
            raise Unusable("the server's content filter held the answer back")
        raise Unusable("the server answered with no text")


@dataclass(frozen=True)
class Tokens:
    prompt: int
    completion: int


@dataclass(frozen=True)
class Completion:
    answers: list[Answer]
    tokens: Tokens | None  # where the server counts them


def read(data: bytes) -> Completion:
    """The answers of a chat completion, or `Unusable`."""
    content = _json(data)
    if content is None:
        is_stream = _STREAM.match(data) is not None
        raise Unusable("the server streams its answer" if is_stream else "the server's answer is not JSON")
    choices = content.get("choices") if isinstance(content, dict) else None
    if not isinstance(choices, list) or not choices:
        message = error_message(data)
        raise Unusable("the server's answer has no choices" + (f" ({message})" if message else ""))
    return Completion([_answer(choice) for choice in choices], _tokens(content.get("usage")))


def _answer(choice: Any) -> Answer:
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        return Answer()
    message, reason = choice["message"], choice.get("finish_reason")
    text = _text(message.get("content"))
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    return Answer(
        text,
        refusal=_text(message.get("refusal")),
        is_cut=reason == "length",
        is_filtered=reason == "content_filter",
        has_thoughts=bool(thoughts) or without_thoughts(text) != text,
    )


def _text(content: Any) -> str:
    """A string, or the text parts of a list of parts."""
    if isinstance(content, list):
        content = " ".join(part["text"] for part in content if isinstance(part, dict) and _is_text(part.get("text")))
    return content if isinstance(content, str) else ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _tokens(usage: Any) -> Tokens | None:
    counts = [usage.get(key) if isinstance(usage, dict) else None for key in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (_count(value) for value in counts)
    return Tokens(prompt or 0, completion or 0) if prompt is not None or completion is not None else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None


def error_message(answer: bytes) -> str:
    """What a server says of an error: {"error": {"message"}}, {"error"}, {"message"}, {"detail"} or plain text."""
    content = _json(answer)
    if isinstance(content, dict):
        message = next((content[key] for key in ("error", "message", "detail") if content.get(key)), "")
        message = message.get("message", "") if isinstance(message, dict) else message
    else:
        message = answer[: 4 * LONGEST_MESSAGE].decode("utf-8", "replace")
    message = one_line(message) if isinstance(message, str) else ""
    return "" if message.startswith("<") else message.rstrip(".")[:LONGEST_MESSAGE]  # a page of HTML says nothing


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
