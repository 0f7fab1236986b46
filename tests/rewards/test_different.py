"""Captions that were said of other photos too: counted by hand and by brute force."""

import math
import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tellapart.rewards import SampledCaptions
from tellapart.rewards.combine import Combined
from tellapart.rewards.words import Different, fingerprints

END, PAD = 2, 0


def said(captions, photos):
    """captions  token ids without the end"""
    width = max(map(len, captions)) + 1
    tokens = torch.tensor([[*caption, END, *[PAD] * (width - len(caption) - 1)] for caption in captions])
    mask = torch.tensor([[place <= len(caption) for place in range(width)] for caption in captions])
    return SampledCaptions(tokens, mask, torch.tensor(photos))


def score_baseline(reward, captions, photos):
    return reward(said(captions, photos)).sentence.tolist()


def test_a_caption_loses_by_the_logarithm_of_how_often_it_was_said_of_others():
    reward = Different()
    reward.remember(said([[5, 6], [5, 6], [5, 6], [7]], [0, 1, 1, 1]))
    expected = [-math.log(3), -math.log(2), -math.log(4), 0.0, 0.0]  # of photos 1 and 1; of 0; of all; own; new
    assert score_baseline(reward, [[5, 6], [5, 6], [5, 6], [7], [6, 5]], [0, 1, 2, 1, 0]) == pytest.approx(expected)


def test_asking_is_not_saying():
    reward = Different()
    score_baseline(reward, [[5, 6]], [0])
    assert score_baseline(reward, [[5, 6]], [1]) == [0.0]


def test_only_the_last_captions_are_remembered():
    reward = Different(window=3)
    reward.remember(said([[5], [6]], [0, 0]))
    reward.remember(said([[7], [8]], [0, 0]))
    assert score_baseline(reward, [[5], [6], [7], [8]], [1] * 4) == pytest.approx([0.0] + 3 * [-math.log(2)])
    reward.remember(said([[caption] for caption in range(10, 15)], [0] * 5))  # more than the window at once
    assert score_baseline(reward, [[11], [12], [14]], [1] * 3) == pytest.approx([0.0, -math.log(2), -math.log(2)])


def test_the_words_count_and_not_what_follows_the_end():
    tokens = torch.tensor([[5, END, PAD, PAD], [5, END, 9, 9], [5, 9, END, PAD]])
    mask = torch.tensor([[True, True, False, False], [True, True, False, False], [True, True, True, False]])
    one, same, other = fingerprints(SampledCaptions(tokens, mask, torch.zeros(3, dtype=torch.long))).tolist()
    assert one == same != other


def test_a_caption_that_was_cut_is_not_the_one_that_ended_there():
    tokens, mask = torch.tensor([[5, 6], [5, END]]), torch.ones(2, 2, dtype=torch.bool)
    assert len(set(fingerprints(SampledCaptions(tokens, mask, torch.zeros(2, dtype=torch.long))).tolist())) == 2


def test_different_captions_have_different_fingerprints():
    """All captions of up to three words of eight: sums and swaps of words are among them."""
    words = range(3, 11)
    captions = [[a] for a in words] + [[a, b] for a in words for b in words]
    captions += [[a, b, c] for a in words for b in words for c in words]
    assert len(set(fingerprints(said(captions, [0] * len(captions))).tolist())) == len(captions)


@given(st.lists(st.tuples(st.lists(st.integers(3, 4), max_size=2), st.integers(0, 2)), min_size=1, max_size=12))
def test_as_counted_one_by_one(lately):
    captions, photos = map(list, zip(*lately, strict=True))
    reward = Different()
    reward.remember(said(captions, photos))
    times = Counter((tuple(caption), photo) for caption, photo in lately)
    expected = [
        -math.log1p(sum(times[tuple(caption), other] for other in range(3) if other != photo))
        for caption, photo in lately
    ]
    assert score_baseline(reward, captions, photos) == pytest.approx(expected)


def test_processes_remember_what_all_of_them_said():
    both = [said([[5]], [0]), said([[6], [7]], [1, 1])]
    told = [[fingerprints(part).tolist(), part.photos.tolist()] for part in both]
    first, second, skip_batch = (Different(window=8, gather=lambda own: [*told, []]) for _ in range(3))
    first.remember(both[0])
    second.remember(both[1])
    skip_batch.remember(None)
    assert torch.equal(first.state(), second.state())
    assert torch.equal(first.state(), skip_batch.state())
    assert score_baseline(first, [[6]], [0]) == pytest.approx([-math.log(2)])


def test_a_state_that_is_restored_goes_on_as_if_nothing_had_happened():
    reward, other = Different(window=5), Different(window=5)
    reward.remember(said([[5], [6]], [0, 1]))
    other.restore(reward.state())
    third = pickle.loads(pickle.dumps(reward))
    for one in (reward, other, third):
        one.remember(said([[7]], [2]))
    assert torch.equal(reward.state(), other.state())
    assert torch.equal(reward.state(), third.state())
    assert score_baseline(other, [[5], [7]], [3, 3]) == pytest.approx(2 * [-math.log(2)])


def test_a_sum_tells_its_terms_what_was_learned_from_and_not_what_that_is_compared_with():
    combined = Combined({"different": Different()}, {"different": 2.0})
    compared, learned = said([[5], [6]], [0, 0]), said([[7], [7]], [0, 0])
    combined.score_baseline(compared)
    combined(learned, 2)
    total, _ = combined(said([[5], [7]], [1, 1]), 2)
    assert total.sentence.tolist() == pytest.approx([0.0, -2 * math.log(3)])


def test_what_a_term_of_a_sum_remembers_is_in_its_checkpoint():
    first, second = (Combined({"different": Different()}, {"different": 1.0}, balance=True) for _ in range(2))
    first(said([[5], [6]], [0, 0]), 2)
    assert set(first.state()) == {"different", "different/memory"}
    second.restore(first.state())
    assert second.score_baseline(said([[5]], [1])).sentence.item() < 0


def test_a_window_of_no_captions_is_refused():
    with pytest.raises(ValueError, match="at least one caption must be remembered"):
        Different(window=0)
