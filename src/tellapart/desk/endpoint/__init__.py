"""Captions from a server that speaks OpenAI's chat completions: llama.cpp, Ollama, vLLM and others.

What is sent, and where: each photo as a JPEG of at most `LONGEST_SIDE` pixels a side without metadata, and the prompt,
to the host of `Endpoint.url` only.  No proxy is used, no redirect followed, and the only key that is sent is the one
that was given for this server.  Answers are untrusted text, and are treated as such.

settings (here) -> `run`: photos, retries, waits -> `pace`: how many at once -> `client`: one request -> `answers`
`kept`: answers of a run that was stopped
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from capscore.errors import UserError
from capscore.printable import counted
from tellapart.data.captions import PROMPT

if TYPE_CHECKING:
    from tellapart.desk.endpoint.kept import KeptAnswers

LONGEST_SIDE = 768  # pixels of a photo that is sent; models look at no more
MAX_TOKENS = 2048  # of an answer: some models think for a thousand before they write twenty


def _silent(message: str) -> None:
    pass


@dataclass(frozen=True)
class ServerCaptions:
    """What a server answered for one photo, or why there is no caption."""

    file: str
    captions: list[str] = field(default_factory=list)  # the likeliest first, then samples, each once
    error: str = ""
    sha256: str = ""  # of the photo's bytes
    may_pass: bool = False  # the server gave no answer, and may give one to the next run


@dataclass(frozen=True)
class Question:
    """What is asked about one photo."""

    file: str
    beside: tuple[str, ...] = ()  # photos that are shown after it
    prompt: str = ""  # "": the endpoint's
    answers: int = 0  # 0: the endpoint's `candidates`


@dataclass
class Usage:
    """What requests took, as the last message of a run says."""

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
    >>> for row in endpoint.candidates_of(["a.jpg", "b.jpg"]):
    ...     print(row.file, row.captions or row.error)
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
    notify: Callable[[str], None] = field(default=_silent, repr=False, compare=False)  # waits, and what it was in all
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

    def candidates_of(self, files: Iterable[str]) -> Iterator[ServerCaptions]:
        """Captions of each photo, in order.  A photo without any has an `error`.

        What would go wrong with every photo is a `UserError`: no such server, path or model, a key that is not valid.
        """
        return self.answers_to(Question(file) for file in files)

    def answers_to(self, questions: Iterable[Question], usage: Usage | None = None) -> Iterator[ServerCaptions]:
        """The same for questions of their own.

        usage  of earlier requests, which this adds to; the caller reports it at the end
        """
        from tellapart.desk.endpoint.run import Run  # here, for --help reads the defaults above and nothing else

        return Run(self, usage).answers_to(questions)


def _is_local(url: str) -> bool:
    """Whether it is localhost:8080 or 192.168.0.2:8080, without http://; a name of another host needs it."""
    try:
        host = "" if "://" in url else urlsplit(f"//{url}").hostname or ""
        return host == "localhost" or bool(host and ip_address(host))
    except ValueError:  # a name, or no URL
        return False
