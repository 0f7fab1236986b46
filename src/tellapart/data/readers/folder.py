"""A folder of photos, with the folders in it.  Photos without captions are a data set too: they can be captioned.

The id of a photo is its path below the folder, so that it stays the same when other photos come and go.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from tellapart.data.examples import DataSet, check
from tellapart.errors import UserError
from tellapart.files import is_folder, real


def read(source: Path, photos: Path | None = None) -> DataSet:
    from tellapart.data.media.photos import PHOTO_SUFFIXES  # here, because it brings an image library with it

    if photos is not None:
        raise UserError(f"{photos}: a folder of photos is its own source; leave --photos out.")
    if not is_folder(source):
        raise UserError(f"{source}: {_why_not(source)}.")
    folder = real(source)
    files, problems = walk(folder)
    names = [file for file in files if Path(file).suffix.lower() in PHOTO_SUFFIXES]
    if not names and problems:  # nobody knows whether it is empty
        also = "" if len(problems) == 1 else f"  So it is with {len(problems) - 1} more folders there."
        raise UserError(f"{source}: no photo was found in this folder; {problems[0]}{also}")
    if not names:
        raise UserError(f"{source}: there are no photos in this folder (.jpg, .png, .heic, .dng and the like).")
    # All are "test": that is the split which commands take when they are told none, and nothing here can be trained on.
    records = ({"id": name, "file": name, "split": "test"} for name in names)
    examples, broken = check(records, source=source, folder=folder)
    return DataSet(folder.name, examples, problems=problems + broken)


def _why_not(source: Path) -> str:
    """What is so with a path that is no folder."""
    try:
        source.stat()
    except FileNotFoundError:
        return "is a link to a folder that does not exist" if source.is_symlink() else "there is no such folder"
    except OSError as error:
        return f"cannot be opened ({error.strerror})"
    except ValueError:  # a NUL byte in the name
        return "there is no such folder"
    return "is not a folder"


def walk(folder: Path) -> tuple[list[str], list[str]]:
    """The files below a folder, as sorted paths relative to it, and a sentence for each folder that cannot be opened.

    Hidden files and folders are passed over.  Links to folders are followed when all else is done, and no folder is
    entered twice: a link to a folder above it does no harm, and a photo goes by the name without links if it has one.
    """
    files: list[str] = []
    problems: list[str] = []

    def complain(error: OSError) -> None:
        problems.append(f"{error.filename}: the folder cannot be opened ({error.strerror}).")

    entered: set[str] = set()
    waiting = deque([folder])
    while waiting:
        for name, folders, inside in os.walk(waiting.popleft(), onerror=complain):
            here = Path(name)
            if (real := os.path.realpath(here)) in entered:
                folders.clear()  # os.walk looks there for the folders to enter next
                continue
            entered.add(real)
            folders[:] = sorted(below for below in folders if not below.startswith("."))
            waiting.extend(here / below for below in folders if (here / below).is_symlink())  # os.walk passes them over
            files += [(here / file).relative_to(folder).as_posix() for file in inside if not file.startswith(".")]
    return sorted(files), problems
