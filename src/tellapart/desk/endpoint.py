"""Captions from a server that speaks OpenAI's chat completions: llama.cpp, Ollama, vLLM and others.

What is sent, and where: each photo as a JPEG of at most `LONGEST_SIDE` pixels a side without metadata, and the prompt,
to the host of `Endpoint.url` only.  No proxy is used, no redirect followed, and the only key that is sent is the one
that was given for this server.  Answers are untrusted text, and are treated as such.

settings (`Endpoint`) -> photos, retries, waits (`Run`) -> how many at once (`Pace`) -> one request (`Client`) -> its
answers (`read`); `KeptAnswers` has those of a run that was stopped
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import math
import os
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from PIL import Image, ImageDraw, ImageFont

from capscore import files
from capscore.errors import UserError
from capscore.printable import counted
from tellapart import paths
from tellapart.data.captions import PROMPT, Candidate, Proposed
from tellapart.data.media import clips
from tellapart.desk.chatter import caption_in, is_refusal, one_line, whole_sentences, without_thoughts
from tellapart.errors import BadPhoto

LONGEST_SIDE = 768  # pixels of a photo that is sent; models look at no more
MAX_TOKENS = 2048  # of an answer: some models think for a thousand before they write twenty


@dataclass(frozen=True)
class Question:
    """A question about one photo."""

    file: str
    beside: tuple[str, ...] = ()  # photos that are shown after it
    prompt: str = ""  # "": the endpoint's
    answers: int = 0  # 0: the endpoint's `candidates`


@dataclass
class Usage:
    """Counts of requests and tokens, as the last message of a run says."""

    requests: int = 0
    answers: int = 0
    kept: int = 0  # answers of an earlier run, which took no request
    sent: int = 0  # bytes
    counted: int = 0  # answers that say how many tokens they took
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __str__(self) -> str:
        requests = f"{counted(self.requests, 'request')} ({self.sent / 1e6:.1f} MB sent)"
        requests += f", {counted(self.kept, 'answer')} of a run that was stopped" if self.kept else ""
        if not self.counted:
            return f"{requests}; the server did not say how many tokens"
        some = f" (of {self.counted} of {self.answers} answers)" if self.counted < self.answers else ""
        return f"{requests}, {self.prompt_tokens} prompt tokens and {self.completion_tokens} completion tokens{some}"


@dataclass(frozen=True)
class Endpoint:
    """
    >>> endpoint = Endpoint("http://localhost:8080/v1", "qwen3-vl")
    >>> for answer in endpoint.answers_to([Question("a.jpg"), Question("b.jpg")]):
    ...     print(answer.file, answer.candidates or answer.error)
    """

    url: str  # http://localhost:8080, with or without /v1 or /v1/chat/completions
    model: str
    prompt: str = PROMPT
    candidates: int = 5  # captions of a photo: the likeliest (temperature 0), the others by sampling
    temperature: float = 0.8
    sheet: bool = False  # several photos go as one picture, for models that take one
    max_tokens: int = MAX_TOKENS  # of an answer, its thoughts included
    timeout: float = 60.0  # seconds of a request
    retries: int = 3  # after the first try, where another one may help
    at_once: int = 4  # requests, at most
    max_requests: int | None = None  # then the rest of the photos is left out
    api_key: str = field(default="", repr=False)
    back_off: float = 1.0  # seconds before the first retry; twice as long before each further one
    longest_wait: float = 120.0  # seconds; a server that asks for more is not asked again
    longest_loading: float = 600.0  # seconds that a server may take to load its model
    notify: Callable[[str], None] = field(
        default=lambda _: None, repr=False, compare=False
    )  # waits, and what it was in all
    kept: KeptAnswers | None = field(default=None, repr=False, compare=False)  # none: a run that is stopped loses them

    def __post_init__(self) -> None:
        if _is_local(self.url):
            object.__setattr__(self, "url", f"http://{self.url}")
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
        if not self.prompt.strip():
            raise UserError("the prompt must not be empty.")
        if re.search(r"[^!-~]", self.api_key):  # the key itself is never shown
            raise UserError("the API key must be in ASCII, without spaces or line breaks.")

    @property
    def identity(self) -> str:
        """Settings that captions depend on."""
        return f"{self.url} {self.model} {self.prompt} {self.candidates} {self.temperature}"

    def answers_to(self, questions: Iterable[Question]) -> Iterator[Proposed]:
        """Captions for each question, in order.  A photo without any has an `error`.

        What would go wrong with every photo is a `UserError`: no such server, path or model, a key that is not valid.
        """
        with self.session() as ask:
            yield from ask(questions)

    @contextmanager
    def session(self) -> Iterator[Callable[[Iterable[Question]], Iterator[Proposed]]]:
        """`answers_to`, for several calls that count as one run: a message at its end says what all of them took."""
        with closing(Run(self)) as run:
            yield run.answers_to


def _is_local(url: str) -> bool:
    """True of localhost:8080 or 192.168.0.2:8080, without http://; a name of another host needs it."""
    with suppress(ValueError):  # a name, or no URL
        host = "" if "://" in url else urlsplit(f"//{url}").hostname or ""
        return host == "localhost" or bool(host and ip_address(host))
    return False


