"""BLEU, ROUGE-L, CIDEr and what is made of them: beside definitions in plain loops, and by hand.

test_pycoco.py and test_scoring.py have the figures of the field's scorers.
"""

import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore import overlap
from capscore.ngrams import Frequencies, References
from capscore.overlap import cider_between, rouge_l
from capscore.sentences import Grouped
from scored import loo1000, ngrams, prepared

captions = st.lists(st.sampled_from("abcd"), max_size=8)
photos = st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=2, max_size=5)


def bleu(captions, references):
    return overlap.bleu(*prepared(captions, references)[:3])


def cider_d(captions, references):
    return overlap.cider_d(*prepared(captions, references)[:3]).tolist()


def cider(captions, references):
    return overlap.cider(*prepared(captions, references)[:3]).tolist()


def rouge(captions, references):
    sentences, which, _, grouped = prepared(captions, references)
    return rouge_l(sentences, which, grouped).tolist()


EACH = {
    "BLEU-4": lambda captions, references: bleu(captions, references).per_photo()[:, 3].tolist(),
    "ROUGE-L": rouge,
    "CIDEr-D": cider_d,
    "CIDEr": cider,
}


def some(count):
    images = loo1000()["images"][:count]
    references = [[text.split() for text in image["reference_words"]] for image in images]
    return [image["caption_words"].split() for image in images], references


@pytest.mark.parametrize("name", EACH)
def test_nothing_said_and_nothing_to_compare_with_score_nothing(name):
    assert EACH[name]([[], ["a"], []], [[["a"]], [], [[]]]) == pytest.approx([0, 0, 0], abs=1e-3)
    assert EACH[name]([], []) == []


# BLEU


def test_precision_and_brevity_by_hand():
    """Three words of four are right, one pair of three; the reference has six words."""
    scores = bleu([list("abxc")], [[list("abcdef")]]).corpus()
    brevity = math.exp(1 - 6 / 4)
    assert scores["BLEU-1"] == pytest.approx(3 / 4 * brevity, abs=1e-8)
    assert scores["BLEU-2"] == pytest.approx(math.sqrt(3 / 4 * 1 / 3) * brevity, abs=1e-8)
    assert scores["BLEU-3"] < 1e-4


def test_the_corpus_is_judged_as_one_text_and_not_by_the_mean_of_photos():
    result = bleu([list("ab"), list("cdefghij")], [[list("xy")], [list("cdefghij")]])
    assert result.corpus()["BLEU-1"] == pytest.approx(8 / 10, abs=1e-8)
    assert result.per_photo()[:, 0] == pytest.approx([0, 1], abs=1e-8)


# ROUGE-L


def common(one, other):
    """The longest common subsequence by its recursive definition."""

    @lru_cache(None)
    def of(i, j):
        if i == len(one) or j == len(other):
            return 0
        return 1 + of(i + 1, j + 1) if one[i] == other[j] else max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)


@given(captions, st.lists(captions, min_size=1, max_size=3))
def test_rouge_is_that_of_the_definition(caption, references):
    precision = max(common(caption, text) / max(len(caption), 1) for text in references)
    recall = max(common(caption, text) / max(len(text), 1) for text in references)
    weighed = recall + 1.44 * precision
    assert rouge([caption], [references]) == pytest.approx([2.44 * precision * recall / weighed if weighed else 0.0])


def test_precision_and_recall_may_be_of_different_references():
    assert rouge([list("abcd")], [[list("abcdefgh"), list("a")]]) == pytest.approx([1.0])


# CIDEr


def by_definition(captions, references, clip, base=math.e):
    """CIDEr as its paper writes it, with dictionaries."""
    documents = [{g for text in texts for n in range(1, 5) for g in ngrams(text, n)} for texts in references]

    def weigh(words, n):
        df = {g: max(1, sum(g in document for document in documents)) for g in ngrams(words, n)}
        return {g: count * math.log(len(references) / df[g], base) for g, count in ngrams(words, n).items()}

    def length(weights):
        return math.sqrt(sum(w * w for w in weights.values()))

    result = []
    for caption, texts in zip(captions, references, strict=True):
        total = 0.0
        for text in texts:
            for n in range(1, 5):
                one, other = weigh(caption, n), weigh(text, n)
                if length(one) and length(other):
                    product = sum((min(one[g], other[g]) if clip else one[g]) * other[g] for g in one if g in other)
                    off = max(len(caption) - 1, 0) - max(len(text) - 1, 0)
                    total += product / length(one) / length(other) * (math.exp(-(off**2) / 72) if clip else 1)
        result.append(10 * total / 4 / len(texts))
    return result


