import json
import shutil

import pytest
import torch

import tellapart
from support.decoders import greedy
from tellapart import models, paths
from tellapart.data.streams import region_inputs
from tellapart.decoding import score
from tellapart.errors import UserError
from tellapart.models.onnx import captioner as exported

CPU = torch.device("cpu")


@pytest.fixture
def folder(exported_model, tmp_path):
    """A copy, to be damaged."""
    shutil.copytree(exported_model.folder, tmp_path / "model")
    return tmp_path / "model"


def photos_in(photo_folder):
    return sorted(photo_folder.glob("*.png"))


def test_captions_are_those_of_the_original(exported_model, small_model, photo_folder):
    ours, original = tellapart.load(exported_model.folder), tellapart.load(small_model)
    said, expected = (list(one.caption(photos_in(photo_folder))) for one in (ours, original))
    assert [row.text for row in said] == [row.text for row in expected]
    assert [row.logprob for row in said] == pytest.approx([row.logprob for row in expected], abs=1e-4)


def test_log_p_in_8_bits_is_nearly_that_of_the_original(int8_model, exported_model, small_model):
    """Of the same captions: which of them is best may differ where two are equally good."""
    generator = torch.Generator().manual_seed(0)
    features, mask = torch.rand(4, 4, 1280, generator=generator), torch.ones(4, 4, dtype=torch.bool)
    tokens = torch.randint(4, 15, (12, 6), generator=generator)
    spoken = torch.ones_like(tokens, dtype=torch.bool)
    spoken[::2, 4:] = False
    logp = []
    for model in (int8_model, exported_model.folder, small_model):
        captioner = models.load(model, CPU).captioner
        with torch.inference_mode():
            logp.append(score(captioner, captioner.encode(region_inputs(features, mask)), tokens, spoken, bos=1))
    assert logp[0].shape == logp[2].shape
    assert 0 < float((logp[0] - logp[2]).abs().max()) < 0.1
    torch.testing.assert_close(logp[1], logp[2], atol=1e-5, rtol=1e-5)


def test_a_caption_in_8_bits_does_not_depend_on_its_neighbours(int8_model):
    captioner = models.load(int8_model, CPU).captioner
    features = torch.rand(5, 4, 1280, generator=torch.Generator().manual_seed(0))
    features[2] *= 100
    mask = torch.ones(5, 4, dtype=torch.bool)
    words = {"bos": 1, "eos": 2, "pad": 0, "max_words": 5}
    together = greedy(captioner, captioner.encode(region_inputs(features, mask)), **words)
    for i in range(5):
        alone = greedy(captioner, captioner.encode(region_inputs(features[i : i + 1], mask[:1])), **words)
        length = alone.logp.shape[1]
        torch.testing.assert_close(alone.logp[0], together.logp[i, :length], atol=1e-5, rtol=1e-5)


def test_logits_of_whole_captions_are_those_of_single_steps(exported_model, small_model):
    ours, original = (models.load(model, CPU).captioner for model in (exported_model.folder, small_model))
    features, mask = torch.rand(2, 3, 1280), torch.ones(2, 3, dtype=torch.bool)
    tokens = torch.arange(12).view(4, 3)
    with torch.inference_mode():
        said = ours.forward(tokens, ours.encode(region_inputs(features, mask)))
        expected = original.forward(tokens, original.encode(region_inputs(features, mask)))
    torch.testing.assert_close(said, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["encode.onnx", "step.onnx"])
def test_a_graph_that_is_damaged_or_missing_is_named(folder, name):
    whole = (folder / name).read_bytes()
    for data in (b"", b"not a graph", whole[: len(whole) // 2]):
        (folder / name).write_bytes(data)
        with pytest.raises(UserError, match=f"{name} is damaged"):
            tellapart.load(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name}: there is no such file"):
        tellapart.load(folder)


def test_graphs_that_do_not_belong_together_are_refused(folder):
    shutil.copy(folder / "step.onnx", folder / "encode.onnx")
    with pytest.raises(UserError, match="not of the same captioner"):
        tellapart.load(folder)


def test_a_graph_of_another_vocabulary_is_refused(folder):
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    vocabulary["words"].append("extra")
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary))
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["vocab_size"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"step\.onnx is of another model: its vocab_size is 15, not 16"):
        tellapart.load(folder)


def test_without_onnxruntime_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setattr(paths, "package", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'tellapart\[export\]'"):
        exported.load(folder, {})
