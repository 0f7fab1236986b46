import copy

import pytest
import torch
from torch import nn

from support import tiny_language_models as tiny
from tellapart import models
from tellapart.captioners import language_models
from tellapart.captioners.int8 import Int8Linear, Rows, to_int8
from tellapart.errors import UserError


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_product_is_exact_but_for_the_rounding_of_the_weights(bias):
    """Weights that are whole numbers of 8 bits are not rounded: then only the 15 bits of the activations are left."""
    draw = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 16, bias=bias)
    layer.weight.data = torch.randint(-127, 128, (16, 64), generator=draw).float()
    layer.weight.data[:, 0] = 127.0  # each output's scale is 1
    x = torch.randn(2, 3, 64, generator=draw)
    x[0, 0, 5] = 300.0  # one activation that is far larger than the others of its row
    found, expected = Int8Linear(layer, Rows())(x), layer.double()(x.double()).float()
    largest = x.abs().amax(-1, keepdim=True)
    bound = largest / 127 / 254 / 2 * 64 * 127  # half a step of the second number, times 64 weights
    assert ((found - expected).abs() <= bound + 1e-3).all()
    assert found.shape == (2, 3, 16)


@torch.no_grad()
def test_a_row_does_not_depend_on_the_others():
    torch.manual_seed(0)
    layer, x = Int8Linear(nn.Linear(32, 8, bias=False), Rows()), torch.randn(4, 32)
    others = torch.cat([x[:1], 1000 * x[1:]])
    torch.testing.assert_close(layer(others)[:1], layer(x)[:1], atol=1e-6, rtol=0)
    assert layer(torch.zeros(1, 32)).abs().max() == 0


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@torch.no_grad()
def test_a_language_model_in_8_bits_says_nearly_the_same(kind, tmp_path):
    exact, _ = language_models.read(str(tiny.save(tmp_path, kind)))
    quick = copy.deepcopy(exact)
    to_int8(quick)
    assert sum(isinstance(layer, Int8Linear) for layer in quick.modules()) == (9 if kind == "gpt2" else 15)
    tokens = torch.arange(20).view(2, 10)
    difference = quick(input_ids=tokens).logits - exact(input_ids=tokens).logits
    assert 0 < difference.square().mean().sqrt() < 0.03 * exact(input_ids=tokens).logits.std()


def test_int8_is_for_captioners_over_a_language_model():
    with pytest.raises(UserError, match="int8 is for captioners over a language model"):
        models.load("plain", torch.device("cpu"), dtype="int8")


def test_a_captioner_is_loaded_in_8_bits(tmp_path):
    folder = tiny.save(tmp_path / "lm", "llama")
    tokenizer = language_models.tokenizer(str(folder))
    settings = {"language_model": str(folder), "prefix": 2}
    captioner = models.build_captioner("clipcap", settings, vocab_size=len(tokenizer), feature_sizes={"regions": 8})
    (tmp_path / "model").mkdir()
    models.describe(tmp_path / "model", "clipcap", captioner, tokenizer, {"regions": {"name": "x"}})
    models.save_weights(tmp_path / "model" / "model.safetensors", captioner)
    exact, quick = (models.load(tmp_path / "model", torch.device("cpu"), dtype=dtype) for dtype in (None, "int8"))
    assert any(isinstance(layer, Int8Linear) for layer in quick.captioner.modules())
    assert quick.sha256 != exact.sha256  # captions of one are not taken for the other's
