"""tellapart score: compare captions with references, by capscore."""

from __future__ import annotations

from capscore import command
from capscore.command import Parser

PROGRAM = "tellapart score"


def parser() -> Parser:
    return command.parser(PROGRAM)


def main(arguments: list[str]) -> int:
    return command.main(arguments, PROGRAM)
