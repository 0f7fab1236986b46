"""A PostgreSQL server of the tests' own, where Debian's is installed; a database in it for whoever asks."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
_numbers = count()


@pytest.fixture(scope="session")
def postgresql_server():
    """Its URL, without the name of a database."""
    if PROGRAMS is None:
        pytest.skip("needs PostgreSQL")
    pytest.importorskip("pg8000")
    with running() as url:
        yield url


@pytest.fixture
def postgresql(postgresql_server):
    """The URL of an empty database."""
    name = f"test{next(_numbers)}"
    _as_owner(postgresql_server, f"CREATE DATABASE {name}")
    return f"{postgresql_server}/{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request):
    """What `--database` is given; None: SQLite, beside the photos or the study."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgresql")


def option(url):
    return [] if url is None else ["--database", url]


def remove(url, file):
    """The database is gone, whoever uses it; file: where SQLite keeps it."""
    if url is None:
        file.unlink()
        return
    server, _, name = url.rpartition("/")
    _as_owner(server, f"DROP DATABASE {name} WITH (FORCE)")


def disconnect(url):
    """As a PostgreSQL server that is started again leaves those who were connected."""
    server, _, name = url.rpartition("/")
    _as_owner(server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def _as_owner(server, command):
    from sqlalchemy import create_engine, text

    engine = create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(command))
    engine.dispose()


@contextmanager
def running():
    """As another user where we are root, whom it refuses."""
    user = {"user": "postgres"} if os.geteuid() == 0 else {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))
    try:
        if user:
            shutil.chown(folder, "postgres", "postgres")
        data = folder / "data"

        def call(program, *arguments):
            subprocess.run(
                [str(PROGRAMS / program), "-D", str(data), *arguments],
                check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user,
            )  # fmt: skip

        call("initdb", "-A", "trust", "-U", "tests", "-E", "UTF8", "--no-locale", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c shared_buffers=8MB"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+pg8000://tests@127.0.0.1:{port}"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
