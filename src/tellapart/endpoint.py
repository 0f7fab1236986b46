"""Captions from a server that speaks OpenAI's chat completions: llama.cpp, Ollama, vLLM and others.

The server is one on this machine or network: no proxy is used, and no redirect followed.  Photos go there as small
JPEGs without metadata.  What comes back is anybody's text, and is treated as such.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from PIL import Image

from tellapart.data import photos
from tellapart.data.examples import clean
from tellapart.errors import BadPhoto, UserError

PROMPT = "Write a caption for this photo: one plain sentence that says what can be seen. Answer with the caption only."

_LONGEST_SIDE = 768  # pixels of a photo that is sent; models look at no more
_LONGEST_ANSWER = 1 << 20  # bytes
_LONGEST_CAPTION = 300  # characters
_LONGEST_MESSAGE = 200  # characters of what a server says about an error
_LONGEST_WAIT = 120.0  # seconds between two tries, whatever the server asks for
_CONNECTING = 10.0  # seconds; a server that needs more is not there
_MOST_TOKENS = 256  # of an answer


@dataclass(frozen=True)
class Spoken:
    """What a server said of one photo, or why it said nothing."""

    file: str
    captions: list[str] = field(default_factory=list)  # the likeliest first, then samples, each once
    error: str = ""
    sha256: str = ""  # of the photo's bytes


@dataclass(frozen=True)
class Endpoint:
    url: str  # http://localhost:8080, with or without /v1 or /v1/chat/completions
    model: str
    prompt: str = PROMPT
    candidates: int = 5  # captions of a photo: the likeliest (temperature 0), the others by sampling
    temperature: float = 0.8
    timeout: float = 60.0  # seconds of a request
    retries: int = 3  # after the first try, where another one may help
    at_once: int = 4  # requests
    api_key: str = field(default="", repr=False)
    back_off: float = 1.0  # seconds before the first retry; twice as long before each further one

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, a bracket too many
            is_web = False
        if not is_web:
            raise UserError(f"{self.url!r}: the server's URL must look like http://localhost:8080/v1.")
        if parts.username is not None or parts.query or parts.fragment:
            raise UserError("the server's URL must have no user name, '?' or '#' in it.")
        if re.search(r"[^!-~]", self.url):
            raise UserError(f"{self.url!r}: the server's URL must be in ASCII, without spaces.")
        if not self.model:
            raise UserError("the server's model must be named.")
        if re.search(r"[^!-~]", self.api_key):  # the key itself is never shown
            raise UserError("the API key must be in ASCII, without spaces or line breaks.")

    def candidates_of(self, files: Iterable[str]) -> Iterator[Spoken]:
        """Captions of each photo, in order.  A photo without any has an `error`, and the others go on.

        What would go wrong with every photo is a `UserError`: no such server, path or model, a key that is not valid.
        """
        run = _Run(self)
        waiting: deque[tuple[str, Future[Spoken | _Failure]]] = deque()
        has_spoken = False

        def next_one() -> Spoken:
            nonlocal has_spoken
            file, future = waiting.popleft()
            outcome = future.result()
            if isinstance(outcome, _Failure):
                if outcome.kind in ("unreachable", "refused") and not has_spoken:  # then no photo will fare better
                    raise UserError(f"{self.url}: {outcome.reason}.")
                return Spoken(file, error=outcome.reason)
            has_spoken = has_spoken or not outcome.error
            return outcome

        pool = ThreadPoolExecutor(max_workers=self.at_once)
        try:
            for file in files:
                waiting.append((file, pool.submit(run.caption, file)))
                if len(waiting) > 2 * self.at_once:  # a long input needs no more memory than a short one
                    yield next_one()
            while waiting:
                yield next_one()
        finally:  # the consumer may stop early, or be stopped
            run.stop()
            pool.shutdown(cancel_futures=True)


class _Failure(Exception):
    """Why a request, and with it a photo, has no answer."""

    def __init__(
        self, kind: Literal["unreachable", "slow", "busy", "refused", "rubbish"], reason: str, wait: float = 0.0
    ):
        super().__init__(reason)
        self.kind, self.reason = kind, reason
        self.wait = wait  # seconds that the server asks for before another try

    @property
    def may_pass(self) -> bool:
        return self.kind in ("unreachable", "slow", "busy")


class _Run:
    """The requests of one `candidates_of`, which are made by several threads."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        parts = urlsplit(endpoint.url)
        self.is_secure, self.host = parts.scheme == "https", str(parts.hostname)
        self.port = parts.port or (443 if self.is_secure else 80)
        path = parts.path.rstrip("/") or "/v1"
        self.path = path if path.endswith("/chat/completions") else f"{path}/chat/completions"
        self.several_at_once = True  # until the server shows that it does not know "n"
        self.is_down = False  # the last request found no server: the next photos do not wait for it as long
        self.stopped = threading.Event()
        self.open: set[socket.socket] = set()

    def stop(self) -> None:
        """Hang up: the threads must not keep anybody waiting."""
        self.stopped.set()
        for connection in list(self.open):
            _hang_up(connection)

    # A photo

    def caption(self, file: str) -> Spoken | _Failure:
        try:
            data = photos.read_bytes(file)
            picture = _data_url(photos.decode(data, file, at_least=_LONGEST_SIDE))
        except BadPhoto as error:
            return Spoken(file, error=error.reason)
        try:
            captions = self._candidates(picture)
        except _Failure as failure:
            failure.reason = self._without_key(failure.reason)
            return failure
        return Spoken(file, captions, sha256=hashlib.sha256(data).hexdigest())

    def _candidates(self, picture: str) -> list[str]:
        """Captions, each once.  An answer that is of no use is passed over unless all are."""
        found, useless = [], _Failure("rubbish", "the server answered with no text")
        asked = 0
        while asked < self.endpoint.candidates:
            # The first is the likeliest; a server that knows "n" gives the others in one go.
            number = self.endpoint.candidates - asked if asked and self.several_at_once else 1
            answers: list[str] = []
            try:
                answers = self._ask(
                    picture, number, temperature=self.endpoint.temperature if asked else 0.0, seed=asked
                )
            except _Failure as failure:
                if number > 1 and failure.kind in ("refused", "busy"):  # some servers know "n" and refuse it
                    self.several_at_once = False
                    continue
                if failure.kind != "rubbish":
                    raise
                useless = failure
            if len(answers) < number:
                self.several_at_once = False
            asked += max(1, len(answers))
            found += [caption for caption in map(caption_in, answers) if caption]
        if not found:
            raise useless
        return list(dict.fromkeys(found))

    def _ask(self, picture: str, number: int, *, temperature: float, seed: int) -> list[str]:
        """The texts of an answer, tried again where that may help."""
        question = [
            {"type": "text", "text": self.endpoint.prompt},
            {"type": "image_url", "image_url": {"url": picture}},
        ]
        request = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": temperature,
            "seed": seed,  # samples differ, and are the same when the run is made again
            "max_tokens": _MOST_TOKENS,
            "stream": False,
        }
        body = json.dumps(request | ({"n": number} if number > 1 else {})).encode("ascii")
        retries = 0 if self.is_down else self.endpoint.retries
        attempt = 0
        while True:
            try:
                answer = self._post(body)
                self.is_down = False
                return _texts(answer)[:number]
            except _Failure as failure:
                is_last = attempt == retries
                self.is_down = is_last and failure.kind == "unreachable"
                if is_last or not failure.may_pass or self.stopped.is_set():
                    raise
                self.stopped.wait(min(max(failure.wait, self.endpoint.back_off * 2**attempt), _LONGEST_WAIT))
                attempt += 1

    # A request

    def _post(self, body: bytes) -> bytes:
        """The body of an answer with status 200."""
        endpoint, is_late = self.endpoint, threading.Event()
        kind = http.client.HTTPSConnection if self.is_secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=min(_CONNECTING, endpoint.timeout))
        try:
            connection.connect()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _Failure("unreachable", f"the server cannot be reached ({_reason(error)})") from None
        line: socket.socket = connection.sock
        line.settimeout(None)

        def ring() -> None:
            is_late.set()
            _hang_up(line)

        # A socket's own time limit starts anew with every byte: a server that drips would never meet it.
        alarm = threading.Timer(endpoint.timeout, ring)
        alarm.daemon = True
        self.open.add(line)
        alarm.start()
        try:
            if self.stopped.is_set():
                _hang_up(line)
            connection.request("POST", self.path, body, self._headers())
            response = connection.getresponse()
            answer = response.read(_LONGEST_ANSWER + 1)
            if is_late.is_set() or (response.length and len(answer) <= _LONGEST_ANSWER):
                raise http.client.IncompleteRead(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if is_late.is_set():
                raise _Failure("slow", f"the server took longer than {endpoint.timeout:g} s") from None
            raise _Failure("unreachable", f"the server broke the connection off ({_reason(error)})") from None
        finally:
            alarm.cancel()
            self.open.discard(line)
            connection.close()
            line.close()
        if response.status == 200:
            if len(answer) > _LONGEST_ANSWER:
                raise _Failure("rubbish", f"the server's answer has more than {_LONGEST_ANSWER >> 20} MB")
            return answer
        raise self._refusal(response, answer)

    def _headers(self) -> dict[str, str]:
        key = self.endpoint.api_key
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def _without_key(self, text: str) -> str:
        """Some servers repeat the key in what they say about it."""
        key = self.endpoint.api_key
        return text.replace(key, "***") if key else text

    def _refusal(self, response: http.client.HTTPResponse, answer: bytes) -> _Failure | UserError:
        """What an answer with another status than 200 means."""
        status = response.status
        said = _message(answer) or clean(response.reason)[:_LONGEST_MESSAGE]
        reason = f"the server answers {status}" + (f" ({said})" if said else "")
        if 300 <= status < 400:
            place = clean(response.headers.get("Location", ""))[:_LONGEST_MESSAGE]
            elsewhere = self._without_key(f"{reason} and points to {place!r}; redirects are not followed.")
            return UserError(f"{self.endpoint.url}: {elsewhere}")
        if status in (401, 403, 404):
            return UserError(f"{self.endpoint.url}: {self._without_key(reason)}.")
        if status in (408, 429) or status >= 500:
            return _Failure("busy", reason, wait=_seconds(response.headers.get("Retry-After", "")))
        return _Failure("refused", reason)


def _hang_up(line: socket.socket) -> None:
    """End what another thread does with the connection."""
    with suppress(OSError):
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # of an encrypted one too, without a word of farewell


def _data_url(photo: Image.Image) -> str:
    photo.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE), Image.Resampling.BICUBIC)
    data = io.BytesIO()
    photo.save(data, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _reason(error: Exception) -> str:
    return clean(getattr(error, "strerror", None) or str(error) or type(error).__name__)[:_LONGEST_MESSAGE]


def _seconds(retry_after: str) -> float:
    """What a Retry-After header says: seconds, or a date."""
    if retry_after.strip().isdecimal():
        return float(retry_after[:9])
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return 0.0


# Answers


def _texts(answer: bytes) -> list[str]:
    """What the choices of a chat completion say; "" for one that says nothing."""
    content = _json(answer)
    if content is None:
        raise _Failure("rubbish", "the server's answer is not JSON")
    choices = content.get("choices") if isinstance(content, dict) else None
    if not isinstance(choices, list) or not choices:
        said = _message(answer)
        raise _Failure("rubbish", "the server's answer has no choices" + (f" ({said})" if said else ""))
    texts = []
    for choice in choices:
        message = choice.get("message") if isinstance(choice, dict) else None
        text = message.get("content") if isinstance(message, dict) else None
        texts.append(text if isinstance(text, str) else "")
    return texts


def _message(answer: bytes) -> str:
    """What a server says of an error: {"error": {"message"}}, {"error"}, {"message"}, {"detail"} or plain text."""
    content = _json(answer)
    if isinstance(content, dict):
        said = next((content[key] for key in ("error", "message", "detail") if content.get(key)), "")
        said = said.get("message", "") if isinstance(said, dict) else said
    else:
        said = answer[: 4 * _LONGEST_MESSAGE].decode("utf-8", "replace")
    said = clean(said) if isinstance(said, str) else ""
    return "" if said.startswith("<") else said.rstrip(".")[:_LONGEST_MESSAGE]  # a page of HTML says nothing


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def caption_in(answer: str) -> str:
    """The caption in what a model answered, without what such models like to put around it; "" if there is none."""
    text = re.sub(r"<think>.*?(?:</think>|\Z)", " ", answer[:_LONGEST_ANSWER], flags=re.DOTALL)
    paragraph: list[str] = []
    for line in text.strip().splitlines():
        line = clean(line.strip().strip("`*#_ "))
        is_item = re.match(r"(?:[-*\u2022]|\d{1,2}[.)])\s", line) is not None
        if paragraph and (not line or is_item):
            break  # further paragraphs and list items are comments and other proposals
        line = _PREFIX.sub("", _ITEM.sub("", line)).strip("`*_ ")
        if line and not (line.endswith(":") and not paragraph):  # "Here is a caption:"
            paragraph.append(line)
    caption = _shortened(_unquoted(" ".join(paragraph)))
    return caption if any(character.isalnum() for character in caption) else ""


_ITEM = re.compile(r"^(?:[-*\u2022]|\d{1,2}[.)])\s+")
_PREFIX = re.compile(
    r"^(?:(?:sure|certainly|of course)\b[^:]{0,80}:|here(?:'s|\u2019s| is)\b[^:]{0,80}:"
    r"|(?:\w+ )?(?:caption|description|answer)[*_ ]*:)[*_ ]*",
    re.IGNORECASE,
)


def _unquoted(text: str) -> str:
    for left, right in ('""', "''", "\u201c\u201d", "\u2018\u2019", "\u00ab\u00bb"):
        if len(text) > 1 and text.startswith(left) and text.endswith(right) and left not in text[1:-1]:
            return text[1:-1].strip()
    return text


def _shortened(text: str) -> str:
    """At most so many characters: whole sentences if one fits, else whole words."""
    if len(text) <= _LONGEST_CAPTION:
        return text
    start = text[:_LONGEST_CAPTION]
    sentences = re.match(r".*[.!?](?=\s)", text[: _LONGEST_CAPTION + 1])
    return sentences[0] if sentences else start.rpartition(" ")[0] or start
