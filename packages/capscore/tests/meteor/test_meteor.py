"""METEOR beside the original program, and what it must hold to whatever the words."""

import copy
import random
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capscore import meteor
from meteor import miniature

CHUNKS, MATCHED, REFERENCE_MATCHED = 20, 21, 22
WORDS = sorted({word for phrases in miniature.PARAPHRASES for phrase in phrases for word in phrase.split()})
WORDS += ["dogs", "hound", "bike", "bicycle", "men", "man", "sat", "rest", "'s", "t-shirt"]


def split(caption):
    return caption.split(" ")


def statistics(scorer, photos):
    return scorer.statistics(
        [split(photo["caption"]) for photo in photos],
        [[split(reference) for reference in photo["references"]] for photo in photos],
    )


def score(scorer, caption, *references):
    return float(meteor.value(statistics(scorer, [{"caption": caption, "references": references}]))[0])


def as_printed(photos):
    """The original's statistics; in a corpus it does not count the chunk of a caption that is its reference's equal."""
    result = np.array([photo["statistics"] for photo in photos], float)
    same = (
        (result[:, MATCHED] == result[:, 0]) & (result[:, REFERENCE_MATCHED] == result[:, 1]) & (result[:, CHUNKS] == 1)
    )
    result[same, CHUNKS] = 0
    return result


def check(scorer, golden):
    result = statistics(scorer, golden["photos"])
    np.testing.assert_array_equal(result, as_printed(golden["photos"]))
    assert meteor.value(result).tolist() == pytest.approx([photo["score"] for photo in golden["photos"]], abs=1e-12)
    assert meteor.value(result.sum(0)) == pytest.approx(golden["corpus"], abs=1e-12)


def test_with_small_data_every_number_is_that_of_the_original(small, golden):
    assert len(golden["small"]["photos"]) > 70
    check(small, golden["small"])


def test_with_its_own_data_every_number_is_that_of_the_original(whole, golden):
    assert len(golden["whole"]["photos"]) > 50
    check(whole, golden["whole"])


@pytest.mark.skipif(not shutil.which("java"), reason="needs Java")
def test_the_original_program_says_the_same_today(small, tmp_path):
    """The original code with our small data, which it loads in a second."""
    original = pytest.importorskip("pycocoevalcap.meteor.meteor")
    folder = miniature.write(tmp_path / "data")
    code = Path(original.__file__).with_name("meteor-1.5.jar")
    with ZipFile(code) as jar, ZipFile(folder / "meteor-1.5.jar", "a") as ours:
        for name in jar.namelist():
            if name not in miniature.members():
                ours.writestr(name, jar.read(name))
    choice = random.Random(5)
    photos = []
    for _ in range(100):
        texts = [" ".join(choice.choices(WORDS, k=choice.randint(1, 15))) for _ in range(3)]
        photos.append({"caption": texts[0], "references": texts[1:]})
    lines = "".join(f"SCORE ||| {' ||| '.join(photo['references'])} ||| {photo['caption']}\n" for photo in photos)
    command = ["java", "-Xmx512m", "-jar", "meteor-1.5.jar", "-", "-", "-stdio", "-l", "en", "-norm"]
    answer = subprocess.run(command, cwd=folder, input=lines, capture_output=True, text=True, check=True).stdout
    for photo, line in zip(photos, answer.splitlines(), strict=True):
        photo["statistics"] = [float(number) for number in line.split()]
    np.testing.assert_array_equal(statistics(small, photos), as_printed(photos))


def test_the_score_by_hand(small):
    """ "the dog sat" and "a hound sat": dog and hound are synonyms, sat is exact; the and a do not match."""
    result = statistics(small, [{"caption": "the dog sat", "references": ["a hound sat"]}])[0]
    precision = recall = (0.75 * 1.0 + 0.75 * 0.8) / (2 * 0.75 + 0.25)
    mean = 1 / (0.15 / precision + 0.85 / recall)
    assert result[[0, 1, 2, 3, CHUNKS, MATCHED, REFERENCE_MATCHED]].tolist() == [3, 3, 1, 1, 1, 2, 2]
    assert meteor.value(result) == pytest.approx(mean * (1 - 0.6 * (1 / 2) ** 0.2), abs=1e-15)


