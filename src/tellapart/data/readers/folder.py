"""A folder of photos and clips, with the folders in it.  It is a data set without captions: items to be captioned.

The id of an item is its path below the folder, so that it stays the same when other photos come and go.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from capscore.errors import UserError
from capscore.files import is_folder, real
from capscore.printable import counted, first_few
from tellapart.data.examples import DataSet, check


def read(source: Path, photos: Path | None = None) -> DataSet:
    # here, because they bring an image library with them
    from tellapart.data.media.clips import CLIP_SUFFIXES
    from tellapart.data.media.photos import PHOTO_SUFFIXES

    if photos is not None:
        raise UserError(f"{photos}: a folder of photos is its own source; leave --photos out.")
    if not is_folder(source):
        raise UserError(f"{source}: {_why_not(source)}.")
    folder = real(source)
    files, problems = walk(folder)
    suffixes = {file: Path(file).suffix.lower() for file in files}
    names = [file for file, suffix in suffixes.items() if suffix in PHOTO_SUFFIXES | CLIP_SUFFIXES]
    if not names and problems:  # it may not be empty
        also = "" if len(problems) == 1 else f"  So it is with {len(problems) - 1} more folders there."
        raise UserError(f"{source}: no photo or clip was found in this folder; {problems[0]}{also}")
    if not names:
        looked_for = "(.jpg, .png, .heic, .dng and the like), and no clips (.mp4, .mov and the like)"
        raise UserError(f"{source}: there are no photos in this folder {looked_for}.")
    # All are "test": that is the default split of commands, and nothing here can be trained on.
    records = ({"id": name, "file": name, "split": "test"} for name in names)
    kind = "videos" if all(suffixes[name] in CLIP_SUFFIXES for name in names) else "images"
    examples, broken = check(records, source=source, folder=folder, kind=kind)
    return DataSet(folder.name, examples, kind, problems + broken)


def _why_not(source: Path) -> str:
    """The reason why a path is no folder."""
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

    entered, outside, root = set[str](), list[str](), real(folder)
    waiting = deque([folder])
    while waiting:
        for name, folders, inside in os.walk(waiting.popleft(), onerror=complain):
            here = Path(name)
            if (place := os.path.realpath(here)) in entered:
                folders.clear()  # os.walk looks there for the folders to enter next
                continue
            entered.add(place)
            folders[:] = sorted(below for below in folders if not below.startswith("."))
            for link in (here / below for below in folders if (here / below).is_symlink()):  # os.walk passes them over
                if real(link).is_relative_to(root):
                    waiting.append(link)
                else:
                    outside.append(link.relative_to(folder).as_posix())
            files += [(here / file).relative_to(folder).as_posix() for file in inside if not file.startswith(".")]
    if outside:
        links = f"{counted(len(outside), 'link')} to folders outside of it, not followed"
        problems.append(f"{folder}: {links}: {first_few(sorted(outside))}; name such a folder to use it.")
    return sorted(files), problems
