import math

import numpy as np
import pytest

from capscore import overlap
from capscore.ngrams import Frequencies, References
from capscore.overlap import bleu
from capscore.sentences import Grouped
from scored import prepared

ALIKE = [[1, 2, 3, 4, 5]] * 3
APART = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
NO_TABLE = Frequencies.none(1000)


def self_cider(groups):
    return overlap.self_cider(Grouped.join(groups), NO_TABLE).per_photo()[:, 0].tolist()


def test_the_same_caption_again_is_no_diversity_and_captions_that_share_nothing_are_all():
    assert self_cider([ALIKE, APART, [[1]], [[], []], [[1, 2], [1, 2]]]) == pytest.approx([0, 1, 0, 0, 0], abs=1e-6)


def test_two_captions_that_share_half_by_hand():
    """Two of four words each, one pair of three, nothing longer: cosines 1/2, 1/3, 0, 0, so 5/24 on average."""
    cosine = (1 / 2 + 1 / 3) / 4
    large, small = math.sqrt(1 + cosine), math.sqrt(1 - cosine)
    assert self_cider([[[1, 2, 3, 4], [1, 2, 8, 9]]]) == pytest.approx([-math.log2(large / (large + small))])


def test_mutual_bleu_compares_each_caption_with_its_siblings():
    texts = [["a", "b", "c", "d", "e"], ["a", "b", "c", "x"], ["y", "b", "c", "d"]]
    found = overlap.mutual_bleu(prepared([], [texts])[3]).corpus()
    one_out = [texts[:i] + texts[i + 1 :] for i in range(3)]
    expected = bleu(*prepared(texts, one_out)[:3]).corpus()
    assert found == pytest.approx({f"m{name}": score for name, score in expected.items()})
    assert found["mBLEU-1"] > 0.5


def test_a_photo_with_one_caption_adds_nothing_to_mutual_bleu():
    several = overlap.mutual_bleu(Grouped.join([ALIKE]))
    with_one = overlap.mutual_bleu(Grouped.join([[[7, 8]], ALIKE, []]))
    np.testing.assert_array_equal(with_one.rows.sum(0), several.rows.sum(0))
    assert several.corpus()["mBLEU-4"] == pytest.approx(1, abs=1e-6)


def test_a_photo_with_one_caption_has_no_part_in_self_cider():
    assert overlap.self_cider(Grouped.join([APART, [[1, 2]]]), NO_TABLE).corpus()["self-CIDEr"] == pytest.approx(1)


def test_frequencies_of_the_references_are_used():
    """A word that every photo has weighs nothing, so that sharing it makes no captions alike."""
    references = References(Grouped.join([[[1, 5]], [[1, 6]]]))
    shared = overlap.self_cider(Grouped.join([[[1, 7], [1, 8]]]), references.frequencies())
    assert shared.corpus()["self-CIDEr"] == pytest.approx(1, abs=1e-6)
