"""LD by hand, by brute force and by what must not matter; LD-Diff; thresholds from the data."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.test_caption_weights import similarity_in
from rewards.captions import sampled as captions_of
from scored import ngrams
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.agreement import Consensus
from tellapart.rewards.local import Differences, LocalConfig, LocalDiscriminative, ngram_weights, with_thresholds

END = 0
EVERYTHING = LocalConfig(threshold=0.0, word_threshold=0.0)


def sampled(captions, photos, reference=None, width=8, padding=3):
    return captions_of(captions, photos, end=END, width=width, filler=padding, reference=reference)


# By hand


def test_a_bonus_by_hand():
    """Four photos of one reference, the end not counted.  Word 1 is in two of four photos, the others in one.

    Weights: word 1 ln 4 - ln 2 = L, words 2 and 3 2L, the pairs and the triple 2L, with L = ln 2.
    Caption 1 2 of the photo told as 1 2 3.  Both norms are of single words and of pairs:
    words: caption √(1 + 4) L, reference √(1 + 4 + 4) L; pairs: caption 2L, reference √(4 + 4) L.
    In the cosine, word 1 earns 1 / (√5 · 3), word 2 4 / (√5 · 3) and the pair 4 / (2 · √8).
    """
    consensus = Consensus([[[1, 2, 3]], [[1]], [[4]], [[5]]], end=END, count_end=False)
    one, two, pair = 1 / (5**0.5 * 3), 4 / (5**0.5 * 3), 4 / (2 * 8**0.5)
    penalty = math.exp(-1 / 72)
    weight = math.log(2)

    def words(**settings):
        reward = LocalDiscriminative(consensus, LocalConfig(**settings))(sampled([[1, 2]], [0], width=3))
        assert reward.sentence.item() == pytest.approx(10 * penalty * (one + two + pair) / 4, abs=1e-5)
        return reward.words.tolist()[0]

    everything = {"threshold": 0.0, "word_threshold": 0.0}
    assert words(**everything) == pytest.approx([10 * penalty * (one + pair), 10 * penalty * (two + pair), 0])
    assert words(**everything, length_penalty=False) == pytest.approx([10 * (one + pair), 10 * (two + pair), 0])
    # an n-gram must weigh more than λ, and a word more than η
    assert words(threshold=1.5 * weight, word_threshold=0.0) == pytest.approx(
        [10 * penalty * pair, 10 * penalty * (two + pair), 0]
    )
    assert words(threshold=0.0, word_threshold=1.5 * weight) == pytest.approx([0, 10 * penalty * (two + pair), 0])
    assert words(threshold=2.5 * weight, word_threshold=0.0) == [0, 0, 0]
    assert words(threshold=0.0, word_threshold=2.5 * weight) == [0, 0, 0]
    # of shares: word 1 is half of the caption and a third of the reference, min(1/2, 1/3) instead of min(1, 1), over
    # norms of vectors that are a half and a third as long: min(1, 2/3); the pair has min(1/1, 1/2), and so 1/2
    assert words(**everything, tf="normalised") == pytest.approx(
        [10 * penalty * (one * 2 / 3 + pair / 2), 10 * penalty * (two * 2 / 3 + pair / 2), 0]
    )
    # a share of the caption's CIDEr-D, in proportion
    sentence, total = 10 * penalty * (one + two + pair) / 4, one + two + 2 * pair
    assert words(**everything, share=0.5) == pytest.approx(
        [0.5 * sentence * (one + pair) / total, 0.5 * sentence * (two + pair) / total, 0], abs=1e-6
    )
    # over two qualifying words
    assert words(**everything, centre=True) == pytest.approx(
        [10 * penalty * (one - two) / 2, 10 * penalty * (two - one) / 2, 0], abs=1e-5
    )


# By brute force

WORDS = st.lists(st.integers(1, 5), max_size=6)
PHOTO = st.tuples(st.lists(WORDS, max_size=3), st.lists(st.integers(-1, 3), min_size=2, max_size=2))
CONFIGS = [
    LocalConfig(threshold, word_threshold, tf, penalty, centre, at_most, share, qualify)
    for (threshold, word_threshold), tf, penalty, centre, at_most, share, qualify in product(
        [(0.5, 0.4), (0.0, 0.0)],
        ["count", "normalised"],
        [True, False],
        [True, False],
        [True, False],
        [0.0, 0.7],
        ["rare", "contrast"],
    )
]


def by_definition(captions, photos, left_out, references, look_alikes, stop_words, config, tail):
    """LD as the docstring writes it, with dictionaries: words of each caption, not of the end or what follows."""
    told = [[text + tail for text in texts] for texts in references]
    documents = [{g for text in texts for n in range(1, 5) for g in ngrams(text, n)} for texts in told]

    def weigh(words, n):
        counts = ngrams(words, n)
        whole = sum(counts.values()) if config.tf == "normalised" else 1
        idf = {g: math.log(len(told) / max(1, sum(g in document for document in documents))) for g in counts}
        return {g: count / whole * idf[g] for g, count in counts.items()}

    def norm(weights):
        return math.sqrt(sum(weight**2 for weight in weights.values()))

    def shift(words):
        return max(len(words) - 1, 0)

    bonuses, qualifying, sentences = [], [], []
    for caption, photo, out in zip(captions, photos, left_out, strict=True):
        texts = [text for k, text in enumerate(told[photo]) if k != out]
        whole = caption + tail
        # CIDEr-D is always of counts
        sentences.append(sum(similarity_in(told, whole, text) for text in texts) / max(len(texts), 1))
        row, row_qualifies = [], []
        for place, word in enumerate(caption):
            if config.qualify == "rare":
                qualifies = weigh(whole, 1)[(word,)] > config.word_threshold
            else:
                groups = [told[other] for other in look_alikes[photo] if other >= 0 and told[other]]
                having = sum(any(word in text for text in group) for group in groups)
                qualifies = any(word in text for text in texts) and word not in stop_words and having < len(groups) / 2
            bonus = 0.0
            for text, n in product(texts, range(1, 5)):
                mine, theirs = weigh(whole, n), weigh(text, n)
                penalty = math.exp(-((shift(whole) - shift(text)) ** 2) / 72) if config.length_penalty else 1
                for g in mine:
                    heavy = config.qualify == "contrast" or mine[g] > config.threshold
                    if qualifies and word in g and heavy and g in theirs and mine[g] > 0:
                        bonus += penalty * min(mine[g], theirs[g]) * theirs[g] / norm(mine) / norm(theirs)
            bonus *= 10 / max(len(texts), 1)
            most = max((text.count(word) for text in texts), default=0)
            if config.at_most_references and caption[:place].count(word) >= most:
                bonus = 0.0
            row.append(bonus)
            row_qualifies.append(qualifies)
        if config.share:
            scale = config.share * sentences[-1] / sum(row) if sum(row) > 0 else 0
            row = [scale * bonus for bonus in row]
        bonuses.append(row)
        qualifying.append(row_qualifies)
    if config.centre:
        paid = [b for row, which in zip(bonuses, qualifying, strict=True) for b, q in zip(row, which, strict=True) if q]
        mean = sum(paid) / len(paid) if paid else 0
        bonuses = [
            [b - mean if q else b for b, q in zip(row, which, strict=True)]
            for row, which in zip(bonuses, qualifying, strict=True)
        ]
    return sentences, bonuses


@pytest.mark.parametrize("leave_out", [False, True])
@settings(max_examples=100)
@given(
    world=st.lists(PHOTO, min_size=4, max_size=4),
    captions=st.lists(st.tuples(WORDS, st.integers(0, 3)), min_size=1, max_size=3),
    config=st.sampled_from(CONFIGS),
    count_end=st.booleans(),
)
def test_all_switches_are_those_of_the_definition(leave_out, world, captions, config, count_end):
    references, look_alikes = [texts for texts, _ in world], [others for _, others in world]
    photos = [photo for _, photo in captions]
    captions = [words for words, _ in captions]
    left_out = [len(references[photo]) - 1 if leave_out else -1 for photo in photos]
    stop_words = torch.tensor([False, True, False, False, False, False])
    sentences, bonuses = by_definition(
        captions, photos, left_out, references, look_alikes, {1}, config, [END] if count_end else []
    )
    reward = LocalDiscriminative(
        Consensus(references, end=END, count_end=count_end),
        config,
        look_alikes=np.array(look_alikes),
        stop_words=stop_words,
    )
    result = reward(sampled(captions, photos, left_out if leave_out else None, width=7))
    assert result.sentence.dtype == result.words.dtype == torch.float32
    assert result.sentence.tolist() == pytest.approx(sentences, abs=1e-5)
    for row, expected in zip(result.words.tolist(), bonuses, strict=True):
        assert row == pytest.approx(expected + [0] * (7 - len(expected)), abs=1e-5)


# What must not matter


def drawn(seed, count=40):
    torch.manual_seed(seed)
    references = torch.randint(1, 30, (20, 3, 6)).tolist()
    captions = [torch.randint(1, 30, (length,)).tolist() for length in torch.randint(0, 8, (count,)).tolist()]
    return references, captions, torch.randint(20, (count,)).tolist()


def rewards(references):
    consensus = Consensus(references, end=END)
    look_alikes = np.random.default_rng(0).integers(-1, len(references), (len(references), 4))
    configs = [
        EVERYTHING,
        LocalConfig(0.5, 0.2, centre=True, at_most_references=True, share=1.0),
        LocalConfig(qualify="contrast", tf="normalised"),
    ]
    stop_words = torch.arange(30) < 3
    every = [LocalDiscriminative(consensus, c, look_alikes=look_alikes, stop_words=stop_words) for c in configs]
    return [*every, Differences(consensus)]


def same(result, other):
    torch.testing.assert_close(result.sentence, other.sentence, rtol=0, atol=0)
    torch.testing.assert_close(result.words, other.words, rtol=1e-6, atol=1e-6)


def test_what_follows_the_end_and_the_order_of_captions_do_not_matter():
    references, captions, photos = drawn(0)
    order = torch.randperm(len(captions))
    for reward in rewards(references):
        expected = reward(sampled(captions, photos))
        assert expected.words.abs().max() > 0
        for padding in (0, 8, 10**6):
            same(reward(sampled(captions, photos, padding=padding)), expected)
        result = reward(sampled(captions, photos).of(order))
        same(result, Reward(expected.sentence[order], expected.words[order]))


def test_a_second_call_knows_nothing_of_the_first():
    """The authors' program never clears its list of tokens: from its second call on it scores the first captions."""
    references, captions, photos = drawn(1)
    first, second = sampled(captions[:20], photos[:20]), sampled(captions[20:], photos[20:])
    for reward, fresh in zip(rewards(references), rewards(references), strict=True):
        reward(first)
        same(reward(second), fresh(second))


