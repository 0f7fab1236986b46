"""tellapart pool: what rewards need of a set of photos, for other trainers; and a server that scores captions."""

from __future__ import annotations

from pathlib import Path

from capscore.errors import UserError
from capscore.printable import counted, print_problems, print_row
from tellapart.commands.arguments import DEVICE, Parser, extra, port


def parser() -> Parser:
    from tellapart.retrievers import DEFAULT

    return Parser(
        "pool",
        "Write what rewards need of a set of photos to a folder: image vectors, look-alikes, references and document\n"
        "frequencies.  TRL, ms-swift and verl score captions with it (docs/trainers.md), or any trainer by HTTP:\n"
        "--serve takes such a folder and answers POST /score.\n"
        "\n"
        "Exit 1: some photos could not be used; each is named.",
        "tellapart pool coco.json --split train --out POOL\n  tellapart pool POOL --serve geg_avg cider_d --port 8010",
        f"""
        DATA             a data file or a folder of photos; with --serve, a pool
        --out POOL       folder to write to
        --retriever R={DEFAULT}  whose vectors are written
        --k N=5          look-alikes per photo
        --split NAME     only this split of a data file (default: all photos)
        --serve TERM...  score captions by these rewards, by HTTP
        --candidates batch|look_alikes=batch  with --serve: what log_probability and accuracy choose from, the photos
                         of a request or the photo and its look-alikes
        --host HOST=127.0.0.1  with --serve (default: 127.0.0.1, this machine only)
        --port PORT=8010  with --serve
        {DEVICE}
        """,
        out=Path,
        port=port,
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    if bool(request.out) == bool(request.serve):
        raise UserError("give --out POOL to write a pool, or --serve TERM to score captions by one.")
    if request.serve:
        with extra("web"):
            from tellapart import web
            from tellapart.trainers.scorer import app

        from tellapart.rewards.caption_reward import CaptionReward
        from tellapart.rewards.pool import Pool

        pool, settings = Pool(request.data), {"device": request.device, "candidates": request.candidates}
        rewards = {term: CaptionReward(term, pool, **settings) for term in request.serve}
        web.run(app(rewards, local=web.is_loopback(request.host)), request.host, request.port, "score")
        return 0

    from tellapart.rewards.pool import make

    summary = make(
        request.data, request.out, retriever=request.retriever, k=request.k, split=request.split, device=request.device
    )
    print_row(f"{request.out}: {counted(summary.photos, 'photo')}, {counted(summary.references, 'reference')}")
    return print_problems(summary.problems)
