"""What goes wrong with a photo is its error, and the rest goes on; what would with all is one sentence."""

import json
import socket
import threading
import time

import pytest

from capscore.errors import UserError
from support.chat_server import Server, about, answered, completion, endpoint, first_captions, say_colour, texts
from tellapart.desk.endpoint import Endpoint

RED, BLUE = (f"a {colour} photo, seed 0, number 0" for colour in ("red", "blue"))


def wrong_with(answer, *colours):
    """A behaviour that goes wrong with photos of these colours."""
    return lambda request, colour: answer if colour in colours else say_colour(request, colour)


def fails_first(times, answer):
    """A behaviour that goes wrong with the first requests for a photo."""
    counts = {}

    def behave(request, colour):
        counts[colour] = counts.get(colour, 0) + 1
        return answer if counts[colour] <= times else say_colour(request, colour)

    return behave


def test_photos_that_cannot_be_read_are_named_and_the_rest_goes_on(serve, coloured_photos, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    missing, broken = (str(tmp_path / name) for name in ("missing.jpg", "broken.jpg"))
    server = serve()
    first, red, third, blue = answered(server, [missing, coloured_photos["red"], broken, coloured_photos["blue"]])
    assert first.error == "there is no such file"
    assert third.error.startswith("is ")
    assert (texts(first), texts(third)) == ([], [])
    assert first_captions([red, blue]) == [RED, BLUE]
    assert len(server.requests) == 2


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
    assert first_captions(answered(server, coloured_photos, "red", "blue", retries=2)) == [RED, BLUE]
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("answer", "requests", "error"),
    [
        ((500, b"oops", {}), 1 + 3 + 1, "the server answers 500 (oops)"),
        ((400, b'{"error": "I do not like red"}', {}), 3, "the server answers 400 (I do not like red)"),
    ],
)
def test_what_does_not_pass_is_the_photos_error(serve, coloured_photos, answer, requests, error):
    server = serve(wrong_with(answer, "red"))
    rows = answered(server, coloured_photos, "blue", "red", "green", retries=2)
    assert [row.error for row in rows] == ["", error, ""]
    assert len(server.requests) == requests


def test_the_server_may_say_how_long_to_wait(serve, coloured_photos):
    server = serve(fails_first(1, (429, b"", {"Retry-After": "1"})))
    began = time.monotonic()
    assert answered(server, coloured_photos, "red", retries=1)[0].error == ""
    assert time.monotonic() - began >= 1.0
    began = time.monotonic()
    answered(serve(fails_first(3, (500, b"", {}))), coloured_photos, "red", retries=3, back_off=0.05)
    assert time.monotonic() - began >= 0.05 + 0.1 + 0.2  # of its own, waits grow


def test_a_model_that_is_still_loading_is_waited_for_with_one_message(serve, coloured_photos):
    """llama.cpp's words for a model that is still loading."""
    loading = (503, b'{"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}', {})
    messages, server = [], serve(fails_first(6, loading))
    (row,) = answered(server, coloured_photos, "red", max_requests=1, notify=messages.append)
    assert texts(row) == [RED]
    assert len(server.requests) == 7
    waiting, summary = (message.removeprefix(f"{server.url}: ") for message in messages)
    assert waiting == "the server answers 503 (Loading model); waiting for the model, 10 minutes at most"
    assert summary.startswith("1 request ")  # nothing was done for the others


@pytest.mark.parametrize("message", ["Loading model", "Model x is currently loading", "server is starting up"])
def test_a_model_that_never_loads_is_one_sentence(serve, coloured_photos, message):
    server = serve(lambda *_: (503, json.dumps({"error": message}).encode(), {}))
    with pytest.raises(UserError, match=rf"the server answers 503 \({message}\), for 0\.\d+ s now\.$"):
        answered(server, coloured_photos, longest_loading=0.2)
    assert len(server.requests) > 2


@pytest.mark.parametrize("message", ["no slot available", "under heavy load"])
def test_a_server_that_is_busy_is_not_one_that_loads(serve, coloured_photos, message):
    server = serve(lambda *_: (503, json.dumps({"error": message}).encode(), {}))
    (row,) = answered(server, coloured_photos, "red", retries=1)
    assert row.error == f"the server answers 503 ({message})"
    assert len(server.requests) == 2


