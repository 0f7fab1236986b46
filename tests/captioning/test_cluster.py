"""A Ray cluster: addresses, workers that die, and what goes out to them."""

import os
import signal
import socket
import sys
import threading
import time

import pytest

from capscore.errors import UserError
from tellapart.captioning import captioner as captioning
from tellapart.captioning.cluster import LOCAL, Cluster, ClusterCaptioner, extraction_on
from tellapart.captioning.pipeline import RerankConfig
from tellapart.data.examples import Example
from tellapart.decoding.rules import Search
from tellapart.encoders.encoder import Encoder
from tellapart.features import extracted
from tellapart.recipe import EncoderConfig

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


def test_addresses_where_no_ray_cluster_answers_are_refused(server, monkeypatch):
    listener = socket.create_server(("127.0.0.1", 0))
    closed = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    for address in (closed, "no-such-host.invalid:6379"):
        assert "no Ray cluster answers at this address" in refusal(address)
    for answer in (b"HTTP/1.0 400 Bad request\r\n\r\n", b""):  # another program
        assert "is not a Ray cluster" in refusal(server(answer))
    for address in ("nonsense", "host:", "host:0", "host:70000", ":6379", "http://host:6379", "ray://host:10001"):
        assert "HOST:PORT" in refusal(address)
    monkeypatch.setattr("tellapart.captioning.cluster._ANSWERS_WITHIN", 0.2)
    assert "no Ray cluster answers at this address (timed out)" in refusal(server(None))


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
    monkeypatch.setattr("tellapart.captioning.cluster._ATTEMPTS", 2)

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


# What goes out to the workers, without a cluster


class Here:
    """In place of a cluster: makes every batch in this process, and notes how large they are."""

    def __init__(self):
        self.sizes = []

    def map_batches(self, batches, make, *, gpus=False):
        work = make()
        for number, batch in enumerate(batches):
            self.sizes.append(len(batch))
            yield number, work(batch)


@pytest.mark.parametrize("together", [4, 5])
def test_workers_caption_as_many_photos_together_as_one_process_does(small_model, photo_folder, monkeypatch, together):
    """Sums that are made in another order end in other last digits."""
    monkeypatch.setattr(captioning, "BATCH", together)
    cluster = Here()
    files = sorted(map(str, photo_folder.iterdir()))
    captioner = ClusterCaptioner(str(small_model), cluster, device="cpu")
    proposed = list(captioner.propose(files, Search(1)))
    assert [item.file for item in proposed] == files
    assert cluster.sizes == [together, 6 - together]
    with pytest.raises(UserError, match="--ray and --contrast words"):
        captioner.propose_by_words(files, Search(1), None, RerankConfig())


@pytest.mark.parametrize("together", [4, 5])
def test_workers_look_at_as_many_photos_together_as_one_process_does(photo_folder, monkeypatch, together):
    monkeypatch.setattr(extracted, "BATCH", together)
    cluster = Here()
    examples = [Example(number, file) for number, file in enumerate(sorted(photo_folder.iterdir()))]
    looking = extraction_on(cluster, Encoder(EncoderConfig(image_size=64, grid=2)), "cpu")
    assert len(list(looking(examples))) == 2
    assert cluster.sizes == [together, 6 - together]
