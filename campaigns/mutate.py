"""Valid files made wrong, by a random generator alone: the same seed makes the same file."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, 0.5, -1e308, float("nan"), float("inf"), "", " ", "a", "\0",
    "\ud800", "\x1b[2J", "../../etc/passwd", "a\nb", "x" * 5000, "é", "=1+1", "1e999", "null", [], {}, [[]], [1], ["a"],
    {"a": 1}, {"": None}, [None], [[["a"]]],
)  # fmt: skip
_TEXTS = (  # what stands for something in some format
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xe2\x80\xae",
        b"\x1b[2J",
        b'"',
        b"'",
        b"\\",
    ),
    *(b"[" * 200, b"{" * 200, b"[" * 3000, b'{"a":' * 2000, b"- " * 300, b"9" * 5000, b"<a>" * 500),
    *(b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ", b"%YAML 1.2\n---\n", b"---\n", b"...\n", b"? ", b"|\n"),
    *(
        b">-\n",
        b": ",
        b"#",
        b"\t",
        b",",
        b",,,,",
        b";",
        b'""',
        b"1e999",
        b"NaN",
        b"-Infinity",
        b"0x1F",
        b"true",
        b"null",
    ),
    *(
        b"~",
        b"<",
        b">",
        b"&",
        b"&amp;",
        b"&#0;",
        b"&#xD800;",
        b"<!ENTITY a 'ha'>",
        b"<![CDATA[",
        b"]]>",
        b"<!--",
        b"-->",
    ),
    b"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
    *(b"<?xpacket?>", b"<rdf:Alt>", b"xml:lang=''", b" xmlns:dc='x'", b"</", b"/>", b"![", b"](", b"<img ", b"`"),
)


def of_bytes(draw: random.Random, data: bytes, others: Sequence[bytes], *, head: int = 400) -> bytes:
    """Bytes, numbers and pieces changed, most of them at the beginning, where a format keeps what it says of itself."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5, 12))):
        place = _place(draw, found, head)
        draw.choice(_BYTES)(draw, found, place, others)
    return bytes(found)


def of_text(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Of a text also with what stands for something in some format."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 5))):
        place = _place(draw, found, len(found))
        if draw.random() < 0.5:
            _put(found, place, draw.choice((0, 0, 1, 5)), draw.choice(_TEXTS))
        elif draw.random() < 0.4:
            lines = bytes(found).split(b"\n")
            one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
            lines[one] = draw.choice((b"", lines[other], lines[one] * 2, b"  " + lines[one], lines[one][2:]))
            found = bytearray(b"\n".join(lines))
        else:
            draw.choice(_BYTES)(draw, found, place, others)
    return bytes(found)


def of_json(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Values, keys and lists of a JSON text changed, or one time in three its bytes; of JSON lines one line."""
    if draw.random() < 0.33:
        return of_text(draw, data, others)
    lines = data.split(b"\n") if b"\n{" in data and not data.startswith((b"{\n", b"[\n")) else [data]
    number = draw.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except ValueError:
        return of_text(draw, data, others)
    holder = [value]
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        _change(draw, holder)
    lines[number] = json.dumps(holder[0]).encode() if holder else b""
    return b"\n".join(lines)


def _change(draw: random.Random, holder: Any) -> None:
    """One place somewhere in nested lists and objects."""
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return
        key = draw.choice(keys)
        inner = holder[key]
        if isinstance(inner, list | dict) and inner and draw.random() < 0.8:
            holder = inner
            continue
        how = draw.random()
        if how < 0.6:
            holder[key] = deepcopy(draw.choice(_VALUES))
        elif how < 0.7:
            del holder[key]
        elif how < 0.8:
            holder[key] = deepcopy(holder[draw.choice(keys)])
        elif isinstance(holder, dict):
            holder[draw.choice(("", "id", "file", "\0", "x" * 300, "a\nb"))] = deepcopy(draw.choice(_VALUES))
        else:
            holder.extend(deepcopy(inner) for _ in range(draw.choice((1, 2, 50))))
        return


def _place(draw: random.Random, data: bytearray, head: int) -> int:
    end = min(len(data), head) if draw.random() < 0.7 else len(data)
    return draw.randrange(end) if end else 0


def _put(data: bytearray, place: int, length: int, new: bytes) -> None:
    data[place : place + length] = new


def _flip(draw: random.Random, data: bytearray, place: int, _: Sequence[bytes]) -> None:
    if data:
        data[place] ^= 1 << draw.randrange(8)


def _byte(draw: random.Random, data: bytearray, place: int, _: Sequence[bytes]) -> None:
    if data:
        data[place] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))


def _number(draw: random.Random, data: bytearray, place: int, _: Sequence[bytes]) -> None:
    form, value = draw.choice("<>") + draw.choice("HIQ"), draw.choice(_NUMBERS)
    size = struct.calcsize(form)
    _put(data, place, size, struct.pack(form, value & ((1 << 8 * size) - 1)))


def _cut(draw: random.Random, data: bytearray, place: int, _: Sequence[bytes]) -> None:
    if draw.random() < 0.5:
        del data[draw.randrange(len(data) + 1) :]
    else:
        del data[place : place + draw.choice((1, 2, 4, 16, 100))]


def _repeat(draw: random.Random, data: bytearray, place: int, _: Sequence[bytes]) -> None:
    piece = bytes(data[place : place + draw.choice((1, 2, 8, 64, 300))])
    _put(data, place, 0, piece * draw.choice((1, 1, 4, 30)))


def _insert(draw: random.Random, data: bytearray, place: int, _: Sequence[bytes]) -> None:
    _put(data, place, 0, draw.choice((draw.randbytes(4), bytes(8), b"\xff" * 8, draw.randbytes(64))))


def _splice(draw: random.Random, data: bytearray, place: int, others: Sequence[bytes]) -> None:
    other = draw.choice(others)
    start = draw.randrange(len(other) + 1)
    _put(data, place, draw.choice((0, 10**9)), other[start : start + draw.choice((4, 40, 400, 10**9))])


_BYTES: tuple[Callable[[random.Random, bytearray, int, Sequence[bytes]], None], ...] = (
    _flip, _flip, _byte, _byte, _number, _number, _cut, _repeat, _insert, _splice,
)  # fmt: skip
