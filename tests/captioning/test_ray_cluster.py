import os
import signal
import socket
import sys
import threading
import time

import pytest

from capscore.errors import UserError
from tellapart.captioning.ray_cluster import LOCAL, Cluster

pytest.importorskip("ray")

pytest_plugins = ["support.ray_cluster"]


@pytest.fixture
def server():
    """A port that answers whoever speaks to it with the bytes it is given; None: with silence."""
    listening = []

    def serve(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener)

        def run():
            caller, _ = listener.accept()
            with caller:
                caller.recv(100)
                caller.sendall(answer)

        if answer is not None:
            threading.Thread(target=run, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for listener in listening:
        listener.close()


def refusal(address):
    began = time.monotonic()
    with pytest.raises(UserError) as refused:
        Cluster(address)
    assert time.monotonic() - began < 20
    assert address in str(refused.value)
    return str(refused.value)


def test_an_address_where_nobody_listens_is_refused():
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    assert "no Ray cluster answers at this address" in refusal(address)
    assert "no Ray cluster answers at this address" in refusal("no-such-host.invalid:6379")


def test_an_address_that_says_nothing_is_refused(server, monkeypatch):
    monkeypatch.setattr("tellapart.captioning.ray_cluster._ANSWERS_WITHIN", 0.2)
    assert "no Ray cluster answers at this address (timed out)" in refusal(server(None))


def test_another_program_at_the_address_is_refused(server):
    assert "is not a Ray cluster" in refusal(server(b"HTTP/1.0 400 Bad request\r\n\r\n"))
    assert "is not a Ray cluster" in refusal(server(b""))


@pytest.mark.parametrize(
    "address", ["nonsense", "host:", "host:0", "host:70000", ":6379", "http://host:6379", "ray://host:10001"]
)
def test_what_is_no_address_is_refused(address):
    assert "HOST:PORT" in refusal(address)


def test_auto_is_the_cluster_that_the_environment_names(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1: no Ray cluster answers"):
        Cluster("auto")
    assert Cluster(LOCAL).address == LOCAL


def test_without_ray_the_way_to_get_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(UserError, match=r"pip install 'tellapart\[ray\]'"):
        Cluster(LOCAL)


@pytest.mark.slow
def test_workers_that_die_again_and_again_are_given_up(two_workers, monkeypatch):
    monkeypatch.setattr("tellapart.captioning.ray_cluster._ATTEMPTS", 2)

    def make():
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match="2 times in a row") as refused:
        list(Cluster(two_workers.address).map_batches([1], make))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_what_a_worker_cannot_do_is_told_here(two_workers):
    def make():
        raise UserError("nowhere/model: there is no such folder.")

    with pytest.raises(UserError, match="nowhere/model: there is no such folder"):
        list(Cluster(two_workers.address).map_batches([1], make))
