"""Against a real server on this machine that speaks the protocol, and one that speaks it badly."""

import hashlib
import json
import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from chat_server import COLOURS, Server, completion, say_colour
from tellapart.endpoint import Endpoint, caption_in
from tellapart.errors import UserError


def endpoint(server, **settings):
    """One caption a photo and no waiting, unless a test is about these."""
    url = server if isinstance(server, str) else server.url
    return Endpoint(url, "eyes", **{"candidates": 1, "timeout": 5.0, "retries": 0, "back_off": 0.001} | settings)


def first_captions(spoken):
    return [row.captions[0] if row.captions else row.error for row in spoken]


# What is asked, and what becomes of the answers


def test_each_photo_gets_its_own_captions_in_order_though_answers_come_out_of_order(serve, coloured_photos):
    delays = dict(zip(COLOURS, (0.2, 0.1, 0.15, 0.0, 0.05, 0.0), strict=True))

    def behave(request, colour):
        time.sleep(delays[colour])
        return say_colour(request, colour)

    spoken = list(endpoint(serve(behave), candidates=3, at_once=6).candidates_of(coloured_photos.values()))
    assert [row.file for row in spoken] == list(coloured_photos.values())
    for row, colour in zip(spoken, COLOURS, strict=True):
        assert len(row.captions) == 3
        assert all(caption.startswith(f"a {colour} photo") for caption in row.captions)
        with open(row.file, "rb") as file:  # noqa: PTH123
            assert row.sha256 == hashlib.sha256(file.read()).hexdigest()


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_requests_at_once_than_allowed(serve, coloured_photos, at_once):
    def behave(request, colour):
        time.sleep(0.03)
        return say_colour(request, colour)

    server = serve(behave)
    assert (
        len(list(endpoint(server, candidates=2, at_once=at_once).candidates_of([*coloured_photos.values()] * 2))) == 12
    )
    assert server.most == at_once


def test_a_photo_is_sent_small_upright_and_without_metadata(serve, tmp_path):
    pixels = np.zeros((900, 1800, 3), np.uint8)
    pixels[:, 900:] = COLOURS["white"]
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "SECRET CAMERA"  # to be turned clockwise; the maker
    Image.fromarray(pixels).save(tmp_path / "wide.jpg", exif=exif)
    server = serve()
    assert next(endpoint(server).candidates_of([str(tmp_path / "wide.jpg")])).error == ""
    (sent,) = server.photos
    assert sent.size == (384, 768)
    top, bottom = np.asarray(sent)[:300].mean(), np.asarray(sent)[-300:].mean()
    assert top < 10 < 240 < bottom
    assert not sent.getexif()
    assert "SECRET" not in json.dumps(server.requests)


def test_a_small_photo_is_not_enlarged(serve, coloured_photos):
    server = serve()
    list(endpoint(server).candidates_of([coloured_photos["red"]]))
    assert server.photos[0].size == (60, 40)


def test_the_request_names_model_and_prompt(serve, coloured_photos):
    server = serve()
    list(endpoint(server, prompt="What is this?").candidates_of([coloured_photos["red"]]))
    (request,) = server.requests
    assert (request["model"], request["stream"]) == ("eyes", False)
    texts = [part["text"] for part in request["messages"][0]["content"] if part["type"] == "text"]
    assert texts == ["What is this?"]


def test_the_first_caption_is_the_likeliest_and_the_others_are_samples_in_one_request(serve, coloured_photos):
    server = serve()
    (row,) = endpoint(server, candidates=4, temperature=0.7).candidates_of([coloured_photos["red"]])
    assert [(r["temperature"], r.get("n", 1)) for r in server.requests] == [(0.0, 1), (0.7, 3)]
    assert row.captions == [
        "a red photo, seed 0, number 0",
        *(f"a red photo, seed 1, number {i}" for i in range(3)),
    ]


def ignores_n(request, colour):
    return say_colour(request | {"n": 1}, colour)


