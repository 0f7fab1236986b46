"""The English stemmer beside the original's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore.meteor import stem


def test_words_have_the_stems_of_the_original(golden):
    assert len(golden["stems"]) > 300
    assert {word: stem(word) for word in golden["stems"]} == golden["stems"]


@pytest.mark.parametrize("word", ["", "a", "'", "''", "'s", "yy", "ing", "'ing", "eed", "ied", "ss", "1,000", "中文字"])
def test_a_word_that_is_all_ending_keeps_something_of_itself(word):
    assert len(stem(word)) >= min(len(word.strip("'")), 1)


@given(st.text(alphabet="aeioyYbstlngd'é", max_size=12))
def test_a_stem_is_hardly_longer_than_its_word(word):
    assert len(stem(word)) <= len(word) + 1
