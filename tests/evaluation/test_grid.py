"""Models on a split: who is measured on what, in a world where every photo shows a thing in a place.

A captioner that looks for its own photos, against one pair of caption and photo at a time; and who looks like whom, by
the features of the judge's encoder.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from capscore import scoring
from capscore.errors import UserError
from evaluation import world
from tellapart import album
from tellapart.captioning.captioner import load
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.data.media import photos as data_photos
from tellapart.data.streams import region_inputs
from tellapart.decoding import score
from tellapart.encoders.loading import load as load_encoder
from tellapart.evaluation import grid as run
from tellapart.evaluation.grid import groups_of
from tellapart.evaluation.models import Split
from tellapart.recipe import EncoderConfig


def test_who_names_thing_and_place_is_found_and_who_names_the_thing_is_mistaken(tmp_path, grid):
    data = world.make(tmp_path / "w", 110)
    exact, vague = world.exact_and_vague(data)
    scores = grid(data, {"exact": exact, "vague": vague}, retrievers=("word", "judge")).scores
    for retriever in ("word", "judge"):
        assert scores["exact"][f"R@1[{retriever}]"] == 1
        assert scores["exact"][f"P@1/100[{retriever}]"] == 1
        assert scores["exact"][f"P@1/100-hard[{retriever}]"] == 1
        assert scores["exact"][f"GEG-Min[{retriever}]"] > 0
        assert scores["vague"][f"R@1[{retriever}]"] < 0.3  # a thing is in eleven places
        assert scores["vague"][f"R@10[{retriever}]"] > 0.7
        assert scores["vague"][f"GEG-Avg[{retriever}]"] < scores["exact"][f"GEG-Avg[{retriever}]"]
    assert scores["exact"]["TT R@1"] == 1
    assert scores["vague"]["TT R@1"] < 0.3
    assert scores["vague"]["UniCap"] == pytest.approx(10 / 110)


def test_every_score_has_an_interval_a_difference_and_a_signature(data, grid):
    exact, vague = world.exact_and_vague(data)
    found = grid(data, {"exact": exact, "vague": vague}, retrievers=("word", "judge"))
    scores, intervals, differences = found.scores, found.intervals(), found.differences()
    assert list(differences) == ["vague"]
    for model in ("exact", "vague"):
        assert scores[model].keys() == intervals[model].keys() == found.rows[model].signature.keys()
        assert all(low <= scores[model][name] <= high for name, (low, high) in intervals[model].items())
        assert all(text.startswith(f"{name}|") for name, text in found.rows[model].signature.items())
    assert differences["vague"].keys() == scores["vague"].keys()
    for name, difference in differences["vague"].items():
        assert difference.value == pytest.approx(scores["vague"][name] - scores["exact"][name])
    assert found.rows["vague"].signature["R@1[judge]"].startswith("R@1[judge]|photos:12|captions:12|w:")
    json.dumps(found.details(differences), allow_nan=False)


def test_the_row_that_others_are_compared_with_can_be_chosen(data, grid):
    exact, vague = world.exact_and_vague(data)
    found = grid(data, {"exact": exact, "vague": vague}, against="vague")
    assert list(found.differences()) == ["exact"]
    assert found.differences()["exact"]["CIDEr-D"].value > 0


def test_text_is_scored_as_score_does_it(data, grid):
    exact, vague = world.exact_and_vague(data)
    scores = grid(data, {"exact": exact, "vague": vague}).scores
    told = {str(i): record["captions"] for i, record in enumerate(world.records_of(data))}
    expected = scoring.score({str(i): text for i, text in vague.items()}, told, metrics="CIDEr-D,BLEU,Rep,Prec")
    assert {name: scores["vague"][name] for name in expected} == pytest.approx(expected)


def groups_by_caption(photos, references, k):
    """GEG's Eq. 2 as it is written: the N(K+1) captions that fit a photo best, its own left out, give K photos."""
    groups, most = [], max(map(len, references))
    for target, photo in enumerate(photos):
        fits = [
            (float(vector @ photo), other)
            for other, vectors in enumerate(references)
            if other != target
            for vector in vectors
        ]
        best = sorted(fits, reverse=True)[: most * (k + 1)]
        groups.append(list(dict.fromkeys(other for _, other in best))[:k])
    return groups


