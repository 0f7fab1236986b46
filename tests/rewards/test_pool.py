"""A pool on disk, and rewards out of it."""

import json
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tellapart
from capscore.errors import UserError
from support.pools import CAPTIONS, shifted
from tellapart.rewards.caption_reward import CaptionReward
from tellapart.rewards.pool import Pool

PHOTOS = [f"photo{i}" for i in range(6)]


@pytest.fixture
def pool(tmp_path, six_photos):
    """A copy that a test may damage."""
    return Path(shutil.copytree(six_photos.pool, tmp_path / "POOL"))


@pytest.fixture
def expected(six_photos):
    return six_photos


def test_similarity_is_the_cosine_of_the_retrievers_vectors(pool, expected):
    found = tellapart.CaptionReward("similarity", pool).score(CAPTIONS, PHOTOS)
    assert found == pytest.approx([expected.similarity(text, i) for i, text in enumerate(CAPTIONS)], abs=1e-5)
    assert found != pytest.approx(tellapart.CaptionReward("similarity", pool).score(CAPTIONS, shifted(PHOTOS)))


def test_the_gap_is_to_the_mean_over_the_photos_most_alike(pool, expected):
    found = tellapart.CaptionReward("geg_avg", pool, group_size=2).score(CAPTIONS, PHOTOS)
    assert found == pytest.approx([expected.gap(text, i, 2) for i, text in enumerate(CAPTIONS)], abs=1e-5)


def test_captions_of_one_photo_are_no_distractors_of_each_other(pool, expected):
    """In any order: the two photos of the batch are the candidates, however many captions each has."""
    texts, photos = ["a dog", "a red bus", "a dog", "the bed"], [3, 0, 0, 3]
    found = tellapart.CaptionReward("log_probability", pool).score(texts, [f"photo{i}" for i in photos])
    wanted = [expected.log_probability(text, photo, {0, 3}) for text, photo in zip(texts, photos, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-4)


def test_with_look_alikes_as_candidates_a_score_does_not_depend_on_the_batch(pool, expected):
    reward = tellapart.CaptionReward("log_probability", pool, candidates="look_alikes", group_size=3)
    wanted = [expected.log_probability(t, i, {i, *expected.nearest(i, 3)}) for i, t in enumerate(CAPTIONS)]
    assert reward.score(CAPTIONS, PHOTOS) == pytest.approx(wanted, abs=1e-4)
    assert [reward.score([t], [p])[0] for t, p in zip(CAPTIONS, PHOTOS, strict=True)] == pytest.approx(wanted, abs=1e-4)


def test_words_of_captions_are_compared_with_the_references_by_the_documents_of_the_pool(pool):
    """As `tellapart score` has it, which counts by itself; the end is a word of rewards."""
    texts = ["a red bus on the street", "a man on a wave", "the cat", "a red dog", "a street", "the man"]
    hypotheses = {photo: f"{text} theend" for photo, text in zip(PHOTOS, texts, strict=True)}
    references = {p: [f"{t} theend", "a photo of the street theend"] for p, t in zip(PHOTOS, CAPTIONS, strict=True)}
    wanted = tellapart.score(hypotheses, references, metrics="CIDEr-D")["CIDEr-D"]
    reward = tellapart.CaptionReward("cider_d", pool)
    found = reward.score(texts, PHOTOS)
    assert sum(found) / 6 == pytest.approx(wanted, rel=1e-5)
    assert sum(reward.score(texts, shifted(PHOTOS))) / 6 != pytest.approx(wanted, rel=0.1)


def test_a_photo_goes_by_its_id_or_its_file(six_photos):
    found = tellapart.CaptionReward("similarity", six_photos.pool).score(
        ["a dog"] * 3, ["photo2", six_photos.folder / "2.png", "photo3"]
    )
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_a_pickle_is_small_and_scores_the_same_in_another_process(pool):
    reward = tellapart.CaptionReward("geg_min", pool)
    assert len(pickle.dumps(reward)) < 1000
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as workers:
        elsewhere = workers.submit(reward.score, CAPTIONS, PHOTOS).result()
    assert elsewhere == pytest.approx(reward.score(CAPTIONS, PHOTOS))


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
    reward = tellapart.CaptionReward("similarity", pool)
    long = " ".join(["a dog"] * 21)  # 42 words
    cut = reward.score([long, " ".join(["a dog"] * 20)], ["photo0"] * 2)
    assert cut[0] == pytest.approx(cut[1])
    reward.score([long], ["photo0"])
    assert capsys.readouterr().err.count("1 of 2 captions are longer than the 40 words that") == 1


# What is refused, a sentence each


def refusal(*arguments, **settings):
    with pytest.raises(UserError) as caught:
        tellapart.CaptionReward(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_pool_cannot_give_is_refused(pool):
    assert refusal("objects", pool) == "objects needs a detector, which a pool does not have."
    assert refusal("hard_positives", pool).endswith("which a pool does not have.")
    assert "there is no reward 'geg'" in refusal("geg", pool)
    assert "group_size asks for 9" in refusal("geg_avg", pool, group_size=9)
    assert "leaves no choice of 'image_retriever'" in refusal("geg_avg", pool, image_retriever="judge")


def test_photos_that_are_not_in_the_pool(pool):
    reward = tellapart.CaptionReward("similarity", pool)
    with pytest.raises(UserError, match=r"the photo 'photo9' is not in this pool\.$"):
        reward.score(["a", "b"], ["photo1", "photo9"])
    with pytest.raises(UserError, match=r"none of the 2 photos is in this pool .*made for other photos\.$"):
        reward.score(["a", "b"], ["x", "y"])
    with pytest.raises(UserError, match="2 captions and 1 photos"):
        reward.score(["a", "b"], ["photo1"])


def test_a_batch_of_one_photo_has_nothing_to_choose_from(pool):
    with pytest.raises(UserError, match="all captions are of one photo; it needs more photos in a batch, or"):
        tellapart.CaptionReward("accuracy", pool).score(["a dog", "a cat"], ["photo1", "photo1"])


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_pool_of_another_version(pool):
    edit(pool / "pool.json", format=2)
    assert "has format 2, and this version reads 1" in refusal("similarity", pool)


def test_a_pool_whose_photos_are_not_those_of_its_numbers(pool):
    records = json.loads((pool / "pool.json").read_text())["photos"]
    edit(pool / "pool.json", photos=shifted(records))
    assert "made for other photos than pool.json" in refusal("similarity", pool)


def test_a_pool_of_other_weights(pool, small_retriever):
    edit(pool / "pool.json", retriever={"load": str(small_retriever), "sha256": "0" * 64})
    assert "other weights of the retriever" in refusal("similarity", pool)


def test_numbers_that_lead_out_of_the_pool(pool):
    file = pool / "pool.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["look_alikes"][0, 0] = 99
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file(tensors, file, metadata)
    assert "do not fit 6 photos" in refusal("similarity", pool)
    file.write_bytes(b"no tensors")
    assert "damaged" in refusal("similarity", pool)


def test_what_is_no_pool(tmp_path):
    assert "this is no pool" in refusal("similarity", tmp_path)


def test_the_numbers_are_memory_mapped(pool):
    """The file's pages are those of the vectors: what is overwritten there is seen here, as no copy would."""
    opened, file = Pool(pool), pool / "pool.safetensors"
    before, data = opened.images.clone(), file.read_bytes()
    place = data.index(before.numpy().tobytes())
    with file.open("r+b") as written:
        written.seek(place)
        written.write(bytes(4))
    assert before[0, 0] != 0 == opened.images[0, 0]
