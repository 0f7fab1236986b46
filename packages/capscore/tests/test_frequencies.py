from itertools import pairwise

import numpy as np
import pytest

from capscore import ngrams
from capscore.errors import UserError
from capscore.ngrams import ROOT
from scored import loo1000

TOLD = [[text.split() for text in image["reference_words"]] for image in loo1000()["images"][:300]]


def spelt_out(table):
    known = [()]
    for parent, token in zip(table.ngrams.parents.tolist(), table.ngrams.tokens.tolist(), strict=True):
        known.append((*known[parent], table.words[token]))
    return dict(zip(known[1:], table.ngrams.counts.tolist(), strict=True))


def test_a_table_comes_back_from_its_file(tmp_path):
    made = ngrams.count(TOLD)
    ngrams.save(made, tmp_path / "table.npz")
    read = ngrams.load(tmp_path / "table.npz")
    assert read.ngrams.documents == 300
    assert spelt_out(read) == spelt_out(made)
    assert spelt_out(read)["a", "man"] == sum(
        any(pair == ("a", "man") for text in texts for pair in pairwise(text)) for texts in TOLD
    )
    assert min(spelt_out(read).values()) == 2  # an n-gram of one document weighs what an unknown one weighs
    assert read.of_words()["man"] == spelt_out(made)[("man",)]


def test_the_bundled_table_is_of_coco_captions():
    table = ngrams.coco()
    words = table.of_words()
    assert table.ngrams.documents == 17_721
    assert words["a"] > 17_000 > words["man"] > words["skateboard"] > words["giraffe"] > 100
    assert "axolotl" not in words


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t | {"parents": t["parents"] + 10**6},
        lambda t: t | {"parents": np.diff(np.arange(len(t["tokens"]), 0, -1), prepend=0)},
        lambda t: t | {"tokens": t["tokens"] + 10**6},
        lambda t: t | {"counts": t["counts"][:-1]},
        lambda t: t | {"documents": np.array(1)},
        lambda t: {key: value for key, value in t.items() if key != "words"},
        lambda t: t | {"words": np.array(["a", "b"], dtype=object)},
        lambda t: t | {"documents": np.array(np.inf)},
        lambda t: t | {"counts": np.array(3)},
    ],
    ids=range(9),
)
def test_a_damaged_table_is_refused(tmp_path, change):
    path = tmp_path / "table.npz"
    ngrams.save(ngrams.count(TOLD[:20]), path)
    with np.load(path) as archive:
        content = dict(archive)
    np.savez(path, **change(content))
    with pytest.raises(UserError, match=r"table\.npz: .*damaged"):
        ngrams.load(path)


@pytest.mark.parametrize("content", [b"", b"not a table", b"PK\x03\x04cut short"])
def test_what_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "table.npz").write_bytes(content)
    with pytest.raises(UserError, match="no table of document frequencies, or it is damaged"):
        ngrams.load(tmp_path / "table.npz")
    with pytest.raises(UserError, match="there is no such file"):
        ngrams.load(tmp_path / "nowhere.npz")


def test_a_flipped_bit_is_found(tmp_path):
    path = tmp_path / "table.npz"
    ngrams.save(ngrams.count(TOLD[:20]), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        ngrams.load(path)


def test_parents_stand_before_their_children(tmp_path):
    ngrams.save(ngrams.count(TOLD), tmp_path / "table.npz")
    parents = ngrams.load(tmp_path / "table.npz").ngrams.parents
    assert (parents[:5] == ROOT).all()
    assert (np.diff(parents) >= 0).all()
