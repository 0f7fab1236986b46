"""Captions made elsewhere: what is read, which photo it belongs to, and what is refused."""

import hashlib
import json
import math
import re

import pytest

from capscore.errors import UserError
from tellapart.desk.candidates_file import CandidatesFile


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        file = tmp_path / "candidates.jsonl"
        file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return file

    return write


@pytest.fixture
def photo(tmp_path):
    file = tmp_path / "a photo.jpg"
    file.write_bytes(b"these bytes")
    return file


def proposed(file, *wanted):
    return list(CandidatesFile(file).propose(wanted))


def test_captions_come_with_their_log_p_and_words(write, photo):
    file = write({"file": str(photo), "captions": ["A dog.", "a cat's bed"], "logprobs": [-1.5, 0]})
    (proposal,) = proposed(file, str(photo))
    assert (proposal.file, proposal.error) == (str(photo), "")
    assert proposal.sha256 == hashlib.sha256(b"these bytes").hexdigest()
    assert [(c.text, c.logp, c.tokens) for c in proposal.candidates] == [("A dog.", -1.5, 3), ("a cat's bed", 0.0, 5)]


def test_the_rows_of_an_n_best_list_are_read_and_a_photo_that_failed_has_none(write, photo, tmp_path):
    listed = [{"caption": "a dog", "logprob": -1.5}, {"caption": "a cat", "logprob": None}]
    good = {"file": str(photo), "caption": "a dog", "logprob": -1.5, "captions": listed, "key": "k"}
    bad = {"file": str(tmp_path / "bad.jpg"), "error": "the file is empty"}
    found, failed = proposed(write(good, bad), str(photo), bad["file"])
    assert [(c.text, c.tokens) for c in found.candidates] == [("a dog", 3), ("a cat", 3)]
    assert found.candidates[0].logp == -1.5
    assert math.isnan(found.candidates[1].logp)
    assert "there is no caption of it" in failed.error


@pytest.mark.parametrize("more", [{}, {"logprobs": None}, {"logprobs": [None, None]}])
def test_log_p_may_be_unknown(write, photo, more):
    (found,) = proposed(write({"file": str(photo), "captions": ["a dog", "a cat"], **more}), str(photo))
    assert [c.text for c in found.candidates] == ["a dog", "a cat"]
    assert all(math.isnan(c.logp) for c in found.candidates)


def test_blank_captions_and_repetitions_are_left_out(write, photo):
    captions = ["a  dog\n", "", "a dog", " ", "a cat\x07"]
    (found,) = proposed(write({"file": str(photo), "captions": captions, "logprobs": [-1, -2, -3, -4, -5]}), str(photo))
    assert [(c.text, c.logp) for c in found.candidates] == [("a dog", -1), ("a cat", -5)]


def test_a_photo_is_found_by_any_of_its_names(write, photo, tmp_path, monkeypatch):
    """As it is written in the file, relative to the file, or relative to where the command is given."""
    file = write({"file": "a photo.jpg", "captions": ["a dog"]})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in (str(photo), "../a photo.jpg", f"{tmp_path}/elsewhere/../a photo.jpg"):
        (found,) = proposed(file, name)
        assert (found.file, [c.text for c in found.candidates]) == (name, ["a dog"])
    monkeypatch.chdir(tmp_path)
    (found,) = proposed(file, "a photo.jpg")
    assert [c.text for c in found.candidates] == ["a dog"]


def test_a_name_from_here_comes_before_one_from_beside_the_file(write, photo, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "a photo.jpg").write_bytes(b"another photo")
    file = write({"file": "a photo.jpg", "captions": ["here"]}, {"file": str(photo), "captions": ["beside"]})
    monkeypatch.chdir(here)
    assert [found.candidates[0].text for found in proposed(file, "a photo.jpg", str(photo))] == ["here", "beside"]


