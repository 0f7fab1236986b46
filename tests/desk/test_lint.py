"""Captions that accessibility checkers flag: by themselves, and shared by several pictures; and the command."""

import csv
import gzip
import json
import shutil
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from tellapart.data.media import photos
from tellapart.desk.lint import LONGEST, RULES, Finding, check, faults, length, shared_captions
from tellapart.errors import BadPhoto
from tellapart.models import retrievers
from tellapart.retrievers import retriever


def by_rule(captions, **photos):
    """{rule: pictures} of one caption a picture."""
    captions = {file: [text] for file, text in captions.items()}
    findings = {}
    for finding in check(captions, shared_captions(captions, **photos)):
        findings.setdefault(finding.rule, []).append(finding.file)
    return findings


# One caption

CAPTIONS = {  # rules -> captions that break these by themselves
    "": """a dog asleep on a red sofa | a dog | a very very nice dog | a dog a dog a dog | an imaginary dog |
        a man takes a photo of a dog | a framed picture of a dog on a wall | a picture frame on a wall |
        photographers of all ages at a wedding | photo booth with a curtain | in the picture frame stands a dog |
        a painting of a dog | this is a dog on a sofa | a sign that says sorry | #1 jersey on a wall |
        A man shows the image of a cat to a child | 一只狗在沙发上睡觉 | ソファで眠る犬 | หมานอนบนโซฟา""",
    "empty": " | \u200b\u00a0 | ...",
    "one-word": "dog | Dog. | - dog - | \N{DOG FACE} | black-and-white",
    "file-name": "IMG_1234.jpg | IMG_1234 | DSC01234 | PXL_20230101_120000000 | sunset-at-the-beach.PNG",
    "repeated-word": "a very Very very nice dog | no, no, no! | ein Hund Hund Hund schläft",
    "opening repeated-word": "photo of photo of dog dog dog",
    "opening": """photo of a dog | A photo of a dog | Photos of two dogs | an image of a dog | The picture of a dog |
        This is a photo of a dog | This is a photograph of a dog | it's a pic of a dog | It\u2019s a picture of a dog |
        Here is an image of a dog | There is a picture of a dog | a picture shows a dog | This image shows a dog |
        Image depicts a dog | The image depicts a dog | an image that shows a dog | image showing a dog |
        a black and white photo of a dog | A close-up photo of a dog | A closeup picture of a dog |
        In this photo, a dog sleeps | In the image there is a dog | Image: a dog on a sofa | "A photo of a dog" |
        The provided image shows a dog on a sofa.""",
    "refusal": """I'm sorry, but I can't help with identifying people in images. |
        As an AI language model, I cannot see images.""",
    "chatter": """Sure! Here is a caption: A dog on a sofa. | A dog on a sofa. #dog #cute | **A dog on a sofa.** |
        <think>A dog?</think> A dog on a sofa.""",
}


@pytest.mark.parametrize("rules", CAPTIONS)
def test_what_is_wrong_with_a_caption_by_itself(rules):
    captions = [caption.strip(" \n") for caption in CAPTIONS[rules].split("|")]
    assert {caption: faults(caption) for caption in captions} == dict.fromkeys(captions, rules.split())


def test_over_125_characters_is_long_and_125_is_not():
    exactly = "a dog " + "o" * 119
    assert len(exactly) == LONGEST == 125
    assert faults(exactly) == []
    assert faults(exactly + "o") == ["long"]


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("abc", 3),
        ("cafe\N{COMBINING ACUTE ACCENT}", 4),
        ("\u1100\u1161\u11a8", 1),  # a Korean syllable of three letters
        ("\N{DEVANAGARI LETTER NA}\N{DEVANAGARI VOWEL SIGN I}", 1),
        ("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}", 1),
        ("\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}", 1),
        ("\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}", 1),
        ("\U0001f1e9\U0001f1ea!", 2),  # a flag
    ],
)
def test_characters_are_counted_as_a_person_sees_them(text, characters):
    assert length(text) == characters


@given(st.text())
@example("#À")
def test_a_caption_counts_the_same_in_both_unicode_forms(text):
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    assert length(forms[0]) == length(forms[1]) <= len(forms[0])
    assert faults(forms[0]) == faults(forms[1])


