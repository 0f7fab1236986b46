"""The web page of a study.  What a person has answered is in the database alone: the page asks for the next trial.

So a page that is loaded again, a back button or a server that was killed changes nothing, and an answer that is sent
twice counts once.  Models and right answers never leave the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, Field

from tellapart.errors import UserError
from tellapart.printable import print_message
from tellapart.study import folder as folders
from tellapart.study.answers import Answer, Answers, DatabaseGone, Person
from tellapart.study.design import ORDERED, why_wrong
from tellapart.study.folder import Study

_MOST = 1 << 16  # bytes of a request
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; form-action 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_PAGE = {"": "text/html; charset=utf-8", "study.js": "text/javascript", "study.css": "text/css"}


class Joining(BaseModel):
    consent: bool
    subject_id: str | None = Field(None, min_length=1, max_length=128)
    study_id: str = Field("", max_length=128)
    session_id: str = Field("", max_length=128)


class Answering(BaseModel):
    person: str = Field(max_length=64)
    trial: str = Field(max_length=32)
    response: Any
    rt: float = Field(ge=0, le=1e9, allow_inf_nan=False)


def app(study: Study, folder: Path, answers: Answers) -> FastAPI:
    server = FastAPI(title=study.title, docs_url=None, redoc_url=None, openapi_url=None)
    trials = study.trials()
    page = {name: (resources("tellapart.study") / "page" / (name or "index.html")).read_bytes() for name in _PAGE}

    def state(person: Person) -> JSONResponse:
        session, done = study.sessions[person.session], answers.answered(person.id)
        left = [trial for trial in session if trial.id not in done]
        content: dict[str, Any] = {"person": person.id, "done": len(session) - len(left), "total": len(session)}
        if left:
            content["trial"] = {"id": left[0].id, "captions": left[0].captions, "photos": left[0].photos}
        else:
            content["completion_code"] = study.completion_code
        return JSONResponse(content)

    @server.get("/api/study")
    def about() -> JSONResponse:
        return JSONResponse({"kind": study.kind, "title": study.title, "consent": study.consent, "ordered": ORDERED})

    @server.post("/api/join")
    def join(request: Joining) -> JSONResponse:
        if not request.consent:
            return _sorry(403, "only people who agree can take part.")
        return state(answers.join(len(study.sessions), request.subject_id, request.study_id, request.session_id))

    @server.get("/api/people/{id}")
    def resume(id: str) -> JSONResponse:
        person = answers.person(id)
        return state(person) if person else _sorry(404, "nobody of this id takes part.")

    @server.post("/api/answers")
    def answer(request: Answering) -> JSONResponse:
        person = answers.person(request.person)
        if person is None:
            return _sorry(404, "nobody of this id takes part.")
        trial = trials.get(request.trial)
        if trial is None or trial not in study.sessions[person.session]:
            return _sorry(404, "there is no such question.")
        if wrong := why_wrong(study.kind, trial, request.response):
            return _sorry(422, wrong)
        answers.add(Answer(person.id, trial.id, request.response, request.rt))
        return state(person)  # only now: the answer is on the disk

    @server.get("/photos/{id}")
    def photo(id: str) -> Response:
        if id not in study.photos:
            return _sorry(404, "there is no such photo.")
        return FileResponse(folders.photo(folder, id), media_type="image/webp")

    @server.get("/{name}")
    def static(name: str) -> Response:
        if name not in page:
            return _sorry(404, "there is no such page.")
        return Response(page[name], media_type=_PAGE[name])

    server.add_api_route("/", lambda: static(""))
    _guard(server)
    return server


def _guard(server: FastAPI) -> None:
    """What holds for every request: bounded, without surprises for a browser, and one sentence for what went wrong."""

    @server.middleware("http")
    async def bounded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "0" if request.method == "GET" else "")
        if not length.isdecimal() or int(length) > _MOST:
            return _sorry(413, "the request is too large.")
        response = await call(request)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if request.url.path.startswith("/photos/"):
            response.headers["Cache-Control"] = "private, max-age=86400"
        return response

    @server.exception_handler(DatabaseGone)
    def gone(_: Request, error: DatabaseGone) -> JSONResponse:
        print_message(f"tellapart study: {error}")
        return _sorry(503, "the answer could not be stored; please try again.")

    @server.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _sorry(422, f"the request is not as expected ({error.errors()[0]['msg']}).")


def _sorry(code: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, code)


class _Server(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            print(f"http://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)


def serve(folder: Path, host: str, port: int, database: str | None = None) -> None:
    """Until it is stopped; prints the address when people can come."""
    study = folders.load(folder)
    served = app(study, folder, Answers(folder, database))
    try:
        _Server(uvicorn.Config(served, host=host, port=port, log_level="critical", access_log=False)).run()
    except SystemExit as error:  # uvicorn's way to say that it cannot listen
        if error.code:
            raise UserError(f"--host {host} --port {port}: this address cannot be listened on.") from None
