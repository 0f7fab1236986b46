import pickle
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capscore.unusual_order import END as LAST
from capscore.unusual_order import WordOrder, roles
from capscore.wording import bad_end, precision, repetition, stutter
from tellapart.data.tokenizers import WordTokenizer
from tellapart.rewards import SampledCaptions
from tellapart.rewards.language_model import UnusualOrder, roles_of
from tellapart.rewards.words import Ending, Faithful, Repetition, content_words, never_last

TOKENIZER = WordTokenizer(["a", "dog", "and", "red", "in", "cat", "two", "n't", "-", "runs"])
CONTENT = content_words(TOKENIZER)
END = TOKENIZER.eos
ENDING = Ending(never_last(TOKENIZER), end=END)
TEXTS = st.lists(st.sampled_from(TOKENIZER.words[4:]), max_size=6).map(" ".join)


def said(captions, photos=None, *, reference=None, width=8, filler=5):
    """As a sampler leaves them: the end token, then whatever was there before."""
    tokens = torch.full((len(captions), width), filler)
    for row, caption in enumerate(captions):
        ids = [*TOKENIZER.encode(caption), END][:width]
        tokens[row, : len(ids)] = torch.tensor(ids)
    ended = (tokens == END).cumsum(1)
    mask = (ended == 0) | ((ended == 1) & (tokens == END))
    photos = torch.zeros(len(captions), dtype=torch.long) if photos is None else torch.tensor(photos)
    return SampledCaptions(tokens, mask, photos, None if reference is None else torch.tensor(reference))


def faithful(references):
    return Faithful([[TOKENIZER.encode(text) for text in texts] for texts in references], CONTENT, end=END)


def words(text):
    return [TOKENIZER.words[token] for token in TOKENIZER.encode(text)]


def is_content(word):
    return bool(CONTENT[TOKENIZER.words.index(word)])


def test_content_words_are_neither_special_nor_stop_words_nor_signs():
    assert [word for word, is_one in zip(TOKENIZER.words, CONTENT, strict=True) if is_one] == [
        "dog",
        "red",
        "cat",
        "two",
        "runs",
    ]
    assert CONTENT.dtype == torch.bool


def test_the_share_of_content_words_that_the_references_have():
    reward = faithful([["a red dog", "the dog runs"], ["a cat"], []])
    captions = ["a red cat", "dog and dog and cat", "a dog", "a cat", "and a", "", "red dog"]
    found = reward(said(captions, [0, 0, 0, 1, 0, 0, 2]))
    assert found.words is None
    assert found.sentence.dtype == torch.float32
    assert found.sentence.tolist() == pytest.approx([1 / 2, 2 / 3, 1, 1, 0, 0, 0])


def test_a_reference_is_compared_with_the_other_references():
    reward = faithful([["a red dog", "a dog runs", "two red"], ["a cat"]])
    captions = ["a red dog", "a red dog", "two red", "a dog runs", "a cat", "a cat"]
    found = reward(said(captions, [0, 0, 0, 0, 1, 1], reference=[0, -1, 2, 1, 0, -1]))
    assert found.sentence.tolist() == pytest.approx([1, 1, 1 / 2, 1 / 2, 0, 1])


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=3), st.integers(-1, 2)), min_size=1, max_size=4))
def test_faithful_is_a_count_over_words(world):
    captions, references, left_out = (list(part) for part in zip(*world, strict=True))
    expected = []
    for caption, texts, left in world:
        told = {word for number, text in enumerate(texts) if number != left for word in words(text)}
        content = [word for word in words(caption) if is_content(word)]
        expected.append(sum(word in told for word in content) / max(len(content), 1))
    found = faithful(references)(said(captions, list(range(len(world))), reference=left_out))
    assert found.sentence.tolist() == pytest.approx(expected)


def test_faithful_of_one_caption_each_is_the_precision_of_the_evaluation():
    captions, references = ["a red cat", "two dog runs", "a dog"], [["a red dog"], ["a dog runs"], ["two cat"]]
    reward = faithful(references)(said(captions, [0, 1, 2])).sentence
    content = torch.tensor([2.0, 3.0, 1.0])  # Prec weighs captions by their content words
    measured = precision([words(c) for c in captions], [[words(text) for text in texts] for texts in references])
    assert (reward @ content / content.sum()).item() == pytest.approx(measured.corpus()["Prec"])


@pytest.mark.parametrize(
    ("caption", "times"),
    [
        ("", 0),
        ("a dog", 0),
        ("a dog and a cat", 0),  # "a" twice
        ("dog in a red in a cat", 0),  # "in a" twice
        ("a dog in in a red", 1),  # "in" follows itself
        ("a dog in in in a red", 2),
        ("a dog and red dog", 1),  # "dog"
        ("a dog and a dog", 2),  # "dog", "a dog"
        ("dog dog dog", 3),  # "dog" twice more, "dog dog" once more
        ("red dog red dog red dog", 7),  # 2 of "red", 2 of "dog", 2 of "red dog", 1 of "dog red"
    ],
)
def test_repetition_counts_what_is_said_again(caption, times):
    assert Repetition(CONTENT, end=END)(said([caption])).sentence.tolist() == [-times]


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_repetition_is_a_count_over_words(captions):
    expected = []
    for caption in map(words, captions):
        single = [word for word in caption if is_content(word)]
        pairs = [pair for pair in pairwise(caption) if any(map(is_content, pair))]
        stutters = sum(first == second and not is_content(first) for first, second in pairwise(caption))
        expected.append(-stutters - sum(times - 1 for items in (single, pairs) for times in Counter(items).values()))
    found = Repetition(CONTENT, end=END)(said(captions))
    assert found.words is None
    assert found.sentence.dtype == torch.float32
    assert found.sentence.tolist() == expected


