"""Rewards by HTTP, for trainers that are neither TRL nor ms-swift nor verl: `tellapart pool POOL --serve geg_avg`.

    POST /score  {"texts": ["a red bus"], "photos": ["391895"]}  ->  {"scores": {"geg_avg": [0.12]}}

What is wrong with a request is answered in a sentence: {"error": "..."}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from tellapart.errors import UserError
from tellapart.rewards.caption_reward import CaptionReward

MOST_BYTES = 1 << 20  # of a request
_SECONDS = 30  # that a client may take to send one


class Refused(Exception):
    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


def server(rewards: Mapping[str, CaptionReward], *, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """Not started yet; `serve_forever` does.  Port 0: a free one, `server_port` says which."""
    lock = Lock()  # a listener remembers the last captions

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS

        def do_POST(self) -> None:
            try:
                texts, photos = _request(self)
                with lock:
                    scores = {name: reward.score(texts, photos) for name, reward in rewards.items()}
                self._answer(200, {"scores": scores})
            except Refused as error:
                self._answer(error.status, {"error": str(error)})
            except UserError as error:
                self._answer(400, {"error": str(error)})
            except TimeoutError:
                self.close_connection = True

        def do_GET(self) -> None:
            self._answer(405, {"error": "rewards are asked for by POST /score."})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """No log: a line for each of a million requests is useless."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: cannot be opened ({error.strerror}).") from None


def _request(handler: BaseHTTPRequestHandler) -> tuple[list[str], list[int | str]]:
    if handler.path != "/score":
        raise Refused(404, "there is only /score.")
    length = handler.headers.get("Content-Length", "")
    if not length.isdecimal():
        raise Refused(411, "the request has no Content-Length.")
    if int(length) > MOST_BYTES:
        raise Refused(413, f"the request has {int(length):,} bytes, and {MOST_BYTES:,} are taken; send fewer captions.")
    try:
        content = json.loads(handler.rfile.read(int(length)))
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON.") from None
    texts, photos = (content.get(key) for key in ("texts", "photos")) if isinstance(content, dict) else (None, None)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refused(400, '"texts" must be a list of strings.')
    if not isinstance(photos, list) or not all(type(photo) in (int, str) for photo in photos):
        raise Refused(400, '"photos" must be a list of ids or files, one for each text.')
    return texts, photos
