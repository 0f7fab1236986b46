"""A network that is neither captioner nor retriever trains through the same loop: a tagger of toy size."""

import pytest
import torch
import torch.nn.functional as F

from capscore.errors import UserError
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.tokenizers import WordTokenizer
from tellapart.objectives import StepResult
from tellapart.training.build import Parts, seed_everything
from tellapart.training.objectives import OBJECTIVES, Objective
from tellapart.training.preparation import split, with_features
from training.runs import assert_same_tensors, log_of

GIVEN = ("--objective.name=tags", "--model={}", "--optim.schedule=constant", "--optim.warmup=0")


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
    words = WordTokenizer.build((text for _, part in training for example in part for text in example.captions), 2)
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


def test_a_tagger_learns_and_goes_on_where_it_stopped(begin, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="a captioner learns by cross_entropy or policy_gradient, not by tags"):
        begin(*GIVEN)
    monkeypatch.setitem(OBJECTIVES, "tags", Objective("words of a photo (test)", "network", parts, ("loss",)))
    with pytest.raises(UserError, match=r"validation\.metric: there is no 'CIDEr-D' here; there are loss, last"):
        begin(*GIVEN, "--validation.metric=CIDEr-D")
    begin(*GIVEN, "--max_steps=12", out=tmp_path / "whole")
    for steps in (5, 12):
        begin(*GIVEN, f"--max_steps={steps}", out=tmp_path / "parts", resume=steps == 12)
    assert_same_tensors(tmp_path / "whole", tmp_path / "parts", ["last"])
    losses = [line["loss"] for line in log_of(tmp_path / "whole", "loss")]
    assert losses[-1] < 0.7 * losses[0]
