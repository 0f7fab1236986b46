"""Text of others on a terminal: a file's name, a caption or a recipe can hold anything, and must not steer or forge it.

`printable` is for a text that becomes part of a line.  While a command runs, everything else that is written to stdout
and stderr goes through `printable_streams`, which leaves only line breaks and tabs as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

# Controls (C0, DEL, C1, also as single bytes of a name that is not UTF-8), separators of lines and paragraphs, and what
# turns the direction of writing around: Unicode's Bidi_Control.
_STEERING = "\x00-\x1f\x7f-\x9f\udc80-\udc9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
UNPRINTABLE = re.compile(f"[{_STEERING}]")
_UNPRINTABLE_BUT_LAYOUT = re.compile(f"(?![\t\n])[{_STEERING}]")
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # halves of characters that stand for no byte of a file's name


def printable(text: str) -> str:
    """In one line, with what would steer a terminal written out, such as \\x1b and \\n.

    >>> printable("a\\tred\\x1b[31m bus")
    'a\\\\tred\\\\x1b[31m bus'
    """
    return text if text.isprintable() else UNPRINTABLE.sub(_written_out, _as_terminals_read(text))


def printable_lines(text: str) -> str:
    """The same, but line breaks and tabs stay: for a text that is laid out already."""
    return text if text.isprintable() else _UNPRINTABLE_BUT_LAYOUT.sub(_written_out, _as_terminals_read(text))


def print_row(*cells: str) -> None:
    """One line on stdout, with tabs between the cells and nowhere else."""
    print("\t".join(map(printable, cells)), flush=True)


def print_message(text: str) -> None:
    """One line on stderr."""
    print(printable(text), file=sys.stderr)


def first_few(names: Iterable[str], few: int = 3) -> str:
    """a, b, c and 7 more."""
    names = list(names)
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def counted(number: int, thing: str) -> str:
    """
    >>> counted(1, "photo"), counted(2000, "photo")
    ('1 photo', '2,000 photos')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def print_problems(problems: Collection[str]) -> int:
    """The exit code of a command that could not use these, each of which gets a line on stderr."""
    for problem in problems:
        print_message(problem)
    return 1 if problems else 0


@contextmanager
def printable_streams() -> Iterator[None]:
    """Nothing but text, line breaks and tabs reaches stdout and stderr."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and cast(TextIO, _PrintableStream(unguarded(stream))) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


@contextmanager
def bars_on_stderr() -> Iterator[None]:
    """For a library that draws progress bars of its own, which move the cursor."""
    stream = sys.stderr
    sys.stderr = stream and unguarded(stream)
    try:
        yield
    finally:
        sys.stderr = stream


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for what we draw on a terminal."""
    return stream.stream if isinstance(stream, _PrintableStream) else stream


class _PrintableStream:
    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _as_terminals_read(text: str) -> str:
    """With half characters written out, and bytes that make up a character together as that character."""
    whole = _NO_BYTE.sub(_written_out, text)
    return whole.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else repr(match[0])[1:-1]
