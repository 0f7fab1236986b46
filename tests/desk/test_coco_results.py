"""COCO-server results: a list of image ids and captions, and scores with 5 and with 40 references."""

import json
import math

import pytest


@pytest.fixture
def data(photo_folder, tmp_path):
    """Six photos with ids in no order, as a data file."""
    ids = [42, 7, 391895, 12, 9, 1001]
    images = [
        {"id": id, "file": str(photo_folder / f"{i}.png"), "split": "test" if i else "val", "captions": ["a dog"]}
        for i, id in enumerate(ids)
    ]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "six", "images": images}))
    return tmp_path / "data.json", ids[1:]


@pytest.fixture
def caption(tellapart, small_model):
    return lambda *arguments: tellapart("caption", "--model", small_model, *arguments)


def test_results_are_a_list_of_ids_and_captions_in_the_order_of_the_data(caption, data, tmp_path):
    file, ids = data
    out = tmp_path / "captions_test_ours_results.json"
    assert caption(file, "--split", "test", "--out", out)[0] == 0
    results = json.loads(out.read_text())
    lines = [line.split("\t")[1] for line in caption(file, "--split", "test")[1].splitlines()]
    assert results == [{"image_id": id, "caption": text} for id, text in zip(ids, lines, strict=True)]


def test_a_second_run_makes_no_caption_again_and_keeps_what_people_wrote(caption, data, tmp_path):
    file, ids = data
    out, rows = tmp_path / "r.json", tmp_path / "r.jsonl"
    caption(file, "--split", "test", "--out", out)
    edited = [json.loads(line) for line in rows.read_text().splitlines()]
    edited[2]["caption"] = "our dog Rex"
    rows.write_text("".join(json.dumps(row) + "\n" for row in edited))
    code, _, err = caption(file, "--split", "test", "--out", out)
    assert code == 0
    assert "5 kept; 1 edited by hand" in err
    assert {"image_id": ids[2], "caption": "our dog Rex"} in json.loads(out.read_text())


def test_a_photo_that_cannot_be_read_is_left_out_and_named(caption, data, tmp_path):
    file, ids = data
    content = json.loads(file.read_text())
    (tmp_path / "broken.png").write_bytes(b"no photo")
    content["images"][3]["file"] = str(tmp_path / "broken.png")
    file.write_text(json.dumps(content))
    code, _, err = caption(file, "--split", "test", "--out", tmp_path / "r.json")
    assert code == 1
    assert "broken.png" in err
    kept = [id for id in ids if id != content["images"][3]["id"]]
    assert [row["image_id"] for row in json.loads((tmp_path / "r.json").read_text())] == kept


def test_photos_without_ids_and_files_that_hold_something_else_are_refused(caption, data, photo_folder, tmp_path):
    file, _ = data
    code, out, err = caption(photo_folder, "--out", tmp_path / "r.json")
    assert (code, out) == (2, "")
    assert "COCO results need image ids" in err
    before = file.read_bytes()
    code, out, err = caption(file, "--out", file)
    assert (code, out) == (2, "")
    assert "is no file of COCO results" in err
    assert file.read_bytes() == before


def test_scores_with_five_and_forty_references_use_all_that_a_file_gives(tellapart, tmp_path):
    """As the server's c5 and c40: c40 has forty references, of some of the photos only."""
    dogs, cats = [f"a dog runs over field {i}" for i in range(40)], [f"cat {i} sleeps on a red sofa" for i in range(40)]
    results = [{"image_id": 1, "caption": "a dog runs over field 30"}, {"image_id": 2, "caption": "a red sofa"}]
    results += [{"image_id": 3, "caption": "two birds"}]
    photos = {1: dogs, 2: cats, 3: ["two birds on a wire"] * 5}
    (tmp_path / "results.json").write_text(json.dumps(results))

    def score(count, ids, *more):
        annotations = [{"image_id": id, "id": 0, "caption": text} for id in ids for text in photos[id][:count]]
        file = tmp_path / f"c{count}.json"
        file.write_text(json.dumps({"annotations": annotations}))
        code, out, _ = tellapart("score", tmp_path / "results.json", file, "--metrics", "BLEU-4,CIDEr-D", *more)
        return code, json.loads(out) if out else None

    code, five = score(5, [1, 2, 3])
    assert code == 0
    assert score(40, [1, 2])[0] == 2  # a photo without references, unless that is allowed
    code, forty = score(40, [1, 2], "--allow-missing")
    assert code == 0
    assert (five["photos"], forty["photos"]) == (3, 2)
    assert five["signature"]["BLEU-4"].count("refs:5|") == forty["signature"]["BLEU-4"].count("refs:40|") == 1
    # Among forty references "a dog runs over field 30" is one, and "a red sofa" ends each: every n-gram is found, and
    # only the brevity penalty remains, of 9 words against 6 + 7.  Among five there is no "field 30".
    assert forty["corpus"]["BLEU-4"] == pytest.approx(math.exp(1 - 13 / 9), abs=1e-6)
    assert five["corpus"]["BLEU-4"] < 0.9 * forty["corpus"]["BLEU-4"]
