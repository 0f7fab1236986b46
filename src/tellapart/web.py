"""Web servers: who may ask, bounded requests, headers, and one sentence for what went wrong."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files as resources
from typing import Any
from urllib.parse import SplitResult, urlsplit

import h11
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from capscore.errors import UserError
from capscore.printable import print_message
from tellapart.databases import DatabaseGone
from tellapart.errors import fault

MOST_BYTES = 1 << 16  # of a request
_MOST_HELD = 256 << 20  # bytes of all requests that are under way
_AT_ONCE = 512  # connections
_SHUTDOWN = 5  # seconds for what is under way when the server is stopped
_PATIENCE = 20.0  # seconds for the head of a request, for its body, and until some of an answer is taken
_SLOWEST = 100_000  # bytes a second: a long body has more time
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; form-action 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LONGEST_NAME = 80  # characters of a field, in a sentence about it
_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}
_COOKIE = "tellapart-token"


class Sorry(HTTPException):
    def __init__(self, code: int, sentence: str):
        super().__init__(code)
        self.sentence = sentence


def sorry(code: int, sentence: str) -> JSONResponse:
    """A sentence may name a file, whose name need not be UTF-8."""
    return JSONResponse({"error": sentence.encode("utf-8", "replace").decode("utf-8")}, code)


def add_page(server: FastAPI, package: str, *names: str) -> None:
    """Files of the package's folder `page`; the first is what `/` shows.  No request names a file."""
    for place, name in enumerate(names):
        data = (resources(package) / "page" / name).read_bytes()
        show = _showing(data, _TYPES[name[name.rindex(".") :]])
        server.add_api_route(f"/{name}" if place else "/", show, include_in_schema=False)


def _showing(data: bytes, type: str) -> Callable[[], Response]:
    return lambda: Response(data, media_type=type)


def guard(
    server: FastAPI,
    *,
    most: Mapping[str, int] | None = None,
    gone: str = "",
    admitted: Callable[[Request], Response | None] = lambda _: None,
) -> None:
    """Rules of every request: bounded, without surprises for a browser, and one sentence for what went wrong.

    most      bytes of a request, by its path; others: MOST_BYTES
    gone      what is answered when the database does not answer
    admitted  the answer to those who may not ask
    """
    server.add_middleware(_Guard, most=most or {}, admitted=admitted)

    @server.exception_handler(DatabaseGone)
    def no_database(_: Request, error: DatabaseGone) -> JSONResponse:
        print_message(f"tellapart: {error}")
        return sorry(503, gone)

    @server.exception_handler(Sorry)
    def answered(_: Request, error: Sorry) -> JSONResponse:
        return sorry(error.status_code, error.sentence)

    @server.exception_handler(HTTPException)
    def no_page(_: Request, error: HTTPException) -> JSONResponse:
        missing = error.status_code in (404, 405)
        return sorry(error.status_code, "there is no such page." if missing else "the request is not as expected.")

    @server.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"][1:]))[:_LONGEST_NAME]
        return sorry(422, f"the request is not as expected ({field}{': ' if field else ''}{first['msg']}).")


class _Guard:
    """Around a whole app.  Bytes are counted as they come, and all that is held of requests together is bounded."""

    def __init__(self, app: ASGIApp, most: Mapping[str, int], admitted: Callable[[Request], Response | None]):
        self._app, self._most, self._admitted = app, most, admitted
        self._held = 0  # bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the server starts or ends
            return await self._app(scope, receive, send)
        request, taken, answering = Request(scope), 0, False
        most = self._most.get(scope["path"], MOST_BYTES)

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            size = len(message.get("body", b""))
            taken, self._held = taken + size, self._held + size
            if taken > most:
                raise Sorry(413, "the request is too large.")
            if self._held > _MOST_HELD:
                raise Sorry(503, "too much is being sent at once; please try again.")
            return message

        async def answer(message: Message) -> None:
            nonlocal answering
            if message["type"] == "http.response.start":
                answering, headers = True, MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            app = self._admitted(request) or _unbounded(request, most) or self._app
            await app(scope, counted, answer)
        except ClientDisconnect:
            pass
        except Exception as error:
            print_message(f"tellapart: {fault(error)}")
            if not answering:
                await sorry(500, "the program has an error; it is in its output.")(scope, receive, answer)
        finally:
            self._held -= taken


