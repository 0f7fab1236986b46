"""One request to the server and its answer, within limits of time and size, and what an error status means."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.parse import urlsplit

from capscore.errors import UserError
from tellapart.desk.chatter import one_line
from tellapart.desk.endpoint import Endpoint
from tellapart.desk.endpoint.answers import LONGEST_MESSAGE, error_message

_LONGEST_ANSWER = 1 << 20  # bytes
_CONNECTING = 10.0  # seconds; a server that needs more is not there

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
        """Close the connections, so that no thread keeps the program waiting."""
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
        try:
            connection.request("POST", self.path, body, self._headers())
            response = connection.getresponse()
            return response, response.read(_LONGEST_ANSWER + 1)
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        key = self.endpoint.api_key
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def without_key(self, text: str) -> str:
        """Some servers repeat the key in what they say about it."""
        key = self.endpoint.api_key
        return text.replace(key, "***") if key else text

    def _failure(self, response: http.client.HTTPResponse, answer: bytes) -> Failure | UserError:
        """What an answer with another status than 200 means."""
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
    """What a Retry-After header says: seconds, or a date."""
    if retry_after.strip().isdecimal():
        return float(retry_after.strip()[:12])
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return 0.0
