import math
from dataclasses import dataclass, field
from statistics import mean, stdev

import pytest
import torch

from capscore.errors import UserError
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.combine import Combined

K = 5


@dataclass
class Fixed:
    """A term whose values the test chooses."""

    values: list = field(default_factory=list)
    words: list | None = None

    def __call__(self, sampled):
        words = None if self.words is None else torch.tensor(self.words, dtype=torch.float)
        return Reward(torch.tensor(self.values, dtype=torch.float), words)


def sampled(count, lengths=None, width=3):
    mask = torch.arange(width) < torch.tensor(lengths or [width] * count)[:, None]
    return SampledCaptions(torch.ones(count, width, dtype=torch.long), mask, 100 + torch.arange(count) // 2)


def random_values(scale, seed, photos=40):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(photos * K, generator=generator) + 3 * scale).tolist()


def within(values, samples=K):
    """The mean over photos of the standard deviation within a photo, without tensors."""
    return mean(stdev(values[i : i + samples]) for i in range(0, len(values), samples))


def test_the_weighted_sum_and_its_log_line():
    terms = {"cider": Fixed([1, 3, 0, 4]), "gap": Fixed([0.5, 0.5, 0.25, 0.75])}
    reward, log = Combined(terms, {"cider": 2, "gap": -4.0})(sampled(4), 2)
    assert reward.words is None
    assert reward.sentence.tolist() == [0, 4, -1, 5]
    assert log == pytest.approx(
        {
            "reward/cider": 2,
            "reward/gap": 0.5,
            "spread/cider": (math.sqrt(2) + math.sqrt(8)) / 2,
            "spread/gap": math.sqrt(0.125) / 2,
            "reward": 2,
        }
    )


@pytest.mark.parametrize("asked", [lambda scores, captions: scores(captions, 2), Combined.score_baseline])
def test_rewards_are_in_single_precision_where_the_captioner_is_not(asked):
    """1 + 1/512 is 1 in bf16, which has eight binary digits."""

    def product(captions):
        return Reward((torch.tensor([[1.0, 1 / 512]]).repeat(4, 1) @ torch.ones(2, 1))[:, 0])

    with torch.autocast("cpu", torch.bfloat16):
        result = asked(Combined({"product": product}, {"product": 1.0}), sampled(4))
    reward = result if isinstance(result, Reward) else result[0]
    assert reward.sentence.tolist() == [1 + 1 / 512] * 4


def test_a_term_can_count_for_more_with_some_photos():
    terms = {"plain": Fixed([1, 3, 0, 4]), "weighed": Fixed([1, 2, 3, 4], [[1, 0], [2, 0], [3, 0], [4, 0]])}
    factors = torch.zeros(102)
    factors[100], factors[101] = 10, 0.5
    combined = Combined(terms, {"plain": 1, "weighed": 2}, factors={"weighed": factors})
    reward, log = combined(sampled(4, width=2), 2)
    assert reward.sentence.tolist() == [1 + 20, 3 + 40, 0 + 3, 4 + 4]
    assert reward.words.tolist() == [[20, 0], [40, 0], [3, 0], [4, 0]]
    assert log["reward/plain"] == 2
    assert log["reward/weighed"] == pytest.approx((15 + 30 + 2.25 + 3) / 4)  # a sentence and the mean of its words
    assert combined.score_baseline(sampled(4, width=2)).sentence.tolist() == reward.sentence.tolist()


def test_words_keep_their_own_numbers_and_count_by_their_mean_in_the_log():
    terms = {"sentence": Fixed([1, 2]), "words": Fixed([0, 4], [[3, 0, 0], [2, 4, 0]])}
    reward, log = Combined(terms, {"sentence": 1, "words": 0.5})(sampled(2, [1, 2]), 2)
    assert reward.sentence.tolist() == [1, 4]
    assert reward.words.tolist() == [[1.5, 0, 0], [1, 2, 0]]
    assert log["reward/words"] == pytest.approx((0 + 3 + 4 + 3) / 2)
    assert log["spread/words"] == pytest.approx(stdev([3, 7]))
    assert log["reward"] == pytest.approx((1 + 1.5 + 4 + 1.5) / 2)


