"""The web app of a folder: the JSON API, its documentation, the photos and the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from capscore.errors import UserError
from capscore.measures import MEASURES
from capscore.scoring import compare
from capscore.words import STOP_WORDS
from tellapart import html, web
from tellapart.data.media.thumbnails import webp
from tellapart.data.tokenizers import split_words
from tellapart.desk.chatter import one_line
from tellapart.desk.lint import RULES
from tellapart.desk.serve import job
from tellapart.desk.serve.database import FILTERS, Changed, Photo, Photos
from tellapart.desk.serve.job import Captioning, Job, Jobs, is_inside
from tellapart.errors import BadPhoto
from tellapart.version import __version__
from tellapart.web import Sorry, sorry

MOST_UPLOAD = 32 << 20  # bytes of a photo
_MOST_SCORE = 8 << 20  # bytes of captions and references
_LONGEST = 2000  # characters of a caption
_MOST_BESIDE = 12  # photos of a burst that are shown
_SIDES = {"small": 400, "large": 1280}  # pixels
Filter = Literal["all", "unreviewed", "shared", "lint", "approved", "edited", "rejected"]


class Finding(BaseModel):
    rule: str
    meaning: str


class PhotoState(BaseModel):
    """A photo and its caption.  `words`: the caption in pieces, each with whether it tells the photo apart."""

    id: int
    file: str
    caption: str
    review: str
    edited: bool
    original: str | None
    error: str
    version: str
    findings: list[Finding]
    words: list[tuple[str, bool]]


class Group(BaseModel):
    """A photo beside those that look like it.  Near-duplicates, such as frames of a burst, may share its caption."""

    photo: PhotoState
    look_alikes: list[PhotoState]
    near_duplicates: list[PhotoState]


class Listing(BaseModel):
    photos: list[PhotoState]
    total: int


class Deciding(BaseModel):
    """version: of the photo that you have seen.  review null: take decisions back."""

    version: str = Field(max_length=32)
    review: Literal["approved", "rejected", "edited"] | None
    caption: str | None = Field(None, max_length=_LONGEST)


class Decided(BaseModel):
    """decision: its number, for undo; 0: nothing changed"""

    photo: PhotoState
    decision: int


class Undoing(BaseModel):
    """decision: which one; null: the last"""

    decision: int | None = Field(None, ge=1, lt=1 << 31)


class Starting(BaseModel):
    """caption: new photos of the folder.  write, undo-write: captions to the files, as `tellapart write` does."""

    kind: Literal["caption", "write", "undo-write"]
    to: Literal["xmp", "txt", "in-file"] = "xmp"
    which: Literal["approved", "all"] = "approved"
    replace: bool = False
    dry_run: bool = True


class State(BaseModel):
    folder: str | None
    model: str
    version: str
    most_upload: int
    filters: dict[str, str]
    counts: dict[str, int]
    jobs: list[Job]


class Uploaded(BaseModel):
    caption: str
    logprob: float | None
    look_alikes: list[str] | None = None
    gap: float | None = None


Text = Annotated[str, Field(max_length=_LONGEST)]  # some measures take time in the square of it


class Scoring(BaseModel):
    captions: dict[str, Text] = Field(max_length=100_000)
    references: dict[str, list[Text]] = Field(max_length=100_000)
    metrics: list[str] | None = None


class Scored(BaseModel):
    scores: dict[str, float]
    signature: dict[str, str]
    skipped: dict[str, str]


def app(captioning: Captioning, photos: Photos | None, jobs: Jobs, token: str | None = None) -> FastAPI:
    server = FastAPI(
        title="tellapart",
        version=__version__,
        description="Captions that tell photos apart. An answer other than 200 has one field, error: a sentence.",
        docs_url=None,
        redoc_url=None,
    )
    if photos is not None:
        _add_review(server, captioning, photos)
        _add_files(server, captioning, photos)
    _add_jobs(server, captioning, photos, jobs)
    _add_models(server, captioning)

    @server.get("/docs", include_in_schema=False)
    def show_documents() -> Response:
        """The OpenAPI description as a page: no script, no network."""
        api = server.openapi()
        title, subtitle = f"{api['info']['title']} {api['info']['version']}", api["info"]["description"]
        style = ("desk/serve/page/api.css",)
        page = html.render_page("desk/serve/page/api.html", title=title, subtitle=subtitle, styles=style, api=api)
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    @server.get("/favicon.ico", include_in_schema=False)
    def no_icon() -> Response:
        return Response(status_code=204)

    @server.exception_handler(UserError)
    def wrong(_: Request, error: UserError) -> JSONResponse:
        return sorry(409 if isinstance(error, Changed) else 422, str(error))

    @server.exception_handler(BadPhoto)
    def unusable(_: Request, error: BadPhoto) -> JSONResponse:
        return sorry(422, f"the photo {error.reason}.")  # its name is one of ours

    web.add_page(server, "tellapart.desk.serve", "index.html", "serve.js", "serve.css")
    web.guard(
        server,
        most={"/api/caption": MOST_UPLOAD, "/api/score": _MOST_SCORE},
        gone="the database does not answer, so nothing was changed; please try again.",
        admitted=web.admission(token, local=token is None),
    )
    return server


def _add_review(server: FastAPI, captioning: Captioning, photos: Photos) -> None:
    @server.get("/api/photos")
    def list_photos(
        filter: Filter = "all",
        search: str = Query("", max_length=200),
        offset: int = Query(0, ge=0, le=1 << 40),
        limit: int = Query(100, ge=1, le=500),
    ) -> Listing:
        """Photos in the order in which they were captioned."""
        page, total = photos.find(filter, search, offset, limit)
        return Listing(photos=list(map(_state, page)), total=total)

    @server.get("/api/photos/{id}")
    def show_photo(id: int) -> Group:
        """A photo and its look-alikes, with the words that only its caption has."""
        photo = _photo(photos, id)
        listed = [photo.row.get(name) or [] for name in ("look_alikes", "near_duplicates")]
        alike, same = (photos.by_file(names[:_MOST_BESIDE]) for names in listed)
        states = _told_apart([photo, *alike])
        return Group(photo=states[0], look_alikes=states[1:], near_duplicates=list(map(_state, same)))

    @server.patch("/api/photos/{id}")
    def decide(id: int, request: Deciding) -> Decided:
        """Approve, reject or edit a caption.  The decision is on the disk when this answers."""
        caption = None if request.caption is None else one_line(request.caption)
        stored = _photo(photos, id).caption if caption is None else caption
        if request.review is not None and not stored:
            raise Sorry(422, "a caption needs a word.")
        photo, decision = photos.decide(id, request.version, request.review, caption)
        return Decided(photo=_state(photo), decision=decision)

    @server.post("/api/undo")
    def undo(request: Undoing) -> Decided:
        """Take back the last decision, or one that nothing came after."""
        photo = photos.undo(request.decision)
        if photo is None:
            raise Sorry(404, "there is nothing to undo.")
        return Decided(photo=_state(photo), decision=0)


def _add_files(server: FastAPI, captioning: Captioning, photos: Photos) -> None:
    @server.get("/photos/{id}", response_class=Response)
    def show_picture(id: int, size: Literal["small", "large"] = "small") -> Response:
        """A photo as WebP, drawn anew: without its metadata."""
        name = _photo(photos, id).file
        file = photos.folder / name
        if name not in captioning.photos or not is_inside(photos.folder, file):
            raise Sorry(404, "there is no such photo in the folder.")
        try:
            status = file.stat()
        except OSError:
            raise Sorry(404, "the file of this photo is gone.") from None
        data = _small(file, status.st_mtime_ns, status.st_size, _SIDES[size])
        return Response(data, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})

    @server.get("/api/export", response_class=Response)
    def export(format: Literal["jsonl", "csv"] = "jsonl", which: Literal["approved", "all"] = "all") -> Response:
        """The captions as a file that `caption`, `write` and `lint` read."""
        data = job.export(photos, which, f".{format}")
        headers = {"Content-Disposition": f'attachment; filename="captions.{format}"'}
        return Response(data, media_type="text/csv" if format == "csv" else "application/jsonl", headers=headers)


@lru_cache(maxsize=128)
def _small(file: Path, changed: int, size: int, long_side: int) -> bytes:
    return webp(file, long_side)[2]


def _add_jobs(server: FastAPI, captioning: Captioning, photos: Photos | None, jobs: Jobs) -> None:
    @server.get("/api/state")
    def state() -> State:
        """The folder, how many photos each filter finds, and the jobs."""
        return State(
            folder=captioning.folder.name if captioning.folder else None,
            model=captioning.model,
            version=__version__,
            most_upload=MOST_UPLOAD,
            filters=FILTERS,
            counts=photos.counts() if photos else {},
            jobs=list_jobs(),
        )

    @server.get("/api/jobs")
    def list_jobs() -> list[Job]:
        """The last jobs of each kind since the server was started."""
        return jobs.all()

    @server.get("/api/jobs/{id}")
    def show_job(id: int) -> Job:
        for running in jobs.all():
            if running.id == id:
                return running
        raise Sorry(404, "there is no such job.")

    @server.post("/api/jobs")
    def start_job(request: Starting) -> Job:
        """One of a kind runs at a time.  With `dry_run`, nothing is written, and the result says what would be."""
        if photos is None:
            raise Sorry(404, "this server has no folder.")
        work: Callable[[Job], None]
        match request.kind:
            case "caption":
                work = partial(captioning.caption_folder, photos=photos)
            case "undo-write":
                work = partial(job.undo_writing, folder=photos.folder)
            case "write":
                wanted = partial(job.write, photos=photos, kind=request.to, which=request.which)
                work = partial(wanted, replace_texts=request.replace, dry_run=request.dry_run)
        return jobs.start("caption" if request.kind == "caption" else "write", work)


def _add_models(server: FastAPI, captioning: Captioning) -> None:
    one_at_a_time = threading.Lock()

    def caption(data: bytes, among: bool) -> Uploaded:
        with one_at_a_time, _file(data) as file:
            row = captioning.caption(file, among=among).row()
        if "look_alikes" in row:
            row["look_alikes"] = [name.removeprefix(f"{captioning.folder}/") for name in row["look_alikes"]]
        return Uploaded.model_validate(row)

    upload = {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}, "required": True}

    @server.post("/api/caption", openapi_extra={"requestBody": upload})
    async def caption_upload(request: Request, among: bool = False) -> Uploaded:
        """Caption a photo that is sent as the body; among: told apart from those of the folder.  It is not kept."""
        return await run_in_threadpool(caption, await request.body(), among)

    @server.post("/api/score")
    def score(request: Scoring) -> Scored:
        """Captions against references, with measures that need no Java."""
        java = {name for measure in MEASURES.values() if "Java" in measure.needs for name in measure.names}
        for name in request.metrics or ():
            if name in java or name == "all":
                raise Sorry(422, f"{name} is not available here.")
        scores = compare([request.captions], request.references, metrics=request.metrics)[0]
        return Scored(scores=scores.corpus, signature=scores.signature, skipped=scores.skipped)


@contextmanager
def _file(data: bytes) -> Iterator[Path]:
    """Without a name in any folder, where the system has such files: gone with this process, however it ends.

    What a file is, its bytes decide; so its name has no suffix.
    """
    nameless = Path("/proc/self/fd").is_dir()
    with TemporaryFile() if nameless else NamedTemporaryFile(prefix="tellapart-upload-") as file:
        file.write(data)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}" if nameless else file.name)


def _photo(photos: Photos, id: int) -> Photo:
    photo = photos.get(id) if abs(id) < 1 << 31 else None
    if photo is None:
        raise Sorry(404, "there is no such photo.")
    return photo


def _state(photo: Photo, of_others: frozenset[str] | None = None) -> PhotoState:
    """of_others  words of the captions that it is compared with; none: it is not compared"""
    words = [
        (text, of_others is not None and bool(frozenset(split_words(text)) - STOP_WORDS - of_others))
        for text in photo.caption.split()
    ]
    return PhotoState(
        id=photo.id,
        file=photo.file.encode("utf-8", "replace").decode("utf-8"),
        caption=photo.caption,
        review=photo.review,
        edited=bool(photo.row.get("edited")),
        original=photo.row.get("original"),
        error=photo.row.get("error", ""),
        version=photo.version,
        findings=[Finding(rule=rule, meaning=RULES[rule]) for rule in photo.findings],
        words=words,
    )


def _told_apart(group: Sequence[Photo]) -> list[PhotoState]:
    if len(group) == 1:
        return [_state(group[0])]
    words = [frozenset(split_words(photo.caption)) for photo in group]
    others = [frozenset().union(*words[:place], *words[place + 1 :]) for place in range(len(group))]
    return [_state(photo, of_others) for photo, of_others in zip(group, others, strict=True)]
