"""A study folder: `study.json` with everything that is shown, `photos/` by id, and the answers.

The folder has all that a server needs, so that it can be copied to one.  Photos are drawn anew: names, places and dates
of the originals stay out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from capscore import files
from capscore.errors import UserError
from capscore.printable import printable
from tellapart.study.design import KINDS, Kind, Trial

FORMAT = 1
_NAME = "study.json"


@dataclass
class Study:
    kind: Kind
    title: str
    consent: str
    completion_code: str
    models: list[str]  # the first is what the others are compared with
    sessions: list[list[Trial]]
    photos: dict[str, str]  # id -> the photo's id in the data
    settings: dict[str, Any] = field(default_factory=dict)  # seed, retriever and so on, for the record

    def trials(self) -> dict[str, Trial]:
        return {trial.id: trial for session in self.sessions for trial in session}


def save(study: Study, folder: Path, pictures: Iterable[tuple[str, bytes]]) -> None:
    """The photos first: a folder with a `study.json` is whole."""
    if (folder / _NAME).exists():
        raise UserError(f"{folder}: there is a study in this folder already; choose another one.")
    for id, data in pictures:
        files.replace(photo(folder, id), data)
    content = {"format": FORMAT, **asdict(study)}
    files.replace(folder / _NAME, (json.dumps(content, indent=1) + "\n").encode("ascii"))


def photo(folder: Path, id: str) -> Path:
    return folder / "photos" / f"{id}.webp"


def load(folder: Path) -> Study:
    path = folder / _NAME
    if not files.is_file(path):
        raise UserError(f"{folder}: this is no study folder; `tellapart study new` makes one.")
    content = files.read_json(path)
    version = content.pop("format", None)
    if version != FORMAT:
        raise UserError(f"{path}: this study has format {version!r}, and this version of tellapart reads {FORMAT}.")
    try:
        sessions = [[_trial(trial) for trial in session] for session in content.pop("sessions")]
        study = Study(sessions=sessions, **content)
        texts = (study.title, study.consent, study.completion_code)
        if study.kind not in KINDS or not all(isinstance(text, str) for text in texts):
            raise TypeError("a field has another type")
        known, ids = set(study.photos), [trial.id for session in sessions for trial in session]
        whole = len(set(ids)) == len(ids) and all(sessions) and bool(sessions)
        if not whole or any(not known >= {*trial.photos, trial.set} for one in sessions for trial in one):
            raise ValueError("a trial is there twice, or has an unknown photo")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path}: this is not a study as `tellapart study new` writes it ({printable(str(error))})."
        ) from None
    return study


def _trial(content: dict[str, Any]) -> Trial:
    lists: dict[str, Any] = {name: tuple(content.pop(name)) for name in ("models", "captions", "photos")}
    return Trial(**content, **lists)
