"""Region features from elsewhere: what an archive says is what a captioner sees, and what is wrong with it is named."""

from __future__ import annotations

import json
import pickle
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from capscore.errors import UserError
from support import region_archives as archives
from tellapart import journals
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.store import Stores
from tellapart.data.streams import read_attributes
from tellapart.data.tokenizers import WordTokenizer
from tellapart.features.importing import bring_in, digest
from tellapart.features.sources import Imported, RegionStore, find_imported, open_imported

COUNTS = {"11": 3, "12": 1, "13": 5, "14": 2}  # regions of each photo
PHOTOS = {id: archives.photo(int(id), count) for id, count in COUNTS.items()}
EXAMPLES = [Example(int(id), Path(f"/photos/COCO_{id}.jpg"), "train", ("a dog", "the cat")) for id in COUNTS]
SCALE = np.array([archives.WIDTH, archives.HEIGHT] * 2)


def assert_holds(store: RegionStore, examples=EXAMPLES, photos=PHOTOS, boxes=True) -> None:
    for example in examples:
        expected, row = photos[str(example.id)], [store.row(example)]
        count = len(expected["features"])
        assert store.count(example) == count
        found = store.grid(row)[0]
        assert found.shape == (store.cap, 8)
        np.testing.assert_array_equal(found[:count], expected["features"])
        assert not found[count:].any()
        np.testing.assert_allclose(store.pooled(row)[0], expected["features"].mean(0), rtol=1e-3)
        wanted = expected["boxes"] / SCALE if boxes else np.zeros((count, 4))
        np.testing.assert_allclose(store.read("boxes", row)[0, :count], wanted, atol=1e-3)


# What is kept


@pytest.mark.parametrize("layout", [*archives.WITH_BOXES, *archives.WITHOUT_BOXES])
def test_every_layout_gives_the_same_features_and_boxes(tmp_path, layout):
    boxes = layout in archives.WITH_BOXES
    sources = (archives.WITH_BOXES | archives.WITHOUT_BOXES)[layout](tmp_path / "archive", PHOTOS)
    result = bring_in(EXAMPLES, sources, tmp_path / "store", "bottom_up", cap=6)
    assert (result.added, result.existing, result.missing, result.failed, result.notes) == (4, 0, [], [], [])
    assert_holds(result.store, boxes=boxes)
    assert_holds(open_imported(tmp_path / "store"), boxes=boxes)


def test_photos_are_found_by_the_names_of_their_files_and_one_that_two_share_means_neither(tmp_path):
    sources = archives.as_tsv(tmp_path / "a", {f"COCO_{id}": arrays for id, arrays in PHOTOS.items()})
    assert_holds(bring_in(EXAMPLES, sources, tmp_path / "store", "bottom_up", cap=6).store)
    examples = [Example(name, Path(f"/{name}")) for name in ("a/11.jpg", "b/11.jpg", "12")]
    sources = archives.as_tsv(tmp_path / "b", PHOTOS)
    assert bring_in(examples, sources, tmp_path / "other", "bottom_up").missing == ["a/11.jpg", "b/11.jpg"]


def test_a_grid_and_a_single_vector_are_regions_as_well(tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "11.npy", np.arange(48, dtype=np.float32).reshape(2, 3, 8))
    np.save(tmp_path / "in" / "12.npy", np.arange(8, dtype=np.float32))
    store = bring_in(EXAMPLES[:2], [tmp_path / "in"], tmp_path / "store", "grids").store
    assert [store.count(example) for example in EXAMPLES[:2]] == [6, 1]
    np.testing.assert_array_equal(store.grid([0], 6)[0], np.arange(48).reshape(6, 8))


def test_an_archive_of_bf16_is_read(tmp_path):
    from safetensors.torch import save_file

    features = torch.from_numpy(PHOTOS["11"]["features"]).bfloat16()
    save_file({"11": features}, tmp_path / "a.safetensors")
    store = bring_in(EXAMPLES[:1], [tmp_path / "a.safetensors"], tmp_path / "store", "half").store
    torch.testing.assert_close(store.grid([0], 3)[0], features.float())


