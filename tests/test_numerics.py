import pytest
import torch

from tellapart import numerics
from tellapart.errors import UserError

CPU = torch.device("cpu")


@pytest.mark.parametrize(("gain", "chosen"), [(0.02, "fp32"), (1.0, "fp32"), (1.2, "fp32"), (1.9, "bf16")])
def test_bf16_is_taken_only_where_it_is_clearly_quicker(monkeypatch, gain, chosen):
    monkeypatch.setattr(numerics, "bf16_gain", lambda device: gain)
    assert numerics.choose_dtype(CPU) == chosen


def test_a_person_overrides_the_measurement(monkeypatch):
    monkeypatch.setattr(numerics, "bf16_gain", lambda device: pytest.fail("measured for nothing"))
    assert numerics.choose_dtype(CPU, "bf16") == "bf16"
    with pytest.raises(UserError, match="dtype must be auto, fp32 or bf16, not 'fp64'"):
        numerics.choose_dtype(CPU, "fp64")


def test_the_measurement_is_short_and_positive():
    assert numerics.bf16_gain(CPU, seconds=0.01) > 0


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
