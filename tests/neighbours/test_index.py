import numpy as np
import pytest

from tellapart.neighbours.index import build
from tellapart.neighbours.search import nearest


def clustered(count, size, seed=0):
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count // 40, size)) * 2
    return (centres[draw.integers(0, len(centres), count)] + draw.standard_normal((count, size))).astype(np.float32)


def recall(found, truth):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), truth.tolist(), strict=True)])


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_recall_that_was_asked_for_is_reached_and_honestly_measured(metric):
    vectors = clustered(4000, 24)
    index = build(vectors, 10, metric=metric, recall=0.9, measure_on=300)
    assert index.probes < len(index.centres)
    found, truth = index.search(10), nearest(vectors, 10, metric=metric)
    assert recall(found.indices, truth.indices) == pytest.approx(index.recall, abs=0.03)
    assert index.recall >= 0.9
    assert (found.indices != np.arange(4000)[:, None]).all()
    same = found.indices == truth.indices
    np.testing.assert_allclose(found.scores[same], truth.scores[same], rtol=1e-5)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_looking_into_all_lists_is_exact(metric):
    vectors = clustered(1500, 12)
    vectors[100:140] = vectors[100]  # ties
    index = build(vectors, 5, metric=metric, recall=1.01, measure_on=50)
    assert index.probes == len(index.centres) > 1
    queries = clustered(70, 12, seed=9)
    for asked in (None, queries):
        found, truth = index.search(5, asked), nearest(vectors, 5, metric=metric, queries=asked)
        np.testing.assert_allclose(found.scores, truth.scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        index.search(5, queries).indices, nearest(vectors, 5, metric=metric, queries=queries).indices
    )


def test_an_index_is_the_same_each_time():
    vectors = clustered(2000, 8)
    first, second = build(vectors, 5), build(vectors, 5)
    assert first.recall == second.recall
    np.testing.assert_array_equal(first.search(5).indices, second.search(5).indices)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_few_vectors_and_identical_ones(count):
    index = build(np.ones((count, 3), np.float32), 5)
    assert index.search(5).indices.shape == (count, min(5, count - 1))
    assert index.recall == 1.0


def test_places_that_could_not_be_filled_are_marked():
    """Two heaps far apart: a query that looks into one list finds only those in it."""
    draw = np.random.default_rng(0)
    vectors = np.concatenate([draw.standard_normal((60, 4)) * 0.1 + 9, draw.standard_normal((4, 4)) * 0.1 - 9])
    index = build(vectors.astype(np.float32), 3, metric="euclidean", recall=0.0)
    index.probes = 1
    found = index.search(8, vectors[-1:].astype(np.float32))
    assert set(found.indices[0].tolist()) == {-1, 60, 61, 62, 63}
    assert np.isinf(found.scores[0][found.indices[0] < 0]).all()


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_recall_is_measured_with_what_is_searched_for(metric):
    """Photos among captions: CLIP's vectors of the two lie apart, and other lists are then near to a query."""
    random = np.random.default_rng(1)
    captions = random.standard_normal((6000, 24)).astype(np.float32)
    photos = random.standard_normal((500, 24)).astype(np.float32) + 3
    for wanted in (0.0, 0.9):
        index = build(captions, 10, metric=metric, queries=photos, recall=wanted, measure_on=500)
        truth = nearest(captions, 10, metric=metric, queries=photos)
        assert recall(index.search(10, photos).indices, truth.indices) == pytest.approx(index.recall)
        assert index.recall >= wanted
