"""People whose accuracy is known, to see what a study would find before anybody is paid.

Whether an answer is right is a threshold on ability + ease + noise.  Abilities of people and eases of sets vary with a
given spread; the threshold is such that the accuracy is the given one on average over them, whatever the spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from tellapart.study.answers import Answer, Person
from tellapart.study.design import CRITERIA, FIRST, ORDERED, SECOND, TIE, Kind, Trial
from tellapart.study.folder import Study
from tellapart.study.results import analyse

_TIES = 1 / 3  # share of ties where two captions are compared


def people(
    study: Study, accuracies: Mapping[str, float], *, spread: float = 0.0, seed: int = 0
) -> tuple[list[Person], list[Answer]]:
    """One person for each session, and all answers.

    accuracies  of each model's captions; where captions are compared, each is preferred in proportion to its own
    spread      standard deviation of abilities and of eases, in units of the noise
    """
    random, normal = np.random.default_rng(seed), NormalDist()
    ease: dict[str, float] = {}
    persons, answers = [], []
    for number, session in enumerate(study.sessions):
        persons.append(Person(f"simulated-{number:04d}", number, f"subject-{number:04d}"))
        ability, time = float(random.normal()) * spread, 0.0
        for trial in session:
            set_ease = ease.setdefault(trial.set, float(random.normal()) * spread)
            chance = 1.0
            if not trial.catch:
                accuracy = _accuracy(trial, accuracies)
                threshold = normal.inv_cdf(accuracy) * math.sqrt(1 + 2 * spread**2) if 0 < accuracy < 1 else 0.0
                chance = normal.cdf(threshold + ability + set_ease) if threshold or accuracy == 0.5 else accuracy
            response = _response(study.kind, trial, chance, random)
            rt = float(random.lognormal(8.5, 0.5))
            time += rt / 1000
            answers.append(Answer(persons[-1].id, trial.id, response, rt, time))
    return persons, answers


def _accuracy(trial: Trial, accuracies: Mapping[str, float]) -> float:
    """Of the first caption shown: that it leads to the photo, or is preferred to the second."""
    own = [accuracies[model] for model in trial.models]
    return own[0] if len(own) == 1 else own[0] / sum(own) if sum(own) else 0.5


def _response(kind: Kind, trial: Trial, chance: float, random: np.random.Generator) -> Any:
    if kind == "compare":
        if trial.catch:
            return dict.fromkeys(CRITERIA, trial.models[0])
        return {
            name: TIE if random.random() < _TIES else FIRST if random.random() < chance else SECOND for name in CRITERIA
        }
    others = [trial.photos[row] for row in random.permutation(len(trial.photos)) if trial.photos[row] != trial.set]
    right = random.random() < chance
    if kind == "choose":
        return trial.set if right else others[0]
    place = 0 if right else int(random.integers(1, len(trial.photos)))
    return [*others[:place], trial.set, *others[place:]][: min(ORDERED, len(trial.photos))]


def repeated(
    study: Study, accuracies: Mapping[str, float], studies: int, *, spread: float = 0.0, seed: int = 0
) -> Iterator[str]:
    """Lines that say what so many studies would find."""
    found = [
        analyse(study, *people(study, accuracies, spread=spread, seed=seed + number)).figures
        for number in range(studies)
    ]
    for model in study.models if study.kind != "compare" else ():
        measure = next(iter(found[0]["models"][model]))  # R@1-User or accuracy
        own = [one["models"][model][measure] for one in found]
        held = sum(one["low"] <= accuracies[model] <= one["high"] for one in own)
        mean = 100 * float(np.mean([one["value"] for one in own]))
        true = 100 * accuracies[model]
        yield f"{model}: {measure} {mean:.1f} on average, truly {true:.1f}; in the interval {held} of {studies} times"
    for pair, measures in found[0]["pairs" if study.kind == "compare" else "differences"].items():
        for measure in measures if study.kind == "compare" else list(measures)[:1]:
            own = [one["pairs" if study.kind == "compare" else "differences"][pair][measure] for one in found]
            significant = sum(one["p"] < 0.05 for one in own)
            mean = 100 * float(np.mean([one["value"] for one in own]))
            yield f"{pair}: {measure} {mean:+.1f} on average; p below 0.05 in {significant} of {studies} studies"
