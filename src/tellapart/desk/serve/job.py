"""Jobs beside the page: captioning a folder, writing captions to its files; and captions of uploads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import BaseModel, PrivateAttr

from capscore import files
from capscore.errors import UserError
from capscore.printable import print_message
from capscore.progress import watching
from tellapart.album import DEFAULT
from tellapart.captioning import captioner as captioning
from tellapart.captioning.captioner import CaptionerProposer
from tellapart.captioning.pipeline import tell_apart
from tellapart.captioning.rerank import Collection
from tellapart.data.captions import Caption
from tellapart.data.items import Input, gather
from tellapart.decoding.rules import Search
from tellapart.desk.captions_file import CaptionsFile, Row
from tellapart.desk.resume import write as write_rows
from tellapart.desk.serve.database import FolderRows, Photos, below, with_names
from tellapart.desk.write import Captions, Journal, Kind, Writer
from tellapart.errors import BadPhoto, fault
from tellapart.models.retrievers import load as load_retriever

REVIEWED = "tellapart.reviewed.jsonl"  # in the folder; beside it is the journal of what was written
Which = Literal["approved", "all"]
_SHOWN = 100  # photos whose fate a job tells
_KEPT = 4  # jobs of a kind


class Stopped(Exception):
    pass


class Job(BaseModel):
    id: int
    kind: str  # caption or write
    state: str = "starting"  # then what it does; in the end done or failed
    done: int = 0
    total: int = 0
    error: str = ""
    result: dict[str, Any] = {}
    seconds_left: float | None = None
    _began: tuple[float, int] = (0.0, 0)
    _counts: bool = False
    _end: threading.Event = PrivateAttr(default_factory=threading.Event)

    def begin(self, state: str, total: int, done: int = 0, *, counts: bool = False) -> None:
        """counts  its steps itself (`advance`), whatever bars of others there are meanwhile"""
        self.state, self.total, self.done, self._began = state, total, done, (time.monotonic(), done)
        self._counts = counts

    def advance(self, count: int) -> None:
        self.see(self.done, self.total)
        self._note(self.done + count, self.total)

    def see(self, done: int, total: int) -> None:
        """A step is done; the next one is not begun where the program is to end."""
        if self._end.is_set():
            raise Stopped
        if not self._counts:
            self._note(done, total)

    def _note(self, done: int, total: int) -> None:
        self.done, self.total = max(self.done, done), total
        passed, made = time.monotonic() - self._began[0], self.done - self._began[1]
        self.seconds_left = round(passed / made * (self.total - self.done), 1) if made else None

    @property
    def running(self) -> bool:
        return self.state not in ("done", "failed")


class Jobs:
    """Each in a thread; one of a kind at a time."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []  # the last of each kind
        self._count = 0
        self._threads: list[threading.Thread] = []
        self._end = threading.Event()
        self._lock = threading.Lock()

    def all(self) -> list[Job]:
        return list(self._jobs)

    def start(self, kind: str, work: Callable[[Job], None]) -> Job:
        with self._lock:
            same = [job for job in self._jobs if job.kind == kind]
            if same and same[-1].running:
                raise UserError(f"job {same[-1].id} is still running; wait until it is done.")
            self._count += 1
            job = Job(id=self._count, kind=kind)
            job._end = self._end
            self._jobs = [job for job in self._jobs if job not in same[: 1 - _KEPT]] + [job]
            thread = threading.Thread(target=self._run, args=(job, work), daemon=True)
            self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
            thread.start()
        return job

    def stop(self, seconds: float = 10) -> bool:
        """Between two steps of each; whether all came to an end in this time."""
        self._end.set()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @staticmethod
    def _run(job: Job, work: Callable[[Job], None]) -> None:
        watching.set(job.see)  # of this thread alone
        try:
            work(job)
            job.state = "done"
        except Stopped:
            job.error, job.state = "stopped", "failed"
        except UserError as error:
            job.error, job.state = str(error), "failed"
            print_message(f"tellapart serve: {error}")
        except Exception as error:  # a fault of ours; the page goes on
            job.error, job.state = f"the program has an error ({type(error).__name__}).", "failed"
            print_message(f"tellapart serve: {fault(error)}")


