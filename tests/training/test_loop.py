"""The training loop: what an optimiser step is, when a run stops, and what it says when it cannot go on."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
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


def train(out, *, losses=lambda number: 1.0, metrics=({"loss": 1.0},), resume=False, stop_at=None, **settings):
    """A run of one weight whose gradient is always 1; the given metrics come one per validation, the last for ever."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    settings = {"dtype": "fp32", "epochs": 1, "log_steps": 1, "validation": ValidationConfig(metric="loss")} | settings
    recipe = Recipe(**settings)
    waiting = list(metrics)
    seen = []

    def step(batch, _epoch):
        if batch.number == stop_at:
            raise InterruptedError
        seen.append(batch.number)
        loss = model.weight.sum() * 1.0
        value = losses(batch.number)
        return StepResult(loss + (value - loss.item()), 1, {"loss": value, "words": 1})

    def validate():
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    out.mkdir(exist_ok=True)
    position = fit(
        recipe,
        out,
        model=model,
        step=step,
        validate=validate,
        stream=Numbers(),
        device=torch.device("cpu"),
        resume=resume,
    )
    return position, seen


def saved_step(out):
    with safe_open(out / "last.safetensors", "pt") as file:
        return json.loads(file.metadata()["position"])["step"]


# --- steps ------------------------------------------------------------------------------------------------------------


def test_a_run_has_its_epochs(tmp_path):
    position, seen = train(tmp_path, epochs=3)
    assert (position.step, seen, position.finished) == (30, list(range(30)), "all epochs done")


def test_a_run_has_no_more_than_max_steps(tmp_path):
    assert train(tmp_path, max_steps=4)[0].step == 4


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


def test_an_epoch_is_all_its_batches_however_many_make_a_step(tmp_path):
    """Ten batches an epoch, four a step: in two epochs five steps, with none of the twenty left out."""
    position, seen = train(tmp_path, epochs=2, optim=OptimConfig(accumulate=4))
    assert (position.step, seen) == (5, list(range(20)))


def gradients(batches, captioner):
    captioner.zero_grad()
    for batch in batches:
        loss = cross_entropy_step(captioner, batch, bos=1).loss
        (loss / len(batches)).backward()
    return {name: p.grad.clone() for name, p in captioner.named_parameters()}


def test_two_half_batches_are_one_whole_where_they_have_equally_many_words():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=12, feature_size=8, width=16, heads=2, feed_forward=32, dropout=0.0)
    captioner = Transformer(config)
    features, mask = torch.randn(4, 3, 8), torch.ones(4, 3, dtype=torch.bool)
    tokens = torch.randint(4, 12, (4, 5))
    tokens[:, 4] = 2
    tokens[[0, 2], 3:] = torch.tensor([2, 0])  # a shorter caption in either half
    whole = Batch(range(4), region_inputs(features, mask), tokens, tokens != 0)
    halves = [
        Batch(range(2), whole.inputs.select(slice(i, i + 2)), tokens[i : i + 2], tokens[i : i + 2] != 0) for i in (0, 2)
    ]
    expected = gradients([whole], captioner)
    found = gradients(halves, captioner)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)


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


def test_a_metric_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(UserError, match=r"'BLEU'.*there are loss, CIDEr-D"):
        judge(Position(), {"loss": 1.0, "CIDEr-D": 0.5}, "BLEU")


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


def test_without_patience_a_run_goes_on(tmp_path):
    metrics = [{"loss": value} for value in (1.0, 2.0, 3.0, 4.0)]
    assert train(tmp_path, epochs=4, metrics=metrics)[0].step == 40


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_named_with_its_step_and_photos(tmp_path, value):
    with pytest.raises(UserError, match=rf"loss is {value} at step 4; .* photo-6, photo-7\.$"):
        train(tmp_path, losses=lambda number: value if number == 3 else 1.0)


def test_a_gradient_that_is_no_number_never_reaches_the_weights(tmp_path):
    """The loss may be finite where its gradient is not, as that of a square root at 0."""
    model = nn.Linear(1, 1, bias=False)

    def step(batch, _epoch):
        loss = (model.weight * 0).sum().sqrt() if batch.number == 2 else model.weight.sum()
        return StepResult(loss, 1, {"loss": loss.item()})

    recipe = Recipe(dtype="fp32", epochs=1, save_minutes=0)
    with pytest.raises(UserError, match=r"gradient is (nan|inf) at step 3; .* photo-4, photo-5\."):
        fit(
            recipe,
            tmp_path,
            model=model,
            step=step,
            validate=dict,
            stream=Numbers(),
            device=torch.device("cpu"),
            resume=False,
        )
    assert torch.isfinite(model.weight).all()


def test_a_checkpoint_is_written_at_each_validation_however_rarely_else(tmp_path):
    """Also on a machine that was started only just now."""
    with pytest.raises(InterruptedError):
        train(tmp_path, epochs=3, save_minutes=1e9, stop_at=17)
    assert saved_step(tmp_path) == 10


def test_between_validations_no_checkpoint_is_written_before_its_time(tmp_path):
    with pytest.raises(InterruptedError):
        train(tmp_path, epochs=3, save_minutes=60, stop_at=7)
    assert saved_step(tmp_path) == 0


# --- log --------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_log_has_the_means_since_the_last_one(tmp_path):
    train(tmp_path, losses=lambda number: float(number), log_steps=5)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines if "loss" in line] == [(5, 2.0), (10, 7.0)]


def test_lines_behind_the_checkpoint_and_a_line_cut_short_are_dropped(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    Log(file, after=2)
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"loss": 1}'])
def test_a_damaged_log_is_named_with_its_line(tmp_path, line):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=r"log\.jsonl: line 2 is damaged"):
        Log(tmp_path / "log.jsonl", after=2)
