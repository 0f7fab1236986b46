"""The language model of Fluency and Unidiomatic: against the formula in plain loops, and against leaks."""

import math
import random
from itertools import chain, product

import numpy as np
import pytest

from capscore.errors import UserError
from capscore.fluency import KneserNey, coco, fluency, lowest_terms, unidiomatic

TOY = [
    text.split()
    for text in (
        "a dog runs",
        "a dog runs on grass",
        "a cat sleeps on a bed",
        "two dogs",
        "a dog sleeps",
        "two cats on a bed",
        "a dog on a bed on grass",
    )
]
KNOWN = {word for word in chain.from_iterable(TOY) if sum(caption.count(word) for caption in TOY) > 1}


def with_unknown(words):
    return [word if word in KNOWN else "<unknown>" for word in words]


def padded(words):
    return ["<s>"] * 3 + with_unknown(words) + ["</s>"]


def by_definition(history, word, captions=TOY, discount=0.75):
    """Chen and Goodman (1999), Eq. for interpolated Kneser-Ney, with loops over all that was seen."""
    events = [tuple(text[i - 3 : i + 1]) for text in map(padded, captions) for i in range(3, len(text))]
    vocabulary = {event[-1] for event in events} | {"<unknown>"}

    def count(sequence):
        if len(sequence) == 4:
            return sum(event == sequence for event in events)
        longer = {event[-len(sequence) - 1 :] for event in events}
        return sum(one[1:] == sequence for one in longer)

    def probability(history, word):
        shorter = probability(history[1:], word) if history else 1 / len(vocabulary)
        followers = {other: count((*history, other)) for other in vocabulary}
        total = sum(followers.values())
        if total == 0:
            return shorter
        types = sum(times > 0 for times in followers.values())
        return max(followers[word] - discount, 0) / total + discount * types / total * shorter

    return probability(tuple(history), word)


def probability(model, history, word):
    numbers = {"<s>": 0, "</s>": 1, "<unknown>": 2} | {word: n for n, word in enumerate(model.words, 3)}
    return model.probabilities(np.array([[numbers[w] for w in (*history, word)]]))[0]


def test_probabilities_are_those_of_the_formula():
    model = KneserNey.of(TOY)
    assert set(model.words) == KNOWN
    events = [(text[i - 3 : i], text[i]) for text in map(padded, TOY) for i in range(3, len(text))]
    unseen = [(["<s>", "two", "bed"], "dog"), (["bed", "bed", "bed"], "on"), (["<s>", "<s>", "on"], "<unknown>")]
    for history, word in [*events, *unseen]:
        assert probability(model, history, word) == pytest.approx(by_definition(history, word), rel=1e-12)


@pytest.mark.parametrize(
    "history", [("<s>", "<s>", "<s>"), ("<s>", "a", "dog"), ("on", "a", "bed"), ("bed", "bed", "a")]
)
def test_probabilities_after_any_words_sum_to_one(history):
    model = KneserNey.of(TOY)
    words = [*model.words, "</s>", "<unknown>"]
    assert sum(probability(model, history, word) for word in words) == pytest.approx(1, rel=1e-12)
    assert model.unigrams(np.arange(1, model.size)).sum() == pytest.approx(1, rel=1e-12)


def test_probabilities_of_the_bundled_model_sum_to_one():
    model = coco()
    rows = [[0, 0, 0], [0, 0, 3], [5, 700, 9], [4000, 4000, 4000]]
    for row in rows:
        windows = np.array([[*row, word] for word in range(1, model.size)])
        assert model.probabilities(windows).sum() == pytest.approx(1, rel=1e-9)
    assert model.unigrams(np.arange(1, model.size)).sum() == pytest.approx(1, rel=1e-9)


def test_a_term_is_the_gain_over_the_frequency_of_the_word():
    model = KneserNey.of(TOY)
    caption = ["a", "dog", "on", "zebras"]
    words = [*with_unknown(caption), "</s>"]
    everything = [word for text in TOY for word in [*with_unknown(text), "</s>"]]
    expected = [
        math.log(by_definition(padded(caption)[i : i + 3], word)) - math.log(everything.count(word) / len(everything))
        for i, word in enumerate(words)
    ]
    terms, owner = model.terms([[], caption])
    assert terms[owner == 1].tolist() == pytest.approx(expected)
    assert (owner == 0).sum() == 1  # of an empty caption, the end
    assert fluency([caption], model).corpus()["Fluency"] == pytest.approx(sum(expected) / len(expected))
    assert lowest_terms([caption], model).tolist() == pytest.approx([min(expected)])


def test_a_model_that_was_kept_is_the_same(tmp_path):
    model = KneserNey.of(TOY)
    model.save(tmp_path / "model.npz")
    again = KneserNey.load(tmp_path / "model.npz")
    assert again.terms(TOY)[0].tolist() == model.terms(TOY)[0].tolist()
    (tmp_path / "model.npz").write_bytes(b"PK nonsense")
    with pytest.raises(UserError, match=r"model\.npz: this is no language model"):
        KneserNey.load(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="too many"):
        KneserNey([str(number) for number in range(60_000)], np.zeros((0, 4), np.int64), np.zeros(0, np.int64))


def test_people_are_fluent_and_their_words_in_another_order_are_not():
    texts = [text.split() for text in PEOPLE]
    shuffled = [random.Random(0).sample(words, len(words)) for words in texts]
    people, mixed = (fluency(one, coco()).per_photo()[:, 0] for one in (texts, shuffled))
    assert (people > mixed).all()
    assert people.min() > 0


PEOPLE = [
    "a man riding a wave on top of a surfboard",
    "a bathroom with a toilet and a sink",
    "two dogs are playing with a frisbee in the grass",
    "a red double decker bus driving down a street",
    "a plate of food with broccoli and meat",
]


def test_people_are_near_five_percent_unidiomatic_by_construction():
    """Captions that are drawn like the references are below their quantile as often as it says."""
    draw = random.Random(0)
    subjects, places = ["dog", "cat", "man", "woman", "zebra", "quetzal"], ["a bed", "the grass", "it", "top of it"]
    every = [f"a {one} {verb} on {place}".split() for one, verb, place in product(subjects, ["sits", "is"], places)]
    references = [[draw.choice(every) for _ in range(5)] for _ in range(2000)]
    share = unidiomatic([draw.choice(every) for _ in range(2000)], references, coco()).corpus()["Unidiomatic"]
    assert share <= 0.07
    nonsense = [["sits", "on", "a", "a", "on"]] * 2000
    assert unidiomatic(nonsense, references, coco()).corpus()["Unidiomatic"] == 1


def test_the_limit_is_the_five_percent_quantile_of_the_references():
    model = KneserNey.of(TOY)
    references = [TOY[:4], TOY[4:]]
    limit = np.quantile([lowest_terms([words], model)[0] for words in TOY], 0.05)
    captions = [["a", "bed", "runs"], ["a", "dog", "runs"]]
    expected = [float(lowest_terms([words], model)[0] < limit) for words in captions]
    assert unidiomatic(captions, references, model).per_photo()[:, 0].tolist() == expected == [1, 0]
