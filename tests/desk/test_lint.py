import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tellapart.desk.lint import LONGEST, RULES, Finding, check, faults, length, shared_captions


def found(captions, **given):
    """{rule: pictures} of one caption a picture."""
    captions = {file: [text] for file, text in captions.items()}
    by_rule = {}
    for finding in check(captions, shared_captions(captions, **given)):
        by_rule.setdefault(finding.rule, []).append(finding.file)
    return by_rule


# One caption


@pytest.mark.parametrize(
    ("caption", "rules"),
    [
        ("a dog asleep on a red sofa", []),
        ("", ["empty"]),
        (" \u200b\u00a0 ", ["empty"]),
        ("...", ["empty"]),
        ("dog", ["one-word"]),
        ("Dog.", ["one-word"]),
        ("- dog -", ["one-word"]),
        ("\N{DOG FACE}", ["one-word"]),
        ("black-and-white", ["one-word"]),
        ("a dog", []),
        ("IMG_1234.jpg", ["file-name"]),
        ("IMG_1234", ["file-name"]),
        ("DSC01234", ["file-name"]),
        ("PXL_20230101_120000000", ["file-name"]),
        ("sunset-at-the-beach.PNG", ["file-name"]),
        ("a very very nice dog", []),
        ("a very Very very nice dog", ["repeated-word"]),
        ("no, no, no!", ["repeated-word"]),
        ("a dog a dog a dog", []),
        ("ein Hund Hund Hund schläft", ["repeated-word"]),
        ("photo of photo of dog dog dog", ["opening", "repeated-word"]),
    ],
)
def test_what_is_wrong_with_a_caption_by_itself(caption, rules):
    assert faults(caption) == rules


@pytest.mark.parametrize(
    "caption",
    [
        "photo of a dog",
        "A photo of a dog",
        "Photos of two dogs",
        "an image of a dog",
        "The picture of a dog",
        "This is a photo of a dog",
        "This is a photograph of a dog",
        "it's a pic of a dog",
        "It\u2019s a picture of a dog",
        "Here is an image of a dog",
        "There is a picture of a dog",
        "a picture shows a dog",
        "This image shows a dog",
        "Image depicts a dog",
        "The image depicts a dog",
        "an image that shows a dog",
        "image showing a dog",
        "a black and white photo of a dog",
        "A close-up photo of a dog",
        "A closeup picture of a dog",
        "In this photo, a dog sleeps",
        "In the image there is a dog",
        "Image: a dog on a sofa",
        '"A photo of a dog"',
    ],
)
def test_openings_that_say_nothing_of_the_picture(caption):
    assert faults(caption) == ["opening"]


@pytest.mark.parametrize(
    "caption",
    [
        "a man takes a photo of a dog",
        "a framed picture of a dog on a wall",
        "a picture frame on a wall",
        "photographers of all ages at a wedding",
        "photo booth with a curtain",
        "in the picture frame stands a dog",
        "a painting of a dog",
        "this is a dog on a sofa",
        "an imaginary dog",
    ],
)
def test_photos_that_are_in_the_picture_are_no_opening(caption):
    assert faults(caption) == []


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
        ("\N{HANGUL CHOSEONG KIYEOK}\N{HANGUL JUNGSEONG A}\N{HANGUL JONGSEONG KIYEOK}", 1),
        ("\N{DEVANAGARI LETTER NA}\N{DEVANAGARI VOWEL SIGN I}", 1),
        ("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}", 1),
        ("\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}", 1),
        ("\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}", 1),
        ("\N{REGIONAL INDICATOR SYMBOL LETTER D}\N{REGIONAL INDICATOR SYMBOL LETTER E}!", 2),
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


@pytest.mark.parametrize("caption", ["一只狗在沙发上睡觉", "ソファで眠る犬", "หมานอนบนโซฟา"])
def test_scripts_without_spaces_are_not_taken_for_one_word(caption):
    assert faults(caption) == []


def test_the_name_of_the_picture_is_no_caption_but_a_file_may_be_named_with_one():
    assert faults("beach", "photos/beach.jpg") == ["file-name"]
    assert faults("Beach.jpg", "photos/beach.jpg") == ["file-name"]
    assert faults("Rome 2019 (3).jpg", "Rome 2019 (3).jpg") == ["file-name"]
    assert faults("two dogs at the beach", "two dogs at the beach.jpg") == []


# Several captions


def test_a_caption_is_shared_whatever_its_capitals_and_punctuation():
    captions = {"1": "A dog.", "2": "a cat sits", "3": "a  dog", "4": "a dog sits"}
    assert found(captions) == {"shared": ["1", "3"]}


def test_pictures_that_share_a_caption_stand_together():
    captions = {"1": "a dog", "2": "a cat", "3": "a dog", "4": "a cat"}
    assert found(captions) == {"shared": ["1", "3", "2", "4"]}


def test_the_same_caption_twice_for_one_picture_is_not_shared():
    assert shared_captions({"1": ["a dog", "a dog"], "2": ["a cat"]}) == []


def test_a_picture_with_several_captions_shares_any_of_them():
    captions = {"1": ["a dog", "a red sofa"], "2": ["a cat", "A red sofa"]}
    (group,) = shared_captions(captions)
    assert group.captions == {"1": "a red sofa", "2": "A red sofa"}


def test_captions_without_words_are_empty_and_not_shared():
    assert found({"1": "", "2": "", "3": "..."}) == {"empty": ["1", "2", "3"]}


def test_three_in_a_row_are_a_run_and_two_are_not():
    captions = dict(enumerate(["a dog", "a dog", "a cat", "a dog", "a dog", "a dog", "a dog", "a cow"]))
    captions = {str(place): text for place, text in captions.items()}
    assert found(captions) == {"shared": ["0", "1", "3", "4", "5", "6"], "run": ["3", "4", "5", "6"]}


@given(st.lists(st.sampled_from(["a dog", "a cat", "a cow"])))
def test_runs_and_shared_captions_are_those_that_counting_finds(texts):
    shared = [str(i) for i, text in enumerate(texts) if texts.count(text) > 1]
    starts = [i for i in range(len(texts) - 2) if len(set(texts[i : i + 3])) == 1]
    runs = {str(i + step) for i in starts for step in range(3)}
    rules = found({str(i): text for i, text in enumerate(texts)})
    assert sorted(rules.get("shared", [])) == sorted(shared)
    assert set(rules.get("run", [])) == runs


def test_exact_copies_of_a_photo_may_share_its_caption():
    captions = {"1": "a dog", "2": "a dog", "3": "a cat", "4": "a cat"}
    contents = {"1": "same", "2": "same", "3": "one", "4": "other"}
    assert found(captions, contents=contents) == {"shared": ["3", "4"]}


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


# What models say in place of a caption, or around it


@pytest.mark.parametrize(
    ("caption", "rules"),
    [
        ("I'm sorry, but I can't help with identifying people in images.", ["refusal"]),
        ("As an AI language model, I cannot see images.", ["refusal"]),
        ("Sure! Here is a caption: A dog on a sofa.", ["chatter"]),
        ("A dog on a sofa. #dog #cute", ["chatter"]),
        ("**A dog on a sofa.**", ["chatter"]),
        ("<think>A dog?</think> A dog on a sofa.", ["chatter"]),
        ("The provided image shows a dog on a sofa.", ["opening"]),
        ("a sign that says sorry", []),
        ("#1 jersey on a wall", []),
        ("A man shows the image of a cat to a child", []),
    ],
)
def test_refusals_and_chatter_of_models_are_flagged(caption, rules):
    assert faults(caption) == rules
