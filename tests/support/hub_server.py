"""A small Hugging Face hub on this machine: the few requests by which a model is put there and fetched."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}  # owner/name -> path -> content
        self.private: dict[str, bool] = {}
        self.fetched: list[str] = []  # owner/name/path, in order
        self.tokens: set[str] = set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running():
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def do_POST(self):
        path, body = unquote(urlsplit(self.path).path), self._body()
        self.server.tokens.add(self.headers.get("Authorization", ""))
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.server.repos.setdefault(name, {})
            self.server.private.setdefault(name, asked.get("private") or asked.get("visibility") == "private")
            return self._json({"url": f"{self.server.url}/{name}", "name": name})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if found := re.fullmatch(r"/api/models/(.+?)/preupload/main", path):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        if found := re.fullmatch(r"/api/models/(.+?)/commit/main", path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.repos[found[1]][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{self.server.url}/{found[1]}/commit/{COMMIT}"
            return self._json({"commitUrl": address, "commitOid": COMMIT, "success": True})
        return self._missing("EntryNotFound")

    def do_HEAD(self):
        self._get()

    def do_GET(self):
        self._get()

    def _get(self):
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+|/tree/[^/]+)?", path):
            if found[1] not in self.server.repos:
                return self._missing("RepoNotFound")
            files = self.server.repos[found[1]]
            if (found[2] or "").startswith("/tree"):
                return self._json(
                    [{"type": "file", "path": p, "size": len(d), "oid": _tag(d)} for p, d in files.items()]
                )
            return self._json({"id": found[1], "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]})
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            if found[1] not in self.server.repos:
                return self._missing("RepoNotFound")
            if found[2] not in self.server.repos[found[1]]:
                return self._missing("EntryNotFound")
            if self.command == "GET":
                self.server.fetched.append(f"{found[1]}/{found[2]}")
            return self._send(200, self.server.repos[found[1]][found[2]], "application/octet-stream")
        return self._missing("EntryNotFound")

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), "application/json")

    def _missing(self, code):
        self._send(404, b"{}", "application/json", {"X-Error-Code": code, "X-Error-Message": "not here"})

    def _send(self, status, data, kind, more=()):
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(data))}
        headers |= {"ETag": f'"{_tag(data)}"', "X-Repo-Commit": COMMIT} | dict(more)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


def _tag(data):
    return hashlib.sha1(data).hexdigest()
