import pytest

from capscore.words import flaws


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