def refuses_n(request, colour):
    return (400, b'{"error": "only one choice"}', {}) if "n" in request else say_colour(request, colour)


@pytest.mark.parametrize(("behave", "with_n"), [(ignores_n, 1), (refuses_n, 1)])
def test_a_server_that_gives_one_answer_is_asked_several_times(serve, coloured_photos, behave, with_n):
    server = serve(behave)
    files = [coloured_photos["red"], coloured_photos["blue"]]
    red, blue = endpoint(server, candidates=4, at_once=1).candidates_of(files)
    assert len(set(red.captions)) == len(set(blue.captions)) == 4
    assert all("blue" in caption for caption in blue.captions)
    assert sum("n" in request for request in server.requests) == with_n  # it is not tried again with every photo
    seeds = [request["seed"] for request in server.requests if "n" not in request][-4:]
    assert len(set(seeds)) == 4


def test_a_caption_that_is_said_twice_is_there_once(serve, coloured_photos):
    server = serve(lambda request, colour: ["a dog"] * request.get("n", 1))
    (row,) = endpoint(server, candidates=5).candidates_of([coloured_photos["red"]])
    assert row.captions == ["a dog"]


def test_an_answer_without_text_among_others_is_passed_over(serve, coloured_photos):
    server = serve(lambda request, colour: [None if i % 2 else f"text {i}" for i in range(request.get("n", 1))])
    (row,) = endpoint(server, candidates=5).candidates_of([coloured_photos["red"]])
    assert (row.captions, row.error) == (["text 0", "text 2"], "")


@pytest.mark.parametrize(
    ("end", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/proxy/openai", "/proxy/openai/chat/completions"),
    ],
)
def test_the_url_may_be_short_or_whole(serve, coloured_photos, end, path):
    server = serve()
    list(endpoint(server.url + end).candidates_of([coloured_photos["red"]]))
    assert server.paths == [path]


