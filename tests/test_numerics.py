from contextlib import nullcontext

import pytest
import torch

from capscore.errors import UserError
from tellapart import numerics

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture
def graphics_card(monkeypatch):
    """A card by its generation: bf16 came with the eighth; earlier ones emulate it."""

    def card(generation):
        entered = []
        monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or nullcontext())
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or generation >= 8
        )
        return entered

    return card


@pytest.mark.parametrize(("generation", "dtype"), [(7, "fp32"), (8, "bf16"), (9, "bf16")])
def test_a_graphics_card_computes_in_bf16_if_it_has_it(graphics_card, generation, dtype):
    asked = graphics_card(generation)
    assert numerics.choose_dtype(GPU) == dtype
    assert asked == [GPU]


def test_a_cpu_computes_in_fp32_unless_asked():
    assert numerics.choose_dtype(CPU) == "fp32"
    assert numerics.choose_dtype(CPU, "bf16") == "bf16"
    with pytest.raises(UserError, match="dtype must be auto, fp32 or bf16, not 'fp64'"):
        numerics.choose_dtype(CPU, "fp64")


@pytest.mark.parametrize("wanted", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_named(wanted):
    with pytest.raises(UserError, match=wanted):
        numerics.choose_device(wanted)


def test_autocast_changes_the_type_of_products_only_for_bf16():
    a = torch.ones(2, 2)
    with numerics.autocast(CPU, "bf16"):
        assert (a @ a).dtype == torch.bfloat16
    with numerics.autocast(CPU, "fp32"):
        assert (a @ a).dtype == torch.float32
