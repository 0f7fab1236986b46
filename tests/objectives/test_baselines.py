"""Baselines by arithmetic, and by calculus: what the estimator is on average, over all captions that there are."""

from itertools import product

import pytest
import torch

from tellapart.objectives import baselines
from tellapart.objectives.policy_gradient import policy_gradient
from tellapart.rewards import Reward

EOS, LONGEST, WORDS = 0, 3, 3


def numbers(*values):
    return torch.tensor(values, dtype=torch.double)


def reward(*sentence, words=None):
    return Reward(numbers(*sentence), None if words is None else torch.tensor(words, dtype=torch.double))


SIX = reward(1, 2, 3, 0, 0, 9)
ALL = torch.ones(6, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("baseline", "sentence", "words"),
    [
        (baselines.leave_one_out(SIX, 3), [2.5, 2, 1.5, 4.5, 4.5, 0], None),
        # rewards of words are taken place by place
        (
            baselines.leave_one_out(reward(0, 0, 0, words=[[3, 1], [5, 0], [1, 4]]), 3),
            [0, 0, 0],
            [[3, 2], [2, 2.5], [4, 0.5]],
        ),
        (baselines.mean(SIX, 3), [2, 2, 2, 3, 3, 3], None),
        (baselines.mean_of_best(SIX, ALL, 3, 2), [2.5] * 3 + [4.5] * 3, None),
        (baselines.mean_of_best(SIX, ALL, 3, 1), [3] * 3 + [9] * 3, None),
        # the best are those with the best sentence and words together
        (baselines.mean_of_best(reward(1, 2, words=[[4, 4], [1, 1]]), ALL[:2], 2, 1), [1, 1], [[4, 4], [4, 4]]),
        (baselines.of_photo(reward(1, 3, 10, 20), 2, 3), [2, 2, 2, 15, 15, 15], None),  # two captions of two photos
    ],
)
def test_baselines_by_hand(baseline, sentence, words):
    assert baseline.sentence.tolist() == sentence
    assert (None if baseline.words is None else baseline.words.tolist()) == words


def test_past_the_end_of_the_baseline_its_sentence_remains_and_what_it_says_past_that_of_captions_does_not_count():
    """GLD, Eq. 12: the caption has three words, the baseline one; and the other way round."""
    longer = baselines.advantage(reward(5, words=[[1, 2, 3]]), reward(2, words=[[4]]), 3)
    assert longer.tolist() == [[5 - 2 + 1 - 4, 5 - 2 + 2, 5 - 2 + 3]]
    assert baselines.advantage(reward(5, words=[[1]]), reward(2, words=[[4, 7]]), 1).tolist() == [[0]]


