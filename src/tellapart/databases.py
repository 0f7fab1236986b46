"""Databases of answers and decisions: SQLite in a file, or any that SQLAlchemy reaches by URL.

What was committed is on the disk.  JSON that is damaged is read as None: the other rows are there still.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import MetaData, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from capscore import files, system
from capscore.errors import UserError

_WAIT = 30  # seconds for another writer
_LONGEST = 120  # seconds of a transaction in a file, which might hold a view without end
_STEPS = 100_000  # of SQLite, after which the time is looked at


class DatabaseGone(UserError):
    """The database does not answer; what was acknowledged before is in it."""


class Database:
    def __init__(self, tables: MetaData, path: Path, what: str, url: str | None = None):
        """path  of the SQLite file, made if need be
        what  it holds, for messages
        url   of another database, such as postgresql+pg8000://...
        """
        self.name = str(path) if url is None else "the database"
        self._what = what
        # Connections are opened anew each time: none is left of a database that was stopped and started meanwhile.
        # If one breaks, we say so in a sentence, and the library does not print a traceback besides.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        if url is None:
            for beside in ("", "-journal", "-wal", "-shm"):
                files.refuse_link(path.with_name(path.name + beside))
            try:
                flags = os.O_RDWR | os.O_CREAT | system.NONBLOCK | system.NOFOLLOW
                os.close(os.open(path, flags, 0o666))
            except OSError as error:
                reason = f"the database cannot be made ({error.strerror})"
                raise UserError(f"{path}: {reason}; --database names another.") from None
            # never created: a file that was removed is noticed, not written into unseen
            address = f"file:{quote(str(path.resolve()))}?mode=rw"
            self.engine = create_engine(
                "sqlite://",
                creator=lambda: sqlite3.connect(address, uri=True, timeout=_WAIT),
                poolclass=NullPool,
                json_deserializer=_from_json,
            )
            event.listen(self.engine, "connect", _durable)
        else:
            try:
                self.engine = create_engine(url, poolclass=NullPool, json_deserializer=_from_json)
            except (ArgumentError, NoSuchModuleError, ImportError) as error:
                raise UserError(f"--database: this database cannot be used ({error}).") from None
            except ValueError:
                raise UserError("--database: the port of this URL is not a number.") from None
            _check(url)
        with self.asking():
            tables.create_all(self.engine)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Every error of the database, as DatabaseGone."""
        try:
            yield
        except (SQLAlchemyError, OSError) as error:  # OSError: drivers do not translate all that a network does
            raise DatabaseGone(f"{self.name}: {self._what} cannot be stored or read ({_reason(error)}).") from None


def _check(url: str) -> None:
    """Nothing of a password may be taken for another part, which messages show."""
    parts = make_url(url)
    if parts.host and "@" in f"{parts.host}{parts.database}":
        raise UserError("--database: write @ and / within the password of this URL as %40 and %2F.")
    if parts.get_backend_name() == "sqlite" and parts.database in (None, "", ":memory:"):
        raise UserError("--database: this URL names no file, and what is in memory is lost.")


def _from_json(text: Any) -> Any:
    with suppress(ValueError, TypeError, RecursionError):
        return json.loads(text)
    return None


def _reason(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    if cause.args and isinstance(cause.args[0], dict):  # pg8000's: fields by letters, of which M is the message
        return str(cause.args[0].get("M", "no reason is given"))
    return (str(cause) or type(cause).__name__).splitlines()[0]


def _durable(connection: Any, _: Any) -> None:
    """On the disk before a commit returns, for any compiled-in default; and nothing takes forever."""
    connection.execute("PRAGMA synchronous=FULL")
    until = time.monotonic() + _LONGEST
    connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
