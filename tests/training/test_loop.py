"""The training loop: what an optimiser step is, when a run stops, and what it says when it cannot go on."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from capscore.errors import UserError
from tellapart.captioners.transformer import Transformer, TransformerConfig
from tellapart.data.batches import Batch
from tellapart.data.streams import region_inputs
from tellapart.objectives import StepResult
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.recipe import OptimConfig, Recipe, ValidationConfig
from tellapart.training.loop import Position, fit, judge
from tellapart.training.optimizer import build_optimizer, clip
from tellapart.training.run_folder import Log
from training.runs import curve, position_of


class Numbers:
    """A stream of batches that are just their number, ten an epoch; its photos are called photo-0 ..."""

    batches_per_epoch = 10

    def __init__(self):
        self.consumed = 0
        self.data = SimpleNamespace(examples=[SimpleNamespace(id=f"photo-{i}") for i in range(1000)])

    def __iter__(self):
        while True:
            self.consumed += 1
            yield Number(self.consumed - 1)


class Number:
    def __init__(self, number):
        self.number, self.photos = number, [2 * number, 2 * number + 1]

    def to(self, _device):
        return self


def train(
    out,
    *,
    losses=lambda number: 1.0,
    loss_of=lambda weight, number: weight.sum() * 1.0,
    metrics=({"loss": 1.0},),
    metric="loss",
    resume=False,
    stop_at=None,
    watch=None,
    **settings,
):
    """A run of one weight, 1 at first, whose gradient is always 1; the metrics come one per validation, the last for
    ever.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    recipe = Recipe(
        **{"dtype": "fp32", "epochs": 1, "log_steps": 1, "validation": ValidationConfig(metric=metric)} | settings
    )
    waiting, seen = list(metrics), []

    def step(batch, _moment):
        if batch.number == stop_at:
            raise InterruptedError
        seen.append(batch.number)
        loss = loss_of(model.weight, batch.number)
        value = losses(batch.number)
        return StepResult(loss + (value - loss.item()), 1, {"loss": value, "words": 1})

    position = fit(
        recipe,
        out,
        model=model,
        step=step,
        validate=lambda: waiting.pop(0) if len(waiting) > 1 else waiting[0],
        stream=Numbers(),
        device=torch.device("cpu"),
        resume=resume,
        watch=watch,
    )
    return position, seen


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "steps", "batches"),
    [
        ({"epochs": 3}, 30, 30),
        ({"max_steps": 4}, 4, 4),
        ({"epochs": 2, "optim": OptimConfig(accumulate=4)}, 5, 20),  # of an epoch no batch is left out
        ({"epochs": 4, "metrics": [{"loss": value} for value in (1.0, 2.0, 3.0, 4.0)]}, 40, 40),  # without patience
    ],
)
def test_a_run_has_its_epochs_and_no_more_than_max_steps(tmp_path, settings, steps, batches):
    position, seen = train(tmp_path, **settings)
    assert (position.step, seen, position.finished) == (steps, list(range(batches)), "all epochs done")


def test_a_run_that_gets_longer_goes_on_with_the_next_batch(tmp_path):
    assert train(tmp_path, max_steps=4)[0].finished == "all epochs done"
    position, seen = train(tmp_path, max_steps=7, resume=True)
    assert (position.step, seen, position.finished) == (7, [4, 5, 6], "all epochs done")


def test_a_run_that_stopped_getting_better_does_not_go_on_because_it_is_longer(tmp_path):
    settings = {"validation": ValidationConfig(metric="loss", every=0.1, patience=2)}
    first, _ = train(tmp_path, **settings)
    again, seen = train(tmp_path, epochs=9, resume=True, **settings)
    assert "has not improved for 2 validations" in first.finished
    assert (again.step, again.finished, seen) == (first.step, first.finished, [])


def test_two_half_batches_are_one_whole_where_they_have_equally_many_words():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=12, feature_size=8, width=16, heads=2, feed_forward=32, dropout=0.0)
    captioner = Transformer(config)
    inputs = region_inputs(torch.randn(4, 3, 8), torch.ones(4, 3, dtype=torch.bool))
    tokens = torch.randint(4, 12, (4, 5))
    tokens[:, 4] = 2
    tokens[[0, 2], 3:] = torch.tensor([2, 0])  # a shorter caption in either half

    def gradients(*parts):
        captioner.zero_grad()
        for part in parts:
            count = part.stop - part.start
            batch = Batch(range(count), inputs.select(part), tokens[part], tokens[part] != 0)
            (cross_entropy_step(captioner, batch, bos=1).loss / len(parts)).backward()
        return [p.grad.clone() for p in captioner.parameters()]

    whole, halves = gradients(slice(0, 4)), gradients(slice(0, 2), slice(2, 4))
    torch.testing.assert_close(halves, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("gradient", "norm", "value", "before", "after"),
    [
        ([3.0, -4.0], 1.0, 0.0, 5, [0.6, -0.8]),  # by norm: the direction stays
        ([3.0, -4.0], 6.0, 0.0, 5, [3, -4]),
        ([3.0, -4.0, 0.5], 0.0, 1.0, math.sqrt(9 + 16 + 0.25), [1, -1, 0.5]),  # by value: each by itself
        ([3.0, -40.0], 1.0, 3.0, math.hypot(3, 40), [math.sqrt(0.5), -math.sqrt(0.5)]),  # first by value, then by norm
        ([300.0, -400.0], 0.0, 0.0, 500, [300, -400]),
    ],
)
def test_gradients_are_clipped(gradient, norm, value, before, after):
    model = nn.Linear(len(gradient), 1, bias=False)
    model.weight.grad = torch.tensor([gradient])
    assert clip(model, norm=norm, value=value) == pytest.approx(before)
    torch.testing.assert_close(model.weight.grad, torch.tensor([after], dtype=torch.float), atol=1e-5, rtol=0)


