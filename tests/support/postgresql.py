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
    from sqlalchemy import create_engine, text

    name = f"test{next(_numbers)}"
    engine = create_engine(f"{postgresql_server}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{postgresql_server}/{name}"


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