def test_ids_of_rare_words_are_the_ids_that_were_imported(tmp_path):
    """From 2,049 on half precision does not have every whole number."""
    (tmp_path / "in").mkdir()
    attributes = np.array([[2047, 0.5], [2049, 0.25], [3001, 0.125], [70001, 0.0625]], np.float32)
    np.save(tmp_path / "in" / "11.npy", attributes)
    bring_in(EXAMPLES[:1], [tmp_path / "in"], tmp_path / "f" / "coco.attributes", "attributes", cap=6)
    store = Imported("attributes", 2).extract(EXAMPLES[:1], tmp_path / "f", "coco").store
    data = CaptionedPhotos([(Stores(attributes=store), EXAMPLES[:1])], WordTokenizer(["a", "dog"]), 20)
    ids, probability, _ = read_attributes(data.inputs(np.array([0]))["attributes"], 100_000)
    assert ids.tolist() == [[2047, 2049, 3001, 70001]]
    assert probability.tolist() == [[0.5, 0.25, 0.125, 0.0625]]


def test_the_manifest_says_what_was_imported(tmp_path):
    bring_in(EXAMPLES, archives.as_tsv(tmp_path / "a", PHOTOS), tmp_path / "store", "bottom_up", cap=6)
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert manifest.pop("digest")
    encoder = {"name": "bottom_up", "from": "elsewhere", "feature_size": 8}
    assert manifest == {"format": 2, "encoder": encoder, "cap": 6}
    lines = [json.loads(line) for line in (tmp_path / "store" / "rows.jsonl").read_text().splitlines()]
    expected = [(int(id), n, 0, row) for row, (id, n) in enumerate(COUNTS.items())]
    assert [tuple(line[key] for key in ("id", "regions", "relations", "row")) for line in lines] == expected


# More than once


def test_what_is_there_is_not_read_again_and_new_photos_are_added(tmp_path):
    sources = archives.as_tsv(tmp_path / "a", PHOTOS)
    for wanted, added, there in ((EXAMPLES[:2], 2, 0), (EXAMPLES, 2, 2), (EXAMPLES, 0, 4)):
        result = bring_in(wanted, sources, tmp_path / "store", "bottom_up", cap=6)
        assert (result.added, result.existing) == (added, there)
    assert_holds(result.store)
    (tmp_path / "twice.tsv").write_text("".join(archives.line(11, **PHOTOS[id]) for id in ("11", "12")))
    result = bring_in(EXAMPLES[:1], [tmp_path / "twice.tsv"], tmp_path / "other", "bottom_up", cap=6)
    assert result.added == 1  # of a photo that an archive has twice the first
    assert_holds(result.store, EXAMPLES[:1])


@pytest.mark.parametrize(("field", "cap"), [("digest", 6), ("cap", 7)])
def test_two_imports_cannot_be_mixed_under_one_name(tmp_path, field, cap):
    sources = archives.as_folder_of_npy(tmp_path / "a", PHOTOS)
    bring_in(EXAMPLES[:2], sources, tmp_path / "store", "bottom_up", cap=6)
    if field == "digest":  # of the same names and sizes
        np.save(tmp_path / "a" / "13.npy", PHOTOS["13"]["features"] + 1)
    with pytest.raises(UserError, match=f"holds features of another source: {field} is "):
        bring_in(EXAMPLES, sources, tmp_path / "store", "bottom_up", cap=cap)
    assert_holds(open_imported(tmp_path / "store"), EXAMPLES[:2], boxes=False)


def test_an_import_that_was_killed_goes_on(tmp_path, start_tellapart, tellapart):
    """Six hundred photos: enough that there is something left to do when the first ones have been written."""
    many = {str(i): archives.photo(i, 1 + i % 7) for i in range(600)}
    sources = archives.as_tsv(tmp_path / "a", many)
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"dataset": "many", "images": [{"id": int(id), "file": f"{id}.jpg"} for id in many]}))
    arguments = ("features", data, "--from", *sources, "--name", "bu", "--cap", 7, "--out", tmp_path / "features")
    store = tmp_path / "features" / "many.bu"
    process = start_tellapart(*arguments)
    deadline = time.monotonic() + 60
    while not (store / "rows.jsonl").exists() or (store / "rows.jsonl").stat().st_size == 0:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    there = len(journals.read_lines(store / "rows.jsonl"))
    assert 0 < there < 600
    code, out, _ = tellapart(*arguments)
    assert (code, out) == (0, f"{store}: {600 - there} photos added, {there} were there\n")
    assert_holds(open_imported(store), [Example(int(id), Path()) for id in many], many)


# What is wrong with an archive


