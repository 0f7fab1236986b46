"""What readers promise (`data.readers`): the schema of a source that is theirs, one sentence about any other."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capscore.errors import UserError
from tellapart.data import examples
from tellapart.data.readers import READERS
from tellapart.protocols import Check

_OTHERS = {
    "empty": b"",
    "binary": bytes(range(256)),
    "half.json": b'{"images": [{"id": 1, "file": "a.jpg", "capt',
    "list.json": b"[1, null, {}]",
    "deep.json": b"[" * 100_000,
    "nul.tsv": b"a.jpg\x00\ta dog\n",
}


@dataclass(frozen=True)
class Case:
    name: str
    source: Path | None  # one of its own
    photos: Path | None = None


def reads_its_source(case: Case) -> None:
    """It makes a data set of its source, which other commands take."""
    if case.source is None:
        return
    made = READERS[case.name].load()(case.source, case.photos)
    assert made.examples, "; ".join(made.problems[:3]) or "no photo of it can be used"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.json"
        examples.write(made, file)
        again = examples.read(file)
    assert not again.problems, "; ".join(again.problems[:3])
    assert len(again.examples) == len(made.examples)


def says_what_is_wrong(case: Case) -> None:
    """Of a file that is none of its own it says one sentence (UserError), or takes what it can."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in _OTHERS.items():
            file = Path(folder) / name
            file.write_bytes(data)
            try:
                READERS[case.name].load()(file, None)
            except UserError:
                continue
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} for the file {name!r}") from None


def has_a_source(case: Case) -> None:
    """What it makes of its own files was checked: name one (tellapart check SOURCE)."""
    assert case.source is not None


CHECKS: Sequence[Check] = (reads_its_source, says_what_is_wrong)
NOTES: Sequence[Check] = (has_a_source,)
