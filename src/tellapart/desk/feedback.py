"""Decisions of people about captions, in a reviewed captions file or a study, as decisions to learn from.

captions file   edited: the new caption is better than the original; approved, rejected: a caption by itself
study: compare  the preferred caption is better, by each of the two questions; a tie says nothing
study: choose, order   a caption by which a person found its photo first is approved, any other is rejected
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from capscore.errors import UserError
from capscore.files import is_folder
from capscore.printable import print_message
from tellapart.desk.captions_file import CaptionsFile, review_of
from tellapart.rewards.preference import LEAST, Decision


def read(path: Path) -> list[Decision]:
    """At least so many that something can be learned."""
    decisions = list(_of_study(path) if is_folder(path) else _of_captions(path))
    if len(decisions) < LEAST:
        raise UserError(
            f"--feedback {path}: has {len(decisions)} captions that a person has approved, rejected, edited or "
            f"compared; {LEAST} are needed."
        )
    return decisions


def _of_captions(path: Path) -> Iterator[Decision]:
    file = CaptionsFile(path, "--feedback ")
    if not path.exists():
        raise UserError(f"--feedback {path}: there is no such file.")
    for problem in file.problems:
        print_message(problem)
    for row in file.rows:
        caption, original = row.get("caption", "").strip(), str(row.get("original", "")).strip()
        match review_of(row):
            case None:
                continue
            case "rejected":
                decision = Decision(row["file"], worse=caption)
            case _:
                decision = Decision(row["file"], better=caption, worse=original if original != caption else "")
        if decision.better or decision.worse:  # or there was no caption to decide about
            yield decision


def _of_study(folder: Path) -> Iterator[Decision]:
    try:
        from tellapart.study.folder import ANSWERS, CRITERIA, FIRST, SECOND, Answers, load
        from tellapart.study.results import analyse
    except ImportError as error:
        raise UserError(f"--feedback {folder}: studies need pip install 'tellapart[study]' ({error.name}).") from None

    study = load(folder)
    if not (folder / ANSWERS).exists():
        raise UserError(f"--feedback {folder}: this study has no answers yet.")
    for row in analyse(study, *Answers(folder).all()).counted:  # without people who failed their attention checks
        trial, response = row.trial, row.answer.response
        if study.kind != "compare":
            right = row.rank == 1
            yield Decision(trial.set, *((trial.captions[0], "") if right else ("", trial.captions[0])))
            continue
        for answer in (response[criterion] for criterion in CRITERIA):
            if answer in (FIRST, SECOND) and trial.captions[0] != trial.captions[1]:
                first, second = trial.captions
                yield Decision(trial.set, *((first, second) if answer == FIRST else (second, first)))
