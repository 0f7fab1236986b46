"""What the commands' argument parsers share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from tellapart.errors import UserError


class Parser(argparse.ArgumentParser):
    """One sentence for a wrong argument, and help that ends with an example."""

    def __init__(self, command: str, description: str, example: str):
        super().__init__(
            prog=f"tellapart {command}",
            description=description,
            epilog=f"for example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help.")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def number(text: str, least: float, most: float) -> float:
    """A number in a range."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be a number from {least:g} to {most:g}, not {text!r}")
    return value
