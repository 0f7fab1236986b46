"""GD: a caption should fit its own photo better than others, by a margin."""

import math

import pytest
import torch

from rewards.retriever_by_hand import cosine, degrees, frozen, sampled_captions
from tellapart.rewards.retrieval import (
    GlobalDiscriminative,
    HardNeighbour,
    InBatch,
    closeness_weights,
    hard_neighbour,
    in_batch,
)

WORDS = degrees(0, 45, 60, 90, 120)


def cos(angle):
    return math.cos(math.radians(angle))


def test_a_caption_that_fits_the_look_alike_as_well_pays_the_margin():
    found = hard_neighbour(torch.tensor([0.7, 0.7, 0.7, 0.1]), torch.tensor([0.7, 0.4, 0.6, 0.6]), margin=0.2)
    torch.testing.assert_close(found, torch.tensor([-0.2, 0.0, -0.1, -0.7]))


def test_the_nearest_photo_of_all_data_is_the_one_that_counts():
    """Photos at 0, 60 and 120 degrees; nearest: 0 - 60, 60 - 120, and the last has nobody."""
    reward = HardNeighbour(frozen(degrees(0, 60, 120), WORDS), torch.tensor([1, 2, -1]), margin=0.2)
    found = reward(sampled_captions([[0], [1], [1], [3], [0]], [0, 0, 1, 1, 2]))
    expected = [
        -(0.2 + cos(60) - cos(0)),  # better than by the margin: 0 once it is a hinge
        -(0.2 + cos(15) - cos(45)),
        -(0.2 + cos(75) - cos(15)),
        -(0.2 + cos(30) - cos(30)),
        0.0,
    ]
    assert found.sentence.tolist() == pytest.approx([min(0.0, value) for value in expected], abs=1e-6)
    assert found.sentence.tolist()[:3] == pytest.approx([0, -(0.2 + cos(15) - cos(45)), 0], abs=1e-6)
    assert found.words is None


def test_in_the_batch_both_the_hardest_caption_and_the_hardest_photo_count():
    """Photos at 0 and 90 degrees; the first is said to be at 0 and at 60, the second at 60."""
    reward = InBatch(frozen(degrees(0, 90), WORDS), margin=0.2)
    found = reward(sampled_captions([[0], [2], [2]], [0, 0, 1])).sentence
    hardest_of_first, hardest_of_second = cos(60), max(cos(90), cos(30))  # captions of the other photo
    expected = [
        -max(0, 0.2 + hardest_of_first - cos(0)) - max(0, 0.2 + cos(90) - cos(0)),
        -max(0, 0.2 + hardest_of_first - cos(60)) - max(0, 0.2 + cos(30) - cos(60)),
        -max(0, 0.2 + hardest_of_second - cos(30)) - max(0, 0.2 + cos(60) - cos(30)),
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.tolist() == pytest.approx([0, -0.2 - (cos(30) - 0.3), -0.2], abs=1e-6)


def by_loops(embedded, photos, images, margin, generated):
    found = []
    for caption, own in zip(embedded, photos, strict=True):
        match = cosine(caption, images[own])
        captions = [
            cosine(other, images[own])
            for other, of, free in zip(embedded, photos, generated, strict=True)
            if of != own and free
        ]
        others = [cosine(caption, images[photo]) for photo in set(photos) if photo != own]
        hinges = [max(0.0, margin + max(rivals) - match) for rivals in (captions, others) if rivals]
        found.append(-sum(hinges))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_on_random_vectors_it_is_what_loops_over_all_pairs_find(seed):
    torch.manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(12, 5), dim=1)
    photos = torch.randint(12, (4,)).repeat_interleave(3).tolist()  # with this seed or that, the same photo twice
    reference = torch.where(torch.rand(12) < 0.3, 0, -1).tolist()
    ears = frozen(images, torch.randn(20, 5))
    batch = sampled_captions(torch.randint(20, (12, 3)).tolist(), photos, reference=reference)
    expected = by_loops(ears.embed_sampled(batch), photos, images, 0.3, [which < 0 for which in reference])
    assert InBatch(ears, 0.3)(batch).sentence.tolist() == pytest.approx(expected, abs=1e-5)
    assert min(expected) < 0


