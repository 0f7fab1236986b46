"""Taggers beside chance and a linear probe: what the table is made of."""

import numpy as np
import pytest
import torch

from tellapart.evaluation.taggers import linear_probe, parts_of_speech, summary


def test_the_probe_is_ridge_regression_on_scaled_features():
    """Its weights are where the gradient of squared error and penalty vanishes."""
    torch.manual_seed(0)
    pooled = torch.randn(40, 6) * torch.tensor([1.0, 5.0, 0.1, 2.0, 3.0, 1.0]) + 2
    has = (torch.rand(40, 3) < 0.3).float()
    weight, bias = linear_probe(pooled, has, 0.5)
    spread = torch.from_numpy(pooled.numpy().std(0))
    own = (weight * spread).double().requires_grad_()  # of features with variance 1
    start = bias.double().requires_grad_()
    error = (pooled.double() / spread) @ own.T + start - has
    (error.square().sum() + 0.5 * 40 * own.square().sum()).backward()
    assert own.grad.abs().max() < 1e-3
    assert start.grad.abs().max() < 1e-3


def test_a_probe_finds_a_word_that_features_show_and_no_other():
    torch.manual_seed(0)
    pooled = torch.cat([torch.randn(300, 8), torch.ones(300, 1)], 1)  # a feature that never changes does no harm
    has = torch.stack([(pooled[:, 2] > 0).float(), (torch.rand(300) < 0.5).float()], 1)
    weight, bias = linear_probe(pooled[:200], has[:200])
    scores = torch.nn.functional.linear(pooled[200:], weight, bias).numpy()
    metrics, per_word = summary(scores, has[200:].numpy().astype(int) * 2, 5, ["nouns", "verbs"])
    assert per_word[0] > 0.97
    assert 0.3 < per_word[1] < 0.7
    assert metrics["mAP[nouns]"] == per_word[0]
    assert metrics["mAP"] == pytest.approx(per_word.mean())


def test_means_leave_out_words_that_no_photo_has():
    found = np.array([[5, 0, 1], [0, 0, 0]])
    scores = np.array([[0.9, 0.5, 0.1], [0.1, 0.9, 0.9]])
    metrics, per_word = summary(scores, found, 5, ["nouns", "nouns", "others"])
    assert per_word[[0, 2]].tolist() == [1, 0.5]
    assert np.isnan(per_word[1])
    # Of the third word, by Fang et al.: one true of 4/5, and 1 + 1/5 of false before and with it.
    fang = [1, 0.8 / (0.8 + 1.2)]
    assert metrics == pytest.approx(
        {"mAP": 0.75, "mAP[Fang]": np.mean(fang), "mAP[nouns]": 1, "mAP[others]": 0.5}, abs=1e-12
    )


def test_a_word_is_what_it_is_most_often():
    kinds = parts_of_speech(["a brown dog runs on the green grass", "two dogs run", "a dog runs past a red bus"])
    assert [kinds[word] for word in ("dog", "bus", "runs", "red", "green", "the")] == [
        "nouns",
        "nouns",
        "verbs",
        "adjectives",
        "adjectives",
        "others",
    ]