def test_a_corpus_by_hand():
    """Photos of two and of four words, all content words: matched exactly 1 of 2 and 3 of 4, in 1 and in 2 chunks."""
    result = np.zeros((2, 23))
    result[:, 0] = result[:, 1] = [2, 4]
    for column in (4, 5, MATCHED, REFERENCE_MATCHED):
        result[:, column] = [1, 3]
    result[:, CHUNKS] = [1, 2]
    assert meteor.value(result) == pytest.approx([0.5 * (1 - 0.6), 0.75 * (1 - 0.6 * (2 / 3) ** 0.2)], abs=1e-15)
    assert meteor.value(result.sum(0)) == pytest.approx(4 / 6 * (1 - 0.6 * (3 / 4) ** 0.2), abs=1e-15)


@pytest.mark.parametrize("caption", ["dog", "a dog on the lawn", "the the the the", "a t-shirt , dog 's", "中 文 😀"])
def test_a_caption_scores_1_against_itself(small, caption):
    assert score(small, caption, caption) == 1


@pytest.mark.parametrize(
    ("caption", "references"),
    [("dog", ["lawn"]), ("", ["a dog"]), ("a dog", [""]), ("", [""]), ("a dog", []), ("", []), ("\x00", ["\x00"])],
)
def test_without_words_in_common_the_score_is_0(small, caption, references):
    result = statistics(small, [{"caption": caption, "references": references}])
    assert meteor.value(result).tolist() == [0]
    assert np.isfinite(result).all()
    assert small.statistics([], []).shape == (0, 23)
    assert meteor.value(np.zeros(23)) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("stands", "standing"),  # stem
        ("bike", "bicycle"),  # synonyms
        ("men", "person"),  # synonyms of an irregular form
        ("boxes", "carton"),  # of a regular one
        ("wooden", "made of wood"),  # paraphrases
        ("made of wood", "wooden"),
        ("aw", "c9"),  # two words with one Java hash, which the original takes for one
    ],
)
def test_what_counts_as_the_same(small, one, other):
    assert score(small, one, other) > 0.3
    assert score(small, other, one) > 0.3


def test_a_match_in_two_ways_is_missed_like_by_the_original(small):
    """dogs and dog match by stem and as synonyms: that settles nothing, and to the search neither is worth a chunk."""
    assert score(small, "dogs", "dog") == 0
    assert score(small, "a dogs", "a dog") > score(small, "a", "a dog")  # here it needs no chunk of its own


captions = st.lists(st.sampled_from(WORDS), max_size=9)


@given(captions, st.lists(captions, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_references_does_not_matter_and_the_best_one_counts(small, caption, references, choice):
    mixed = choice.sample(references, len(references))
    alone = meteor.value(small.statistics([caption] * len(references), [[one] for one in references]))
    together = meteor.value(small.statistics([caption, caption], [references, mixed]))
    assert together.tolist() == [max(alone)] * 2
    assert 0 <= together[0] <= 1


@settings(max_examples=60)
@given(captions | st.lists(st.text(max_size=6), max_size=5), captions | st.lists(st.text(max_size=6), max_size=5))
def test_any_text_has_a_score_and_the_counts_of_its_alignment_fit_together(small, caption, reference):
    result = small.statistics([caption], [[reference]])[0]
    stages = result[4:20].reshape(4, 2, 2).sum((0, 1))  # matched words of both
    assert stages.tolist() == [result[MATCHED], result[REFERENCE_MATCHED]]
    assert (result[[MATCHED, REFERENCE_MATCHED]] <= result[:2]).all()
    assert result[CHUNKS] <= min(stages)
    assert 0 <= meteor.value(result) <= 1


def test_photos_do_not_depend_on_each_other_or_on_threads(small, golden):
    photos = golden["small"]["photos"] * 4
    together = statistics(small, photos)
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(lambda start: statistics(small, photos[start : start + 10]), range(0, len(photos), 10)))
    np.testing.assert_array_equal(np.concatenate(pieces), together)


def test_a_copy_for_another_process_loads_its_data_again(small, tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSCORE_CACHE", str(tmp_path))
    other = copy.deepcopy(small)
    assert other is not small
    assert score(other, "the bike", "a bicycle") == score(small, "the bike", "a bicycle") > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("caption", "reference"),
    [
        (["the"] * 10_000, ["the"] * 9_999),
        (["the", "dog"] * 1_000, ["dog", "the", "a"] * 1_000),
        ([f"w{number}" for number in range(3_000)], [f"w{number}" for number in range(2_999, -1, -1)]),
        (["a"] * 10_000, ["a"]),
        (["a" * 200_000], ["a" * 200_000]),
    ],
)
def test_very_long_captions_have_a_score_in_seconds(small, caption, reference):
    small.statistics([["a"]], [[["a"]]])  # compiles
    began = time.process_time()
    result = meteor.value(small.statistics([caption], [[reference]]))[0]
    assert 0 < result <= 1
    assert time.process_time() - began < 20
