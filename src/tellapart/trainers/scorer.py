"""Rewards by HTTP, for trainers that are neither TRL nor ms-swift nor verl: `tellapart pool POOL --serve geg_avg`.

    POST /score  {"texts": ["a red bus"], "photos": ["391895"]}  ->  {"scores": {"geg_avg": [0.12]}}

What is wrong with a request is answered in a sentence: {"error": "..."}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from threading import Lock

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, StrictInt, StrictStr

from capscore.errors import UserError
from tellapart import web
from tellapart.rewards.caption_reward import CaptionReward

MOST_BYTES = 1 << 20  # of a request


class Scoring(BaseModel):
    """photos: ids or files, one for each text"""

    texts: list[StrictStr]
    photos: list[StrictInt | StrictStr]


def app(rewards: Mapping[str, CaptionReward], *, local: bool = True) -> FastAPI:
    """local  only programs on this machine may ask"""
    server = FastAPI(title="tellapart pool", docs_url=None, redoc_url=None, openapi_url=None)
    lock = Lock()  # a listener remembers the last captions

    @server.post("/score")
    def score(request: Scoring) -> Response:
        with lock:
            scores = {name: reward.score(request.texts, request.photos) for name, reward in rewards.items()}
        return Response(json.dumps({"scores": scores}), media_type="application/json")

    @server.exception_handler(UserError)
    def wrong(_: Request, error: UserError) -> JSONResponse:
        return web.sorry(422, str(error))

    web.guard(server, most={"/score": MOST_BYTES}, admitted=web.admission(None, local=local))
    return server
