"""The probability that a retriever picks the right photo of the batch."""

import math

import pytest
import torch

from rewards.retriever_by_hand import cosine, degrees, frozen, sampled_captions
from tellapart.rewards import Reward
from tellapart.rewards.retrieval import Accuracy, HardPositives, InBatchLogProbability, InTurn


def test_probabilities_by_hand():
    """Photos at 0 and 60 degrees, the third is not in the batch; the scale is the retriever's, or the one given."""
    ears = frozen(degrees(0, 60, 10), degrees(0, 30, 90), scale=10.0)
    batch = sampled_captions([[0], [1], [1], []], [0, 0, 1, 1])
    found = InBatchLogProbability(ears)(batch).sentence
    assert found.tolist() == pytest.approx([-math.log(1 + math.exp(-5)), *[-math.log(2)] * 3], abs=1e-6)
    bare = InBatchLogProbability(ears, scale=1.0)(batch).sentence
    assert bare[0].item() == pytest.approx(-math.log(1 + math.exp(-0.5)), abs=1e-6)


def test_alone_in_the_batch_a_photo_is_always_found():
    found = InBatchLogProbability(frozen(degrees(0, 60), degrees(0, 90)))(sampled_captions([[0], [1]], [1, 1]))
    assert found.sentence.tolist() == [0.0, 0.0]


def test_on_random_vectors_it_is_what_loops_find():
    torch.manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(9, 5), dim=1)
    photos = [3, 3, 8, 8, 0, 0, 3]  # one of them twice in the batch
    ears = frozen(images, torch.randn(20, 5), scale=4.0)
    batch = sampled_captions(torch.randint(20, (7, 3)).tolist(), photos)
    found = InBatchLogProbability(ears)(batch).sentence
    for caption, own in enumerate(photos):
        weights = {
            photo: math.exp(4 * cosine(ears.embed_sampled(batch)[caption], images[photo])) for photo in (0, 3, 8)
        }
        assert found[caption].item() == pytest.approx(math.log(weights[own] / sum(weights.values())), abs=1e-5)


def test_hard_distractors_are_the_look_alikes_of_the_own_photo_alone():
    """Photos at 0, 60 and 180 degrees.  The first has the second as a look-alike, the second both, the third none."""
    ears = frozen(degrees(0, 60, 180), degrees(0, 90), scale=2.0)
    look_alikes = torch.tensor([[1, -1], [0, 2], [-1, -1]])
    found = InBatchLogProbability(ears, distractors=look_alikes)(sampled_captions([[0], [0], [0]], [0, 1, 2])).sentence
    near, far, opposite = math.exp(2), math.exp(2 * 0.5), math.exp(-2)
    by_hand = [math.log(near / (near + far)), math.log(far / (far + near + opposite)), 0.0]
    assert found.tolist() == pytest.approx(by_hand, abs=1e-6)


def test_accuracy_is_one_where_the_own_photo_is_best_and_a_tie_is_wrong():
    ears = frozen(degrees(0, 60, 10), degrees(0, 30, 90))
    batch = sampled_captions(
        [[0], [1], [1], [2], []], [0, 0, 1, 1, 1]
    )  # the word at 30 degrees is between the two photos
    assert Accuracy(ears)(batch).sentence.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    hard = Accuracy(ears, torch.tensor([[2], [0], [0]]))(sampled_captions([[0], [0], [1]], [0, 2, 2])).sentence
    assert hard.tolist() == [1.0, 0.0, 1.0]  # at 30 degrees the photo at 10 is nearer than the one at 0


def test_hard_positives_go_by_the_view_that_fits_least():
    """The own photo at 0 degrees is seen at 20 and 70 too; the other photo of the batch is at 90."""
    ears = frozen(degrees(0, 90), degrees(0, 90), scale=3.0)
    views = torch.stack([degrees(20, 90), degrees(70, 80)])
    found = HardPositives(ears, views)(sampled_captions([[0], [1]], [0, 1])).sentence
    least = math.exp(3 * math.cos(math.radians(70)))
    assert found[0].item() == pytest.approx(math.log(least / (least + math.exp(0))), abs=1e-5)
    least = math.exp(3 * math.cos(math.radians(10)))
    assert found[1].item() == pytest.approx(math.log(least / (least + math.exp(0))), abs=1e-5)


def test_retrievers_take_turns_by_the_photos_of_the_batch():
    terms = [lambda s, n=n: Reward(torch.full((len(s.words),), float(n))) for n in range(3)]
    turns = InTurn(terms)
    embedded = {
        turns(sampled_captions([[0]] * len(photos), photos)).sentence[0].item()
        for photos in ([1], [2], [3, 3], [0, 1, 4])
    }
    assert embedded == {0.0, 1.0, 2.0}
    once, twice = turns(sampled_captions([[0]] * 2, [1, 3])), turns(sampled_captions([[0]] * 4, [3, 3, 1, 1]))
    assert once.sentence[0] == twice.sentence[0]  # however many captions there are, in whatever order
