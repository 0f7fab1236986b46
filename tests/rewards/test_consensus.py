"""Rewards on sampled ids are the metrics of the same names."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metrics.scored import prepared
from tellapart.metrics.bleu import bleu
from tellapart.metrics.cider import cider, cider_d
from tellapart.metrics.rouge import rouge_l
from tellapart.rewards.consensus import MEASURES, Consensus

END = 0
WORDS = st.lists(st.integers(1, 5), max_size=6)


def rows(captions, width=7):
    """As a sampler leaves them: the end token, then whatever was there before."""
    tokens = torch.full((len(captions), width), 3)
    for row, caption in enumerate(captions):
        tokens[row, : len(caption)] = torch.tensor(caption, dtype=torch.long)
        if len(caption) < width:
            tokens[row, len(caption)] = END
    return tokens


@given(st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=3)), min_size=2, max_size=5), st.booleans())
def test_reward_and_metric_agree_on_the_same_tokens(world, count_end):
    captions, references = [said for said, _ in world], [texts for _, texts in world]
    tail = [END] if count_end else []
    said, photos, prepared_references, grouped = prepared(
        [c + tail for c in captions], [[t + tail for t in texts] for texts in references]
    )
    expected = {
        "CIDEr-D": cider_d(said, photos, prepared_references),
        "CIDEr": cider(said, photos, prepared_references),
        "ROUGE-L": rouge_l(said, photos, grouped),
        **{f"BLEU-{n}": bleu(said, photos, prepared_references).per_photo()[:, n - 1] for n in range(1, 5)},
    }
    assert set(expected) == set(MEASURES)
    for measure, scores in expected.items():
        reward = Consensus(references, end=END, measure=measure, count_end=count_end)
        found = reward(rows(captions), torch.arange(len(captions)))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, torch.tensor(scores, dtype=torch.float32))


def test_several_samples_of_one_photo_and_none_of_another():
    reward = Consensus([[[1, 2, 3, 4]], [[5, 6, 7, 8]]], end=END)
    found = reward(rows([[5, 6, 7, 8], [1, 2, 3, 4], [5, 6, 7, 8]]), torch.tensor([1, 1, 1]))
    assert found.tolist() == pytest.approx([10, 0, 10], abs=1e-5)


def test_the_end_counts_so_that_a_caption_which_breaks_off_earns_less():
    references = [[[1, 2, 3, 4]], [[5]]]
    whole, cut = torch.tensor([[1, 2, 3, 4, END]]), torch.tensor([[1, 2, 3, 4]])
    counted, plain = (Consensus(references, end=END, count_end=count) for count in (True, False))
    photo = torch.tensor([0])
    assert counted(whole, photo) > counted(cut, photo)
    assert plain(whole, photo) == plain(cut, photo) == pytest.approx(10)


def test_frequencies_of_a_larger_set_can_be_used():
    everything = Consensus([[[1, 2]], [[1, 3]], [[1, 4]]], end=END)
    one = Consensus([[[1, 2]]], end=END, frequencies=everything.frequencies)
    tokens = rows([[1, 2]])
    torch.testing.assert_close(one(tokens, torch.tensor([0])), everything(tokens, torch.tensor([0])))


def test_a_pickled_reward_and_many_threads_give_the_same_values():
    torch.manual_seed(0)
    reward = Consensus(torch.randint(1, 9, (20, 5, 8)).tolist(), end=END)
    tokens, photos = torch.randint(0, 9, (200, 12)), torch.randint(20, (200,))
    expected = reward(tokens, photos)
    assert expected.max() > 0
    torch.testing.assert_close(pickle.loads(pickle.dumps(reward))(tokens, photos), expected, rtol=0, atol=0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: reward(tokens, photos), range(40)):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_misspelt_measure_and_a_photo_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match=r"one of CIDEr-D, .* not 'cider'"):
        Consensus([[[1]]], end=END, measure="cider")
    for measure in MEASURES:
        reward = Consensus([[[1]]], end=END, measure=measure)
        with pytest.raises(IndexError, match="between 0 and 0"):
            reward(rows([[1]]), torch.tensor([1]))
        with pytest.raises(ValueError, match="photos for"):
            reward(rows([[1]]), torch.tensor([[0]]).expand(1, 2))
        with pytest.raises(TypeError, match="whole numbers"):
            reward(rows([[1]]).float(), torch.tensor([0]))
