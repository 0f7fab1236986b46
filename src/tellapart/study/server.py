"""The web page of a study.  Answers are in the database alone: the page asks for the next trial.

So a page that is loaded again, a back button or a server that was killed changes nothing, and an answer that is sent
twice counts once.  A question is sent with the receipt of the answer before it, and no other is taken: so the time
between two receipts is the longest that a person can have thought.  Models and right answers never leave the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, Field

from tellapart import web
from tellapart.study.folder import ORDERED, Answer, Answers, Person, Study, Taken, load, photo_file
from tellapart.web import sorry

# whatever the database: some store no NUL; and results are printed
Id = Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]


Secret = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{22,64}$")]


class Joining(BaseModel):
    """person: made by the browser, so that a request that is sent again is of the same person, and no one else's"""

    consent: bool
    person: Secret | None = None
    subject_id: Annotated[Id, Field(min_length=1)] | None = None
    study_id: Id = ""
    session_id: Id = ""


class Answering(BaseModel):
    person: Id
    trial: Id
    response: Any
    rt: float = Field(ge=0, le=1e9, allow_inf_nan=False)


def app(study: Study, folder: Path, answers: Answers) -> FastAPI:
    server = FastAPI(title=study.title, docs_url=None, redoc_url=None, openapi_url=None)
    trials = study.trials()

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
            return sorry(403, "only people who agree can take part.")
        ids = (request.subject_id, request.study_id, request.session_id, request.person)
        try:
            return state(answers.join(len(study.sessions), *ids))
        except Taken as error:
            return sorry(409, str(error))

    @server.get("/api/people/{id}")
    def resume(id: Id) -> JSONResponse:
        person = answers.person(id)
        return state(person) if person else sorry(404, "nobody of this id takes part.")

    @server.post("/api/answers")
    def answer(request: Answering) -> JSONResponse:
        person = answers.person(request.person)
        if person is None:
            return sorry(404, "nobody of this id takes part.")
        trial = trials.get(request.trial)
        if trial is None or trial not in study.sessions[person.session]:
            return sorry(404, "there is no such question.")
        if wrong := trial.why_wrong(study.kind, request.response):
            return sorry(422, wrong)
        done = answers.answered(person.id)
        following = next((trial.id for trial in study.sessions[person.session] if trial.id not in done), None)
        if trial.id not in {following, *done}:
            return sorry(409, "this question has not been asked yet; load the page again.")
        answers.add(Answer(person.id, trial.id, request.response, request.rt))
        return state(person)  # only now: the answer is on the disk

    @server.get("/photos/{id}")
    def photo(id: str) -> Response:
        if id not in study.photos:
            return sorry(404, "there is no such photo.")
        headers = {"Cache-Control": "private, max-age=86400"}
        return FileResponse(photo_file(folder, id), media_type="image/webp", headers=headers)

    web.add_page(server, "tellapart.study", "index.html", "study.js", "study.css")
    web.guard(server, gone="the answer could not be stored; please try again.")
    return server


def serve(folder: Path, host: str, port: int, database: str | None = None) -> None:
    """Until it is stopped; prints the address when people can come."""
    study = load(folder)
    web.run(app(study, folder, Answers(folder, database)), host, port)
