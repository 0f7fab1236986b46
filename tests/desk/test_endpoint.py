"""What a server is sent, how much of it at once, and what becomes of its answers."""

import hashlib
import heapq
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capscore.errors import UserError
from support.chat_server import COLOURS, about, answered, completion, endpoint, say_colour, texts
from tellapart.desk.endpoint import Pace

# What is asked, and what becomes of the answers


def test_each_photo_gets_its_own_captions_in_order_though_answers_come_out_of_order(
    serve, coloured_photos, monkeypatch
):
    delays = dict(zip(COLOURS, (0.2, 0.1, 0.15, 0.0, 0.05, 0.0), strict=True))
    finished = []

    def behave(request, colour):
        time.sleep(delays[colour])
        finished.append(colour)
        return say_colour(request, colour)

    def at_full_speed(most, timeout):
        pace = Pace(most, timeout)
        pace.level = most
        return pace

    monkeypatch.setattr("tellapart.desk.endpoint.Pace", at_full_speed)
    rows = answered(serve(behave), coloured_photos, candidates=3, at_once=6)
    assert finished[-1] == "red"
    assert [row.file for row in rows] == list(coloured_photos.values())
    for row, colour in zip(rows, COLOURS, strict=True):
        assert len(texts(row)) == 3
        assert all(caption.startswith(f"a {colour} photo") for caption in texts(row))
        assert row.sha256 == hashlib.sha256(Path(row.file).read_bytes()).hexdigest()


def test_a_photo_is_sent_small_upright_and_without_metadata(serve, tmp_path):
    pixels = np.zeros((900, 1800, 3), np.uint8)
    pixels[:, 900:] = COLOURS["white"]
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "SECRET CAMERA"  # to be turned clockwise; the maker
    Image.fromarray(pixels).save(tmp_path / "wide.jpg", exif=exif)
    server = serve()
    assert answered(server, [str(tmp_path / "wide.jpg")])[0].error == ""
    (sent,) = server.photos
    assert sent.size == (384, 768)
    top, bottom = np.asarray(sent)[:300].mean(), np.asarray(sent)[-300:].mean()
    assert top < 10 < 240 < bottom
    assert not sent.getexif()
    assert "SECRET" not in json.dumps(server.requests)


