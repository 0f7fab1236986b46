"""Our rewards as other trainers call them.  Each test fails if a reward goes to the next photo's caption."""

import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import ModuleType, SimpleNamespace

import pytest

from capscore.errors import UserError
from support import web
from support.pools import CAPTIONS, shifted
from tellapart.rewards.caption_reward import CaptionReward
from tellapart.trainers import compute_score, register, reward_function, scorer

PHOTOS = [f"photo{i}" for i in range(6)]


@pytest.fixture
def gaps(six_photos):
    """GEG-Avg of the captions, worked out by hand; no two neighbours are alike, so that a shift shows."""
    found = [six_photos.gap(text, i) for i, text in enumerate(CAPTIONS)]
    assert all(abs(one - other) > 1e-3 for one, other in zip(found, shifted(found), strict=True))
    return pytest.approx(found, abs=1e-5)


# TRL: keyword columns, one number or None for each completion


def test_trl_gets_a_number_for_each_completion_whatever_its_form(six_photos, gaps):
    reward = reward_function("geg_avg", six_photos.pool)
    columns = {"prompts": ["?"] * 6, "completion_ids": [[1]] * 6, "trainer_state": None, "photo": PHOTOS}
    assert reward.__name__ == "geg_avg"
    assert reward(completions=list(CAPTIONS), **columns) == gaps
    messages = [[{"role": "assistant", "content": text}] for text in CAPTIONS]
    assert reward(completions=messages, **columns) == gaps
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in CAPTIONS]
    assert pickle.loads(pickle.dumps(reward))(completions=parts, **columns) == gaps


def test_trl_gets_none_for_rows_without_a_photo(six_photos):
    reward = reward_function("similarity", six_photos.pool, column="image_id")
    found = reward(completions=["a dog", "2 + 2 = 4", "a cat"], image_id=["photo1", None, "photo4"])
    assert found[1] is None
    wanted = [six_photos.similarity("a dog", 1), six_photos.similarity("a cat", 4)]
    assert [found[0], found[2]] == pytest.approx(wanted, abs=1e-5)


def placed(chosen_by, rank, pickled, photo):
    """In a process of a trainer with two graphics cards: what is placed before its first call, and then."""
    import torch

    from tellapart import numerics

    devices = []
    with pytest.MonkeyPatch.context() as card:
        card.setattr(torch.cuda, "is_available", lambda: True)
        card.setattr(torch.cuda, "device_count", lambda: 2)
        card.setattr(torch.cuda, "current_device", lambda: rank if chosen_by == "accelerate" else 0)
        card.setattr(numerics, "choose_device", lambda wanted="auto": devices.append(wanted) or torch.device("cpu"))
        if chosen_by == "torchrun":
            card.setenv("LOCAL_RANK", str(rank))
        reward = pickle.loads(pickled)
        before, devices[:] = set(devices), []
        scores = reward(completions=["a dog", "a red bus"], photo=photo, image=photo)
        return before, set(devices), scores


@pytest.mark.parametrize("chosen_by", ["accelerate", "torchrun"])
@pytest.mark.parametrize("pool", [True, False])
def test_each_process_of_trl_has_its_weights_on_its_own_graphics_card(six_photos, chosen_by, pool):
    """A reward is made before the trainer says which card is whose."""
    photos = [str(six_photos.folder / f"{i}.png") for i in (1, 0)]
    settings = {"pool": six_photos.pool} if pool else {"retriever": six_photos.retriever_folder}
    reward = reward_function("similarity", **settings)
    wanted = pytest.approx(reward(completions=["a dog", "a red bus"], photo=photos, image=photos), abs=1e-5)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        ran = [processes.submit(placed, chosen_by, rank, pickle.dumps(reward), photos) for rank in (0, 1)]
        for rank, found in enumerate(ran):
            before, at_call, scores = found.result(timeout=120)
            assert before <= {"cpu"}
            assert at_call == {f"cuda:{rank}"}
            assert scores == wanted


# ms-swift: a class in a table, plain strings


@pytest.fixture(params=["documented", "installed"])
def swift_rewards(request, monkeypatch):
    """ms-swift's own module where it is installed, and one with what its documentation names."""
    if request.param == "installed":
        return pytest.importorskip("swift.rewards", exc_type=ImportError)
    rewards = ModuleType("swift.rewards")

    class ORM:
        def __init__(self, args=None, **kwargs):
            self.args = args

    rewards.ORM, rewards.orms = ORM, {}
    monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.rewards", rewards)
    return rewards


