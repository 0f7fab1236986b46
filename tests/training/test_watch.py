"""When captions of a validation are called collapsed."""

import pytest

from tellapart.recipe import WatchConfig
from tellapart.training.validation import Watch, wilson


def test_what_a_watch_sees():
    watch = Watch(WatchConfig(), photos=1000)
    first = {"unique": 0.8, "length": 10.0, "Rep": 0.1, "BadEnd": 0.01, "Stutter": 0.0, "UnusualOrder": 0.01}
    assert watch.check(first, first) == ""
    assert watch.check(first, first | {"unique": 0.41, "length": 14.9, "Rep": 0.34}) == ""
    assert "39 % of the captions are different (80 % before)" in watch.check(first, first | {"unique": 0.39})
    assert "captions have 15.1 words (10.0 before)" in watch.check(first, first | {"length": 15.1})
    assert "captions have 6.5 words" in watch.check(first, first | {"length": 6.5})
    assert "36 % of the captions repeat a word (10 % before)" in watch.check(first, first | {"Rep": 0.36})
    assert "7 % of the captions break off (1 % before)" in watch.check(first, first | {"BadEnd": 0.07})
    assert "3 % of the captions stutter (0 % before)" in watch.check(first, first | {"Stutter": 0.03})
    assert "4 % of the captions have an unusual order of words (1 % before)" in watch.check(
        first, first | {"UnusualOrder": 0.04}
    )
    assert Watch(WatchConfig("off"), photos=1000).check(first, first | {"unique": 0.0}) == ""
    assert [Watch(WatchConfig(action), photos=9).stops for action in ("warn", "stop", "off")] == [False, True, False]


SOUND = {"unique": 1.0, "length": 10.0, "Rep": 0.0, "BadEnd": 0.0, "Stutter": 0.0, "UnusualOrder": 0.0}


@pytest.mark.parametrize(
    ("photos", "captions", "seen"),
    [
        (49, 1, False),  # more than the two in a hundred that are allowed, and yet one caption
        (50, 4, False),
        (50, 6, True),  # Fisher's exact test against none of fifty: p = 0.027; of four it is 0.117
        (250, 5, False),  # no more than is allowed
        (250, 8, True),
    ],
)
@pytest.mark.parametrize("name", ["Stutter", "UnusualOrder"])
def test_a_few_captions_are_no_collapse(name, photos, captions, seen):
    """What chance could do as well is not cried about."""
    found = Watch(WatchConfig(), photos=photos).check(SOUND, SOUND | {name: captions / photos})
    assert bool(found) == seen


@pytest.mark.parametrize(("photos", "seen"), [(4, False), (6, False), (20, True), (500, True)])
def test_a_few_photos_show_no_collapse_of_lengths_or_of_different_captions(photos, seen):
    watch = Watch(WatchConfig(), photos=photos)
    assert bool(watch.check(SOUND | {"length": 6.0}, SOUND | {"length": 9.1})) == seen
    assert bool(watch.check(SOUND | {"unique": 0.9}, SOUND | {"unique": 0.4})) == seen


def test_the_interval_of_a_share_is_the_one_of_the_books():
    """Newcombe (1998), table I: Wilson's interval of 15 of 148, and of 0 of 20."""
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
