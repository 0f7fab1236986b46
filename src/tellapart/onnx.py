"""Graphs that onnxruntime runs, on the CPU; and whether a graph would have it open other files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.system import package as package_folder
from tellapart.hub import reason


def is_installed() -> bool:
    return package_folder("onnxruntime") is not None


def session(graph: bytes | Path, name: str, weights: Mapping[str, NDArray[Any]] | None = None) -> Any:
    """Runs a graph with as many threads as torch has; they do not spin while torch works in between.

    graph    its bytes, or its file where its weights lie in another one beside it
    name     of the graph, for messages
    weights  in place of those that lie in another file, by their names in the graph
    """
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")  # the only one that is checked
    options.log_severity_level = 3  # errors: they are raised as well
    if weights is not None:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
        options.add_external_initializers(list(weights), values)
    source = graph if isinstance(graph, bytes) else str(graph)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for each way to be damaged
        cause = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", reason(error))[:200]
        raise UserError(f"{name} is damaged, or is no ONNX file that onnxruntime can run ({cause}).") from None


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
    """True where a graph keeps weights in other files, which onnxruntime would open.

    A file's path is then in the graph, and found from the current folder.  So the messages of the graph are gone
    through here, by the numbers of their fields (onnx.proto), without the package onnx, which running a graph does not
    need.  Raises ValueError where this is no ONNX file.
    """
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
        number, wire = key >> 3, key & 7
        if wire == _NUMBER:
            value, place = _varint(message, place)
            yield number, value
            continue
        if wire == _LENGTH:
            length, place = _varint(message, place)
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if wire == _EIGHT_BYTES else 4
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