def test_a_request_has_a_photo_a_prompt_and_limits_and_goes_to_the_server_alone(serve, coloured_photos, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server = serve()
    answered(server, coloured_photos, "red", prompt="What is this?", max_tokens=77)
    answered(server, coloured_photos, "red")
    request, usual = server.requests
    assert (request["model"], request["stream"]) == ("eyes", False)
    prompts = [part["text"] for part in request["messages"][0]["content"] if part["type"] == "text"]
    assert prompts == ["What is this?"]
    assert (request["max_tokens"], usual["max_tokens"]) == (77, 2048)
    assert server.photos[0].size == (60, 40)  # a small one is not enlarged
    assert "Authorization" not in server.headers[0]


PARTS = [{"type": "text", "text": "A dog"}, {"type": "thinking", "thinking": 3}, 7, {"text": "on a sofa."}]


@pytest.mark.parametrize(
    ("answers", "captions"),
    [
        (["a dog"] * 4, ["a dog"]),
        ([None, "a dog", "I'm sorry, but I can't help with that.", "a cat"], ["a dog", "a cat"]),
        ([PARTS], ["A dog on a sofa."]),
    ],
)
def test_each_caption_counts_once_and_what_is_none_is_passed_over(serve, coloured_photos, answers, captions):
    server = serve(lambda request, colour: answers if "n" in request else answers[:1])
    (row,) = answered(server, coloured_photos, "red", candidates=1 + len(answers))
    assert (texts(row), row.error) == (captions, "")


# Requests and tokens


def summary_of(server, files, **settings):
    messages = []
    rows = answered(server, files, notify=messages.append, **settings)
    (message,) = messages
    return rows, message.removeprefix(f"{server.url}: ")


def test_a_line_at_the_end_counts_requests_and_the_tokens_that_the_server_counted(serve, coloured_photos):
    usage = {"prompt_tokens": 700, "completion_tokens": 20, "total_tokens": 720}
    server = serve(lambda request, colour: (200, completion(say_colour(request, colour), usage=usage), {}))
    files = list(coloured_photos.values())[:3]
    rows, summary = summary_of(server, files, candidates=5)
    assert all(len(texts(row)) == 5 for row in rows)
    assert summary == "6 requests (0.0 MB sent), 4200 prompt tokens and 120 completion tokens"
    _, summary = summary_of(serve(), [coloured_photos["red"]])
    assert summary == "1 request (0.0 MB sent); the server did not say how many tokens"


@pytest.mark.parametrize("count", [-5, True, 1.5, "9", None, [], {}, 10**30])
def test_counts_that_are_none_are_left_out(serve, coloured_photos, count):
    def behave(request, colour):
        tokens = 7 if colour == "red" else count
        usage = {"prompt_tokens": tokens, "completion_tokens": tokens}
        return 200, completion(say_colour(request, colour), usage=usage), {}

    _, summary = summary_of(serve(behave), [coloured_photos["red"], coloured_photos["blue"]])
    assert summary.endswith(", 7 prompt tokens and 7 completion tokens (of 1 of 2 answers)")


def test_the_run_ends_after_so_many_requests_and_what_was_answered_is_kept(serve, coloured_photos):
    server, photos = serve(), coloured_photos.values()
    rows, summary = summary_of(server, photos, max_requests=2)
    assert [row.file for row in rows] == list(photos)
    assert [row.error for row in rows if texts(row)] == ["", ""]
    left_out = "left out: the run ended after {} requests (--max-requests)"
    assert [row.error for row in rows if not texts(row)] == [left_out.format(2)] * 4
    assert (len(server.requests), summary[:11]) == (2, "2 requests ")
    # A photo whose candidates are not complete has none, or a run that goes on later would take it for done.
    rows, _ = summary_of(server, list(photos)[:2], candidates=5, max_requests=3, at_once=1)
    assert [len(texts(row)) for row in rows] == [5, 0]
    assert len(server.requests) == 2 + 3
    server = serve(lambda *_: (500, b"oops", {}))  # requests that are made again count
    rows, summary = summary_of(server, photos, max_requests=3, retries=9)
    assert rows[0].error == left_out.format(3)
    assert (len(server.requests), summary) == (3, "3 requests (0.0 MB sent); the server did not say how many tokens")


def test_the_first_caption_is_the_likeliest_and_the_others_are_samples_in_one_request(serve, coloured_photos):
    server = serve()
    (row,) = answered(server, coloured_photos, "red", candidates=4, temperature=0.7)
    assert [(r["temperature"], r.get("n", 1)) for r in server.requests] == [(0.0, 1), (0.7, 3)]
    assert texts(row) == [f"a red photo, seed {seed}, number {i}" for seed, i in ((0, 0), (1, 0), (1, 1), (1, 2))]


def ignores_n(request, colour):
    return say_colour(request | {"n": 1}, colour)


def refuses_n(request, colour):
    return (400, b'{"error": "only one choice"}', {}) if "n" in request else say_colour(request, colour)


@pytest.mark.parametrize("behave", [ignores_n, refuses_n])
def test_a_server_that_gives_one_answer_is_asked_several_times(serve, coloured_photos, behave):
    server = serve(behave)
    red, blue = answered(server, coloured_photos, "red", "blue", candidates=4, at_once=1)
    assert len(set(texts(red))) == len(set(texts(blue))) == 4
    assert all("blue" in caption for caption in texts(blue))
    assert sum("n" in request for request in server.requests) == 1  # it is not tried again with every photo
    seeds = [request["seed"] for request in server.requests if "n" not in request][-4:]
    assert len(set(seeds)) == 4


def test_the_url_may_be_short_or_whole(serve, coloured_photos):
    server = serve()
    for end in ("", "/", "/v1", "/v1/", "/v1/chat/completions", "/proxy/openai"):
        answered(server.url + end, coloured_photos, "red")
    assert server.paths == ["/v1/chat/completions"] * 5 + ["/proxy/openai/chat/completions"]


def test_photos_are_read_as_they_are_needed(serve, coloured_photos):
    taken = []

    def endless():
        while True:
            taken.append(coloured_photos["red"])
            yield coloured_photos["red"]

    answers = endpoint(serve(), at_once=2).answers_to(about(endless()))
    for _ in range(5):
        next(answers)
    answers.close()
    assert len(taken) < 20


def test_who_stops_early_need_not_wait_for_the_server(serve, coloured_photos):
    enough = threading.Event()

    def behave(request, colour):
        if colour != "red":
            enough.wait(4)
        return say_colour(request, colour)

    answers = endpoint(serve(behave), timeout=10, retries=3, back_off=10, at_once=2).answers_to(about(coloured_photos))
    next(answers)
    began = time.monotonic()
    answers.close()
    assert time.monotonic() - began < 3
    enough.set()


# The key


KEY = "sk-0123456789"


@pytest.mark.parametrize("status", [200, 400, 404, 500])
def test_a_server_that_repeats_the_key_does_not_give_it_away(serve, coloured_photos, status):
    refusal = (status, f'{{"error": {{"message": "not {KEY}!"}}}}'.encode(), {})
    server = serve(lambda request, colour: refusal if colour == "red" else say_colour(request, colour))
    try:
        said = "".join(row.error for row in answered(server, coloured_photos, "blue", "red", api_key=KEY))
    except UserError as error:
        said = str(error)
    assert "not ***!" in said
    assert KEY not in said


def test_the_key_is_sent_as_bearer_and_shown_nowhere(serve, coloured_photos):
    server = serve(lambda *_: (401, f'{{"error": "wrong key {KEY}"}}'.encode(), {}))
    asked = endpoint(server, api_key=KEY)
    with pytest.raises(UserError) as error:
        list(asked.answers_to(about(coloured_photos, "red")))
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{error.value} {asked} {asked!r}"
    assert "wrong key ***" in str(error.value)
    with pytest.raises(UserError, match="API key must be") as error:
        endpoint(server, api_key=f"{KEY}\r\nX: y")
    assert KEY not in str(error.value)


# How many requests are in flight.  The simulated servers know when each request ends; no clock is involved


def simulate(pace, requests, *, slots, seconds=lambda i: 1.0, limit=60):
    """Requests against a server that works on `slots` at a time.  Returns the levels, and how many were too late."""
    now, begun, levels, late = 0.0, 0, [], 0
    free = [0.0] * slots  # when each slot is free
    running = []  # (end, number, level, begin)
    while begun < requests or running:
        while begun < requests and pace.in_flight < pace.level:
            level = pace.enter()
            end = max(now, heapq.heappop(free)) + seconds(begun)
            heapq.heappush(free, end)
            heapq.heappush(running, (end, begun, level, now))
            begun += 1
            levels.append(pace.in_flight)
        now, _, level, began = heapq.heappop(running)
        if now - began > limit:
            late += 1
            pace.overloaded(level)
        else:
            pace.answered(level, now - began)
        pace.leave()
    return levels, late


@pytest.mark.parametrize(
    ("slots", "seconds", "most"),
    [
        (100, 1.0, 4),  # a server that works on all at once
        (1, 1.0, 4),  # one that takes one at a time, but is quick
        (1, 40.0, 1),  # a slow one: two at once would be late
        (1, 20.0, 2),
        (100, 29.0, 4),
        (100, 31.0, 1),
    ],
)
def test_as_many_are_asked_at_once_as_are_answered_in_time(slots, seconds, most):
    levels, late = simulate(Pace(4, 60), 60, slots=slots, seconds=lambda i: seconds)
    assert levels[:4] == [1] * 4
    assert (max(levels), levels[-1], late) == (most, most, 0)


def test_a_long_first_answer_does_not_count():
    """The model was loaded meanwhile."""
    assert simulate(Pace(4, 60), 60, slots=100, seconds=lambda i: 50.0 if i == 0 else 1.0)[0][-1] == 4


def test_a_server_that_is_overloaded_gets_one_at_a_time_and_never_as_many_again():
    pace = Pace(4, 60)
    simulate(pace, 60, slots=100)
    assert pace.level == 4
    for level in [pace.enter() for _ in range(4)]:  # all four fail
        pace.overloaded(level)
        pace.leave()
    assert pace.level == 1
    levels, _ = simulate(pace, 100, slots=100)
    assert levels[0] == 1
    assert max(levels) == 3


def test_who_waits_is_let_go_at_the_end():
    pace = Pace(1, 60)
    pace.enter()
    waiting = threading.Thread(target=pace.enter)
    waiting.start()
    pace.stop()
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_real_server_that_works_on_several_at_once_gets_several_but_no_more_than_allowed(serve, coloured_photos):
    def behave(request, colour):
        time.sleep(0.1)
        return say_colour(request, colour)

    server = serve(behave)
    assert not any(row.error for row in answered(server, [*coloured_photos.values()] * 4, at_once=3))
    assert 2 <= server.most <= 3
    server = serve()
    assert len(answered(server, coloured_photos, at_once=1, candidates=2)) == 6
    assert server.most == 1


@pytest.mark.slow
def test_slow_requests_that_waited_for_each_other_are_made_again_one_at_a_time(serve, coloured_photos):
    """Seven quick answers, then slow ones: two at once would be late."""
    at_work, count = threading.Lock(), iter(range(1000))

    def behave(request, colour):
        number = next(count)
        if number < 7:
            time.sleep(0.02)
        else:
            with at_work:
                time.sleep(0.3)
        return say_colour(request, colour)

    rows = answered(serve(behave), [*coloured_photos.values()] * 2, at_once=4, timeout=0.55, retries=2)
    assert [row.error for row in rows] == [""] * 12