@given(photos)
def test_cider_is_that_of_the_definition(world):
    captions, references = [caption for caption, _ in world], [texts for _, texts in world]
    assert cider_d(captions, references) == pytest.approx(by_definition(captions, references, clip=True), abs=1e-9)
    assert cider(captions, references) == pytest.approx(by_definition(captions, references, clip=False), abs=1e-9)


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
        (["abcd", "e"], [["abcd"], ["e"]], [10, 2.5]),  # of one word there is but a quarter of the n-grams
        # a word that every photo's people use weighs nothing: it changes the length, and no pair is in the references
        (["a", ""], [["x", "a"], ["x", "b"]], [10 * 0.25 / 2, 0]),
        (["axx", ""], [["x", "a"], ["x", "b"]], [10 * 0.25 / 2 * math.exp(-(2**2) / (2 * 6**2)), 0]),
        # a word said over and over counts no more often than people said it
        (["ab", "c"], [["ab"], ["c"]], [10 * 2 / 4, 2.5]),
        (
            ["aaab", "c"],
            [["ab"], ["c"]],
            [10 / 4 * (2 / math.sqrt(10 * 2) + 1 / math.sqrt(5)) * math.exp(-(2**2) / (2 * 6**2)), 2.5],
        ),
        (["a"], [["a"]], [0]),  # of a single photo every word is in all photos
    ],
)
def test_cider_d_by_hand(captions, references, expected):
    assert cider_d(list(map(list, captions)), [list(map(list, texts)) for texts in references]) == pytest.approx(
        expected
    )


def test_a_table_of_frequencies_lets_a_single_caption_be_scored():
    """The score is what the photo has among all the photos that the table was made of."""
    captions, references = some(200)
    sentences, which, counted, grouped = prepared(captions, references)
    together = overlap.cider_d(sentences, which, counted)
    for table in (counted.frequencies(), counted.frequencies().pruned()):
        for photo in (0, 17, 199):
            first, last = grouped.first[photo], grouped.first[photo + 1]
            alone = Grouped(grouped.sentences[np.arange(first, last)], np.array([0, last - first]))
            single = overlap.cider_d(sentences[np.array([photo])], np.array([0]), References(alone, table))
            assert single == pytest.approx([together[photo]], abs=1e-12)


def test_an_unrelated_photo_changes_scores_only_through_document_frequencies():
    captions, references = some(50)
    more = cider_d([*captions, ["zyzzyva"]], [*references, [["qat", "qi", "qoph", "qibla"]]])
    sentences, which, counted, grouped = prepared(captions, references)
    table = counted.frequencies()
    raised = Frequencies(table.documents + 1, table.parents, table.tokens, table.counts)  # without these words
    assert more[:-1] == pytest.approx(overlap.cider_d(sentences, which, References(grouped, raised)), abs=1e-12)
    assert more[:-1] != pytest.approx(overlap.cider_d(sentences, which, counted), abs=1e-6)


def test_a_caption_of_ten_thousand_words_is_scored():
    long = [str(i % 700) for i in range(10_000)]
    assert cider_d([long, ["a"]], [[long], [["a"]]])[0] == pytest.approx(10)
    assert cider_d([long, ["a"]], [[["7", "8", "9", "10"]], [["a"]]])[0] == 0.0  # the length penalty leaves nothing


@pytest.mark.parametrize(("which", "error"), [([1], IndexError), ([-1], IndexError), ([0, 0], ValueError)])
def test_a_photo_that_is_not_there_is_refused(which, error):
    sentences, _, counted, grouped = prepared([["a"]], [[["a"]]])
    for measure, references in ((overlap.cider_d, counted), (rouge_l, grouped)):
        with pytest.raises(error, match="photos"):
            measure(sentences, np.array(which), references)


# Look-alikes


