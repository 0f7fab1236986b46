"""Rewards of texts and photos without a pool, in every form that trainers have photos in."""

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tellapart
from capscore.errors import UserError
from support.doc_pages import PHOTOS
from tellapart.models.retrievers import load
from tellapart.retrievers.retriever import embed_photos
from tellapart.trainers import reward_function

FILES = [str(photo.file) for photo in PHOTOS[:3]]
TEXTS = ["a red bus", "a kitchen with a stove", "a dog on a beach"]


@pytest.fixture(scope="module")
def cosines():
    """(texts, photos) by numpy, of the vectors that all commands go by."""
    word = load("word", device="cpu")
    return word.embed_captions(TEXTS).numpy() @ embed_photos(word, FILES).vectors.T


def test_similarity_is_the_cosine_of_each_text_and_its_photo(cosines):
    found = tellapart.rewards.reward("similarity")(TEXTS, FILES)
    assert found == pytest.approx(np.diag(cosines).tolist(), abs=2e-4)  # whose features are in half precision


def test_log_probability_is_that_of_the_photo_among_the_different_ones_of_the_call(cosines):
    own, scale = [0, 0, 2], 10.0
    found = tellapart.rewards.reward("log_probability", scale=scale)(TEXTS, [FILES[photo] for photo in own])
    expected = []
    for row, photo in enumerate(own):
        powers = {one: math.exp(scale * cosines[row, one]) for one in (0, 2)}
        expected.append(math.log(powers[photo] / sum(powers.values())))
    assert found == pytest.approx(expected, abs=2e-3)


def test_a_photo_is_the_same_in_every_form():
    opened = Image.open(FILES[0]).convert("RGB")
    pixels = np.asarray(opened)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    forms = [opened, pixels, tensor, tensor / 255, pixels.astype(np.float32) / 255, [opened]]
    reward = tellapart.rewards.reward("similarity")
    found = reward([TEXTS[0]] * len(forms), forms)
    assert found == pytest.approx([found[0]] * len(forms), abs=1e-6)
    assert reward([TEXTS[0]], [Path(FILES[0])]) == pytest.approx(found[:1], abs=0.02)  # a file is decoded smaller
    with pytest.raises(UserError, match="all texts are of one photo"):
        tellapart.rewards.reward("accuracy")([TEXTS[0]] * 2, [opened, tensor])


def test_it_is_loaded_when_it_is_first_called_and_can_be_pickled_before_and_after():
    reward = tellapart.rewards.reward("similarity")
    assert "retriever" not in vars(reward)
    first = pickle.loads(pickle.dumps(reward))(TEXTS, FILES)
    assert reward(TEXTS, FILES) == first
    again = pickle.loads(pickle.dumps(reward))
    assert "retriever" not in vars(again)
    assert again(TEXTS, FILES) == first


@pytest.mark.parametrize(
    ("texts", "images", "says"),
    [
        ("a dog", FILES, "two lists"),
        (["a"] * 2, FILES, "2 texts and 3 images"),
        (["a"], [np.full((8, 8, 3), -2.0)], "normalised"),
        (["a"], [np.zeros((8, 8), np.int64)], "bytes, or numbers from 0 to 1"),
        (["a"], [torch.zeros(1, 3, 8, 8)], r"not \(1, 3, 8, 8\)"),
        (["a"], [None], "not a NoneType"),
        (["a"], ["nowhere.jpg"], "nowhere.jpg"),
    ],
)
def test_what_is_no_photo_is_a_sentence(texts, images, says):
    with pytest.raises(UserError, match=says):
        tellapart.rewards.reward("similarity")(texts, images)


def test_a_retriever_that_sees_no_photos_and_a_term_that_needs_a_pool_are_refused():
    with pytest.raises(UserError, match=r"similarity, log_probability, accuracy.*tellapart pool"):
        tellapart.rewards.reward("geg_avg")
    with pytest.raises(UserError, match="needs one that sees photos"):
        tellapart.rewards.reward("similarity", "minilm")(TEXTS, FILES)


def test_trl_is_given_a_number_for_each_row_with_a_picture():
    rewarded = reward_function("similarity")
    pictures = [Image.open(file).convert("RGB") for file in FILES]
    completions = [[{"role": "assistant", "content": text}] for text in TEXTS]
    found = pickle.loads(pickle.dumps(rewarded))(completions, image=[pictures[0], None, pictures[2]])
    expected = tellapart.rewards.reward("similarity")([TEXTS[0], TEXTS[2]], [pictures[0], pictures[2]])
    assert [found[0], found[2]] == expected
    assert found[1] is None
    assert rewarded.__name__ == "similarity"


def test_one_text_is_not_as_many_captions_as_it_has_letters(six_photos):
    ids = [str(photo.id) for photo in tellapart.CaptionReward("similarity", six_photos.pool).pool.examples]
    with pytest.raises(UserError, match="not one text"):
        tellapart.CaptionReward("similarity", six_photos.pool).score("a dogs"[: len(ids)], ids)


def test_preference_without_its_file_says_what_is_missing(six_photos):
    with pytest.raises(UserError, match=r"preferences=.*adapt --feedback"):
        tellapart.CaptionReward("preference", six_photos.pool)
