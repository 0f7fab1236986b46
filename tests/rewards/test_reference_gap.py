import pickle
from dataclasses import replace

import pytest
import torch

from tellapart.rewards import SampledCaptions
from tellapart.rewards.agreement import Consensus, ReferenceGap
from tellapart.rewards.retrieval import gap

END = 0


def said(captions, photos, width=6, filler=3):
    tokens = torch.full((len(captions), width), filler)
    for row, caption in enumerate(captions):
        ids = [*caption, END][:width]
        tokens[row, : len(ids)] = torch.tensor(ids)
    ended = (tokens == END).cumsum(1)
    return SampledCaptions(tokens, (ended == 0) | ((ended == 1) & (tokens == END)), torch.tensor(photos))


def test_the_gap_by_hand():
    own, scores = torch.tensor([5.0, 5.0, 5.0, 0.0]), torch.tensor([[1.0, 2.0], [1.0, 9.0], [9.0, 9.0], [4.0, 2.0]])
    exists = torch.tensor([[True, True], [True, False], [False, False], [True, True]])
    assert gap(own, scores, exists, "average").tolist() == [3.5, 4, 5, -3]
    assert gap(own, scores, exists, "hardest").tolist() == [3, 4, 5, -4]


@pytest.mark.parametrize("kind", ["average", "hardest"])
def test_a_caption_that_fits_its_look_alike_as_well_earns_nothing(kind):
    """CIDEr-D of a caption with itself as the only reference is 10."""
    references = [[[1, 2, 4, 5]], [[1, 2, 4, 5]], [[6, 7, 8, 9]], [[6, 7, 8, 10]], [[11, 12, 13, 14]]]
    consensus = Consensus(references, end=END, count_end=False)
    reward = ReferenceGap(consensus, torch.tensor([[1], [0], [0], [-1], [0]]), kind)
    captions = [[1, 2, 4, 5], [6, 7, 8, 9], [6, 7, 8, 10], [1, 2, 4, 5], [1, 2, 4, 5], []]
    found = reward(said(captions, [0, 2, 3, 2, 4, 0]))
    assert found.words is None
    assert found.sentence.dtype == torch.float32
    assert found.sentence.tolist() == pytest.approx([0, 10, 10, -10, -10, 0], abs=1e-5)


@pytest.mark.parametrize("kind", ["average", "hardest"])
def test_it_is_the_difference_of_single_comparisons(kind):
    generator = torch.Generator().manual_seed(0)
    consensus = Consensus(torch.randint(1, 7, (6, 3, 5), generator=generator).tolist(), end=END)
    look_alikes = [[1, 2, 3], [0, 5, -1], [-1, -1, -1], [5, -1, 4], [-1, 0, -1], [4, 3, 2]]
    tokens = torch.randint(0, 7, (40, 6), generator=generator)
    photos = torch.randint(6, (40,), generator=generator)
    expected = []
    for caption, photo in zip(tokens, photos.tolist(), strict=True):
        own, *others = (
            consensus(caption[None], torch.tensor([other])).item()
            for other in [photo, *look_alikes[photo]]
            if other >= 0
        )
        score_baseline = max(others, default=0) if kind == "hardest" else sum(others) / max(len(others), 1)
        expected.append(own - score_baseline)
    assert min(expected) < 0 < max(expected)
    captions = SampledCaptions(tokens, torch.ones_like(tokens, dtype=torch.bool), photos)
    reward = ReferenceGap(consensus, torch.tensor(look_alikes), kind)
    found = reward(captions).sentence
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(pickle.loads(pickle.dumps(reward))(captions).sentence, found, rtol=0, atol=0)


def test_a_reference_is_compared_with_the_others_of_its_photo():
    references = [[[1, 2, 4, 5], [1, 2, 6]], [[1, 2, 4, 5]], [[7, 8]]]
    look_alikes = torch.tensor([[1, 2], [0, -1], [-1, -1]])
    captions = said([[1, 2, 4, 5], [1, 2, 4, 5], [7, 8]], [0, 0, 2])
    some = replace(captions, reference=torch.tensor([0, -1, 0]))
    whole = Consensus(references, end=END)
    found = ReferenceGap(whole, look_alikes)(some).sentence

    fewer = [references[0][1:], *references[1:2], []]
    own = Consensus(fewer, end=END, frequencies=whole.frequencies)(captions.words, captions.photos)
    to_others = whole(captions.words, captions.photos) - ReferenceGap(whole, look_alikes)(captions).sentence
    torch.testing.assert_close(found[[0, 2]], (own - to_others)[[0, 2]])
    torch.testing.assert_close(found[1], ReferenceGap(whole, look_alikes)(captions).sentence[1])
    assert found[0] < found[1]


def test_neither_padding_nor_the_order_of_captions_or_look_alikes_matters():
    references = [[[1, 2, 4, 5], [2, 4]], [[1, 2, 4, 6]], [[4, 5, 7]]]
    consensus = Consensus(references, end=END)
    captions, photos = [[1, 2, 4, 5], [4, 5], [], [1, 2]], [0, 2, 1, 1]
    reward = ReferenceGap(consensus, torch.tensor([[1, 2, -1], [0, 2, -1], [0, -1, -1]]))
    expected = reward(said(captions, photos)).sentence
    assert len(expected.unique()) > 2
    torch.testing.assert_close(reward(said(captions, photos, width=15, filler=4)).sentence, expected)
    order = torch.tensor([3, 1, 0, 2])
    torch.testing.assert_close(reward(said(captions, photos).of(order)).sentence, expected[order])
    turned = ReferenceGap(consensus, torch.tensor([[-1, 2, 1], [2, -1, 0], [-1, 0, -1]]))
    torch.testing.assert_close(turned(said(captions, photos)).sentence, expected)


@pytest.mark.parametrize("kind", ["average", "hardest"])
def test_without_look_alikes_it_is_the_consensus(kind):
    consensus = Consensus([[[1, 2]], [[4, 5]]], end=END)
    captions = said([[1, 2], [4]], [0, 1])
    found = ReferenceGap(consensus, torch.empty(2, 0, dtype=torch.long), kind)(captions)
    torch.testing.assert_close(found.sentence, consensus(captions.words, captions.photos))
    assert found.sentence.min() > 0


def test_what_cannot_be_is_refused():
    consensus = Consensus([[[1, 2]], [[4, 5]]], end=END)
    with pytest.raises(ValueError, match="average or hardest, not 'mean'"):
        ReferenceGap(consensus, torch.tensor([[1], [0]]), "mean")
    with pytest.raises(IndexError, match="between 0 and 1"):
        ReferenceGap(consensus, torch.tensor([[2], [0]]))(said([[1]], [0]))