def test_balance_makes_terms_of_different_scale_contribute_equally():
    terms = {"large": Fixed(random_values(100, 0)), "small": Fixed(random_values(0.001, 1))}
    combined = Combined(terms, {"large": 1, "small": 1}, balance=True)
    whole = combined(sampled(40 * K), K)[0].sentence
    contributions = {}
    for name in terms:
        alone = {other: term if other == name else Fixed([0] * 40 * K) for other, term in terms.items()}
        silent = Combined(alone, {"large": 1, "small": 1}, balance=True)
        contributions[name] = silent(sampled(40 * K), K)[0].sentence
        assert within(contributions[name].tolist()) == pytest.approx(0.30, rel=1e-5)
    torch.testing.assert_close(contributions["large"] + contributions["small"], whole)


def test_the_sum_of_weights_sets_the_scale_of_the_balanced_sum():
    """2 C + 3 Tr + 1.5 Ir: each over its spread, times .3 / (6.5 / 2); then minus a tenth of the repetition."""
    values = {
        name: random_values(scale, seed) for seed, (name, scale) in enumerate({"C": 1, "Tr": 9, "Ir": 0.1}.items())
    }
    repetition = [-(i % 3) for i in range(40 * K)]
    weights = {"C": 2, "Tr": 3, "Ir": -1.5}
    combined = Combined(
        {name: Fixed(list_of) for name, list_of in {**values, "repetition": repetition}.items()},
        {**weights, "repetition": 0.1},
        balance=True,
        unbalanced=frozenset({"repetition"}),
    )
    factor = 0.30 / (6.5 / 2)
    expected = [
        factor * sum(weights[name] * values[name][i] / within(values[name]) for name in values) + 0.1 * repetition[i]
        for i in range(40 * K)
    ]
    reward, log = combined(sampled(40 * K), K)
    assert reward.sentence.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert log["reward"] == pytest.approx(mean(expected), rel=1e-4)
    assert log["reward/repetition"] == pytest.approx(mean(repetition))


def test_terms_are_divided_by_a_running_mean_that_is_not_drawn_to_zero_at_first():
    term = Fixed()
    combined = Combined({"t": term}, {"t": 1}, balance=True, decay=0.8, target=1)
    spreads = []
    for spread in (1.0, 3.0, 2.0):
        term.values = [0, spread * math.sqrt(2)]  # whose standard deviation is `spread`
        spreads.append(spread)
        past = [0.8**age for age in range(len(spreads))]
        running = sum(w * s for w, s in zip(past, reversed(spreads), strict=True)) / sum(past)
        assert combined(sampled(2), 2)[0].sentence.tolist() == pytest.approx([0, spread * math.sqrt(2) / running])


def test_a_state_that_is_restored_goes_on_as_if_nothing_had_happened():
    def fresh():
        return Combined({"a": a, "b": b, "c": b}, dict.fromkeys("abc", 1), balance=True, unbalanced=frozenset("c"))

    a, b = Fixed(random_values(1, 0)), Fixed(random_values(7, 1))
    first, second = fresh(), fresh()
    first(sampled(40 * K), K)
    second.restore({name: tensor.clone() for name, tensor in first.state().items()})
    assert set(first.state()) == {"a", "b"}
    kept = first.state()
    a.values, b.values = random_values(2, 2), random_values(3, 3)
    unaware = fresh()(sampled(40 * K), K)[0].sentence
    expected = first(sampled(40 * K), K)[0].sentence
    torch.testing.assert_close(second(sampled(40 * K), K)[0].sentence, expected, rtol=0, atol=0)
    assert not torch.allclose(unaware, expected)
    assert not torch.equal(kept["a"], first.state()["a"])  # what was handed out is a copy