@pytest.mark.parametrize("count_end", [True, False])
def test_the_end_is_never_paid_though_it_is_rare(count_end):
    """With frequencies in which no reference ends, the end token has the largest weight of all."""
    bare = Consensus([[[1, 2]], [[3]], [[4]]], end=END, count_end=False).frequencies
    consensus = Consensus([[[1, 2]], [[3]], [[4]]], end=END, count_end=count_end, frequencies=bare)
    (words,) = LocalDiscriminative(consensus, EVERYTHING)(sampled([[1, 2]], [0])).words.tolist()
    assert min(words[:2]) > 0
    assert words[2:] == [0] * 6


def test_no_words_no_references_and_no_captions_at_all_are_worth_nothing():
    references = [[[1, 2], [1, 3]], [], [[4, 5]]]
    for reward in rewards(references):
        result = reward(sampled([[], [1, 2], [4]], [1, 1, 1]))
        assert result.sentence.tolist() == [0, 0, 0]
        assert result.words.abs().max() == 0
        wordless = reward(sampled([[]], [0]))
        assert wordless.sentence.isfinite().all()
        assert wordless.words[0, 1:].tolist() == [0] * 7
        empty = reward(
            SampledCaptions(torch.zeros(0, 5, dtype=torch.long), torch.zeros(0, 5) > 0, torch.zeros(0).long())
        )
        assert empty.sentence.shape == (0,)
        assert empty.words.shape == (0, 5)
        narrow = reward(
            SampledCaptions(torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0) > 0, torch.zeros(2).long())
        )
        assert narrow.sentence.tolist() == [0, 0]
        assert narrow.words.shape == (2, 0)