def test_the_name_of_the_picture_is_no_caption_but_a_file_may_be_named_with_one():
    for caption, file in (("beach", "photos/beach.jpg"), ("Beach.jpg", "photos/beach.jpg"), ("Rome (3).jpg",) * 2):
        assert faults(caption, file) == ["file-name"]
    assert faults("two dogs at the beach", "two dogs at the beach.jpg") == []


# Several captions


@pytest.mark.parametrize(
    ("texts", "rules"),
    [
        (["A dog.", "a cat sits", "a  dog", "a dog sits"], {"shared": "02"}),  # capitals and punctuation are silent
        (["a dog", "a cat", "a dog", "a cat"], {"shared": "0213"}),  # together
        (["", "", "..."], {"empty": "012"}),
        (["a dog"] * 2 + ["a cat"] + ["a dog"] * 4 + ["a cow"], {"shared": "013456", "run": "3456"}),
    ],
)
def test_what_several_pictures_share(texts, rules):
    captions = {str(place): text for place, text in enumerate(texts)}
    assert by_rule(captions) == {rule: list(places) for rule, places in rules.items()}


def test_a_picture_with_several_captions_shares_any_of_them_but_none_with_itself():
    captions = {"1": ["a dog", "a red sofa", "a dog"], "2": ["a cat", "A red sofa"]}
    (group,) = shared_captions(captions)
    assert group.captions == {"1": "a red sofa", "2": "A red sofa"}


@given(st.lists(st.sampled_from(["a dog", "a cat", "a cow"])))
def test_runs_and_shared_captions_are_those_that_counting_finds(texts):
    shared = [str(i) for i, text in enumerate(texts) if texts.count(text) > 1]
    starts = [i for i in range(len(texts) - 2) if len(set(texts[i : i + 3])) == 1]
    runs = {str(i + step) for i in starts for step in range(3)}
    rules = by_rule({str(i): text for i, text in enumerate(texts)})
    assert sorted(rules.get("shared", [])) == sorted(shared)
    assert set(rules.get("run", [])) == runs


def test_exact_copies_of_a_photo_may_share_its_caption():
    captions = {"1": "a dog", "2": "a dog", "3": "a cat", "4": "a cat"}
    contents = {"1": "same", "2": "same", "3": "one", "4": "other"}
    assert by_rule(captions, contents=contents) == {"shared": ["3", "4"]}


def test_two_pictures_look_alike_if_each_is_near_the_other():
    captions = {"1": ["a dog"], "2": ["a dog"], "3": ["a dog"], "4": ["a cat"], "unseen": ["a dog"]}
    contents = {"1": "A", "2": "B", "3": "C", "4": "D"}
    neighbours = {"A": ["B", "D"], "B": ["A", "C"], "C": ["A", "D"], "D": ["A"]}
    (group,) = shared_captions(captions, contents=contents, neighbours=neighbours)
    assert group.files == ["1", "2", "3", "unseen"]
    assert group.look_alikes == [("1", "2")]
    marked = [finding for finding in check(captions, [group]) if finding.rule == "shared-look-alike"]
    assert marked == [Finding("1", "shared-look-alike", "a dog"), Finding("2", "shared-look-alike", "a dog")]


def test_all_copies_of_a_photo_look_like_its_look_alike():
    captions = {"1": ["a dog"], "2": ["a dog"], "3": ["a dog"]}
    neighbours = {"A": {"B"}, "B": {"A"}}
    (group,) = shared_captions(captions, contents={"1": "A", "2": "A", "3": "B"}, neighbours=neighbours)
    assert group.look_alikes == [("1", "3"), ("2", "3")]


def test_a_picture_without_captions_is_missing_and_rules_keep_their_order():
    captions = {"1": ["dog"], "2": [], "3": ["photo of a dog"]}
    rules = [(finding.file, finding.rule) for finding in check(captions, missing=["4"])]
    assert rules == [("4", "missing"), ("2", "missing"), ("1", "one-word"), ("3", "opening")]


@given(st.dictionaries(st.text(), st.lists(st.text(), max_size=3), max_size=6))
def test_no_text_is_too_strange(captions):
    findings = check(captions, shared_captions(captions))
    assert {finding.rule for finding in findings} <= set(RULES)
    assert {finding.file for finding in findings} <= set(captions)


# The command


@pytest.fixture
def lint(tellapart):
    """Exit code, (file, rule, caption) of each line, stderr."""

    def run(*arguments):
        code, out, err = tellapart("lint", *arguments)
        return code, [tuple(line.split("\t")) for line in out.splitlines()], err

    return run


