"""Statistics of people's answers, as pure functions of numbers.

Answers are not independent: a person gives many, and a set is seen by many.  Differences are therefore clustered both
ways.  The variance of a difference is V(people) + V(sets) - V(answers), each from a bootstrap that draws people,
sets or single answers (Cameron, Gelbach and Miller 2011): drawing people and sets at once would count the noise of an
answer three times (Owen 2007), and the test would find too little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.statistics import SAMPLES, draws

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


class Estimate(NamedTuple):
    value: float
    low: float  # ends of the 95 % interval
    high: float
    p: float = math.nan  # two-sided, of the value being 0


def wilson(right: int, count: int) -> Estimate:
    """A share with its interval, as if all answers were independent."""
    from scipy.stats import binomtest

    ends = binomtest(right, count).proportion_ci(method="wilson")
    return Estimate(right / count, float(ends.low), float(ends.high))


def mcnemar(gained: int, lost: int) -> float:
    """The exact test: is a discordant pair as likely to be of one kind as of the other?"""
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def difference(
    ours: Floats, theirs: Floats, people: tuple[Numbers, Numbers], sets: tuple[Numbers, Numbers], *, seed: int = 0
) -> Estimate:
    """Mean of our answers minus mean of theirs, paired by set and clustered by people and by sets.

    ours, theirs  (N,), (M,) values of answers
    people, sets  whose answers they are, and of which set: numbers from 0 on, for ours and for theirs
    """
    from scipy.stats import t

    values = np.concatenate([ours, -theirs])
    is_ours = np.arange(len(values)) < len(ours)
    person, set_ = np.concatenate(people), np.concatenate(sets)
    value = float(ours.mean() - theirs.mean())
    answers = np.arange(len(values))
    by_people, by_sets, by_answers = (
        _variance(values, is_ours, np.unique(cluster, return_inverse=True)[1], seed)
        for cluster in (person, set_, answers)
    )
    variance = by_people + by_sets - by_answers
    if variance <= 0:  # possible by chance in small studies
        variance = max(by_people, by_sets)
    fewest = min(len(np.unique(person)), len(np.unique(set_)))
    if fewest < 2:  # one person shows no spread
        return Estimate(value, -1.0, 1.0, 1.0)
    error = math.sqrt(variance)
    reach = float(t.ppf(0.975, fewest - 1)) * error
    p = 2 * float(t.sf(abs(value) / error, fewest - 1)) if error else float(value == 0)
    return Estimate(value, value - reach, value + reach, p)


def _variance(values: Floats, is_ours: NDArray[np.bool_], cluster: Numbers, seed: int) -> float:
    """Variance of the difference of the two means, when clusters are drawn with replacement."""
    count = int(cluster.max()) + 1
    # sums by cluster: of our values, of theirs, and of how many there are of each
    sums = np.stack(
        [
            np.bincount(cluster, weight, minlength=count)
            for weight in (values * is_ours, values * ~is_ours, is_ours.astype(float), (~is_ours).astype(float))
        ],
        axis=1,
    )
    drawn = []
    for weights in draws(count, SAMPLES, seed):
        ours, theirs, of_ours, of_theirs = (weights @ sums).T
        whole = (of_ours > 0) & (of_theirs > 0)
        drawn.append(ours[whole] / of_ours[whole] + theirs[whole] / of_theirs[whole])
    spread = float(np.concatenate(drawn).var(ddof=1))
    return spread * count / (count - 1) if count > 1 else 0.0


def davidson(wins: Floats, ties: Floats) -> tuple[Floats, float]:
    """Bradley-Terry with ties (Davidson 1970): log strengths (M,) with mean 0, and ln of the tie parameter.

    wins  (M, M)  how often the row was preferred to the column
    ties  (M, M)  how often they tied, in the upper triangle

    P(i beats j) : P(tie) : P(j beats i) = e^si : e^(tie + (si + sj) / 2) : e^sj.  Half a win for both sides of every
    pair that was shown keeps strengths finite where one never loses.
    """
    from scipy.optimize import minimize

    count = len(wins)
    shown = (wins + wins.T + ties + ties.T) > 0
    first, second = np.nonzero(np.triu(shown, 1))
    won, lost = wins[first, second] + 0.5, wins[second, first] + 0.5
    tied = (ties + ties.T)[first, second]

    def cost(parameters: Floats) -> tuple[float, Floats]:
        strength, tie = parameters[:count], parameters[count]
        terms = np.stack([strength[first], tie + (strength[first] + strength[second]) / 2, strength[second]])
        total = np.logaddexp.reduce(terms, axis=0)
        counts = np.stack([won, tied, lost])
        excess = np.exp(terms - total) * counts.sum(0) - counts
        gradient = np.zeros(count + 1)
        np.add.at(gradient, first, excess[0] + excess[1] / 2)
        np.add.at(gradient, second, excess[2] + excess[1] / 2)
        gradient[count] = excess[1].sum()
        # the scale is free, and so is the tie parameter where nothing ties: a weak pull keeps both in place
        gradient += 1e-6 * parameters
        return float(-(counts * (terms - total)).sum() + 5e-7 * (parameters**2).sum()), gradient

    fitted = minimize(cost, np.zeros(count + 1), jac=True, method="BFGS").x
    return fitted[:count] - fitted[:count].mean(), float(fitted[count])


Level = Literal["nominal", "ordinal", "interval"]


def krippendorff(units: Sequence[Sequence[float]], level: Level = "nominal") -> float:
    """Krippendorff's alpha: 1 is full agreement, 0 what chance gives; not a number where nobody could agree.

    units  the values that each unit was given, by however many people

    Example:
        >>> krippendorff([[1, 1], [2, 2], [3, 3, 3]])
        1.0
    """
    rated = [unit for unit in units if len(unit) > 1]
    values = sorted({value for unit in rated for value in unit})
    place = {value: row for row, value in enumerate(values)}
    together = np.zeros((len(values), len(values)))  # coincidences of two values in a unit
    for unit in rated:
        counts = np.bincount([place[value] for value in unit], minlength=len(values)).astype(float)
        together += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    totals = together.sum(0)
    if level == "nominal":
        distance = 1 - np.eye(len(values))
    else:
        # ordinal: how many values lie between two, half of the two themselves
        scale = np.cumsum(totals) - totals / 2 if level == "ordinal" else np.array(values, float)
        distance = (scale[:, None] - scale) ** 2
    expected = float((np.outer(totals, totals) * distance).sum())
    if not expected:
        return math.nan
    return 1 - (float(totals.sum()) - 1) * float((together * distance).sum()) / expected


def uniform(counts: Sequence[int]) -> float:
    """p of all places being chosen equally often (chi-squared)."""
    from scipy.stats import chisquare

    return float(chisquare(counts).pvalue) if sum(counts) else 1.0


class Size(NamedTuple):
    paired: int  # sets, each with an answer for both models
    unpaired: int  # sets for each model, if these are different sets


def size(ours: float, theirs: float, discordant: float = 1 / 3, *, level: float = 0.05, power: float = 0.8) -> Size:
    """Sets that it takes to find a difference of two accuracies.

    discordant  share of sets in which one model's answer is right and the other's is not
    """
    gap = abs(ours - theirs)
    if gap == 0:
        raise UserError("two equal accuracies have no difference that a study could find.")
    most = min(ours + theirs, 2 - ours - theirs)
    if not gap <= discordant <= most + 1e-9:
        raise UserError(f"--discordant must be from {gap:.3g} to {most:.3g} with these accuracies.")
    normal = NormalDist()
    a, b = normal.inv_cdf(1 - level / 2), normal.inv_cdf(power)
    paired = (a * math.sqrt(discordant) + b * math.sqrt(discordant - gap**2)) ** 2 / gap**2
    mean = (ours + theirs) / 2
    spread = ours * (1 - ours) + theirs * (1 - theirs)
    unpaired = (a * math.sqrt(2 * mean * (1 - mean)) + b * math.sqrt(spread)) ** 2 / gap**2
    return Size(math.ceil(paired), math.ceil(unpaired))
