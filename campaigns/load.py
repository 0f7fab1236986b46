"""A study's server with many people at once, killed again and again: no answer is lost, and none counts twice.

People are as people are: they send an answer twice, send it again later with another choice (the back button), and try
again when the server does not answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from campaigns import forked
from campaigns.report import Row

_KILLS = 4  # people for each kill
_PATIENCE = 1800.0  # seconds, after which a person gives up


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    """count  people"""
    from importlib import import_module

    for name in ("study.studies", "tellapart.study.server", "asyncio"):  # once, and not in each process
        import_module(name)
    made = forked.run(lambda: _study(folder / "made"), folder / "log", seconds=600)
    if made.code:
        raise RuntimeError(made.text)
    for what, plant in (
        ("thanks before the answer is stored", _thanks_first),
        ("the last answer counts", _last_counts),
        ("an answer sent twice counts twice", _twice),
    ):
        row = Row("load", what, planted=True)
        _attack(folder, row, min(count, 12), 2, random.Random(seed), plant)
        yield row
    row = Row("load", f"study serve, {count} people at once")
    _attack(folder, row, count, count // _KILLS, random.Random(seed), None)
    yield row


def _study(folder: Path) -> None:
    from study import studies

    folder.mkdir()
    studies.study(folder, "choose", sets=24, per_person=6, catch=1)


def _attack(
    folder: Path, row: Row, people: int, kills: int, draw: random.Random, plant: Callable[[Path], None] | None
) -> None:
    place = folder / "study"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "made" / "study", place)
    port = forked.free_port()
    report, done = folder / "report.json", 0
    report.unlink(missing_ok=True)
    server = forked.Server(lambda: _serve(place, port, plant), folder / "server.log")
    clients = forked.start(lambda: asyncio.run(_people(port, people, draw.random(), report)), folder / "clients.log")
    try:
        while not forked.ended(clients):
            time.sleep(0.05)
            answers = _stored(place)
            if done < kills and answers >= (done + 1) * 7 * people / (kills + 1) - draw.random() * 7:
                time.sleep(draw.uniform(0, 0.05))
                if fault := server.restart():
                    row.failed.append(fault)
                done += 1
    finally:
        server.end()
        forked.end(clients)
    if not report.exists():
        row.failed.append(f"people did not come to the end: {(folder / 'clients.log').read_text()[-500:]}")
        return
    found = json.loads(report.read_text())
    row.tried = len(found["acknowledged"])
    row.failed += _wrong(place, found)
    took = sorted(found["seconds"])
    p95 = took[int(0.95 * (len(took) - 1))] * 1000 if took else 0.0
    row.note = f"{done} kills of the server; {found['again']} answers sent twice or changed; p95 {p95:.0f} ms"


def _wrong(place: Path, found: dict[str, Any]) -> list[str]:
    """What is in the database beside what people were thanked for."""
    with sqlite3.connect(place / "answers.db") as database:
        rows = database.execute("select person, trial, response from answers").fetchall()
    problems = [
        f"{key} is stored {count} times" for key, count in Counter(row[:2] for row in rows).items() if count > 1
    ]
    stored = {(person, trial): json.loads(response) for person, trial, response in rows}
    for person, trial, response in found["acknowledged"]:
        if (person, trial) not in stored:
            problems.append(f"{trial} of {person}: the answer is lost")
        elif stored[person, trial] != response:
            problems.append(f"{trial} of {person}: {stored[person, trial]} is stored, and {response} came first")
    problems += [f"{person} was not shown the code" for person in found["unfinished"]]
    return problems


def _stored(place: Path) -> int:
    try:
        with sqlite3.connect(f"file:{place / 'answers.db'}?mode=ro", uri=True, timeout=5) as database:
            return int(database.execute("select count(*) from answers").fetchone()[0])
    except sqlite3.Error:
        return 0


def _serve(place: Path, port: int, plant: Callable[[Path], None] | None) -> None:
    from tellapart.study.server import serve

    if plant is not None:
        plant(place)
    serve(place, "127.0.0.1", port)


# People


async def _people(port: int, count: int, seed: float, report: Path) -> None:
    found: dict[str, Any] = {"acknowledged": [], "seconds": [], "again": 0, "unfinished": []}
    await asyncio.gather(*(_person(port, number, random.Random(f"{seed}/{number}"), found) for number in range(count)))
    part = report.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(report)


async def _person(port: int, number: int, draw: random.Random, found: dict[str, Any]) -> None:
    until = time.monotonic() + _PATIENCE
    joining = {"consent": True, "person": f"{draw.getrandbits(128):032x}", "subject_id": f"subject-{number}"}
    state = await _persist(port, "/api/join", joining, draw, found, until)
    earlier: list[dict[str, Any]] = []
    while state is not None and "trial" in state:
        trial = state["trial"]
        body = {"person": state["person"], "trial": trial["id"], "response": draw.choice(trial["photos"]), "rt": 900}
        if draw.random() < 0.2:  # two clicks
            found["again"] += 1
            both = await asyncio.gather(*(_persist(port, "/api/answers", body, draw, found, until) for _ in range(2)))
            state = both[0]
        else:
            state = await _persist(port, "/api/answers", body, draw, found, until)
        found["acknowledged"].append([body["person"], body["trial"], body["response"]])
        if earlier and draw.random() < 0.2:  # back, and another choice
            found["again"] += 1
            old = draw.choice(earlier)
            await _persist(port, "/api/answers", {**old, "response": draw.choice(old["photos"])}, draw, found, until)
        earlier.append({**body, "photos": trial["photos"]})
    if state is None or "completion_code" not in state:
        found["unfinished"].append(number)


async def _persist(
    port: int, path: str, body: dict[str, Any], draw: random.Random, found: dict[str, Any], until: float
) -> dict[str, Any] | None:
    """Again and again, until the server answers."""
    body, wait = {name: value for name, value in body.items() if name != "photos"}, 0.05
    while time.monotonic() < until:
        started = time.monotonic()
        try:
            status, content = await asyncio.wait_for(_ask(port, path, body), 60)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            await asyncio.sleep(draw.uniform(wait, 2 * wait))
            wait = min(2 * wait, 2.0)
            continue
        if status == 200:
            found["seconds"].append(time.monotonic() - started)
            return content
        if status == 409 and "trial" in body:  # an answer before this one is lost: the page is loaded again
            path, body = f"/api/people/{body['person']}", {}
        await asyncio.sleep(draw.uniform(wait, 2 * wait))  # 503: the page asks to try again
    return None


async def _ask(port: int, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps(body).encode() if body else b""
        head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + data)
        await writer.drain()
        answer = await reader.read()
        first, _, rest = answer.partition(b"\r\n\r\n")
        length = int(first.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(rest) != length:
            raise ValueError("the answer breaks off")
        return int(first.split()[1]), json.loads(rest)
    except IndexError:
        raise ValueError("no answer") from None
    finally:
        writer.close()


# Faults that are planted


def _thanks_first(_: Path) -> None:
    """Answers are stored by the dozen."""
    from tellapart.study.folder import Answers

    later: list[Any] = []
    add, answered = Answers.add, Answers.answered

    def add_later(self: Any, *answers: Any) -> None:
        known = {(answer.person, answer.trial) for answer in later}
        later.extend(answer for answer in answers if (answer.person, answer.trial) not in known)
        if len(later) >= 12:
            waiting, later[:] = later[:], []
            add(self, *waiting)

    Answers.add = add_later  # type: ignore[method-assign]
    Answers.answered = lambda self, person: (  # type: ignore[method-assign]
        answered(self, person) | {answer.trial for answer in later if answer.person == person}
    )


def _last_counts(_: Path) -> None:
    from tellapart.study.folder import Answers, _answers

    add = Answers.add

    def replace(self: Any, *answers: Any) -> None:
        with self._engine.begin() as connection:
            for answer in answers:
                own = (_answers.c.person == answer.person) & (_answers.c.trial == answer.trial)
                connection.execute(_answers.delete().where(own))
        add(self, *answers)

    Answers.add = replace  # type: ignore[method-assign]


def _twice(place: Path) -> None:
    """The table without its keys."""
    with sqlite3.connect(place / "answers.db") as database:
        database.execute("create table if not exists answers (person, trial, response, rt, received)")
