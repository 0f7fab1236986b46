"""Are the photos that a caption retrieves like each other and like its own?"""

import math
from itertools import combinations

import pytest
import torch

from rewards.retriever_by_hand import cosine, degrees, frozen, sampled_captions
from tellapart.rewards.retrieved import Retrieved


def cos(angle):
    return math.cos(math.radians(angle))


def test_worth_by_hand():
    """Photos at 0, 10, 90 and 100 degrees; what points at 0 retrieves the first two."""
    ears = frozen(degrees(0, 10, 90, 100), degrees(0, 95))
    found = Retrieved(ears, k=2)(sampled_captions([[0], [0], [1], []], [0, 2, 2, 1]))
    expected = [
        cos(10) / 2 + (1 + cos(10)) / 4,
        cos(10) / 2 + (cos(90) + cos(80)) / 4,
        cos(10) / 2 + (1 + cos(10)) / 4,
        0,  # nothing said, nothing retrieved
    ]
    assert found.sentence.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.words is None


def test_one_photo_is_like_itself():
    ears = frozen(degrees(0, 60, 200), degrees(0, 90), pool=[0, 0, 1])
    found = Retrieved(ears, k=1)(sampled_captions([[0], [0], [1]], [0, 1, 2])).sentence
    assert found.tolist() == pytest.approx([1, 1 / 2 + cos(60) / 2, 1], abs=1e-6)


@pytest.mark.parametrize("k", [3, 5, 30])
def test_on_random_vectors_it_is_what_loops_over_all_pairs_find(k):
    torch.manual_seed(k)
    images = torch.nn.functional.normalize(torch.randn(24, 5), dim=1)
    pool, photos = [i // 20 for i in range(24)], [2, 2, 19, 21, 23, 0, 7]  # the second data set has four photos
    ears = frozen(images, torch.randn(20, 5), pool=pool)
    batch = sampled_captions(torch.randint(20, (7, 3)).tolist(), photos)
    found = Retrieved(ears, k)(batch).sentence
    for caption, own in enumerate(photos):
        embedded = ears.embed_sampled(batch)[caption]
        members = [photo for photo in range(24) if pool[photo] == pool[own]]
        best = sorted(members, key=lambda photo: -cosine(embedded, images[photo]))[:k]
        pairs = [cosine(images[one], images[two]) for one, two in combinations(best, 2)]
        with_own = [cosine(images[photo], images[own]) for photo in best]
        expected = (sum(pairs) / len(pairs) + sum(with_own) / len(with_own)) / 2
        assert found[caption].item() == pytest.approx(expected, abs=1e-5)


def test_who_knows_photos_by_references_cannot_tell_how_alike_they_are():
    with pytest.raises(ValueError, match="directions knows photos by their references"):
        Retrieved(frozen(degrees(0), degrees(0), references=torch.tensor([1])))
    with pytest.raises(ValueError, match="at least 1 photo"):
        Retrieved(frozen(degrees(0), degrees(0)), k=0)
