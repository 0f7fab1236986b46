"""The probability that a listener picks the right photo of the batch."""

import math

import pytest
import torch

from rewards.hearing import cosine, degrees, listener, said
from tellapart.rewards.log_probability import InBatchLogProbability


def test_probabilities_by_hand():
    """Photos at 0 and 60 degrees, the third is not in the batch; the scale is the listener's, or the one given."""
    ears = listener(degrees(0, 60, 10), degrees(0, 30, 90), scale=10.0)
    batch = said([[0], [1], [1], []], [0, 0, 1, 1])
    found = InBatchLogProbability(ears)(batch).sentence
    assert found.tolist() == pytest.approx([-math.log(1 + math.exp(-5)), *[-math.log(2)] * 3], abs=1e-6)
    bare = InBatchLogProbability(ears, scale=1.0)(batch).sentence
    assert bare[0].item() == pytest.approx(-math.log(1 + math.exp(-0.5)), abs=1e-6)


def test_alone_in_the_batch_a_photo_is_always_found():
    found = InBatchLogProbability(listener(degrees(0, 60), degrees(0, 90)))(said([[0], [1]], [1, 1]))
    assert found.sentence.tolist() == [0.0, 0.0]


def test_on_random_vectors_it_is_what_loops_find():
    torch.manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(9, 5), dim=1)
    photos = [3, 3, 8, 8, 0, 0, 3]  # one of them twice in the batch
    ears = listener(images, torch.randn(20, 5), scale=4.0)
    batch = said(torch.randint(20, (7, 3)).tolist(), photos)
    found = InBatchLogProbability(ears)(batch).sentence
    for caption, own in enumerate(photos):
        weights = {
            photo: math.exp(4 * cosine(ears.embed_sampled(batch)[caption], images[photo])) for photo in (0, 3, 8)
        }
        assert found[caption].item() == pytest.approx(math.log(weights[own] / sum(weights.values())), abs=1e-5)
