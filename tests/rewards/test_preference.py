"""Preferences are learned from simulated people, who like a property of captions, and not from noise."""

import math
import random
from dataclasses import replace

import pytest
import torch

from capscore.errors import UserError
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.rewards import SampledCaptions
from tellapart.rewards.preference import Decision, Preference, PreferenceReward, _examples, _fit, learn

COLOURS = {"red", "blue", "green"}
WORDS = [
    "a",
    "man",
    "woman",
    "dog",
    "cat",
    "bus",
    "street",
    "bed",
    "riding",
    "holding",
    "on",
    "under",
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
    found = []
    while len(found) < count:
        one, other = captions(draw, 2)
        if likes(one) != likes(other):
            better, worse = (one, other) if (likes(one) > likes(other)) != (draw.random() < noise) else (other, one)
            found.append(Decision(str(len(found) // 2), better, worse))
    return found


def alone(draw, likes, count):
    """The same people, who see one caption at a time."""
    usual = sorted(likes(caption) for caption in captions(draw, 200))[100]
    found = []
    for number, caption in enumerate(captions(draw, count)):
        good = likes(caption) > usual if likes is LIKES["is short"] else likes(caption)
        found.append(Decision(str(number), *((caption, "") if good else ("", caption))))
    return found


def shuffled(draw, decisions):
    """Decisions that have nothing to do with the captions."""
    return [replace(one, better=one.worse, worse=one.better) if draw.random() < 0.5 else one for one in decisions]


@pytest.mark.parametrize("asked", [pairs, alone])
@pytest.mark.parametrize("name", LIKES)
def test_what_simulated_people_like_is_learned_and_applies_to_new_captions(name, asked):
    draw = random.Random(1)
    preference = learn(asked(draw, LIKES[name], 150))
    new = pairs(draw, LIKES[name], 200, noise=0)
    right = sum(preference.appeal(one.better) > preference.appeal(one.worse) for one in new)
    assert right >= 170
    assert preference.predicted > 0.7


@pytest.mark.parametrize("asked", [pairs, alone])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_learned_from_shuffled_decisions(seed, asked):
    draw = random.Random(seed)
    assert learn(shuffled(draw, asked(draw, LIKES["names a colour"], 150))) is None


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
    words = torch.tensor([[*tokenizer.encode(text), tokenizer.eos, *[tokenizer.pad] * 3][:5] for text in texts])
    mask = torch.tensor([[place <= len(text.split()) for place in range(5)] for text in texts])
    reward = PreferenceReward(preference, lambda sampled: texts)(
        SampledCaptions(words, mask, torch.zeros(3, dtype=torch.long))
    )
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