# LD-Diff


@pytest.mark.parametrize("count_end", [True, False])
def test_each_word_gets_what_it_adds_to_the_sentence(count_end):
    references, captions, photos = drawn(2, count=12)
    consensus = Consensus(references, end=END, count_end=count_end)
    result = Differences(consensus)(sampled(captions, photos, width=8, padding=END))
    whole = torch.tensor(photos)
    for row, caption in enumerate(captions):
        scores = [0.0]
        for length in range(1, len(caption) + 1):  # cut, without an end
            scores.append(consensus(torch.tensor([caption[:length]]), whole[[row]]).item())
        scores.append(consensus(torch.tensor([[*caption, END]]), whole[[row]]).item())
        expected = [after - before for before, after in pairwise(scores)]
        assert result.words[row].tolist() == pytest.approx(expected + [0] * (7 - len(caption)), abs=1e-5)
        assert result.sentence[row].item() == pytest.approx(scores[-1], abs=1e-5)
    torch.testing.assert_close(result.words.sum(1), result.sentence, atol=1e-5, rtol=0)


def test_a_reference_is_not_compared_with_itself_word_by_word_either():
    consensus = Consensus([[[1, 2], [1, 3]], [[4]], [[5]]], end=END)
    alone = Consensus([[[1, 3]], [[4]], [[5]]], end=END, frequencies=consensus.frequencies)
    same(Differences(consensus)(sampled([[1, 2]], [0], [0])), Differences(alone)(sampled([[1, 2]], [0])))