def test_the_same_photo_twice_in_the_batch_is_not_another_photo():
    ears = frozen(degrees(0, 90, 200), WORDS)
    once, twice = sampled_captions([[0], [2], [3]], [0, 0, 1]), sampled_captions([[0], [3], [2]], [0, 1, 0])
    torch.testing.assert_close(InBatch(ears)(twice).sentence, InBatch(ears)(once).sentence[[0, 2, 1]])
    alone = InBatch(ears)(sampled_captions([[0], [4]], [0, 0])).sentence
    assert alone.tolist() == [0.0, 0.0]


def test_a_reference_in_the_batch_is_no_generated_caption():
    """Photos at 0 and 90 degrees, said to be at 45 and at 0: the second caption fits the first photo better."""
    reward, captions, photos = InBatch(frozen(degrees(0, 90), WORDS)), [[1], [0]], [0, 1]
    of_second = -(0.2 + cos(45) - cos(90)) - (0.2 + cos(0) - cos(90))
    plain = reward(sampled_captions(captions, photos)).sentence
    assert plain.tolist() == pytest.approx([-(0.2 + cos(0) - cos(45)) - 0.2, of_second], abs=1e-6)
    marked = reward(sampled_captions(captions, photos, reference=[-1, 0])).sentence
    assert marked.tolist() == pytest.approx([-0.2, of_second], abs=1e-6)
    similarity = torch.tensor([[0.5, 0.1], [0.6, 0.7]])
    own, only_first = torch.arange(2), torch.tensor([True, False])
    assert in_batch(similarity, own, 0.2).tolist() == pytest.approx([-0.3, -0.1])
    assert in_batch(similarity, own, 0.2, only_first).tolist() == pytest.approx([0.0, -0.1])


def test_the_two_parts_are_added_with_their_weights_and_that_of_the_photo():
    ears, nearest = frozen(degrees(0, 60, 120), WORDS), torch.tensor([1, 0, 1])
    batch = sampled_captions([[1], [3], [1], [4]], [0, 0, 1, 2])
    neighbour, within = HardNeighbour(ears, nearest, 0.2)(batch).sentence, InBatch(ears, 0.2)(batch).sentence
    assert (neighbour < 0).any()
    assert (within < 0).any()
    torch.testing.assert_close(GlobalDiscriminative(ears, nearest)(batch).sentence, neighbour + within)
    weights = torch.tensor([0.5, 1.0, 1.5])
    found = GlobalDiscriminative(ears, nearest, neighbour=2.0, batch=3.0, per_photo=weights)(batch).sentence
    expected = (2 * neighbour + 3 * within) * torch.tensor([0.5, 0.5, 1.0, 1.5])
    torch.testing.assert_close(found, expected)


def test_the_closer_the_look_alike_the_more_a_photo_weighs():
    weights = closeness_weights(torch.tensor([0.1, 0.9, 0.3, 0.8, 0.95]))
    torch.testing.assert_close(weights, torch.tensor([0.5, 1.25, 0.75, 1.0, 1.5]))
    tied = closeness_weights(torch.tensor([0.9, 0.9, -torch.inf, 0.2, 0.9]))
    torch.testing.assert_close(tied, torch.tensor([1.25, 1.25, 0.5, 0.75, 1.25]))
    torch.manual_seed(0)
    many = torch.rand(501).mul(50).round()
    assert closeness_weights(many).mean().item() == pytest.approx(1)
    torch.testing.assert_close(closeness_weights(many * 7 - 3), closeness_weights(many))
    assert closeness_weights(torch.tensor([0.3])).tolist() == [1.0]
    assert closeness_weights(torch.tensor([0.4, 0.4])).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="not a number"):
        closeness_weights(torch.tensor([0.3, torch.nan]))


def test_tables_of_other_photos_are_refused():
    ears = frozen(degrees(0, 60), WORDS)
    with pytest.raises(ValueError, match=r"2 photos and nearest of shape \(3,\)"):
        HardNeighbour(ears, torch.tensor([1, 0, 1]))
    with pytest.raises(ValueError, match=r"2 photos and weights of shape \(1,\)"):
        GlobalDiscriminative(ears, torch.tensor([1, 0]), per_photo=torch.ones(1))
