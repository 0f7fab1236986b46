"""A file with the form of a YOLOX export and no network in it: its answers are written down, and grow with the
brightness of the photo's three colours."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SIZE = (64, 96)  # height, width
STRIDES = (8, 16, 32)


def rows_of(size=SIZE, strides=STRIDES):
    return sum((size[0] // stride) * (size[1] // stride) for stride in strides)


def nothing(classes=3, size=SIZE):
    """What the network gives where it sees nothing: (A, 5 + C)"""
    return np.zeros((rows_of(size), 5 + classes), np.float32)


def write(file, answers, by_colour=None, *, size=SIZE, batch=1, shape=None, tensors=None):
    """A graph that answers (A, 5 + C), plus by_colour (3, A, 5 + C) times the means of blue, green and red (0..1).

    size     as the graph's input has it; a name stands for a number that is not fixed
    shape    of the output, where it is to be another
    tensors  changes to the graph's weights before it is written
    """
    by_colour = np.zeros((3, *answers.shape), np.float32) if by_colour is None else by_colour
    shape = [batch, *answers.shape] if shape is None else shape
    weights = [
        numpy_helper.from_array((by_colour.reshape(3, -1) / 255).astype(np.float32), "by_colour"),
        numpy_helper.from_array(answers.reshape(1, -1).astype(np.float32), "answers"),
        numpy_helper.from_array(np.array([number for number in shape if number], np.int64), "shape"),
    ]
    if tensors is not None:
        tensors(weights)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "by_colour"], ["seen"]),
        helper.make_node("Add", ["seen", "answers"], ["all"]),
        helper.make_node("Reshape", ["all", "shape"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny_yolox",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, *size])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    file.write_bytes(model.SerializeToString())
    return file
