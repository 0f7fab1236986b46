"""tellapart serve: a local web page to review captions, and a JSON API."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from capscore.errors import UserError
from tellapart.commands.arguments import ADDRESS, DEVICE, Parser, extra, port

if TYPE_CHECKING:
    from tellapart.desk.serve.job import Jobs

TOKEN = "TELLAPART_TOKEN"


def parser() -> Parser:
    parser = Parser(
        "serve",
        "Caption a folder and review the captions on a web page: photos beside their look-alikes, edit, approve,\n"
        "reject, undo, search, export, and write to the files.  Without FOLDER: only the JSON API (/docs).\n"
        "Captions and decisions are kept in FOLDER/tellapart.db; a server that is started again goes on.\n"
        "\n"
        "The page is for this machine only.  With another --host, a token is needed: it is part of the printed\n"
        f"address, or that of the environment variable {TOKEN}.",
        "tellapart serve holiday/",
        f"""
        FOLDER?         photos, with the folders in it
        --model MODEL   from `tellapart models`, a run folder or a hub id (default: the embedded one)
        --database URL  for example postgresql+pg8000://USER@HOST/NAME (default: SQLite in FOLDER)
        {DEVICE}
        """,
        folder=Path,
    )
    return parser.options(ADDRESS, port=port)


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    with extra("serve"):
        from tellapart import web
        from tellapart.desk.serve.api import app
        from tellapart.desk.serve.database import Photos

    from capscore import files
    from tellapart.desk.serve.job import Captioning, Jobs

    if request.folder and not files.is_folder(request.folder):
        raise UserError(f"{request.folder}: there is no such folder.")
    if request.database and not request.folder:
        raise UserError("--database needs FOLDER, whose captions it is to hold.")
    folder = files.real(request.folder) if request.folder else None
    token = os.environ.get(TOKEN, "").strip() or (None if web.is_loopback(request.host) else secrets.token_urlsafe(24))
    captioning = Captioning(folder, request.model, request.device)
    photos = Photos(folder, request.database) if folder else None  # only now: a wrong request writes nothing
    jobs = Jobs()
    if photos is not None:
        jobs.start("caption", lambda job: captioning.caption_folder(job, photos))
    query = f"?token={quote(token)}" if token else ""
    try:
        web.run(app(captioning, photos, jobs, token), request.host, request.port, query)
    finally:
        _end(jobs)
    return 0


def _end(jobs: Jobs) -> None:
    """A thread in native code would abort the program when the interpreter ends."""
    try:
        ended = jobs.stop()
    except KeyboardInterrupt:
        ended = False
    if not ended:  # what is acknowledged is on the disk; a job goes on from there
        print("\ntellapart serve: stopped; the same command continues from here", file=sys.stderr, flush=True)
        os._exit(130)
