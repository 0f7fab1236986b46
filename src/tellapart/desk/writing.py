"""Captions into a file: rows are saved as they are made, and a run that is started again continues where it stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from capscore.printable import counted, first_few, print_message
from capscore.progress import Progress
from tellapart.captioning.rerank import places
from tellapart.data.captions import Caption
from tellapart.data.items import Input, Unusable
from tellapart.data.media import clips
from tellapart.desk import resume
from tellapart.desk.rows import Row
from tellapart.desk.sources import CaptionSource
from tellapart.parallel import batched, ordered_map

_SAVED_TOGETHER = 16  # rows; a kill loses at most so many


class RowStore(Protocol):
    """Where rows go: a `CaptionsFile`, or a database."""

    rows: list[Row]

    @property
    def path(self) -> object:
        """Its name, for messages."""

    def writing(self) -> AbstractContextManager[None]: ...

    def keep(self, rows: Iterable[Row]) -> None: ...

    def append(self, rows: Iterable[Row]) -> None: ...

    def read_again(self) -> list[Row]: ...

    def copy(self) -> Path: ...


def write(speaker: CaptionSource, inputs: list[Input], out: RowStore, *, again: bool | None = None) -> int:
    """Rows in a file, those that are there already left as they are.  Returns how many photos failed.

    again  those that a person neither wrote nor approved are made anew; None: a caller who cannot ask for that
    """
    with out.writing():
        return _write(speaker, inputs, out, again)


def _write(speaker: CaptionSource, inputs: list[Input], out: RowStore, again: bool | None) -> int:
    photos: dict[str, Input] = {}
    for place, photo in zip(places([photo.file for photo in inputs]), inputs, strict=True):
        photos.setdefault(place, photo)  # a photo may be named twice, in two ways
    place_of = {photo.file: place for place, photo in photos.items()}
    before = resume.arrange(out.rows, photos, speaker.settings, again=bool(again))
    todo = [photo.file for place, photo in photos.items() if place not in before.done]
    replaced = [row for file in todo for row in before.of_photos[place_of[file]]]
    if any(map(resume.is_of_unknown_hand, replaced)):
        _keep_copy(out)
    out.keep(before.all())
    stay = [row for place in before.done for row in resume.chosen(before.of_photos[place])]
    speaker.remember({row["file"]: row["caption"] for row in [*before.others, *stay] if "caption" in row})
    witness = resume.Witness(todo)
    made: list[Row] = []
    called = clips.unit(photo.file for photo in photos.values())
    with Progress("captions", len(photos), unit=called, done=len(before.done)) as bar:
        failed = Unusable(bar.message)
        for batch in batched(speaker.caption(todo), _SAVED_TOGETHER):
            pictures = ordered_map(witness.picture, [caption.file for caption in batch])
            rows = [
                resume.new_row(
                    _row(photos[place_of[caption.file]], caption, speaker.language),
                    before.of_photos[place_of[caption.file]],
                    picture or caption.sha256,
                    speaker.settings,
                )
                for caption, picture in zip(batch, pictures, strict=True)
            ]
            out.append(rows)
            speaker.saved([caption.file for caption in batch if not caption.error])
            made += rows
            for caption in batch:
                if caption.error:
                    failed.add(caption.file, caption.error)
            bar.advance(len(batch))
        failed.rest()  # all have a row
    # What was made of a photo before, with other settings, stays until there is something better than an error; and
    # what a person wrote stays, even if it was written only just now.
    after = resume.by_place(list(resume.merged(out.read_again(), made)), photos)
    out.keep(after.chosen())
    remade = Counter(before.why[place_of[row["file"]]] for row in made if "caption" in row)
    print_message(_summary(out, before, after, remade, len(failed), may_ask=again is False))
    if before.changed:
        print_message(f"the picture has changed since its caption was edited by hand: {first_few(before.changed)}")
    return len(failed)


def _row(photo: Input, caption: Caption, language: str) -> Row:
    row = caption.row() | ({} if photo.id is None else {"id": photo.id})
    return row | {"language": language} if language and "caption" in row else row


def _keep_copy(out: RowStore) -> None:
    copy = out.copy()
    print_message(f"{out.path}: written by an earlier version, which did not record edits; a copy is in {copy}")


def _summary(
    out: RowStore, before: resume.Rows, after: resume.Rows, remade: Counter[str], failed: int, *, may_ask: bool
) -> str:
    """remade  how many captions were made, by `Rows.why`"""
    edited = sum(any(map(resume.is_by_hand, rows)) for rows in after.of_photos.values())
    new = remade.pop("", 0)
    parts = [f"{len(before.done):,} kept"] if before.done else []
    parts = [f"{part} (--again makes them anew)" if may_ask and new else part for part in parts]
    parts += [f"{new:,} new"] if new and (before.done or remade) else []
    parts += [f"{count:,} made anew ({why})" for why, count in remade.items()]
    text = f"{counted(len(after.of_photos) - failed, 'caption')} in {out.path}"
    text += f": {', '.join(parts)}" if parts else ""
    text += f"; {edited:,} edited by hand" if edited else ""
    text += f"; {counted(failed, 'photo')} could not be used" if failed else ""
    return text + (f"; {counted(len(after.others), 'row')} of other photos kept" if after.others else "")