class Captioning:
    """A captioner, and the photos of a folder that captions are told apart from."""

    def __init__(self, folder: Path | None, model: str | None = None, device: str = "auto"):
        """model  none: the default, as of `caption`: one for photos and another for clips"""
        self.folder, self.model, self._device = folder, model or DEFAULT, device
        self.photos: dict[str, Input] = {}  # by their names below the folder
        self.collection: Collection | None = None
        self.scan()
        self.captioner = captioning.load(model, device=device)

    def scan(self) -> None:
        """Find the photos; those behind links that lead out of the folder are left out."""
        if self.folder is None:
            return
        inputs, problems = gather([str(self.folder)])
        self.photos = {
            below(self.folder, photo.file): photo for photo in inputs if is_inside(self.folder, Path(photo.file))
        }
        if len(self.photos) < len(inputs):
            problems.append(f"{len(inputs) - len(self.photos)} links to files outside of the folder are left out")
        for problem in problems:
            print_message(problem)

    def caption_folder(self, job: Job, photos: Photos) -> None:
        """New photos, and those that were captioned otherwise; what people decided stays."""
        self.scan()
        inputs = list(self.photos.values())
        job.begin("comparing the photos", len(inputs))
        self.collection = Collection.of(load_retriever(device=self._device), [photo.file for photo in inputs])
        source = tell_apart(CaptionerProposer(self.captioner, Search()), self.collection)

        def caption(photos: Iterable[str]) -> Iterator[Caption]:
            todo = list(photos)
            job.begin("captioning", len(inputs), len(inputs) - len(todo), counts=True)
            for made in source.caption(todo):
                yield made
                job.advance(1)

        failed = write_rows(replace(source, caption=caption), inputs, FolderRows(photos))
        job.result = {"failed": failed}

    def caption(self, upload: Path, *, among: bool) -> Caption:
        """An uploaded photo, as the command line would caption it; nothing of it is kept."""
        if among and self.collection is None:
            raise UserError("the photos of the folder have not been compared yet; try again later.")
        collection = self.collection if among else None
        proposer = CaptionerProposer(self.captioner, Search())
        (caption,) = tell_apart(proposer, collection, keep=False).caption([upload])
        if caption.error:
            raise BadPhoto(upload, caption.error)
        return caption


def is_inside(folder: Path, file: Path) -> bool:
    return files.real(file).is_relative_to(folder)


# Captions out of the database


def export(photos: Photos, which: Which, suffix: str) -> bytes:
    """A captions file, with names below the folder."""
    with TemporaryDirectory() as folder:
        file = CaptionsFile(Path(folder, f"captions{suffix}"))
        file.keep(_rows(photos, which))
        return file.path.read_bytes()


def _rows(photos: Photos, which: Which) -> list[Row]:
    return [photo.row for photo in photos.all() if which == "all" or photo.review in ("approved", "edited")]


def write(job: Job, photos: Photos, kind: Kind, which: Which, *, replace_texts: bool, dry_run: bool) -> None:
    """Reviewed captions to sidecars, texts or the photos, as `tellapart write` does; a rejected one never."""
    folder = photos.folder
    rows = [with_names(row, lambda name: str(folder / name)) for row in _rows(photos, which)]
    captions = Captions.of(folder / REVIEWED, rows)
    writer = Writer(captions, kind, replace=replace_texts)
    job.begin("writing", len(captions.rows), counts=True)
    counts, failed, shown = Counter[str](), list[dict[str, str]](), list[dict[str, str]]()
    if dry_run:
        writer.journal.read()
    with nullcontext() if dry_run else writer.journal.held():
        for planned in writer.run(dry_run=dry_run):
            job.advance(1)
            if isinstance(planned, BadPhoto):
                counts["failed"] += 1
                failed.append({"file": below(folder, planned.file), "reason": planned.reason})
            else:
                counts[planned.action] += 1
                name = below(folder, str(planned.target))
                shown.append({"file": name, "action": planned.action, "caption": planned.caption})
            del failed[_SHOWN:], shown[_SHOWN:]
    job.result = {"counts": counts, "failed": failed, "files": shown, "dry_run": dry_run}


def undo_writing(job: Job, folder: Path) -> None:
    journal = Journal(folder / REVIEWED)
    if not journal.path.exists():
        raise UserError("nothing has been written, so there is nothing to undo.")
    job.begin("restoring", 0)
    with journal.held():
        undone = journal.undo(Captions(folder / REVIEWED).shown_by)
    counts = {"restored": len(undone.restored), "failed": len(undone.problems)}
    counts |= {"withdrawn": len(undone.withdrawn)} if undone.withdrawn else {}
    job.result = {"counts": counts, "problems": undone.problems[:_SHOWN]}
