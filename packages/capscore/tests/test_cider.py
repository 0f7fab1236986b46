"""CIDEr-D and CIDEr beside the field's own scorers, and what they must hold to whatever the words."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore import overlap as cider_metric
from capscore.ngrams import References
from capscore.sentences import Grouped, Sentences
from scored import loo1000, ngrams, prepared

captions = st.lists(st.sampled_from("abcd"), max_size=8)
photos = st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=2, max_size=5)


def cider_d(captions, references):
    return cider_metric.cider_d(*prepared(captions, references)[:3]).tolist()


def cider(captions, references):
    return cider_metric.cider(*prepared(captions, references)[:3]).tolist()


@pytest.mark.parametrize(("name", "measure"), [("CIDEr-D", cider_d), ("CIDEr", cider)])
def test_a_thousand_photos_score_as_the_scorers_of_the_field_say(name, measure):
    images = loo1000()["images"]
    scores = measure(
        [image["caption_words"].split() for image in images],
        [[text.split() for text in image["reference_words"]] for image in images],
    )
    assert len(scores) == 1000
    assert scores == pytest.approx([image["scores"][name] for image in images], abs=1e-9)
    assert np.mean(scores) == pytest.approx(loo1000()["corpus"][name], abs=1e-9)


def by_definition(captions, references, clip, base=math.e):
    """CIDEr as its paper writes it, with dictionaries."""
    found = []
    documents = [{g for text in texts for n in range(1, 5) for g in ngrams(text, n)} for texts in references]

    def weigh(words, n):
        df = {g: max(1, sum(g in document for document in documents)) for g in ngrams(words, n)}
        return {g: count * math.log(len(references) / df[g], base) for g, count in ngrams(words, n).items()}

    def length(weights):
        return math.sqrt(sum(w * w for w in weights.values()))

    for said, texts in zip(captions, references, strict=True):
        total = 0.0
        for text in texts:
            for n in range(1, 5):
                one, other = weigh(said, n), weigh(text, n)
                if length(one) and length(other):
                    product = sum((min(one[g], other[g]) if clip else one[g]) * other[g] for g in one if g in other)
                    off = max(len(said) - 1, 0) - max(len(text) - 1, 0)
                    total += product / length(one) / length(other) * (math.exp(-(off**2) / 72) if clip else 1)
        found.append(10 * total / 4 / len(texts))
    return found


@given(photos)
def test_scores_are_those_of_the_definition(world):
    said, told = [said for said, _ in world], [texts for _, texts in world]
    assert cider_d(said, told) == pytest.approx(by_definition(said, told, clip=True), abs=1e-9)
    assert cider(said, told) == pytest.approx(by_definition(said, told, clip=False), abs=1e-9)


def test_a_reference_word_for_word_scores_ten():
    said = ["a", "b", "c", "d"]
    assert cider_d([said, ["e"]], [[said], [["e"]]])[0] == pytest.approx(10)


def test_a_caption_of_one_word_can_have_but_a_quarter_of_the_n_grams():
    assert cider_d([["a"], ["e"]], [[["a"]], [["e"]]]) == pytest.approx([2.5, 2.5])


def test_each_word_too_many_costs_by_the_bell_of_sigma_six():
    """A word that every photo's people use weighs nothing, so it changes the length and nothing else."""
    references = [[["x"], ["a"]], [["x"], ["b"]]]
    plain, longer = (cider_d([said, []], references)[0] for said in (["a"], ["a", "x", "x"]))
    assert plain == pytest.approx(10 * 0.25 / 2)
    # Of the longer one's bigrams, none is in the references; its unigrams agree as before.
    assert longer == pytest.approx(plain * math.exp(-(2**2) / (2 * 6**2)))


