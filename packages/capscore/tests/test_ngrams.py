"""The table of n-grams: exact whatever the ids, shared between threads and processes, and kept in files."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore import ngrams as module
from capscore.compiled import compiled, over_cores
from capscore.errors import UserError
from capscore.ngrams import ORDERS, ROOT, Frequencies, References
from capscore.overlap import cider_d
from capscore.sentences import Grouped, Sentences, Words, numbered, tokenize_file
from scored import loo1000, ngrams

# ids at the edges of 32 bits, and some that collide in a table of eight slots whatever the hash
ids = st.sampled_from([0, 1, 2, 8, 16, 2**16, 2**31 - 1, -1, -(2**31)])
sentences = st.lists(ids, max_size=10)
photos = st.lists(st.lists(sentences, min_size=1, max_size=4), min_size=1, max_size=6)


def spelt_out(frequencies, words=None):
    spelt = [()]
    for parent, token in zip(frequencies.parents.tolist(), frequencies.tokens.tolist(), strict=True):
        spelt.append((*spelt[parent], token if words is None else words[token]))
    return dict(zip(spelt[1:], frequencies.counts.tolist(), strict=True))


def documents(world):
    counted = {}
    for texts in world:
        for ngram in {g for text in texts for n in range(1, ORDERS + 1) for g in ngrams(text, n)}:
            counted[ngram] = counted.get(ngram, 0) + 1
    return counted


@given(photos)
def test_every_n_gram_is_counted_once_for_each_photo_that_has_it(world):
    table = References(Grouped.join(world)).frequencies()
    assert table.documents == len(world)
    assert spelt_out(table) == documents(world)
    assert spelt_out(table.pruned()) == {g: count for g, count in documents(world).items() if count > 1}


def test_a_table_that_grows_many_times_loses_nothing():
    random = np.random.default_rng(0)
    world = [[random.integers(50, size=12).tolist() for _ in range(5)] for _ in range(400)]
    assert spelt_out(References(Grouped.join(world)).frequencies()) == documents(world)


@given(sentences, st.lists(sentences, min_size=1, max_size=3))
def test_matches_are_clipped_by_the_reference_that_has_most(caption, references):
    (matches,), _ = References(Grouped.join([references])).clipped(Sentences.join([caption]), np.array([0]))
    assert matches.tolist() == [
        sum(min(count, max(ngrams(text, n)[g] for text in references)) for g, count in ngrams(caption, n).items())
        for n in range(1, ORDERS + 1)
    ]


@pytest.mark.parametrize(
    ("length", "lengths", "closest"), [(4, [2, 7], 2), (5, [3, 7], 3), (0, [9], 9), (3, [3, 1], 3)]
)
def test_of_two_references_equally_near_in_length_the_shorter_counts(length, lengths, closest):
    references = References(Grouped.join([[[1] * length for length in lengths]]))
    assert references.clipped(Sentences.join([[1] * length]), np.array([0]))[1].tolist() == [closest]


def test_a_base_table_keeps_its_counts_whatever_the_references_are():
    base = Frequencies(100, np.array([ROOT, 1], np.int32), np.array([7, 8], np.int32), np.array([40, 20], np.int32))
    table = References(Grouped.join([[[7, 8, 9]]]), base).frequencies()
    assert table.documents == 100
    assert {g: count for g, count in spelt_out(table).items() if count} == {(7,): 40, (7, 8): 20}


def test_threads_and_pickles_give_the_same_scores():
    random = np.random.default_rng(1)
    world = [[random.integers(30, size=9).tolist() for _ in range(5)] for _ in range(60)]
    references = References(Grouped.join(world))
    captions = Sentences.join([random.integers(30, size=9).tolist() for _ in range(3000)])
    which = random.integers(60, size=3000)
    expected = cider_d(captions, which, references).tolist()
    one_by_one = [cider_d(captions[np.array([i])], which[[i]], references)[0] for i in range(0, 3000, 100)]
    assert one_by_one == expected[::100]
    with ThreadPoolExecutor(8) as pool:
        assert all(
            scores.tolist() == expected
            for scores in pool.map(lambda _: cider_d(captions, which, references), range(24))
        )
    assert cider_d(captions, which, pickle.loads(pickle.dumps(references))).tolist() == expected


# Document frequencies in files

REFERENCES = [[text.split() for text in image["reference_words"]] for image in loo1000()["images"][:300]]


def test_a_table_comes_back_from_its_file(tmp_path):
    made = module.count(REFERENCES)
    module.save(made, tmp_path / "table.npz")
    read = module.load(tmp_path / "table.npz")
    counts = spelt_out(read.ngrams, read.words)
    assert read.ngrams.documents == 300
    assert counts == spelt_out(made.ngrams, made.words)
    assert counts["a", "man"] == sum(
        any(pair == ("a", "man") for text in texts for pair in pairwise(text)) for texts in REFERENCES
    )
    assert min(counts.values()) == 2  # an n-gram of one document weighs what an unknown one weighs
    assert read.of_words()["man"] == counts[("man",)]
    assert (read.ngrams.parents[:5] == ROOT).all()  # parents stand before their children
    assert (np.diff(read.ngrams.parents) >= 0).all()


def test_the_bundled_table_is_of_coco_captions():
    table = module.coco()
    words = table.of_words()
    assert table.ngrams.documents == 17_721
    assert words["a"] > 17_000 > words["man"] > words["skateboard"] > words["giraffe"] > 100
    assert "axolotl" not in words


CHANGES = [
    lambda t: t | {"parents": t["parents"] + 10**6},
    lambda t: t | {"parents": np.diff(np.arange(len(t["tokens"]), 0, -1), prepend=0)},
    lambda t: t | {"tokens": t["tokens"] + 10**6},
    lambda t: t | {"counts": t["counts"][:-1]},
    lambda t: t | {"documents": np.array(1)},
    lambda t: {key: value for key, value in t.items() if key != "words"},
    lambda t: t | {"words": np.array(["a", "b"], dtype=object)},
    lambda t: t | {"documents": np.array(np.inf)},
    lambda t: t | {"counts": np.array(3)},
]


@pytest.mark.parametrize("change", [*CHANGES, b"", b"not a table", b"PK\x03\x04cut short", "a flipped bit"])
def test_a_damaged_table_is_refused(tmp_path, change):
    path = tmp_path / "table.npz"
    module.save(module.count(REFERENCES[:20]), path)
    if isinstance(change, bytes):
        path.write_bytes(change)
    elif change == "a flipped bit":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data)
    else:
        with np.load(path) as archive:
            content = dict(archive)
        np.savez(path, **change(content))
    with pytest.raises(UserError, match=r"table\.npz: .*no table of document frequencies, or it is damaged"):
        module.load(path)
    with pytest.raises(UserError, match="there is no such file"):
        module.load(tmp_path / "nowhere.npz")


# Captions as numbers


def test_rows_end_at_the_first_end_token():
    tokens = np.array([[5, 0, 5, 5], [5, 6, 7, 8], [0, 0, 0, 0]])
    for keep, expected in ((True, [[5, 0], [5, 6, 7, 8], [0]]), (False, [[5], [5, 6, 7, 8], []])):
        rows = Sentences.rows(tokens, 0, keep_end=keep)
        ends = zip(rows.starts, rows.starts + rows.lengths, strict=True)
        assert [rows.tokens[start:stop].tolist() for start, stop in ends] == expected
    assert Sentences.rows(np.zeros((2, 0), int), 0, keep_end=True).lengths.tolist() == [0, 0]
    assert len(Sentences.rows(np.zeros((0, 5), int), 0, keep_end=True)) == 0


# blanks in all places, pieces that are no word or several, stops that depend on the next caption, other alphabets
PIECES = ["a", "A", "dog", "dog.", "Dog,", "cannot", "don't", "P.", "no.", "3", "1/2", "1 1/2", "", " ", ",", "."]
PIECES += ["(x)", "The", "caf\u00e9", "\u00a0", "\n", "\t", "\U0001f600", "\udc80", "x" * 70, "<b", ">", ":)", "a-no."]
PIECES += ["U.S."]


def words_of(texts):
    words = Words()
    numbers = numbered(texts, words)
    names = list(words)
    spans = zip(numbers.starts.tolist(), numbers.lengths.tolist(), strict=True)
    return [[names[token] for token in numbers.tokens[start : start + length].tolist()] for start, length in spans]


@pytest.mark.parametrize("seed", range(4))
def test_the_words_are_those_of_the_tokenizer(seed):
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(PIECES, random.integers(8)).tolist()) for _ in range(1500)]
    assert words_of(texts) == tokenize_file(texts)


def test_a_stop_depends_on_the_next_caption_and_on_nothing_else():
    texts = ["the letter P.", "A sign", "the letter P.", "on a sign", "it says no.", "3 dogs", "it says no. ", "3 dogs"]
    assert [caption[-1] for caption in words_of(texts)[::2]] == ["p", "p.", "no.", "no"]


def test_words_that_have_numbers_keep_them():
    numbers = numbered(["dog a", "A cat."], Words(["a", "dog"]))
    assert numbers.tokens.tolist() == [1, 0, 0, 2]
    assert numbers.lengths.tolist() == [2, 2]
    assert len(numbered([], Words())) == 0
    assert numbered([""], Words()).lengths.tolist() == [0]


# Compiled loops


def test_a_kernel_that_cannot_be_kept_on_disk_works_all_the_same():
    space = {}
    exec("def twice(number):\n    return 2 * number", space)  # a function without a file has nowhere to be kept
    assert compiled(space["twice"])(21) == 42


@pytest.mark.parametrize("count", [0, 1, 511, 512, 5000])
def test_stretches_cover_everything_once_and_their_errors_are_not_lost(count):
    done, lock = [], threading.Lock()

    def work(start, stop):
        with lock:
            done.extend(range(start, stop))

    over_cores(work, count)
    assert sorted(done) == list(range(count))
    with pytest.raises(ZeroDivisionError):
        over_cores(lambda start, stop: 1 // 0, count)
