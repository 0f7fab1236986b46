"""`tellapart adapt` and `captioner.adapt`, from a bare folder of photos."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import tellapart as library
from capscore.errors import UserError
from support.holiday import holiday
from support.killed import run_killed
from tellapart import album
from tellapart.adapting import adapt as adapting
from tellapart.adapting.verdict import Check
from tellapart.rewards import Reward
from tellapart.rewards.preference import Decision
from tellapart.rewards.registry import REWARDS, RewardEntry
from tellapart.rewards.retrieval import log_probability

HASTY = {"max_steps": 3, "objective.policy.samples": 2, "log_steps": 1, "save_minutes": 0}


@pytest.fixture(autouse=True)
def cache(own_cache):
    return own_cache


@pytest.fixture
def folder(tmp_path):
    return holiday(tmp_path / "holiday", 36)


@pytest.fixture
def adapt(small_model, small_retriever, folder, tmp_path):
    def run(photos=folder, out=tmp_path / "out", **more):
        settings = {"model": small_model, "retriever": small_retriever, "overrides": HASTY, **more}
        return library.adapt(photos, out=out, **settings)

    return run


@pytest.fixture
def agreed(monkeypatch):
    """The judge and the guards agree to whatever comes."""
    monkeypatch.setattr(adapting.verdict, "checks", lambda *_, **__: [Check("all", True, "they agree")])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_model_that_does_no_good_is_not_kept_and_the_report_says_why(
    tellapart, small_model, small_retriever, folder, tmp_path
):
    shutil.copy(folder / "00.png", folder / "again.png")
    (folder / "broken.png").write_bytes(b"no photo")
    given = ["adapt", folder, "--model", small_model, "--retriever", small_retriever, "--minutes", "0.5"]
    code, out, err = tellapart(*given, "--out", tmp_path / "out")
    assert code == 1  # a photo could not be used
    assert "broken.png" in err.splitlines()[-1]
    assert "The model is not kept: the judge finds" in out
    assert "TT is left out: text to text, which people win" in err
    assert "prefer machines' captions to people's own" in " ".join(out.split())
    assert names(tmp_path / "out") == ["adapt.json", "report.html"]
    known = json.loads((tmp_path / "out" / "adapt.json").read_text())
    assert known["kept"] is False
    assert known["details"]["measured"] in (17, 18)  # half of 37 that differ, one of which cannot be decoded
    assert {"R@1[judge]", "UniCap", "Rep", "UnusualOrder", "Unidiomatic"} <= known["scores"]["after"].keys()
    assert "The model is not kept" in (tmp_path / "out" / "report.html").read_text()
    code, out, err = tellapart(*given, "--out", tmp_path / "out")
    assert "this was done before" in err
    assert "The model is not kept" in out


def test_a_model_that_is_kept_captions_photos(adapt, agreed, small_model, folder, tmp_path, tellapart):
    adapted = adapt()
    assert adapted.kept
    assert names(tmp_path / "out") == [
        "README.md", "adapt.json", "config.json", "model.safetensors", "report.html", "vocabulary.json",
    ]  # fmt: skip
    code, out, _ = tellapart("caption", folder / "00.png", "--model", tmp_path / "out")
    assert code == 0
    assert out.strip() == f"{folder / '00.png'}\t{adapted.captioner().caption(folder / '00.png').text}"
    before, after = (load_file(place / "model.safetensors") for place in (small_model, tmp_path / "out"))
    assert any(not torch.equal(before[name].float(), after[name].float()) for name in before)


@pytest.mark.slow
def test_a_captioner_adapts_itself(adapt, small_model, small_retriever, folder, tmp_path):
    by_name = adapt()
    files = sorted(folder.iterdir())
    own = library.load(small_model).adapt(files, out=tmp_path / "own", retriever=small_retriever, overrides=HASTY)
    assert own.scores == by_name.scores


@pytest.mark.slow
def test_a_killed_call_goes_on_and_ends_as_one_that_was_not(tellapart, small_model, small_retriever, folder, tmp_path):
    given = ["adapt", folder, "--model", small_model, "--retriever", small_retriever, "--minutes", "5"]
    tellapart(*given, "--out", tmp_path / "whole")
    log = tmp_path / "out" / "work" / "after" / "log.jsonl"
    run_killed(log, 3, 0.5, *given, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "work" / "after" / "last.safetensors").exists()
    code, _, err = tellapart(*given, "--out", tmp_path / "out")
    assert code == 0, err
    whole, killed = (json.loads((tmp_path / name / "adapt.json").read_text()) for name in ("whole", "out"))
    assert (killed["steps"], killed["scores"]) == (whole["steps"], whole["scores"])
    assert names(tmp_path / "out") == ["adapt.json", "report.html"]


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({"retriever": "judge"}, "the judge decides whether the model is kept; it cannot reward it"),
        ({"model": "plain+distinctive"}, "only a single captioner can be trained"),
        ({"feedback": [Decision("a", better="b")]}, "these are 1 decisions; 20 are needed"),
    ],
)
def test_what_cannot_be_trained_is_refused(adapt, settings, about):
    with pytest.raises(UserError, match=about):
        adapt(**settings)


@pytest.mark.parametrize(
    ("spoilt", "data", "about"),
    [
        (16, None, "20 different photos can be used, 10 to learn from and 10 held out; a batch"),
        (10, b"no photo: ", "26 different photos can be used"),
    ],
)
def test_too_few_photos_are_refused_and_nothing_is_left(adapt, folder, tmp_path, spoilt, data, about):
    for file in sorted(folder.iterdir())[:spoilt]:
        file.unlink() if data is None else file.write_bytes(data + file.name.encode())
    with pytest.raises(UserError, match=about):
        adapt()
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_or_of_another_adaptation_is_left_alone(adapt, folder, tmp_path):
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "diary.txt").write_text("mine")
    with pytest.raises(UserError, match=r"diary is not empty and holds no adapted model; choose another --out\.$"):
        adapt(out=tmp_path / "diary")
    assert names(tmp_path / "diary") == ["diary.txt"]
    adapt()
    there = (tmp_path / "out" / "adapt.json").read_bytes()
    (folder / "00.png").unlink()
    with pytest.raises(UserError, match="out was made with other photos, another model or other settings"):
        adapt()
    assert (tmp_path / "out" / "adapt.json").read_bytes() == there


def shuffled(context):
    """The log-probability of another photo of the batch instead of the own."""

    def reward(sampled):
        similarity, own = context.image_retriever.to_batch(sampled)
        return Reward(log_probability(similarity, (own + 1) % similarity.shape[1], context.image_retriever.scale))

    return reward


@pytest.mark.slow
def test_a_model_rewarded_for_other_photos_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(REWARDS, "shuffled", RewardEntry("of another photo", shuffled))
    settings = {
        "objective.rewards.weights": {"shuffled": 1.0},
        "objective.policy.kl": 0.0,
        "max_steps": 12,
        "optim.lr": 5e-4,
    }
    adapted = library.adapt(album.HERE / "photos", model="plain", out=tmp_path / "out", overrides=settings)
    assert not adapted.kept
    before, after = (adapted.scores[row]["R@1[judge]"] for row in ("before", "after"))
    assert after < before
    assert names(tmp_path / "out") == ["adapt.json", "report.html"]