def test_vectors_and_embeddings_are_not_decayed():
    model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "linear": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})
    groups = build_optimizer(model, Recipe(optim=OptimConfig(weight_decay=0.1))).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] == 0.1 for p in group["params"]}
    kept = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert decayed == {id(model["linear"].weight)}
    assert decayed | kept == {id(p) for p in model.parameters()}


# --- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "values", "improves", "best", "best_step", "stale"),
    [
        ("loss", [3.0, 2.0, 2.5, 2.0], [True, True, False, False], 2.0, 1, 2),  # less is better
        ("CIDEr-D", [0.0, 0.5, 0.4, 0.6, 0.1], [True, True, False, True, False], 0.6, 3, 1),  # more is better
        ("loss", [math.nan, 2.0, math.nan, 1.0], [False, True, False, True], 1.0, 3, 0),
    ],
)
def test_the_best_validation_is_by_its_metric(metric, values, improves, best, best_step, stale):
    position = Position()
    for step, value in enumerate(values):
        position.step = step
        assert judge(position, {metric: value}, metric) == improves[step]
    assert (position.best, position.best_step, position.stale) == (best, best_step, stale)
    with pytest.raises(UserError, match=rf"'BLEU'.*there are {metric}"):
        judge(Position(), {metric: 1.0}, "BLEU")


@pytest.mark.parametrize(
    ("metric", "values"),
    [("loss", [3.0, 2.0, 2.1, 2.2, 1.0]), ("CIDEr-D", [0.3, 0.5, 0.4, 0.45, 0.9])],
)
def test_a_run_stops_after_as_many_validations_without_a_better_value_as_its_patience(tmp_path, metric, values):
    validation = ValidationConfig(metric=metric, patience=2)
    metrics = [{metric: value} for value in values]
    position, _ = train(tmp_path, epochs=9, metrics=metrics, validation=validation)
    assert (position.step, position.best, position.best_step) == (40, values[1], 20)
    assert position.finished == f"{metric} has not improved for 2 validations"


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_named_with_its_step_and_photos(tmp_path, value):
    with pytest.raises(UserError, match=rf"loss is {value} at step 4; .* photo-6, photo-7\.$"):
        train(tmp_path, losses=lambda number: value if number == 3 else 1.0)


def test_a_gradient_that_is_no_number_never_reaches_the_weights(tmp_path):
    """The loss may be finite where its gradient is not, as that of a square root at 0."""
    weights = []

    def loss_of(weight, number):
        weights.append(weight)
        return (weight * 0).sum().sqrt() if number == 2 else weight.sum()

    with pytest.raises(UserError, match=r"gradient is (nan|inf) at step 3; .* photo-4, photo-5\."):
        train(tmp_path, loss_of=loss_of)
    assert torch.isfinite(weights[-1]).all()


@pytest.mark.parametrize(("minutes", "stop_at", "saved"), [(1e9, 17, 10), (60, 7, 0), (0, 7, 7)])
def test_a_checkpoint_is_written_at_each_validation_and_else_when_its_time_has_come(tmp_path, minutes, stop_at, saved):
    """Also on a machine that was started only just now."""
    with pytest.raises(InterruptedError):
        train(tmp_path, epochs=3, save_minutes=minutes, stop_at=stop_at)
    assert position_of(tmp_path)["step"] == saved


# --- log --------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_log_has_the_means_since_the_last_one(tmp_path):
    train(tmp_path, losses=lambda number: float(number), log_steps=5)
    assert curve(tmp_path, "loss") == {5: 2.0, 10: 7.0}


def test_lines_behind_the_checkpoint_and_a_line_cut_short_are_dropped_and_a_damaged_one_is_named(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    Log(file, after=2)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"step": 1}, {"step": 2}]
    for line in ("nonsense", "[]", '{"loss": 1}'):
        file.write_text('{"step": 1}\n' + line + "\n")
        with pytest.raises(UserError, match=r"log\.jsonl: line 2 is damaged"):
            Log(file, after=2)
