"""Senders that keep to nothing, at a study's server: chunks beside a length, half requests, false times, false names.

Each is made at random.  After each the server has to answer somebody else, take no more memory than its limits, and
have stored nothing that only a lie could have brought there.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from campaigns import forked, load
from campaigns.report import Row, is_wanted
from campaigns.world import Plant

_MEMORY = 100 << 20  # bytes more than before, at most
_CHUNKS = 200  # of a megabyte
_HALVES = 600  # more than there are places
_UNTIL_FOUND = 8  # senders, among which a planted fault has to show
_SECONDS = 10.0  # in which somebody else is answered


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    """count  senders of each kind"""
    from importlib import import_module

    for name in ("study.studies", "tellapart.study.server", "tellapart.study.results", "asyncio"):
        import_module(name)
    made = forked.run(lambda: load._study(folder / "made"), folder / "log", seconds=600)
    if made.code:
        raise RuntimeError(made.text)
    for name, (send, plant) in _KINDS.items():
        if not is_wanted(name, only):
            continue
        for planted in (True, False):
            row = Row("senders", f"{name}: a removed check" if planted else name, planted=planted)
            draw = random.Random(f"{seed}/{name}")
            _attack(folder, row, send, _UNTIL_FOUND if planted else count, draw, plant if planted else None)
            yield row


Sender = Callable[[int, Path, int, random.Random], str]


def _attack(folder: Path, row: Row, send: Sender, count: int, draw: random.Random, plant: Plant | None) -> None:
    place, port = folder / "study", forked.free_port()
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "made" / "study", place)
    server = forked.Server(lambda: _serve(place, port, plant), folder / "server.log")
    try:
        until = time.monotonic() + 300
        while not _is_served(port) and time.monotonic() < until:
            time.sleep(0.05)
        before = _memory(server)
        for _ in range(count):
            row.tried += 1
            fault = send(port, place, row.tried, draw)
            if not fault and not _is_served(port):
                fault = "somebody else is not answered"
            if not fault and (more := _memory(server) - before) > _MEMORY:
                fault = f"{more >> 20} MB more than before"
            if fault:
                row.failed.append(fault)
                return
    finally:
        server.end()


def _serve(place: Path, port: int, plant: Plant | None) -> None:
    from tellapart.study.server import serve

    if plant is not None:
        plant()
    serve(place, "127.0.0.1", port)


def _memory(server: forked.Server) -> int:
    """The most that the server ever had."""
    status = Path(f"/proc/{server.process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _is_served(port: int) -> bool:
    try:
        return _ask(port, "GET", "/api/study")[0] == 200
    except (OSError, ValueError, IndexError):
        return False


def _ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", port), _SECONDS) as wire:
        wire.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = b""
        while part := wire.recv(1 << 16):
            answer += part
    start, _, content = answer.partition(b"\r\n\r\n")
    return int(start.split()[1]), json.loads(content)


# Senders


def _chunks(port: int, place: Path, number: int, draw: random.Random) -> str:
    """Chunks beside a length, in any order and case."""
    headers = [
        f"Content-Length: {draw.choice([0, 5, 60_000])}",
        draw.choice(["Transfer-Encoding", "transfer-encoding"]),
    ]
    headers[1] += f": {draw.choice(['chunked', 'Chunked', ' chunked '])}"
    if draw.random() < 0.3:
        del headers[0]
    draw.shuffle(headers)
    method, path = draw.choice(["POST", "POST", "GET", "PUT"]), draw.choice(["/api/join", "/api/answers", "/nothing"])
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""]
    with socket.create_connection(("127.0.0.1", port), 60) as wire, contextlib.suppress(OSError):
        wire.sendall("\r\n".join(lines).encode())
        for _ in range(_CHUNKS):
            wire.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        wire.sendall(b"0\r\n\r\n")
        wire.recv(1)
    return ""


def _halves(port: int, place: Path, number: int, draw: random.Random) -> str:
    """More requests than there are places, each broken off somewhere."""
    body = json.dumps({"consent": True, "subject_id": f"s{number}"})
    whole = f"POST /api/join HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(_HALVES):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            with contextlib.suppress(OSError):  # others have taken its place
                wire.sendall(whole[: draw.randrange(len(whole))])
        return "" if _is_served(port) else f"{_HALVES} half requests keep somebody else out"


def _liars(port: int, place: Path, number: int, draw: random.Random) -> str:
    """Somebody answers at once and says that it took seconds; and somebody else comes by their name."""
    from tellapart.study.folder import Answers
    from tellapart.study.folder import load as load_study
    from tellapart.study.results import FLOOR, analyse

    joining = {"consent": True, "person": f"{draw.getrandbits(128):032x}", "subject_id": f"subject-{number}"}
    status, state = _ask(port, "POST", "/api/join", joining)
    if status != 200:
        return f"join: {status}"
    stolen = draw.choice([{}, {"person": None}, {"person": f"{draw.getrandbits(128):032x}"}])
    if stolen and _ask(port, "POST", "/api/join", joining | stolen)[0] == 200:
        return f"another one goes on as {joining['subject_id']}"
    study = load_study(place)
    session = next(one for one in study.sessions if one[0].id == state["trial"]["id"])
    trials = list(session)
    if draw.random() < 0.5:
        draw.shuffle(trials)
    for trial in trials:
        body = {"person": joining["person"], "trial": trial.id, "rt": draw.uniform(FLOOR, 1e9)}
        _ask(port, "POST", "/api/answers", body | {"response": draw.choice(trial.photos)})
    people, answers = Answers(place).all()
    mine = [one for one in answers if one.person == joining["person"]]
    given = [one.trial for one in sorted(mine, key=lambda one: one.received)]
    if given != [trial.id for trial in session][: len(given)]:
        return f"answers in another order than that of the questions: {given}"
    rows = analyse(study, people, answers, floor=0, catch=0).rows
    times = [row.rt for row in rows if row.person.id == joining["person"]]
    (started,) = [one.started for one in people if one.id == joining["person"]]
    real = 1000 * (max(one.received for one in mine) - started)
    return f"answers within {real:.0f} ms count as {sum(times):.0f} ms" if sum(times) > real + 1 else ""


# Faults that are planted


def _believing_lengths() -> None:
    from tellapart import web

    web._unbounded = lambda request, most: None
    web.MOST_BYTES = web._MOST_HELD = 1 << 40


def _patient() -> None:
    from tellapart import web

    web._Connection.waiting = 0.0  # type: ignore[assignment,method-assign]
    web._PATIENCE, web._AT_ONCE = 1e9, 100  # fewer places than half requests, as files are limited


def _believing_people() -> None:
    from tellapart.study import folder as module
    from tellapart.study.folder import Answers

    join = Answers.join

    def join_by_name(self: Any, sessions: int, subject_id: str | None = None, *more: Any) -> Any:
        try:
            return join(self, sessions, subject_id, *more)
        except module.Taken:
            return next(person for person in self.all()[0] if person.subject_id == subject_id)

    Answers.join = join_by_name  # type: ignore[method-assign,assignment]


_KINDS: dict[str, tuple[Sender, Plant]] = {
    "chunked with a length": (_chunks, _believing_lengths),
    "half requests": (_halves, _patient),
    "senders that lie about time and identity": (_liars, _believing_people),
}
