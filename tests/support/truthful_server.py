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
from pathlib import Path

import numpy as np
from PIL import Image

from support.chat_server import Server, completion
from support.toy.world import DETAILS, PLACES, Scene, describe, tells_apart

KNOWN = [
    (np.asarray(Image.open(photo["file"]).convert("RGB"), np.float32), Scene(**photo["scene"]))
    for photo in json.loads(Path(sys.argv[1]).read_text())
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


def answer(request: dict, _: str) -> tuple[int, bytes, dict]:
    texts = answers(request)
    return 200, completion(texts, usage={"prompt_tokens": 10, "completion_tokens": len(texts)}), {}


if __name__ == "__main__":
    server = Server(answer)
    print(server.server_address[1], flush=True)
    server.serve_forever()
