"""A server of ours as people start it, and requests to it."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit


@contextmanager
def running(*arguments, **environment):
    """The process of `tellapart ARGUMENTS --port 0` and its address."""
    command = [sys.executable, "-m", "tellapart", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://")
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def in_a_thread(app):
    """The address of an app that is served by this process."""
    from tellapart import web

    listening = socket.create_server(("127.0.0.1", 0))
    server = web.bounded(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def connected(address, sent=b""):
    """A connection over which `sent` went already."""
    host, _, port = urlsplit(address).netloc.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as wire:
        wire.sendall(sent)
        yield wire


def ask(address, path, body=None, *, method=None, **headers):
    """The status and the content of an answer; a body of bytes is sent as it is, others as JSON."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): text for name, text in headers.items()
        }
        connection.request(method or ("GET" if data is None else "POST"), path, data, headers)
        answer = connection.getresponse()
        content = answer.read()
        is_json = answer.getheader("Content-Type", "").split(";")[0] == "application/json"
        return answer.status, json.loads(content) if is_json else content
    finally:
        connection.close()


class Address:
    """What `Tab.open` opens in the place of a file."""

    def __init__(self, address):
        self.address = address

    def resolve(self):
        return self

    def as_uri(self):
        return self.address