def _unbounded(request: Request, most: int) -> Response | None:
    if "transfer-encoding" in request.headers:
        response = sorry(411, "the request does not say how long it is.")
        response.headers["Connection"] = "close"  # nobody knows where it ends
        return response
    length = request.headers.get("content-length", "0" if request.method in ("GET", "HEAD") else "")
    if not length.isdecimal():
        return sorry(411, "the request does not say how long it is.")
    return sorry(413, "the request is too large.") if int(length) > most else None


def admission(token: str | None, *, local: bool) -> Callable[[Request], Response | None]:
    """Only people with the token, if there is one, and no other site in their browser.

    A page of another site can make a browser send requests here, and can call itself by a name that leads here.  So
    changes need an origin that is ours, and where only people on this machine may ask (`local`), the name must be its.
    """

    def refused(request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if local and not is_loopback(_split(f"//{host}").hostname or ""):
            return sorry(403, "this server answers only to the name of its own machine.")
        other_site = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if request.method not in ("GET", "HEAD") and (other_site or (origin and _split(origin).netloc != host)):
            return sorry(403, "requests from other sites are refused.")
        if token is None:
            return None
        if _same(request.query_params.get("token", ""), token) and request.method == "GET":
            # into a cookie: out of the address, which browsers remember and show
            answer = RedirectResponse(str(request.url.path), 303)
            answer.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
            return answer
        sent = request.headers.get("authorization", "").removeprefix("Bearer ") or request.cookies.get(_COOKIE, "")
        if not _same(sent, token):
            return sorry(401, "a token is needed; open the address that the server has printed.")
        return None

    return refused


def _split(address: str) -> SplitResult:
    with suppress(ValueError):  # such as http://[
        return urlsplit(address)
    return SplitResult("", "", "", "", "")


def _same(sent: str, token: str) -> bool:
    return hmac.compare_digest(sent.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


class _Connection(H11Protocol):
    """A client has a limited time for each request; and the one that is waited for longest makes room for others."""

    _phase: object = None  # what is awaited of the client
    _since, _until = 0.0, 0.0  # None of it: the server is at work
    _left, _taking = 0, 0.0  # bytes of an answer that are not taken yet, and since when

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= _AT_ONCE:
            waiting = [other for other in self.connections if isinstance(other, _Connection) and other.waiting]
            if waiting:
                oldest = min(waiting, key=lambda other: other.waiting)
                self.connections.discard(oldest)
                oldest.transport.abort()
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        state = self.conn.their_state
        phase = (state, id(self.cycle), self.cycle is not None and self.cycle.response_complete)
        if phase == self._phase:
            return
        self._phase, self._since = phase, self.loop.time() if state in (h11.IDLE, h11.SEND_BODY) else 0.0
        length = dict(self.headers or ()).get(b"content-length", b"0")
        is_read = state is h11.SEND_BODY and not self.cycle.response_complete and length.isdigit()
        self._until = self._since + _PATIENCE + (min(int(length), _MOST_HELD) / _SLOWEST if is_read else 0)

    @property
    def waiting(self) -> float:
        """Since when the client is waited for; 0: it is not."""
        return min(filter(None, (self._since, self._taking)), default=0.0)

    def check(self) -> None:
        """Once a second."""
        now, left = self.loop.time(), self.transport.get_write_buffer_size()
        if left != self._left or not left:
            self._taking = now if left else 0.0
        self._left = left
        if (self._since and now > self._until) or (left and now > self._taking + _PATIENCE):
            self.transport.abort()


class _Server(uvicorn.Server):
    query = ""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            print(f"http://{f'[{host}]' if ':' in host else host}:{port}/{self.query}", flush=True)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, _Connection):
                    connection.check()
        return await super().on_tick(counter)


def bounded(app: FastAPI, host: str, port: int, query: str = "") -> uvicorn.Server:
    """With limits of time and connections; it prints the address when people can come."""
    server = _Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=_Connection,
            ws="none",
            log_level="critical",
            access_log=False,
            limit_concurrency=2 * _AT_ONCE,  # where none waits that could make room
            timeout_graceful_shutdown=_SHUTDOWN,
        )
    )
    server.query = query
    return server


def run(app: FastAPI, host: str, port: int, query: str = "") -> None:
    """Until it is stopped."""
    try:
        bounded(app, host, port, query).run()
    except SystemExit as error:  # uvicorn's way to say that it cannot listen
        if error.code:
            raise UserError(f"--host {host} --port {port}: this address cannot be listened on.") from None
