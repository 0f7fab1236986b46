"""`make reproduce`: each of its commands is one that tellapart takes, and what it packs is what the chains make."""

import runpy
import sys

from support.doc_pages import ROOT
from tellapart.commands.train import asked
from tellapart.training import chain

SCRIPT = ROOT / "scripts" / "reproduce.py"


def commands(tmp_path, monkeypatch, *options):
    """What it would run, in its order; nothing is run."""
    script, ran = runpy.run_path(str(SCRIPT)), []
    made = script["main"].__globals__
    (tmp_path / "msrvtt").mkdir(exist_ok=True)
    (tmp_path / "msrvtt" / "captions.json").touch()
    for stage in script["EMBEDDED"]:
        (tmp_path / "out" / "runs" / stage).mkdir(parents=True, exist_ok=True)
    monkeypatch.setitem(made, "run", lambda *words, folder: ran.append([str(word) for word in words]))
    given = [str(tmp_path), "--detector", "yolox_nano.onnx", "--out", str(tmp_path / "out"), *options]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given])
    script["main"]()
    return ran


def test_its_commands_are_taken_and_its_models_are_results_of_the_chains(tmp_path, monkeypatch):
    trained, used = set(), set()
    for command, *words in commands(tmp_path, monkeypatch, "--bundle"):
        if command == "train":
            request = asked(words)
            folder = words[words.index("--out") + 1]
            names = {job.name for job in chain.jobs(request.recipe)} if isinstance(request.recipe, list) else {""}
            trained |= {f"{folder}/{name}".rstrip("/") for name in names}
        elif command == "evaluate":
            used |= {word for word in words if word.startswith("runs/")} - {"runs/features", "runs/test"}
        else:
            used |= {"runs/" + word.rpartition("/runs/")[2] for word in words if "/runs/" in word}
    assert used >= {"runs/plain/plain", "runs/distinctive/distinctive", "runs/plain/tuned", "runs/clips"}
    assert used <= trained


def test_nothing_is_packed_unless_it_is_asked_for(tmp_path, monkeypatch):
    assert {words[0] for words in commands(tmp_path, monkeypatch)} == {"train", "evaluate"}


def test_another_seed_is_that_of_every_run_but_the_names_stay(tmp_path, monkeypatch):
    for command, *words in commands(tmp_path, monkeypatch, "--seed", "100"):
        if command == "train":
            what = asked(words).recipe
            seeds = (
                {job.name: job.recipe.seed for job in chain.jobs(what) if job.recipe}
                if type(what) is list
                else {"": what.seed}
            )
            assert seeds == {name: 100 + int(name[-1]) if "/seed" in name else 100 for name in seeds}
