"""The running mean of the weights, against the sum that defines it."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tellapart.training.optimizer import MeanWeights


def stepped(decay, values):
    """A model of one weight that took these values one after another, and the mean of them."""
    model = nn.Linear(1, 1, bias=False)
    mean = MeanWeights(model, decay)
    for value in values:
        with torch.no_grad():
            model.weight.fill_(value)
        mean.update()
    return model, mean


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_it_is_the_mean_with_weights_that_fall_with_age(decay):
    values = [3.0, -1.0, 4.0, 1.5]
    ages = [decay ** (len(values) - 1 - i) for i in range(len(values))]
    expected = sum(age * value for age, value in zip(ages, values, strict=True)) / sum(ages)
    model, mean = stepped(decay, values)
    with mean.in_place():
        assert model.weight.item() == pytest.approx(expected, rel=1e-5)
    assert model.weight.item() == 1.5


def test_the_weights_come_back_after_an_error():
    model, mean = stepped(0.9, [1.0, 2.0])
    with pytest.raises(ZeroDivisionError), mean.in_place():
        1 / 0  # noqa: B018
    assert model.weight.item() == 2.0


def test_before_the_first_step_it_is_the_model_itself():
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    with MeanWeights(model, 0.9).in_place():
        assert model.weight.item() == before


def test_one_that_was_restored_goes_on_as_if_nothing_had_happened():
    model, whole = stepped(0.9, [1.0, 2.0])
    other, copy = stepped(0.9, [])
    copy.restore(whole.state())
    for one, mean in ((model, whole), (other, copy)):
        with torch.no_grad():
            one.weight.fill_(7.0)
        mean.update()
    with whole.in_place(), copy.in_place():
        assert model.weight.item() == other.weight.item() != 7.0


def test_a_run_keeps_the_mean_and_goes_on_with_the_weights(tellapart, small_world, tmp_path):
    """With a decay near 1 the mean of two steps lies between their weights; of decay 0 there is no mean."""
    runs = {}
    for name, more in (("one", ["--max_steps", 1]), ("two", []), ("mean", ["--optim.ema_decay", 0.999999])):
        arguments = ["--max_steps", 2, "--validation.metric", "last", *more]
        code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / name, *arguments)
        assert code == 0, err
        runs[name] = load_file(tmp_path / name / "best.safetensors")
    for name, mean in runs["mean"].items():
        torch.testing.assert_close(mean, (runs["one"][name] + runs["two"][name]) / 2, rtol=1e-4, atol=1e-6)
    assert any(not runs["one"][name].equal(runs["two"][name]) for name in runs["one"])
    last = load_file(tmp_path / "mean" / "last.safetensors")
    assert all(last[f"model/{name}"].equal(weight) for name, weight in runs["two"].items())
