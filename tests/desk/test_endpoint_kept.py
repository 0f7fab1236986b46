"""Answers that were paid for and are in no file yet: a run that was stopped asks for them once only."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.chat_server import about, answered, completion, endpoint, first_captions
from tellapart.desk.endpoint import KeptAnswers


@pytest.fixture(autouse=True)
def cache(own_cache):
    return own_cache


def kept(server, messages=None):
    return KeptAnswers(server.url, ([] if messages is None else messages).append)


def asked(server, photos, **settings):
    before = len(server.requests)
    captions = first_captions(answered(server, photos, kept=kept(server), **settings))
    return captions, len(server.requests) - before


def test_what_was_answered_is_not_asked_again_until_it_is_saved(serve, coloured_photos):
    server, photos = serve(), list(coloured_photos.values())
    first = endpoint(server, kept=kept(server), candidates=3)
    rows = list(first.answers_to(about(photos[:4])))
    again, requests = asked(server, photos, candidates=3)
    assert requests == 2 * 2  # of each photo that is new, the likeliest and the others
    assert again[:4] == first_captions(rows)
    first.kept.forget(photos[:1])
    assert asked(server, photos, candidates=3)[1] == 2


@pytest.mark.parametrize(
    "settings", [{"prompt": "What is it?"}, {"max_tokens": 5}, {"candidates": 2, "temperature": 0.1}]
)
def test_an_answer_to_something_else_or_of_another_picture_is_none(serve, coloured_photos, settings):
    server = serve()
    photos = [coloured_photos["red"]]
    assert asked(server, photos, candidates=settings.get("candidates", 1))[1] > 0
    assert asked(server, photos, **settings)[1] > 0
    assert asked(serve(), photos)[1] == 1  # another server
    Path(coloured_photos["blue"]).replace(coloured_photos["red"])
    assert first_captions(answered(server, photos, kept=kept(server))) == ["a blue photo, seed 0, number 0"]


def test_an_answer_without_a_caption_is_asked_for_again(serve, coloured_photos):
    server = serve(lambda *_: (200, completion(["I'm sorry, but I can't help with that."]), {}))
    for _ in range(2):
        assert asked(server, [coloured_photos["red"]])[1] == 1


@pytest.mark.parametrize("damage", ["a file", "a link", "a folder in place of an answer"])
def test_a_cache_that_is_damaged_stops_nothing(serve, coloured_photos, cache, damage):
    cache.mkdir()
    server, messages = serve(), []
    if damage == "a file":
        (cache / "answers").write_bytes(b"no folder")
    elif damage == "a link":
        (cache / "answers").symlink_to(cache / "elsewhere")
    else:
        asked(server, list(coloured_photos.values()))
        for answer in (cache / "answers").iterdir():
            answer.unlink()
            answer.mkdir()
    assert not any(row.error for row in answered(server, coloured_photos, kept=kept(server, messages)))
    assert len(messages) == 1
    assert not (cache / "elsewhere").exists()


def test_old_answers_and_too_many_go(serve, coloured_photos, cache, monkeypatch):
    server, folder = serve(), cache / "answers"
    asked(server, list(coloured_photos.values()))
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr("tellapart.desk.endpoint._MOST", 500)
    kept(server).get("a.jpg", b"")
    assert 300 < sum(answer.stat().st_size for answer in folder.iterdir()) <= 500
    for answer in folder.iterdir():
        os.utime(answer, (0, time.time() - 40 * 86400))
    kept(server).get("a.jpg", b"")
    assert list(folder.iterdir()) == []


def test_an_answer_that_another_run_takes_away_meanwhile_ends_nothing(serve, cache):
    server = serve()
    kept(server).put("a.jpg", b"asked", b"answer")
    (cache / "answers" / "gone").symlink_to(cache / "answers" / "nothing")  # stat fails as of a file that has gone
    assert kept(server).get("a.jpg", b"asked") == b"answer"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("out", [True, False])
def test_a_run_that_is_stopped_costs_no_answer(serve, coloured_photos, small_retriever, tmp_path, cache, how, out):
    answered, half, stopped = [], threading.Event(), threading.Event()

    def behave(request, colour):
        if len(answered) >= 9:  # half of all
            half.set()
            stopped.wait(60)
        answered.append(colour)
        return ["a photo"] * request.get("n", 1)  # the same of all, so that each is asked about again

    server, photos = serve(behave), list(coloured_photos.values())
    words = [sys.executable, "-m", "tellapart", "caption", *photos, "--among", *photos, "--retriever", small_retriever]
    words += ["--endpoint", server.url, "--endpoint-model", "eyes"]
    words += ["--out", tmp_path / "out.jsonl"] if out else []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert half.wait(100)
        process.send_signal(how)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
            stopped.set()
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    second = subprocess.run(words, capture_output=True, timeout=120, check=True)
    both, server.requests[:] = len(server.requests), []
    assert b"of a run that was stopped" in second.stderr
    fresh = [*words[:-1], tmp_path / "fresh.jsonl"] if out else words
    subprocess.run(fresh, capture_output=True, timeout=120, check=True)
    assert len(server.requests) == 6 * 3
    assert both <= 6 * 3 + 4  # those that were on their way
