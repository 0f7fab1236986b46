"""Parts that the commands' argument parsers share."""

from __future__ import annotations

import argparse

from capscore import command
from capscore.errors import UserError


class Parser(command.Parser):
    """The parser of a command of tellapart."""

    def __init__(self, command: str, description: str, example: str):
        super().__init__(f"tellapart {command}", description, example)


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


def add_ray(parser: argparse.ArgumentParser | argparse._ArgumentGroup, more: str = "") -> None:
    """more  of the help"""
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="local",
        help="distribute the work over a Ray cluster: auto, or HOST:PORT of its head node; without a value, a cluster "
        "is started on this machine for this run.  Photos and model folders must have the same paths on every "
        f"node{more}",
    )


def add_address(parser: Parser) -> None:
    """Options for the address at which a server listens."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=port, default=8000, help="default: %(default)s; 0: any that is free")


def port(text: str) -> int:
    return int(number(text, 0, 65535))


def add_attention(parser: Parser) -> None:
    parser.add_argument(
        "--attention",
        metavar="N",
        type=positive,
        default=0,
        help="draw what the words of N captions of each model attend to: DIR/attention/*.png, and in the report",
    )
    parser.add_argument("--word", metavar="WORD", default="", help="with --attention: only what this word attends to")


def check_attention(request: argparse.Namespace) -> None:
    if request.attention and not request.out:
        raise UserError("--attention needs --out, the folder for the pictures.")
    if request.word and not request.attention:
        raise UserError("--word needs --attention, the number of captions to draw.")
