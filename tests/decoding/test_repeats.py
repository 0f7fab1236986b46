import pytest

from tellapart.decoding.repeats import repeated_bigrams, repeated_words


@pytest.mark.parametrize(
    ("caption", "words", "bigrams"),
    [
        ("", 0, 0),
        ("bus", 0, 0),
        ("a man on a bench with a dog on a leash", 0, 1),  # "on a"; stop words may be said again
        ("a red bus and a red red car", 2, 1),  # "red" twice more; "a red"
        ("dog dog dog", 2, 1),
        ("two dogs and two cats and two birds", 2, 1),  # numbers are content; "and two"
        ("a man and a woman and a man and a woman", 2, 5),  # of 10 pairs 5 are different
    ],
)
def test_what_is_said_again_by_hand(caption, words, bigrams):
    assert repeated_words(caption.split()) == words
    assert repeated_bigrams(caption.split()) == bigrams