@pytest.fixture
def write(tmp_path):
    def captions(content, name="captions.json"):
        (tmp_path / name).write_text(json.dumps(content))
        return tmp_path / name

    return captions


def with_rule(lines, rule):
    return [file for file, broken, _ in lines if broken == rule]


def test_what_is_found_is_a_line_each_and_exit_1(lint, write, tmp_path):
    assert lint(write({"1.jpg": "a dog on a sofa", "2.jpg": "a cat"})) == (0, [], "2 pictures: nothing found\n")
    captions = write({"1.jpg": "a photo of a dog", "2.jpg": "cat", "3.jpg": "A photo of a dog."})
    first, third = ("1.jpg", "a photo of a dog"), ("3.jpg", "A photo of a dog.")
    lines = [(file, rule, text) for rule in ("opening", "shared") for file, text in (first, third)]
    counts = "3 pictures: 1 one-word, 2 opening, 2 shared\n"
    assert lint(captions) == (1, [("2.jpg", "one-word", "cat"), *lines], counts)
    assert lint(captions, "--out", tmp_path / "found.json") == (1, [], counts)
    listing = json.loads((tmp_path / "found.json").read_text())
    assert listing["counts"] == {"one-word": 1, "opening": 2, "shared": 2}
    assert [tuple(row.values()) for row in listing["findings"]] == [("2.jpg", "one-word", "cat"), *lines]
    shared = {"caption": "a photo of a dog", "files": ["1.jpg", "3.jpg"], "look_alikes": []}
    assert (list(listing["findings"][0]), listing["shared"]) == (["file", "rule", "caption"], [shared])
    assert lint(captions, "--ignore", "shared, opening")[:2] == (1, [("2.jpg", "one-word", "cat")])
    assert lint(captions, "--ignore", "shared,opening,one-word") == (0, [], "3 pictures: nothing found\n")


