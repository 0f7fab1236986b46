"""`tellapart pool --serve` killed while a trainer asks for scores: the same captions always get the same ones."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaigns import forked, world
from campaigns.report import Row
from campaigns.review import grow, persist
from campaigns.world import Plant

_QUESTIONS = 20  # different ones, asked again and again
_UNTIL_FOUND = 5  # kills in which a planted fault has to show


def run(place: Path, work: Path, kills: int, draw: random.Random) -> Iterator[Row]:
    """place  the world"""
    pool, data = work / "scored", place / "toy" / "captions.json"
    make = world.command("pool", data, "--retriever", place / "retriever", "--out", pool)
    made = forked.run(make, work / "log", seconds=600)
    if made.code:
        raise RuntimeError(made.text)
    photos = json.loads(data.read_text())["images"]
    captions = [caption for photo in photos for caption in photo["captions"]]
    questions = [
        {"texts": draw.sample(captions, 4), "photos": [photo["id"] for photo in draw.sample(photos, 4)]}
        for _ in range(_QUESTIONS)
    ]
    row = Row("kill", "pool --serve: scores depend on what was asked before", planted=True)
    _attack(pool, work, row, questions, _UNTIL_FOUND, draw, _remembering)
    yield row
    row = Row("kill", "pool --serve")
    _attack(pool, work, row, questions, kills, draw, None)
    yield row


def _attack(
    pool: Path,
    work: Path,
    row: Row,
    questions: list[dict[str, Any]],
    kills: int,
    draw: random.Random,
    plant: Plant | None,
) -> None:
    answers = work / "answers.jsonl"
    answers.write_bytes(b"")
    port = forked.free_port()
    serve = world.command("pool", pool, "--serve", "geg_avg", "cider_d", "--port", port, plant=plant)
    before = _contents(pool)
    server = forked.Server(serve, work / "server.log")
    trainer = forked.start(lambda: _trainer(port, questions, answers), work / "trainer.log")
    try:
        for _ in range(_QUESTIONS):  # each has been answered once before the first kill
            grow(answers, trainer)
        while row.tried < kills and not forked.ended(trainer):
            time.sleep(draw.uniform(0, 0.2))
            if fault := server.restart():
                row.failed.append(fault)
                return
            row.tried += 1
            grow(answers, trainer)
        for _ in range(_QUESTIONS):
            grow(answers, trainer)
        if forked.ended(trainer):
            row.failed.append(f"the trainer met a fault: {(work / 'trainer.log').read_text()[-300:]}")
    finally:
        server.end()
        forked.end(trainer)
    first, lines = dict[int, Any](), answers.read_bytes().split(b"\n")[:-1]
    for number, scores in map(json.loads, lines):
        if first.setdefault(number, scores) != scores:
            row.failed.append(f"question {number}: {scores} after {first[number]}")
            break
    if _contents(pool) != before:
        row.failed.append("the pool is another one than before")
    row.note = f"{len(lines)} answers"


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _trainer(port: int, questions: list[dict[str, Any]], answers: Path) -> None:
    """Asks until it is killed."""
    while True:
        for number, question in enumerate(questions):
            status, content = persist(port, "POST", "/score", question)
            if status != 200:
                print(status, content)
                return
            with answers.open("a") as file:
                file.write(json.dumps([number, content["scores"]]) + "\n")


# A fault that is planted


def _remembering() -> None:
    """Each score is a little more than the one before."""
    from tellapart.rewards.caption_reward import CaptionReward

    usual, asked = CaptionReward.score, [0]

    def more(self: Any, *given: Any) -> list[float]:
        asked[0] += 1
        return [score + asked[0] for score in usual(self, *given)]

    CaptionReward.score = more  # type: ignore[method-assign]
