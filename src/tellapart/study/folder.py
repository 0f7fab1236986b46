"""A study folder: `study.json` with everything that is shown, `photos/` by id, and the answers in a database.

    order    GEG, study 1: a caption and 21 photos; the ten most fitting in order
    compare  GEG, study 2: two captions of one photo; which is more accurate, which more informative
    choose   DiscriTune: a caption and ten photos; which one is meant

The folder has all that a server needs, so that it can be copied to one.  Photos are drawn anew: names, places and dates
of the originals stay out.  Answers are in SQLite beside the study, or in any database that SQLAlchemy reaches by URL.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sqlalchemy import JSON, Column, Float, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.exc import IntegrityError

from capscore import files
from capscore.errors import UserError
from capscore.printable import printable
from tellapart.databases import Database

Kind = Literal["order", "compare", "choose"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ORDERED = 10  # photos that are put in order
CRITERIA = ("accuracy", "distinctiveness")
FIRST, TIE, SECOND = "first", "tie", "second"
FORMAT = 1
ANSWERS = "answers.db"
_STUDY = "study.json"


@dataclass(frozen=True)
class Trial:
    """One question to one person, as it is shown."""

    id: str
    set: str  # the photo that is meant; in a catch trial the one to be chosen
    models: tuple[str, ...]  # in the order of the captions; none in a catch trial
    captions: tuple[str, ...]
    photos: tuple[str, ...]  # in the order shown
    catch: bool = False

    def why_wrong(self, kind: Kind, response: Any) -> str:
        """The fault in the form of a response; empty if it is an answer to the trial.

        choose   a photo
        order    the first ten photos, best first
        compare  {"accuracy", "distinctiveness"}: "first", "tie" or "second"
        """
        if kind == "choose":
            return "" if isinstance(response, str) and response in self.photos else "choose one of the photos."
        if kind == "order":
            wanted = min(ORDERED, len(self.photos))
            right = isinstance(response, list) and len(response) == wanted
            right = right and all(isinstance(photo, str) and photo in self.photos for photo in response)
            return "" if right and len(set(response)) == wanted else f"put {wanted} different photos in order."
        right = isinstance(response, dict) and set(response) == set(CRITERIA)
        right = right and all(answer in (FIRST, TIE, SECOND) for answer in response.values())
        return "" if right else "answer both questions."

    def rank(self, response: Any) -> int:
        """The place that a person gave to the right photo, from 1; 0: none."""
        chosen = [response] if isinstance(response, str) else response
        return chosen.index(self.set) + 1 if self.set in chosen else 0

    def passed(self, kind: Kind, response: Any) -> bool:
        """True if a person did what a catch trial asks for."""
        if kind == "compare":
            return all(answer == self.models[0] for answer in response.values())
        return self.rank(response) == 1


@dataclass
class Study:
    kind: Kind
    title: str
    consent: str
    completion_code: str
    models: list[str]  # the first is what the others are compared with
    sessions: list[list[Trial]]
    photos: dict[str, str]  # id -> the photo's id in the data
    settings: dict[str, Any] = field(default_factory=dict)  # seed, retriever and so on, for the record

    def trials(self) -> dict[str, Trial]:
        return {trial.id: trial for session in self.sessions for trial in session}


def save(study: Study, folder: Path, pictures: Iterable[tuple[str, bytes]]) -> None:
    """The photos first: a folder with a `study.json` is whole."""
    if (folder / _STUDY).exists():
        raise UserError(f"{folder}: there is a study in this folder already; choose another one.")
    for id, data in pictures:
        files.replace(photo_file(folder, id), data)
    content = {"format": FORMAT, **asdict(study)}
    files.replace(folder / _STUDY, (json.dumps(content, indent=1) + "\n").encode("ascii"))


def photo_file(folder: Path, id: str) -> Path:
    return folder / "photos" / f"{id}.webp"


def load(folder: Path) -> Study:
    path = folder / _STUDY
    if not files.is_file(path):
        raise UserError(f"{folder}: this is no study folder; `tellapart study new` makes one.")
    content = files.read_json(path)
    version = content.pop("format", None)
    if version != FORMAT:
        raise UserError(f"{path}: this study has format {version!r}, and this version of tellapart reads {FORMAT}.")
    try:
        tuples = ("models", "captions", "photos")
        sessions = [
            [Trial(**trial | {name: tuple(trial[name]) for name in tuples}) for trial in session]
            for session in content.pop("sessions")
        ]
        study = Study(sessions=sessions, **content)
        texts = (study.title, study.consent, study.completion_code)
        if study.kind not in KINDS or not all(isinstance(text, str) for text in texts):
            raise TypeError("a field has another type")
        photos, ids = set(study.photos), [trial.id for session in sessions for trial in session]
        whole = len(set(ids)) == len(ids) and all(sessions) and bool(sessions)
        if not whole or any(not photos >= {*trial.photos, trial.set} for row in sessions for trial in row):
            raise ValueError("a trial is there twice, or has an unknown photo")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path}: this is not a study as `tellapart study new` writes it ({printable(str(error))})."
        ) from None
    return study


# Answers

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
    received: float = 0.0  # 0: unknown


class Answers:
    """The people of a study and their answers.

    An answer is on the disk when `add` returns.  The first answer to a trial stands: sent again, it changes nothing.
    """

    def __init__(self, folder: Path, url: str | None = None):
        """url  of another database; none: SQLite in the folder"""
        self._joining = threading.Lock()
        database = Database(_meta, folder / ANSWERS, "the answers", url)
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
        """The trials that a person has answered."""
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
