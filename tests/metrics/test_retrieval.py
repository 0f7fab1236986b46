"""Measures of retrieval, against loops over captions and photos, and by hand.

Ranks, gaps and means of others by hand, for arrays and for tensors; average precision against scikit-learn's, and
Fang's weighting against sums by hand.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capscore import statistics
from tellapart.metrics import retrieval
from tellapart.metrics.retrieval import (
    Name,
    average_precision,
    gap_to_highest,
    gap_to_mean,
    mean_of_others,
    parse,
    ranks_of_matches,
    weighted_average_precision,
)


def unit(random, *shape):
    vectors = random.normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def alone(photos):
    """No photo is a copy of another."""
    return np.arange(photos)


def values(statistics):
    return {name: score for measure in statistics.values() for name, score in measure.corpus().items()}


# Names

one_line = st.text(min_size=1).filter(lambda text: text.splitlines() == [text])
retrievers = st.one_of(
    one_line, st.sampled_from(["judge", "openai/clip-vit-base-patch32", "runs/a.b", "x[1]", "]", "["])
)
names = st.one_of(
    st.builds(Name, st.sampled_from(["R", "P", "P-hard", "TT R"]), st.integers(1, 10**6), retrievers),
    st.builds(Name, st.sampled_from(["TT R", "self R"]), st.integers(1, 10**6)),
    st.builds(lambda kind, retriever: Name(kind, 0, retriever), st.sampled_from(["GEG-Avg", "GEG-Min"]), retrievers),
)


@given(names)
def test_a_name_parses_back(name):
    assert parse(str(name)) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (Name("R", 1, "judge"), "R@1[judge]"),
        (Name("P", 100, "dual"), "P@1/100[dual]"),
        (Name("P-hard", 100, "dual"), "P@1/100-hard[dual]"),
        (Name("GEG-Avg", 0, "word"), "GEG-Avg[word]"),
        (Name("TT R", 1), "TT R@1"),
        (Name("self R", 10), "self R@10"),
    ],
)
def test_names_as_tables_have_them(name, text):
    assert str(name) == text


@pytest.mark.parametrize(
    "text", ["CIDEr-D", "R@1", "R@0[a]", "R@x[a]", "R@1[]", "R@1[a] ", "P@5/100[a]", "self R@1[a]", "GEG-Max[a]", ""]
)
def test_what_is_no_measure_of_retrieval_is_none(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    "wrong", [("R", 0, "a"), ("R", 1, ""), ("GEG-Avg", 5, "a"), ("self R", 1, "a"), ("R", 1, "a\nb")]
)
def test_names_that_mean_nothing_cannot_be_made(wrong):
    with pytest.raises(ValueError, match=r"retriev(er|al)"):
        Name(*wrong)


# Ranks


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
def test_ranks_are_those_of_a_loop(seed, captions, photos):
    random = np.random.default_rng(seed)
    similarity = random.integers(-3, 4, (captions, photos)).astype(np.float32) / 4  # many ties
    targets = random.integers(photos, size=captions)
    expected = [
        sum(similarity[n, p] >= similarity[n, targets[n]] for p in range(photos) if p != targets[n])
        for n in range(captions)
    ]
    assert retrieval.ranks(similarity, targets).tolist() == expected


def test_what_is_no_number_is_refused():
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            retrieval.ranks(np.array([[0.5, bad]], np.float32), np.array([0]))
        with pytest.raises(ValueError, match="finite"):
            retrieval.gallery(np.array([[0.5, bad]], np.float32), alone(1))


def test_copies_of_a_photo_tie_however_the_product_is_rounded():
    """500 photos and a copy of each: the copy fits as well, so that no caption finds its photo first."""
    random = np.random.default_rng(0)
    photos = unit(random, 500, 96)
    both = np.concatenate([photos, photos])
    result = retrieval.find(photos, np.arange(500), retrieval.gallery(both, alone(1000)), "")
    assert (result.ranks == 1).all()


def test_a_caption_without_words_ties_with_everything_and_is_wrong_by_every_measure():
    photos = unit(np.random.default_rng(0), 120, 8)
    among = retrieval.gallery(photos, alone(120))
    result = retrieval.find(np.zeros((1, 8), np.float32), np.array([3]), among, "")
    assert result.ranks.tolist() == [119]
    statistics, lacks = retrieval.measured(result, among, "r")
    assert lacks == {}
    assert values(statistics) == pytest.approx(dict.fromkeys(values(statistics), 0.0))
    references = retrieval.text_to_text(
        np.zeros((1, 8), np.float32), np.array([3]), photos, np.ones(120, int), of_people=False
    )
    assert references.ranks.tolist() == [119]


# Every measure against loops


def slow(captions, photos, targets, copies, pools, below=None):
    """All measures by their definitions, one caption and one photo at a time."""
    similarity = captions.astype(np.float64) @ photos.T.astype(np.float64)
    alike = photos.astype(np.float64) @ photos.T.astype(np.float64)
    scores = {}

    def add(name, photo, score):
        scores.setdefault(name, {}).setdefault(photo, []).append(score)

    for n, p in enumerate(targets):
        others = sorted((q for q in range(len(photos)) if copies[q] != copies[p]), key=lambda q: -alike[p, q])
        place = sum(similarity[n, q] >= similarity[n, p] for q in range(len(photos)) if q != p)
        for k in (1, 5, 10):
            add(f"R@{k}[r]", p, place < k)
        hard = [q for q in others if below is None or alike[p, q] <= below][:99]
        if len(hard) == 99:
            add("P@1/100-hard[r]", p, all(similarity[n, p] > similarity[n, q] for q in hard))
        group = [similarity[n, q] for q in others[:5]]
        add("GEG-Avg[r]", p, similarity[n, p] - sum(group) / len(group))
        add("GEG-Min[r]", p, similarity[n, p] - max(group))
    for shuffle in pools:
        for pool in shuffle:
            for n, p in enumerate(targets):
                if p in pool:
                    right = all(similarity[n, p] > similarity[n, q] for q in pool if q != p)
                    scores.setdefault("P@1/100[r]", []).append(right)
    pooled = np.mean(scores.pop("P@1/100[r]"))  # every caption weighs the same here: one or two for each photo
    means = {name: np.mean([np.mean(of) for of in of_photos.values()]) for name, of_photos in scores.items()}
    return means | {"P@1/100[r]": pooled}


@pytest.mark.parametrize("below", [None, 0.9])
def test_every_measure_is_what_a_loop_over_captions_and_photos_finds(below):
    random = np.random.default_rng(1)
    photos = unit(random, 230, 6)
    copies = alone(230)
    photos[7], copies[7] = photos[3], copies[3]
    targets = np.flatnonzero(random.random(230) < 0.8)  # the others have no caption, and remain distractors
    captions = photos[targets] + 0.5 * unit(random, len(targets), 6)
    captions /= np.linalg.norm(captions, axis=1, keepdims=True)
    among = retrieval.gallery(photos, copies, near_duplicates=below)
    statistics, lacks = retrieval.measured(retrieval.find(captions, targets, among, ""), among, "r")
    assert lacks == {}
    expected = slow(captions, photos, targets, copies, among.pools, below)
    assert values(statistics) == pytest.approx(expected, abs=1e-6)
    assert 0.05 < expected["P@1/100-hard[r]"] < expected["P@1/100[r]"] < 0.95  # the test would see a constant


def test_blocks_change_nothing(monkeypatch):
    random = np.random.default_rng(2)
    photos = unit(random, 130, 6)
    captions, targets = unit(random, 300, 6), random.integers(130, size=300)
    whole = retrieval.find(captions, targets, retrieval.gallery(photos, alone(130)), "")
    monkeypatch.setattr(retrieval, "_BLOCK", 130 * 7)
    parts = retrieval.find(captions, targets, retrieval.gallery(photos, alone(130)), "")
    for name in ("ranks", "picked", "hard", "best"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    np.testing.assert_allclose(whole.least, parts.least, atol=1e-6)


def test_the_own_photo_stands_at_its_rank_among_the_best():
    random = np.random.default_rng(3)
    similarity = (random.integers(-9, 10, (40, 60)) / 10).astype(np.float32)  # many ties
    targets = random.integers(60, size=40)
    places = retrieval.ranks(similarity, targets)
    chosen, scores = retrieval.best(similarity, targets, 60)
    assert [list(row).index(p) for row, p in zip(chosen, targets, strict=True)] == places.tolist()
    assert (np.diff(scores, axis=1) <= 0).all()
    assert (np.sort(chosen, axis=1) == np.arange(60)).all()
    few, _ = retrieval.best(similarity, targets, 5)
    assert [p in row for row, p in zip(few, targets, strict=True)] == (places < 5).tolist()


def test_pools_are_cut_from_shuffles_and_the_rest_is_dropped():
    cut = retrieval.pools(1234, seed=5)
    assert cut.shape == (5, 12, 100)
    assert all(len(set(shuffle.ravel().tolist())) == 1200 for shuffle in cut)
    assert (cut[0] != cut[1]).any()
    np.testing.assert_array_equal(cut, retrieval.pools(1234, seed=5))
    assert (cut != retrieval.pools(1234, seed=6)).any()


def test_a_photo_outside_the_pools_of_a_shuffle_has_no_part_in_it():
    """130 photos, one pool of 100: a caption that is always right scores 1 though it was not always asked."""
    photos = unit(np.random.default_rng(4), 130, 16)
    among = retrieval.gallery(photos, alone(130))
    result = retrieval.find(photos, alone(130), among, "")
    assert result.pooled.sum() == 500
    statistics, _ = retrieval.measured(result, among, "r")
    assert values(statistics)["P@1/100[r]"] == 1.0


def test_few_photos_have_no_pools_and_a_single_one_no_look_alikes():
    photos = unit(np.random.default_rng(5), 99, 8)
    for count, skip_batch in (
        (99, {"P@1/100[r]", "P@1/100-hard[r]"}),
        (1, {"P@1/100[r]", "P@1/100-hard[r]", "GEG-Avg[r]", "GEG-Min[r]"}),
    ):
        among = retrieval.gallery(photos[:count], alone(count))
        result = retrieval.find(photos[:count], alone(count), among, "")
        statistics, lacks = retrieval.measured(result, among, "r")
        assert lacks.keys() == skip_batch
        assert not skip_batch & values(statistics).keys()
        assert values(statistics)["R@1[r]"] == 1.0
    assert lacks["P@1/100[r]"] == "a pool has 100 photos, and there are 1."


def test_no_caption_at_all_is_refused():
    photos = unit(np.random.default_rng(5), 9, 8)
    with pytest.raises(ValueError, match="no caption"):
        retrieval.find(photos[:0], alone(0), retrieval.gallery(photos, alone(9)), "")


def test_with_three_photos_a_group_has_two():
    photos = np.eye(3, dtype=np.float32)
    among = retrieval.gallery(photos, alone(3))
    assert np.sort(among.groups[0])[-2:].tolist() == [1, 2]
    result = retrieval.find(np.array([[0.8, 0.6, 0]], np.float32), np.array([0]), among, "")
    assert result.average.tolist() == pytest.approx([0.8 - 0.3])
    assert result.least.tolist() == pytest.approx([0.2])


def test_copies_are_nobodys_look_alikes_and_near_duplicates_no_hard_distractors():
    photos = np.array([[1, 0], [1, 0], [0.96, 0.28], [0.6, 0.8]], np.float32)
    copies = np.array([0, 0, 1, 2])
    assert retrieval.neighbours(photos, copies, 3).tolist() == [[2, 3, -1], [2, 3, -1], [0, 1, 3], [2, 0, 1]]
    assert retrieval.neighbours(photos, copies, 2, below=0.75).tolist() == [[3, -1], [3, -1], [-1, -1], [0, 1]]


def test_several_captions_of_a_photo_count_as_their_mean():
    photos = np.eye(4, dtype=np.float32)
    captions, targets = photos[[0, 1, 1, 2]], np.array([0, 0, 1, 2])  # one of two is right; right; right; photo 3: none
    among = retrieval.gallery(photos, alone(4))
    statistics, _ = retrieval.measured(retrieval.find(captions, targets, among, ""), among, "r")
    assert statistics["R"].per_photo()[:, 0].tolist() == [0.5, 1, 1, 0]
    assert values(statistics)["R@1[r]"] == pytest.approx(2.5 / 3)


def test_a_difference_between_models_has_an_interval():
    random = np.random.default_rng(6)
    photos = unit(random, 300, 8)
    among = retrieval.gallery(photos, alone(300))
    measured = []
    for noise in (0.3, 2.0):
        captions = photos + noise * unit(random, 300, 8)
        captions /= np.linalg.norm(captions, axis=1, keepdims=True)
        measured.append(retrieval.measured(retrieval.find(captions, alone(300), among, ""), among, "r")[0].values())
    result = statistics.differences(*map(list, measured))
    assert all(difference.low > 0 and difference.p < 0.01 for difference in result.values())
    assert len(result) == 7


# Text to text


def test_text_to_text_is_the_mean_cosine_over_references():
    random = np.random.default_rng(7)
    references = [unit(random, count, 5) for count in (1, 3, 2, 4, 2, 2)]
    means = np.stack([vectors.mean(0) for vectors in references])
    captions, targets = unit(random, 20, 5), random.integers(6, size=20)
    expected = []
    for caption, photo in zip(captions, targets, strict=True):
        scores = [np.mean([caption @ vector for vector in vectors]) for vectors in references]
        expected.append(sum(score >= scores[photo] for score in scores) - 1)
    counts = np.array([len(vectors) for vectors in references])
    assert retrieval.text_to_text(captions, targets, means, counts, of_people=False).ranks.tolist() == expected


def test_what_a_person_said_is_left_out_of_its_own_photos_references():
    random = np.random.default_rng(8)
    references = [unit(random, count, 4) for count in (3, 2, 5, 2)]
    means = np.stack([vectors.mean(0) for vectors in references])
    counts = np.array([len(vectors) for vectors in references])
    targets = np.repeat(np.arange(4), counts)
    expected = []
    for photo, vectors in enumerate(references):
        for i, caption in enumerate(vectors):
            scores = [
                np.mean([caption @ vector for j, vector in enumerate(others) if (q, j) != (photo, i)])
                for q, others in enumerate(references)
            ]
            expected.append(sum(score >= scores[photo] for score in scores) - 1)
    result = retrieval.text_to_text(np.concatenate(references), targets, means, counts, of_people=True)
    assert result.ranks.tolist() == expected
    assert len(set(expected)) > 1


def test_text_to_text_within_groups_by_hand():
    """Four photos with two references each.  A caption must fit its photo better than each of its two look-alikes."""
    axes = np.eye(4, dtype=np.float32)
    references = np.stack([axes[0], axes[1], axes[2], (axes[0] + axes[1]) / 2])
    groups = np.array([[1, 2], [2, 3], [0, 1], [0, -1]])
    captions = np.stack([axes[0], axes[1], axes[0], axes[3], axes[3]])
    targets = np.array([0, 1, 2, 1, 3])
    read = retrieval.text_to_text(captions, targets, references, np.full(4, 2), groups, of_people=False)
    # right; right, though photo 3 is near; the look-alike fits; a tie is wrong; and photo 3 has no whole group
    assert read.picked.tolist()[:4] == [True, True, False, False]
    assert read.grouped.tolist() == [True, True, True, True, False]
    result = retrieval.within_groups(read, targets, 4, 3)
    assert result.names == ("TT@3",)
    assert result.per_photo()[:, 0].tolist() == [1, 0.5, 0, 0]
    assert result.corpus()["TT@3"] == pytest.approx(1.5 / 3)
    nobody = retrieval.text_to_text(captions, targets, references, np.full(4, 2), of_people=False)
    assert retrieval.within_groups(nobody, targets, 4, 3) is None


def test_a_person_is_asked_without_the_own_caption_among_the_references():
    """Photo 0: two captions that have nothing in common; photo 1 is like the first of them."""
    axes = np.eye(3, dtype=np.float32)
    means = np.stack([(axes[0] + axes[1]) / 2, (axes[0] + axes[2]) / 2])
    asked, groups = np.array([0]), np.array([[1], [0]])
    alone = retrieval.text_to_text(axes[:1], asked, means, np.array([2, 2]), groups, of_people=True)
    assert alone.picked.tolist() == [False]  # its other caption is at a right angle
    model = retrieval.text_to_text(axes[1:2], asked, means, np.array([2, 2]), groups, of_people=False)
    assert model.picked.tolist() == [True]


def test_a_photo_without_a_reference_has_no_part_in_text_to_text():
    means, captions = np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)
    with pytest.raises(ValueError, match="no reference"):
        retrieval.text_to_text(captions, np.array([0, 1]), means, np.array([1, 0]), of_people=False)
    with pytest.raises(ValueError, match="no reference"):
        retrieval.text_to_text(captions, np.array([0, 1]), means, np.array([2, 1]), of_people=True)
    assert (
        retrieval.text_to_text(captions[:0], np.zeros(0, int), means, np.array([1, 1]), of_people=False).ranks.size == 0
    )
    assert replace(Name("TT R", 1), k=5) == parse("TT R@5")


@pytest.fixture(params=[np.array, torch.tensor], ids=["numpy", "torch"])
def array(request):
    return request.param


def test_a_rank_counts_all_that_fit_at_least_as_well_and_ties_too(array):
    similarity = array([[0.5, 0.5, 0.9], [0.5, 0.4, 0.3], [0.5, 0.5 - 1e-7, -float("inf")], [0.5, 0.5 - 1e-4, 0.0]])
    assert ranks_of_matches(similarity, similarity[:, 0]).tolist() == [2, 0, 1, 0]
    assert ranks_of_matches(similarity, similarity[:, 0], tie=1e-3).tolist() == [2, 0, 1, 1]


def test_the_gap_is_to_the_mean_or_to_the_highest_of_those_that_exist(array):
    match, group = array([3.0, 3.0, 3.0]), array([[1.0, 4.0], [1.0, 100.0], [100.0, 100.0]])
    exists = array([[True, True], [True, False], [False, False]])
    assert gap_to_mean(match, group, exists).tolist() == [0.5, 2, 3]
    assert gap_to_highest(match, group, exists).tolist() == [-1, 2, 3]
    assert gap_to_highest(match, group[:, :0], exists[:, :0]).tolist() == [3, 3, 3]


def test_the_mean_of_others_leaves_one_out(array):
    values = array([1.0, 2.0, 6.0])
    assert mean_of_others(values.sum(), values, 3).tolist() == [4, 3.5, 1.5]
    assert mean_of_others(array([9.0, 3.0]), array([6.0, 1.0]), array([3, 2])).tolist() == [1.5, 2]


def test_it_is_that_of_scikit_learn_also_where_scores_tie():
    reference = pytest.importorskip("sklearn.metrics").average_precision_score
    draw = np.random.default_rng(0)
    has = draw.random((60, 12)) < 0.3
    scores = draw.random((60, 12)).round(1)  # so few values that many tie
    expected = [reference(has[:, word], scores[:, word]) for word in range(12)]
    np.testing.assert_allclose(average_precision(scores, has), expected, atol=1e-12)


def test_where_all_scores_tie_it_is_the_share_of_photos_with_the_word():
    has = np.array([[True], [False], [False], [True], [False]])
    assert average_precision(np.zeros((5, 1)), has)[0] == pytest.approx(2 / 5)


def test_a_word_that_no_photo_has_is_left_out():
    assert np.isnan(average_precision(np.ones((3, 1)), np.zeros((3, 1), bool)))[0]
    assert np.isnan(weighted_average_precision(np.ones((3, 1)), np.zeros((3, 1), int), 5))[0]


def test_what_more_people_mention_counts_more():
    """K = 5.  By score: 3 mentions, none, 1 mention.  A mention is 0.8 of a true positive; the last photo is 0.2 of a
    false one, the second a whole one.
    """
    scores, mentions = np.array([[0.9], [0.5], [0.2]]), np.array([[3], [0], [1]])
    after_first = 2.4 / 2.4
    after_last = (2.4 + 0.8) / (2.4 + 0.8 + 1 + 0.2)
    expected = 2.4 / 3.2 * after_first + 0.8 / 3.2 * after_last
    assert weighted_average_precision(scores, mentions, 5)[0] == pytest.approx(expected)


def test_the_best_precision_at_a_recall_or_beyond_counts():
    """None first, then 2 mentions, then 4: precision rises to 4.8 / 5.8, which holds for all recall before."""
    scores, mentions = np.array([[0.9], [0.5], [0.2]]), np.array([[0], [2], [4]])
    assert weighted_average_precision(scores, mentions, 5)[0] == pytest.approx(4.8 / 5.8)
