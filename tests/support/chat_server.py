"""A real server on this machine that speaks the chat protocol as a test tells it to, and photos of one colour each."""

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from tellapart.desk.endpoint import Endpoint, Question

COLOURS = {
    "red": (220, 20, 20),
    "green": (20, 200, 20),
    "blue": (20, 20, 220),
    "white": (250, 250, 250),
    "black": (5, 5, 5),
    "yellow": (230, 230, 20),
}


class Server(ThreadingHTTPServer):
    """Answers as `behave(request, colour of the photo)` says: with texts, with (status, body, headers), or with bytes.

    Bytes are sent as they are, in place of an HTTP answer.
    """

    daemon_threads = True

    def __init__(self, behave):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave = behave
        self.requests, self.paths, self.headers, self.photos = [], [], [], []
        self.lock, self.now, self.most = threading.Lock(), 0, 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # a client that hangs up is what some tests are about


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        photo = photo_in(request)
        colour = min(COLOURS, key=lambda name: np.abs(np.asarray(photo).mean((0, 1)) - COLOURS[name]).sum())
        with server.lock:
            server.requests.append(request)
            server.paths.append(self.path)
            server.headers.append(dict(self.headers))
            server.photos.append(photo)
            server.now += 1
            server.most = max(server.most, server.now)
        try:
            answer = server.behave(request, colour)
        finally:
            with server.lock:
                server.now -= 1
        if isinstance(answer, bytes):
            self.wfile.write(answer)
            self.close_connection = True
            return
        status, body, headers = answer if isinstance(answer, tuple) else (200, completion(answer), {})
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def photo_in(request):
    (message,) = request["messages"]
    part = next(part for part in message["content"] if part["type"] == "image_url")
    kind, data = part["image_url"]["url"].split(",")
    assert kind == "data:image/jpeg;base64"
    photo = Image.open(io.BytesIO(base64.b64decode(data, validate=True)), formats=["JPEG"])
    photo.load()
    return photo


def completion(texts, *, message=None, finish_reason="stop", usage=None):
    """A chat completion: a choice for each text, further fields of each message, and what the server counted."""
    messages = [{"role": "assistant", "content": text} | (message or {}) for text in texts]
    choices = [{"index": i, "message": each, "finish_reason": finish_reason} for i, each in enumerate(messages)]
    return json.dumps({"object": "chat.completion", "choices": choices} | ({"usage": usage} if usage else {})).encode()


def say_colour(request, colour):
    return [f"a {colour} photo, seed {request['seed']}, number {i}" for i in range(request.get("n", 1))]


def endpoint(server, **settings):
    """One caption a photo and no waiting, unless a test is about these."""
    url = server if isinstance(server, str) else server.url
    return Endpoint(url, "eyes", **{"candidates": 1, "timeout": 5.0, "retries": 0, "back_off": 0.001} | settings)


def about(files, *colours):
    """The usual question about each; colours: of which photos, where files are named by theirs."""
    if isinstance(files, dict):
        files = [files[colour] for colour in colours or files]
    return map(Question, files)


def answered(server, files, *colours, **settings):
    """The answers about each, as a list."""
    return list(endpoint(server, **settings).answers_to(about(files, *colours)))


def texts(answer):
    return [candidate.text for candidate in answer.candidates]


def first_captions(answers):
    return [(texts(answer) or [answer.error])[0] for answer in answers]


@pytest.fixture
def serve():
    servers = []

    def start(behave=say_colour):
        server = Server(behave)
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def coloured_photos(tmp_path):
    """A photo of each colour, the file named after it."""
    files = {}
    for name, colour in COLOURS.items():
        files[name] = str(tmp_path / f"{name}.png")
        Image.new("RGB", (60, 40), colour).save(files[name])
    return files
