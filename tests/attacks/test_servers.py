"""Servers that mean harm: answers without end, waits without end, JSON that is a trap."""

import json
import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest

from capscore.errors import UserError
from support.chat_server import about, completion, endpoint, say_colour, texts
from tellapart.desk.endpoint import Client


@pytest.fixture
def stream():
    """Start a server that sends a beginning, and then the same bytes for ever, or until the client hangs up."""
    listeners = []

    def start(beginning, forever, pause=0.0):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def answer(connection):
            with connection, suppress(OSError):
                connection.recv(1000)
                connection.sendall(beginning)
                while True:
                    connection.sendall(forever)
                    time.sleep(pause)

        def accept():
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a body": (OK + b"\r\n", b" " * 65536, "more than 1 MB"),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n", "more than 1 MB"),
    "a length": (OK + b"Content-Length: 99999999999999\r\n\r\n", b" " * 65536, "more than 1 MB"),
    "an error": (b"HTTP/1.1 500 Oops\r\n\r\n", b"x" * 65536, "answers 500"),
    "headers": (OK, b"X: y\r\n" * 1000, "broke the connection off"),
    "a header": (OK + b"X: ", b"y" * 65536, "broke the connection off"),
    "a status": (b"HTTP/1.1 200 ", b"y" * 65536, "broke the connection off"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_without_end_is_cut_off(stream, coloured_photos, kind):
    beginning, forever, reason = ENDLESS[kind]
    began = time.monotonic()
    try:
        (row,) = endpoint(stream(beginning, forever), timeout=5).answers_to(about(coloured_photos, "red"))
        error = row.error
    except UserError as wrong:  # the first photo met no web server
        error = str(wrong)
    assert reason in error
    assert time.monotonic() - began < 4  # long before the time is over


@pytest.mark.parametrize("forever", [b"HTTP/1.1 100 Continue\r\n\r\n", b"1", b"\r\n"])
def test_what_is_neither_an_answer_nor_an_end_meets_the_time_limit(stream, coloured_photos, forever):
    began = time.monotonic()
    with suppress(UserError):
        (row,) = endpoint(stream(b"", forever, pause=0.01), timeout=0.4).answers_to(about(coloured_photos, "red"))
        assert row.error
    assert time.monotonic() - began < 3


def test_an_encrypted_server_that_drips_its_greeting_meets_the_time_limit(stream, coloured_photos):
    """A record of 16 kB, a byte at a time."""
    url = stream(b"\x16\x03\x03\x40\x00", b"\x02", pause=0.02).replace("http:", "https:")
    began = time.monotonic()
    (row,) = endpoint(url, timeout=0.4).answers_to(about(coloured_photos, "red"))
    assert row.error == "the server took longer than 0.4 s; --timeout gives it more"
    assert time.monotonic() - began < 3


def test_a_server_that_speaks_no_tls_gets_no_photo(serve, coloured_photos):
    server = serve()
    with pytest.raises(UserError, match=r"^https:"):
        list(endpoint(server.url.replace("http:", "https:")).answers_to(about(coloured_photos, "red")))
    assert server.requests == []
    tls = Client(endpoint("https://localhost")).tls
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)


# Waits


@pytest.mark.parametrize("wait", ["99999999", "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_that_asks_to_wait_for_ever_ends_the_run_at_once(serve, coloured_photos, wait):
    busy = (429, b"", {"Retry-After": wait})
    server = serve(lambda request, colour: say_colour(request, colour) if colour == "red" else busy)
    began = time.monotonic()
    red, *others = endpoint(server, retries=3, at_once=1).answers_to(about(coloured_photos))
    assert time.monotonic() - began < 3
    assert red.error == ""
    assert {row.file for row in others} == set(coloured_photos.values()) - {red.file}
    for row in others:
        assert row.error.startswith("the server answers 429 (Too Many Requests) and asks for a wait of ")
        assert row.error.endswith(" days; 2 minutes is the longest that is waited for")
        assert len(row.error) < 200
    assert len(server.requests) == 2  # the rest is not even sent


def test_if_the_first_answer_is_such_a_wait_the_request_is_wrong(serve, coloured_photos):
    server = serve(lambda *_: (503, b"", {"Retry-After": "99999999"}))
    with pytest.raises(UserError, match="asks for a wait of 1157 days; 2 minutes is the longest"):
        list(endpoint(server, retries=3).answers_to(about(coloured_photos)))


def test_a_wait_of_some_seconds_is_spoken_of(serve, coloured_photos, monkeypatch):
    """The wait itself is left out: the clock of the run goes on by itself."""
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr("tellapart.desk.endpoint.time.monotonic", lambda: next(clock))
    answers = iter([(429, b'{"error": "slow down"}', {"Retry-After": "30"})])
    messages = []
    server = serve(lambda request, colour: next(answers, None) or say_colour(request, colour))
    (row,) = endpoint(server, retries=1, notify=messages.append).answers_to(about(coloured_photos, "red"))
    assert row.error == ""
    assert messages[0] == f"{server.url}: the server answers 429 (slow down); waiting 30 s"


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J\x1b]0;owned\x07A dog.", "A\u202e dog\u202c.", "A\r\ndog.", "A\x00 dog.", "A\u2028dog.", "\x9b31mA dog."],
)
def test_a_caption_cannot_steer_a_terminal_or_turn_text_round(serve, coloured_photos, text):
    (row,) = endpoint(serve(lambda *_: (200, completion([text]), {}))).answers_to(about(coloured_photos, "red"))
    assert texts(row) == ["A dog."]


@pytest.mark.parametrize("status", [400, 404, 307])
def test_an_error_cannot_either(serve, coloured_photos, status):
    body = json.dumps({"error": "no\x1b[2J \u202edog\r\n\x07"}).encode()
    server = serve(lambda *_: (status, body, {"Location": "http://x/\x1b[2J"}))
    with pytest.raises(UserError) as error:
        list(endpoint(server).answers_to(about(coloured_photos, "red")))
    assert str(error.value).isprintable()
    assert "no dog" in str(error.value)