def test_what_the_evaluation_calls_repetition_or_stutter_is_penalised_and_nothing_else():
    captions = ["a dog and a dog", "a dog and a cat", "in a dog in a cat", "two red two", "a a dog", "a dog in a red"]
    found = Repetition(CONTENT, end=END)(said(captions)).sentence
    told = [words(caption) for caption in captions]
    assert (found < 0).tolist() == [True, False, False, True, True, False]
    assert repetition(told).corpus()["Rep"] == pytest.approx(2 / 6)
    assert stutter(told).corpus()["Stutter"] == pytest.approx(1 / 6)


def test_a_caption_that_breaks_off_is_penalised_once():
    captions = [
        "a dog and",
        "a dog in a",
        "a dog in",
        "a dog",
        "",
        "a",
        "a dog and a cat",
        "dog dog dog dog dog dog dog a",
    ]
    found = ENDING(said(captions))
    assert found.words is None
    assert found.sentence.tolist() == [-1, -1, 0, 0, 0, -1, 0, 0]  # the last one was cut
    measured = bad_end([words(caption) for caption in captions[:-1]])
    assert (found.sentence[:-1] < 0).float().mean().item() == pytest.approx(measured.corpus()["BadEnd"])


@pytest.mark.parametrize("reward", [faithful([["a red dog"], ["a cat runs"]]), Repetition(CONTENT, end=END), ENDING])
def test_neither_padding_nor_order_nor_company_changes_a_caption_s_reward(reward):
    captions, photos = ["a dog and a dog", "a cat", "", "red runs red in a"], [0, 1, 1, 1]
    expected = reward(said(captions, photos)).sentence
    assert len(expected.unique()) > 1
    for width, filler in [(6, 5), (20, TOKENIZER.pad), (20, -7), (20, 10**6)]:
        torch.testing.assert_close(reward(said(captions, photos, width=width, filler=filler)).sentence, expected)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(reward(said(captions, photos).of(order)).sentence, expected[order])
    torch.testing.assert_close(reward(said(captions[:1], photos[:1])).sentence, expected[:1])


def test_a_caption_that_was_cut_counts_whole():
    tokens = torch.tensor([TOKENIZER.encode("a dog dog")])
    cut = SampledCaptions(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([0]))
    assert Repetition(CONTENT, end=END)(cut).sentence.tolist() == [-1]
    assert faithful([["dog"]])(cut).sentence.tolist() == [1]


def test_ids_of_another_vocabulary_are_no_content_words():
    tokens = torch.tensor([[10**6, 10**7, 10**6, 5]])
    foreign = SampledCaptions(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([0]))
    assert Repetition(CONTENT, end=END)(foreign).sentence.tolist() == [0]
    assert faithful([["dog"]])(foreign).sentence.tolist() == [1]


def test_a_photo_that_is_not_there_is_refused():
    with pytest.raises(IndexError, match="between 0 and 0"):
        faithful([["a dog"]])(said(["a dog"], [1]))


def test_many_captions_are_shared_out_and_pickles_give_the_same():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(TOKENIZER), (3000, 10), generator=generator)
    photos = torch.randint(20, (3000,), generator=generator)
    many = SampledCaptions(tokens, torch.ones_like(tokens, dtype=torch.bool), photos)
    references = torch.randint(4, len(TOKENIZER), (20, 2, 3), generator=generator).tolist()
    for reward in (Faithful(references, CONTENT, end=END), Repetition(CONTENT, end=END)):
        whole = reward(many).sentence
        parts = [reward(many.of(rows)).sentence for rows in torch.arange(3000).split(100)]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)
        torch.testing.assert_close(pickle.loads(pickle.dumps(reward))(many).sentence, whole, rtol=0, atol=0)


def test_a_word_costs_one_where_people_do_not_put_it_and_none_behind_the_end_or_where_a_caption_was_cut():
    told = ["a dog in a red", "a cat and a dog", "two"]
    people = WordOrder.of([[*roles(text.split()), LAST] for text in told])
    reward = UnusualOrder(people, roles_of(TOKENIZER), end=END)
    captions = [
        "a cat in a dog",
        "a dog and a red",
        "in a dog",
        "a dog in",
        "a dog in in in in a dog",
        "a dog in a red",
    ]
    found = reward(said(captions))
    assert found.words is None
    assert found.sentence.tolist() == [0, 0, -1, -1, -1, 0]
    assert reward(said(["a dog in a red"], width=3)).sentence.tolist() == [0]  # cut after "in"
