"""TREC files: what another program computes from them is what we say."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import world
from tellapart.evaluation import trec
from tellapart.metrics import retrieval


def recall_of(run, qrels, k):
    """By score, as trec_eval reads a run; ties by document id, largest first, as it breaks them."""
    right = {qid: doc for qid, _, doc, _ in (line.split() for line in qrels)}
    ranked = defaultdict(list)
    for qid, _, doc, _, score, _ in (line.split() for line in run):
        ranked[qid].append((float(np.float32(score)), doc))
    assert ranked.keys() == right.keys()
    best = {qid: [doc for _, doc in sorted(docs, reverse=True)[:k]] for qid, docs in ranked.items()}
    return sum(right[qid] in best[qid] for qid in right) / len(right)


def files_of(grid):
    return {name: list(lines) for name, lines in trec.of_grid(grid)}


def test_recall_from_the_files_is_the_recall_of_the_table(tmp_path, grid):
    data = world.make(tmp_path / "w", 110)
    told = [record["captions"][0].split() for record in world.records_of(data)]
    mixed = {i: f"a {words[1]}" if i % 3 else f"a {words[1]} on a {words[-1]}" for i, words in enumerate(told)}
    mixed[5] = ""
    found = grid(data, {"mixed": mixed}, retrievers=("word", "judge"), human=True)
    files = files_of(found)
    assert set(files) == {"world.qrels", "world.human.qrels"} | {
        f"world.{model}.{retriever}.run" for model in ("mixed", "human") for retriever in ("word", "judge")
    }
    for model, qrels in (("mixed", "world.qrels"), ("human", "world.human.qrels")):
        for retriever in ("word", "judge"):
            run = files[f"world.{model}.{retriever}.run"]
            for k in (1, 5, 10):
                ours = found.scores[model][f"R@{k}[{retriever}]"]
                assert recall_of(run, files[qrels], k) == pytest.approx(ours)
    assert 0.2 < found.scores["mixed"]["R@1[word]"] < 0.7


def test_ties_count_against_the_caption_for_every_reader():
    """Ten photos that all fit alike, a hundred and one of which one fits better: no order of ids helps."""
    similarity = np.full((10, 10), 0.25, np.float32)
    own = np.arange(10)
    found = found_from(similarity, own)
    for ids in ([f"{i}" for i in range(10)], [f"{9 - i}" for i in range(10)]):
        run, qrels = list(trec.run_lines(found, ids, "t")), list(trec.qrels_lines(own, ids))
        assert recall_of(run, qrels, 9) == 0
        assert recall_of(run, qrels, 10) == 1


def found_from(similarity, own):
    best, scores = retrieval.best(similarity, own, 100)
    nothing = np.zeros(len(own), np.float32)
    flags = nothing.astype(bool)
    ranks = retrieval.ranks(similarity, own)
    return retrieval.Retrieved(own, ranks, flags[:, None], flags[:, None], flags, nothing, nothing, best, scores)


@given(st.integers(0, 10**6))
def test_scores_fall_and_stay_near_what_they_were(seed):
    random = np.random.default_rng(seed)
    similarity = (random.integers(-20, 20, (3, 150)) / 20).astype(np.float32)
    own = random.integers(150, size=3)
    ids = [f"{i}" for i in range(150)]
    found = found_from(similarity, own)
    lines = [line.split() for line in trec.run_lines(found, ids, "t")]
    assert len(lines) == 300
    for query in range(3):
        mine = lines[100 * query : 100 * query + 100]
        scores = np.array([float(line[4]) for line in mine])
        assert (np.diff(scores) < 0).all()
        assert [int(line[3]) for line in mine] == list(range(1, 101))
        np.testing.assert_allclose(scores, found.scores[query], atol=1.5e-4)


@given(st.lists(st.text(min_size=1), unique=True))
def test_ids_are_words_and_stay_different(ids):
    words = [trec.word(id) for id in ids]
    assert len(set(words)) == len(ids)
    assert all(word.isascii() and len(word.split()) == 1 and word.split()[0] == word for word in words)
    names = [trec.file_name(id) for id in ids]
    assert len(set(names)) == len(ids)
    assert not any(set(name) & set("/\0\n") for name in names)


def test_captions_of_one_photo_are_queries_of_their_own():
    own = np.array([1, 1, 0, 1])
    assert trec.query_ids(own, ["a b", "c"]) == ["c", "c#2", "a%20b", "c#3"]