def test_what_is_late_twice_is_not_asked_again_and_the_next_photo_once(serve, coloured_photos):
    enough = threading.Event()
    server = serve(lambda *_: (enough.wait(5), ["late"])[1])
    rows = answered(server, coloured_photos, "red", "green", timeout=0.1, retries=3, at_once=1)
    enough.set()
    assert {row.error for row in rows} == {"the server took longer than 0.1 s; --timeout gives it more"}
    assert len(server.requests) == 2 + 1


CUT = "the answer was cut after 2048 tokens{}, before a caption was complete; --max-tokens allows more"
THINKING = CUT.format(", while the model was still thinking")


@pytest.mark.parametrize("end", [". It has a red", ".", "\n\nLet me know if you", " #dog #ani"])
def test_a_caption_that_was_complete_when_the_answer_was_cut_is_kept(serve, coloured_photos, end):
    server = serve(lambda *_: (200, completion([f"A dog on a sofa{end}"], finish_reason="length"), {}))
    (caption,) = first_captions(answered(server, coloured_photos, "red"))
    assert caption == "A dog on a sofa" + "." * end.startswith(".")


REFUSAL = "I'm sorry, but I can't help with identifying people in images."
RUBBISH = {
    "cut": (completion([""], finish_reason="length"), CUT.format("")),
    "cut in a sentence": (completion(["A dog on a"], finish_reason="length"), CUT.format("")),
    "cut thoughts": (completion(["<think>I see a dog. It"], finish_reason="length"), THINKING),
    "cut reasoning": (completion([None], message={"reasoning_content": "I see"}, finish_reason="length"), THINKING),
    "cut reasoning elsewhere": (completion([""], message={"reasoning": "I see"}, finish_reason="length"), THINKING),
    "a filter": (completion([""], finish_reason="content_filter"), "the server's content filter held the answer back"),
    "a refusal": (completion([REFUSAL]), f'the model refused to caption it ("{REFUSAL}")'),
    "another": (completion([None], message={"refusal": "No\x1b[2J."}), 'the model refused to caption it ("No.")'),
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
DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
RUBBISH |= {  # made to do harm
    "deep lists": (b"[" * 500_000 + b"]" * 500_000, "the server"),
    "deep objects": (DEEP[: 1 << 20], "the server"),
    "a deep choice": (b'{"choices": ' + b"[" * 300_000 + b"]" * 300_000 + b"}", "the server"),
    "a deep error": (b'{"error": ' + b'{"message": ' * 60_000 + b"1" + b"}" * 60_001, "the server"),
    "a flood of digits": (b'{"choices": [' + b"9" * 500_000 + b"]}", "the server"),
    "many digits as usage": (b'{"choices": [{}], "usage": {"prompt_tokens": ' + b"9" * 4000 + b"}}", "the server"),
    "not a number": (b'{"choices": [{"message": {"content": NaN}}]}', "the server"),
    "the same key often": (b"{" + b'"choices": [3], ' * 50_000 + b'"choices": [[]]}', "the server"),
    "lone surrogates": (b'{"choices": [{"message": {"content": "\\ud800\\udfff"}}]}', "the server"),
    "UTF-32": (json.dumps({"choices": []}).encode("utf-32"), "the server"),
}


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("kind", RUBBISH)
def test_an_answer_without_a_caption_is_the_photos_error_and_the_rest_goes_on(serve, coloured_photos, kind, status):
    body, sentence = RUBBISH[kind]
    server = serve(wrong_with((status, body, {}), "red"))
    blue, red = answered(server, coloured_photos, "blue", "red", retries=3)
    assert texts(red) == []
    assert (sentence if status == 200 else "the server answers 400") in red.error
    assert len(red.error) < 400
    assert red.error.startswith(("the ", "it "))
    assert blue.error == ""
    assert len(server.requests) == 2  # it would be the same again


def test_a_server_that_dies_halfway_ends_the_run(coloured_photos):
    server = Server(say_colour)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    answers = endpoint(server, retries=1, at_once=1).answers_to(about([*coloured_photos.values()] * 30))
    rows = [next(answers)]
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=rf"^{server.url}: the server .* in a row\.$"):
        rows += answers
    assert first_captions(rows)[0] == RED
    assert len(rows) < 100


