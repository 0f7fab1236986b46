"""A captioner that onnxruntime runs: the folder that `tellapart export` writes, behind the protocol of all captioners.

Tensors of torch and arrays of onnxruntime lie in the same memory, so that nothing is copied between the two.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tellapart import files, onnx_graph, onnx_session
from tellapart.captioners import select
from tellapart.data.streams import REGIONS, Inputs, Stream
from tellapart.errors import UserError

ENCODE, STEP = "encode.onnx", "step.onnx"
INSTALL = "pip install 'tellapart[export]'"

Leaves = tuple[Tensor, ...]
Memory = tuple[Leaves, Leaves]  # what the words may look at, and the state before the first of them


class ExportedCaptioner:
    """`encode`, `start`, `step` and `forward` by two graphs, on the CPU."""

    def __init__(self, encode: bytes, step: bytes):
        self._encode, self._step = onnx_session.session(encode, ENCODE), onnx_session.session(step, STEP)
        self._streams = [_stream(given.name) for given in self._encode.get_inputs() if not given.name.endswith("mask")]
        self._encoded = [output.name for output in self._encode.get_outputs()]
        self._step_inputs = [
            given.name for given in self._step.get_inputs()
        ]  # a captioner need not use all of its memory
        states = [name for name in self._encoded if name.startswith("state_")]
        memories = [name for name in self._encoded if name.startswith("memory_")]
        outputs = [output.name for output in self._step.get_outputs()]
        if (
            not set(self._step_inputs) <= {"token", *states, *memories}
            or outputs != ["logits", *(name.replace("state", "next") for name in states)]
            or not self._streams
            or {given.name for given in self._encode.get_inputs()}
            != {name for stream in self._streams for name in graph_names(stream)}
        ):
            raise UserError(f"{ENCODE} and {STEP} are not of the same captioner.")
        self._states, self._memories = len(states), len(memories)

    @property
    def vocab_size(self) -> Any:
        return self._step.get_outputs()[0].shape[1]

    @property
    def feature_sizes(self) -> dict[str, Any]:
        """D of each stream."""
        return {
            _stream(given.name): given.shape[2]
            for given in self._encode.get_inputs()
            if not given.name.endswith("mask")
        }

    def encode(self, inputs: Inputs) -> Memory:
        given = {name: tensor.cpu().contiguous().numpy() for name, tensor in to_graph(inputs).items()}
        leaves = tuple(map(torch.from_numpy, self._encode.run(None, given)))
        return leaves[: self._memories], leaves[self._memories :]

    def start(self, memory: Memory) -> Leaves:
        return memory[1]

    def step(self, token: Tensor, state: Leaves, memory: Memory) -> tuple[Tensor, Leaves]:
        seen = memory[0]
        photos = seen[0].shape[0]
        several = (photos, token.shape[0] // photos)  # B, K
        given = {"token": token.numpy().reshape(several)}
        for i, leaf in enumerate(state):
            given[f"state_{i}"] = leaf.numpy().reshape(*several, *leaf.shape[1:])
        for i, leaf in enumerate(seen):
            given[f"memory_{i}"] = leaf.numpy()
        logits, *following = self._step.run(None, {name: given[name] for name in self._step_inputs})
        return torch.from_numpy(logits), tuple(map(torch.from_numpy, following))

    def forward(self, tokens: Tensor, memory: Memory, token_mask: Tensor | None = None) -> Tensor:
        """Teacher forcing, word by word: tokens (N, T) -> logits (N, T, V), or (M, V) at the words."""
        rows = torch.arange(len(memory[0][0])).repeat_interleave(len(tokens) // len(memory[0][0]))
        state, logits = select(self.start(memory), rows), []
        for token in tokens.unbind(1):
            following, state = self.step(token, state, memory)
            logits.append(following)
        every = torch.stack(logits, 1)
        return every if token_mask is None else every[token_mask]


def graph_names(stream: str) -> tuple[str, str]:
    """What a stream and its mask are called in the graph; regions have their names from before there were others."""
    return ("features", "mask") if stream == REGIONS else (stream, f"{stream}_mask")


def _stream(name: str) -> str:
    return REGIONS if name == "features" else name


def to_graph(inputs: Inputs) -> dict[str, Tensor]:
    """What the graph of `encode` is given, by name."""
    given: dict[str, Tensor] = {}
    for stream, (values, mask) in inputs.items():
        given |= zip(graph_names(stream), (values.float(), mask), strict=True)
    return given


def from_graph(given: dict[str, Tensor]) -> Inputs:
    streams = [_stream(name) for name in given if not name.endswith("mask")]
    return Inputs((stream, Stream(*(given[name] for name in graph_names(stream)))) for stream in streams)


def is_exported(folder: Path) -> bool:
    return os.path.lexists(folder / STEP) or os.path.lexists(folder / ENCODE)


def load(folder: Path, settings: dict[str, Any]) -> tuple[ExportedCaptioner, str]:
    """The captioner of an exported folder and the hash of its graphs; refuses one of other sizes than it says."""
    if not onnx_session.is_installed():
        raise UserError(f"{folder} is run with onnxruntime, which is not installed; `{INSTALL}` brings it.")
    encode, step = _read(folder, ENCODE), _read(folder, STEP)
    try:
        captioner = ExportedCaptioner(encode, step)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    sizes = [("vocab_size", STEP, captioner.vocab_size)]
    sizes += [
        ("feature_size" if stream == REGIONS else f"{stream}_size", ENCODE, size)
        for stream, size in captioner.feature_sizes.items()
    ]
    for name, file, size in sizes:
        if size != settings.get(name):
            raise UserError(f"{folder / file} is of another model: its {name} is {size}, not {settings.get(name)}.")
    return captioner, hashlib.sha256(encode + step).hexdigest()


def _read(folder: Path, name: str) -> bytes:
    if not os.path.lexists(folder / name):
        raise UserError(f"{folder / name}: there is no such file; {ENCODE} and {STEP} go together.")
    data = files.read_bytes(files.inside(folder, name))
    try:
        outside = onnx_graph.reads_other_files(data)
    except ValueError as error:
        raise UserError(f"{folder / name} is damaged, or is no ONNX file ({error}).") from None
    if outside:
        raise UserError(f"{folder / name} keeps weights in another file, which is not read.")
    return data