def test_gaps_to_look_alikes_are_to_the_photos_whose_captions_fit_as_in_the_paper(tmp_path, grid):
    """Captions say other things than their photos show, so that groups by image would be others."""
    data = world.make(tmp_path / "w", 40)
    records = world.records_of(data)
    random = np.random.default_rng(0)
    for record in records:
        words = random.choice([*world.THINGS, *world.PLACES], (2, 3))
        record["captions"] = [" ".join(caption) for caption in words]
    world.write(data, records)
    exact, vague = world.exact_and_vague(data)
    result = grid(data, {"exact": exact, "vague": vague})
    photos = [world.vector(record["file"].removesuffix(".png"), "word") for record in records]
    references = [[world.vector(text, "word") for text in record["captions"]] for record in records]
    for name, captions in (("exact", exact), ("vague", vague)):
        average, least = [], []
        for own, group in enumerate(groups_by_caption(photos, references, 5)):
            caption = world.vector(captions[own], "word")
            theirs = [caption @ photos[other] for other in group]
            average.append(caption @ photos[own] - np.mean(theirs))
            least.append(caption @ photos[own] - max(theirs))
        assert result.scores[name]["GEG-Avg[word]"] == pytest.approx(np.mean(average), abs=1e-6)
        assert result.scores[name]["GEG-Min[word]"] == pytest.approx(np.mean(least), abs=1e-6)
        assert "|look-alikes:caption-5|" in result.rows[name].signature["GEG-Min[word]"]


def test_where_photos_have_no_captions_gaps_are_to_the_photos_most_alike(tmp_path, grid):
    data = world.make(tmp_path / "w", 40)
    exact, _ = world.exact_and_vague(data)
    world.write(data, [record | {"captions": []} for record in world.records_of(data)])
    result = grid(data, {"exact": exact}, metrics="AvgLen")
    files = [record["file"].removesuffix(".png") for record in world.records_of(data)]
    photos = np.stack([world.vector(file, "word") for file in files])
    gaps = []
    for own, photo in enumerate(photos):
        nearest = [other for other in np.argsort(-(photos @ photo), kind="stable") if other != own][:5]
        caption = world.vector(exact[own], "word")
        gaps.append(caption @ photo - np.mean(photos[nearest] @ caption))
    assert result.scores["exact"]["GEG-Avg[word]"] == pytest.approx(np.mean(gaps), abs=1e-6)
    assert "|look-alikes:image-5|" in result.rows["exact"].signature["GEG-Avg[word]"]


# Human captions


def test_people_are_scored_by_their_first_caption_and_retrieved_by_all(tmp_path, grid):
    data = world.make(tmp_path / "w", 12, references=3)
    exact, _ = world.exact_and_vague(data)
    found = grid(data, {"exact": exact}, human=True)
    records = world.records_of(data)
    first = {str(i): record["captions"][0] for i, record in enumerate(records)}
    rest = {str(i): record["captions"][1:] for i, record in enumerate(records)}
    expected = scoring.score(first, rest, metrics="CIDEr-D,BLEU")
    assert {name: found.scores["human"][name] for name in expected} == pytest.approx(expected)
    assert len(found.rows["human"].retrieved["word"].targets) == 36
    # two references name thing and place, the third only the thing: there are two cats and two dogs among the twelve
    ranks = found.rows["human"].retrieved["word"].ranks.reshape(12, 3)
    assert (ranks[:, :2] == 0).all()
    assert found.scores["human"]["R@1[word]"] == pytest.approx((ranks == 0).mean(1).mean())
    assert (ranks[:, 2] > 0).any()


def test_a_photo_with_a_single_reference_has_no_human_score_by_text(data, grid):
    records = world.records_of(data)
    for record in records[:4]:
        del record["captions"][1:]
    world.write(data, records)
    exact, _ = world.exact_and_vague(data)
    human = grid(data, {"exact": exact}, human=True).rows["human"]
    for name in ("CIDEr-D", "TT R@1"):
        measure = next(measure for measure in human.statistics if name in measure.names)
        assert (measure.rows[:4] == 0).all()
        assert (measure.rows[4:] != 0).any(1).all()
    in_photos = next(measure for measure in human.statistics if "R@1[word]" in measure.names)
    assert (in_photos.rows[:, 1] == 1).all()


def test_no_second_reference_at_all_leaves_people_out_of_text_with_a_reason(tmp_path, grid):
    data = world.make(tmp_path / "w", 5, references=1)
    exact, _ = world.exact_and_vague(data)
    found = grid(data, {"exact": exact}, human=True)
    assert "CIDEr-D" not in found.scores["human"]
    assert "TT R@1" not in found.scores["human"]
    assert found.scores["human"]["R@1[word]"] == 1
    assert "no photo has two references" in found.skipped["text of human"]


# Runs that are empty or partial, and photos without references