@pytest.mark.parametrize(
    ("answer", "sentence", "most"),
    [
        ((500, b'{"error": "CUDA out of memory"}', {}), "the server answers 500 (CUDA out of memory)", 4 + 1 + 1),
        ((502, b"", {}), "the server answers 502 (Bad Gateway)", 4 + 1 + 1),
        ((429, b"", {}), "the server answers 429 (Too Many Requests)", 10 * 4),
        ((200, b"<html>", {}), "the server's answer is not JSON", 3),
        ((200, b'data: {"choices": []}\n\ndata: [DONE]\n\n', {}), "the server streams its answer", 3),
    ],
)
def test_an_error_that_comes_every_time_ends_the_run_in_its_words(serve, coloured_photos, answer, sentence, most):
    server = serve(lambda *_: answer)
    with pytest.raises(UserError) as error:
        answered(server, [*coloured_photos.values()] * 50, retries=3, at_once=1)
    assert str(error.value).startswith(f"{server.url}: {sentence}, for ")
    assert most <= len(server.requests) <= most + 2  # the next photos may be on their way


def test_photos_that_a_server_cannot_take_do_not_end_the_run(serve, coloured_photos):
    """Two in a row, again and again."""
    server = serve(wrong_with((500, b"no", {}), "red", "green"))
    rows = answered(server, [*coloured_photos.values()] * 3, at_once=1)
    assert [bool(row.error) for row in rows] == 3 * [True, True, False, False, False, False]


# What is wrong with the request


def test_a_server_that_is_not_there_or_no_web_server_is_one_sentence_with_its_url(serve, coloured_photos):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    with pytest.raises(UserError, match=rf"^{url}: the server cannot be reached \(Connection refused\)\.$"):
        answered(url, coloured_photos, retries=1)
    with pytest.raises(UserError, match="broke the connection off"):
        answered(serve(lambda *_: b"SSH-2.0-OpenSSH_9.6\r\n"), coloured_photos)


NO_KEY = "no key was sent: put it into TELLAPART_API_KEY, or name its variable with --api-key-env"
TOO_LONG = "This model's maximum context length is 2048 tokens"
FEWER = "it was asked for up to 2048 tokens, --max-tokens asks for fewer"


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, b'{"error": {"message": "model \\"eyes\\" not found"}}', '404 (model "eyes" not found).'),
        (404, b"<html>nginx</html>", "404 (Not Found)."),
        (404, b'{"detail": "Not Found"}', "404 (Not Found)."),
        (400, b'{"error": "this model cannot\\n\\u001b[31m see"}', "400 (this model cannot see)."),
        (401, b'{"message": "no key"}', f"401 (no key); {NO_KEY}."),
        (400, f'{{"error": "{TOO_LONG}"}}'.encode(), f"400 ({TOO_LONG}); {FEWER}."),
        (403, b"x" * 5000, f"403 ({'x' * 200})."),
    ],
)
def test_what_the_server_refuses_is_one_sentence_in_its_words(serve, coloured_photos, status, body, sentence):
    server = serve(lambda *_: (status, body, {}))
    with pytest.raises(UserError) as error:
        answered(server, coloured_photos, retries=3)
    assert str(error.value) == f"{server.url}: the server answers {sentence}"


def test_redirects_are_not_followed(serve, coloured_photos):
    other = serve()
    server = serve(lambda *_: (307, b"", {"Location": f"{other.url}/v1/chat/completions"}))
    with pytest.raises(UserError, match=f"points to '{other.url}/v1/chat/completions'; redirects are not followed"):
        answered(server, coloured_photos, "red", api_key="sk-secret")
    assert other.requests == []


@pytest.mark.parametrize(
    "url",
    [
        *("example.org:8080", "example.org/v1", "ftp://localhost/v1", "file:///etc/passwd", "http://", "http://[::1"),
        *("http://localhost:port", "http://localhost:99999", "http://user:word@localhost", "http://localhost/v 1"),
        *("http://localhost/v1?key=3", "http://localhost/v1\r\nX: y", "http://h\u00f6st/v1", ""),
    ],
)
def test_a_url_that_is_none_is_refused_before_anything_is_sent(url):
    with pytest.raises(UserError, match="the server's URL must"):
        Endpoint(url, "eyes")
    with pytest.raises(UserError, match="model must be named"):
        Endpoint("http://localhost", "")


@pytest.mark.parametrize("url", ["localhost:8080", "127.0.0.1:8080/v1", "[::1]:8080", "192.168.0.2"])
def test_a_server_nearby_needs_no_http(url):
    assert Endpoint(url, "eyes").url == f"http://{url}"