def test_photos_that_cannot_be_captioned_are_named_and_the_others_go_on(write, photo, tmp_path):
    gone, silent = str(tmp_path / "gone.jpg"), str(tmp_path / "silent.jpg")
    captions = {gone: ["a dog"], silent: [" "], str(photo): ["a cat"]}
    file = write(*({"file": name, "captions": texts} for name, texts in captions.items()))
    errors = [proposal.error for proposal in proposed(file, gone, silent, "unknown.jpg", str(photo))]
    assert errors == ["there is no such file", *[f"there is no caption of it in {file}"] * 2, ""]


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800.jpg"])
def test_a_name_that_no_file_can_have_is_an_error_of_that_photo_alone(write, photo, name):
    file = write({"file": name, "captions": ["a dog"]}, {"file": str(photo), "captions": ["a cat"]})
    first, second = proposed(file, name, str(photo))
    assert first.error
    assert second.candidates[0].text == "a cat"
    assert CandidatesFile(file).unused([str(photo)]) == [f"{file}: has captions of 1 other photo: {name}"]


def test_photos_that_nobody_asked_for_are_known(write, photo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write({"file": "a photo.jpg", "captions": ["a dog"]}, {"file": "other.jpg", "captions": ["a cat"]})
    candidates = CandidatesFile(file)
    assert candidates.unused([str(photo)]) == [f"{file}: has captions of 1 other photo: other.jpg"]
    assert candidates.unused(["a photo.jpg", "other.jpg"]) == []
    assert candidates.unused([]) == [f"{file}: has captions of 2 other photos: a photo.jpg, other.jpg"]


def test_a_file_is_known_by_its_text(write):
    first = CandidatesFile(write({"file": "a.jpg", "captions": ["a dog"]})).identity
    assert CandidatesFile(write({"file": "a.jpg", "captions": ["a dog"]})).identity == first
    assert CandidatesFile(write({"file": "a.jpg", "captions": ["a cat"]})).identity != first


LOGPROBS = [[-1, -2], -1, [0.1], [True], ["-1"], [-math.inf], [-(10**400)]]
CAPTIONS = [None, "a dog", ["a dog", 3], [{"logprob": -1}], [{"caption": 3}], ["a dog", {"caption": "a cat"}], [{}]]
WRONG = {
    "this is not JSON": ["{", "nonsense"],
    "must be an object, not a number": ["3"],
    '"file" must be the name of a photo': [{"captions": []}, *({"file": name, "captions": []} for name in (3, ""))],
    '"captions" must be a list of strings, or of objects with a "caption"': [
        {"file": "b.jpg", "captions": captions} for captions in CAPTIONS
    ],
    '"logprobs" must be a list of numbers up to 0, one for each caption': [
        *({"file": "b.jpg", "captions": ["a dog"], "logprobs": numbers} for numbers in LOGPROBS),
        *({"file": "b.jpg", "captions": [{"caption": "a dog", "logprob": number}]} for number in (0.5, "high", True)),
    ],
    "there are captions of 'a.jpg' in an earlier line": [{"file": "a.jpg", "captions": ["a dog"]}],
    "nested too deeply": ["[" * 100_000],
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_line_is_named_by_its_number_and_the_others_are_used(write, message):
    more = {"file": "c.jpg", "captions": ["a cow"]}
    for row in WRONG[message]:
        file = CandidatesFile(write({"file": "a.jpg", "captions": ["a cat"]}, row, more))
        (problem,) = file.problems
        assert "candidates.jsonl: line 2: " in problem
        assert message in problem
        assert "\n" not in problem
        assert file.unused([]) == [f"{file.path}: has captions of 2 other photos: a.jpg, c.jpg"]
        if "earlier" not in message:
            with pytest.raises(UserError, match=re.escape(message)) as error:
                CandidatesFile(write(row))
            assert "line 1: " in str(error.value)


def test_a_file_without_captions_or_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"c\.jsonl: there is no such file"):
        CandidatesFile(tmp_path / "c.jsonl")
    for content in ("", "\n \n"):
        (tmp_path / "c.jsonl").write_text(content)
        with pytest.raises(UserError, match=r"c\.jsonl: there are no captions in it\.$"):
            CandidatesFile(tmp_path / "c.jsonl")
