"""Captions straight to numbers of words: the same words as by strings."""

import numpy as np
import pytest

from capscore.sentences import Words, numbered, tokenize_file

# blanks in all places, pieces that are no word or several, stops that depend on the next caption, other alphabets
PIECES = [
    "a",
    "A",
    "dog",
    "dog.",
    "Dog,",
    "cannot",
    "don't",
    "P.",
    "no.",
    "3",
    "1/2",
    "1 1/2",
    "",
    " ",
    ",",
    ".",
    "(x)",
]
PIECES += ["The", "caf\u00e9", "\u00a0", "\n", "\t", "\U0001f600", "\udc80", "x" * 70, "<b", ">", ":)", "a-no.", "U.S."]


def words_of(texts: list[str], words: Words) -> list[list[str]]:
    sentences = numbered(texts, words)
    names = list(words)
    spans = zip(sentences.starts.tolist(), sentences.lengths.tolist(), strict=True)
    return [[names[token] for token in sentences.tokens[start : start + length].tolist()] for start, length in spans]


@pytest.mark.parametrize("seed", range(4))
def test_the_words_are_those_of_the_tokenizer(seed: int) -> None:
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(PIECES, random.integers(8)).tolist()) for _ in range(1500)]
    assert words_of(texts, Words()) == tokenize_file(texts)


def test_a_stop_depends_on_the_next_caption_and_on_nothing_else() -> None:
    texts = ["the letter P.", "A sign", "the letter P.", "on a sign", "it says no.", "3 dogs", "it says no. ", "3 dogs"]
    assert [caption[-1] for caption in words_of(texts, Words())[::2]] == ["p", "p.", "no.", "no"]


def test_words_that_have_numbers_keep_them() -> None:
    sentences = numbered(["dog a", "A cat."], Words(["a", "dog"]))
    assert sentences.tokens.tolist() == [1, 0, 0, 2]
    assert sentences.lengths.tolist() == [2, 2]


def test_of_no_captions_there_are_no_words() -> None:
    assert len(numbered([], Words())) == 0
    assert numbered([""], Words()).lengths.tolist() == [0]
