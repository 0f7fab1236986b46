"""`tellapart serve` killed while people decide: no decision that was acknowledged is lost, and none is noted twice.

People try again when the server does not answer, and click twice now and then.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaigns import forked, world
from campaigns.report import Row
from campaigns.world import Plant

_PEOPLE = 3  # at once, each with photos of their own
_PATIENCE = 300.0  # seconds, in which a server has to answer
_UNTIL_FOUND = 5  # kills in which a planted fault has to show


def run(place: Path, work: Path, kills: int, draw: random.Random) -> Iterator[Row]:
    """place  the world"""
    for what, plant in (
        ("thanks before the decision is stored", _thanks_first),
        ("a decision sent twice counts twice", _twice),
    ):
        row = Row("kill", f"serve: {what}", planted=True)
        _attack(place, work, row, _UNTIL_FOUND, draw, plant)
        yield row
    row = Row("kill", "serve")
    _attack(place, work, row, kills, draw, None)
    yield row


def _attack(place: Path, work: Path, row: Row, kills: int, draw: random.Random, plant: Plant | None) -> None:
    folder, decisions, end = work / "reviewed", work / "decisions.jsonl", work / "end"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / "photos", folder)
    end.unlink(missing_ok=True)
    decisions.write_bytes(b"")
    os.environ["TELLAPART_CACHE"] = str(work / "cache")
    port = forked.free_port()
    serve = world.command("serve", folder, "--model", place / "captioner", "--port", port, plant=plant)
    seed = draw.random()
    server = forked.Server(serve, work / "server.log")
    people = forked.start(lambda: _people(port, seed, decisions, end), work / "people.log")
    try:
        while row.tried < kills and not forked.ended(people):
            grow(decisions, people)
            time.sleep(draw.uniform(0, 0.5))
            if fault := server.restart():
                row.failed.append(fault)
                return
            row.tried += 1
        grow(decisions, people)
        end.touch()  # each person comes to an end of what is under way
        until = time.monotonic() + _PATIENCE
        while not forked.ended(people) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        server.end()
        forked.end(people)
    row.failed += [f"a person met a fault: {line}" for line in (work / "people.log").read_text().splitlines()[-1:]]
    lines = decisions.read_bytes().splitlines()
    row.failed += _wrong(folder, [json.loads(line) for line in lines])
    row.note = f"{len(lines)} decisions acknowledged"


def grow(file: Path, people: int) -> None:
    """Wait until decisions are acknowledged again."""
    size, until = file.stat().st_size, time.monotonic() + _PATIENCE
    while file.stat().st_size == size and time.monotonic() < until and not forked.ended(people):
        time.sleep(0.002)


def _wrong(folder: Path, acknowledged: list[tuple[int, str, str]]) -> list[str]:
    """What is in the database beside what people were thanked for: of each photo, every decision after the other."""
    with sqlite3.connect(folder / "tellapart.db") as database:
        now = {id: json.loads(row)["caption"] for id, row in database.execute("select id, row from photos")}
        noted: dict[int, list[str]] = {id: [] for id in now}
        for id, before in database.execute("select photo, before from decisions order by id"):
            noted[id].append(json.loads(before)["caption"])
    problems = [] if acknowledged else ["nobody was thanked"]
    for id, caption in now.items():
        made = [(before, after) for photo, before, after in acknowledged if photo == id]
        stored = [*noted[id], caption]  # captions one after the other
        thanked = [made[0][0], *(after for _, after in made)] if made else [caption]
        if stored != thanked:
            lost, again = len(set(thanked) - set(stored)), len(stored) - len(set(stored))
            problems.append(f"photo {id}: of {len(made)} decisions {lost} are lost and {again} noted twice")
    return problems


# People


def _people(port: int, seed: float, decisions: Path, end: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        _, state = persist(port, "GET", "/api/jobs/1")
        if state["state"] in ("done", "failed") or time.monotonic() > until:
            break
        time.sleep(0.05)
    _, listing = persist(port, "GET", "/api/photos")
    writing, threads = threading.Lock(), []
    for number in range(_PEOPLE):
        own = listing["photos"][number::_PEOPLE]
        given = (port, own, random.Random(f"{seed}/{number}"), decisions, writing, end)
        threads.append(threading.Thread(target=_person, args=given))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _person(
    port: int, photos: list[dict[str, Any]], draw: random.Random, decisions: Path, writing: threading.Lock, end: Path
) -> None:
    count = 0
    while not end.exists():
        place, count = draw.randrange(len(photos)), count + 1
        photo, caption = photos[place], f"a red bus number {count}"
        body = {"version": photo["version"], "review": "edited", "caption": caption}
        for _ in range(2 if draw.random() < 0.2 else 1):  # two clicks
            status, answer = persist(port, "PATCH", f"/api/photos/{photo['id']}", body)
            if status != 200 or answer["photo"]["caption"] != caption:
                print(f"{status}: {answer}")
                return
        line = json.dumps([photo["id"], photo["caption"], caption]) + "\n"
        with writing, decisions.open("a") as file:
            file.write(line)
        photos[place] = answer["photo"]


def persist(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Again and again, until the server answers."""
    until = time.monotonic() + _PATIENCE
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = json.loads(answer.read())
            if answer.status != 503:  # the page asks to try again
                return answer.status, content
        except (OSError, http.client.HTTPException, ValueError):
            if time.monotonic() > until:
                raise
        finally:
            connection.close()
        time.sleep(0.02)


# Faults that are planted


def _thanks_first() -> None:
    """Decisions are stored by the half dozen."""
    from tellapart.desk.serve.database import Photos, decided

    later, usual = list[tuple[Any, ...]](), Photos.decide

    def decide_later(self: Any, id: int, version: str, *what: Any) -> tuple[Any, int]:
        photo = self._known(id)
        later.append((id, *what))
        if len(later) >= 6:
            waiting, later[:] = later[:], []
            for one, *decision in waiting:
                usual(self, one, self._known(one).version, *decision)
        return replace(photo, row=decided(photo.row, *what)), len(later)

    Photos.decide = decide_later  # type: ignore[method-assign]


def _twice() -> None:
    """What is sent again is another decision."""
    from tellapart.desk.serve import database

    usual, decided = database.Photos.decide, database.decided
    database.decided = lambda *given: decided(*given) | {"made": secrets.token_hex(4)}

    def decide_again(self: Any, id: int, version: str, *what: Any) -> tuple[Any, int]:
        return usual(self, id, self._known(id).version, *what)

    database.Photos.decide = decide_again  # type: ignore[method-assign]
