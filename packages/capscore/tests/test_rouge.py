from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore.overlap import rouge_l
from scored import loo1000, prepared

captions = st.lists(st.sampled_from("abc"), max_size=9)


def scored(captions, references):
    said, photos, _, grouped = prepared(captions, references)
    return rouge_l(said, photos, grouped).tolist()


def test_a_thousand_photos_score_as_the_scorer_of_the_field_says():
    images = loo1000()["images"]
    found = scored(
        [image["caption_words"].split() for image in images],
        [[text.split() for text in image["reference_words"]] for image in images],
    )
    assert found == pytest.approx([image["scores"]["ROUGE-L"] for image in images], abs=1e-9)
    assert sum(found) / 1000 == pytest.approx(loo1000()["corpus"]["ROUGE-L"], abs=1e-9)


def common(one, other):
    """The longest common subsequence by its recursive definition."""

    @lru_cache(None)
    def of(i, j):
        if i == len(one) or j == len(other):
            return 0
        return 1 + of(i + 1, j + 1) if one[i] == other[j] else max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)


@given(captions, st.lists(captions, min_size=1, max_size=3))
def test_scores_are_those_of_the_definition(said, told):
    precision = max(common(said, text) / max(len(said), 1) for text in told)
    recall = max(common(said, text) / max(len(text), 1) for text in told)
    weighed = recall + 1.44 * precision
    assert scored([said], [told]) == pytest.approx([2.44 * precision * recall / weighed if weighed else 0.0])


def test_precision_and_recall_may_be_of_different_references():
    assert scored([list("abcd")], [[list("abcdefgh"), list("a")]]) == pytest.approx([1.0])


def test_nothing_said_and_nothing_told_score_nothing():
    assert scored([[], ["a"], ["a"]], [[["a"]], [[]], []]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("photos", "error"), [([1], IndexError), ([-1], IndexError), ([0, 0], ValueError)])
def test_a_photo_that_is_not_there_is_refused(photos, error):
    said, _, _, grouped = prepared([["a"]], [[["a"]]])
    with pytest.raises(error, match="photos"):
        rouge_l(said, np.array(photos), grouped)