def test_proxies_are_not_asked(serve, coloured_photos, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (row,) = endpoint(serve()).candidates_of([coloured_photos["red"]])
    assert row.error == ""


def test_photos_are_read_as_they_are_needed(serve, coloured_photos):
    taken = []

    def endless():
        while True:
            taken.append(coloured_photos["red"])
            yield coloured_photos["red"]

    spoken = endpoint(serve(), at_once=2).candidates_of(endless())
    for _ in range(5):
        next(spoken)
    spoken.close()
    assert len(taken) < 20


# What goes wrong with a photo


def test_photos_that_cannot_be_read_are_named_and_the_rest_goes_on(serve, coloured_photos, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    files = [
        str(tmp_path / "missing.jpg"),
        coloured_photos["red"],
        str(tmp_path / "broken.jpg"),
        coloured_photos["blue"],
    ]
    server = serve()
    missing, red, broken, blue = endpoint(server).candidates_of(files)
    assert missing.error == "there is no such file"
    assert broken.error.startswith("is ")
    assert (missing.captions, broken.captions) == ([], [])
    assert first_captions([red, blue]) == ["a red photo, seed 0, number 0", "a blue photo, seed 0, number 0"]
    assert len(server.requests) == 2


def fails_first(times, answer):
    """A behaviour that goes wrong with the first requests for a photo."""
    seen = {}

    def behave(request, colour):
        seen[colour] = seen.get(colour, 0) + 1
        return answer if seen[colour] <= times else say_colour(request, colour)

    return behave


TRANSIENT = [
    (500, b"oops", {}),
    (503, b'{"error": {"message": "Loading model"}}', {}),
    (429, b"", {"Retry-After": "nonsense"}),
    (429, b"", {"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}),
    b"",  # hangs up without a word
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",  # hangs up in the middle
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
]


@pytest.mark.parametrize("answer", TRANSIENT)
def test_what_may_pass_is_tried_again(serve, coloured_photos, answer):
    server = serve(fails_first(2, answer))
    spoken = list(endpoint(server, retries=2).candidates_of([coloured_photos["red"], coloured_photos["blue"]]))
    assert first_captions(spoken) == ["a red photo, seed 0, number 0", "a blue photo, seed 0, number 0"]
    assert len(server.requests) == 6


def test_what_does_not_pass_is_the_photos_error(serve, coloured_photos):
    server = serve(lambda request, colour: TRANSIENT[1] if colour == "red" else say_colour(request, colour))
    blue, red, green = endpoint(server, retries=2).candidates_of(
        [coloured_photos["blue"], coloured_photos["red"], coloured_photos["green"]]
    )
    assert red.error == "the server answers 503 (Loading model)"
    assert len(server.requests) == 1 + 3 + 1
    assert (blue.error, green.error) == ("", "")


def test_the_server_may_say_how_long_to_wait(serve, coloured_photos):
    server = serve(fails_first(1, (429, b"", {"Retry-After": "1"})))
    began = time.monotonic()
    (row,) = endpoint(server, retries=1).candidates_of([coloured_photos["red"]])
    assert row.error == ""
    assert time.monotonic() - began >= 1.0


def test_waits_grow(serve, coloured_photos):
    server = serve(fails_first(3, (500, b"", {})))
    began = time.monotonic()
    list(endpoint(server, retries=3, back_off=0.05).candidates_of([coloured_photos["red"]]))
    assert time.monotonic() - began >= 0.05 + 0.1 + 0.2


def test_a_server_that_is_too_slow_is_the_photos_error(serve, coloured_photos):
    enough = threading.Event()

    def behave(request, colour):
        if colour == "red":
            asked.append(colour)
            enough.wait(10)
        return say_colour(request, colour)

    asked = []
    red, blue = endpoint(serve(behave), timeout=0.4, retries=1).candidates_of(
        [coloured_photos["red"], coloured_photos["blue"]]
    )
    enough.set()
    assert red.error == "the server took longer than 0.4 s"
    assert blue.error == ""
    assert len(asked) == 2


def test_a_server_that_drips_does_not_stretch_the_time(coloured_photos):
    """A byte now and then: a socket's own time limit would never be met."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 500:
                        connection.send(bytes([byte]))
                        time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        (row,) = endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3).candidates_of(
            [coloured_photos["red"]]
        )
        assert row.error == "the server took longer than 0.3 s"
        assert time.monotonic() - began < 3


RUBBISH = {
    "a page": (b"<html><body>Welcome to nginx!</body></html>", "not JSON"),
    "broken JSON": (b'{"choices": [', "not JSON"),
    "no text at all": (b"", "not JSON"),
    "not UTF-8": (b"\xff\xfe\xfa", "not JSON"),
    "nested too deeply": (b"[" * 100_000, "not JSON"),
    "a list": (b"[1, 2]", "no choices"),
    "another shape": (b'{"response": "a dog"}', "no choices"),
    "an error": (b'{"error": {"message": "out of memory"}}', "no choices (out of memory)"),
    "no choices": (b'{"choices": []}', "no choices"),
    "choices of another shape": (b'{"choices": [3]}', "no text"),
    "null": (completion([None]), "no text"),
    "blank": (completion([" \n\t "]), "no text"),
    "punctuation": (completion(['"..."']), "no text"),
    "only thoughts": (completion(["<think>I see a dog"]), "no text"),
    "megabytes": (completion(["dog " * 1_000_000]), "more than 1 MB"),
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_the_photos_error_and_the_rest_goes_on(serve, coloured_photos, kind):
    body, sentence = RUBBISH[kind]
    server = serve(lambda request, colour: (200, body, {}) if colour == "red" else say_colour(request, colour))
    red, blue = endpoint(server, candidates=2).candidates_of([coloured_photos["red"], coloured_photos["blue"]])
    assert red.captions == []
    assert red.error.startswith("the server")
    assert sentence in red.error
    assert len(blue.captions) == 2


def test_a_server_that_dies_halfway_costs_the_photos_that_are_left(coloured_photos):
    server = Server(say_colour)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    spoken = endpoint(server, retries=1, at_once=1).candidates_of([*coloured_photos.values()] * 3)
    rows = [next(spoken)]
    server.shutdown()
    server.server_close()
    rows += spoken
    assert [row.file for row in rows] == [*coloured_photos.values()] * 3
    assert first_captions(rows)[0] == "a red photo, seed 0, number 0"
    assert rows[-1].error.startswith("the server cannot be reached (")
    assert all(bool(row.captions) != bool(row.error) for row in rows)


# What is wrong with the request


def test_a_server_that_is_not_there_is_one_sentence_with_its_url(coloured_photos):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    with pytest.raises(UserError, match=rf"^{url}: the server cannot be reached \(Connection refused\)\.$"):
        list(endpoint(url, retries=1).candidates_of(coloured_photos.values()))


def test_something_that_is_no_web_server_is_a_wrong_request(serve, coloured_photos):
    with pytest.raises(UserError, match="broke the connection off"):
        list(endpoint(serve(lambda *_: b"SSH-2.0-OpenSSH_9.6\r\n")).candidates_of(coloured_photos.values()))


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (
            404,
            b'{"error": {"message": "model \\"eyes\\" not found"}}',
            'the server answers 404 (model "eyes" not found).',
        ),
        (404, b"<html>nginx</html>", "the server answers 404 (Not Found)."),
        (404, b'{"detail": "Not Found"}', "the server answers 404 (Not Found)."),
        (
            400,
            b'{"error": "this model cannot\\n\\u001b[31m see"}',
            "the server answers 400 (this model cannot [31m see).",
        ),
        (401, b'{"message": "no key"}', "the server answers 401 (no key)."),
        (403, b"x" * 5000, f"the server answers 403 ({'x' * 200})."),
    ],
)
def test_what_the_server_refuses_is_one_sentence_in_its_words(serve, coloured_photos, status, body, sentence):
    server = serve(lambda *_: (status, body, {}))
    with pytest.raises(UserError) as error:
        list(endpoint(server, retries=3).candidates_of(coloured_photos.values()))
    assert str(error.value) == f"{server.url}: {sentence}"


def test_what_the_server_refuses_later_is_the_photos_error(serve, coloured_photos):
    refusal = (400, b'{"error": "I do not like red"}', {})
    server = serve(lambda request, colour: refusal if colour == "red" else say_colour(request, colour))
    blue, red, green = endpoint(server, retries=2).candidates_of(
        [coloured_photos["blue"], coloured_photos["red"], coloured_photos["green"]]
    )
    assert (blue.error, red.error, green.error) == ("", "the server answers 400 (I do not like red)", "")


def test_redirects_are_not_followed(serve, coloured_photos):
    other = serve()
    server = serve(lambda *_: (307, b"", {"Location": f"{other.url}/v1/chat/completions"}))
    with pytest.raises(UserError, match=f"points to '{other.url}/v1/chat/completions'; redirects are not followed"):
        list(endpoint(server, api_key="sk-secret").candidates_of([coloured_photos["red"]]))
    assert other.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "ftp://localhost/v1",
        "file:///etc/passwd",
        "http://",
        "http://localhost:port",
        "http://localhost:99999",
        "http://[::1",
        "http://user:word@localhost",
        "http://localhost/v1?key=3",
        "http://localhost/v 1",
        "http://localhost/v1\r\nX: y",
        "http://h\u00f6st/v1",
        "",
    ],
)
def test_a_url_that_is_none_is_refused_before_anything_is_sent(url):
    with pytest.raises(UserError, match="the server's URL must"):
        Endpoint(url, "eyes")


def test_a_model_must_be_named():
    with pytest.raises(UserError, match="model must be named"):
        Endpoint("http://localhost", "")


# The key


KEY = "sk-0123456789"


@pytest.mark.parametrize("status", [200, 400, 404, 500])
def test_a_server_that_repeats_the_key_does_not_give_it_away(serve, coloured_photos, status):
    refusal = (status, f'{{"error": {{"message": "not {KEY}!"}}}}'.encode(), {})
    server = serve(lambda request, colour: refusal if colour == "red" else say_colour(request, colour))
    said = ""
    try:
        for row in endpoint(server, api_key=KEY).candidates_of([coloured_photos["blue"], coloured_photos["red"]]):
            said += row.error
    except UserError as error:
        said = str(error)
    assert "not ***!" in said
    assert KEY not in said


def test_the_key_is_sent_as_bearer_and_shown_nowhere(serve, coloured_photos):
    server = serve(lambda *_: (401, f'{{"error": "wrong key {KEY}"}}'.encode(), {}))
    asked = endpoint(server, api_key=KEY)
    with pytest.raises(UserError) as error:
        list(asked.candidates_of([coloured_photos["red"]]))
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{error.value} {asked} {asked!r}"
    assert "wrong key ***" in str(error.value)
    with pytest.raises(UserError, match="API key must be") as error:
        endpoint(server, api_key=f"{KEY}\r\nX: y")
    assert KEY not in str(error.value)


def test_without_a_key_none_is_sent(serve, coloured_photos):
    server = serve()
    list(endpoint(server).candidates_of([coloured_photos["red"]]))
    assert "Authorization" not in server.headers[0]


def test_who_stops_early_need_not_wait_for_the_server(serve, coloured_photos):
    enough = threading.Event()

    def behave(request, colour):
        if colour != "red":
            enough.wait(10)
        return say_colour(request, colour)

    spoken = endpoint(serve(behave), timeout=10, retries=3, back_off=10, at_once=2).candidates_of(
        coloured_photos.values()
    )
    next(spoken)
    began = time.monotonic()
    spoken.close()
    assert time.monotonic() - began < 3
    enough.set()


# The caption in an answer


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("A dog on a sofa.", "A dog on a sofa."),
        ("  A dog\n on a sofa. \n", "A dog on a sofa."),
        ('"A dog on a sofa."', "A dog on a sofa."),
        ("\u201cA dog on a sofa.\u201d", "A dog on a sofa."),
        ('"Stop" and "go" are painted on the road', '"Stop" and "go" are painted on the road'),
        ('"Stop", says a sign that reads "no"', '"Stop", says a sign that reads "no"'),
        ("Caption: A dog on a sofa.", "A dog on a sofa."),
        ("**Caption:** A dog on a sofa.", "A dog on a sofa."),
        ('Image caption: "A dog on a sofa."', "A dog on a sofa."),
        ("Sure! Here is a caption for the photo:\n\nA dog on a sofa.", "A dog on a sofa."),
        ("Here's a caption: A dog on a sofa.", "A dog on a sofa."),
        ("A dog on a sofa.\n\nLet me know if you need more!", "A dog on a sofa."),
        ("1. A dog on a sofa.\n2. A dog asleep.", "A dog on a sofa."),
        ("- A dog on a sofa.\n- A dog asleep.", "A dog on a sofa."),
        ("<think>What is this?\n\nA dog.</think>\n\nA dog on a sofa.", "A dog on a sofa."),
        ("A clock at 10:30: time for tea", "A clock at 10:30: time for tea"),
        ("2 dogs on a sofa", "2 dogs on a sofa"),
        ("A dog\x1b[31m on\x00 a sofa\ud800.", "A dog [31m on a sofa ."),
        ("一只狗。", "一只狗。"),
        ("Caption:", ""),
        ("", ""),
        ("```\n```", ""),
    ],
)
def test_the_caption_is_found_in_an_answer(answer, caption):
    assert caption_in(answer) == caption


def test_a_long_answer_is_cut_between_sentences_or_words():
    sentence = "A dog sleeps on a sofa. "
    assert caption_in(sentence * 100) == (sentence * 12).strip()  # 12 * 24 characters
    words = caption_in("dog " * 1000)
    assert words == ("dog " * 75).strip()
    assert caption_in("o" * 1000) == "o" * 300
