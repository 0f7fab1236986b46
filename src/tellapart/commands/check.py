"""tellapart check: run the protocol tests on what a plugin registers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from capscore.errors import UserError
from capscore.printable import print_row
from tellapart.commands.arguments import Parser


def parser() -> Parser:
    return Parser(
        "check",
        "Check the captioners, encoders, rewards, measures and readers of a plugin, as our own are tested:\n"
        "for example that a captioner's `step` says what its `forward` says, that padding changes nothing, that\n"
        "photos of a batch do not affect each other, that features have the declared shapes.  A line for each part,\n"
        "and one for each check that fails.\n"
        "\n"
        "Exit 1: something failed.",
        "tellapart check --plugin my_captioner.py\n  tellapart check pairs.tsv --plugin my_reader.py",
        """
        SOURCE?       for readers: a file that they read
        --photos DIR  for readers: where the photos are
        """,
        source=Path,
    )


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

    from tellapart.protocols import Case, failure
    from tellapart.protocols.captioners import CaptionerCase
    from tellapart.protocols.parts import EncoderCase, MeasureCase, ReaderCase, RewardCase, pool

    code = 0
    with ExitStack() as held:
        makers: dict[str, Callable[[str], Case]] = {
            "captioner": CaptionerCase,
            "encoder": EncoderCase,
            "reward": lambda name: RewardCase(name, pool(held)),
            "measure": MeasureCase,
            "reader": partial(ReaderCase, source=request.source, photos=request.photos),
        }
        for what, name in parts:
            cases = list[Case]()
            error = failure("It can be made as the protocol says", lambda: cases.append(makers[what](name)))  # noqa: B023
            failed = [error] if error else cases[0].failures(cases[0].checks())
            for sentence in failed or (f"passed, but {note}" for note in cases[0].failures(cases[0].notes)):
                print_row(f"{what} {name}: {sentence}")
            if failed:
                code = 1
            else:
                print_row(f"{what} {name}: {len(cases[0].checks())} checks passed")
    return code
