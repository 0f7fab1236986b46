"""The command line of `score`: what is printed, what is written, and what is refused."""

import json
from pathlib import Path

import pytest

from capscore import command, scoring

SAID = {"1": "A dog runs on the grass.", "2": "Two cats sleep on a red sofa", "3": "a bus"}
WORSE = {"1": "a cat", "2": "Two cats sleep on a red sofa", "3": "a bus"}
TOLD = {"1": ["A brown dog runs over grass"], "2": ["Two cats on a couch"], "3": ["a red bus"]}


@pytest.fixture
def files(tmp_path):
    for name, content in (("said", SAID), ("worse", WORSE), ("told", TOLD)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_json_on_stdout(files, tellapart):
    code, out, _ = tellapart("score", files / "said.json", files / "told.json", "--metrics", "BLEU,CIDEr-D")
    assert code == 0
    found = json.loads(out)
    assert list(found["corpus"]) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D"]
    assert found["photos"] == 3
    assert "per_image" not in found
    assert found["signature"]["CIDEr-D"].startswith("CIDEr-D|df:self|tok:ptb|refs:1|v:")
    low, high = found["interval"]["CIDEr-D"]
    assert low <= found["corpus"]["CIDEr-D"] <= high


def test_scores_of_each_photo_in_a_file_and_a_table_for_people(files, tellapart):
    out_file = files / "scores.json"
    request = ("score", files / "said.json", files / "told.json", "--per-image", "--metrics", "ROUGE-L,AvgLen")
    code, out, _ = tellapart(*request, "--out", out_file)
    assert code == 0
    found = json.loads(out_file.read_text())
    assert set(found["per_image"]) == {"1", "2", "3"}
    assert found["per_image"]["3"]["AvgLen"] == 2
    assert f"ROUGE-L          {100 * found['corpus']['ROUGE-L']:7.1f}" in out
    assert f"AvgLen           {found['corpus']['AvgLen']:7.1f}" in out


def test_two_files_of_captions_are_compared_photo_by_photo(files, tellapart):
    request = ("score", files / "said.json", files / "told.json", "--metrics", "ROUGE-L")
    code, out, _ = tellapart(*request, "--against", files / "worse.json")
    assert code == 0
    found = json.loads(out)["against"]["ROUGE-L"]
    assert found["difference"] > 0
    assert found["interval"][0] == 0  # two of three photos are alike, and a sample may have no other
    assert 0 < found["p"] <= 1
    _, table, _ = tellapart(*request, "--against", files / "worse.json", "--out", files / "s.json")
    assert f"difference {100 * found['difference']:+.1f}" in table


def test_a_missing_photo_is_an_error_unless_it_may_be_missing(files, tellapart):
    (files / "some.json").write_text(json.dumps({"1": SAID["1"], "2": SAID["2"]}))
    request = ("score", files / "some.json", files / "told.json", "--metrics", "BLEU")
    code, out, err = tellapart(*request)
    assert (code, out) == (2, "")
    assert "1 photo has no caption in" in err
    assert "'3'" in err
    assert len(err.splitlines()) == 1
    code, out, err = tellapart(*request, "--allow-missing")
    assert code == 0
    assert "'3'" in err
    assert json.loads(out)["photos"] == 2


def test_what_could_not_run_is_said(files, tellapart):
    code, out, err = tellapart("score", files / "said.json", files / "told.json", "--metrics", "all")
    assert code == 0
    assert "mBLEU is left out: it compares several captions of one photo" in err
    assert "several captions" in json.loads(out)["skipped"]["mBLEU"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "BLUE"], "there is no metric 'BLUE'"),
        (["--df", "nowhere.npz"], "nowhere.npz: there is no such file"),
        (["--against", "nowhere.json"], "nowhere.json: there is no such file"),
        (["--split", "test"], "only a data file has splits"),
    ],
)
def test_wrong_requests_are_one_sentence(files, tellapart, arguments, message):
    code, out, err = tellapart("score", files / "said.json", files / "told.json", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_result_that_cannot_be_written_leaves_what_was_there(files, tellapart):
    code, _, err = tellapart("score", files / "said.json", files / "told.json", "--metrics", "BLEU", "--out", files)
    assert code == 2
    assert "this is a folder" in err


def test_cider_of_one_photo_is_explained(files, tellapart):
    for name, content in (("one", {"1": SAID["1"]}), ("one_told", {"1": TOLD["1"]})):
        (files / f"{name}.json").write_text(json.dumps(content))
    _, out, err = tellapart("score", files / "one.json", files / "one_told.json", "--metrics", "CIDEr-D")
    assert json.loads(out)["corpus"] == {"CIDEr-D": 0.0}
    assert "--df coco" in err


def test_the_file_that_is_read_is_not_written_over(files, tellapart):
    before = (files / "said.json").read_bytes()
    (files / "link.json").symlink_to(files / "said.json")
    for out in ("said.json", "told.json", "link.json"):
        code, _, err = tellapart("score", files / "said.json", files / "told.json", "--out", files / out)
        assert code == 2
        assert "choose another name" in err
    assert (files / "said.json").read_bytes() == before


def test_files_in_the_wrong_order_are_noticed(files, tellapart):
    for name, content in (("many", {i: [text, text] for i, text in SAID.items()}), ("one", SAID)):
        (files / f"{name}.json").write_text(json.dumps(content))
    code, _, err = tellapart("score", files / "many.json", files / "one.json", "--metrics", "BLEU")
    assert code == 0
    assert "swapped?" in err


def test_photos_that_the_other_model_lacks_are_named(files, tellapart):
    (files / "some.json").write_text(json.dumps({"1": SAID["1"]}))
    request = ("score", files / "said.json", files / "told.json", "--metrics", "BLEU-1", "--allow-missing")
    code, out, err = tellapart(*request, "--against", files / "some.json")
    assert code == 0
    assert "2 photos have no caption in" in err
    assert json.loads(out)["against"]["BLEU-1"]["p"] == 1  # one photo is left


def test_several_captions_against_single_ones(files, tellapart):
    (files / "many.json").write_text(json.dumps({i: [text, "a dog"] for i, text in SAID.items()}))
    request = ("score", files / "many.json", files / "told.json", "--metrics", "all", "--against", files / "said.json")
    code, out, _ = tellapart(*request)
    assert code == 0
    assert "mBLEU-4" in json.loads(out)["corpus"]
    assert "mBLEU-4" not in json.loads(out)["against"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_stdout_is_one_sentence(files, start_tellapart):
    with Path("/dev/full").open("wb") as full:
        run = start_tellapart("score", files / "said.json", files / "told.json", "--metrics", "BLEU", stdout=full)
        _, err = run.communicate(timeout=120)
    assert run.returncode == 2
    assert err.splitlines()[-1].endswith("the output cannot be written (No space left on device).")


def test_the_dictionaries_of_pycocoevalcap_are_read(files, tellapart):
    """gts and res before its tokeniser: {id: [{"caption"}]}, with the keys of COCO annotations or without."""
    res = {i: [{"image_id": int(i), "caption": text}] for i, text in SAID.items()}
    gts = {i: [{"image_id": int(i), "id": 7, "caption": text} for text in texts] for i, texts in TOLD.items()}
    bare = {i: [{"caption": text} for text in texts] for i, texts in TOLD.items()}
    for name, content in (("res", res), ("gts", gts), ("bare", bare)):
        (files / f"{name}.json").write_text(json.dumps(content))
    expected = tellapart("score", files / "said.json", files / "told.json", "--metrics", "BLEU,CIDEr-D")[1]
    for references in ("gts", "bare"):
        code, out, err = tellapart(
            "score", files / "res.json", files / f"{references}.json", "--metrics", "BLEU,CIDEr-D"
        )
        assert (code, out) == (0, expected), err


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        ({"1": [{"text": "a dog"}]}, "'1': \"caption\" is missing"),
        ({"1": [{"caption": 5}]}, "'1': a caption must be a string"),
        ({"1": [{"image_id": 2, "caption": "a dog"}]}, "'1': one of its captions has the image_id '2'"),
        ({"1": [{"image_id": [2], "caption": "a dog"}]}, "an id must be a whole number or a string"),
        ({"1": [["a dog"]]}, "'1': a caption must be a string"),
    ],
)
def test_dictionaries_that_are_not_as_pycocoevalcap_has_them_are_one_sentence(files, tellapart, captions, message):
    (files / "res.json").write_text(json.dumps(captions))
    for request in (("res.json", "told.json"), ("said.json", "res.json")):
        code, out, err = tellapart("score", *(files / name for name in request), "--metrics", "BLEU")
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("metrics", "noted"), [("cider", True), ("BLEU,CIDEr", True), ("CIDEr-D", False), ("all", False), (None, False)]
)
def test_who_asks_for_cider_learns_that_papers_mean_cider_d(files, tellapart, metrics, noted):
    asked = ["--metrics", metrics] if metrics else []
    code, out, err = tellapart("score", files / "said.json", files / "told.json", *asked)
    assert code == 0
    notes = [line for line in err.splitlines() if "CIDEr-D" in line]
    assert len(notes) == noted
    if noted:
        assert "CIDEr" in json.loads(out)["corpus"]
        assert notes == [
            "CIDEr is the plain form, as asked; what papers and leaderboards print as CIDEr is CIDEr-D here."
        ]


def test_the_help_explains_every_measure(capsys):
    with pytest.raises(SystemExit):
        command.parser().parse_args(["--help"])
    explained = capsys.readouterr().out.partition("Measures:\n")[2].partition("\n\n")[0]
    for measure in scoring.MEASURES.values():
        for name in measure.names:
            assert f"  {name} " in explained, name
    assert "lower is better" in explained.partition("  Rep ")[2].partition("  BadEnd ")[0]