def test_agreement_with_look_alikes_is_the_mean_over_them():
    texts = ["a dog runs fast", "the dog runs", "a red cat", "a dog and a cat"]
    sentences, _, counted, _ = prepared([text.split() for text in texts], [[text.split()] for text in texts])
    others = np.array([[1, 2], [0, 3], [0, 1], [0, 2]])
    expected = [overlap.cider_d(sentences, others[:, k], counted) for k in (0, 1)]
    assert cider_between(sentences, counted, others) == pytest.approx(np.mean(expected, 0))
    assert expected[0][0] > 0


def test_look_alikes_are_the_nearest_by_a_dense_computation():
    random = np.random.default_rng(0)
    # words as frequent as in language, so that no two photos are exactly alike
    world = [[random.zipf(1.6, size=9).clip(max=200).tolist() for _ in range(3)] for _ in range(90)]
    nearest = overlap.look_alikes(Grouped.join(world), 5)
    counts = np.zeros((90, 201))
    for photo, texts in enumerate(world):
        for text in texts:
            np.add.at(counts[photo], text, 1)
    weights = counts * np.log(90 / np.maximum((counts > 0).sum(0), 1))
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    similarity = weights @ weights.T
    np.fill_diagonal(similarity, -1)
    expected = -np.sort(-similarity, 1)[:, :5]
    np.testing.assert_allclose(np.take_along_axis(similarity, nearest, 1), expected, atol=1e-12)
    assert all(len(set(row)) == 5 for row in nearest.tolist())


def test_look_alikes_of_few_photos_are_all_the_others():
    assert overlap.look_alikes(Grouped.join([[[1]], [[1]], [[2]]]), 5).tolist() == [[1, 2], [0, 2], [0, 1]]
    assert overlap.look_alikes(Grouped.join([[[1]]]), 5).shape == (1, 0)


# Diversity

ALIKE = [[1, 2, 3, 4, 5]] * 3
APART = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def self_cider(groups, table=Frequencies.none(1000)):  # noqa: B008 - no words
    return overlap.self_cider(Grouped.join(groups), table)


def test_self_cider_by_hand():
    result = self_cider([ALIKE, APART, [[1]], [[], []], [[1, 2], [1, 2]]]).per_photo()[:, 0]
    assert result.tolist() == pytest.approx([0, 1, 0, 0, 0], abs=1e-6)
    # two of four words each, one pair of three, nothing longer: cosines 1/2, 1/3, 0, 0
    cosine = (1 / 2 + 1 / 3) / 4
    large, small = math.sqrt(1 + cosine), math.sqrt(1 - cosine)
    half = self_cider([[[1, 2, 3, 4], [1, 2, 8, 9]]]).corpus()["self-CIDEr"]
    assert half == pytest.approx(-math.log2(large / (large + small)))
    # a photo with one caption has no part
    assert self_cider([APART, [[1, 2]]]).corpus()["self-CIDEr"] == pytest.approx(1)
    # a word that every photo has weighs nothing, so that sharing it makes no captions alike
    shared = self_cider([[[1, 7], [1, 8]]], References(Grouped.join([[[1, 5]], [[1, 6]]])).frequencies())
    assert shared.corpus()["self-CIDEr"] == pytest.approx(1, abs=1e-6)


def test_mutual_bleu_compares_each_caption_with_its_siblings():
    texts = [["a", "b", "c", "d", "e"], ["a", "b", "c", "x"], ["y", "b", "c", "d"]]
    result = overlap.mutual_bleu(prepared([], [texts])[3]).corpus()
    expected = bleu(texts, [texts[:i] + texts[i + 1 :] for i in range(3)]).corpus()
    assert result == pytest.approx({f"m{name}": score for name, score in expected.items()})
    assert result["mBLEU-1"] > 0.5


def test_a_photo_with_one_caption_adds_nothing_to_mutual_bleu():
    several = overlap.mutual_bleu(Grouped.join([ALIKE]))
    with_one = overlap.mutual_bleu(Grouped.join([[[7, 8]], ALIKE, []]))
    np.testing.assert_array_equal(with_one.rows.sum(0), several.rows.sum(0))
    assert several.corpus()["mBLEU-4"] == pytest.approx(1, abs=1e-6)
