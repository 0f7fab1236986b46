"""Reading files of users, and writing so that a kill or a full disk never costs what was there before."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from capscore import system
from capscore.errors import UserError

MOST_TEXT = 1 << 30  # bytes of a text file, unpacked: more would not fit into the memory of most machines as JSON
MOST_BYTES = 1 << 36  # of any other file
_PART = 1 << 20


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """A regular file's contents.  Pipes and devices are refused at once: reading one may never end."""
    try:
        # Without waiting: opening a pipe without a writer would take forever.
        handle = os.open(path, os.O_RDONLY | system.NONBLOCK | system.CLOEXEC | system.BINARY)
        with os.fdopen(handle, "rb", closefd=True) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path}: this is not a regular file.")
            if status.st_size > most:
                raise _too_large(path, most)
            return file.read()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except IsADirectoryError:
        raise UserError(f"{path}: this is a folder, not a file.") from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise UserError(f"{path}: this is not a regular file.") from None
        raise UserError(f"{path}: the file cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r}: this cannot be the name of a file ({error}).") from None


def inside(folder: Path, name: str) -> Path:
    """A file of a folder that may have been downloaded: refused if a link leads out of it, or if it is no file.

    Models that were fetched from the Hugging Face hub lie in a folder of links to files beside it.
    """
    path, root = folder / name, real(folder)
    if root.parent.name == "snapshots":
        root = root.parent.parent
    if not real(path).is_relative_to(root):
        raise UserError(f"{path}: this is a link to a file outside of the folder, which is not followed.")
    return regular(path)


