"""Files that are no detector, or would do more than detect: a sentence each, which names the file."""

import os

import numpy as np
import pytest
from onnx import TensorProto, helper, load, save

from capscore.errors import UserError
from detectors import tiny_yolox
from tellapart import onnx
from tellapart.detectors import yolox


def refused(file, match):
    with pytest.raises(UserError, match=match) as error:
        yolox.load(file)
    assert str(error.value).startswith(f"{file}: ") or str(error.value).startswith(f"{file} is damaged")
    assert "\n" not in str(error.value)


def test_what_is_no_graph_or_was_cut_short_or_is_too_large_is_refused(tmp_path):
    file = tiny_yolox.write(tmp_path / "bad.onnx", tiny_yolox.nothing())
    cut_short = file.read_bytes()[:-100]
    for data in (b"", b"no graph", b"\x08\x07" + b"\xff" * 40, bytes(range(255, 0, -1)), cut_short):
        file.write_bytes(data)
        refused(file, "is damaged, or is no ONNX file")
    os.truncate(file, 1 << 31)  # takes no room
    refused(file, "more than 1024 MB")


def test_weights_in_other_files_are_not_read(tmp_path, monkeypatch):
    """By their name in the graph, from wherever the program was started."""

    def elsewhere(weights):
        answers = weights[1]
        (tmp_path / "secret").write_bytes(answers.raw_data)
        answers.ClearField("raw_data")
        answers.data_location = TensorProto.EXTERNAL
        answers.external_data.add(key="location", value="secret")

    file = tiny_yolox.write(tmp_path / "reads.onnx", tiny_yolox.nothing(), tensors=elsewhere)
    monkeypatch.chdir(tmp_path)
    refused(file, "keeps weights in another file, which is not read")


def test_weights_in_other_files_are_noticed_wherever_a_graph_may_have_them():
    away = TensorProto(data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL, name="w")
    away.external_data.add(key="location", value="weights.bin")
    inner = helper.make_graph([], "inner", [], [], [away])
    sparse = helper.make_node("Constant", [], ["x"])
    sparse.attribute.append(helper.make_attribute("sparse_value", helper.make_sparse_tensor(away, away, [1])))
    constant = helper.make_node("Constant", [], ["x"], value=away)
    branch = helper.make_node("If", ["c"], ["x"], then_branch=inner, else_branch=inner)
    for node in (constant, branch, sparse):
        model = helper.make_model(helper.make_graph([node], "outer", [], []))
        assert onnx.reads_other_files(model.SerializeToString())
    function = helper.make_function("d", "f", [], ["x"], [constant], [])
    model = helper.make_model(helper.make_graph([], "outer", [], []), functions=[function])
    assert onnx.reads_other_files(model.SerializeToString())
    assert not onnx.reads_other_files(helper.make_model(helper.make_graph([], "outer", [], [])).SerializeToString())


CELLS, P6 = tiny_yolox.rows_of(), tiny_yolox.rows_of((64, 128), (8, 16, 32, 64))


@pytest.mark.parametrize(
    ("answers", "options", "match"),
    [
        (np.zeros((CELLS, 5)), {}, r"one output \(1, 126, 5 \+ classes\) was expected, not \(1, 126, 5\)"),
        (np.zeros((CELLS - 1, 8)), {}, r"not \(1, 125, 8\)"),
        (np.zeros((P6, 8)), {"size": (64, 128)}, r"\(1, 168, 5 \+ classes\) was expected, not \(1, 170, 8\)"),
        (np.zeros((8, CELLS)), {}, r"not \(1, 8, 126\)"),  # YOLOv8: transposed
        (np.zeros((3 * CELLS, 8)), {}, r"not \(1, 378, 8\)"),  # YOLOv5: three anchors a cell
        (np.zeros((1, 1000)), {"shape": [1, 1000]}, r"not \(1, 1000\)"),  # a classifier
        (np.zeros((CELLS, 8)), {"size": (64, "width")}, "does not say how large photos are to be"),
        (np.zeros((CELLS, 8)), {"size": (60, 96)}, "takes photos of 96 x 60 pixels; multiples of 32"),
        (np.zeros((CELLS, 8)), {"size": (1 << 20, 96)}, "multiples of 32 up to 2048"),
        (np.zeros((CELLS, 8)), {"batch": 8}, "takes 8 photos at once"),
        (np.full((CELLS, 8), np.nan), {}, "gives numbers that are not finite"),
        (np.full((CELLS, 8), np.inf), {}, "gives numbers that are not finite"),
        (np.full((CELLS, 8), 1.5), {}, "scores are not between 0 and 1"),
        (np.full((CELLS, 8), -0.5), {}, "scores are not between 0 and 1"),
        (np.full((CELLS, 8), 50.0), {}, "another layout; export it without --decode_in_inference"),
    ],
    ids=lambda value: str(value.shape) if isinstance(value, np.ndarray) else None,
)
def test_another_layout_is_refused(tmp_path, answers, options, match):
    refused(tiny_yolox.write(tmp_path / "other.onnx", answers, **options), match)


def test_a_graph_that_gives_something_else_than_it_promises_is_refused(tmp_path):
    file = tiny_yolox.write(tmp_path / "lies.onnx", tiny_yolox.nothing())
    model = load(file)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    model.graph.initializer[2].CopyFrom(helper.make_tensor("shape", TensorProto.INT64, [3], [1, 63, 16]))
    save(model, file)
    refused(file, "is no YOLOX export: it gives|cannot be run|5 \\+ classes")


def test_a_graph_with_two_inputs_is_refused(tmp_path):
    file = tiny_yolox.write(tmp_path / "two.onnx", tiny_yolox.nothing())
    model = load(file)
    model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))
    save(model, file)
    refused(file, "one input")
