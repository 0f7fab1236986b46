"""The commands' argument parsers: options by tables, and those that several commands have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any, Self

from capscore import command
from capscore.errors import UserError

_ENTRY = re.compile(r"(--)?(\S+?)(\?|\.\.\.)?(?: ([^\s=]+?)(\.\.\.)?)?(!)?(?:=(\S+))?\s\s+(.*)", re.DOTALL)


class Parser(command.Parser):
    """The parser of a command of tellapart; its first options may come with it."""

    def __init__(self, command: str, description: str, example: str, table: str = "", /, **details: Any):
        super().__init__(f"tellapart {command}", description, example)
        if table:
            self.options(table, **details)

    def options(
        self, table: str, title: str = "", about: str | None = None, /, *, exclusive: bool = False, **details: Any
    ) -> Self:
        """Options by a table that reads as their help does; with a title, a group of their own.

            PHOTO...            a positional argument; ...: several; ?: it may be absent
            --out DIR           an option with a value; DIR and F are paths, N is a whole number above 0
            --k N=5             with a default, which the help names unless it speaks of defaults itself
            --data DATA...!     several values; it must be there
            --by image|caption  choices are in small letters
            --again             on or off; lines that continue the help
                                are indented

        exclusive  at most one of them is taken
        details    by an option's name: its type, or settings of argparse
        """
        whole = self.add_argument_group(title, about) if title else self
        group = whole.add_mutually_exclusive_group() if exclusive else whole
        for entry in re.split(r"\n(?=\S)", dedent(table).strip()):
            match = _ENTRY.fullmatch(entry)
            assert match, entry
            dashes, name, number, metavar, several, required, default, text = match.groups()
            text = re.sub(r"\n *", " ", text)
            settings: dict[str, Any] = {"help": text.replace("%", "%%")}
            if dashes and metavar is None:
                settings["action"] = "store_true"
            elif dashes and metavar.islower():
                settings["choices"] = tuple(metavar.split("|"))
            else:
                settings |= {"metavar": metavar or name, "type": _TYPES.get((metavar or name).partition(".")[0])}
            if number or several:
                settings["nargs"] = "?" if number == "?" else "+"
            if required:
                settings["required"] = True
            if default:
                settings["default"] = default
                settings["help"] += "" if "default" in text else f" (default: {default})"
            dest = name.lower().replace("-", "_")
            detail = details.pop(dest, {})
            settings |= detail if isinstance(detail, dict) else {"type": detail}
            group.add_argument(f"--{name}" if dashes else settings.pop("dest", dest), **settings)
        assert not details, details
        return self


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


_TYPES: dict[str, Callable[[str], Any]] = {"N": positive, "DIR": Path, "F": Path}  # by what stands for the value


def number(text: str, least: float, most: float) -> float:
    """A number in a range."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be a number from {least:g} to {most:g}, not {text!r}")
    return value


def between(least: float, most: float) -> Callable[[str], float]:
    """Reads a number in a range."""
    return partial(number, least=least, most=most)


def port(text: str) -> int:
    return int(number(text, 0, 65535))


RAY: dict[str, Any] = {"nargs": "?", "const": "local"}
RAY_HELP = (
    "distribute the work over a Ray cluster: auto, or HOST:PORT of its head node; without a value, a cluster is "
    "started on this machine for this run.  Photos and model folders must have the same paths on every node"
)
DEVICE = "--device DEVICE=auto  cpu, cuda ... (default: a GPU if there is one)"
ADDRESS = """
--host HOST=127.0.0.1  address to listen on (default: this machine only)
--port PORT=8000       default: 8000; 0: any that is free
"""
ATTENTION = """
--attention N  draw what the words of N captions of each model attend to: DIR/attention/*.png, and in the report
--word WORD    with --attention: only what this word attends to
"""


Rules = Sequence[tuple[str, str, str]]


def check(request: argparse.Namespace, needs: Rules, excludes: Rules = ()) -> None:
    """Refuses options that do not go together.

    needs     options, the one that they need, and why
    excludes  an option, others that it cannot be combined with, and why
    """
    for names, needed, why in needs:
        for name in names.split():
            if is_set(request, name) and not is_set(request, needed):
                raise UserError(f"{option(name)} needs {option(needed)}, {why}.")
    for name, others, why in excludes:
        for other in others.split():
            if is_set(request, name) and is_set(request, other):
                raise UserError(f"{option(name)} and {option(other)} cannot be combined: {why}.")


def is_set(request: argparse.Namespace, name: str) -> bool:
    value = getattr(request, name)
    return value is not None and value is not False and value != "" and value != []


def option(name: str) -> str:
    """As it is typed: near_duplicates is --near-duplicates."""
    return f"--{name.replace('_', '-')}"


@contextmanager
def extra(name: str) -> Iterator[None]:
    """A sentence where a package is missing that an extra of ours brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in ("fastapi", "uvicorn", "sqlalchemy", "scipy"):
            raise UserError(f"this needs {error.name}; install it with: pip install 'tellapart[{name}]'") from None
        raise


def stated(**settings: Any) -> dict[str, Any]:
    """Without what was not asked for: the defaults are those of the call."""
    return {name: value for name, value in settings.items() if value is not None}