def test_whitened_over_the_words_that_are_said_or_by_photo():
    advantage = torch.tensor([[1.0, 1.0], [3.0, 100.0]], dtype=torch.double)
    mask = torch.tensor([[True, True], [True, False]])
    white, values = baselines.whitened(advantage, mask), numbers(1, 1, 3)
    torch.testing.assert_close(white[mask], (values - values.mean()) / values.std(correction=0))
    assert white[1, 1] == 0
    by_photo = baselines.whitened(torch.tensor([[0.0], [2.0], [10.0], [30.0]]), torch.ones(4, 1, dtype=torch.bool), 2)
    torch.testing.assert_close(by_photo, torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_equal_advantages_whiten_to_nothing(value):
    advantage = torch.full((5, 3), value)
    assert not baselines.whitened(advantage, torch.ones(5, 3, dtype=torch.bool)).any()


# --- on average, over all captions ---


def every_caption():
    """All captions of up to LONGEST tokens, each with what its words were said after."""
    captions = []
    for length in range(1, LONGEST + 1):
        for words in product(range(1, WORDS), repeat=length - 1):
            captions.append((*words, EOS))
            if length == LONGEST:
                captions += [(*words, last) for last in range(1, WORDS)]
    return captions


@pytest.fixture
def world():
    draw = torch.Generator().manual_seed(3)
    table = torch.randn(WORDS, WORDS, generator=draw, dtype=torch.double, requires_grad=True)  # last word by next
    captions = every_caption()
    tokens = torch.full((len(captions), LONGEST), EOS)
    for row, caption in zip(tokens, captions, strict=True):
        row[: len(caption)] = torch.tensor(caption)
    before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, caption in zip(mask, captions, strict=True):
        row[: len(caption)] = True
    score_baseline = torch.randn(len(captions), generator=draw, dtype=torch.double) * 3 + 5
    logp = table.log_softmax(1)[before, tokens] * mask
    probability = logp.sum(1).exp().detach()
    torch.testing.assert_close(probability.sum(), torch.ones((), dtype=torch.double))
    (exact,) = torch.autograd.grad((logp.sum(1).exp() * score_baseline).sum(), table, retain_graph=True)
    return table, logp, mask, score_baseline, probability, exact


def average(world, baseline, samples=2):
    """The estimator's expectation: every tuple of captions of one photo, by its probability."""
    table, logp, mask, score_baseline, probability, _ = world
    total = torch.zeros_like(table)
    for drawn in product(range(len(score_baseline)), repeat=samples):
        rows = torch.tensor(drawn)
        got = Reward(score_baseline[rows])
        above = baselines.advantage(got, baseline(got, rows), LONGEST)
        loss, _ = policy_gradient(logp[rows], above, mask[rows], "sentence_sum")
        (gradient,) = torch.autograd.grad(loss, table, retain_graph=True)
        total -= probability[rows].prod() * gradient
    return total


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("none", lambda got, rows: baselines.constant(0.0, got)),
        ("running mean", lambda got, rows: baselines.constant(4.2, got)),
        ("greedy or references", lambda got, rows: baselines.of_photo(reward(3.7), 1, len(rows))),
        ("leave one out", lambda got, rows: baselines.leave_one_out(got, len(rows))),
    ],
)
def test_the_estimator_is_the_gradient_of_the_expected_reward(world, name, baseline):
    torch.testing.assert_close(average(world, baseline), world[-1])


def test_the_mean_of_all_shrinks_the_gradient_and_the_mean_of_the_best_is_biased(world):
    """With the best of two as baseline, one of the two learns nothing; that is not the gradient, as the docs say."""
    torch.testing.assert_close(average(world, lambda got, rows: baselines.mean(got, 2)), world[-1] / 2)
    best = average(world, lambda got, rows: baselines.mean_of_best(got, ALL[:2, :1], 2, 1))
    assert not torch.allclose(best, world[-1], rtol=0.05)


def test_a_second_sample_as_baseline(world):
    table, logp, mask, score_baseline, probability, exact = world
    total = torch.zeros_like(table)
    for own, other in product(range(len(score_baseline)), repeat=2):
        above = baselines.advantage(Reward(score_baseline[[own]]), Reward(score_baseline[[other]]), LONGEST)
        loss, _ = policy_gradient(logp[[own]], above, mask[[own]], "sentence_sum")
        (gradient,) = torch.autograd.grad(loss, table, retain_graph=True)
        total -= probability[own] * probability[other] * gradient
    torch.testing.assert_close(total, exact)


# --- reductions ---


def test_reductions_by_hand():
    logp = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -9.0, -9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    above = torch.tensor([[2.0, 2.0, 7.0], [-1.0, 7.0, 7.0]])
    losses = {"words": 3 / 3, "sentence_sum": (6 - 3) / 2, "sentence_mean": (3 - 3) / 2}
    for reduction, expected in losses.items():
        loss, weight = policy_gradient(logp, above, mask, reduction)
        assert (loss.item(), weight) == (expected, 3 if reduction == "words" else 2)
        nothing = policy_gradient(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool), reduction)
        assert nothing[0].item() == 0


def test_nothing_after_the_end_gets_a_gradient():
    logp = torch.tensor([[-1.0, -2.0, -torch.inf]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    loss, _ = policy_gradient(logp, torch.tensor([[1.0, 1.0, torch.nan]]), mask)
    loss.backward()
    assert logp.grad.tolist() == [[-0.5, -0.5, 0]]
