"""Answers of a server that are not yet in a file of captions: a run that is stopped need not ask, and pay, again.

They are in the user's cache, by a hash of all that was asked: the server, the model, the prompt, the pictures and the
settings.  An answer is there as soon as it has come, and gone as soon as the photo's caption is saved.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from capscore import files
from capscore.errors import UserError
from tellapart import paths

_OLDEST = 30 * 86400.0  # seconds
_MOST = 1 << 28  # bytes of all answers
_TABLE = "CREATE TABLE IF NOT EXISTS answers (request TEXT PRIMARY KEY, answer BLOB NOT NULL, time REAL NOT NULL)"
_TOO_MANY = """
DELETE FROM answers WHERE time < ? OR request IN (SELECT request FROM
    (SELECT request, SUM(LENGTH(answer)) OVER (ORDER BY time DESC, request) AS total FROM answers) WHERE total > ?)
"""


class KeptAnswers:
    def __init__(self, server: str, notify: Callable[[str], None]):
        """server  its URL"""
        self._server, self._notify = server, notify
        self._of_files: dict[str, set[str]] = {}  # what this run has used for each photo
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._is_open = False

    def get(self, file: str, request: bytes) -> bytes | None:
        """The answer that an earlier run had."""
        name = self._name(file, request)
        rows = self._asked("SELECT answer FROM answers WHERE request = ?", (name,))
        return bytes(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else None

    def put(self, file: str, request: bytes, answer: bytes) -> None:
        values = (self._name(file, request), answer, time.time())
        self._asked("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", values)

    def forget(self, files: Iterable[str]) -> None:
        """The captions of these photos are saved."""
        with self._lock:
            names = {name for file in files for name in self._of_files.pop(file, ())}
        for name in names:
            self._asked("DELETE FROM answers WHERE request = ?", (name,))

    def _name(self, file: str, request: bytes) -> str:
        name = hashlib.sha256(self._server.encode() + b"\0" + request).hexdigest()
        with self._lock:
            self._of_files.setdefault(file, set()).add(name)
        return name

    def _asked(self, statement: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        with self._lock:
            if not self._is_open:
                self._is_open = True
                self._open()
            if self._database is None:
                return []
            try:
                with self._database:
                    return self._database.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                self._give_up(error)
                return []

    def _open(self) -> None:
        folder = paths.cache()
        if folder is None:
            return
        path = folder / "answers.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            files.refuse_link(path)
            self._database = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
            with self._database:
                self._database.execute(_TABLE)
                self._database.execute(_TOO_MANY, (time.time() - _OLDEST, _MOST))
        except (sqlite3.Error, OSError, UserError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """A cache that is full, damaged or not ours stops no run."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None
        where = paths.cache()
        self._notify(f"{where}/answers.sqlite: answers are not kept for the case that this run is stopped ({error})")
