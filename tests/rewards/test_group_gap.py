"""GEG: by how much a caption fits its photo better than that photo's look-alikes."""

import math

import numpy as np
import pytest
import torch

from rewards.retriever_by_hand import cosine, degrees, frozen, sampled_captions
from tellapart.metrics.retrieval import gaps
from tellapart.rewards.retrieval import GroupGap, OwnSimilarity, at_progress, gap

WORDS = degrees(0, 45, 60, 90, 120)


def cos(angle):
    return math.cos(math.radians(angle))


def test_the_gap_to_the_group_on_average_and_to_its_hardest_photo():
    own, group = torch.tensor([0.8, 0.5, 0.3]), torch.tensor([[0.2, 0.6], [0.7, 9.0], [9.0, 9.0]])
    there = torch.tensor([[True, True], [True, False], [False, False]])
    torch.testing.assert_close(gap(own, group, there, "average"), torch.tensor([0.4, -0.2, 0.3]))
    torch.testing.assert_close(gap(own, group, there, "hardest"), torch.tensor([0.2, -0.2, 0.3]))


def test_gaps_by_hand():
    """Photos at 0, 60, 120 and 180 degrees; the third has one look-alike, the last none."""
    ears = frozen(degrees(0, 60, 120, 180), WORDS)
    groups = torch.tensor([[1, 2], [0, 2], [1, -1], [-1, -1]])
    batch = sampled_captions([[0], [3], [2], [3]], [0, 1, 2, 3])
    average, hardest = GroupGap(ears, groups, k=2)(batch), GroupGap(ears, groups, "hardest", k=2)(batch)
    expected = [cos(0) - (cos(60) + cos(120)) / 2, cos(30) - (cos(90) + cos(30)) / 2, cos(60) - cos(0), 0]
    assert average.sentence.tolist() == pytest.approx(expected, abs=1e-6)
    assert hardest.sentence.tolist() == pytest.approx([cos(0) - cos(60), 0, cos(60) - cos(0), 0], abs=1e-6)
    assert average.words is None
    twice = GroupGap(ears, groups, k=2, scale=2.5)(batch).sentence
    assert twice.tolist() == pytest.approx([2.5 * value for value in expected], abs=1e-6)
    own = OwnSimilarity(ears)(batch).sentence
    assert own.tolist() == pytest.approx([cos(0), cos(30), cos(60), cos(90)], abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_rewards_are_the_measures_of_these_names_and_what_loops_find(seed):
    torch.manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(15, 5), dim=1)
    groups = torch.stack([torch.randperm(15)[:6] for _ in range(15)])
    for photo, count in enumerate(torch.randint(7, (15,)).tolist()):
        groups[photo, count:] = -1
    photos = torch.randint(15, (20,)).tolist()
    ears = frozen(images, torch.randn(20, 5))
    batch = sampled_captions(torch.randint(20, (20, 3)).tolist(), photos)
    found = {kind: GroupGap(ears, groups, kind, k=4)(batch).sentence for kind in ("average", "hardest")}
    similarity, used = (ears.embed_sampled(batch) @ images.T).numpy(), groups[:, :4].numpy()
    measured = gaps(similarity, np.array(photos), used[photos])
    np.testing.assert_allclose(found["average"].numpy(), measured[0], atol=1e-6)
    np.testing.assert_allclose(found["hardest"].numpy(), measured[1], atol=1e-6)
    for caption, photo in enumerate(photos):
        embedded = ears.embed_sampled(batch)[caption]
        theirs = [cosine(embedded, images[other]) for other in used[photo].tolist() if other >= 0]
        match = cosine(embedded, images[photo])
        average = match - sum(theirs) / len(theirs) if theirs else 0.0
        assert found["average"][caption].item() == pytest.approx(average, abs=1e-5)


def test_a_curriculum_goes_from_the_farthest_look_alikes_to_the_nearest():
    ten, three, none = list(range(10)), [5, 6, 7] + [-1] * 7, [-1] * 10
    groups = torch.tensor([ten, three, none])

    def at(progress):
        return at_progress(groups, 2, progress).tolist()

    assert at(0.0) == [[8, 9], [6, 7], [-1, -1]]
    assert at(0.25) == [[6, 7], [6, 7], [-1, -1]]
    assert at(0.5) == [[4, 5], [5, 6], [-1, -1]]  # half a photo on is rounded to even
    assert at(1.0) == [[0, 1], [5, 6], [-1, -1]]
    assert at(1.7) == at(1.0)
    assert at_progress(groups, 4, 0.0).tolist() == [[6, 7, 8, 9], [5, 6, 7, -1], [-1] * 4]
    assert at_progress(groups, 99, 0.3).tolist() == groups.tolist()


def test_the_gap_of_a_curriculum_is_that_of_the_group_it_has_come_to():
    ears = frozen(degrees(0, 60, 120, 180), WORDS)
    groups = torch.tensor([[1, 2, 3], [0, 2, 3], [1, 3, 0], [2, 1, 0]])

    def gap(progress, curriculum=True):
        batch = sampled_captions([[1]], [0], progress=progress)
        return GroupGap(ears, groups, k=1, curriculum=curriculum)(batch).sentence.item()

    assert gap(0.0) == pytest.approx(cos(45) - cos(135), abs=1e-6)
    assert gap(0.5) == pytest.approx(cos(45) - cos(75), abs=1e-6)
    assert gap(1.0) == gap(0.0, curriculum=False) == pytest.approx(cos(45) - cos(15), abs=1e-6)


def test_groups_of_other_photos_and_unknown_kinds_are_refused():
    ears = frozen(degrees(0, 60), WORDS)
    for groups in (torch.zeros(3, 2).long(), torch.zeros(2, 0).long(), torch.zeros(2).long()):
        with pytest.raises(ValueError, match="2 photos and groups of shape"):
            GroupGap(ears, groups)
    with pytest.raises(ValueError, match="no gap of kind 'least'"):
        GroupGap(ears, torch.zeros(2, 1).long(), "least")
