"""tellapart check: run the protocol tests on what a plugin registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from capscore.errors import UserError
from capscore.printable import print_row
from tellapart.commands.arguments import Parser


def parser() -> Parser:
    parser = Parser(
        "check",
        "Check the captioners, encoders, rewards, measures and readers of a plugin, as our own are tested:\n"
        "for example that a captioner's `step` says what its `forward` says, that padding changes nothing, that\n"
        "photos of a batch do not affect each other, that features have the declared shapes.  A line for each part,\n"
        "and one for each check that fails.\n"
        "\n"
        "Exit 1: something failed.",
        "tellapart check --plugin my_captioner.py\n  tellapart check pairs.tsv --plugin my_reader.py",
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", type=Path, help="for readers: a file that they read")
    parser.add_argument("--photos", metavar="DIR", type=Path, help="for readers: where the photos are")
    return parser


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    from capscore.measures import MEASURES
    from tellapart.captioners import CAPTIONERS
    from tellapart.data.readers import READERS
    from tellapart.encoders import ENCODERS
    from tellapart.rewards.registry import REWARDS

    tables = (CAPTIONERS, ENCODERS, REWARDS, MEASURES, READERS)
    parts = [(table.what, name) for table in tables for name, plugin in table.added.items() if plugin and name in table]
    if not parts:
        raise UserError("no plugin has registered anything; name its file by --plugin.")
    code = 0
    with ExitStack() as held:
        for what, name in parts:
            passed, failed, notes = _checked(what, name, request.source, request.photos, held)
            for sentence in [*failed, *(f"passed, but {note}" for note in notes)]:
                print_row(f"{what} {name}: {sentence}")
            if failed:
                code = 1
            else:
                print_row(f"{what} {name}: {passed} checks passed")
    return code


def _checked(
    what: str, name: str, source: Path | None, photos: Path | None, held: ExitStack
) -> tuple[int, list[str], list[str]]:
    """How many checks passed, and a sentence for each that failed or that says what should be known.

    held  what the checks need until all are done
    """
    from tellapart.protocols import Check, captioners, encoders, failures, measures, readers, rewards

    protocols: dict[str, tuple[Sequence[Check], Callable[..., object]]] = {
        "captioner": (captioners.CHECKS, captioners.case),
        "encoder": (encoders.CHECKS, encoders.case),
        "reward": (rewards.CHECKS, partial(rewards.case, held=held)),
        "measure": (measures.CHECKS, measures.case),
        "reader": (readers.CHECKS, partial(readers.Case, source=source, photos=photos)),
    }
    checks, make = protocols[what]
    cases: list[Any] = []

    def can_be_made(name: str) -> None:
        """It can be made as the protocol says."""
        cases.append(make(name))

    if failed := list(failures([can_be_made], name)):
        return 0, failed, []
    failed = list(failures(checks, cases[0]))
    notes = () if failed else {"reward": rewards.NOTES, "reader": readers.NOTES}.get(what, ())
    return len(checks) - len(failed), failed, list(failures(notes, cases[0]))
