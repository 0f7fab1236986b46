"""The optimiser's parts: rates and chances by the step, and the running mean of the weights."""

import pytest
import torch
from torch import nn

from tellapart.recipe import OptimConfig, ScheduledSampling
from tellapart.training.optimizer import MeanWeights, chance_of_own_words, learning_rate
from training.runs import tensors_of


def rates(steps, *, total=100, steps_per_epoch=10, **settings):
    config = OptimConfig(lr=1.0, **settings)
    return [learning_rate(config, step, total, steps_per_epoch) for step in steps]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "step", "noam"])
def test_the_warm_up_rises_in_equal_steps_and_its_last_step_has_the_whole_rate(schedule):
    assert rates(range(4), schedule=schedule, warmup=4) == [0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize(
    ("schedule", "steps", "settings", "expected"),
    [
        ("constant", [0, 50, 99], {}, [1, 1, 1]),
        # 80 steps from 1 down to 0.2: a hundredth each, after the warm-up and beginning with the whole rate
        ("linear", [20, 21, 60, 100], {"warmup": 20, "final_lr_ratio": 0.2}, [1, 0.99, 0.6, 0.2]),
        ("linear", [9], {"total": 10, "warmup": 10}, [1]),  # no division by zero
        ("linear", [10], {"total": 10, "warmup": 10}, [1]),
        # halfway at half time, and a quarter turn is cos 45 degrees: (1 + cos 45°) / 2
        ("cosine", [25, 50, 100], {}, [0.8535533905932737, 0.5, 0]),
        ("cosine", [20], {"warmup": 20}, [1]),
        ("cosine", [50, 100], {"final_lr_ratio": 0.1}, [0.55, 0.1]),
        # ten steps an epoch, every third epoch times 0.8
        ("step", [0, 29, 30, 59, 60, 90], {}, [1, 1, 0.8, 0.8, 0.64, 0.512]),
        # seven batches an epoch, three a step: the seventh step ends the third epoch
        ("step", [2, 3, 4, 5, 6, 7], {"steps_per_epoch": 7 / 3, "decay": 0.5, "decay_epochs": 1},
         [1, 0.5, 0.5, 0.25, 0.25, 0.125]),
        ("noam", [0, 3, 99], {}, [1, 0.5, 0.1]),  # without a warm-up it begins with its highest rate
        ("noam", [9_999, 39_999], {"warmup": 10_000}, [1, 0.5]),
    ],
)  # fmt: skip
def test_rates_by_hand(schedule, steps, settings, expected):
    assert rates(steps, schedule=schedule, **settings) == pytest.approx(expected, abs=1e-12)


def test_noam_is_that_of_its_paper_and_lr_is_its_highest_rate():
    """Vaswani et al. (2017), section 5.3: width^-0.5 * min(step^-0.5, step * warmup^-1.5), steps counted from 1."""
    width, warmup = 512, 10_000
    highest = width**-0.5 * warmup**-0.5
    steps = [0, 1, 99, 5_000, 9_998, 9_999, 10_000, 39_999, 250_000]
    expected = [width**-0.5 * min((s + 1) ** -0.5, (s + 1) * warmup**-1.5) / highest for s in steps]
    assert rates(steps, schedule="noam", warmup=warmup, total=300_000) == pytest.approx(expected)


def test_own_words_begin_at_their_epoch_grow_every_five_and_stop_at_a_quarter():
    def chances(epochs, **settings):
        return [chance_of_own_words(ScheduledSampling(**settings), epoch) for epoch in epochs]

    assert chances((0, 10, 100)) == [0, 0, 0]  # unless they are asked for
    assert chances([0], start=0) == pytest.approx([0.05])
    expected = [0, 0, 0.05, 0.05, 0.1, 0.15, 0.2, 0.2, 0.25, 0.25, 0.25, 0.25]
    assert chances([0, 4, 5, 9, 10, 15, 20, 24, 25, 29, 30, 1000], start=5) == pytest.approx(expected)


# --- the running mean ---


def stepped(decay, values):
    """A model of one weight that took these values one after another, and the mean of them."""
    model = nn.Linear(1, 1, bias=False)
    mean = MeanWeights(model, decay)
    for value in values:
        take(model, mean, value)
    return model, mean


def take(model, mean, value):
    with torch.no_grad():
        model.weight.fill_(value)
    mean.update()


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_it_is_the_mean_with_weights_that_fall_with_age(decay):
    values = [3.0, -1.0, 4.0, 1.5]
    ages = [decay ** (len(values) - 1 - i) for i in range(len(values))]
    expected = sum(age * value for age, value in zip(ages, values, strict=True)) / sum(ages)
    model, mean = stepped(decay, values)
    with mean.in_place():
        assert model.weight.item() == pytest.approx(expected, rel=1e-5)
    assert model.weight.item() == 1.5
    with pytest.raises(ZeroDivisionError), mean.in_place():
        1 / 0  # noqa: B018
    assert model.weight.item() == 1.5  # the weights come back after an error


def test_before_the_first_step_it_is_the_model_itself():
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    with MeanWeights(model, 0.9).in_place():
        assert model.weight.item() == before


def test_one_that_was_restored_goes_on_as_if_nothing_had_happened():
    model, whole = stepped(0.9, [1.0, 2.0])
    other, copy = stepped(0.9, [])
    copy.restore(whole.state())
    take(model, whole, 7.0)
    take(other, copy, 7.0)
    with whole.in_place(), copy.in_place():
        assert model.weight.item() == other.weight.item() != 7.0


def test_a_run_keeps_the_mean_and_goes_on_with_the_weights(begin, tmp_path):
    """With a decay near 1 the mean of two steps lies between their weights; of decay 0 there is no mean."""
    runs = {}
    for name, more in (("one", ["--max_steps=1"]), ("two", []), ("mean", ["--optim.ema_decay=0.999999"])):
        begin("--max_steps=2", "--validation.metric=last", *more, out=tmp_path / name)
        runs[name] = tensors_of(tmp_path / name, "best")
    for name, mean in runs["mean"].items():
        torch.testing.assert_close(mean, (runs["one"][name] + runs["two"][name]) / 2, rtol=1e-4, atol=1e-6)
    assert any(not runs["one"][name].equal(runs["two"][name]) for name in runs["one"])
    last = tensors_of(tmp_path / "mean")
    assert all(last[f"model/{name}"].equal(weight) for name, weight in runs["two"].items())