def test_a_word_said_over_and_over_counts_no_more_often_than_people_said_it():
    (once, _), (thrice, _) = (
        cider_d([said, ["c"]], [[["a", "b"]], [["c"]]]) for said in (["a", "b"], ["a", "a", "a", "b"])
    )
    norm = math.sqrt(3**2 + 1)
    unigrams = (1 * 1 + 1 * 1) / (norm * math.sqrt(2))
    bigrams = 1 / (math.sqrt(2**2 + 1) * 1)
    assert once == pytest.approx(10 * 2 / 4)
    assert thrice == pytest.approx(10 / 4 * (unigrams + bigrams) * math.exp(-(2**2) / (2 * 6**2)))


def test_nothing_said_and_nothing_to_compare_with_score_nothing():
    assert cider_d([[], ["a"]], [[["a"]], []]) == [0.0, 0.0]
    assert cider_d([], []) == []


def test_with_a_single_photo_every_word_is_in_all_photos_and_weighs_nothing():
    assert cider_d([["a"]], [[["a"]]]) == [0.0]


def test_a_table_of_frequencies_lets_a_single_caption_be_scored():
    """The score is what the photo has among all the photos that the table was made of."""
    images = loo1000()["images"][:200]
    told = [[text.split() for text in image["reference_words"]] for image in images]
    said = [image["caption_words"].split() for image in images]
    captions, which, references, grouped = prepared(said, told)
    together = cider_metric.cider_d(captions, which, references)
    for table in (references.frequencies(), references.frequencies().pruned()):
        for photo in (0, 17, 199):
            first, last = grouped.first[photo], grouped.first[photo + 1]
            alone = Grouped(grouped.sentences[np.arange(first, last)], np.array([0, last - first]))
            single = cider_metric.cider_d(captions[np.array([photo])], np.array([0]), References(alone, table))
            assert single == pytest.approx([together[photo]], abs=1e-12)


def test_an_unrelated_photo_changes_scores_only_through_document_frequencies():
    images = loo1000()["images"][:50]
    told = [[text.split() for text in image["reference_words"]] for image in images]
    said = [image["caption_words"].split() for image in images]
    more = cider_d([*said, ["zyzzyva"]], [*told, [["qat", "qi", "qoph", "qibla"]]])
    captions, which, references, grouped = prepared(said, told)
    old = references.frequencies()
    raised = type(old)(old.documents + 1, old.parents, old.tokens, old.counts)  # one document more, without these words
    assert more[:-1] == pytest.approx(cider_metric.cider_d(captions, which, References(grouped, raised)), abs=1e-12)
    assert more[:-1] != pytest.approx(cider_metric.cider_d(captions, which, references), abs=1e-6)


@given(photos)
def test_scores_lie_between_zero_and_ten(world):
    for measure in (cider_d, cider):
        scores = measure([said for said, _ in world], [texts for _, texts in world])
        assert all(0 <= score <= 10 + 1e-9 for score in scores)


@given(photos, st.randoms(use_true_random=False))
def test_the_order_of_photos_and_of_references_changes_nothing(world, chance):
    order = chance.sample(range(len(world)), len(world))
    shuffled = [(world[i][0], chance.sample(world[i][1], len(world[i][1]))) for i in order]
    for measure in (cider_d, cider):
        before = measure([said for said, _ in world], [texts for _, texts in world])
        after = measure([said for said, _ in shuffled], [texts for _, texts in shuffled])
        assert after == pytest.approx([before[i] for i in order], abs=1e-9)


def test_a_caption_of_ten_thousand_words_is_scored():
    long = [str(i % 700) for i in range(10_000)]
    assert cider_d([long, ["a"]], [[long], [["a"]]])[0] == pytest.approx(10)
    assert cider_d([long, ["a"]], [[["7", "8", "9", "10"]], [["a"]]])[0] == 0.0  # the length penalty leaves nothing


def test_captions_and_photos_must_be_as_many():
    _, _, references, _ = prepared([["a"]], [[["a"]]])
    with pytest.raises(ValueError, match="2 captions, but photos for 1"):
        cider_metric.cider_d(Sentences.join([[0], [0]]), np.array([0]), references)
    with pytest.raises(IndexError, match="between 0 and 0"):
        cider_metric.cider_d(Sentences.join([[0]]), np.array([1]), references)
