"""A server process that answers from the known truth of the toy world: python truthful_server.py SCENES.json

SCENES.json has the file and the facts of each photo.  Of one photo it names the salient object only, as people do.
Of a photo beside others it names a detail that they do not have; every second of its answers invents one instead.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

from support.toy.world import DETAILS, PLACES, Scene, describe, tells_apart

KNOWN = [
    (np.asarray(Image.open(one["file"]).convert("RGB"), np.float32), Scene(**one["scene"]))
    for one in json.loads(Path(sys.argv[1]).read_text())
]
STATED = (("colour", "place"), ("colour", "companion"), ("colour", "companion", "companion_colour", "count"), DETAILS)


def scene_in(part: dict) -> Scene:
    data = base64.b64decode(part["image_url"]["url"].split(",")[1])
    pixels = np.asarray(Image.open(io.BytesIO(data)), np.float32)
    return min(KNOWN, key=lambda known: float(np.abs(known[0] - pixels).mean()))[1]


def answers(request: dict) -> list[str]:
    content = request["messages"][0]["content"]
    first, *others = [scene_in(part) for part in content if part["type"] == "image_url"]
    count = request.get("n", 1)
    if not others:
        return [describe(first)] * count
    assert describe(first) in content[0]["text"]  # the caption that does not tell it apart
    true = [text for text in (describe(first, stated) for stated in STATED) if tells_apart(text, first, others)]
    other = next(place for place in PLACES if place != first.place)
    invented = describe(replace(first, place=other), DETAILS)
    both = [invented, true[0] if true else describe(first)]
    start = request["seed"] + len(first.noun)
    return [both[(start + i) % 2] for i in range(count)]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in answers(request)]
        usage = {"prompt_tokens": 10, "completion_tokens": len(choices)}
        body = json.dumps({"choices": choices, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
