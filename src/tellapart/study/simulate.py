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

from tellapart.study.folder import CRITERIA, FIRST, ORDERED, SECOND, TIE, Answer, Kind, Person, Study, Trial
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
                # that the first caption shown leads to the photo, or is preferred to the second
                shown = [accuracies[model] for model in trial.models]
                accuracy = shown[0] if len(shown) == 1 else shown[0] / sum(shown) if sum(shown) else 0.5
                threshold = normal.inv_cdf(accuracy) * math.sqrt(1 + 2 * spread**2) if 0 < accuracy < 1 else 0.0
                chance = normal.cdf(threshold + ability + set_ease) if threshold or accuracy == 0.5 else accuracy
            response = _response(study.kind, trial, chance, random)
            rt = float(random.lognormal(8.5, 0.5))
            time += rt / 1000
            answers.append(Answer(persons[-1].id, trial.id, response, rt, time))
    return persons, answers


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
    figures = [
        analyse(study, *people(study, accuracies, spread=spread, seed=seed + number)).figures
        for number in range(studies)
    ]
    compare = study.kind == "compare"
    for model in () if compare else study.models:
        measure = next(iter(figures[0]["models"][model]))  # R@1-User or accuracy
        estimates = [of_study["models"][model][measure] for of_study in figures]
        held = sum(estimate["low"] <= accuracies[model] <= estimate["high"] for estimate in estimates)
        mean, true = 100 * float(np.mean([estimate["value"] for estimate in estimates])), 100 * accuracies[model]
        yield f"{model}: {measure} {mean:.1f} on average, truly {true:.1f}; in the interval {held} of {studies} times"
    key = "pairs" if compare else "differences"
    for pair, measures in figures[0][key].items():
        for measure in measures if compare else list(measures)[:1]:
            estimates = [of_study[key][pair][measure] for of_study in figures]
            significant = sum(estimate["p"] < 0.05 for estimate in estimates)
            mean = 100 * float(np.mean([estimate["value"] for estimate in estimates]))
            yield f"{pair}: {measure} {mean:+.1f} on average; p below 0.05 in {significant} of {studies} studies"
