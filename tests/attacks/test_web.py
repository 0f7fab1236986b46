"""Clients that send other than they say, too slowly, or nothing: what holds for all of our web servers."""

import contextlib
import time

import pytest
from fastapi import FastAPI, Request, Response

from support.web import ask, connected, in_a_thread
from tellapart import web

LARGE = 32 << 20  # bytes of an answer: more than the system takes for a client that does not


@pytest.fixture
def called():
    return []


@pytest.fixture
def address(monkeypatch, called):
    monkeypatch.setattr(web, "_AT_ONCE", 20)
    monkeypatch.setattr(web, "_PATIENCE", 0.5)
    monkeypatch.setattr(web, "_MOST_HELD", 3 << 20)
    app = FastAPI()

    @app.post("/")
    async def count(request: Request):
        called.append(len(await request.body()))
        return called[-1]

    @app.get("/")
    def greet():
        return "hello"

    @app.get("/large")
    def large():
        return Response(bytes(LARGE))

    @app.get("/broken")
    def broken():
        raise ValueError("the password is swordfish")

    web.guard(app, most={"/": 1 << 21})
    with in_a_thread(app) as address:
        yield address


def sent_until_cut_off(wire):
    """How many bytes; a connection that stays open comes to the time limit."""
    size = 0
    with contextlib.suppress(ConnectionError):
        while part := wire.recv(1 << 20):
            size += len(part)
    return size


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ],
)
def test_what_is_sent_in_chunks_is_refused_whatever_length_is_said(address, called, headers):
    with connected(address, HEAD + headers + b"\r\n") as wire:
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                wire.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        with contextlib.suppress(ConnectionError):
            assert wire.recv(1 << 16).startswith(b"HTTP/1.1 411 ")
        sent_until_cut_off(wire)
    assert called == []
    assert ask(address, "/")[0] == 200


def test_lengths_are_bounded_for_each_request_and_for_all_at_once(address, called):
    assert ask(address, "/", bytes(1 << 21)) == (200, 1 << 21)
    assert ask(address, "/", bytes((1 << 21) + 1)) == (413, {"error": "the request is too large."})
    with connected(address, HEAD + b"Content-Length: %d\r\n\r\n" % (1 << 21) + bytes((1 << 21) - 1)):
        time.sleep(0.2)
        assert ask(address, "/", bytes(1 << 21))[0] == 503
        assert ask(address, "/", b"a") == (200, 1)
    for _ in range(3):  # nothing is held of what is over
        assert ask(address, "/", bytes(1 << 21)) == (200, 1 << 21)


def test_half_requests_do_not_keep_others_out(address):
    with contextlib.ExitStack() as stack:
        for start in (b"", b"GET / HTTP/1.1\r\nX-a: ", HEAD + b"Content-Length: 9\r\n\r\nhalf"):
            for _ in range(20):
                stack.enter_context(connected(address, start))
            assert ask(address, "/") == (200, "hello")


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nX-a: ", b"a"),
        (HEAD + b"Content-Length: 1000\r\n\r\n", b"a"),
        (HEAD + b"Content-Length: 9999999999999\r\n\r\n", b"a"),  # answered; and the rest is awaited no longer
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"G"),
        (b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    ],
    ids=["nothing", "a head by bytes", "a body by bytes", "a body without end", "idle", "another head", "not read"],
)
def test_a_client_that_keeps_the_server_waiting_is_cut_off(address, start, more):
    with connected(address, start) as wire:
        until = time.monotonic() + 30
        with contextlib.suppress(ConnectionError):
            while more and time.monotonic() < until:  # a byte now and then is not enough
                wire.sendall(more)
                time.sleep(0.1)
        if start.startswith(b"GET /large"):
            time.sleep(3)
        assert sent_until_cut_off(wire) < LARGE
        assert time.monotonic() < until


def test_a_slow_reader_gets_all_of_an_answer(address):
    with connected(address, b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as wire:
        size = 0
        for _ in range(12):  # for longer than the server waits for one that takes nothing
            time.sleep(0.1)
            size += len(wire.recv(1 << 21))
        while part := wire.recv(1 << 21):
            size += len(part)
    assert size > LARGE


def test_an_error_that_nobody_expected_is_one_sentence_and_tells_no_secret(address, capfd):
    assert ask(address, "/broken") == (500, {"error": "the program has an error; it is in its output."})
    printed = capfd.readouterr().err
    assert "ValueError at " in printed
    assert "test_web.py:" in printed
    assert "swordfish" not in printed
    assert ask(address, "/")[0] == 200


@pytest.mark.parametrize("header", ["Host: [", "Host: [::1", "Host: a]b", "Origin: http://[", "Origin: //[::"])
def test_names_that_are_none_are_refused(header):
    app = FastAPI()
    web.guard(app, admitted=web.admission(None, local=True))
    rest = b"" if header.startswith("Host") else b"Host: 127.0.0.1\r\n"
    request = b"POST / HTTP/1.1\r\n%b\r\n%bContent-Length: 0\r\n\r\n" % (header.encode(), rest)
    with in_a_thread(app) as address, connected(address, request) as wire:
        assert wire.recv(1 << 16).startswith(b"HTTP/1.1 403 ")
