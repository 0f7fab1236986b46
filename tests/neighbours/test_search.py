import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from capscore import compiled
from capscore.errors import UserError
from tellapart.neighbours import search
from tellapart.neighbours.search import build_index, nearest

METRICS = ("cosine", "euclidean")


def by_loop(vectors, k, metric, queries=None):
    """Every pair in double precision, ordered by score and index."""
    asked = vectors if queries is None else queries
    indices, scores = [], []
    for row, x in enumerate(asked.astype(float)):
        result = []
        for index, y in enumerate(vectors.astype(float)):
            if queries is None and index == row:
                continue
            if metric == "euclidean":
                score = np.float32(np.sqrt(((x - y) ** 2).sum()))
                result.append((score, index, score))
            else:
                norms = np.sqrt((x**2).sum()) * np.sqrt((y**2).sum())
                score = np.float32(np.clip((x * y).sum() / norms, -1, 1) if norms > 0 else 0.0)
                result.append((-score, index, score))
        result.sort(key=lambda entry: entry[:2])
        indices.append([index for _, index, _ in result[:k]])
        scores.append([score for _, _, score in result[:k]])
    shape = len(asked), max(min(k, len(vectors) - (queries is None)), 0)
    return np.array(indices, np.int64).reshape(shape), np.array(scores, np.float32).reshape(shape)


def assert_exact(vectors, k, metric, queries=None):
    result = nearest(vectors, k, metric=metric, queries=queries)
    indices, scores = by_loop(vectors, k, metric, queries)
    assert result.indices.dtype == np.int64
    assert result.scores.dtype == np.float32
    np.testing.assert_array_equal(result.indices, indices)
    np.testing.assert_allclose(result.scores, scores, rtol=1e-6, atol=1e-7)


@pytest.fixture
def many_blocks(monkeypatch):
    """Small collections go the way of large ones: several blocks, none of them whole at the end."""
    monkeypatch.setattr(search, "_SMALL", 0)
    monkeypatch.setattr(search, "_BLOCK", 32)


@pytest.mark.parametrize("metric", METRICS)
def test_the_nearest_of_each_by_hand(metric):
    east, north_east, north, west = [2, 0], [1, 1], [0, 1], [-1, 0]
    result = nearest(np.array([east, north_east, north, west], np.float32), 2, metric=metric)
    if metric == "cosine":
        assert result.indices.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
        np.testing.assert_allclose(result.scores[0], [0.5**0.5, 0], atol=1e-7)
    else:
        assert result.indices.tolist() == [[1, 2], [2, 0], [1, 3], [2, 1]]
        np.testing.assert_allclose(result.scores[0], [2**0.5, 5**0.5], rtol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [31, 32, 33, 150])
def test_blocks_find_what_a_loop_finds(many_blocks, metric, count):
    draw = np.random.default_rng(count)
    vectors = draw.standard_normal((count, 12)).astype(np.float32) * draw.uniform(0.1, 9, (count, 1)).astype(np.float32)
    assert_exact(vectors, 5, metric)
    assert_exact(vectors, 5, metric, queries=draw.standard_normal((45, 12)).astype(np.float32))


@pytest.mark.parametrize("metric", METRICS)
def test_copies_and_zeros_are_tied_and_the_earlier_come_first(many_blocks, metric):
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((6, 8)).astype(np.float32)[draw.integers(0, 6, 120)]  # twenty of each
    vectors[draw.permutation(120)[:40]] = 0
    assert_exact(vectors, 7, metric)
    assert_exact(vectors, 7, metric, queries=vectors[::3].copy())


@pytest.mark.parametrize("metric", METRICS)
def test_what_single_precision_cannot_tell_apart_is_still_in_order(many_blocks, metric):
    """All nearly in one direction, and far from the origin: products in single precision round the differences away."""
    draw = np.random.default_rng(1)
    vectors = (1000 + draw.standard_normal((100, 6)) * 1e-2).astype(np.float32)
    assert_exact(vectors, 4, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_several_threads_find_the_same(monkeypatch, metric):
    vectors = np.random.default_rng(4).standard_normal((1700, 8)).astype(np.float32)
    alone = nearest(vectors, 6, metric=metric)
    monkeypatch.setattr(compiled, "cores", lambda: 3)
    together = nearest(vectors, 6, metric=metric)
    np.testing.assert_array_equal(together.indices, alone.indices)
    np.testing.assert_array_equal(together.scores, alone.scores)


values = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=32))


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=30)
@given(
    vectors=arrays.arrays(np.float32, st.tuples(st.integers(0, 40), st.integers(1, 4)), elements=values),
    k=st.integers(0, 45),
)
def test_any_vectors_any_k(metric, vectors, k):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_SMALL", 0)
        patch.setattr(search, "_BLOCK", 16)
        result = nearest(vectors, k, metric=metric)
    _, scores = by_loop(vectors, k, metric)
    assert result.indices.shape == (len(vectors), max(min(k, len(vectors) - 1), 0))
    np.testing.assert_allclose(result.scores, scores, rtol=1e-5, atol=1e-6)
    for row, others in enumerate(result.indices.tolist()):
        assert row not in others
        assert len(set(others)) == len(others)
    best = result.scores if metric == "euclidean" else -result.scores
    assert (np.diff(best) >= 0).all()
    assert (np.diff(result.indices)[np.diff(best) == 0] > 0).all()