def imported(tmp_path, *lines, examples=EXAMPLES, cap=6):
    (tmp_path / "a.tsv").write_text("".join(lines))
    return bring_in(examples, [tmp_path / "a.tsv"], tmp_path / "store", "bottom_up", cap=cap)


GOOD = archives.line(12, **PHOTOS["12"])


def test_of_more_regions_than_the_cap_the_first_are_kept(tmp_path):
    result = imported(tmp_path, *(archives.line(id, **arrays) for id, arrays in PHOTOS.items()), cap=2)
    assert result.notes == ["2 photos have more than 2 regions; the first 2 are kept"]
    assert_holds(result.store, photos={id: {k: v[:2] for k, v in arrays.items()} for id, arrays in PHOTOS.items()})


def test_boxes_end_at_the_edges_of_the_photo(tmp_path):
    boxes = np.array([[-10, 5, 30, 25], [0, 0, 40, 20]], np.float32)
    result = imported(tmp_path, GOOD, archives.line(11, PHOTOS["14"]["features"], boxes), examples=EXAMPLES[:2])
    assert result.notes == ["1 photos have boxes that reach outside the photo; they end at its edges now"]
    found = result.store.read("boxes", [result.store.row(EXAMPLES[0])])[0, :2]
    np.testing.assert_allclose(found, [[0, 0.25, 0.75, 1], [0, 0, 1, 1]])


def test_boxes_in_pixels_of_a_photo_of_unknown_size_are_left_out(tmp_path):
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "11.npz", **PHOTOS["11"])
    result = bring_in(EXAMPLES[:1], [tmp_path / "in"], tmp_path / "store", "bottom_up", cap=6)
    assert len(result.notes) == 1
    assert "nothing that says how large the photo is" in result.notes[0]
    assert_holds(result.store, EXAMPLES[:1], boxes=False)


def features(value, shape=(3, 8)):
    array = np.ones(shape, np.float32)
    array.flat[-1] = value
    return array


