import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tellapart.models.onnx import int8


def graph(nodes, constants, columns):
    """rows (N, 64) -> out (N, columns)"""
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])]
        for name, size in (("rows", 64), ("out", columns))
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    opset = helper.make_opsetid("", 18)
    return helper.make_model(helper.make_graph(nodes, "g", *values, tensors), opset_imports=[opset], ir_version=10)


def run(model, rows):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"rows": rows})[0]


@pytest.fixture
def draw():
    return np.random.default_rng(0)


def numbers(draw, *shape):
    return draw.standard_normal(shape).astype(np.float32)


def gemm(weight, bias, **settings):
    return graph(
        [helper.make_node("Gemm", ["rows", "w", "b"], ["out"], **settings)], {"w": weight, "b": bias}, len(bias)
    )


@pytest.mark.parametrize("form", ["gemm", "gemm, transposed", "matmul", "matmul of a transposed constant"])
def test_products_with_a_constant_matrix_are_nearly_what_they_were(draw, form):
    weight, bias, rows = numbers(draw, 64, 100), numbers(draw, 100), numbers(draw, 7, 64)
    turn = helper.make_node("Transpose", ["t"], ["w"], perm=[1, 0])
    product = helper.make_node("MatMul", ["rows", "w"], ["out"])
    model, expected = {
        "gemm": (gemm(weight, bias), rows @ weight + bias),
        "gemm, transposed": (gemm(weight.T.copy(), bias, transB=1), rows @ weight + bias),
        "matmul": (graph([product], {"w": weight}, 100), rows @ weight),
        "matmul of a transposed constant": (graph([turn, product], {"t": weight.T.copy()}, 100), rows @ weight),
    }[form]
    small = int8.quantised(model)
    assert "MatMulIntegerToFloat" in {node.op_type for node in small.graph.node}
    assert len(small.SerializeToString()) < 0.4 * len(model.SerializeToString())
    # Each of 64 products is off by at most half a step of the weight and half a step of the number.
    most = 64 * (np.abs(rows).max(1, keepdims=True) * np.abs(weight).max(0)) * (0.5 / 127 + 0.5 / 127 + 1e-4)
    said = run(small, rows)
    assert np.all(np.abs(said - expected) <= most)
    assert np.sqrt(np.mean((said - expected) ** 2)) < 0.02 * expected.std()


def test_a_row_does_not_depend_on_its_neighbours(draw):
    small, rows = int8.quantised(gemm(numbers(draw, 64, 100), numbers(draw, 100))), numbers(draw, 5, 64)
    rows[3] *= 1000
    together = run(small, rows)
    np.testing.assert_array_equal(together, np.concatenate([run(small, row[None]) for row in rows]))


def test_zeros_stay_zeros_and_constant_columns_too(draw):
    weight, bias = numbers(draw, 64, 100), numbers(draw, 100)
    weight[:, 5] = 0
    said = run(int8.quantised(gemm(weight, bias)), np.stack([np.zeros(64, np.float32), numbers(draw, 64)]))
    np.testing.assert_array_equal(said[0], bias)
    assert said[1, 5] == bias[5]


def test_sums_at_the_edge_do_not_overflow(draw):
    """All numbers and weights as large as they can be: pairs of 8-bit products would not fit into 16 bits."""
    small = int8.quantised(gemm(np.ones((64, 100), np.float32), np.zeros(100, np.float32)))
    np.testing.assert_allclose(run(small, np.ones((3, 64), np.float32)), 64, rtol=1e-5)


def test_what_is_small_or_no_plain_product_is_left_as_it_is(draw):
    bias = numbers(draw, 100)
    for model in (gemm(numbers(draw, 64, 10), bias[:10]), gemm(numbers(draw, 64, 100), bias, alpha=2.0)):
        assert [node.op_type for node in int8.quantised(model).graph.node] == ["Gemm"]


def test_a_matrix_of_so_many_rows_is_left_as_it_is(draw):
    model = gemm(numbers(draw, 64, 100), numbers(draw, 100))
    assert [node.op_type for node in int8.quantised(model, but_rows=(64,)).graph.node] == ["Gemm"]
    assert len(int8.quantised(model, but_rows=(100,)).graph.node) > 1


def test_the_model_that_is_given_stays_as_it_is(draw):
    model = gemm(numbers(draw, 64, 100), numbers(draw, 100))
    before = model.SerializeToString()
    onnx.checker.check_model(int8.quantised(model))
    assert model.SerializeToString() == before


def test_products_of_the_same_rows_are_one_product(draw):
    weights, bias, rows = [numbers(draw, 64, size) for size in (100, 80, 60)], numbers(draw, 80), numbers(draw, 7, 64)
    nodes = [
        helper.make_node("MatMul", ["rows", "first"], ["a"]),
        helper.make_node("Gemm", ["rows", "second", "bias"], ["b"]),
        helper.make_node("MatMul", ["rows", "third"], ["c"]),
        helper.make_node("Concat", ["a", "b", "c"], ["out"], axis=1),
    ]
    model = graph(nodes, dict(zip(("first", "second", "third"), weights, strict=True)) | {"bias": bias}, 240)
    small = int8.quantised(model)
    assert [node.op_type for node in small.graph.node].count("MatMulIntegerToFloat") == 1
    expected = rows @ np.concatenate(weights, axis=1) + np.concatenate([np.zeros(100), bias, np.zeros(60)])
    assert np.sqrt(np.mean((run(small, rows) - expected) ** 2)) < 0.02 * expected.std()


def test_rows_that_are_never_negative(draw):
    weight, rows = numbers(draw, 64, 100), numbers(draw, 7, 64)
    rows[2] = -np.abs(rows[2])
    nodes = [helper.make_node("Relu", ["rows"], ["up"]), helper.make_node("MatMul", ["up", "w"], ["out"])]
    said, expected = run(int8.quantised(graph(nodes, {"w": weight}, 100)), rows), rows.clip(0) @ weight
    assert np.sqrt(np.mean((said - expected) ** 2)) < 0.02 * expected.std()
    assert not said[2].any()