def regular(path: Path) -> Path:
    """The same path, if it is that of a regular file: for libraries that open files themselves."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError(f"{path}: {reason}.") from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: this is {'a folder, not a file' if stat.S_ISDIR(mode) else 'not a regular file'}.")
    return path


def read_text(path: Path, *, errors: str = "strict", most: int | None = None) -> str:
    """The text of a UTF-8 file, plain or gzipped (by its first bytes, not its name).

    errors  "surrogateescape" takes bytes that are not UTF-8, such as of file names
    most    bytes, unpacked; MOST_TEXT by default
    """
    most = MOST_TEXT if most is None else most
    data = read_bytes(path, most=most)
    if data.startswith(b"\x1f\x8b"):
        data = _unpacked(path, data, most)
    try:
        return data.decode("utf-8", errors).removeprefix("\ufeff")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        byte = f"0x{data[error.start]:02x} at byte {error.start + 1}"
        raise UserError(f"{path}: the file is not UTF-8 text ({byte}, counted from 1).") from None


def _unpacked(path: Path, data: bytes, most: int) -> bytes:
    """The contents of a gzip file; 8 MB of it can stand for 8 GB, so it is unpacked bit by bit."""
    parts, size = list[bytes](), 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while part := file.read(_PART):
                parts.append(part)
                size += len(part)
                if size > most:
                    raise _too_large(path, most)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: the gzip file is damaged or was cut short ({error}).") from None
    return b"".join(parts)


def refuse_larger(path: Path, size: int) -> None:
    """Refuse a file that unpacks to more than we read."""
    if size > MOST_TEXT:
        raise _too_large(path, MOST_TEXT)


def _too_large(path: Path, most: int) -> UserError:
    return UserError(f"{path}: the file has, unpacked, more than {most >> 20} MB, the most that is read.")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, plain or gzipped."""
    content = read_json_value(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: the file must hold a JSON object, not {type_of(content)}.")
    return content


def read_json_value(path: Path, *, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value in a JSON file, plain or gzipped; `pairs` makes an object of its keys and values (default: a dict)."""
    return parse_json(read_text(path), path, pairs=pairs)


def parse_json(
    text: str, path: Path, *, line: int = 1, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """The JSON value that stands in a file from a line on."""
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        if not text.strip():
            raise UserError(f"{path}: the file is empty.") from None
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            raise UserError(f"{path}: the JSON breaks off at {where}; the file may have been cut short.") from None
        raise UserError(f"{path}: this is not JSON ({where}: {error.msg}).") from None
    except RecursionError:
        raise UserError(f"{path}: the JSON is nested too deeply to be read.") from None
    except ValueError:  # Python refuses to turn thousands of digits into a number
        raise UserError(f"{path}: the JSON has a number with too many digits.") from None


def type_of(value: Any) -> str:
    """A value's type in the words of JSON."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def replace(path: Path, data: bytes, *, by_user: bool = False) -> None:
    """Put new contents in a file's place in one step: a reader sees the old ones or the new ones, never a part.

    Owner, permissions and extended attributes stay, as far as this process may set them.

    by_user  the user gave the name: a link there is theirs, and stays one.  In the place of a file that we name
             ourselves a link is refused, as whoever made the folder may have put it there.
    """
    os.close(replace_open(path, data, by_user))


def replace_open(path: Path, data: bytes, by_user: bool) -> int:
    """The same; returns the new file, open and locked."""
    if by_user:
        target = real(path)
        refuse_shared(target)
    else:
        refuse_link(path)
        target = real(path.parent) / path.name
    if is_folder(target):
        raise UserError(f"{path}: this is a folder; give the name of a file.")
    try:
        if target.exists() and not target.is_file():  # a rename would put a plain file where a device was
            raise UserError(f"{path}: this is not a regular file.")
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        with _unfinished(target.parent) as (unfinished, file):  # beside it: a rename stays on one disk
            if target.exists():
                system.copy_attributes(target, file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # without it a power cut may leave the new name on an empty file
            unfinished.replace(target)
            return os.dup(file.fileno())
    except OSError as error:
        kept = "; what was there before is untouched" if is_file(target) else ""
        raise UserError(f"{path}: the file cannot be written ({error.strerror}){kept}.") from None


def refuse_link(path: Path) -> None:
    """Refuse a link in the place of a file that we name ourselves."""
    if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises where a name is too long for the file system
        raise UserError(f"{path}: this is a link, and a file that tellapart names itself is not written through one.")


def refuse_shared(path: Path, status: os.stat_result | None = None) -> None:
    """Refuse a file with several names: after a replacement the others would still be the old file."""
    try:
        status = status or path.stat()
    except OSError:  # there is none, or none can have this name: the attempt to write says so
        return
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise UserError(
            f"{path}: the file has {status.st_nlink} names (hard links), of which only this one would change; copy it "
            "to a file of its own first."
        )


@contextmanager
def _unfinished(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file, gone again if it is not renamed; the lock on it says that it is being written."""
    while True:
        path = folder / f".tellapart-{secrets.token_hex(6)}.tmp"
        with path.open("xb") as file:
            try:
                with suppress(OSError):  # some file systems know no locks
                    system.lock(file.fileno(), wait=True)
                if is_at(file.fileno(), path):  # or another process took it for a leftover before it was locked
                    yield path, file
                    return
            finally:  # after a failure or Ctrl-C; after success there is nothing left to remove
                with suppress(OSError):
                    path.unlink()


@cache  # once in a process: what it leaves itself, it removes itself
def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files that killed processes left; a living one holds a lock on its own."""
    if not system.HAS_LOCKS:  # then it is unknown who is still writing
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _LEFTOVER.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    _remove_leftover(Path(entry.path))


_LEFTOVER = re.compile(r"\.tellapart-[0-9a-f]{12}\.tmp")  # a name of `_unfinished`


def _remove_leftover(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | system.NOFOLLOW | system.NONBLOCK)
    try:
        if os.fstat(handle).st_uid == system.user():
            system.lock(handle, wait=False)
            if is_at(handle, path):
                path.unlink()
    finally:
        os.close(handle)


def is_at(handle: int, path: Path) -> bool:
    """True if the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where a name is too long for the file system


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - as above


def real(path: Path) -> Path:
    """The path without links and "..", absolute."""
    return Path(os.path.realpath(path))
