"""The place at which a caption finds its photo."""

import math

import numpy as np
import pytest
import torch

from rewards.retriever_by_hand import degrees, frozen, sampled_captions
from tellapart.metrics import retrieval
from tellapart.metrics.retrieval import ranks_of_matches
from tellapart.rewards.retrieval import BoundedRank, bounded_rank


def test_worth_falls_with_the_logarithm_and_never_below_zero():
    found = bounded_rank(torch.tensor([0, 1, 9, 199, 200, 201, 100_000]))
    expected = [1 - math.log(1 + rank) / math.log(201) for rank in (0, 1, 9, 199)] + [0, 0, 0]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.dtype == torch.float32
    assert found.min() == 0
    assert bounded_rank(torch.tensor([3]), base=7).item() == pytest.approx(1 - 2 / 3, abs=1e-6)  # ln 4 / ln 8


def test_who_fits_as_well_stands_before_the_own_photo():
    similarity = torch.tensor([[0.5, 0.5, 0.1], [0.5, 0.5 + 5e-7, 0.1], [0.5, 0.4, 0.6], [0.0, 0.0, 0.0]])
    assert ranks_of_matches(similarity, similarity[:, 0]).tolist() == [1, 1, 1, 2]
    assert ranks_of_matches(similarity, similarity[:, 2]).tolist() == [2, 2, 0, 2]


def test_places_by_hand():
    """Two data sets, at 0, 20, 40 and at 10, 30 degrees."""
    ears = frozen(degrees(0, 10, 20, 30, 40), degrees(0, 24, 90), pool=[0, 1, 0, 1, 0])
    found = BoundedRank(ears, base=7)(sampled_captions([[0], [0], [1], [1], [2], []], [0, 4, 4, 1, 1, 2]))
    expected = [0, 2, 1, 1, 1, 2]  # nothing said: everything ties
    assert found.sentence.tolist() == pytest.approx([1 - math.log(1 + r) / math.log(8) for r in expected], abs=1e-6)
    assert found.words is None


@pytest.mark.parametrize("seed", range(4))
def test_ranks_are_those_of_the_measure_in_each_data_set(seed):
    torch.manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(300, 4), dim=1)
    images[100:120] = images[:20]  # copies
    pool = torch.where(torch.rand(300) < 0.3, 7, 2)
    photos = torch.randint(300, (40,))
    ears = frozen(images, torch.randn(20, 4), pool=pool.tolist())
    batch = sampled_captions(torch.randint(20, (40, 2)).tolist(), photos.tolist())
    found = BoundedRank(ears, base=150)(batch).sentence
    for number in (2, 7):
        rows, members = (pool[photos] == number).nonzero()[:, 0], (pool == number).nonzero()[:, 0]
        similarity = (ears.embed_sampled(batch)[rows] @ images[members].T).numpy()
        own = np.searchsorted(members.numpy(), photos[rows].numpy())
        rank = retrieval.ranks(similarity, own)
        expected = np.maximum(0, 1 - np.log1p(rank) / np.log1p(150))
        np.testing.assert_allclose(found[rows].numpy(), expected, atol=1e-6)
    assert 0 < found.count_nonzero() < 40


def test_of_a_photo_of_which_nothing_is_known_every_caption_is_worth_the_same():
    images = torch.cat([torch.zeros(1, 2), degrees(*range(0, 350, 50))])
    found = BoundedRank(frozen(images, degrees(0, 90)), base=5)(sampled_captions([[0], [1], [0, 1], []], [0, 0, 0, 0]))
    assert found.sentence.tolist() == [0.0] * 4


def test_a_base_of_no_places_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        BoundedRank(frozen(degrees(0), degrees(0)), base=0)
