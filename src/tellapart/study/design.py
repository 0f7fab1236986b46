"""What each person sees, and in which order.

    order    GEG, study 1: a caption and 21 photos; the ten most fitting in order
    compare  GEG, study 2: two captions of one photo; which is more accurate, which more informative
    choose   DiscriTune: a caption and ten photos; which one is meant

Sets (a photo with its distractors) are cut into blocks.  A block is seen by as many people as there are conditions
(models, or pairs of models), times the answers wanted: the first sees condition i + 0 of set i, the second i + 1, and
so on.  So every caption gets the same number of answers, a person sees a set once, and everybody sees all models.
The place of the right photo, or of the first model's caption, is balanced within a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np

Kind = Literal["order", "compare", "choose"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DISTRACTORS: dict[Kind, int] = {"order": 20, "compare": 0, "choose": 9}  # as in the papers
ORDERED = 10  # photos that are put in order
CRITERIA = ("accuracy", "distinctiveness")
FIRST, TIE, SECOND = "first", "tie", "second"


@dataclass(frozen=True)
class Item:
    """A set under one condition."""

    set: str  # the photo that is meant
    models: tuple[str, ...]  # one, or the two that are compared
    captions: tuple[str, ...]  # theirs
    distractors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One question to one person, as it is shown."""

    id: str
    set: str  # the photo that is meant; in a catch trial the one to be chosen
    models: tuple[str, ...]  # in the order of the captions; none in a catch trial
    captions: tuple[str, ...]
    photos: tuple[str, ...]  # in the order shown
    catch: bool = False


def conditions(kind: Kind, models: Sequence[str]) -> list[tuple[str, ...]]:
    """What differs between the people who see a set."""
    return list(combinations(models, 2)) if kind == "compare" else [(model,) for model in models]


def sessions(
    kind: Kind, sets: Sequence[Sequence[Item]], *, per_person: int, answers: int, catch: int, seed: int
) -> list[list[Trial]]:
    """The trials of each person.

    sets        the items of each set, one for each condition
    per_person  sets that a person sees at most
    answers     people who see each item
    catch       attention checks for each person, beside these
    """
    random, found = np.random.default_rng(seed), list[list[Trial]]()
    order = random.permutation(len(sets))
    for block in np.array_split(order, -(-len(sets) // per_person)):
        for turn in range(len(sets[0]) * answers):
            shown = [sets[place][(row + turn) % len(sets[0])] for row, place in enumerate(block.tolist())]
            found.append(_session(kind, shown, len(found), catch, random))
    return found


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
        else:
            trials.append(_shown(kind, next(drawn), id, next(places), random))
    return trials


def _balanced(choices: int, count: int, random: np.random.Generator) -> list[int]:
    """Places 0 ... choices - 1, each as often as the others, in a random order."""
    rounds = np.concatenate([random.permutation(choices) for _ in range(1 + count // choices)])
    return [int(place) for place in random.permutation(rounds[:count])]


def _shown(kind: Kind, item: Item, id: str, place: int, random: np.random.Generator) -> Trial:
    if kind == "compare":
        turned = slice(None, None, -1) if place else slice(None)
        return Trial(id, item.set, item.models[turned], item.captions[turned], (item.set,))
    return Trial(id, item.set, item.models, item.captions, _photos(item, place, random))


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


def why_wrong(kind: Kind, trial: Trial, response: Any) -> str:
    """What is wrong with the form of a response; nothing if it is an answer to the trial.

    choose   a photo
    order    the first ten photos, best first
    compare  {"accuracy", "distinctiveness"}: "first", "tie" or "second"
    """
    if kind == "choose":
        return "" if isinstance(response, str) and response in trial.photos else "choose one of the photos."
    if kind == "order":
        wanted = min(ORDERED, len(trial.photos))
        right = isinstance(response, list) and len(response) == wanted
        right = right and all(isinstance(photo, str) and photo in trial.photos for photo in response)
        return "" if right and len(set(response)) == wanted else f"put {wanted} different photos in order."
    right = isinstance(response, dict) and set(response) == set(CRITERIA)
    right = right and all(answer in (FIRST, TIE, SECOND) for answer in response.values())
    return "" if right else "answer both questions."


def passed(kind: Kind, trial: Trial, response: Any) -> bool:
    """Whether a person did what a catch trial asks for."""
    if kind == "compare":
        return all(answer == trial.models[0] for answer in response.values())
    return bool(rank(response, trial) == 1)


def rank(response: Any, trial: Trial) -> int:
    """The place that a person gave to the right photo, from 1; 0: none."""
    chosen = [response] if isinstance(response, str) else response
    return chosen.index(trial.set) + 1 if trial.set in chosen else 0
