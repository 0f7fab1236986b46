"""A study from caption files: which photos, which distractors, and who sees what in which order.

Sets (a photo with its distractors) are cut into blocks.  A block is seen by as many people as there are conditions
(models, or pairs of models), times the answers wanted: the first sees condition i + 0 of set i, the second i + 1, and
so on.  So every caption gets the same number of answers, a person sees a set once, and everybody sees all models.
The place of the right photo, or of the first model's caption, is balanced within a person.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.progress import Progress
from tellapart.data.examples import Example
from tellapart.data.media.thumbnails import webp
from tellapart.evaluation import models as evaluated
from tellapart.evaluation.models import ModelCaptions
from tellapart.neighbours.collection import CollectionVectors, Source
from tellapart.neighbours.search import Vectors
from tellapart.study.folder import FIRST, SECOND, Kind, Study, Trial, save

DISTRACTORS: dict[Kind, int] = {"order": 20, "compare": 0, "choose": 9}  # as in the papers
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


@dataclass(frozen=True)
class Item:
    """A set under one condition."""

    set: str  # the photo that is meant
    models: tuple[str, ...]  # one, or the two that are compared
    captions: tuple[str, ...]  # theirs
    distractors: tuple[str, ...] = ()


def make(captions: Sequence[str], data: str, split: str, vectors: Source | None, plan: Plan, out: Path) -> Study:
    """A study folder; `vectors` choose the distractors."""
    photos, systems = _read(captions, data, split)
    names = [system.model.name for system in systems]
    if plan.kind == "compare" and len(names) < 2:
        raise UserError("compare shows two captions of a photo; name at least two caption files.")
    count = DISTRACTORS[plan.kind] if plan.distractors is None else plan.distractors
    random = np.random.default_rng(plan.seed)
    common = sorted(set.intersection(*(set(system.of_photo) for system in systems)))
    if not common:
        raise UserError(f"there is no photo in {data} that all of {', '.join(names)} have a caption of.")
    chosen = sorted(random.permutation(common)[: plan.sets].tolist())
    if plan.sets is not None and len(chosen) < plan.sets:
        raise UserError(f"--sets {plan.sets}: only {len(chosen)} photos of {data} have captions by all models.")
    texts = {system.model.name: [system.of_photo[row][0] for row in chosen] for system in systems}
    distractors = _distractors(plan, photos, chosen, texts, vectors, count)
    used = sorted({*chosen, *(row for groups in distractors.values() for group in groups for row in group)})
    id_of = {row: f"p{number:05d}" for number, row in enumerate(random.permutation(used).tolist())}
    conditions = combinations(names, 2) if plan.kind == "compare" else ((name,) for name in names)
    sets: list[list[Item]] = [[] for _ in chosen]
    for models in conditions:
        for place, row in enumerate(chosen):
            near = distractors[models[0]][place] if distractors else ()
            of_models = tuple(texts[name][place] for name in models)
            sets[place].append(Item(id_of[row], models, of_models, tuple(id_of[other] for other in near)))
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
    models = evaluated.models(captions)
    if wrong := next((model.source for model in models if model.kind == "captioner"), None):
        raise UserError(f"{wrong}: a study takes caption files; make one with `tellapart caption --out F.jsonl`.")
    systems = []
    for model in models:
        system = (evaluated.by_people if model.kind == "human" else evaluated.from_file)(model, photos)
        if not system.of_photo and model.kind == "human":
            raise UserError(f"{photos.source}: has no references, so that human has no captions.")
        if not system.of_photo:
            raise UserError(f"{model.source}: none of its captions is of a photo of {photos.source}.")
        systems.append(system)
    return photos.photos, systems


def _drawn(photos: dict[str, Example]) -> Iterator[tuple[str, bytes]]:
    """One after another: thousands of photos need not fit into memory."""
    with Progress("photos", len(photos)) as bar:
        for id, photo in photos.items():
            yield id, webp(photo.file, LONG_SIDE)[2]
            bar.advance(1)


# Distractors


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
    embedded = vectors.of_photos(photos)
    if embedded.failed:
        file, why = next(iter(embedded.failed.items()))
        raise UserError(f"{file}: {why}")
    same = _same(embedded, np.array(chosen), plan.near_duplicates, vectors.duplicates_above)
    unit = _unit(embedded.vectors)
    if plan.kind == "choose":
        return dict.fromkeys(texts, _nearest(unit[chosen] @ unit.T, same, count))
    return {
        name: _nearest(_unit(vectors.of_captions(captions)) @ unit.T, same, count) for name, captions in texts.items()
    }


def _same(
    photos: CollectionVectors, chosen: NDArray[np.int64], limit: float | None, measured: float
) -> NDArray[np.bool_]:
    """(S, P): the photo itself, its copies and its near-duplicates: above a limit by the retriever's own vectors, or
    else above what was measured for its encoder."""
    looks = _unit(photos.looks if photos.looks is not None and limit is None else photos.vectors)
    above = measured if limit is None else limit
    hashes = np.array(photos.sha256)
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


# Who sees what


def sessions(
    kind: Kind, sets: Sequence[Sequence[Item]], *, per_person: int, answers: int, catch: int, seed: int
) -> list[list[Trial]]:
    """The trials of each person.

    sets        the items of each set, one for each condition
    per_person  sets that a person sees at most
    answers     people who see each item
    catch       attention checks for each person, beside these
    """
    random, people = np.random.default_rng(seed), list[list[Trial]]()
    order = random.permutation(len(sets))
    for block in np.array_split(order, -(-len(sets) // per_person)):
        for turn in range(len(sets[0]) * answers):
            shown = [sets[place][(row + turn) % len(sets[0])] for row, place in enumerate(block.tolist())]
            people.append(_session(kind, shown, len(people), catch, random))
    return people


def _session(kind: Kind, items: Sequence[Item], number: int, catch: int, random: np.random.Generator) -> list[Trial]:
    choices = 2 if kind == "compare" else len(items[0].distractors) + 1
    places, catch_places = (iter(_balanced(choices, count, random)) for count in (len(items), catch))
    drawn = iter([items[row] for row in random.permutation(len(items))])
    # never the first: a person who has not answered anything yet has not stopped paying attention
    checks = set((1 + random.permutation(len(items) + catch - 1)[:catch]).tolist())
    trials = list[Trial]()
    for row in range(len(items) + catch):
        id = f"{number:04d}-{row:03d}"
        if row in checks:
            trials.append(_catch(kind, items[int(random.integers(len(items)))], id, next(catch_places), random))
            continue
        item, place = next(drawn), next(places)
        if kind == "compare":
            turned = slice(None, None, -1) if place else slice(None)
            trials.append(Trial(id, item.set, item.models[turned], item.captions[turned], (item.set,)))
        else:
            trials.append(Trial(id, item.set, item.models, item.captions, _photos(item, place, random)))
    return trials


def _balanced(choices: int, count: int, random: np.random.Generator) -> list[int]:
    """Places 0 ... choices - 1, each as often as the others, in a random order."""
    rounds = np.concatenate([random.permutation(choices) for _ in range(1 + count // choices)])
    return [int(place) for place in random.permutation(rounds[:count])]


def _photos(item: Item, place: int, random: np.random.Generator) -> tuple[str, ...]:
    others = [item.distractors[row] for row in random.permutation(len(item.distractors))]
    return (*others[:place], item.set, *others[place:])


def _catch(kind: Kind, item: Item, id: str, place: int, random: np.random.Generator) -> Trial:
    """Says itself what to answer, so that anybody who reads it is right."""
    check = "This is an attention check: "
    if kind == "compare":
        answer = (FIRST, SECOND)[place]
        text = f"{check}please answer both questions with the {answer} caption."
        return Trial(id, item.set, (answer,), (text, text), (item.set,), catch=True)
    photos = _photos(item, place, random)
    todo = "put photo {} in the first place" if kind == "order" else "choose photo {}"
    return Trial(id, item.set, (), (f"{check}please {todo.format(place + 1)}, whatever it shows.",), photos, catch=True)