def test_photos_that_somebody_did_not_caption_are_distractors_for_all(data, grid):
    exact, vague = world.exact_and_vague(data)
    partial = {photo: text for photo, text in exact.items() if photo not in (0, 1)}
    found = grid(data, {"exact": exact, "partial": partial, "vague": vague})
    assert found.measured == list(range(2, 12))
    for row in found.rows.values():
        assert row.retrieved["word"].targets.tolist() == found.measured
        assert all((measure.rows[:2] == 0).all() for measure in row.statistics)
        assert row.retrieved["word"].best.shape == (10, 12)
    assert found.scores["exact"] == found.scores["partial"]
    # photo 10 shows a cat, as photo 0 does, which nobody is asked for and which still is mistaken for it
    assert found.rows["vague"].retrieved["word"].ranks[8] >= 0
    assert {0, 10} == set(found.rows["vague"].retrieved["word"].best[8, :2].tolist())


def test_who_said_nothing_is_no_row(data, grid):
    exact, _ = world.exact_and_vague(data)
    assert list(grid(data, {"exact": exact, "silent": {}}).rows) == ["exact"]


def test_models_that_speak_of_different_photos_cannot_be_compared(data, grid):
    exact, _ = world.exact_and_vague(data)
    with pytest.raises(UserError, match=r"has no photo with captions of all of them"):
        grid(data, {"a": {0: exact[0]}, "b": {1: exact[1]}})


def test_captions_without_words_are_wrong_by_every_measure_and_no_score_is_nan(data, grid):
    found = grid(data, {"empty": dict.fromkeys(range(12), "")}, retrievers=("word", "judge"))
    assert (found.rows["empty"].retrieved["judge"].ranks == 11).all()
    scores = found.scores["empty"]
    assert all(np.isfinite(list(scores.values())))
    wrong = {"UniCap": pytest.approx(1 / 12), "UnusualOrder": 1}  # nobody says nothing
    assert {name: score for name, score in scores.items() if score != 0} == wrong


def test_photos_without_references_have_no_part_where_references_are_needed(data, grid):
    records = world.records_of(data)
    records[0]["captions"] = []
    world.write(data, records)
    exact = {i: f"a {THING} on a street" for i, THING in enumerate(world.THINGS)} | {10: "a cat", 11: "a dog"}
    found = grid(data, {"exact": exact})
    row = found.rows["exact"]
    in_photos = next(measure for measure in row.statistics if "R@1[word]" in measure.names)
    assert in_photos.rows[0, 1] == 1
    for name in ("TT R@1", "CIDEr-D", "Prec"):
        assert (next(measure for measure in row.statistics if name in measure.names).rows[0] == 0).all()
    assert row.signature["TT R@1"].startswith("TT R@1|photos:11|captions:11|")


def test_without_any_reference_the_measures_remain_that_need_none(tmp_path, grid):
    data = world.make(tmp_path / "w", 5, references=0)
    found = grid(data, {"same": dict.fromkeys(range(5), "a cat on a street")})
    scores = found.scores["same"]
    assert (scores["UniCap"], scores["AvgLen"], scores["Rep"]) == (pytest.approx(0.2), 5, 0)
    assert scores["R@1[word]"] == 0.2
    assert not {"CIDEr-D", "Prec", "TT R@1"} & scores.keys()
    assert found.skipped["TT"] == "there are no references."


def test_a_photo_that_cannot_be_read_is_named_and_has_no_part(data, grid):
    exact, _ = world.exact_and_vague(data)
    (data.parent / "dog-street.png").unlink()
    found = grid(data, {"exact": {i: exact[i + (i > 0)] for i in range(11)}})
    assert len(found.split.photos) == 11
    assert [problem.rsplit("/")[-1] for problem in found.split.problems] == ["dog-street.png: there is no such file"]
    assert found.scores["exact"]["R@1[word]"] == 1
    for photo in data.parent.glob("*.png"):
        photo.unlink()
    with pytest.raises(UserError, match="none of its photos can be read"):
        grid(data, {"exact": exact})


def test_copies_of_a_photo_are_nobodys_look_alikes(data, grid):
    exact, _ = world.exact_and_vague(data)
    before = grid(data, {"exact": exact}).look_alikes[0, 0]
    twin = data.parent / world.records_of(data)[before]["file"]
    twin.write_bytes((data.parent / "cat-street.png").read_bytes())
    assert grid(data, {"exact": exact}).look_alikes[0, 0] not in (before, 0)


