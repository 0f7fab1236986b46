"""The table of n-grams: exact whatever the ids, and shared between threads and processes."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore.ngrams import ORDERS, ROOT, Frequencies, References
from capscore.overlap import cider_d
from capscore.sentences import Grouped, Sentences
from scored import ngrams

# ids at the edges of 32 bits, and some that collide in a table of eight slots whatever the hash
ids = st.sampled_from([0, 1, 2, 8, 16, 2**16, 2**31 - 1, -1, -(2**31)])
sentences = st.lists(ids, max_size=10)
photos = st.lists(st.lists(sentences, min_size=1, max_size=4), min_size=1, max_size=6)


def spelt_out(frequencies: Frequencies) -> dict[tuple[int, ...], int]:
    known = [()]
    for parent, token in zip(frequencies.parents.tolist(), frequencies.tokens.tolist(), strict=True):
        known.append((*known[parent], token))
    return dict(zip(known[1:], frequencies.counts.tolist(), strict=True))


def documents(world):
    counted = {}
    for texts in world:
        for ngram in {g for text in texts for n in range(1, ORDERS + 1) for g in ngrams(text, n)}:
            counted[ngram] = counted.get(ngram, 0) + 1
    return counted


@given(photos)
def test_every_n_gram_is_counted_once_for_each_photo_that_has_it(world):
    found = References(Grouped.join(world)).frequencies()
    assert found.documents == len(world)
    assert spelt_out(found) == documents(world)
    assert spelt_out(found.pruned()) == {g: count for g, count in documents(world).items() if count > 1}


def test_a_table_that_grows_many_times_loses_nothing():
    random = np.random.default_rng(0)
    world = [[random.integers(50, size=12).tolist() for _ in range(5)] for _ in range(400)]
    assert spelt_out(References(Grouped.join(world)).frequencies()) == documents(world)


@given(sentences, st.lists(sentences, min_size=1, max_size=3))
def test_matches_are_clipped_by_the_reference_that_has_most(said, told):
    references = References(Grouped.join([told]))
    (found,) = references.clipped(Sentences.join([said]), np.array([0])).tolist()
    expected = [
        sum(min(count, max(ngrams(text, n)[g] for text in told)) for g, count in ngrams(said, n).items())
        for n in range(1, ORDERS + 1)
    ]
    assert found == expected


@pytest.mark.parametrize(("said", "told", "closest"), [(4, [2, 7], 2), (5, [3, 7], 3), (0, [9], 9), (3, [3, 1], 3)])
def test_of_two_references_equally_near_in_length_the_shorter_counts(said, told, closest):
    references = References(Grouped.join([[[1] * length for length in told]]))
    assert references.closest_lengths(Sentences.join([[1] * said]), np.array([0])).tolist() == [closest]


def test_a_base_table_keeps_its_counts_whatever_the_references_are():
    base = Frequencies(100, np.array([ROOT, 1], np.int32), np.array([7, 8], np.int32), np.array([40, 20], np.int32))
    found = References(Grouped.join([[[7, 8, 9]]]), base).frequencies()
    assert found.documents == 100
    assert {g: count for g, count in spelt_out(found).items() if count} == {(7,): 40, (7, 8): 20}


def test_rows_end_at_the_first_end_token():
    tokens = np.array([[5, 0, 5, 5], [5, 6, 7, 8], [0, 0, 0, 0]])
    for keep, expected in ((True, [[5, 0], [5, 6, 7, 8], [0]]), (False, [[5], [5, 6, 7, 8], []])):
        rows = Sentences.rows(tokens, 0, keep_end=keep)
        ends = zip(rows.starts, rows.starts + rows.lengths, strict=True)
        assert [rows.tokens[start:stop].tolist() for start, stop in ends] == expected
    assert Sentences.rows(np.zeros((2, 0), int), 0, keep_end=True).lengths.tolist() == [0, 0]
    assert len(Sentences.rows(np.zeros((0, 5), int), 0, keep_end=True)) == 0


def test_threads_and_pickles_give_the_same_scores():
    random = np.random.default_rng(1)
    world = [[random.integers(30, size=9).tolist() for _ in range(5)] for _ in range(60)]
    references = References(Grouped.join(world))
    said = Sentences.join([random.integers(30, size=9).tolist() for _ in range(3000)])
    which = random.integers(60, size=3000)
    expected = cider_d(said, which, references).tolist()
    one_by_one = [cider_d(said[np.array([i])], which[[i]], references)[0] for i in range(0, 3000, 100)]
    assert one_by_one == expected[::100]
    with ThreadPoolExecutor(8) as pool:
        assert all(
            found.tolist() == expected for found in pool.map(lambda _: cider_d(said, which, references), range(24))
        )
    assert cider_d(said, which, pickle.loads(pickle.dumps(references))).tolist() == expected