def test_fewer_than_k_others_give_fewer_columns():
    vectors = np.eye(3, dtype=np.float32)
    assert nearest(vectors, 9).indices.tolist() == [[1, 2], [0, 2], [0, 1]]
    assert nearest(vectors, 9, queries=vectors[:1]).indices.tolist() == [[0, 1, 2]]
    assert nearest(vectors[:1], 5).indices.shape == (1, 0)
    assert nearest(vectors[:0], 5).scores.shape == (0, 0)
    assert nearest(vectors[:0], 5, queries=vectors).scores.shape == (3, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_or_of_another_width_is_refused(bad):
    vectors = np.ones((5, 3), np.float32)
    vectors[3, 1] = bad
    with pytest.raises(UserError, match="vector number 4 "):
        nearest(vectors, 2)
    with pytest.raises(UserError, match="vector number 4 "):
        nearest(np.ones((5, 3), np.float32), 2, queries=vectors)

    with pytest.raises(UserError, match="3 columns"):
        nearest(np.ones((5, 3), np.float32), 2, queries=np.ones((5, 4), np.float32))


@pytest.mark.parametrize("size", [1e-30, 1e18])
def test_very_small_and_very_large_vectors_do_not_overflow(many_blocks, size):
    vectors = (np.random.default_rng(2).standard_normal((60, 5)) * size).astype(np.float32)
    result = nearest(vectors, 3)
    np.testing.assert_array_equal(result.indices, by_loop(vectors, 3, "cosine")[0])
    result = nearest(vectors, 3, metric="euclidean")
    np.testing.assert_array_equal(result.indices, by_loop(vectors, 3, "euclidean")[0])


# The index


def clustered(count, size, seed=0):
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count // 40, size)) * 2
    return (centres[draw.integers(0, len(centres), count)] + draw.standard_normal((count, size))).astype(np.float32)


def recall(result, truth):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(result.tolist(), truth.tolist(), strict=True)])


@pytest.mark.parametrize("metric", METRICS)
def test_the_recall_that_was_asked_for_is_reached_and_honestly_measured(metric):
    vectors = clustered(4000, 24)
    index = build_index(vectors, 10, metric=metric, recall=0.9, measure_on=300)
    assert index.probes < index.lists.nlist
    result, truth = index.search(10), nearest(vectors, 10, metric=metric)
    assert recall(result.indices, truth.indices) == pytest.approx(index.recall, abs=0.03)
    assert index.recall >= 0.9
    assert (result.indices != np.arange(4000)[:, None]).all()
    same = result.indices == truth.indices
    np.testing.assert_allclose(result.scores[same], truth.scores[same], rtol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_looking_into_all_lists_is_exact(metric):
    vectors = clustered(1500, 12)
    vectors[100:140] = vectors[100]  # ties
    index = build_index(vectors, 5, metric=metric, recall=1.01, measure_on=50)
    assert index.probes == index.lists.nlist > 1
    queries = clustered(70, 12, seed=9)
    for asked in (None, queries):
        result, truth = index.search(5, asked), nearest(vectors, 5, metric=metric, queries=asked)
        np.testing.assert_allclose(result.scores, truth.scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        index.search(5, queries).indices, nearest(vectors, 5, metric=metric, queries=queries).indices
    )


def test_an_index_is_the_same_each_time():
    vectors = clustered(2000, 8)
    first, second = build_index(vectors, 5), build_index(vectors, 5)
    assert first.recall == second.recall
    np.testing.assert_array_equal(first.search(5).indices, second.search(5).indices)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_few_vectors_and_identical_ones(count):
    index = build_index(np.ones((count, 3), np.float32), 5)
    assert index.search(5).indices.shape == (count, min(5, count - 1))
    assert index.recall == 1.0


def test_places_that_could_not_be_filled_are_marked():
    """Two heaps far apart: a query that looks into one list finds only those in it."""
    draw = np.random.default_rng(0)
    vectors = np.concatenate([draw.standard_normal((60, 4)) * 0.1 + 9, draw.standard_normal((4, 4)) * 0.1 - 9])
    index = build_index(vectors.astype(np.float32), 3, metric="euclidean", recall=0.0)
    index.probes = 1
    result = index.search(8, vectors[-1:].astype(np.float32))
    assert set(result.indices[0].tolist()) == {-1, 60, 61, 62, 63}
    assert np.isinf(result.scores[0][result.indices[0] < 0]).all()


@pytest.mark.parametrize("metric", METRICS)
def test_recall_is_measured_with_what_is_searched_for(metric):
    """Photos among captions: CLIP's vectors of the two lie apart, and other lists are then near to a query."""
    random = np.random.default_rng(1)
    captions = random.standard_normal((6000, 24)).astype(np.float32)
    photos = random.standard_normal((500, 24)).astype(np.float32) + 3
    for wanted in (0.0, 0.9):
        index = build_index(captions, 10, metric=metric, queries=photos, recall=wanted, measure_on=500)
        truth = nearest(captions, 10, metric=metric, queries=photos)
        assert recall(index.search(10, photos).indices, truth.indices) == pytest.approx(index.recall)
        assert index.recall >= wanted
