"""The answers of a study in a database: SQLite beside the study, or any that SQLAlchemy reaches by URL.

An answer is on the disk when `add` returns.  The first answer to a trial stands: sent again, it changes nothing.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Column, Float, Integer, MetaData, String, Table, insert, select
from sqlalchemy.exc import IntegrityError

from tellapart.databases import Database

NAME = "answers.db"

_meta = MetaData()
_people = Table(
    "people",
    _meta,
    Column("id", String(64), primary_key=True),
    Column("session", Integer, nullable=False),
    Column("subject_id", String(128), unique=True),  # Prolific's; none for people who came another way
    Column("study_id", String(128), nullable=False, default=""),
    Column("session_id", String(128), nullable=False, default=""),
    Column("started", Float, nullable=False),
)
_answers = Table(
    "answers",
    _meta,
    Column("person", String(64), primary_key=True),
    Column("trial", String(32), primary_key=True),
    Column("response", JSON, nullable=False),
    Column("rt", Float, nullable=False),  # milliseconds from the question to the answer
    Column("received", Float, nullable=False),  # seconds since 1970
)


@dataclass(frozen=True)
class Person:
    id: str
    session: int
    subject_id: str | None = None
    study_id: str = ""
    session_id: str = ""
    started: float = 0.0


@dataclass(frozen=True)
class Answer:
    person: str
    trial: str
    response: Any
    rt: float
    received: float = 0.0


class Answers:
    def __init__(self, folder: Path, url: str | None = None):
        """url  of another database; none: SQLite in the folder"""
        self._joining = threading.Lock()
        database = Database(_meta, folder / NAME, "the answers", url)
        self._engine, self._asking = database.engine, database.asking

    def join(self, sessions: int, subject_id: str | None = None, study_id: str = "", session_id: str = "") -> Person:
        """A new person, in the session that the fewest have; somebody who comes back by a subject id is the same."""
        with self._asking(), self._joining:  # one after another, so that sessions fill evenly
            people = self.all()[0]
            taken = Counter(person.session for person in people)
            session = min(range(sessions), key=lambda number: (taken[number], number))
            new = Person(secrets.token_urlsafe(16), session, subject_id, study_id, session_id, time.time())
            try:
                if not (own := self._returned(people, subject_id)):
                    with self._engine.begin() as connection:
                        connection.execute(insert(_people).values(**new.__dict__))
            except IntegrityError:  # the same person, by a request to another server at the same time
                own = self._returned(self.all()[0], subject_id)
        return own or new

    @staticmethod
    def _returned(people: list[Person], subject_id: str | None) -> Person | None:
        return next((person for person in people if subject_id and person.subject_id == subject_id), None)

    def person(self, id: str) -> Person | None:
        with self._asking(), self._engine.connect() as connection:
            row = connection.execute(select(_people).where(_people.c.id == id)).first()
        return Person(*row) if row else None

    def answered(self, person: str) -> set[str]:
        """The trials."""
        with self._asking(), self._engine.connect() as connection:
            return set(connection.execute(select(_answers.c.trial).where(_answers.c.person == person)).scalars())

    def add(self, *answers: Answer) -> None:
        with self._asking():
            for answer in answers:
                try:
                    with self._engine.begin() as connection:
                        received = answer.received or time.time()
                        connection.execute(insert(_answers).values({**answer.__dict__, "received": received}))
                except IntegrityError:  # it is there already
                    continue

    def all(self) -> tuple[list[Person], list[Answer]]:
        """In the order in which they came."""
        with self._asking(), self._engine.connect() as connection:
            people = connection.execute(select(_people).order_by(_people.c.started, _people.c.id)).all()
            order = (_answers.c.received, _answers.c.person, _answers.c.trial)
            answers = connection.execute(select(_answers).order_by(*order)).all()
        return [Person(*row) for row in people], [Answer(*row) for row in answers]
