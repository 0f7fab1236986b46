"""Hostile data files, one test each.  What is wrong as a whole is refused in one sentence; a broken record is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attacks import data_files
from attacks.data_files import GOOD, without
from capscore.errors import UserError
from tellapart.__main__ import main
from tellapart.data import examples


def refusal(path: Path) -> str:
    """The sentence without the file's name, which must come first."""
    with pytest.raises(UserError) as caught:
        examples.read(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


def complaint(folder: Path, *images: object) -> str:
    """What is said of these images, the only ones that are wrong; a good one among them must go through."""
    good = {"id": "good", "file": "good.jpg", "captions": ["a good photo"]}
    path = data_files.of_images(folder, *images, good)
    dataset = examples.read(path)
    assert dataset.examples[-1].captions == ("a good photo",)
    (problem,) = dataset.problems
    return problem.removeprefix(f"{path}: ")


# Wrong as a whole


@pytest.mark.parametrize("make", data_files.WRONG_AS_A_WHOLE, ids=lambda make: make.__name__)
def test_a_file_that_is_wrong_as_a_whole_is_refused_in_one_sentence_that_begins_with_its_name(make, tmp_path):
    assert refusal(make(tmp_path))


def test_a_missing_file(tmp_path):
    assert refusal(data_files.missing(tmp_path)) == "there is no such file."


def test_a_folder_instead_of_a_file(tmp_path):
    assert refusal(data_files.a_folder(tmp_path)) == "this is a folder, not a file."


def test_an_empty_file(tmp_path):
    assert refusal(data_files.empty(tmp_path)) == "the file is empty."


def test_a_file_that_is_not_json_is_refused_with_line_and_column(tmp_path):
    assert "not JSON (line 1, column 1" in refusal(data_files.not_json(tmp_path))


def test_a_file_that_was_cut_short_is_called_that(tmp_path):
    assert "cut short" in refusal(data_files.cut_short(tmp_path))


def test_a_file_that_was_cut_inside_a_caption_is_called_that(tmp_path):
    assert "cut short" in refusal(data_files.cut_inside_a_caption(tmp_path))


def test_a_file_that_is_not_utf_8_is_refused_with_the_byte(tmp_path):
    path = data_files.latin_1(tmp_path)
    position = path.read_bytes().index(b"\xe9") + 1
    assert f"0xe9 at byte {position}" in refusal(path)


def test_utf_16_is_not_utf_8(tmp_path):
    assert "0xff at byte 1" in refusal(data_files.utf_16(tmp_path))


def test_a_list_instead_of_an_object(tmp_path):
    assert refusal(data_files.a_list(tmp_path)) == "the file must hold a JSON object, not a list."


def test_neither_images_nor_videos(tmp_path):
    sentence = refusal(data_files.neither_images_nor_videos(tmp_path))
    assert '"images"' in sentence
    assert '"videos"' in sentence
    assert "neither" in sentence


def test_images_and_videos_in_one_file(tmp_path):
    assert "both" in refusal(data_files.images_and_videos(tmp_path))


def test_images_as_an_object(tmp_path):
    assert refusal(data_files.images_as_an_object(tmp_path)) == '"images" must be a list, not an object.'


def test_json_that_is_nested_too_deeply(tmp_path):
    assert "nested too deeply" in refusal(data_files.nested_too_deeply(tmp_path))


def test_a_number_with_thousands_of_digits(tmp_path):
    assert "too many digits" in refusal(data_files.a_number_of_5000_digits(tmp_path))


def test_a_gzip_file_that_was_cut_short(tmp_path):
    assert "gzip" in refusal(data_files.gzip_cut_short(tmp_path))


def test_a_gzip_file_with_a_flipped_byte(tmp_path):
    assert "gzip" in refusal(data_files.gzip_damaged(tmp_path))


def test_coco_annotations_are_pointed_to_prepare(tmp_path):
    path = data_files.coco_annotations(tmp_path)
    assert f"tellapart prepare coco {path}" in refusal(path)


def test_a_name_that_no_file_system_allows():
    with pytest.raises(UserError, match="cannot be the name of a file"):
        examples.read("cap\0tions.json")


def test_a_name_that_is_too_long():
    with pytest.raises(UserError, match="cannot be read"):
        examples.read("x" * 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = data_files.of_images(tmp_path, GOOD)
    path.chmod(0)
    assert refusal(path) == "the file cannot be read (Permission denied)."


# Broken records


def test_a_record_without_id_is_named_by_position(tmp_path):
    assert complaint(tmp_path, GOOD, without("id")) == 'image number 2: "id" is missing.'


def test_an_id_of_the_wrong_type(tmp_path):
    said = 'image number 1: "id" must be a whole number or a string, not a list.'
    assert complaint(tmp_path, {**GOOD, "id": [1]}) == said


def test_an_id_with_a_fraction(tmp_path):
    said = 'image number 1: "id" must be a whole number or a string, not a number with a fraction.'
    assert complaint(tmp_path, {**GOOD, "id": 1.5}) == said


def test_true_is_not_an_id_although_python_counts_it_as_1(tmp_path):
    assert '"id" must be a whole number or a string, not a boolean.' in complaint(tmp_path, {**GOOD, "id": True})


def test_an_empty_id(tmp_path):
    assert complaint(tmp_path, {**GOOD, "id": ""}) == 'image number 1: "id" is empty.'


def test_the_second_of_two_records_with_one_id_is_left_out(tmp_path):
    path = data_files.of_images(tmp_path, GOOD, {**GOOD, "file": "other.jpg"})
    dataset = examples.read(path)
    assert [example.file.name for example in dataset.examples] == ["dog.jpg"]
    assert len(dataset.problems) == 1
    assert f'{path}: image 17: "id"' in dataset.problems[0]


def test_1_and_the_string_1_are_one_id_because_json_keys_are_strings(tmp_path):
    path = data_files.of_images(tmp_path, {**GOOD, "id": 1}, {**GOOD, "id": "1"})
    assert [example.id for example in examples.read(path).examples] == [1]


def test_a_record_without_file(tmp_path):
    assert complaint(tmp_path, without("file")) == 'image 17: "file" is missing.'


def test_a_file_that_is_no_string(tmp_path):
    assert complaint(tmp_path, {**GOOD, "file": 3}) == 'image 17: "file" must be a string, not a number.'


def test_an_empty_file_name(tmp_path):
    assert '"file"' in complaint(tmp_path, {**GOOD, "file": ""})


def test_a_nul_in_a_file_name(tmp_path):
    assert 'image 17: "file"' in complaint(tmp_path, {**GOOD, "file": "dog.jpg\0.png"})


def test_half_a_character_in_a_file_name(tmp_path):
    assert 'image 17: "file"' in complaint(tmp_path, {**GOOD, "file": "dog\ud83d.jpg"})


def test_a_split_that_is_no_string(tmp_path):
    assert complaint(tmp_path, {**GOOD, "split": 1}) == 'image 17: "split" must be a string, not a number.'


def test_captions_that_are_a_number(tmp_path):
    said = 'image 17: "captions" must be a list of strings, not a number.'
    assert complaint(tmp_path, {**GOOD, "captions": 5}) == said


def test_captions_that_are_one_string_are_not_read_as_a_list_of_letters(tmp_path):
    said = 'image 17: "captions" must be a list of strings, not a string.'
    assert complaint(tmp_path, {**GOOD, "captions": "a dog"}) == said


def test_a_record_that_is_no_object(tmp_path):
    assert complaint(tmp_path, "dog.jpg") == "image number 1: it must be an object, not a string."


def test_a_caption_that_is_no_string_is_left_out_alone(tmp_path):
    path = data_files.of_images(tmp_path, {**GOOD, "captions": ["a dog", None, "a white dog"]})
    dataset = examples.read(path)
    assert dataset.examples[0].captions == ("a dog", "a white dog")
    assert dataset.problems == [f'{path}: image 17: "captions" number 2 must be a string, not null.']


@pytest.mark.parametrize("nothing", ["", "  \t\n", "\0", "\u200b\ufeff", "\ud83d"], ids=ascii)
def test_a_caption_with_nothing_to_be_seen_is_left_out_alone(nothing, tmp_path):
    path = data_files.of_images(tmp_path, {**GOOD, "captions": ["a dog", nothing]})
    dataset = examples.read(path)
    assert dataset.examples[0].captions == ("a dog",)
    assert dataset.problems == [f'{path}: image 17: "captions" number 2 is empty.']


def test_control_characters_go_and_white_space_is_one_space(tmp_path):
    path = data_files.of_images(tmp_path, {**GOOD, "captions": ["\x1b a\0dog \r\n in\u2028the\u00a0 snow\x7f "]})
    assert examples.read(path).examples[0].captions == ("a dog in the snow",)


def test_emoji_and_accents_stay(tmp_path):
    captions = ["un café à Besançon", "eine Straße", "犬が雪の中にいる", "a 👩\u200d🚒 and a 🐕"]
    path = data_files.of_images(tmp_path, {**GOOD, "captions": captions})
    assert examples.read(path).examples[0].captions == tuple(captions)


def test_a_problem_can_be_printed_whatever_the_id_holds(tmp_path):
    """Half a character cannot be written to a terminal, and an escape sequence would steer it."""
    said = complaint(tmp_path, {"id": "\ud83d\x1b[2J\n"})
    assert said.isprintable()
    said.encode()


# What the readers of other formats meet


@pytest.mark.parametrize("format", ["karpathy", "coco", "flickr"])
@pytest.mark.parametrize(
    "make",
    [data_files.missing, data_files.empty, data_files.not_json, data_files.latin_1, data_files.a_list],
    ids=lambda make: make.__name__,
)
def test_prepare_answers_a_source_that_is_wrong_as_a_whole_with_exit_2_and_one_line(format, make, tmp_path, capsys):
    path = make(tmp_path)
    assert main(["prepare", format, str(path), "--out", str(tmp_path / "data.json")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tellapart prepare: {path}: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "data.json").exists()


def test_coco_images_without_the_list_of_images(tmp_path):
    path = data_files.of(tmp_path, {"annotations": []})
    assert main(["prepare", "coco", str(path), "--out", str(tmp_path / "data.json")]) == 2
