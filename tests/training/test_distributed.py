"""Several processes train as one: they end with its weights, speak with one voice, and survive the death of one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from capscore import meteor
from capscore.errors import UserError
from detectors import tiny_yolox
from tellapart.distributed import ProcessGroup
from tellapart.rewards.preference import Preference
from tellapart.rewards.registry import REWARDS
from training.runs import assert_same_tensors, tensors_of, train

SCRIPT = Path(__file__).with_name("world_of_two.py")
# 29 photos in batches of 7: shares of 3 and 4, and a last batch of one photo, of which one process has nothing.  At a
# higher learning rate AdamW makes more than 1e-5 of the rounding in gradients that are 0, such as those of key biases.
COMMON = (
    "--data.limit=29",
    "--batch_size=7",
    "--epochs=3",
    "--validation.every=2",
    "--save_minutes=60",
    "--optim.lr=3e-4",
)
NO_DRAWS = ("--model.dropout=0", "--objective.scheduled_sampling.start=-1")
RETRIEVER = (
    "--retriever=word_tower",
    "--model={size: 32, word_size: 16, channels: 16, dropout: 0, word_dropout: 0}",
    "--validation.metric=R@1",
    "--optim.accumulate=1",
)
RUNS = {
    "cross_entropy": (*NO_DRAWS, "--optim.clip_norm=0.5"),
    "policy_gradient": (  # a beam draws nothing; spreads and running means are those of both processes
        *NO_DRAWS,
        "--objective.name=policy_gradient",
        "--objective.policy={sampler: beam, samples: 3, baseline: leave_one_out}",
        "--objective.rewards.weights={rouge_l: 1.0, faithful: 1.0, different: 1.0}",
        "--objective.rewards.balance=true",
        "--validation.metric=last",
    ),
    "running_mean": (
        *NO_DRAWS,
        "--objective.name=policy_gradient",
        "--objective.policy={sampler: greedy, samples: 1, baseline: running_mean, reduction: sentence_mean}",
        "--objective.rewards.weights={faithful: 1.0}",
        "--validation.metric=last",
    ),
    "info_nce": (*RETRIEVER, "--objective.name=info_nce"),
    "max_violation": (*RETRIEVER, "--objective.name=max_violation", "--objective.all_negatives=2"),
}


REWARDED = {  # by every reward there is; in the last batch, of one photo, a process has no caption to compare with
    "every_reward": ("--objective.policy={sampler: beam, samples: 3, references: 1, baseline: greedy}",),
    "whitened": ("--objective.policy={sampler: beam, samples: 2, whiten: batch, kl: 0.1, reduction: sentence_mean}",),
}


@pytest.fixture(scope="module")
def rewarded(recipe, uninterrupted, tmp_path_factory):
    """The arguments of these runs."""
    folder = tmp_path_factory.mktemp("rewarded")
    towers = {"listener": "word_tower", "other": "word_tower", "reader": "text_tower"}
    for seed, (name, tower) in enumerate(towers.items()):
        retriever = (f"--retriever={tower}", *RETRIEVER[1:], "--objective.name=info_nce", f"--seed={seed}")
        two = ("--data.captions_per_photo=2", "--max_steps=2")
        train(recipe, folder / name, *retriever, *two)
    Preference({"a": 1.0, "red": 2.0}, -1.0, 0.0, 1.0).save(folder / "liked.json")
    detector = tiny_yolox.write(folder / "tiny.onnx", tiny_yolox.nothing(classes=80))
    names = [name for name in REWARDS if name != "meteor" or meteor.available() is None]
    given = (
        *NO_DRAWS,
        f"--init_from={uninterrupted}",
        f"--detector={detector}",
        "--objective.name=policy_gradient",
        f"--objective.rewards.weights={json.dumps(dict.fromkeys(names, 0.1))}",
        f"--objective.rewards.image_retriever={folder / 'listener'}",
        f"--objective.rewards.other_retrievers=[{folder / 'other'}]",
        f"--objective.rewards.text_retriever={folder / 'reader'}",
        f"--objective.rewards.preferences={folder / 'liked.json'}",
        "--objective.rewards.scale=10",
        "--validation.metric=last",
        "--optim.accumulate=1",
        "--optim.lr=1e-5",
        "--epochs=1",
    )
    return {name: (*given, *arguments) for name, arguments in REWARDED.items()}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def two_processes(*arguments):
    """Start Python twice, as torchrun does: exit code, stdout and stderr of each."""
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    command, pipes = [sys.executable, *map(str, arguments)], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(command, env=shared | {"RANK": rank, "LOCAL_RANK": rank}, text=True, **pipes)
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=300) for process in started]
    return [(process.returncode, out, err) for process, (out, err) in zip(started, said, strict=True)]


@pytest.fixture(scope="module")
def two(recipe, rewarded, tmp_path_factory):
    """What two processes made of all these runs: their folder, and how they ended for each process."""
    folder = tmp_path_factory.mktemp("two")

    def begun(name, *arguments, fault=None, out=None):
        return name, [str(recipe), f"--out={folder / (out or name)}", *COMMON, *arguments], fault

    features = f"--data.features={folder / 'features'}"
    runs = [begun(name, *arguments, features) for name, arguments in (RUNS | rewarded).items()]
    runs += [
        begun("left", *RUNS["cross_entropy"], fault="interrupted"),
        begun("whole"),
        begun("interrupted", fault="interrupted"),
        begun("resumed", "--resume", out="interrupted"),
        begun("taken", out="whole"),
        begun("nan", fault="nan"),
        begun("different", fault="fewer photos"),
    ]
    (folder / "runs.json").write_text(json.dumps(runs))
    for code, _, err in two_processes(SCRIPT, folder):
        assert code == 0, err

    def ended(name):
        return [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(2)]

    return folder, ended


def assert_same_run(run, other, logged):
    assert_same_tensors(run, other)
    assert logged(run) == logged(other)
    assert sorted(file.name for file in run.iterdir()) == sorted(file.name for file in other.iterdir())


# --- two are as one ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RUNS, *REWARDED])
def test_two_processes_end_with_the_weights_of_one_that_has_the_joined_batches(
    two, recipe, rewarded, tmp_path, logged, name
):
    out, (folder, ended) = tmp_path / "one", two
    position = train(recipe, out, *COMMON, *(RUNS | rewarded)[name]).position
    for other in ended(name):
        assert (other["step"], other["best_step"]) == (position.step, position.best_step)
    expected, joined = tensors_of(out), tensors_of(folder / name)
    assert expected.keys() | {"random/1/cpu"} == joined.keys()
    for key, tensor in expected.items():
        if key.startswith("model/"):
            assert (joined[key] - tensor).abs().max() < 1e-5, key
        if key.endswith("exp_avg"):  # the mean gradient, in which AdamW has hidden nothing
            assert (joined[key] - tensor).abs().max() < 2e-5 * tensor.abs().max() + 1e-9, key
    lines, others = logged(out), logged(folder / name)
    assert [other.keys() for other in others] == [line.keys() for line in lines]
    for line, other in zip(lines, others, strict=True):
        assert other.pop("dtype") == line.pop("dtype") == "fp32"
        assert other == pytest.approx(line, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_features_are_computed_by_one_process_alone(two, small_world):
    (store,) = (two[0] / "features").glob("toy_world.*")
    expected = small_world / "features" / store.name
    rows, others = ((folder / "rows.jsonl").read_text().splitlines() for folder in (store, expected))
    ids = [json.loads(row)["id"] for row in rows]
    assert len(ids) == len(set(ids)) == 29 + 5
    assert set(ids) < {json.loads(row)["id"] for row in others}


@pytest.mark.slow
def test_one_process_under_torchrun_is_one_process(tellapart, recipe, uninterrupted, tmp_path, logged, monkeypatch):
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert tellapart("train", recipe, "--out", tmp_path / "run")[0] == 0
    assert_same_run(tmp_path / "run", uninterrupted, logged)


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_signal_to_one_process_stops_both_and_both_go_on_as_if_nothing_had_been(two, logged):
    folder, ended = two
    assert ended("interrupted") == [{"error": "interrupted"}] * 2
    resumed, whole = ([process["drawn"] for process in ended(name)] for name in ("resumed", "whole"))
    assert resumed == whole
    assert whole[0] != whole[1]  # each process has draws of its own
    assert_same_run(folder / "interrupted", folder / "whole", logged)


def test_one_process_goes_on_with_what_two_began(two, recipe):
    folder, ended = two
    assert ended("left") == [{"error": "interrupted"}] * 2
    assert train(recipe, folder / "left", *COMMON, *RUNS["cross_entropy"], resume=True).position.step == 7
    left, expected = (tensors_of(folder / name, "best") for name in ("left", "cross_entropy"))
    for key, tensor in expected.items():
        assert (left[key] - tensor).abs().max() < 1e-5, key


def test_a_loss_that_is_no_number_stops_both_with_the_photos_of_the_one_that_had_it(two, small_world):
    first, second = two[1]("nan")
    assert first == second
    said = first["error"]
    assert said.startswith("the loss is nan at step 3; the batch has the photos ")
    # The fifth batch of 29 photos in sevens has the one photo that is left.
    order = np.random.default_rng((0, 0)).permutation(29)
    photos = [
        image["id"]
        for image in json.loads((small_world / "toy" / "captions.json").read_text())["images"]
        if image["split"] == "train"
    ][:29]
    assert said.endswith(f"the photos {photos[order[28]]}.")


@pytest.mark.parametrize(
    ("name", "problem"),
    [("taken", "holds a run already"), ("different", "of process 1 are not those of process 0")],
)
def test_what_one_process_sees_stops_both(two, name, problem):
    """What only the first can see; and photos that are not the same for all."""
    folder, ended = two
    first, second = ended(name)
    assert first == second
    assert problem in first["error"]
    assert not (folder / "different" / "last.safetensors").exists()


@pytest.mark.slow
def test_a_mistake_in_a_recipe_is_told_once(recipe, tmp_path):
    arguments = ("train", recipe, "--out", tmp_path / "run", "--optim.lr=-1")
    first, second = two_processes("-m", "tellapart", *arguments)
    assert (first[0], first[1]) == (2, "")
    assert first[2].count("tellapart train: optim.lr must be at least 0, not -1.0.") == 1
    assert "Traceback" not in first[2]
    assert second[0] == 2
    assert "optim.lr" not in second[2]
    assert "Traceback" not in second[2]
    assert not (tmp_path / "run").exists()


def test_an_error_leaves_no_group_behind(monkeypatch):
    """Its threads would abort the process now and then as it exits, in place of the exit code."""
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)

    def end_with_an_error():
        with ProcessGroup.from_environment():
            assert torch.distributed.is_initialized()
            raise UserError("a mistake")

    with pytest.raises(UserError, match="a mistake"):
        end_with_an_error()
    assert not torch.distributed.is_initialized()


def test_a_variable_that_is_not_torchruns_is_named(tellapart, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    code, _, err = tellapart("train", recipe, "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "torchrun --nproc-per-node 2" in err


# --- death ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def torchrun():
    """Start a command as two processes that are started again if one fails; the launcher and its children."""
    started = []

    def start(*arguments):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
        command = [sys.executable, *launcher, "-m", "tellapart", *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.terminate()  # it ends its children
        process.communicate()


def worker(launcher, rank):
    """The process of that rank."""
    for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return int(pid)
    raise LookupError(rank)


def steps_done(run):
    log = run / "log.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []  # the last may be being written
    return max((json.loads(line)["step"] for line in lines), default=0)


@pytest.mark.slow
def test_a_run_goes_on_after_one_of_its_processes_was_killed(two, recipe, tmp_path, logged, torchrun):
    for attempt in range(5):  # a busy machine may let it end before we have seen that it began
        out = tmp_path / f"run{attempt}"
        launcher = torchrun("train", recipe, "--out", out, *COMMON, "--save_minutes=0", "--resume")
        deadline = time.monotonic() + 240
        while not steps_done(out):
            assert launcher.poll() is None, launcher.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        if launcher.poll() is None and steps_done(out) < 5:
            break
        launcher.communicate(timeout=300)
    first, second = (worker(launcher, rank) for rank in range(2))
    os.kill(second, signal.SIGKILL)
    killed = time.monotonic()
    while Path(f"/proc/{first}").exists():
        assert time.monotonic() - killed < 100, "the process that is left waits for the one that is dead"
        time.sleep(0.01)
    said, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, err
    assert "Traceback" not in err
    assert said.count("all epochs done after 7 steps") == 1
    assert_same_run(out, two[0] / "whole", logged)
