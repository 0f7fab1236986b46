"""Differences between systems (locks on open files, some flags of `open`, owners of files, cores), and folders.

Where there are no locks, nothing is locked: two commands that write to the same place at once are then not kept apart.
The tests run on Linux.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
BINARY: int = getattr(os, "O_BINARY", 0)  # Windows alone; without it line ends would be changed

if sys.platform == "win32":
    HAS_LOCKS = False

    def lock(handle: int, *, wait: bool) -> None:
        """Nothing is locked."""

else:
    import fcntl

    HAS_LOCKS = True

    def lock(handle: int, *, wait: bool) -> None:
        """Lock an open file or folder for this process; OSError if another one has it and we do not wait."""
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def user() -> int:
    """The user's id; 0 where there are no such ids, as files are then owned by 0."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


_KEPT = ("user.", "system.posix_acl_", "security.selinux")


def copy_attributes(source: Path, handle: int) -> None:
    """Owner, permissions, and extended attributes (access lists are such), as far as this process may set them."""
    status = source.stat()
    mode = stat.S_IMODE(status.st_mode)
    if hasattr(os, "fchown"):
        with suppress(OSError):
            os.fchown(handle, -1, status.st_gid)
        with suppress(OSError):
            os.fchown(handle, status.st_uid, -1)
        if os.fstat(handle).st_gid != status.st_gid:
            mode &= ~stat.S_IRWXG  # what one group may do is not for another
        os.fchmod(handle, mode & 0o777)
    if hasattr(os, "listxattr"):
        with suppress(OSError):  # some file systems have none
            for name in os.listxattr(source):
                if not name.startswith(_KEPT):  # such as a check sum of the old contents
                    continue
                with suppress(OSError):
                    os.setxattr(handle, name, os.getxattr(source, name))


def cores() -> int:
    """Those that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache(program: str = "capscore") -> Path | None:
    """A folder for what can be computed again: $CAPSCORE_CACHE, else the user's cache; None without a home."""
    if chosen := os.environ.get(f"{program.upper()}_CACHE"):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):
        return (caches if caches.is_absolute() else Path.home() / ".cache") / program
    return None


def package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec else None
    return Path(next(iter(folders))) if folders else None
