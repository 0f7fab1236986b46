"""A study from caption files: which photos, which distractors, who sees what."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.progress import Progress
from tellapart.data.examples import Example
from tellapart.data.media.thumbnails import webp
from tellapart.evaluation import models as evaluated
from tellapart.evaluation.models import ModelCaptions, Split
from tellapart.neighbours.collection import Known, Source
from tellapart.neighbours.search import Vectors
from tellapart.study.design import DISTRACTORS, Item, Kind, conditions, sessions
from tellapart.study.folder import Study, save

LONG_SIDE = 640  # pixels of a photo as it is shown
TITLE = "Photos and captions"
CONSENT = (
    "You are invited to take part in a study about captions of photos.  You will see captions and photos and answer "
    "a short question about each.  Taking part is voluntary.  You may stop at any time by closing this page.  Your "
    "answers, your response times and, where you came from a recruiting service, the id that it gave you are stored "
    "and used for research.  Nothing else about you is collected."
)


@dataclass(frozen=True)
class Plan:
    kind: Kind
    sets: int | None = None  # photos that are asked about; none: all that have captions by all models
    distractors: int | None = None  # none: as in the paper
    per_person: int = 20
    answers: int = 1
    catch: int = 2
    seed: int = 0
    title: str = TITLE
    consent: str = CONSENT
    completion_code: str | None = None  # none: drawn
    near_duplicates: float | None = None  # by the retriever, no distractor is more alike; none: as measured


def make(captions: Sequence[str], data: str, split: str, vectors: Source | None, plan: Plan, out: Path) -> Study:
    """A study folder; `vectors` choose the distractors."""
    photos, systems = _read(captions, data, split)
    names = [one.model.name for one in systems]
    if plan.kind == "compare" and len(names) < 2:
        raise UserError("compare shows two captions of a photo; name at least two caption files.")
    count = DISTRACTORS[plan.kind] if plan.distractors is None else plan.distractors
    random = np.random.default_rng(plan.seed)
    common = sorted(set.intersection(*(set(one.of_photo) for one in systems)))
    if not common:
        raise UserError(f"there is no photo in {data} that all of {', '.join(names)} have a caption of.")
    chosen = sorted(random.permutation(common)[: plan.sets].tolist())
    if plan.sets is not None and len(chosen) < plan.sets:
        raise UserError(f"--sets {plan.sets}: only {len(chosen)} photos of {data} have captions by all models.")
    texts = {one.model.name: [one.of_photo[row][0] for row in chosen] for one in systems}
    others = _distractors(plan, photos, chosen, texts, vectors, count)
    used = sorted({*chosen, *(row for rows in others.values() for one in rows for row in one)})
    id_of = {row: f"p{number:05d}" for number, row in enumerate(random.permutation(used).tolist())}
    sets = [
        [
            Item(id_of[row], models, tuple(texts[name][place] for name in models), tuple(id_of[o] for o in near))
            for models in conditions(plan.kind, names)
            for near in [others[models[0]][place] if others else ()]
        ]
        for place, row in enumerate(chosen)
    ]
    study = Study(
        plan.kind,
        plan.title,
        plan.consent,
        plan.completion_code or secrets.token_hex(4).upper(),
        names,
        sessions(plan.kind, sets, per_person=plan.per_person, answers=plan.answers, catch=plan.catch, seed=plan.seed),
        {id: str(photos[row].id) for row, id in sorted(id_of.items(), key=lambda pair: pair[1])},
        {
            "seed": plan.seed,
            "captions": list(captions),
            "data": data,
            "split": split,
            "distractors": count,
            "near_duplicates": plan.near_duplicates,
            "retriever": vectors.name if vectors and count else None,
            "retriever_sha256": vectors.sha256 if vectors and count else None,
            "references": {id: list(photos[row].captions) for row, id in id_of.items() if photos[row].captions},
        },
    )
    save(study, out, _drawn({id: photos[row] for row, id in id_of.items()}))
    return study


def _read(captions: Sequence[str], data: str, split: str) -> tuple[list[Example], list[ModelCaptions]]:
    (photos,) = evaluated.splits([data], split)
    given = evaluated.models(captions)
    if wrong := next((model.given for model in given if model.kind == "captioner"), None):
        raise UserError(f"{wrong}: a study takes caption files; make one with `tellapart caption --out F.jsonl`.")
    return photos.photos, [_captions_of(model, photos) for model in given]


def _captions_of(model: evaluated.Model, photos: Split) -> ModelCaptions:
    found = (evaluated.by_people if model.kind == "human" else evaluated.from_file)(model, photos)
    if not found.of_photo:
        if model.kind == "human":
            raise UserError(f"{photos.source}: has no references, so that human has no captions.")
        raise UserError(f"{model.given}: none of its captions is of a photo of {photos.source}.")
    return found


def _distractors(
    plan: Plan,
    photos: Sequence[Example],
    chosen: Sequence[int],
    texts: dict[str, list[str]],
    vectors: Source | None,
    count: int,
) -> dict[str, list[tuple[int, ...]]]:
    """The other photos that are shown with each chosen one, by model; nearest first.

    order   those that the caption fits best
    choose  those that look most like the photo, the same for all models

    Copies and near-duplicates of the photo are left out: nobody could tell them apart.
    """
    if not count or vectors is None:
        return {}
    if len(photos) <= count:
        raise UserError(f"a question shows {count + 1} photos, and the data have {len(photos)}; see --distractors.")
    known = vectors.of_photos(photos)
    if known.failed:
        file, why = next(iter(known.failed.items()))
        raise UserError(f"{file}: {why}")
    same = _same(known, np.array(chosen), plan.near_duplicates, vectors.duplicates_above)
    if plan.kind == "choose":
        unit = _unit(known.vectors)
        near = _nearest(unit[chosen] @ unit.T, same, count)
        return dict.fromkeys(texts, near)
    return {
        name: _nearest(_unit(vectors.of_captions(own)) @ _unit(known.vectors).T, same, count)
        for name, own in texts.items()
    }


def _same(known: Known, chosen: NDArray[np.int64], limit: float | None, measured: float) -> NDArray[np.bool_]:
    """(S, P): the photo itself, its copies and its near-duplicates: above a limit by the retriever's own vectors, or
    else above what was measured for its encoder."""
    looks = _unit(known.looks if known.looks is not None and limit is None else known.vectors)
    above = measured if limit is None else limit
    hashes = np.array(known.sha256)
    same: NDArray[np.bool_] = (looks[chosen] @ looks.T > above) | (hashes[chosen][:, None] == hashes)
    same[np.arange(len(chosen)), chosen] = True
    return same


def _nearest(similarity: Vectors, same: NDArray[np.bool_], count: int) -> list[tuple[int, ...]]:
    few = int((~same).sum(1).min())
    if few < count:
        raise UserError(f"a photo has {few} others that are no copies of it, and a question needs {count}.")
    order = np.argsort(-np.where(same, -np.inf, similarity), axis=1, kind="stable")[:, :count]
    return [tuple(row) for row in order.tolist()]


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def _drawn(photos: dict[str, Example]) -> Iterator[tuple[str, bytes]]:
    """One after another: thousands of photos need not fit into memory."""
    with Progress("photos", len(photos)) as bar:
        for id, photo in photos.items():
            yield id, webp(photo.file, LONG_SIDE)[2]
            bar.advance(1)
