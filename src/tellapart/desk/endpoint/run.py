"""The requests of one run over photos: what is asked of each, tried again, waited for, counted and ended."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from PIL import Image

from capscore.errors import UserError
from capscore.printable import counted
from tellapart.data.media import clips
from tellapart.desk.endpoint import LONGEST_SIDE, Endpoint, Question, ServerCaptions, Usage
from tellapart.desk.endpoint.answers import Answer, Completion, Unusable, read
from tellapart.desk.endpoint.client import Client, Failure
from tellapart.desk.endpoint.pace import Pace
from tellapart.desk.endpoint.sheet import SHEET_PROMPT, contact_sheet
from tellapart.errors import BadPhoto

_SILENT = 2.0  # seconds; a wait as long as that is told, with its reason
# How many photos may fail in a row for the same reason: then all would.  It may lie in photos that a server refuses.
_IN_A_ROW = {"unreachable": 3, "slow": 3, "broken": 3, "rubbish": 3, "busy": 10, "refused": 10}
_SLOWEST_POLL = 10.0  # seconds between two looks at a server that loads its model
_STILL_LOADING = 60.0  # seconds between two messages about it
_FOR_EVERY_PHOTO = ("unreachable", "refused", "loading", "ended")  # what the first photo meets, all would


class Run:
    def __init__(self, endpoint: Endpoint, usage: Usage | None = None):
        self.endpoint, self.client = endpoint, Client(endpoint)
        self.is_first = usage is None or not (usage.answers or usage.kept)
        self.reports = usage is None
        self.pace = Pace(endpoint.at_once, endpoint.timeout)
        self.usage = Usage() if usage is None else usage
        self.stopped = self.client.stopped
        self._lock = threading.Lock()
        self._knows_n = True  # until the server shows that it does not
        self._is_down = self._is_slow = False  # the last request failed for good: the next are not tried as often
        self._same, self._in_a_row = "", 0  # why photos failed since the last answer, and how many
        self._ended = ""  # why no further photo is sent
        self._not_before = 0.0  # when the next request may be made: a server's wish holds for all threads
        self._loading_since = self._spoke_of_loading = 0.0

    def answers_to(self, questions: Iterable[Question]) -> Iterator[ServerCaptions]:
        waiting: deque[tuple[str, Future[ServerCaptions | Failure]]] = deque()
        has_captions, is_wrong_request = not self.is_first, False

        def next_one() -> ServerCaptions:
            nonlocal has_captions
            file, future = waiting.popleft()
            outcome = future.result()
            if isinstance(outcome, Failure):
                if outcome.kind in _FOR_EVERY_PHOTO and not has_captions and not self._is_over_budget:
                    raise UserError(f"{self.endpoint.url}: {outcome.reason}.")
                may_pass = outcome.kind not in ("refused", "rubbish", "useless", "ended")
                return ServerCaptions(file, error=outcome.reason, may_pass=may_pass)
            has_captions = has_captions or not outcome.error
            return outcome

        pool = ThreadPoolExecutor(max_workers=self.endpoint.at_once)
        try:
            for order, question in enumerate(questions):
                waiting.append((question.file, pool.submit(self.caption, question, order)))
                if len(waiting) > 2 * self.endpoint.at_once:  # a long input needs no more memory than a short one
                    yield next_one()
            while waiting:
                yield next_one()
        except UserError:
            is_wrong_request = not (self.usage.answers or self.usage.kept)  # which is one sentence, and no more
            raise
        finally:  # the consumer may stop early, or be stopped
            self.client.stop()
            self.pace.stop()
            pool.shutdown(cancel_futures=True)
            if self.reports and (self.usage.requests or self.usage.kept) and not is_wrong_request:
                self.endpoint.notify(f"{self.endpoint.url}: {self.usage}")

    # A photo

    def caption(self, question: Question, order: int) -> ServerCaptions | Failure:
        if self._ended:
            return Failure("ended", self._ended)
        file = question.file
        try:
            shown, sha256 = [_picture(file), *map(_picture, question.beside)], clips.sha256(file)
            if self.endpoint.sheet and question.beside:
                shown = [contact_sheet(shown)]
            pictures = list(map(_data_url, shown))
        except BadPhoto as error:
            return ServerCaptions(file, error=error.reason)
        except MemoryError:
            return ServerCaptions(file, error="does not fit into memory")
        try:
            captions = self._candidates(question, pictures, order)
        except Failure as failure:
            failure.reason = self.client.without_key(failure.reason)
            self._count_failure(failure)
            return failure
        return ServerCaptions(file, captions, sha256=sha256)

    def _count_failure(self, failure: Failure) -> None:
        """What goes wrong with each photo is a `UserError`."""
        with self._lock:
            self._in_a_row = self._in_a_row + 1 if failure.reason == self._same else 1
            self._same = failure.reason
            if self._in_a_row == _IN_A_ROW.get(failure.kind):
                raise UserError(f"{self.endpoint.url}: {failure.reason}, for {self._in_a_row} photos in a row.")

    def _candidates(self, question: Question, pictures: list[str], order: int) -> list[str]:
        """Captions, each once.  An unusable answer is skipped, unless all are."""
        found, useless = [], Failure("useless", "the server answered with no text")
        asked, wanted = 0, question.answers or self.endpoint.candidates
        while asked < wanted:
            # The first is the likeliest; a server that knows "n" gives the others in one go.
            number = wanted - asked if asked and self._knows_n else 1
            answers: list[Answer] = []
            try:
                request = self._request(question, pictures, number, asked)
                answers = self._ask(order, question.file, request)[:number]
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
                    found.append(answer.caption(self.endpoint.max_tokens))
                except Unusable as reason:
                    useless = Failure("useless", str(reason))
        if not found:
            raise useless
        return list(dict.fromkeys(found))

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

    def _ask(self, order: int, file: str, body: bytes) -> list[Answer]:
        """The answers to a request, tried again where that may help."""
        kept, attempt = self.endpoint.kept, 0
        if kept is not None and (answer := kept.get(file, body)) is not None:
            with suppress(Unusable):
                answers = read(answer).answers
                with self._lock:
                    self.usage.kept += 1
                return answers
        while True:
            try:
                answer, completion = self._send(order, body)
                if kept is not None and any(map(self._is_usable, completion.answers)):  # others may be better next time
                    kept.put(file, body, answer)
                return completion.answers
            except Failure as failure:
                if self.stopped.is_set():
                    raise
                if failure.kind == "loading":
                    self._wait_for_model(failure)
                else:
                    self._wait_for_retry(failure, attempt)
                    attempt += 1

    def _is_usable(self, answer: Answer) -> bool:
        try:
            return bool(answer.caption(self.endpoint.max_tokens))
        except Unusable:
            return False

    # A request

    def _send(self, order: int, body: bytes) -> tuple[bytes, Completion]:
        place = self.pace.enter(order)
        try:
            while not self.stopped.is_set() and (seconds := self._not_before - time.monotonic()) > 0:
                self.stopped.wait(seconds)
            self._count(body)
            began = time.monotonic()
            try:
                answer = self.client.post(body)
                completion = read(answer)
            except Unusable as reason:
                raise Failure("rubbish", str(reason)) from None
            except Failure as failure:
                if failure.kind in ("slow", "busy", "broken"):
                    self.pace.overloaded(place)
                if failure.kind == "loading":  # nothing was done, and it is asked again and again
                    with self._lock:
                        self.usage.requests -= 1
                raise
            self.pace.answered(place, time.monotonic() - began)
        finally:
            self.pace.leave()
        with self._lock:
            self.usage.answers += 1
            if completion.tokens is not None:
                self.usage.counted += 1
                self.usage.prompt_tokens += completion.tokens.prompt
                self.usage.completion_tokens += completion.tokens.completion
        self._is_down = self._is_slow = False
        self._same, self._in_a_row = "", 0
        self._loading_since = 0.0
        return answer, completion

    @property
    def _is_over_budget(self) -> bool:
        most = self.endpoint.max_requests
        return most is not None and self.usage.requests >= most

    def _count(self, body: bytes) -> None:
        with self._lock:
            if self._is_over_budget and not self._ended:
                self._ended = (
                    f"left out: the run ended after {counted(self.usage.requests, 'request')} (--max-requests)"
                )
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
            self.endpoint.notify(
                f"{self.endpoint.url}: {self.client.without_key(reason)}; waiting {_duration(seconds)}"
            )


def _picture(file: str) -> Image.Image:
    """A photo, or the middle frame of a clip."""
    return clips.picture(file, at_least=LONGEST_SIDE)


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
