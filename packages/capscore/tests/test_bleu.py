import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore.overlap import bleu
from scored import loo1000, prepared

captions = st.lists(st.sampled_from("abcd"), max_size=8)
photos = st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=1, max_size=5)


def scored(captions, references):
    return bleu(*prepared(captions, references)[:3])


def test_a_thousand_photos_score_as_the_scorer_of_the_field_says():
    images = loo1000()["images"]
    found = scored(
        [image["caption_words"].split() for image in images],
        [[text.split() for text in image["reference_words"]] for image in images],
    )
    assert found.corpus() == pytest.approx({n: loo1000()["corpus"][n] for n in found.names}, abs=1e-9)
    expected = [[image["scores"][name] for name in found.names] for image in images]
    np.testing.assert_allclose(found.per_photo(), expected, atol=1e-9, rtol=0)


def test_precision_and_brevity_by_hand():
    """Three words of four are right, one pair of three; the reference has six words."""
    found = scored([list("abxc")], [[list("abcdef")]]).corpus()
    brevity = math.exp(1 - 6 / 4)
    assert found["BLEU-1"] == pytest.approx(3 / 4 * brevity, abs=1e-8)
    assert found["BLEU-2"] == pytest.approx(math.sqrt(3 / 4 * 1 / 3) * brevity, abs=1e-8)
    assert found["BLEU-3"] < 1e-4


def test_the_corpus_is_judged_as_one_text_and_not_by_the_mean_of_photos():
    found = scored([list("ab"), list("cdefghij")], [[list("xy")], [list("cdefghij")]])
    assert found.corpus()["BLEU-1"] == pytest.approx(8 / 10, abs=1e-8)
    assert found.per_photo()[:, 0] == pytest.approx([0, 1], abs=1e-8)


def test_nothing_said_scores_nothing_and_divides_by_nothing():
    found = scored([[], []], [[list("ab")], [[]]])
    assert np.isfinite(found.per_photo()).all()
    assert found.per_photo().max() < 1e-3
    assert max(found.corpus().values()) < 1e-3


@given(photos, st.randoms(use_true_random=False))
def test_the_order_of_photos_and_of_references_changes_nothing(world, chance):
    before = scored([said for said, _ in world], [texts for _, texts in world])
    order = chance.sample(range(len(world)), len(world))
    shuffled = [(world[i][0], chance.sample(world[i][1], len(world[i][1]))) for i in order]
    after = scored([said for said, _ in shuffled], [texts for _, texts in shuffled])
    assert after.corpus() == pytest.approx(before.corpus())
    np.testing.assert_array_equal(after.per_photo(), before.per_photo()[order])
