"""What our web servers share: who may ask, bounded requests, headers, and one sentence for what went wrong."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files as resources
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from tellapart.databases import DatabaseGone
from tellapart.errors import UserError
from tellapart.printable import print_message

MOST_BYTES = 1 << 16  # of a request
_AT_ONCE = 512  # connections
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; form-action 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}
_COOKIE = "tellapart-token"


class Sorry(Exception):
    def __init__(self, code: int, sentence: str):
        self.code, self.sentence = code, sentence


def sorry(code: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, code)


def add_page(server: FastAPI, package: str, *names: str) -> None:
    """Files of the package's folder `page`; the first is what `/` shows.  No request names a file."""
    for place, name in enumerate(names):
        data = (resources(package) / "page" / name).read_bytes()
        show = _showing(data, _TYPES[name[name.rindex(".") :]])
        server.add_api_route(f"/{name}" if place else "/", show, include_in_schema=False)


def _showing(data: bytes, type: str) -> Callable[[], Response]:
    return lambda: Response(data, media_type=type)


def guard(server: FastAPI, *, most: Mapping[str, int] | None = None, gone: str) -> None:
    """What holds for every request: bounded, without surprises for a browser, and one sentence for what went wrong.

    most  bytes of a request, by its path; others: MOST_BYTES
    gone  what is answered when the database does not answer
    """

    @server.middleware("http")
    async def bounded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "0" if request.method in ("GET", "HEAD") else "")
        if not length.isdecimal():
            return _with_headers(sorry(411, "the request does not say how long it is."))
        if int(length) > (most or {}).get(request.url.path, MOST_BYTES):
            return _with_headers(sorry(413, "the request is too large."))
        return _with_headers(await call(request))

    @server.exception_handler(DatabaseGone)
    def no_database(_: Request, error: DatabaseGone) -> JSONResponse:
        print_message(f"tellapart: {error}")
        return sorry(503, gone)

    @server.exception_handler(Sorry)
    def answered(_: Request, error: Sorry) -> JSONResponse:
        return sorry(error.code, error.sentence)

    @server.exception_handler(HTTPException)
    def no_page(_: Request, error: HTTPException) -> JSONResponse:
        missing = error.status_code in (404, 405)
        return sorry(error.status_code, "there is no such page." if missing else "the request is not as expected.")

    @server.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return sorry(422, f"the request is not as expected ({error.errors()[0]['msg']}).")


def _with_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def admit(server: FastAPI, token: str | None) -> None:
    """Only people with the token; without one, only those on this machine, and no other site in their browser.

    A page of another site can make a browser send requests here, and can call itself by a name that leads here.  So
    changes need an origin that is ours, and without a token the name must be that of this machine.
    """

    @server.middleware("http")
    async def allowed(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        host = request.headers.get("host", "")
        if token is None and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return _with_headers(sorry(403, "this server answers only to the name of its own machine."))
        origin = request.headers.get("origin")
        other_site = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if request.method not in ("GET", "HEAD") and (other_site or (origin and urlsplit(origin).netloc != host)):
            return _with_headers(sorry(403, "requests from other sites are refused."))
        if token is None:
            return await call(request)
        if _same(request.query_params.get("token", ""), token) and request.method == "GET":
            # into a cookie: out of the address, which browsers remember and show
            answer = RedirectResponse(str(request.url.path), 303)
            answer.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
            return _with_headers(answer)
        given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.cookies.get(_COOKIE, "")
        if not _same(given, token):
            return _with_headers(sorry(401, "a token is needed; open the address that the server has printed."))
        return await call(request)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    query = ""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            print(f"http://{f'[{host}]' if ':' in host else host}:{port}/{self.query}", flush=True)


def run(server: FastAPI, host: str, port: int, query: str = "") -> None:
    """Until it is stopped; prints the address when people can come."""
    config = uvicorn.Config(
        server, host=host, port=port, log_level="critical", access_log=False, limit_concurrency=_AT_ONCE
    )
    running = _Server(config)
    running.query = query
    try:
        running.run()
    except SystemExit as error:  # uvicorn's way to say that it cannot listen
        if error.code:
            raise UserError(f"--host {host} --port {port}: this address cannot be listened on.") from None
