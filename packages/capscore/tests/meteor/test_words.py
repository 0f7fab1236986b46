"""METEOR's tokeniser and its stemmer beside the original's."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore.meteor import normalise, stem
from capscore.meteor.index import read_prefixes

PREFIXES = {"Mr": False, "vs": False, "No": True}


def test_captions_are_split_as_by_the_original(whole, golden):
    assert len(golden["normalised"]) > 80
    for caption, words in golden["normalised"]:
        assert " ".join(normalise(caption, whole._prefixes)) == words, caption


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("a dog on 2 boxes", "a dog on 2 boxes"),
        ("a T-Shirt", "a t shirt"),
        ("a-b-c", "a b-c"),
        ("dog 's", "dog ' s"),
        ("is n't", "is n 't"),
        ("80's", "80 's"),
        ("wait...what", "wait ... what"),
        ("1,000 or 1,a", "1,000 or 1 , a"),
        ("the U.S. army", "the us army"),
        ("A man. A dog.", "a man . a dog ."),
        ("a man. a dog.", "a man. a dog ."),
        ("Mr. A vs. B", "mr. a vs. b"),
        ("No. 5 No. A", "no. 5 no . a"),
        ("\N{LEFT DOUBLE QUOTATION MARK}so\N{RIGHT DOUBLE QUOTATION MARK}", '" so "'),
        ("a\N{NO-BREAK SPACE}b\N{IDEOGRAPHIC SPACE}c", "a b c"),
        ("100%", "100 %"),
        ("中文", "中 文"),
        ("\ud800", "\N{REPLACEMENT CHARACTER}"),
        (" \x00 \t ", ""),
        ("", ""),
    ],
)
def test_a_caption_becomes_these_words(caption, words):
    assert normalise(caption, PREFIXES) == words.split()


@pytest.mark.parametrize("piece", [".", "'", "-", "a-", "..a", "'s", ",1", "``''", "\x01"])
def test_a_long_caption_takes_no_longer_than_its_length_asks_for(piece):
    began = time.process_time()
    normalise(piece * 20_000, PREFIXES)
    assert time.process_time() - began < 2


def test_the_list_of_abbreviations_is_read_without_its_remarks():
    expected = {"Mr": False, "No": True, "St": False}
    assert read_prefixes("# titles\nMr\n\n  #x\nNo #NUMERIC_ONLY# \nSt #other\n") == expected


def test_words_have_the_stems_of_the_original(golden):
    assert len(golden["stems"]) > 300
    assert {word: stem(word) for word in golden["stems"]} == golden["stems"]


@pytest.mark.parametrize("word", ["", "a", "'", "''", "'s", "yy", "ing", "'ing", "eed", "ied", "ss", "1,000", "中文字"])
def test_a_word_that_is_all_ending_keeps_something_of_itself(word):
    assert len(stem(word)) >= min(len(word.strip("'")), 1)


@given(st.text(alphabet="aeioyYbstlngd'é .-", max_size=12))
def test_any_text_has_words_and_stems(text):
    words = normalise(text, PREFIXES)
    assert all(word and not set(word) & set(" \t\n\r\f") for word in words)
    assert all(len(stem(word)) <= len(word) + 1 for word in words)
