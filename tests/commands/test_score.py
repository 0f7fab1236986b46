"""The command line of `score`: what is printed, what is written, and what is refused."""

import json
from pathlib import Path

import pytest

CAPTIONS = {"1": "A dog runs on the grass.", "2": "Two cats sleep on a red sofa", "3": "a bus"}
REFERENCES = {"1": ["A brown dog runs over grass"], "2": ["Two cats on a couch"], "3": ["a red bus"]}
FILES = {
    "captions": CAPTIONS,
    "references": REFERENCES,
    "worse": CAPTIONS | {"1": "a cat"},
    "two": {id: CAPTIONS[id] for id in "12"},
    "one": {"1": CAPTIONS["1"]},
    "many": {id: [text, "a dog"] for id, text in CAPTIONS.items()},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def score(folder, tellapart):
    """Of captions.json and references.json, unless others are named: exit code, stdout, stderr."""

    def run(*arguments, captions="captions", references="references"):
        return tellapart("score", f"{captions}.json", f"{references}.json", *arguments)

    return run


def test_scores_are_printed_as_json_or_written_beside_a_table(score, folder):
    code, out, _ = score("--metrics", "BLEU,CIDEr-D")
    assert code == 0
    scores = json.loads(out)
    assert list(scores["corpus"]) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D"]
    assert scores["photos"] == 3
    assert "per_image" not in scores
    assert scores["signature"]["CIDEr-D"].startswith("CIDEr-D|df:self|tok:ptb|refs:1|v:")
    low, high = scores["interval"]["CIDEr-D"]
    assert low <= scores["corpus"]["CIDEr-D"] <= high
    code, out, _ = score("--per-image", "--metrics", "ROUGE-L,AvgLen", "--out", "scores.json")
    assert code == 0
    scores = json.loads((folder / "scores.json").read_text())
    assert set(scores["per_image"]) == {"1", "2", "3"}
    assert scores["per_image"]["3"]["AvgLen"] == 2
    assert f"ROUGE-L          {100 * scores['corpus']['ROUGE-L']:7.1f}" in out
    assert f"AvgLen           {scores['corpus']['AvgLen']:7.1f}" in out


def test_two_files_of_captions_are_compared_photo_by_photo(score):
    request = ("--metrics", "ROUGE-L", "--against", "worse.json")
    code, out, _ = score(*request)
    assert code == 0
    difference = json.loads(out)["against"]["ROUGE-L"]
    assert difference["difference"] > 0
    assert difference["interval"][0] == 0  # two of three photos are alike, and a sample may have no other
    assert 0 < difference["p"] <= 1
    assert f"difference {100 * difference['difference']:+.1f}" in score(*request, "--out", "s.json")[1]
    code, out, _ = score("--metrics", "all", "--against", "captions.json", captions="many")
    assert code == 0
    assert "mBLEU-4" in json.loads(out)["corpus"]  # which single captions do not have
    assert "mBLEU-4" not in json.loads(out)["against"]


def test_a_missing_photo_is_an_error_unless_it_may_be_missing(score):
    code, out, err = score("--metrics", "BLEU", captions="two")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "1 photo has no caption in" in err
    assert "'3'" in err
    code, out, err = score("--metrics", "BLEU", "--allow-missing", captions="two")
    assert (code, "'3'" in err, json.loads(out)["photos"]) == (0, True, 2)
    code, out, err = score("--metrics", "BLEU-1", "--allow-missing", "--against", "one.json")
    assert (code, "2 photos have no caption in" in err) == (0, True)
    assert json.loads(out)["against"]["BLEU-1"]["p"] == 1  # one photo is left


@pytest.mark.parametrize(
    ("metrics", "word", "is_said"),
    [
        ("BLEU,CIDEr", "CIDEr is the plain form, as asked; what papers", True),
        *((metrics, "CIDEr is the plain form", False) for metrics in ("CIDEr-D", "all", None)),
        ("all", "mBLEU is left out: it compares several captions of one photo", True),
    ],
)
def test_what_figures_do_not_say_is_said_to_those_who_asked(score, metrics, word, is_said):
    code, _, err = score(*(["--metrics", metrics] if metrics else []))
    assert (code, word in err) == (0, is_said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_stdout_is_one_sentence(folder, start_tellapart):
    with Path("/dev/full").open("wb") as full:
        run = start_tellapart("score", "captions.json", "references.json", "--metrics", "BLEU", stdout=full)
        _, err = run.communicate(timeout=120)
    assert run.returncode == 2
    assert err.splitlines()[-1].endswith("the output cannot be written (No space left on device).")


def test_the_dictionaries_of_pycocoevalcap_are_read(score, folder):
    """gts and res before its tokeniser: {id: [{"caption"}]}, with the keys of COCO annotations or without."""
    res = {i: [{"image_id": int(i), "caption": text}] for i, text in CAPTIONS.items()}
    gts = {i: [{"image_id": int(i), "id": 7, "caption": text} for text in texts] for i, texts in REFERENCES.items()}
    bare = {i: [{"caption": text} for text in texts] for i, texts in REFERENCES.items()}
    for name, content in (("res", res), ("gts", gts), ("bare", bare)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    expected = score("--metrics", "BLEU,CIDEr-D")[1]
    for references in ("gts", "bare"):
        code, out, err = score("--metrics", "BLEU,CIDEr-D", captions="res", references=references)
        assert (code, out) == (0, expected), err