BOXES = PHOTOS["11"]["boxes"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (archives.line(11, **archives.photo(0, 0)), "image 11: has no regions$"),
        (archives.line(11, features(np.nan), BOXES), "image 11: has features that are no numbers"),
        (archives.line(11, features(np.inf), BOXES), "image 11: has features that are no numbers"),
        (archives.line(11, features(1e5), BOXES), "too large for half precision"),
        (archives.line(11, features(1, (3, 6)), BOXES), "image 11: has features of 6 numbers, the others of 8"),
        (archives.line(11, features(1), features(np.nan, (3, 4))), "image 11: has boxes that are no numbers"),
        (archives.line(11, features(1), BOXES[:, :2].copy()), r"its boxes have the shape \(3, 2\)"),
        (archives.line(11, features(1), BOXES).replace("\t3\t", "\t5\t"), "bytes cannot be those of 5 regions"),
        (archives.line(11, features(1), BOXES).replace("\t3\t", "\t-3\t"), "-3"),
        (archives.line(11, features(1), BOXES).replace("\t3\t", "\tmany\t"), "many"),
        (archives.line(11, features(1), BOXES)[:-30], "image 11: "),  # cut short
        (archives.line(11, features(1), BOXES)[:-31] + "\n", "image 11: "),
        (archives.line(11, features(1), BOXES).replace("A", "é"), "image 11: "),
        ("11\t40\t20\n", "image 11: has 3 columns, not 6 or 10"),
        ("not a line at all\n", "has 1 columns, not 6 or 10"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_the_others_go_on(tmp_path, line, said):
    result = imported(tmp_path, GOOD, line, examples=EXAMPLES[:2])
    assert (result.added, result.missing, len(result.failed)) == (1, ["11"], 1)
    assert re.match(rf"{tmp_path / 'a.tsv'}: line 2: .*{said}", result.failed[0])
    assert_holds(result.store, EXAMPLES[1:2])


class Trap:
    """What runs a program when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def write(file: Path, kind: str) -> Path:
    if kind == "pickled":
        np.save(file, np.array([Trap(file.with_suffix(".sprung"))], dtype=object), allow_pickle=True)
    elif kind == "a pickle":
        file.write_bytes(pickle.dumps([1]))
    elif kind == "text":
        np.save(file, np.array(["a", "b"]))
    elif kind == "four dimensions":
        np.save(file, np.ones((1, 2, 3, 8)))
    elif kind == "cut short":
        np.save(file, np.ones((3, 8), np.float32))
        file.write_bytes(file.read_bytes()[:-40])
    elif kind == "empty":
        file.write_bytes(b"")
    return file


@pytest.mark.parametrize("kind", ["pickled", "a pickle", "text", "four dimensions", "cut short", "empty"])
def test_a_bad_file_of_a_folder_is_named_and_the_others_go_on(tmp_path, kind):
    sources = archives.as_folder_of_npy(tmp_path / "in", PHOTOS)
    bad = write(tmp_path / "in" / "11.npy", kind)
    result = bring_in(EXAMPLES, sources, tmp_path / "store", "bottom_up", cap=6)
    assert (result.added, result.missing, len(result.failed)) == (3, ["11"], 1)
    assert result.failed[0].startswith(f"{bad}: image 11: ")
    assert ("carry programs" in result.failed[0]) == ("pickle" in kind)
    assert not bad.with_suffix(".sprung").exists()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_damaged_archive_is_named(tmp_path, suffix):
    good = archives.as_tsv(tmp_path / "good", {"12": PHOTOS["12"]})
    (bad,) = (archives.as_npz if suffix == ".npz" else archives.as_safetensors)(tmp_path / "bad", PHOTOS)
    bad.write_bytes(bad.read_bytes()[:300])
    result = bring_in(EXAMPLES[:2], [bad, *good], tmp_path / "store", "bottom_up", cap=6)
    assert (result.added, result.missing) == (1, ["11"])
    assert result.failed[0].startswith(f"{bad}: ")


def test_an_archive_with_nothing_to_use_is_refused_with_the_first_reason(tmp_path):
    with pytest.raises(UserError, match=r"there are no features that can be used \(.*line 1: has no regions\)"):
        imported(tmp_path, archives.line(11, **archives.photo(0, 0)))
    assert not (tmp_path / "store").exists()


def test_memory_does_not_grow_with_the_archive(tmp_path):
    """Sixty megabytes of text, of which one photo at a time is held: a few, with what decoding takes."""
    import tracemalloc

    with (tmp_path / "a.tsv").open("w") as file:
        for id in range(60):
            file.write(archives.line(id, **archives.photo(id, 100, size=2048)))
    examples = [Example(id, Path()) for id in range(0, 60, 30)]
    tracemalloc.start()
    bring_in(examples, [tmp_path / "a.tsv"], tmp_path / "store", "bottom_up")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


# What training gets


@pytest.fixture
def store(tmp_path) -> RegionStore:
    return bring_in(EXAMPLES, archives.as_tsv(tmp_path / "a", PHOTOS), tmp_path / "f" / "coco.bu", "bu", cap=6).store


def test_a_batch_is_as_wide_as_its_photo_of_most_regions(store):
    data = CaptionedPhotos([(Stores(regions=store), EXAMPLES)], WordTokenizer(["a", "the", "cat", "dog"]), 20)
    features, mask = data.inputs(np.array([3, 0, 1]))["regions"]
    assert features.shape == (3, 3, 8)
    assert mask.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    for found, id in zip(features, ("14", "11", "12"), strict=True):
        np.testing.assert_array_equal(found[: COUNTS[id]], PHOTOS[id]["features"])
        assert not found[COUNTS[id] :].any()


def test_imported_features_are_found_by_name(store, tmp_path):
    root = tmp_path / "f"
    assert find_imported(root, "bu") == store.source == Imported("bu", 8)
    for name in ("b", "*", "", "coco.bu/..", "efficientnet_lite2"):
        assert find_imported(root, name) is None
    found = store.source.extract([*EXAMPLES, Example(99, Path())], root, "coco")
    assert found.failed == {"99": f"has no features in {root / 'coco.bu'}"}
    with pytest.raises(UserError, match=r"no features 'bu' of the data set 'flickr'; `tellapart features DATA"):
        store.source.extract(EXAMPLES, root, "flickr")
    (store.folder / "manifest.json").write_text('{"encoder": {"from": "elsewhere"}}')
    with pytest.raises(UserError, match=r"manifest.json"):
        open_imported(store.folder)


def test_archives_are_told_apart_by_what_is_in_their_middle(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.npy").write_bytes(b"0" * 500_000 + name.encode() + b"0" * 500_000)
    first, second = (digest([tmp_path / name / "x.npy"]) for name in "ab")
    assert first != second
