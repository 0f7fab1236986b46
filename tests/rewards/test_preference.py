"""Preferences are learned from simulated people, who like a property of captions, and not from noise."""

import math
import random
from dataclasses import replace

import pytest
import torch

from capscore.errors import UserError
from rewards.captions import sampled
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.rewards.preference import Decision, Preference, PreferenceReward, _examples, _fit, learn

COLOURS = {"red", "blue", "green"}
WORDS = [
    "a",
    *["man", "woman", "dog", "cat", "bus", "street", "bed", "riding", "holding", "on", "under"],
    *sorted(COLOURS),
]
LIKES = {
    "names a colour": lambda caption: bool(COLOURS & set(caption.split())),
    "is short": lambda caption: -len(caption.split()),
}


def captions(draw, count):
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(count)]


def pairs(draw, likes, count, *, noise=0.1):
    """People who choose the caption that they like better, and now and then the other one."""
    decisions = []
    while len(decisions) < count:
        first, second = captions(draw, 2)
        if likes(first) != likes(second):
            likes_first = (likes(first) > likes(second)) != (draw.random() < noise)
            better, worse = (first, second) if likes_first else (second, first)
            decisions.append(Decision(str(len(decisions) // 2), better, worse))
    return decisions


def alone(draw, likes, count):
    """The same people, who see one caption at a time."""
    usual = sorted(likes(caption) for caption in captions(draw, 200))[100]
    decisions = []
    for number, caption in enumerate(captions(draw, count)):
        good = likes(caption) > usual if likes is LIKES["is short"] else likes(caption)
        decisions.append(Decision(str(number), *((caption, "") if good else ("", caption))))
    return decisions


def shuffled(draw, decisions):
    """Decisions that have nothing to do with the captions."""
    return [replace(each, better=each.worse, worse=each.better) if draw.random() < 0.5 else each for each in decisions]


@pytest.mark.parametrize("ask", [pairs, alone])
@pytest.mark.parametrize("name", LIKES)
def test_what_simulated_people_like_is_learned_and_applies_to_new_captions(name, ask):
    draw = random.Random(1)
    preference = learn(ask(draw, LIKES[name], 150))
    new = pairs(draw, LIKES[name], 200, noise=0)
    right = sum(preference.appeal(each.better) > preference.appeal(each.worse) for each in new)
    assert right >= 170
    assert preference.predicted > 0.7


@pytest.mark.parametrize("ask", [pairs, alone])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_learned_from_shuffled_decisions(seed, ask):
    draw = random.Random(seed)
    assert learn(shuffled(draw, ask(draw, LIKES["names a colour"], 150))) is None


def test_nothing_is_learned_where_everything_is_approved():
    draw = random.Random(0)
    assert learn([Decision(str(i), better=caption) for i, caption in enumerate(captions(draw, 60))]) is None


def test_the_weights_are_those_of_the_least_penalised_loss():
    draw = random.Random(2)
    decisions = pairs(draw, LIKES["is short"], 25) + alone(draw, LIKES["is short"], 15)
    x, by_itself, y = _examples(decisions)
    weights = _fit(x, by_itself, y, 1.0).tolist()

    def objective(weights):
        total = sum(weight**2 for weight in weights[:-1]) / 2 + 1e-3 * weights[-1] ** 2
        for row, single, good in zip(x.tolist(), by_itself.tolist(), y.tolist(), strict=True):
            s = sum(a * b for a, b in zip(row, weights, strict=False)) + single * weights[-1]
            total += math.log1p(math.exp(-s if good else s))
        return total

    least = objective(weights)
    for place in range(len(weights)):
        for step in (-0.01, 0.01):
            assert objective([w + step * (i == place) for i, w in enumerate(weights)]) > least - 1e-9


def test_the_reward_is_the_log_probability_of_being_preferred():
    tokenizer = WordTokenizer(["a", "red", "bus", "cat"])
    preference = Preference({"red": 2.0, "cat": -1.0}, length=-5.0, liked=0.5)
    texts = ["a red bus", "a cat", "red red"]
    captions = sampled([*map(tokenizer.encode, texts)], end=tokenizer.eos)
    reward = PreferenceReward(preference, lambda sampled: texts)(captions)
    above = [2.0 - 1.5 - 0.5, -1.0 - 1.0 - 0.5, 2.0 - 1.0 - 0.5]  # each different word once
    expected = [-math.log1p(math.exp(-s)) for s in above]
    torch.testing.assert_close(reward.sentence, torch.tensor(expected))
    assert [round(preference.chance(text), 6) for text in texts] == [round(math.exp(e), 6) for e in expected]


def test_preferences_are_kept_in_a_file_and_other_files_refused(tmp_path):
    preference = Preference({"red": 2.0}, -1.0, 0.5, 0.8)
    preference.save(tmp_path / "p.json")
    assert Preference.load(tmp_path / "p.json") == preference
    for text in ('{"weights": {"red": "much"}}', '{"format": 1, "weights": {"red": 1}}', '{"format": 1}'):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(UserError, match=r"p\.json: this is no file of preferences"):
            Preference.load(tmp_path / "p.json")


def test_words_are_split_as_captions_are():
    assert Preference({"t-shirt": 1.0}, 0.0, 0.0).appeal("A T-shirt.") == float("t-shirt" in split_words("A T-shirt."))