def test_ms_swift_finds_the_reward_in_its_table(six_photos, gaps, swift_rewards, monkeypatch):
    """By the calls of its GRPO trainer: orms[name](args=...), then completions and columns as keywords."""
    monkeypatch.setitem(swift_rewards.orms, "geg_avg", None)  # the table is as before after the test
    register("geg_avg", six_photos.pool)
    reward = swift_rewards.orms["geg_avg"](args="settings of the run")
    assert isinstance(reward, swift_rewards.ORM)
    assert reward(completions=list(CAPTIONS), photo=PHOTOS, solution=None) == gaps


# verl: one caption at a time


def test_verl_scores_a_caption_at_a_time(six_photos, gaps):
    """Keywords as its reward managers give them, and those of reward_kwargs."""
    settings = {"term": "geg_avg", "pool": str(six_photos.pool)}
    by_truth = [
        compute_score(data_source="coco", solution_str=t, ground_truth=p, extra_info=None, **settings)
        for t, p in zip(CAPTIONS, PHOTOS, strict=True)
    ]
    assert by_truth == gaps
    by_column = [
        compute_score("coco", t, "some answer", {"photo": p, "index": 3}, **settings)
        for t, p in zip(CAPTIONS, PHOTOS, strict=True)
    ]
    assert by_column == gaps


def test_verl_loads_the_reward_by_its_settings(six_photos, gaps):
    """Through verl's own loader, where it is installed."""
    loader = pytest.importorskip("verl.trainer.ppo.reward", exc_type=ImportError)
    settings = {"path": "pkg://tellapart.trainers", "name": "compute_score"}
    settings["reward_kwargs"] = {"term": "geg_avg", "pool": str(six_photos.pool)}
    score = loader.get_custom_reward_fn(SimpleNamespace(reward={"custom_reward_function": settings}))
    found = [
        score(data_source="coco", solution_str=t, ground_truth=p, extra_info={"num_turns": None})
        for t, p in zip(CAPTIONS, PHOTOS, strict=True)
    ]
    assert found == gaps


def test_verl_has_no_batch_so_that_the_game_is_among_look_alikes(six_photos):
    found = compute_score("coco", "a dog", "photo3", term="log_probability", pool=str(six_photos.pool))
    assert found == pytest.approx(six_photos.log_probability("a dog", 3, range(6)), abs=1e-4)
    with pytest.raises(UserError, match="gd_batch compares a photo with the others of the batch"):
        compute_score("coco", "a dog", "photo3", term="gd_batch", pool=str(six_photos.pool))


# HTTP


@pytest.fixture
def score(six_photos):
    with web.in_a_thread(scorer.app({"geg_avg": CaptionReward("geg_avg", six_photos.pool)})) as address:
        yield lambda body, path="/score", **more: web.ask(address, path, body, **more)


def test_the_server_scores_captions(score, gaps):
    status, answer = score({"texts": CAPTIONS, "photos": PHOTOS})
    assert status == 200
    assert answer["scores"]["geg_avg"] == gaps


def test_the_server_answers_what_is_wrong_in_a_sentence(score):
    for wrong, field in (
        (b"no json", ""),
        (b"[1]", ""),
        (b"[" * 99, ""),
        ({}, "texts"),
        ({"texts": [1], "photos": []}, "texts.0"),
        ({"texts": ["a"], "photos": [True]}, "photos.0"),
        ({"texts": ["a"], "photos": ["\ud800"]}, "'\\ud800' is not in this pool"),
        ({"texts": ["a"], "photos": ["\0"]}, "is not in this pool"),
    ):
        status, answer = score(wrong)
        assert (status, list(answer)) == (422, ["error"])
        assert field in answer["error"]
    assert score({"texts": ["a"], "photos": []}) == (422, {"error": "geg_avg: there are 1 captions and 0 photos."})
    status, answer = score({"texts": ["a"], "photos": ["elsewhere"]})
    assert (status, answer["error"].endswith("the photo 'elsewhere' is not in this pool.")) == (422, True)
    assert score({"texts": ["a" * (1 << 20)], "photos": ["photo1"]})[0] == 413
    for path, method in (("/other", "POST"), ("/score", "GET"), ("/score", "PUT"), ("/score", "DELETE")):
        status, answer = score(b"", path, method=method)
        assert (status in (404, 405), list(answer)) == (True, ["error"])


def test_the_server_of_this_machine_answers_no_other_name_and_no_other_site(score):
    asked = {"texts": ["a"], "photos": ["photo1"]}
    for headers in ({"Host": "evil.example"}, {"Host": "["}, {"Origin": "http://evil.example"}, {"Origin": "http://["}):
        status, answer = score(asked, **headers)
        assert (status, list(answer)) == (403, ["error"])
    assert score(asked)[0] == 200
