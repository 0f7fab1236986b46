"""A network that is neither captioner nor retriever trains through the same loop: a tagger of toy size."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from capscore.errors import UserError
from tellapart.commands.train import parse
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.tokenizers import WordTokenizer
from tellapart.objectives import StepResult
from tellapart.training.build import Parts, run, seed_everything
from tellapart.training.objectives import OBJECTIVES, Objective
from tellapart.training.preparation import split, with_features


class Tagger(torch.nn.Module):
    def __init__(self, features, words):
        super().__init__()
        self.score = torch.nn.Linear(features, words)

    def forward(self, inputs):
        """Noisy-OR over the regions: (B, words)"""
        values, mask = inputs["regions"]
        absent = (1 - self.score(values).sigmoid()).where(mask[..., None], 1.0)
        return 1 - absent.prod(1)


def parts(recipe, prepared, out, resume, device, world):
    sources, failed = with_features(prepared.selections, prepared.streams, out.parent / "features", world)
    training, held_out = (split(sources, name, 0) for name in ("train", "val"))
    texts = [text for _, examples in training for example in examples for text in example.captions]
    words = WordTokenizer.build(texts, 2)
    seed_everything(recipe.seed)
    network = Tagger(prepared.streams.feature_sizes["regions"], len(words))
    data, judged_by = (CaptionedPhotos(part, words, 20) for part in (training, held_out))

    def loss_of(batch):
        tagged = network(batch.inputs)
        target = torch.zeros_like(tagged)
        rows = torch.arange(len(batch.photos)).repeat_interleave(len(batch.tokens) // max(len(batch.photos), 1))
        target[rows[:, None].expand_as(batch.tokens)[batch.token_mask], batch.tokens[batch.token_mask]] = 1
        return F.binary_cross_entropy(tagged.clamp(1e-6, 1 - 1e-6), target)

    def step(batch, moment):
        loss = loss_of(batch)
        return StepResult(loss, float(len(batch.photos)), {"loss": loss.item()})

    def validate():
        with torch.no_grad():
            every = judged_by.batch(torch.arange(len(judged_by)).numpy(), [[0]] * len(judged_by))
            return {"loss": loss_of(every).item()}

    return Parts(network, step, validate, data, [*prepared.problems, *failed])


@pytest.fixture
def objective(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "tags", Objective("words of a photo (test)", "network", parts, ("loss",)))


def test_a_tagger_learns_and_goes_on_where_it_stopped(objective, small_world, tmp_path):
    given = ["--objective.name=tags", "--model={}", "--optim.schedule=constant", "--optim.warmup=0", "--max_steps=12"]
    recipe, _, _ = parse([str(small_world / "recipe.yaml"), *given])
    run(recipe, tmp_path / "whole")
    short, _, _ = parse([str(small_world / "recipe.yaml"), *given, "--max_steps=5"])
    run(short, tmp_path / "parts")
    run(recipe, tmp_path / "parts", resume=True)
    one, other = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "parts"))
    assert all(one[name].equal(other[name]) for name in one if name.startswith("model/"))
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]


def test_what_it_does_not_report_cannot_decide(objective, small_world, tmp_path):
    recipe, _, _ = parse(
        [str(small_world / "recipe.yaml"), "--objective.name=tags", "--model={}", "--validation.metric=CIDEr-D"]
    )
    with pytest.raises(UserError, match=r"validation\.metric: there is no 'CIDEr-D' here; there are loss, last"):
        run(recipe, tmp_path / "run")


def test_an_objective_that_there_is_not_is_named(small_world, tmp_path):
    recipe, _, _ = parse([str(small_world / "recipe.yaml"), "--objective.name=tags"])
    with pytest.raises(UserError, match="a captioner learns by cross_entropy or policy_gradient, not by tags"):
        run(recipe, tmp_path / "run")