def test_every_form_of_captions_is_read(lint, tmp_path, write):
    rows = [{"file": "a.jpg", "caption": "dog"}, {"file": "b.jpg", "error": "is damaged"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "c.jsonl").write_text(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with (tmp_path / "c.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["file", "caption", "logprob", "error", "id", "key"])
        table.writeheader()
        table.writerows(rows)
    for path in (tmp_path / "c.jsonl", tmp_path / "c.jsonl.gz", tmp_path / "c.csv", write(rows)):
        assert lint(path)[:2] == (1, [("b.jpg", "missing", ""), ("a.jpg", "one-word", "dog")])
    results = write([{"image_id": 7, "caption": "dog"}, {"image_id": 0, "error": "is damaged"}])
    assert lint(results)[:2] == (1, [("0", "missing", ""), ("7", "one-word", "dog")])


def test_what_caption_writes_can_be_checked(lint, tellapart, small_model, photo_folder, tmp_path):
    (photo_folder / "bad.png").write_bytes(b"x")
    out = tmp_path / "captions.csv"
    tellapart("caption", photo_folder, "--model", small_model, "--out", out)
    code, lines, err = lint(out)
    assert code == 1
    assert (str(photo_folder / "bad.png"), "missing", "") in lines
    assert err.startswith("7 pictures: 1 missing")


def test_photos_are_known_by_id_by_file_and_by_name_in_the_folder(lint, write, photo_folder, tmp_path, monkeypatch):
    texts = [f"a dog with {i} balls" for i in range(6)]
    monkeypatch.chdir(tmp_path)
    for prefix in ("", "photos/", f"{photo_folder}/", "../" + tmp_path.name + "/photos/"):
        captions = write({f"{prefix}{i}.png": text for i, text in enumerate(texts)})
        assert lint(captions, "--among", photo_folder)[0] == 0
        captions = write({f"{prefix}{i}.png": text for i, text in enumerate(texts[:5])})
        assert lint(captions, "--among", photo_folder)[:2] == (1, [(str(photo_folder / "5.png"), "missing", "")])
    records = [{"id": 10 + i, "file": f"photos/{i}.png"} for i in range(6)]
    data = write({"dataset": "d", "images": records}, "data.json")
    captions = write({str(10 + i): text for i, text in enumerate(texts)})
    assert lint(captions, "--among", data)[0] == 0


@pytest.fixture
def sees_colours(monkeypatch):
    """In place of the default retriever one that knows photos by their mean colour: plain to see what looks alike."""

    def embed_photos(name, files):
        assert name == "the default"
        seen = retriever.Embedded([], [], {}, np.zeros((0, 3), np.float32))
        vectors = []
        for file in files:
            try:
                photo = photos.read(file, 8)
            except BadPhoto as error:
                seen.failed[file] = error.reason
                continue
            vectors.append(photo.pixels.mean((0, 1)) / np.linalg.norm(photo.pixels.mean((0, 1))))
            seen.files.append(file)
            seen.sha256.append(photo.sha256)
        seen.vectors = np.array(vectors, np.float32)
        return seen

    monkeypatch.setattr(retrievers, "load", lambda: "the default")
    monkeypatch.setattr(retriever, "embed_photos", embed_photos)


@pytest.fixture
def two_crowds(tmp_path):
    """Eight reddish and eight bluish photos."""
    folder = tmp_path / "crowds"
    folder.mkdir()
    for i in range(8):
        Image.new("RGB", (20, 20), (250, 10 * i, 0)).save(folder / f"red{i}.png")
        Image.new("RGB", (20, 20), (0, 10 * i, 250)).save(folder / f"blue{i}.png")
    return folder


def test_look_alikes_that_share_a_caption_are_marked(lint, write, two_crowds, sees_colours, tmp_path):
    texts = {f"{colour}{i}.png": f"{colour} number {i}" for colour in ("red", "blue") for i in range(8)}
    texts |= {"red0.png": "a dog", "red1.png": "a dog", "blue0.png": "a dog", "red7.png": "a cat", "blue7.png": "a cat"}
    code, lines, _ = lint(write(texts), "--among", two_crowds)
    assert code == 1
    assert with_rule(lines, "shared-look-alike") == ["red0.png", "red1.png"]
    assert with_rule(lines, "shared") == ["red0.png", "red1.png", "blue0.png", "red7.png", "blue7.png"]
    code, lines, _ = lint(write(texts), "--among", two_crowds, "--ignore", "shared")
    assert (code, len(lines)) == (1, 2)
    lint(write(texts), "--among", two_crowds, "--out", tmp_path / "found.json")
    dog, cat = json.loads((tmp_path / "found.json").read_text())["shared"]
    assert (dog["files"], dog["look_alikes"]) == (["red0.png", "red1.png", "blue0.png"], [["red0.png", "red1.png"]])
    assert (cat["files"], cat["look_alikes"]) == (["red7.png", "blue7.png"], [])


def test_copies_may_share_a_caption_and_do_not_take_the_place_of_look_alikes(lint, write, two_crowds, sees_colours):
    """And a photo that cannot be looked at is named."""
    for i in range(9):
        shutil.copy(two_crowds / "red0.png", two_crowds / f"copy{i}.png")
    texts = {file.name: f"a dog with {file.name} on its collar" for file in two_crowds.iterdir()}
    texts |= {"red0.png": "a cat", "red1.png": "a cat", "copy1.png": "a cow", "copy2.png": "a cow"}
    (two_crowds / "broken.png").write_bytes(b"x")
    captions = write(texts | {"broken.png": "a dog with a broken collar"})
    _, lines, err = lint(captions, "--among", two_crowds)
    assert with_rule(lines, "shared-look-alike") == with_rule(lines, "shared") == ["red0.png", "red1.png"]
    assert "broken.png: is not a photo" in err
    assert "copy1.png" in with_rule(lint(captions)[1], "shared")  # without the photos nobody knows


def test_names_and_captions_cannot_break_a_line_or_steer_a_terminal(lint, write):
    code, lines, _ = lint(write({"a\tb\n\x1b[31m\ud800.jpg": "dog\t\n\x1b\ud800"}))
    assert (code, lines) == (1, [("a\\tb\\n\\x1b[31m\\ud800.jpg", "one-word", "dog")])


def test_ids_that_cannot_be_files_do_no_harm(lint, write, photo_folder):
    texts = {f"{i}.png": f"a dog with {i} balls" for i in range(6)}
    texts |= {"\0": "a nought", "\ud800": "half a character", "x" * 5000: "a long name", "": "no name at all"}
    code, lines, err = lint(write(texts), "--among", photo_folder)
    assert (code, lines, err) == (0, [], "10 pictures: nothing found\n")
