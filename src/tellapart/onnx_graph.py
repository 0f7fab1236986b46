"""What an ONNX file says before it is run: whether it keeps weights in other files, which onnxruntime would open.

A file's path is then in the graph, and found from the current folder.  So the messages of the graph are gone through
here, by the numbers of their fields (onnx.proto), without the package onnx, which running a graph does not need.
"""

from __future__ import annotations

from collections.abc import Iterator

_PARTS: dict[str, dict[int, str]] = {  # message -> number of a field -> the message in it
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL = (13, 14)  # of a tensor: where its numbers are, and that they are not in it
_DEEPEST = 64  # graphs in nodes of graphs
_NUMBER, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # how a field is written


def reads_other_files(data: bytes) -> bool:
    """Raises ValueError where this is no ONNX file."""
    return _reads_other_files(memoryview(data), "model", 0)


def _reads_other_files(message: memoryview, kind: str, depth: int) -> bool:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    for number, value in _fields(message):
        if kind == "tensor" and number in _EXTERNAL and value != 0:
            return True
        part = _PARTS[kind].get(number)
        if part is not None and isinstance(value, memoryview) and _reads_other_files(value, part, depth + 1):
            return True
    return False


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Number and value of each field."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, how = key >> 3, key & 7
        if how == _NUMBER:
            value, place = _varint(message, place)
            yield number, value
            continue
        if how == _LENGTH:
            length, place = _varint(message, place)
        elif how in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if how == _EIGHT_BYTES else 4
        else:
            raise ValueError("a field of it is written in no known way")
        if place + length > len(message):
            raise ValueError("it is cut short")
        yield number, message[place : place + length]
        place += length


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """A number of up to ten bytes, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte, place = message[place], place + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("it is cut short")
