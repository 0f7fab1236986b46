"""Measures of words alone, by hand and beside sets of Python; the order of function words beside plain loops."""

import json
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore import command, scoring, words
from capscore.caption_files import TrainingCaptions
from capscore.errors import UserError
from capscore.words import END, STOP_WORDS, WordOrder, coco_order, distinct, flaws, roles, unusual_order
from scored import loo1000

CAPTIONS = [text.split() for text in ["a dog runs", "a dog runs", "a dog and a red dog", "a cat"]]
REFERENCES = [
    [text.split() for text in texts]
    for texts in [["a dog runs fast", "the dog"], ["a dog"], ["two red animals"], ["the tabby"]]
]
COUNT = 3 + 3 + 6 + 2
TABLE = {"a": 9000, "dog": 400, "runs": 17, "and": 5000, "red": 18, "cat": 300}
NEAR = np.array([[1], [0], [3], [2]])


def corpus(statistics):
    (score,) = statistics.corpus().values()
    return score


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        (words.unique_captions(CAPTIONS), 3 / 4),
        (words.average_length(CAPTIONS), COUNT / 4),
        (words.vocabulary(CAPTIONS), len({"a", "dog", "runs", "and", "red", "cat"})),
        (words.rare_words(CAPTIONS, TABLE, 17_721), 2 / COUNT),  # "runs" twice
        (words.rare_words([["axolotl"]], TABLE, 17_721), 1),
        # dog, runs | dog of dog, runs | red of dog, red, dog | none of cat
        (words.precision(CAPTIONS, REFERENCES), (2 + 1 + 1 + 0) / (2 + 2 + 3 + 1)),
        # all words but "runs" are in photo 1's references, and all in photo 0's | all six | "cat" and "a"
        (words.distinctive_words(CAPTIONS, REFERENCES, NEAR), (1 + 0 + 6 + 2) / COUNT),
    ],
    ids=lambda value: value.names[0] if hasattr(value, "names") else "",
)
def test_a_corpus_by_hand(statistics, expected):
    assert corpus(statistics) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("measure", "captions", "expected"),
    [
        (words.bad_end, "a dog on a|a dog on grass|a wall to lean on||the", [1, 0, 0, 0, 1]),
        (words.repetition, "a man with a hat|a red bus and a red car||dog dog", [0, 1, 0, 1]),
        (words.stutter, "a dog on on a bed|a dog dog||a|in a dog in a cat", [1, 1, 0, 0, 0]),
    ],
)
def test_flaws_of_single_captions(measure, captions, expected):
    assert measure([text.split() for text in captions.split("|")]).per_photo()[:, 0].tolist() == expected


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), min_size=1, max_size=6))
def test_sizes_of_sets_are_what_python_says(captions):
    pairs = [(a, b) for caption in captions for a, b in pairwise(caption)]
    assert corpus(words.vocabulary(captions)) == pytest.approx(len({w for caption in captions for w in caption}))
    assert corpus(words.unique_captions(captions)) == pytest.approx(len(set(map(tuple, captions))) / len(captions))
    assert corpus(distinct(captions, 2)) == pytest.approx(len(set(pairs)) / len(pairs) if pairs else 0)


def test_empty_captions_have_defined_values():
    for statistics in (
        words.precision([[]], [[["a"]]]),
        words.rare_words([[]], {}, 10),
        words.repetition([[]]),
        distinct([[]], 2),
        words.distinctive_words([[]], [[["a"]]], np.zeros((1, 0), int)),
    ):
        assert not math.isnan(corpus(statistics))


@pytest.mark.parametrize(
    ("caption", "count"),
    [
        ("", 0),
        ("bus", 0),
        ("a man on a bench with a dog on a leash", 0),  # stop words may be said again
        ("a red bus and a red red car", 2),  # "red" twice more
        ("dog dog dog", 2),
        ("two dogs and two cats and two birds", 2),  # numbers are content
        ("a man on a", 1),  # breaks off
        ("a dog and a dog with the", 2),
        ("a wall to lean on", 0),
    ],
)
def test_what_is_held_against_a_caption_by_hand(caption, count):
    assert flaws(caption.split()) == count


# Novel

NEW = {1: "A dog runs.", 2: "a dog runs fast", 3: "a cat", 4: "A Cat!"}
OTHERS = {photo: ["something else"] for photo in NEW}


def test_a_caption_is_novel_unless_a_training_caption_has_the_same_words():
    """Case and punctuation do not count; a part of a training caption is another caption."""
    training = TrainingCaptions([["a", "dog", "runs"], ["a", "cat", "sleeps"]])
    scores = scoring.measure(NEW, OTHERS, metrics="Novel", training=training)
    assert scores.per_photo() == {"1": {"Novel": 0}, "2": {"Novel": 1}, "3": {"Novel": 1}, "4": {"Novel": 1}}
    assert scores.corpus == {"Novel": 0.75}
    assert scores.signature["Novel"].startswith("Novel|training:2-")


