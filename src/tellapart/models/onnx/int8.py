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

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

SMALLEST = 4096  # numbers in a matrix; below it there is nothing to gain
_LEVELS = 127  # either side of 0
_DOMAIN = "com.microsoft"  # onnxruntime's own operators


def quantised(model: ModelProto, *, but_rows: Collection[int] = ()) -> ModelProto:
    """A copy of a graph, whose products with constant matrices are made in integers.

    but_rows  matrices with so many rows stay as they are: the feature sizes
    """
    import onnx

    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    rewriter = _Rewriter(graph, but_rows)
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


class _Product(NamedTuple):
    """A node that multiplies rows with a constant matrix, and may add a bias."""

    rows: str
    out: str
    weight: NDArray[np.float32]  # (inputs, outputs)
    bias: NDArray[np.float32]  # (outputs,)


class _Rewriter:
    """Products of the same rows, such as queries, keys and values, are made as one and taken apart again."""

    def __init__(self, graph: GraphProto, but_rows: Collection[int]):
        self.constants, self.but_rows = {tensor.name: tensor for tensor in graph.initializer}, but_rows
        self.tensors: list[TensorProto] = []
        # name of a transposed constant -> the constant
        self.transposed = {
            node.output[0]: node.input[0]
            for node in graph.node
            if node.op_type == "Transpose" and node.input[0] in self.constants
        }
        self.positive = {node.output[0] for node in graph.node if node.op_type == "Relu"}
        self.products: dict[str, list[_Product]] = defaultdict(list)  # by their rows
        for node in graph.node:
            if product := self.product(node):
                self.products[product.rows].append(product)
        self.made = {product.out for together in self.products.values() for product in together}

    def rewrite(self, node: NodeProto) -> list[NodeProto]:
        """The nodes in place of one."""
        if node.output[0] not in self.made:
            return [node]
        return self.in_8_bits(node.input[0], self.products.pop(node.input[0], []))

    def in_8_bits(self, rows: str, products: list[_Product]) -> list[NodeProto]:
        """Each row divided by its largest number, in steps either side of 0, times all matrices that it meets.

        A row of zeros becomes some row of 8-bit numbers: its product is multiplied with its largest number, 0.
        """
        from onnx.helper import make_node

        if not products:  # the first of them made them all
            return []
        weight = np.concatenate([product.weight for product in products], axis=1)
        scale = np.maximum(np.abs(weight).max(0) / _LEVELS, np.float32(1e-30))
        step = self.constant("int8/step", np.array(1 / _LEVELS, np.float32))
        zero = self.constant("int8/zero", np.array(128, np.uint8))
        last = self.constant("int8/last", np.array([-1], np.int64))
        inputs = [
            f"{rows}/int8",
            self.constant(f"{rows}/weight", (np.rint(weight / scale) + 128).astype(np.uint8)),
            step,
            self.constant(f"{rows}/scale", scale),
            zero,
            self.constant(f"{rows}/zero", np.full(len(scale), 128, np.uint8)),
        ]
        sizes = rows if rows in self.positive else f"{rows}/size"
        nodes = [] if rows in self.positive else [make_node("Abs", [rows], [sizes])]
        nodes += [
            make_node("ReduceMax", [sizes, last], [f"{rows}/largest"], keepdims=1),
            make_node("Div", [rows, f"{rows}/largest"], [f"{rows}/share"]),
            make_node("QuantizeLinear", [f"{rows}/share", step, zero], [f"{rows}/int8"]),
            make_node("MatMulIntegerToFloat", inputs, [f"{rows}/product"], domain=_DOMAIN),
        ]
        outs = [product.out for product in products]
        whole = outs[0] if len(outs) == 1 else f"{rows}/whole"
        bias = np.concatenate([product.bias for product in products])
        scaled = f"{rows}/scaled" if bias.any() else whole
        nodes.append(make_node("Mul", [f"{rows}/product", f"{rows}/largest"], [scaled]))
        if bias.any():
            nodes.append(make_node("Add", [scaled, self.constant(f"{rows}/bias", bias)], [whole]))
        if len(outs) > 1:
            widths = self.constant(f"{rows}/widths", np.array([len(product.bias) for product in products]))
            nodes.append(make_node("Split", [whole, widths], outs, axis=-1))
        return nodes

    def product(self, node: NodeProto) -> _Product | None:
        from onnx.numpy_helper import to_array

        weight = self.weight(node)
        if weight is None:
            return None
        bias = np.zeros(weight.shape[1], np.float32)
        if len(node.input) > 2 and node.input[2]:
            if node.input[2] not in self.constants:
                return None
            bias = bias + to_array(self.constants[node.input[2]])
        return _Product(node.input[0], node.output[0], weight, bias)

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
        return np.ascontiguousarray(weight) if large and len(weight) not in self.but_rows else None

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        from onnx.numpy_helper import from_array

        if name not in self.constants:
            self.constants[name] = from_array(values, name)
            self.tensors.append(self.constants[name])
        return name
