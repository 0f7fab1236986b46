"""A pool on disk and rewards out of it; rewards of texts and photos without a pool."""

import json
import math
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tellapart
from capscore.errors import UserError
from support.doc_pages import PHOTOS
from support.pools import CAPTIONS, shifted
from tellapart.models.retrievers import load
from tellapart.retrievers.retriever import embed_photos
from tellapart.rewards.caption_reward import CaptionReward
from tellapart.rewards.pool import Pool
from tellapart.trainers import reward_function

PHOTO_IDS = [f"photo{i}" for i in range(6)]


@pytest.fixture
def pool(tmp_path, six_photos):
    """A copy that a test may damage."""
    return Path(shutil.copytree(six_photos.pool, tmp_path / "POOL"))


def test_similarity_is_the_cosine_of_the_retrievers_vectors(pool, six_photos):
    result = CaptionReward("similarity", pool).score(CAPTIONS, PHOTO_IDS)
    assert result == pytest.approx([six_photos.similarity(text, i) for i, text in enumerate(CAPTIONS)], abs=1e-5)
    assert result != pytest.approx(CaptionReward("similarity", pool).score(CAPTIONS, shifted(PHOTO_IDS)))


def test_the_gap_is_to_the_mean_over_the_photos_most_alike(pool, six_photos):
    result = CaptionReward("geg_avg", pool, group_size=2).score(CAPTIONS, PHOTO_IDS)
    assert result == pytest.approx([six_photos.gap(text, i, 2) for i, text in enumerate(CAPTIONS)], abs=1e-5)


def test_captions_of_one_photo_are_no_distractors_of_each_other(pool, six_photos):
    """In any order: the two photos of the batch are the candidates, however many captions each has."""
    texts, photos = ["a dog", "a red bus", "a dog", "the bed"], [3, 0, 0, 3]
    result = CaptionReward("log_probability", pool).score(texts, [f"photo{i}" for i in photos])
    wanted = [six_photos.log_probability(text, photo, {0, 3}) for text, photo in zip(texts, photos, strict=True)]
    assert result == pytest.approx(wanted, abs=1e-4)


def test_with_look_alikes_as_candidates_a_score_does_not_depend_on_the_batch(pool, six_photos):
    reward = CaptionReward("log_probability", pool, candidates="look_alikes", group_size=3)
    wanted = [six_photos.log_probability(t, i, {i, *six_photos.nearest(i, 3)}) for i, t in enumerate(CAPTIONS)]
    assert reward.score(CAPTIONS, PHOTO_IDS) == pytest.approx(wanted, abs=1e-4)
    assert [reward.score([t], [p])[0] for t, p in zip(CAPTIONS, PHOTO_IDS, strict=True)] == pytest.approx(
        wanted, abs=1e-4
    )


def test_words_of_captions_are_compared_with_the_references_by_the_documents_of_the_pool(pool):
    """As `tellapart score` has it, which counts by itself; the end is a word of rewards."""
    texts = ["a red bus on the street", "a man on a wave", "the cat", "a red dog", "a street", "the man"]
    hypotheses = {photo: f"{text} theend" for photo, text in zip(PHOTO_IDS, texts, strict=True)}
    references = {p: [f"{t} theend", "a photo of the street theend"] for p, t in zip(PHOTO_IDS, CAPTIONS, strict=True)}
    wanted = tellapart.score(hypotheses, references, metrics="CIDEr-D")["CIDEr-D"]
    reward = CaptionReward("cider_d", pool)
    result = reward.score(texts, PHOTO_IDS)
    assert sum(result) / 6 == pytest.approx(wanted, rel=1e-5)
    assert sum(reward.score(texts, shifted(PHOTO_IDS))) / 6 != pytest.approx(wanted, rel=0.1)


def test_a_photo_goes_by_its_id_or_its_file(six_photos):
    result = CaptionReward("similarity", six_photos.pool).score(
        ["a dog"] * 3, ["photo2", six_photos.folder / "2.png", "photo3"]
    )
    assert result[0] == result[1] != result[2]


@pytest.mark.slow
def test_a_pickle_is_small_and_scores_the_same_in_another_process(pool):
    reward = CaptionReward("geg_min", pool)
    assert len(pickle.dumps(reward)) < 1000
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as workers:
        elsewhere = workers.submit(reward.score, CAPTIONS, PHOTO_IDS).result()
    assert elsewhere == pytest.approx(reward.score(CAPTIONS, PHOTO_IDS))


def test_a_folder_of_photos_without_captions_has_rewards_by_retriever_only(
    tmp_path, photo_folder, tellapart, small_retriever, own_cache
):
    (photo_folder / "broken.jpg").write_bytes(b"no photo")
    code, out, err = tellapart("pool", photo_folder, "--out", tmp_path / "POOL", "--retriever", small_retriever)
    assert code == 1
    assert out == f"{tmp_path / 'POOL'}: 6 photos, 0 references\n"
    assert "broken.jpg" in err
    assert len(CaptionReward("similarity", tmp_path / "POOL").score(["a dog"], ["3.png"])) == 1
    with pytest.raises(UserError, match="cider_d needs references, and no photo of"):
        CaptionReward("cider_d", tmp_path / "POOL")


def test_captions_beyond_what_the_retriever_reads_are_reported_once(pool, capsys):
    reward = CaptionReward("similarity", pool)
    long = " ".join(["a dog"] * 21)  # 42 words
    cut = reward.score([long, " ".join(["a dog"] * 20)], ["photo0"] * 2)
    assert cut[0] == pytest.approx(cut[1])
    reward.score([long], ["photo0"])
    assert capsys.readouterr().err.count("1 of 2 captions are longer than the 40 words that") == 1


