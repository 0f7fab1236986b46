"""Rewards on sampled ids are the metrics of the same names; the gap to the references of look-alikes."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capscore import meteor
from capscore.overlap import bleu, cider, cider_d, rouge_l
from meteor import miniature
from rewards.captions import sampled
from scored import prepared
from tellapart.rewards import SampledCaptions
from tellapart.rewards.agreement import MEASURES, Consensus, MeteorConsensus, ReferenceGap
from test_overlap import by_definition

END = 0
WORDS = st.lists(st.integers(1, 5), max_size=6)


def rows(captions, width=7):
    """As a sampler leaves them: the end token, then whatever was there."""
    return sampled(captions, end=END, width=width, filler=3).words


WORLD = st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=3)), min_size=2, max_size=5)


@given(WORLD, st.booleans())
def test_reward_and_metric_agree_on_the_same_tokens(world, count_end):
    captions, references = [caption for caption, _ in world], [texts for _, texts in world]
    tail = [END] if count_end else []
    sentences, photos, prepared_references, grouped = prepared(
        [c + tail for c in captions], [[t + tail for t in texts] for texts in references]
    )
    expected = {
        "CIDEr-D": cider_d(sentences, photos, prepared_references),
        "CIDEr": cider(sentences, photos, prepared_references),
        "ROUGE-L": rouge_l(sentences, photos, grouped),
        **{f"BLEU-{n}": bleu(sentences, photos, prepared_references).per_photo()[:, n - 1] for n in range(1, 5)},
    }
    assert set(expected) == set(MEASURES)
    for measure, scores in expected.items():
        reward = Consensus(references, end=END, measure=measure, count_end=count_end)
        result = reward(rows(captions), torch.arange(len(captions)))
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, torch.tensor(scores, dtype=torch.float32))


@settings(max_examples=50)
@given(WORLD, st.booleans(), st.data())
def test_a_reference_is_compared_with_the_others_of_its_photo_alone(world, count_end, data):
    """As with references that never had it, but for how rare n-grams are."""
    captions, references = [caption for caption, _ in world], [texts for _, texts in world]
    left_out = [data.draw(st.integers(-1, len(texts) - 1)) for texts in references]
    remaining = [[text for k, text in enumerate(t) if k != out] for t, out in zip(references, left_out, strict=True)]
    captions = [
        caption if out < 0 else texts[out] for caption, texts, out in zip(captions, references, left_out, strict=True)
    ]
    tokens, photos = rows(captions), torch.arange(len(captions))
    for measure in MEASURES:
        reward = Consensus(references, end=END, measure=measure, count_end=count_end)
        without = Consensus(remaining, end=END, measure=measure, count_end=count_end, frequencies=reward.frequencies)
        result = reward(tokens, photos, torch.tensor(left_out))
        torch.testing.assert_close(result, without(tokens, photos))
        nothing_left = torch.tensor([not texts for texts in remaining])
        assert result[nothing_left].tolist() == [0.0] * int(nothing_left.sum())


def test_a_reference_that_the_photo_does_not_have_cannot_be_left_out():
    for measure in MEASURES:
        reward = Consensus([[[1], [2]], [[3]]], end=END, measure=measure)
        for but in ([0, 1], [-2, 0]):
            with pytest.raises(IndexError, match="one of the photo's"):
                reward(rows([[1], [3]]), torch.tensor([0, 1]), torch.tensor(but))
        with pytest.raises(IndexError, match="between 0 and 1"):
            reward(rows([[1]]), torch.tensor([2]), torch.tensor([0]))
        with pytest.raises(ValueError, match="one a caption"):
            reward(rows([[1], [3]]), torch.tensor([0, 1]), torch.tensor([0]))
        with pytest.raises(ValueError, match="photos for"):
            reward(rows([[1], [3]]), torch.tensor([0]), torch.tensor([0]))


@settings(max_examples=50)
@given(WORLD)
def test_the_base_of_the_logarithm_in_the_idf_changes_nothing(world):
    """ "Strengthen" of the GLD paper: all weights times 1 / ln 2."""
    captions, references = [caption for caption, _ in world], [texts for _, texts in world]
    result = cider_d(*prepared(captions, references)[:3]).tolist()
    for base in (math.e, 2):
        assert result == pytest.approx(by_definition(captions, references, clip=True, base=base), abs=1e-9)


def test_the_end_counts_so_that_a_caption_which_breaks_off_earns_less():
    references = [[[1, 2, 3, 4]], [[5]]]
    whole, cut = torch.tensor([[1, 2, 3, 4, END]]), torch.tensor([[1, 2, 3, 4]])
    counted, plain = (Consensus(references, end=END, count_end=count) for count in (True, False))
    photo = torch.tensor([0])
    assert counted(whole, photo) > counted(cut, photo)
    assert plain(whole, photo) == plain(cut, photo) == pytest.approx(10)


def test_many_threads_get_the_same_values():
    torch.manual_seed(0)
    reward = Consensus(torch.randint(1, 9, (20, 5, 8)).tolist(), end=END)
    tokens, photos = torch.randint(0, 9, (200, 12)), torch.randint(20, (200,))
    expected = reward(tokens, photos)
    assert expected.max() > 0
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: reward(tokens, photos), range(40)):
            torch.testing.assert_close(result, expected, rtol=0, atol=0)


# METEOR


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meteor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELLAPART_CACHE", str(folder / "cache"))
        yield meteor.load(miniature.write(folder / "data"))


def test_meteor_of_sampled_captions_is_meteor_of_their_words(small):
    references = [["A dog sat on the grass.", "the hound rested"], ["A bike."], []]
    reward = MeteorConsensus(references, data=small)
    texts, photos = ["a hound sat on the grass", "a dog", "the hound", "a dog"], [0, 1, 0, 2]
    words = [[["a", "dog", "sat", "on", "the", "grass"], ["the", "hound", "rested"]], [["a", "bike"]], []]

    def expected(references):
        scores = meteor.value(small.statistics([caption.split() for caption in texts], references))
        return torch.tensor(scores, dtype=torch.float32)

    result = reward(texts, torch.tensor(photos))
    torch.testing.assert_close(result, expected([words[photo] for photo in photos]))
    assert result[0] > result[1] > 0 == result[3]
    result = reward(texts, torch.tensor(photos), torch.tensor([0, 0, 1, -1]))
    torch.testing.assert_close(result, expected([words[0][1:], [], words[0][:1], []]))
    with pytest.raises(IndexError, match="between 0 and 2"):
        reward(texts[:1], torch.tensor([3]))
    with pytest.raises(IndexError, match="one of the photo's"):
        reward(texts[:1], torch.tensor([1]), torch.tensor([1]))


def test_a_caption_that_was_cut_ends_where_its_mask_does():
    """Of sub-words, or of another process's batch, one without an end may be shorter than the batch is wide."""
    references = [[[4, 5, 6, 7]], [[5, 6]]]
    reward = Consensus(references, end=2, measure="BLEU-1", count_end=False)
    words, mask = torch.tensor([[4, 5, 0, 0]]), torch.tensor([[True, True, False, False]])
    cut = SampledCaptions(words, mask, torch.tensor([0]))
    expected = reward(words[:, :2], cut.photos)
    assert float(expected) == pytest.approx(math.exp(1 - 4 / 2), abs=1e-6)  # all words are right, and half are missing
    torch.testing.assert_close(reward(cut.ids, cut.photos), expected)