# Several photos as one picture

SHEET_PROMPT = "The picture shows several photos, each below its number; photo 1 is the first. "
_CELL, _LABEL = 384, 32  # pixels of a photo's longest side, and of the line with its number


def contact_sheet(photos: Sequence[Image.Image]) -> Image.Image:
    """Row by row from the top left; numbers from 1."""
    across = math.ceil(math.sqrt(len(photos)))
    down = math.ceil(len(photos) / across)
    sheet = Image.new("RGB", (across * _CELL, down * (_CELL + _LABEL)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, photo in enumerate(photos):
        left, top = number % across * _CELL, number // across * (_CELL + _LABEL)
        small = photo.copy()
        small.thumbnail((_CELL, _CELL), Image.Resampling.BICUBIC)
        pen.text((left + 4, top + 4), str(number + 1), fill="black", font=ImageFont.load_default(_LABEL - 8))
        sheet.paste(small, (left, top + _LABEL))
    return sheet


# The answers of a chat completion

LONGEST_MESSAGE = 200  # characters of what a server says about an error
NO_TEXT = "the server answered with no text"
_STREAM = re.compile(rb"\s*(?:data|event|id|retry)?:")  # server-sent events
_LARGEST_COUNT = 10**9  # tokens; what claims more is not counted


Kind = Literal["unreachable", "slow", "busy", "broken", "loading", "refused", "rubbish", "useless", "ended"]


class Failure(Exception):
    """Why a request, and with it a photo, has no answer.

    unreachable, busy, broken, loading   may pass: another try may help
    slow                         no answer in time
    refused                      the server does not want this request
    rubbish                      an answer that is no chat completion
    useless                      an answer without a caption
    ended                        no further request is made in this run
    """

    def __init__(self, kind: Kind, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.kind, self.reason = kind, reason
        self.wait = wait  # seconds that the server asks for before another try


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
            raise Failure("useless", f'the model refused to caption it ("{words}")')
        caption = caption_in(self.text)
        # Of a text that was cut, finished sentences will do; and all of the caption, where it was cut only after that.
        if self.is_cut and self.text.rstrip().endswith(caption):
            caption = whole_sentences(caption)
        if caption:
            return caption
        if self.is_cut:
            thinking = ", while the model was still thinking" if self.has_thoughts else ""
            reason = f"the answer was cut after {max_tokens} tokens{thinking}, before a caption was complete; "
            raise Failure("useless", f"{reason}--max-tokens allows more")
        if self.is_filtered:
            raise Failure("useless", "the server's content filter held the answer back")
        raise Failure("useless", NO_TEXT)


def read(data: bytes) -> tuple[list[Answer], tuple[int, int] | None]:
    """The answers of a chat completion, or a `Failure`; tokens of prompt and answers, where the server counts them."""
    content = _json(data)
    if content is None:
        is_stream = _STREAM.match(data) is not None
        raise Failure("rubbish", "the server streams its answer" if is_stream else "the server's answer is not JSON")
    choices = content.get("choices") if isinstance(content, dict) else None
    if not isinstance(choices, list) or not choices:
        message = error_message(data)
        raise Failure("rubbish", "the server's answer has no choices" + (f" ({message})" if message else ""))
    return [_answer(choice) for choice in choices], _tokens(content.get("usage"))


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
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = " ".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _tokens(usage: Any) -> tuple[int, int] | None:
    counts = [usage.get(key) if isinstance(usage, dict) else None for key in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (count if type(count) is int and 0 <= count <= _LARGEST_COUNT else None for count in counts)
    return None if prompt is None and completion is None else (prompt or 0, completion or 0)


def error_message(answer: bytes) -> str:
    """A server's words about an error: {"error": {"message"}}, {"error"}, {"message"}, {"detail"} or plain text."""
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


# Answers of a run that was stopped

_OLDEST = 30 * 86400.0  # seconds
_MOST = 1 << 28  # bytes of all answers


class KeptAnswers:
    """Answers that are not yet in a file of captions: a run that is stopped need not ask, and pay, again.

    They are in the user's cache, a file each, named by a hash of all that was asked: the server, the model, the
    prompt, the pictures and the settings.  An answer is there as soon as it has come, and gone as soon as the photo's
    caption is saved.
    """

    def __init__(self, server: str, notify: Callable[[str], None]):
        """server  its URL"""
        self._server, self._notify = server, notify
        self._of_files: dict[str, set[Path]] = {}  # what this run has used for each photo
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._is_open = False

    def get(self, file: str, request: bytes) -> bytes | None:
        """The answer that an earlier run had."""
        path = self._path(file, request)
        try:
            return path.read_bytes() if path is not None and files.is_file(path) else None
        except OSError as error:
            self._give_up(error)
            return None

    def put(self, file: str, request: bytes, answer: bytes) -> None:
        path = self._path(file, request)
        try:
            if path is not None:
                files.replace(path, answer)
        except (OSError, UserError) as error:
            self._give_up(error)

    def forget(self, photos: Iterable[str]) -> None:
        """The captions of these photos are saved."""
        with self._lock:
            used = [path for photo in photos for path in self._of_files.pop(photo, ())]
        for path in used:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _path(self, file: str, request: bytes) -> Path | None:
        """The file of an answer; none: it is not kept."""
        with self._lock:
            if not self._is_open:
                self._is_open = True
                self._open()
            if self._folder is None:
                return None
            path = self._folder / hashlib.sha256(self._server.encode() + b"\0" + request).hexdigest()
            self._of_files.setdefault(file, set()).add(path)
            return path

    def _open(self) -> None:
        root = paths.cache()
        if root is None:
            return
        self._folder = root / "answers"
        try:
            files.refuse_link(self._folder)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in photos is nobody else's business
            kept = list[tuple[os.stat_result, Path]]()
            for path in self._folder.iterdir():
                with suppress(FileNotFoundError):  # another run has just saved its caption
                    kept.append((path.stat(), path))
            total = 0
            for status, path in sorted(kept, key=lambda entry: entry[0].st_mtime, reverse=True):
                total += status.st_size
                if total > _MOST or status.st_mtime < time.time() - _OLDEST:
                    path.unlink(missing_ok=True)
        except (OSError, UserError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """A cache that is full, damaged or not ours stops no run."""
        if self._folder is not None:
            self._notify(f"{self._folder}: answers are not kept for the case that this run is stopped ({error})")
        self._folder = None


# One request

_LONGEST_ANSWER = 1 << 20  # bytes
_CONNECTING = 10.0  # seconds; a server that needs more is not there


class Client:
    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        parts = urlsplit(endpoint.url)
        self.host = str(parts.hostname)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.tls else 80)
        path = parts.path.rstrip("/") or "/v1"
        self.path = path if path.endswith("/chat/completions") else f"{path}/chat/completions"
        self.stopped = threading.Event()
        self.open: set[socket.socket] = set()

    def stop(self) -> None:
        """Hang up, so that no thread keeps the program waiting."""
        self.stopped.set()
        for line in list(self.open):
            _hang_up(line)

    def post(self, body: bytes) -> bytes:
        """The body of an answer with status 200."""
        try:
            raw = socket.create_connection((self.host, self.port), min(_CONNECTING, self.endpoint.timeout))
        except (OSError, ValueError) as error:
            raise Failure("unreachable", f"the server cannot be reached ({_reason(error)})") from None
        raw.settimeout(None)
        line = raw.dup()  # closes the connection in any case: encryption takes `raw` over
        is_late = threading.Event()

        def ring() -> None:
            is_late.set()
            _hang_up(line)

        # A socket's own timeout restarts with every byte: a server that drips would never reach it.
        alarm = threading.Timer(self.endpoint.timeout, ring)
        alarm.daemon = True
        self.open.add(line)
        alarm.start()
        try:
            if self.stopped.is_set():
                _hang_up(line)
            response, answer = self._exchange(raw, body)
            if is_late.is_set() or (response.length and len(answer) <= _LONGEST_ANSWER):
                raise http.client.IncompleteRead(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if is_late.is_set():
                reason = f"the server took longer than {self.endpoint.timeout:g} s; --timeout gives it more"
                raise Failure("slow", reason) from None
            raise Failure("unreachable", f"the server broke the connection off ({_reason(error)})") from None
        finally:
            alarm.cancel()
            self.open.discard(line)
            line.close()
            raw.close()
        if response.status != 200:
            raise self._failure(response, answer)
        if len(answer) > _LONGEST_ANSWER:
            raise Failure("rubbish", f"the server's answer has more than {_LONGEST_ANSWER >> 20} MB")
        return answer

    def _exchange(self, raw: socket.socket, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind(self.host, self.port)
        connection.sock = self.tls.wrap_socket(raw, server_hostname=self.host) if self.tls else raw
        key = self.endpoint.api_key
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        with closing(connection):
            connection.request("POST", self.path, body, headers)
            response = connection.getresponse()
            return response, response.read(_LONGEST_ANSWER + 1)

    def without_key(self, text: str) -> str:
        """Some servers repeat the key in what they say about it."""
        key = self.endpoint.api_key
        return text.replace(key, "***") if key else text

    def _failure(self, response: http.client.HTTPResponse, answer: bytes) -> Failure | UserError:
        """The error that an answer with another status than 200 means."""
        status = response.status
        message = error_message(answer) or one_line(response.reason)[:LONGEST_MESSAGE]
        reason = self.without_key(f"the server answers {status}" + (f" ({message})" if message else ""))
        if 300 <= status < 400:
            place = self.without_key(one_line(response.headers.get("Location", ""))[:LONGEST_MESSAGE])
            return UserError(f"{self.endpoint.url}: {reason} and points to {place!r}; redirects are not followed.")
        if status == 401 and not self.endpoint.api_key:
            reason += "; no key was sent: put it into TELLAPART_API_KEY, or name its variable with --api-key-env"
        if status in (401, 403, 404):
            return UserError(f"{self.endpoint.url}: {reason}.")
        if status == 503 and _IS_LOADING.search(message):
            return Failure("loading", reason)
        if status in (408, 429) or status >= 500:
            kind: Kind = "busy" if status in (408, 429, 503) else "broken"
            return Failure(kind, reason, wait=_seconds(response.headers.get("Retry-After", "")))
        if status == 400 and _IS_TOO_LONG.search(message):
            reason += f"; it was asked for up to {self.endpoint.max_tokens} tokens, --max-tokens asks for fewer"
        return Failure("refused", reason)


_IS_LOADING = re.compile(r"\b(?:loading|starting|warming|initiali[sz]ing|not ready)\b", re.IGNORECASE)
_IS_TOO_LONG = re.compile(r"max_(?:completion_)?tokens|context (?:length|size|window)", re.IGNORECASE)


def _hang_up(line: socket.socket) -> None:
    """End what another thread does with the connection."""
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)[:LONGEST_MESSAGE]


def _seconds(retry_after: str) -> float:
    """Seconds of a Retry-After header, which has seconds or a date."""
    if retry_after.strip().isdecimal():
        return float(retry_after.strip()[:12])
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return 0.0


# A run over photos

_SILENT = 2.0  # seconds; a wait as long as that is told, with its reason
_SAMPLE = 4  # answers in time, after which one request more is tried
# How many photos may fail in a row for the same reason: then all would.  It may lie in photos that a server refuses.
_IN_A_ROW = {"unreachable": 3, "slow": 3, "broken": 3, "rubbish": 3, "busy": 10, "refused": 10}
_SLOWEST_POLL = 10.0  # seconds between two looks at a server that loads its model
_STILL_LOADING = 60.0  # seconds between two messages about it
_FOR_EVERY_PHOTO = ("unreachable", "refused", "loading", "ended")  # what the first photo meets, all would


class Pace:
    """As many requests at a time as a server answers in time.

    Many servers (llama.cpp, Ollama) work on one request at a time.  Asked four at once, they let three wait, and a slow
    one makes them run out of time though it did nothing wrong.  So it begins with one, and one more is tried while
    answers would be in time even if each had to wait for another.  A server that is late or says that it is busy gets
    one at a time, and never again as many as then.
    """

    def __init__(self, most: int, timeout: float):
        self.level, self.in_flight = 1, 0
        self._most, self._timeout, self._in_time = most, timeout, 0
        self._changed = threading.Condition()
        self._is_stopped = False

    def enter(self) -> int:
        """Waits for a free place; returns how many there are."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self.in_flight < self.level)
            self.in_flight += 1
            return self.level

    def leave(self) -> None:
        with self._changed:
            self.in_flight -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wakes all who wait."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def answered(self, level: int, seconds: float) -> None:
        """A request that began at this level took so long."""
        with self._changed:
            if level == self.level:
                self._in_time = self._in_time + 1 if 2 * seconds <= self._timeout else 0
                if self._in_time >= _SAMPLE and self.level < self._most:
                    self.level, self._in_time = self.level + 1, 0
                    self._changed.notify_all()

    def overloaded(self, level: int) -> None:
        """The server was late with a request of this level, or answered that it is busy."""
        with self._changed:
            if level > 1:  # or the others were not to blame
                self._most = min(self._most, level - 1)
            self.level, self._in_time = 1, 0


class Run:
    """The requests of one run: what is asked of each photo, tried again, waited for, counted and ended."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint, self.client, self.usage = endpoint, Client(endpoint), Usage()
        self.pace = Pace(endpoint.at_once, endpoint.timeout)
        self.stopped = self.client.stopped
        self._pool = ThreadPoolExecutor(max_workers=endpoint.at_once)
        self._lock = threading.Lock()
        self._has_captions = self._is_wrong_request = False
        self._knows_n = True  # until the server shows that it does not
        self._is_down = self._is_slow = False  # the last request failed for good: the next are not tried as often
        self._same, self._in_a_row = "", 0  # why photos failed since the last answer, and how many
        self._ended = ""  # why no further photo is sent
        self._not_before = 0.0  # when the next request may be made: a server's wish holds for all threads
        self._loading_since = self._spoke_of_loading = 0.0

    def answers_to(self, questions: Iterable[Question]) -> Iterator[Proposed]:
        waiting: deque[tuple[str, Future[Proposed | Failure]]] = deque()
        try:
            for question in questions:
                waiting.append((question.file, self._pool.submit(self.caption, question)))
                if len(waiting) > 2 * self.endpoint.at_once:  # a long input needs no more memory than a short one
                    yield self._next(*waiting.popleft())
            while waiting:
                yield self._next(*waiting.popleft())
        except UserError:
            self._is_wrong_request = not (self.usage.answers or self.usage.kept)  # which is one sentence, and no more
            raise

    def _next(self, file: str, future: Future[Proposed | Failure]) -> Proposed:
        while not future.done():  # in steps: a Ctrl-C just before a wait without end is heeded only after it
            wait([future], timeout=1)
        result = future.result()
        if isinstance(result, Failure):
            if result.kind in _FOR_EVERY_PHOTO and not self._has_captions and not self._is_over_budget:
                raise UserError(f"{self.endpoint.url}: {result.reason}.")
            may_pass = result.kind not in ("refused", "rubbish", "useless", "ended")
            return Proposed(file, error=result.reason, may_pass=may_pass)
        self._has_captions = self._has_captions or not result.error
        return result

    def close(self) -> None:
        """Ends all requests, for the consumer may stop early, or be stopped; says what they took."""
        self.client.stop()
        self.pace.stop()
        self._pool.shutdown(cancel_futures=True)
        if (self.usage.requests or self.usage.kept) and not self._is_wrong_request:
            self.endpoint.notify(f"{self.endpoint.url}: {self.usage}")

    # A photo

    def caption(self, question: Question) -> Proposed | Failure:
        if self._ended:
            return Failure("ended", self._ended)
        file = question.file
        try:
            shown = [clips.picture(name, at_least=LONGEST_SIDE) for name in (file, *question.beside)]
            sha256 = clips.sha256(file)
            if self.endpoint.sheet and question.beside:
                shown = [contact_sheet(shown)]
            pictures = list(map(_data_url, shown))
        except BadPhoto as error:
            return Proposed(file, error=error.reason)
        except MemoryError:
            return Proposed(file, error="does not fit into memory")
        try:
            captions = self._captions(question, pictures)
        except Failure as failure:
            failure.reason = self.client.without_key(failure.reason)
            self._count_failure(failure)
            return failure
        return Proposed(file, [Candidate(text) for text in captions], sha256=sha256)

    def _count_failure(self, failure: Failure) -> None:
        """Raises a `UserError` if the same goes wrong with one photo after the other."""
        with self._lock:
            self._in_a_row = self._in_a_row + 1 if failure.reason == self._same else 1
            self._same = failure.reason
            if self._in_a_row == _IN_A_ROW.get(failure.kind):
                raise UserError(f"{self.endpoint.url}: {failure.reason}, for {self._in_a_row} photos in a row.")

    def _captions(self, question: Question, pictures: list[str]) -> list[str]:
        """Captions, each once.  An unusable answer is skipped, unless all are."""
        captions, useless = dict[str, None](), Failure("useless", NO_TEXT)
        asked, wanted = 0, question.answers or self.endpoint.candidates
        while asked < wanted:
            # The first is the likeliest; a server that knows "n" gives the others in one go.
            number = wanted - asked if asked and self._knows_n else 1
            answers: list[Answer] = []
            try:
                request = self._request(question, pictures, number, asked)
                answers = self._ask(question.file, request)[:number]
            except Failure as failure:
                if number > 1 and failure.kind in ("refused", "busy", "broken"):  # some servers know "n" and refuse it
                    self._knows_n = False
                    continue
                if failure.kind not in ("useless", "rubbish"):
                    raise
                useless = failure
            if len(answers) < number:
                self._knows_n = False
            asked += max(1, len(answers))
            for answer in answers:
                try:
                    captions[answer.caption(self.endpoint.max_tokens)] = None
                except Failure as failure:
                    useless = failure
        if not captions:
            raise useless
        return list(captions)

    def _request(self, question: Question, pictures: list[str], number: int, asked: int) -> bytes:
        """For `number` captions, of which so many were asked for before."""
        start = SHEET_PROMPT if self.endpoint.sheet and question.beside else ""
        content: list[dict[str, object]] = [{"type": "text", "text": start + (question.prompt or self.endpoint.prompt)}]
        content += [{"type": "image_url", "image_url": {"url": picture}} for picture in pictures]
        request = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": self.endpoint.temperature if asked else 0.0,
            "seed": asked,  # samples differ, and are the same when the run is made again
            "max_tokens": self.endpoint.max_tokens,
            "stream": False,
        }
        return json.dumps(request | ({"n": number} if number > 1 else {})).encode("ascii")

    def _ask(self, file: str, body: bytes) -> list[Answer]:
        """The answers to a request, tried again where that may help."""
        kept, attempt = self.endpoint.kept, 0
        if kept is not None and (data := kept.get(file, body)) is not None:
            with suppress(Failure):
                answers, _ = read(data)
                with self._lock:
                    self.usage.kept += 1
                return answers
        while True:
            try:
                data, answers = self._send(body)
                if kept is not None and any(map(self._is_usable, answers)):  # others may be better next time
                    kept.put(file, body, data)
                return answers
            except Failure as failure:
                if self.stopped.is_set():
                    raise
                if failure.kind == "loading":
                    self._wait_for_model(failure)
                else:
                    self._wait_for_retry(failure, attempt)
                    attempt += 1

    def _is_usable(self, answer: Answer) -> bool:
        with suppress(Failure):
            return bool(answer.caption(self.endpoint.max_tokens))
        return False

    # A request

    def _send(self, body: bytes) -> tuple[bytes, list[Answer]]:
        level = self.pace.enter()
        try:
            while not self.stopped.is_set() and (seconds := self._not_before - time.monotonic()) > 0:
                self.stopped.wait(seconds)
            self._count(body)
            began = time.monotonic()
            try:
                data = self.client.post(body)
                answers, tokens = read(data)
            except Failure as failure:
                if failure.kind in ("slow", "busy", "broken"):
                    self.pace.overloaded(level)
                if failure.kind == "loading":  # nothing was done, and it is asked again and again
                    with self._lock:
                        self.usage.requests -= 1
                raise
            self.pace.answered(level, time.monotonic() - began)
        finally:
            self.pace.leave()
        with self._lock:
            self.usage.answers += 1
            if tokens is not None:
                self.usage.counted += 1
                self.usage.prompt_tokens += tokens[0]
                self.usage.completion_tokens += tokens[1]
        self._is_down = self._is_slow = False
        self._same, self._in_a_row = "", 0
        self._loading_since = 0.0
        return data, answers

    @property
    def _is_over_budget(self) -> bool:
        most = self.endpoint.max_requests
        return most is not None and self.usage.requests >= most

    def _count(self, body: bytes) -> None:
        with self._lock:
            if self._is_over_budget and not self._ended:
                requests = counted(self.usage.requests, "request")
                self._ended = f"left out: the run ended after {requests} (--max-requests)"
            if self._ended:
                raise Failure("ended", self._ended)
            self.usage.requests += 1
            self.usage.sent += len(body)

    # Waits

    def _wait_for_retry(self, failure: Failure, attempt: int) -> None:
        """Before another try; raises the failure if there is none."""
        endpoint = self.endpoint
        if failure.kind == "busy" and failure.wait > endpoint.longest_wait:
            asks = f"{failure.reason} and asks for a wait of {_duration(failure.wait)}"
            self._ended = f"{asks}; {_duration(endpoint.longest_wait)} is the longest that is waited for"
            raise Failure("ended", self._ended)
        if failure.kind == "slow":  # what was late once may have had to wait; what is late twice is slow
            tries = 0 if self._is_slow else min(1, endpoint.retries)
        elif failure.kind in ("unreachable", "busy", "broken"):
            tries = 0 if self._is_down else endpoint.retries
        else:
            raise failure
        if attempt >= tries:
            self._is_down = failure.kind in ("unreachable", "broken")
            self._is_slow = failure.kind == "slow"
            raise failure
        wait = 0.0 if failure.kind == "slow" else max(failure.wait, endpoint.back_off * 2**attempt)
        self._pause(min(wait, endpoint.longest_wait), failure.reason)

    def _wait_for_model(self, failure: Failure) -> None:
        """Before another look at a server that loads its model; raises the failure if it has taken too long."""
        endpoint, now = self.endpoint, time.monotonic()
        with self._lock:
            self._loading_since = self._loading_since or now
            waited = now - self._loading_since
            if waited >= endpoint.longest_loading:
                raise Failure("loading", f"{failure.reason}, for {_duration(waited)} now")
            if waited == 0 or now - self._spoke_of_loading >= _STILL_LOADING:
                self._spoke_of_loading = now
                longest = _duration(endpoint.longest_loading)
                endpoint.notify(f"{endpoint.url}: {failure.reason}; waiting for the model, {longest} at most")
        self._pause(min(max(endpoint.back_off, waited / 4), _SLOWEST_POLL), "")

    def _pause(self, seconds: float, reason: str) -> None:
        """No thread makes a request for so long."""
        with self._lock:
            until = time.monotonic() + seconds
            is_news = until > self._not_before + 1.0
            self._not_before = max(self._not_before, until)
        if reason and is_news and seconds >= _SILENT:
            reason = self.client.without_key(reason)
            self.endpoint.notify(f"{self.endpoint.url}: {reason}; waiting {_duration(seconds)}")


def _data_url(photo: Image.Image) -> str:
    photo.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BICUBIC)
    data = io.BytesIO()
    photo.save(data, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _duration(seconds: float) -> str:
    for name, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}s"
    return f"{seconds:.3g} s"
