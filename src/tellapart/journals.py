"""Files that grow, and folders and files that one process holds: a kill or a full disk costs nothing that was there.

Locks are on the open file or folder: they go with the process, however that ends.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capscore import files, system
from capscore.errors import UserError


def read_lines(path: Path) -> list[bytes]:
    """The whole lines of a journal; a last one without its newline was cut off by a kill and does not count."""
    return files.read_bytes(path).split(b"\n")[:-1] if path.exists() else []


@contextmanager
def appending(path: Path, *, by_user: bool = False) -> Iterator[io.FileIO]:
    """A file that is added to, made if need be.  OSErrors are the caller's."""
    if not by_user:
        files.refuse_link(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.CLOEXEC | system.BINARY
    with os.fdopen(os.open(path, flags | _nofollow(by_user), 0o666), "ab", buffering=0) as file:
        yield file


def append(path: Path, data: bytes, *, by_user: bool = False) -> None:
    """Add to a journal, all or nothing, and wait until it is on the disk."""
    try:
        with appending(path, by_user=by_user) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except BaseException:  # a full disk, or Ctrl-C: what we wrote of it, and nothing else, is taken back
                file.truncate(size)
                raise
    except OSError as error:
        raise UserError(
            f"{path}: the file cannot be written ({error.strerror}); what was written stays valid, and the same "
            "command continues from there."
        ) from None


@contextmanager
def held(folder: Path, busy: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a folder, made if need be, for this process alone; `busy` says what another one does that holds it.

    The lock is on the folder itself and goes with the process, however that ends.

    wait  is called with that message before this process waits; without it a folder that is held is refused
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if system.HAS_LOCKS else None  # Windows opens no folders
    except OSError as error:
        raise UserError(f"{folder}: the folder cannot be made or opened ({error.strerror}).") from None
    try:
        if handle is not None:
            _lock(handle, f"{folder}: {busy}", wait)
        files.remove_leftovers(folder)
        yield
    finally:
        if handle is not None:
            os.close(handle)


class HeldFile:
    """A file that only this process adds to or replaces, until it is let go."""

    def __init__(self, path: Path, busy: str, by_user: bool):
        self.path, self._by_user, self.made = path, by_user, not os.path.lexists(path)
        while True:
            self.handle = _open(path, by_user)
            try:
                _lock(self.handle, f"{path}: {busy}")
                if files.is_at(self.handle, files.real(path)):  # or another file took its place, and is not ours
                    return
                os.close(self.handle)
            except BaseException:
                os.close(self.handle)
                raise

    def replace(self, data: bytes) -> None:
        former, self.handle = self.handle, files.replace_open(self.path, data, self._by_user)
        os.close(former)


@contextmanager
def held_file(path: Path, busy: str, *, by_user: bool = False) -> Iterator[HeldFile]:
    """The same for a file, made if need be.  One that was made and that nothing was put into is gone again."""
    file = HeldFile(path, busy, by_user)
    try:
        yield file
    finally:
        with suppress(OSError):
            if file.made and path.stat().st_size == 0:
                path.unlink()
        os.close(file.handle)


def _open(path: Path, by_user: bool) -> int:
    if not by_user:
        files.refuse_link(path)
    flags = os.O_RDWR | os.O_CREAT | system.NONBLOCK | system.BINARY | _nofollow(by_user)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(files.real(path).parent)
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        raise UserError(f"{path}: the file cannot be written ({error.strerror}).") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: this is not a regular file.")  # a pipe or a device cannot be read and added to
        if by_user:
            files.refuse_shared(path, status)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _lock(handle: int, busy: str, wait: Callable[[str], None] | None = None) -> None:
    """Goes with the process, or when the file is closed."""
    try:
        system.lock(handle, wait=False)
    except OSError:
        if wait is None:
            raise UserError(busy) from None
        wait(busy)
        system.lock(handle, wait=True)


def _nofollow(by_user: bool) -> int:
    return 0 if by_user else system.NOFOLLOW