def test_text_to_text_among_look_alikes_asks_for_the_photo_among_six(data, grid):
    """Photos 0 and 10 are both of a cat, in other places: who names the thing alone cannot tell them apart."""
    photos = range(12)
    alike = [[photo for photo in (0, 10, 1, 11, 2, 3) if photo != own][:5] for own in photos]
    told = [record["captions"][0] for record in world.records_of(data)]
    vague = [" ".join(text.split()[:2]) for text in told]
    found = grid(data, {"exact": dict(enumerate(told)), "vague": dict(enumerate(vague))}, human=True, alike=alike)
    assert found.scores["exact"]["TT@6"] == 1
    (right,) = [one.per_photo()[:, 0] for one in found.rows["vague"].statistics if one.names == ("TT@6",)]
    assert [sum(right[[0, 10]]), sum(right[[1, 11]])] == [1, 1]  # one caption for both: it fits one of them better
    assert right[2:10].all()
    assert found.scores["human"]["TT@6"] == 1
    assert "|captions:12|groups:toy|" in found.rows["human"].signature["TT@6"]  # the first of two references
    assert list(found.rows["human"].signature).index("TT@6") > list(found.rows["human"].signature).index("TT R@1")


def test_without_look_alikes_there_is_a_reason(data, grid):
    told = {i: record["captions"][0] for i, record in enumerate(world.records_of(data))}
    assert grid(data, {"exact": told}).skipped["TT@6"].startswith("a group has 6 photos")
    assert "TT@6" in grid(data, {"exact": told}, alike=[[-1] * 5] * 12).skipped


def test_ranks_are_those_of_each_captions_log_p_for_each_photo(data, grid, small_model):
    captioner = load(small_model)
    texts = ["a red bus", "the cat on the bed", "a man riding a wave", "", "a cat", "a bus on the street"] * 2
    found = grid(data, {"a": dict(enumerate(texts))}, reader=False)
    row = found.rows["a"]
    run.add_self_retrieval(row, captioner, found.split, found.measured)

    words, size = captioner.model.tokenizer, captioner.encoder.config.image_size
    logp = np.zeros((12, 12))
    for p, photo in enumerate(found.split.photos):
        pixels = photos.read(photo.file, size).pixels
        grid_features = captioner.encoder(pixels[None]).grid
        memory = captioner.model.captioner.encode(
            region_inputs(grid_features, torch.ones(grid_features.shape[:2], dtype=torch.bool))
        )
        for n, text in enumerate(texts):
            if ids := words.encode(text):
                tokens = torch.tensor([ids])
                mask = torch.ones_like(tokens, dtype=torch.bool)
                logp[n, p] = score(captioner.model.captioner, memory, tokens, mask, bos=words.bos).sum().item()
    ranks = (logp >= np.diag(logp)[:, None] - 1e-4).sum(1) - 1
    assert len(set(ranks.tolist())) > 3
    assert ranks[3] == 11  # nothing is as probable for every photo
    for k in (1, 5, 10):
        assert row.scores[f"self R@{k}"] == (ranks < k).mean()
    assert row.signature["self R@1"].startswith("self R@1|photos:12|captions:12|w:")


def split_of(files, captions=("a photo",)):
    return Split("x", "x", [Example(str(i), file, captions=captions) for i, file in enumerate(files)], [])


@pytest.fixture(scope="module")
def files():
    return sorted((Path(album.__file__).parent / "photos").glob("*.webp"))[:9]


def test_the_five_nearest_by_cosine_of_the_pooled_features(files):
    """Against the cosines of all pairs, in a loop; and a photo without references is nobody's look-alike."""
    split = split_of(files)
    split.photos[4] = Example("4", files[4], captions=())
    encoder = load_encoder(EncoderConfig("efficientnet_lite0", 224, 7), torch.device("cpu"))
    vectors = [encoder(data_photos.read(file, 224).pixels[None]).pooled[0].double().numpy() for file in files]
    unit = [vector / np.linalg.norm(vector) for vector in vectors]
    found = groups_of(split, "cpu")
    assert found.signature.startswith("efficientnet_lite0-06a4248e-5")
    for photo in range(9):
        others = [other for other in range(9) if other not in (photo, 4)]
        nearest = sorted(others, key=lambda other: -(unit[photo] @ unit[other]))[:5]
        assert found.nearest[photo].tolist() == ([-1] * 5 if photo == 4 else nearest)


def test_a_copy_is_no_look_alike_and_a_photo_that_cannot_be_read_has_none(files, tmp_path):
    copy = tmp_path / "copy.webp"
    shutil.copy(files[0], copy)
    found = groups_of(split_of([*files[:6], copy, tmp_path / "missing.webp"]), "cpu")
    assert 6 not in found.nearest[0]
    assert 0 not in found.nearest[6]
    assert found.nearest[7].tolist() == [-1] * 5
    assert 7 not in found.nearest[:7]


def test_six_photos_with_references_make_a_group(files):
    assert groups_of(split_of(files[:5])) is None
    assert sorted(groups_of(split_of(files[:6]), "cpu").nearest[0].tolist()) == [1, 2, 3, 4, 5]