# Weights of the data


@pytest.mark.parametrize("tf", ["count", "normalised"])
def test_weights_are_listed_once_for_each_time_that_a_reference_has_them(tf):
    """Four photos; word 1 is in two of them, 2 and 3 in one: weights L, 2L, 2L with L = ln 2.  Word 2 is said twice."""
    consensus = Consensus([[[1, 2, 2]], [[1], [1, 3]], [], []], end=END)
    weight = math.log(2)
    words, weights = ngram_weights(consensus, 1, tf=tf)
    four, two, three = (4, 2, 3) if tf == "normalised" else (1, 1, 1)  # lengths with the end
    expected = [(1, 1 / four), (2, 4 / four), (2, 4 / four), (1, 1 / two), (1, 1 / three), (3, 2 / three)]
    scaled = [(word, value) for (word,), value in zip(words.tolist(), (weights / weight).tolist(), strict=True)]
    without_end = sorted(pair for pair in scaled if pair[0] != END)
    assert without_end == [(word, pytest.approx(value)) for word, value in sorted(expected)]
    pairs, weights = ngram_weights(consensus, 2, tf=tf)
    assert len(weights) == 6
    of_pair = {tuple(pair): value for pair, value in zip(pairs.tolist(), (weights / weight).tolist(), strict=True)}
    assert set(of_pair) == {(1, 2), (2, 2), (2, END), (1, END), (1, 3), (3, END)}
    assert of_pair[2, 2] == pytest.approx(2 / (3 if tf == "normalised" else 1))


def test_thresholds_leave_out_the_share_that_was_asked_for():
    references, _, _ = drawn(3)
    consensus = Consensus(references, end=END)
    for tf in ("count", "normalised"):
        config = with_thresholds(LocalConfig(tf=tf, ngram_quantile=0.3, word_quantile=0.8), consensus)
        ngram = np.concatenate([ngram_weights(consensus, n, tf=tf)[1] for n in range(1, 5)])
        words, weights = ngram_weights(consensus, 1, tf=tf)
        word = weights[words[:, 0] != END]
        assert (ngram < config.threshold).mean() < 0.3 <= (ngram <= config.threshold).mean()
        assert (word < config.word_threshold).mean() < 0.8 <= (word <= config.word_threshold).mean()
