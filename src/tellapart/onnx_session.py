"""Graphs that onnxruntime runs, on the CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.paths import package as package_folder
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
