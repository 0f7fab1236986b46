"""Photos that appear in folders: found by polling, and captioned once they are completely written."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from capscore.errors import UserError
from capscore.files import is_folder
from capscore.printable import print_message
from tellapart.data.items import Input, gather
from tellapart.data.media import clips, photos
from tellapart.desk.resume import Stamp, stamp_of
from tellapart.errors import BadPhoto

INTERVAL = 5.0  # seconds between two polls
PATIENCE = 60.0  # seconds that a photo which cannot be decoded may stay as it is: its copying may only have stalled
_RECENT = 3600.0  # seconds; a photo that was changed before is not tried by decoding it


class Arrivals:
    """Finds photos that are new or changed, and finished: the same size and time in two polls, and decodable."""

    def __init__(self, list_photos: Callable[[], Sequence[Input]], clock: Callable[[], float] = time.monotonic):
        """list_photos  all photos that exist now"""
        self._list, self._clock = list_photos, clock
        self._stamps: dict[str, tuple[Stamp, float]] = {}  # file -> its status, and since when
        self._done: dict[str, Stamp] = {}
        self.unfinished: set[str] = set()  # files that are still being written

    def poll(self) -> list[Input]:
        """The photos that are to be captioned now; the same again at the next poll if they are not `done`."""
        stamps, ready, now = dict[str, tuple[Stamp, float]](), list[Input](), self._clock()
        for photo in self._list():
            if (status := stamp_of(photo.file)) is None:  # gone again
                continue
            earlier, since = self._stamps.get(photo.file, (None, now))
            stamps[photo.file] = status, since if status == earlier else now
            is_new = status == earlier and self._done.get(photo.file) != status
            if is_new and (now - since >= PATIENCE or _is_finished(photo.file)):
                ready.append(photo)
        self._stamps = stamps
        self._done = {file: status for file, status in self._done.items() if file in stamps}
        self.unfinished = {file for file, (status, _) in stamps.items() if self._done.get(file) != status}
        self.unfinished -= {photo.file for photo in ready}
        return ready

    def done(self, taken: Sequence[Input]) -> None:
        """These have rows now, and do not come again unless they change."""
        self._done |= {photo.file: self._stamps[photo.file][0] for photo in taken}


def _is_finished(file: str) -> bool:
    """True if a photo that was changed lately can be decoded; all its bytes are needed for that."""
    with suppress(BadPhoto, OSError):
        if not clips.named_as_clip(file) and abs(time.time() - Path(file).stat().st_mtime) <= _RECENT:
            photos.read(file, 8)
        return True
    return False


def in_folders(paths: Sequence[str]) -> Callable[[], list[Input]]:
    """Lists the photos in folders, which may be empty, or gone for a while."""
    for path in paths:
        if not is_folder(Path(path)):
            raise UserError(f"{path}: --watch watches folders, and this is none.")
    shown: set[str] = set()

    def list_photos() -> list[Input]:
        try:
            photos_now, problems = gather(paths)
        except UserError:  # no photo yet, or a disk that is not mounted at the moment
            return []
        for problem in problems:
            if problem not in shown:
                shown.add(problem)
                print_message(problem)
        return photos_now

    return list_photos


def watch(
    arrivals: Arrivals,
    caption: Callable[[list[Input]], None],
    *,
    interval: float = INTERVAL,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Caption photos as they appear, until SIGINT or SIGTERM.

    What goes wrong with the first photos is a wrong request.  Later it may pass, such as a full disk, a server that is
    away, or another process that writes to the file: it is reported once, and tried again at the next poll.
    """
    began, reported = False, ""
    with _until_stopped():
        while True:
            if new := arrivals.poll():
                try:
                    caption(new)
                    arrivals.done(new)
                    began, reported = True, ""
                except UserError as error:
                    if not began:
                        raise
                    if str(error) != reported:
                        reported = str(error)
                        print_message(f"{reported}  It is tried again every {interval:g} s.")
            sleep(interval)


@contextmanager
def _until_stopped() -> Iterator[None]:
    """Both signals stop it where it is; what is saved then is valid, and the same command continues."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller decides how to stop
        handlers = {}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