def test_a_state_of_other_terms_is_refused():
    balanced = Combined({"a": Fixed()}, {"a": 1}, balance=True)
    with pytest.raises(UserError, match="running spreads of b, but the recipe balances a"):
        balanced.restore({"b": torch.zeros(2)})
    with pytest.raises(UserError, match="running spreads of no reward, but the recipe balances a"):
        balanced.restore({})
    plain = Combined({"a": Fixed()}, {"a": 1})
    assert plain.state() == {}
    plain.restore({})


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.1, -7.0])
def test_equal_rewards_stay_finite_and_equal(balance, value):
    combined = Combined({"a": Fixed([value] * 6), "b": Fixed([0] * 6)}, {"a": 1, "b": 2}, balance=balance)
    for _ in range(3):
        reward, log = combined(sampled(6), 3)
        assert reward.sentence.isfinite().all()
        assert reward.sentence.unique().numel() == 1
        assert all(map(math.isfinite, log.values()))
    assert log["spread/a"] == pytest.approx(0, abs=1e-6)
    noise = Fixed([0.1, 0.1 + 1e-8, 0.1 - 1e-8, 0.1])  # rounding is not taken for a spread
    reward, _ = Combined({"a": noise}, {"a": 1}, balance=True)(sampled(4), 2)
    assert reward.sentence.tolist() == pytest.approx([0.03] * 4, abs=1e-6)


def test_what_has_no_spread_is_on_the_scale_of_the_samples_before_it_and_does_not_change_that():
    """Steps in which a term is the same for all captions; one caption a photo; captions that others compare with."""
    term = Fixed([0, 2 * math.sqrt(2)])
    combined = Combined({"t": term}, {"t": 1}, balance=True, target=1)
    expected = combined(sampled(2), 2)[0].sentence  # a spread of 2
    before = combined.state()
    term.values = [5, 5]
    for _ in range(100):
        combined(sampled(2), 2)
    term.values = [8, 12]
    reward, log = combined(sampled(2), 1)
    assert (reward.sentence.tolist(), log["spread/t"]) == (pytest.approx([4, 6]), 0)
    term.values = [8]
    assert combined.score_baseline(sampled(1)).sentence.tolist() == pytest.approx([4])
    torch.testing.assert_close(combined.state(), before, rtol=0, atol=0)
    term.values = [0, 2 * math.sqrt(2)]
    torch.testing.assert_close(combined(sampled(2), 2)[0].sentence, expected)


def test_processes_divide_by_the_mean_spread_of_all_their_photos():
    """This process has one photo with spreads 1 and 10, the other one three with 5 and 50: 4 and 40 in the mean."""
    terms = {"a": Fixed([0, math.sqrt(2)]), "b": Fixed([0, 10 * math.sqrt(2)])}

    def total(ours):
        return [mine + theirs for mine, theirs in zip(ours, [3, 3 * 5, 3 * 50], strict=True)]

    combined = Combined(terms, {"a": 1, "b": 0}, balance=True, target=1, total=total)
    assert combined(sampled(2), 2)[0].sentence.tolist() == pytest.approx([0, math.sqrt(2) / 4])
    ratios = [sums / ones for sums, ones in (state.tolist() for state in combined.state().values())]
    assert ratios == pytest.approx([4, 40])


def test_a_process_without_photos_learns_the_spread_of_the_others():
    combined = Combined({"a": Fixed([0, 1])}, {"a": 1}, balance=True, target=1, total=lambda ours: [2, 2 * 7])
    combined.skip_batch()
    sums, ones = combined.state()["a"].tolist()
    assert sums / ones == pytest.approx(7)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("balance", [True, False])
def test_what_is_not_a_number_names_the_term_and_the_photos(bad, balance):
    terms = {"good": Fixed([1, 2, 3, 4, 5, 6]), "gap": Fixed([1, 0, bad, bad, 0, bad])}
    combined = Combined(terms, {"good": 1, "gap": 0}, balance=balance)
    before = combined.state()
    with pytest.raises(UserError, match=r"reward 'gap' .* photos at 101, 102 "):
        combined(sampled(6), 2)
    assert combined.state().keys() == before.keys()
    assert all(torch.equal(combined.state()[name], before[name]) for name in before)

    words = {"good": Fixed([1, 2]), "local": Fixed([0, 0], [[1, bad, 0], [1, 1, 0]])}
    with pytest.raises(UserError, match=r"reward 'local' .* photos at 100 "):
        Combined(words, {"good": 1, "local": 1}, balance=balance)(sampled(2), 2)
