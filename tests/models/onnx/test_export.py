import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tellapart import models
from tellapart.captioners import CAPTIONERS, select
from tellapart.data.streams import region_inputs
from tellapart.errors import UserError
from tellapart.models.onnx import export


def size_of(dimension):
    return dimension.dim_param or dimension.dim_value


@pytest.fixture
def original(small_model):
    config = models.read_config(small_model, "captioner")
    captioner = models.build(CAPTIONERS, "captioner", config.name, config.settings).eval()
    models.load_weights(small_model, captioner)
    return captioner


@pytest.mark.parametrize(("photos", "captions", "regions"), [(1, 1, 1), (1, 3, 4), (4, 1, 2), (3, 5, 64)])
def test_the_graphs_by_themselves_say_what_the_captioner_says(exported_model, original, photos, captions, regions):
    """Nothing of ours but names of inputs and outputs; captions longer than the captioner's first table of places."""
    encode, step = (
        onnxruntime.InferenceSession(exported_model.folder / name, providers=["CPUExecutionProvider"])
        for name in ("encode.onnx", "step.onnx")
    )
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(photos, regions, 1280, generator=generator)
    mask = torch.ones(photos, regions, dtype=torch.bool)
    mask[:, 1:] = torch.rand(photos, regions - 1, generator=generator) < 0.5
    rows = torch.arange(photos).repeat_interleave(captions)
    with torch.no_grad():
        memory = original.encode(region_inputs(features, mask))
        state = select(original.start(memory), rows)
        seen = encode.run(None, {"features": features.numpy(), "mask": mask.numpy()})
        given = dict(zip((output.name for output in encode.get_outputs()), seen, strict=True))
        given = {k: v.repeat(captions, 0) if k.startswith("state") else v for k, v in given.items()}
        for _ in range(40):
            token = torch.randint(15, (photos * captions,), generator=generator)
            logits, state = original.step(token, state, memory)
            given["token"] = token.numpy()
            by_photo = {
                k: v if k.startswith("memory") else v.reshape(photos, captions, *v.shape[1:]) for k, v in given.items()
            }
            said, *following = step.run(None, by_photo)
            np.testing.assert_allclose(said, logits.numpy(), atol=1e-5, rtol=1e-5)
            given |= {f"state_{i}": leaf for i, leaf in enumerate(following)}
        assert following[0].shape[2] == 40


def test_sizes_that_may_vary_have_names_and_others_are_numbers(exported_model):
    step = onnx.load(exported_model.folder / "step.onnx")
    onnx.checker.check_model(step, full_check=True)
    shapes = {value.name: [size_of(d) for d in value.type.tensor_type.shape.dim] for value in step.graph.input}
    (photos, captions), state, memory = shapes["token"], shapes["state_0"], shapes["memory_0"]
    assert all(isinstance(size, str) for size in (photos, captions, state[3], memory[2]))
    assert (state[:3], state[4]) == ([photos, captions, 2], 16)
    assert (memory[:2], memory[3]) == ([photos, 2], 16)


def test_graphs_of_other_weights_are_noticed(exported_model, original):
    runs = export.ExportedCaptioner(
        *((exported_model.folder / name).read_bytes() for name in ("encode.onnx", "step.onnx"))
    )
    difference = export.compare(original, runs, {"regions": 1280})
    assert difference.largest < 1e-5
    export.refuse(difference, int8=False)
    with torch.no_grad():
        original.decoder[0].think[0].weight *= 1.1
    difference = export.compare(original, runs, {"regions": 1280})
    assert difference.largest > 1e-3
    with pytest.raises(UserError, match="do not say what the captioner says"):
        export.refuse(difference, int8=False)


@pytest.mark.parametrize("relative", [0.2, float("nan"), float("inf")])
def test_graphs_in_8_bits_that_are_far_off_are_refused(relative):
    export.refuse(export.Difference(0.3, 1.0, 0.02), int8=True)
    with pytest.raises(UserError, match="nothing was written"):
        export.refuse(export.Difference(0.3, 1.0, relative), int8=True)
