"""The answers of a study in a database: SQLite beside the study, or any that SQLAlchemy reaches by URL.

An answer is on the disk when `add` returns.  The first answer to a trial stands: sent again, it changes nothing.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Column, Float, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.exc import IntegrityError

from capscore.errors import UserError
from tellapart.databases import Database

NAME = "answers.db"

_meta = MetaData()
_people = Table(
    "people",
    _meta,
    Column("id", String(64), primary_key=True),  # known to the person's browser alone
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


class Taken(UserError):
    """Somebody else of this subject id takes part."""


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
    received: float = 0.0  # 0: it is not known


class Answers:
    def __init__(self, folder: Path, url: str | None = None):
        """url  of another database; none: SQLite in the folder"""
        self._joining = threading.Lock()
        database = Database(_meta, folder / NAME, "the answers", url)
        self._engine, self._asking = database.engine, database.asking

    def join(
        self,
        sessions: int,
        subject_id: str | None = None,
        study_id: str = "",
        session_id: str = "",
        id: str | None = None,
    ) -> Person:
        """A new person, in the session that the fewest have.

        id  that the person's browser made, and nobody else knows; who comes back with it is the same person
        """
        person = Person(id or secrets.token_urlsafe(16), 0, subject_id, study_id, session_id, time.time())
        with self._asking(), self._joining:  # one after another, so that sessions fill evenly
            try:
                with self._engine.begin() as connection:
                    counted = select(_people.c.session, func.count()).group_by(_people.c.session)
                    taken = {row[0]: row[1] for row in connection.execute(counted)}
                    session = min(range(sessions), key=lambda number: (taken.get(number, 0), number))
                    person = replace(person, session=session)
                    connection.execute(insert(_people).values(**person.__dict__))
            except IntegrityError:
                existing = self.person(person.id)
                if existing is None or existing.subject_id != subject_id:
                    raise Taken(
                        "somebody of this id takes part; please go on in the browser that you began in."
                    ) from None
                return existing
        return person

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