captions_of = partial(sampled, end=END, width=6, filler=3)


def test_it_is_the_difference_of_single_comparisons():
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
        expected.append(own - sum(others) / max(len(others), 1))
    assert min(expected) < 0 < max(expected)
    captions = SampledCaptions(tokens, torch.ones_like(tokens, dtype=torch.bool), photos)
    reward = ReferenceGap(consensus, torch.tensor(look_alikes))
    result = reward(captions)
    assert (result.words, result.sentence.dtype) == (None, torch.float32)
    assert result.sentence.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_reference_is_compared_with_the_others_of_its_photo():
    references = [[[1, 2, 4, 5], [1, 2, 6]], [[1, 2, 4, 5]], [[7, 8]]]
    look_alikes = torch.tensor([[1, 2], [0, -1], [-1, -1]])
    captions = captions_of([[1, 2, 4, 5], [1, 2, 4, 5], [7, 8]], [0, 0, 2])
    some = replace(captions, reference=torch.tensor([0, -1, 0]))
    whole = Consensus(references, end=END)
    result = ReferenceGap(whole, look_alikes)(some).sentence

    fewer = [references[0][1:], *references[1:2], []]
    own = Consensus(fewer, end=END, frequencies=whole.frequencies)(captions.words, captions.photos)
    to_others = whole(captions.words, captions.photos) - ReferenceGap(whole, look_alikes)(captions).sentence
    torch.testing.assert_close(result[[0, 2]], (own - to_others)[[0, 2]])
    torch.testing.assert_close(result[1], ReferenceGap(whole, look_alikes)(captions).sentence[1])
    assert result[0] < result[1]


def test_neither_padding_nor_the_order_of_captions_or_look_alikes_matters():
    references = [[[1, 2, 4, 5], [2, 4]], [[1, 2, 4, 6]], [[4, 5, 7]]]
    consensus = Consensus(references, end=END)
    captions, photos = [[1, 2, 4, 5], [4, 5], [], [1, 2]], [0, 2, 1, 1]
    reward = ReferenceGap(consensus, torch.tensor([[1, 2, -1], [0, 2, -1], [0, -1, -1]]))
    expected = reward(captions_of(captions, photos)).sentence
    assert len(expected.unique()) > 2
    torch.testing.assert_close(reward(captions_of(captions, photos, width=15, filler=4)).sentence, expected)
    order = torch.tensor([3, 1, 0, 2])
    torch.testing.assert_close(reward(captions_of(captions, photos).of(order)).sentence, expected[order])
    turned = ReferenceGap(consensus, torch.tensor([[-1, 2, 1], [2, -1, 0], [-1, 0, -1]]))
    torch.testing.assert_close(turned(captions_of(captions, photos)).sentence, expected)