def test_a_measure_that_lacks_training_captions_is_refused_by_name_and_passed_over_otherwise():
    assert "Novel" not in scoring.measure(NEW, OTHERS).skipped
    assert "--training" in scoring.measure(NEW, OTHERS, metrics="all").skipped["Novel"]
    with pytest.raises(UserError, match=r"Novel cannot be computed: it needs .*--training"):
        scoring.measure(NEW, OTHERS, metrics="Novel")


def test_the_command_takes_the_training_split_of_data_files(tmp_path, capsys):
    photos = [
        {"id": 7, "file": "7.jpg", "split": "train", "captions": ["a dog runs", "a cat."]},
        {"id": 8, "file": "8.jpg", "split": "test", "captions": ["a dog runs fast"]},
    ]
    contents = {"captions": NEW, "references": OTHERS, "data": {"dataset": "x", "images": photos}}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    captions, references, data = (str(tmp_path / f"{name}.json") for name in contents)
    assert command.main([captions, references, "--metrics", "Novel", "--training", data]) == 0
    assert json.loads(capsys.readouterr().out)["corpus"] == {"Novel": 0.25}


# UnusualOrder

RUNS = st.lists(st.sampled_from(["a", "in", "it", "dog", "cat", "is"]), max_size=7)


def whole(text):
    return [*roles(text.split()), END]


def test_a_word_is_unusual_where_nobody_goes_on_so():
    people = WordOrder.of([whole("a dog in a park"), whole("a toilet with a sink in it"), whole("a man is on a horse")])
    captions = ["a cat in a box", "a sink in it", "a cat is on it", "a dog in", "a dog in a park a", ""]
    assert people.unusual([whole(text) for text in captions]).tolist() == [0, 0, 1, 1, 1, 1]
    assert people.unusual([roles(["a", "dog", "in"])]).tolist() == [0]  # cut: not reproached with its end


def test_what_one_in_five_hundred_say_is_usual_and_what_fewer_say_is_not():
    often, once = whole("a dog is in a park"), whole("a dog is on a hill")
    assert WordOrder.of([*[often] * 499, once]).unusual([once]).tolist() == [0]
    assert WordOrder.of([*[often] * 500, once]).unusual([once]).tolist() == [1]


@given(st.lists(RUNS, max_size=6), st.lists(RUNS, max_size=4))
def test_unusual_words_are_counted_as_by_hand(people, captions):
    def runs(words):
        named = [word if word in STOP_WORDS else "*" for word in words]
        line = ["<", "<", "<", *named, ">"]
        return [tuple(line[i : i + 4]) for i in range(len(line) - 3)]

    times = Counter(run for words in people for run in runs(words))
    contexts = Counter(run[:3] for words in people for run in runs(words))
    expected = []
    for caption in captions:
        odd = [500 * times[run] < contexts[run[:3]] or not times[run] for run in runs(caption)]
        expected.append(sum(now and not before for before, now in zip([False, *odd], odd, strict=False)))
    order = WordOrder.of([[*roles(words), END] for words in people])
    assert order.unusual([[*roles(words), END] for words in captions]).tolist() == expected


def test_what_is_kept_in_a_file_is_the_same(tmp_path):
    people = WordOrder.of([whole("a dog 's bed in a park"), whole("a man with it"), []])
    people.save(tmp_path / "order.txt.gz")
    captions = [whole("a dog 's bed"), whole("a man with it"), whole("a man with"), whole("the man")]
    assert WordOrder.load(tmp_path / "order.txt.gz").unusual(captions).tolist() == people.unusual(captions).tolist()


def test_people_are_seldom_unusual_and_a_captioner_that_plays_with_words_is():
    people = [text.split() for image in loo1000()["images"] for text in image["reference_words"]]
    played = ["a bathroom with a toilet in it on it", "a cake with it is on top of it", "a dog is is on a bed"]
    played += ["a dog on a"]  # the end is what is odd
    plain = ["a bathroom with a toilet in it", "a cake is on top of a table", "two men are riding horses"]
    assert corpus(unusual_order(people, coco_order())) < 0.2
    assert corpus(unusual_order([text.split() for text in played], coco_order())) == 1
    assert corpus(unusual_order([text.split() for text in plain], coco_order())) == 0
    for captions in ([], [[]]):
        assert coco_order().unusual(captions).tolist() == [0] * len(captions)
