"""An ONNX graph with its large matrices in 8 bits: a quarter of the bytes, and integer products.

At a word at a time a captioner waits for its matrices to come from memory, so that bytes are what time is spent on.

Weights     one scale for each column; unsigned, with 128 for 0, because AVX2 adds pairs of products with signed weights
            in 16 bits, which overflow
Activations one scale for each row, found when the graph runs.  onnxruntime's own dynamic quantisation has one for all
            rows together, and a caption would depend on what else is in its batch.
Biases, embeddings, attention between activations, and all that is not a matrix product stay as they are.  So does the
first matrix that a photo's features meet: a few of them are so large that 8 bits of a row leave little for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

SMALLEST = 4096  # numbers in a matrix; below it there is nothing to gain
_LEVELS = 127  # either side of 0
_DOMAIN = "com.microsoft"  # onnxruntime's own operators


def quantised(model: ModelProto, *, but_rows: int = 0) -> ModelProto:
    """A copy of a graph, whose products with constant matrices are made in integers.

    but_rows  matrices with so many rows stay as they are: the feature size
    """
    import onnx

    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    rewriter = _Rewriter({tensor.name: tensor for tensor in graph.initializer}, but_rows)
    nodes = [new for node in graph.node for new in rewriter.rewrite(node)]
    used = {name for node in nodes for name in node.input} | {output.name for output in graph.output}
    nodes = [node for node in nodes if used.intersection(node.output)]  # a transposed weight may be used no more
    used = {name for node in nodes for name in node.input} | {output.name for output in graph.output}
    tensors = [tensor for tensor in (*graph.initializer, *rewriter.tensors) if tensor.name in used]
    for field in (graph.node, graph.initializer, graph.value_info):
        del field[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)
    model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    return model


class _Rewriter:
    def __init__(self, constants: dict[str, TensorProto], but_rows: int):
        self.constants, self.but_rows = constants, but_rows
        self.tensors: list[TensorProto] = []
        self.transposed: dict[str, str] = {}  # name of a transposed constant -> the constant
        self.rows: set[str] = set()  # activations that are in 8 bits already

    def rewrite(self, node: NodeProto) -> list[NodeProto]:
        """The nodes in place of one."""
        if node.op_type == "Transpose" and node.input[0] in self.constants:
            self.transposed[node.output[0]] = node.input[0]
        weight = self.weight(node)
        if weight is None:
            return [node]
        from onnx.helper import make_node

        rows, out = node.input[0], node.output[0]
        bias = node.input[2] if len(node.input) > 2 else ""
        scale = np.maximum(np.abs(weight).max(0) / _LEVELS, np.float32(1e-30))
        self.add(f"{out}/weight", (np.rint(weight / scale) + 128).astype(np.uint8))
        self.add(f"{out}/scale", scale)
        self.add(f"{out}/zero", np.full(len(scale), 128, np.uint8))
        inputs = [f"{rows}/int8", f"{out}/weight", "int8/step", f"{out}/scale", "int8/zero", f"{out}/zero"]
        nodes = self.in_8_bits(rows)
        nodes.append(make_node("MatMulIntegerToFloat", inputs, [f"{out}/product"], domain=_DOMAIN))
        nodes.append(make_node("Mul", [f"{out}/product", f"{rows}/largest"], [f"{out}/scaled" if bias else out]))
        if bias:
            nodes.append(make_node("Add", [f"{out}/scaled", bias], [out]))
        return nodes

    def weight(self, node: NodeProto) -> NDArray[np.float32] | None:
        """The constant matrix (inputs, outputs) that a node multiplies rows with, if that is all it does."""
        from onnx.numpy_helper import to_array

        settings = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type not in ("Gemm", "MatMul"):
            return None
        if any(settings[name].f != 1 for name in ("alpha", "beta") if name in settings):
            return None
        if "transA" in settings and settings["transA"].i:
            return None
        name = self.transposed.get(node.input[1], node.input[1])
        if name not in self.constants or len(self.constants[name].dims) != 2:
            return None
        weight = to_array(self.constants[name])
        turned = name != node.input[1], "transB" in settings and bool(settings["transB"].i)
        if turned[0] != turned[1]:
            weight = weight.T
        large = weight.dtype == np.float32 and weight.size >= SMALLEST and weight.shape[1] > 1
        return np.ascontiguousarray(weight) if large and len(weight) != self.but_rows else None

    def in_8_bits(self, rows: str) -> list[NodeProto]:
        """Each row divided by its largest number, in steps either side of 0."""
        from onnx.helper import make_node

        if not self.rows:
            self.add("int8/step", np.array(1 / _LEVELS, np.float32))
            self.add("int8/zero", np.array(128, np.uint8))
            self.add("int8/last", np.array([-1], np.int64))
            self.add("int8/least", np.array(1e-30, np.float32))  # a row of zeros stays one
        if rows in self.rows:
            return []
        self.rows.add(rows)
        return [
            make_node("Abs", [rows], [f"{rows}/size"]),
            make_node("ReduceMax", [f"{rows}/size", "int8/last"], [f"{rows}/most"], keepdims=1),
            make_node("Max", [f"{rows}/most", "int8/least"], [f"{rows}/largest"]),
            make_node("Div", [rows, f"{rows}/largest"], [f"{rows}/share"]),
            make_node("QuantizeLinear", [f"{rows}/share", "int8/step", "int8/zero"], [f"{rows}/int8"]),
        ]

    def add(self, name: str, values: NDArray[np.generic]) -> None:
        from onnx.numpy_helper import from_array

        self.tensors.append(from_array(values, name))
