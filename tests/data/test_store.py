"""Rows of numbers on disk: what was written is found again, and nothing that happens to the files goes unnoticed."""

import fcntl
import json
import os
import threading

import pytest
import torch

from capscore.errors import UserError
from tellapart import journals
from tellapart.data.store import Array, Store

MANIFEST = {"format": 1, "encoder": {"name": "eye", "sizes": (2, 3)}}
ARRAYS = {"map": (2, 3), "vector": (4,)}


def numbers(rows, seed):
    """Of half precision, so that nothing is lost on the way."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, *shape, generator=draw).half().float() for shape in ARRAYS.values()]


def entries(*ids):
    return [{"id": id, "colour": f"{id}!"} for id in ids]


@pytest.fixture
def open_store(tmp_path):
    def open_it(**changed):
        arguments = {"manifest": MANIFEST, "arrays": ARRAYS, "keys": ("colour",), **changed}
        return Store(tmp_path / "store", **arguments)

    return open_it


@pytest.fixture
def filled(open_store):
    """A store of three rows, and the numbers in it."""
    store, three = open_store(), numbers(3, seed=0)
    with store.writing():
        store.append([part[:2] for part in three], entries("a", "b"))
        store.append([part[2:] for part in three], entries("c"))
    return store, three


def assert_holds(store, ids, tensors):
    rows = [store.row_of(id) for id in ids]
    for name, expected in zip(ARRAYS, tensors, strict=True):
        torch.testing.assert_close(store.read(name, rows), expected, atol=0, rtol=0)


def test_what_was_written_is_found_again(filled, open_store):
    store, three = filled
    for again in (store, open_store()):
        assert again.rows == 3
        assert_holds(again, "abc", three)
        assert_holds(again, "ca", [part[[2, 0]] for part in three])
        assert again.lines["b"] == {"id": "b", "colour": "b!", "row": 1}

    new = numbers(1, seed=9)
    with store.writing():
        store.append(new, entries("a"))
    for again in (store, open_store()):  # a later row of the same id counts
        assert_holds(again, "a", new)
        assert again.rows == 4


def test_an_empty_store_has_rows_of_the_right_shape(open_store):
    store = open_store()
    shapes = [tuple(store.read(name, []).shape) for name in ("map", "vector")]
    assert (store.rows, shapes) == (0, [(0, 2, 3), (0, 4)])


def test_numbers_are_there_before_the_lines_that_say_so(open_store, monkeypatch):
    written = []
    append = journals.append
    monkeypatch.setattr(journals, "append", lambda file, data: (written.append(file.name), append(file, data)))
    store = open_store()
    with store.writing():
        store.append(numbers(1, seed=0), entries("a"))
    assert written == ["map.f16", "vector.f16", "rows.jsonl"]


# --- after a kill -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left",
    [
        {"map.f16": b"12345"},  # within a row
        {"map.f16": b"x" * 12},  # a row of the first array alone
        {"map.f16": b"x" * 24, "vector.f16": b"x" * 8},
        {"map.f16": b"x" * 12, "vector.f16": b"x" * 8, "rows.jsonl": b'{"id": "d", "col'},
    ],
    ids=lambda left: "+".join(left),
)
def test_what_a_kill_left_half_written_is_cut_off(filled, open_store, left):
    first, three = filled
    for name, data in left.items():
        with (first.folder / name).open("ab") as file:
            file.write(data)
    store, new = open_store(), numbers(1, seed=5)
    assert_holds(store, "abc", three)
    assert "d" not in store.lines
    with store.writing():
        store.append(new, entries("d"))
    for found in (store, open_store()):
        assert found.rows == 4
        assert_holds(found, "abcd", [torch.cat(pair) for pair in zip(three, new, strict=True)])
    assert (store.folder / "map.f16").stat().st_size == 4 * 12


def test_what_another_process_wrote_meanwhile_is_kept(open_store):
    mine, other = open_store(), open_store()
    with other.writing():
        other.append(numbers(2, seed=1), entries("a", "b"))
    with mine.writing():
        mine.append(numbers(1, seed=2), entries("c"))
    expected = [torch.cat(pair) for pair in zip(numbers(2, seed=1), numbers(1, seed=2), strict=True)]
    assert_holds(mine, "abc", expected)
    assert_holds(open_store(), "abc", expected)


def test_two_processes_do_not_write_at_once(filled, capsys):
    store, three = filled
    handle = os.open(store.folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    entered = threading.Event()

    with pytest.raises(UserError, match=r"store: another process is filling this store\.$"), store.writing():
        pass

    def write():
        with store.writing(wait=True):
            entered.set()

    waiting = threading.Thread(target=write)
    waiting.start()
    try:
        assert not entered.wait(0.5)
        assert_holds(store, "abc", three)  # who only reads does not wait
    finally:
        os.close(handle)
    assert entered.wait(30)
    waiting.join()
    assert capsys.readouterr().err.endswith("store: another process is filling this store; waiting for it.\n")


# --- damage -----------------------------------------------------------------------------------------------------------


LINES = [
    "",
    "{",
    "3",
    "null",
    '{"id": "b", "row": 1}',
    '{"id": "b", "colour": "", "row": -1}',
    '{"colour": "", "row": 1}',
]
LINES += ['{"id": "b", "colour": "", "row": "1"}', "[" * 100_000, "\udcff"]


def test_what_is_damaged_is_named(filled, open_store):
    """Arrays that are too short or gone, lines of the journal by their number, and the manifest."""
    folder = filled[0].folder
    whole = {file: file.read_bytes() for file in folder.iterdir()}
    journal, manifest = folder / "rows.jsonl", folder / "manifest.json"
    first, _, *others = whole[journal].splitlines(keepends=True)
    damaged = [(folder / name, whole[folder / name][:n]) for name in ("map.f16", "vector.f16") for n in (0, 5)]
    damaged += [(folder / name, None) for name in ("map.f16", "vector.f16")]
    damaged += [(journal, b"".join([first, f"{line}\n".encode(errors="surrogateescape"), *others])) for line in LINES]
    damaged += [(manifest, content) for content in (b"", b"{", b"[]", b"\xff", b"[" * 100_000)]
    for file, content in damaged:
        file.unlink() if content is None else file.write_bytes(content)
        what = {journal: r"rows\.jsonl: line 2 is damaged", manifest: r"manifest\.json is damaged"}
        with pytest.raises(UserError, match=what.get(file, rf"{file.name} is shorter than") + ".*; delete the folder"):
            open_store()
        file.write_bytes(whole[file])
    assert open_store().rows == 3


def test_rows_of_another_maker_are_refused(filled, open_store):
    other = {"format": 1, "encoder": {"name": "ear", "weights_sha256": "0123456789"}}
    with pytest.raises(UserError, match=r"store holds features of another source: name is eye there and ear here\."):
        open_store(manifest=other)
    for manifest in ({"format": 2}, {"format": 1, "encoder": "eye"}):
        with pytest.raises(UserError, match="holds features of another source"):
            open_store(manifest=manifest)
    assert json.loads((filled[0].folder / "manifest.json").read_text())["encoder"]["name"] == "eye"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the file cannot be written"):
        Store(tmp_path / "file" / "store", MANIFEST, ARRAYS)


# --- types of numbers -------------------------------------------------------------------------------------------------


def test_numbers_of_other_types_come_back_exactly_as_what_they_were(tmp_path):
    arrays = {"half": (2,), "single": Array((2,), "f32"), "whole": Array((1,), "i32")}
    values = [torch.tensor([[0.5, 0.25]]), torch.tensor([[0.1, 1e-30]]), torch.tensor([[2**31 - 1]])]
    store = Store(tmp_path / "store", MANIFEST, arrays)
    with store.writing():
        store.append(values, [{"id": "a"}])
    for found in (store, Store(tmp_path / "store", MANIFEST, arrays)):
        for name, expected in zip(arrays, values, strict=True):
            assert found.read(name, [0]).tolist() == expected.tolist()
        assert [found.read(name, [0]).dtype for name in arrays] == [torch.float32, torch.float32, torch.int32]
    for name, size in {"half.f16": 4, "single.f32": 8, "whole.i32": 4}.items():
        assert (store.folder / name).stat().st_size == size