# What is refused, a sentence each


def test_the_numbers_are_memory_mapped(pool):
    """The file's pages are those of the vectors: what is overwritten there is seen here, as no copy would."""
    opened, file = Pool(pool), pool / "pool.safetensors"
    original, data = opened.images.clone(), file.read_bytes()
    place = data.index(original.numpy().tobytes())
    with file.open("r+b") as written:
        written.seek(place)
        written.write(bytes(4))
    assert original[0, 0] != 0 == opened.images[0, 0]


@pytest.mark.parametrize(
    ("term", "settings", "message"),
    [
        ("objects", {}, "^objects needs a detector, which a pool does not have.$"),
        ("hard_positives", {}, "which a pool does not have.$"),
        ("geg", {}, "there is no reward 'geg'"),
        ("geg_avg", {"group_size": 9}, "group_size asks for 9"),
        ("geg_avg", {"image_retriever": "judge"}, "leaves no choice of 'image_retriever'"),
        ("preference", {}, "preferences=.*adapt --feedback"),
    ],
)
def test_what_a_pool_cannot_give_is_refused(pool, term, settings, message):
    with pytest.raises(UserError, match=message) as error:
        CaptionReward(term, pool, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("term", "texts", "photos", "message"),
    [
        ("similarity", ["a", "b"], ["photo1", "photo9"], r"the photo 'photo9' is not in this pool\.$"),
        ("similarity", ["a", "b"], ["x", "y"], r"none of the 2 photos is in this pool .*made for other photos\.$"),
        ("similarity", ["a", "b"], ["photo1"], "2 captions and 1 photos"),
        ("similarity", "a dogs", PHOTO_IDS, "not one text"),
        ("accuracy", ["a dog", "a cat"], ["photo1"] * 2, "all captions are of one photo; it needs more photos in a"),
    ],
)
def test_captions_and_photos_that_cannot_be_scored_are_a_sentence(pool, term, texts, photos, message):
    with pytest.raises(UserError, match=message):
        CaptionReward(term, pool).score(texts, photos)


def head(**changes):
    def change(pool):
        content = json.loads((pool / "pool.json").read_text())
        changed = {name: value(content[name]) if callable(value) else value for name, value in changes.items()}
        (pool / "pool.json").write_text(json.dumps(content | changed))

    return change


def look_alike_beyond_the_end(pool):
    file = pool / "pool.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["look_alikes"][0, 0] = 99
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file(tensors, file, metadata)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (head(format=2), "has format 2, and this version reads 1"),
        (head(photos=shifted), "made for other photos than pool.json"),
        (head(retriever=lambda old: old | {"sha256": "0" * 64}), "other weights of the retriever"),
        (look_alike_beyond_the_end, "do not fit 6 photos"),
        (lambda pool: (pool / "pool.safetensors").write_bytes(b"no tensors"), "damaged"),
        (lambda pool: (pool / "pool.json").unlink(), "this is no pool"),
    ],
)
def test_a_pool_that_is_damaged_or_of_others_is_named(pool, damage, message):
    damage(pool)
    with pytest.raises(UserError, match=message):
        CaptionReward("similarity", pool)


FILES = [str(photo.file) for photo in PHOTOS[:3]]
TEXTS = ["a red bus", "a kitchen with a stove", "a dog on a beach"]


@pytest.fixture(scope="module")
def cosines():
    """(texts, photos) by numpy, of the vectors that all commands go by."""
    word = load("word", device="cpu")
    return word.embed_captions(TEXTS).numpy() @ embed_photos(word, FILES).vectors.T


def test_similarity_is_the_cosine_of_each_text_and_its_photo(cosines):
    result = tellapart.rewards.reward("similarity")(TEXTS, FILES)
    assert result == pytest.approx(np.diag(cosines).tolist(), abs=2e-4)  # whose features are in half precision


def test_log_probability_is_that_of_the_photo_among_the_different_ones_of_the_call(cosines):
    own, scale = [0, 0, 2], 10.0
    result = tellapart.rewards.reward("log_probability", scale=scale)(TEXTS, [FILES[photo] for photo in own])
    expected = []
    for row, photo in enumerate(own):
        powers = {one: math.exp(scale * cosines[row, one]) for one in (0, 2)}
        expected.append(math.log(powers[photo] / sum(powers.values())))
    assert result == pytest.approx(expected, abs=2e-3)


def test_a_photo_is_the_same_in_every_form():
    opened = Image.open(FILES[0]).convert("RGB")
    pixels = np.asarray(opened)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    forms = [opened, pixels, tensor, tensor / 255, pixels.astype(np.float32) / 255, [opened]]
    reward = tellapart.rewards.reward("similarity")
    result = reward([TEXTS[0]] * len(forms), forms)
    assert result == pytest.approx([result[0]] * len(forms), abs=1e-6)
    assert reward([TEXTS[0]], [Path(FILES[0])]) == pytest.approx(result[:1], abs=0.02)  # a file is decoded smaller
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
    ("texts", "images", "message"),
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
def test_what_is_no_photo_is_a_sentence(texts, images, message):
    with pytest.raises(UserError, match=message):
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
    result = pickle.loads(pickle.dumps(rewarded))(completions, image=[pictures[0], None, pictures[2]])
    expected = tellapart.rewards.reward("similarity")([TEXTS[0], TEXTS[2]], [pictures[0], pictures[2]])
    assert [result[0], result[2]] == expected
    assert result[1] is None
    assert rewarded.__name__ == "similarity"
