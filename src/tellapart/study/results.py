"""What a study found: who counts, the papers' tables, tests, agreement, and files for other programs.

answers.jsonl, answers.csv   one row per answer, in the column names of jsPsych
MODEL.run, qrels             for trec_eval (order, choose)
results.json                 all figures
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from capscore import csv_table, files
from capscore.errors import UserError
from capscore.printable import printable
from tellapart.evaluation.trec import file_name, word
from tellapart.metrics.retrieval import RECALLS
from tellapart.study import statistics
from tellapart.study.answers import Answer, Person
from tellapart.study.design import CRITERIA, FIRST, SECOND, Trial, passed, rank, why_wrong
from tellapart.study.folder import Study

FLOOR = 300.0  # milliseconds: nobody reads a caption and answers in less
CATCH = 0.5  # share of catch trials that a person has to pass


@dataclass(frozen=True)
class Row:
    """An answer and what it is an answer to."""

    person: Person
    trial: Trial
    answer: Answer
    rt: float  # milliseconds that the page says, or that the server saw if those are fewer
    left_out: str  # why it does not count; empty if it does

    @property
    def rank(self) -> int:
        return rank(self.answer.response, self.trial)

    def outcome(self, criterion: str, ours: str) -> float:
        """1, 0, -1: our caption was preferred, neither, the other."""
        chosen = {FIRST: 0, SECOND: 1}.get(self.answer.response[criterion])
        return 0.0 if chosen is None else 1.0 if self.trial.models[chosen] == ours else -1.0


@dataclass(frozen=True)
class Results:
    study: Study
    rows: list[Row]  # all of them
    people: list[dict[str, Any]]  # the table of people
    figures: dict[str, Any]
    problems: list[str]  # a sentence for each row of the database that cannot be used

    @property
    def counted(self) -> list[Row]:
        return [row for row in self.rows if not row.left_out and not row.trial.catch]


def analyse(
    study: Study,
    people: Sequence[Person],
    answers: Sequence[Answer],
    *,
    floor: float = FLOOR,
    catch: float = CATCH,
) -> Results:
    trials, problems = study.trials(), list[str]()
    persons = dict[str, Person]()
    for person in people:
        if _is_whole(person, study):
            persons[person.id] = person
        else:
            problems.append(f"the person {person.subject_id or person.id!r} is damaged in the database.")
    own: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if problem := _why_unusable(study, trials, persons, answer):
            problems.append(problem)
        else:
            own[answer.person].append(answer)
    rows, table = [], []
    for person in persons.values():
        times = _times(person, own[person.id])
        mine = sorted(own[person.id], key=lambda answer: answer.trial)
        checks = [passed(study.kind, trials[a.trial], a.response) for a in mine if trials[a.trial].catch]
        failed = bool(checks) and np.mean(checks) < catch
        for answer in mine:
            why = "failed catch trials" if failed else "too fast" if times[answer.trial] < floor else ""
            rows.append(Row(person, trials[answer.trial], answer, times[answer.trial], why))
        table.append(_of_person(study, person, [row for row in rows if row.person is person], checks, bool(failed)))
    results = Results(study, rows, table, {}, problems)
    if not results.counted:
        left = f"; {len(problems)} rows cannot be used, such as: {problems[0]}" if problems else "."
        raise UserError(f"there are no answers that count yet{left}")
    results.figures.update(_figures(results))
    return results


def _times(person: Person, answers: Sequence[Answer]) -> dict[str, float]:
    """Milliseconds for each trial.  A question is sent when the answer before it is received, so that what a page says
    cannot be more than what lies between the two."""
    sent, times = person.started, {}
    for answer in sorted(answers, key=lambda one: one.received):
        seen = 1000 * (answer.received - sent) if answer.received else math.inf
        times[answer.trial], sent = min(float(answer.rt), seen), answer.received or sent
    return times


def _is_whole(person: Person, study: Study) -> bool:
    texts = (person.id, person.subject_id or "", person.study_id, person.session_id)
    session = type(person.session) is int and 0 <= person.session < len(study.sessions)
    return session and _is_number(person.started) and all(isinstance(text, str) for text in texts)


def _why_unusable(study: Study, trials: Mapping[str, Trial], persons: Mapping[str, Person], answer: Answer) -> str:
    if answer.trial not in trials or answer.person not in persons:
        return f"there is an answer to the trial {answer.trial!r}, which is none of this study's."
    wrong = why_wrong(study.kind, trials[answer.trial], answer.response)
    if not wrong and not (_is_number(answer.rt) and _is_number(answer.received)):
        wrong = "its times are damaged."
    return f"the answer to the trial {answer.trial!r} cannot be used: {wrong}" if wrong else ""


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _of_person(
    study: Study, person: Person, rows: Sequence[Row], checks: Sequence[bool], failed: bool
) -> dict[str, Any]:
    asked = [row for row in rows if not row.trial.catch]
    right = [row.rank == 1 for row in asked]
    times = [row.rt for row in asked]
    return {
        "subject_id": person.subject_id or person.id,
        "session": person.session,
        "answers": len(rows),
        "of": len(study.sessions[person.session]),
        "catch_passed": sum(checks),
        "catch": len(checks),
        "median_rt": float(np.median(times)) if times else math.nan,
        "too_fast": sum(row.left_out == "too fast" for row in rows),
        "accuracy": float(np.mean(right)) if right and study.kind != "compare" else math.nan,
        "left_out": failed,
    }


# Figures


def _figures(results: Results) -> dict[str, Any]:
    study, rows = results.study, results.counted
    left_out = Counter(row.left_out for row in results.rows if row.left_out)
    found: dict[str, Any] = {
        "kind": study.kind,
        "people": len({row.person.id for row in rows}),
        "answers": len(rows),
        "left_out": dict(left_out),
    }
    return found | (_preferences(study, rows) if study.kind == "compare" else _retrieval(study, rows))


def _retrieval(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    of_model = {model: [row for row in rows if row.trial.models == (model,)] for model in study.models}
    ks = RECALLS if study.kind == "order" else (1,)
    models = {
        model: {
            _measure(study, k): statistics.wilson(sum(0 < row.rank <= k for row in own), len(own))._asdict() for k in ks
        }
        for model, own in of_model.items()
        if own
    }
    pairs = {
        f"{ours} - {theirs}": {_measure(study, k): _paired(of_model[ours], of_model[theirs], k) for k in ks}
        for theirs, ours in combinations(models, 2)
    }
    chosen = [_first(row) for row in rows]
    places = Counter(row.trial.photos.index(photo) for row, photo in zip(rows, chosen, strict=True))
    counts = [places[place] for place in range(len(rows[0].trial.photos))]
    number = {photo: float(place) for place, photo in enumerate(sorted(set(chosen)))}
    units: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, photo in zip(rows, chosen, strict=True):
        units[row.trial.set, row.trial.models[0]].append(number[photo])
    return {
        "models": models,
        "differences": pairs,
        "alpha": {"chosen photo (nominal)": statistics.krippendorff(list(units.values()))},
        "position": {"counts": counts, "p": statistics.uniform(counts)},
    }


def _measure(study: Study, k: int) -> str:
    return f"R@{k}-User" if study.kind == "order" else "accuracy"


def _first(row: Row) -> str:
    response = row.answer.response
    return str(response if isinstance(response, str) else response[0])


def _paired(ours: Sequence[Row], theirs: Sequence[Row], k: int) -> dict[str, float]:
    """By set: the clustered bootstrap, and McNemar's test on sets, of which one model's is found more often."""
    right = [np.array([float(0 < row.rank <= k) for row in own]) for own in (ours, theirs)]
    people, sets = _numbers(ours, theirs, "person"), _numbers(ours, theirs, "set")
    found = statistics.difference(right[0], right[1], people, sets)
    means: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    for side, own in enumerate((ours, theirs)):
        for row, value in zip(own, right[side], strict=True):
            means[row.trial.set][side].append(float(value))
    gaps = [float(np.mean(one) - np.mean(other)) for one, other in means.values() if one and other]
    gained, lost = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return {**found._asdict(), "gained": gained, "lost": lost, "mcnemar_p": statistics.mcnemar(gained, lost)}


def _numbers(ours: Sequence[Row], theirs: Sequence[Row], what: str) -> tuple[statistics.Numbers, statistics.Numbers]:
    names = [[row.person.id if what == "person" else row.trial.set for row in own] for own in (ours, theirs)]
    number = {name: place for place, name in enumerate(sorted({*names[0], *names[1]}))}
    one, other = (np.array([number[name] for name in own], np.int64) for own in names)
    return one, other


def _preferences(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    strengths: dict[str, Any] = {}
    for theirs, ours in combinations(study.models, 2):
        own = [row for row in rows if set(row.trial.models) == {ours, theirs}]
        if own:
            pairs[f"{ours} - {theirs}"] = {name: _outcomes(own, name, ours) for name in CRITERIA}
    alpha, position = {}, {}
    for name in CRITERIA:
        wins, ties = np.zeros((2, len(study.models), len(study.models)))
        units: dict[tuple[str, ...], list[float]] = defaultdict(list)
        places = Counter(row.answer.response[name] for row in rows)
        for row in rows:
            first, second = sorted(map(study.models.index, row.trial.models))
            outcome = row.outcome(name, study.models[first])
            units[row.trial.set, study.models[first], study.models[second]].append(outcome)
            if outcome:
                wins[(first, second) if outcome > 0 else (second, first)] += 1
            else:
                ties[first, second] += 1
        strength, tie = statistics.davidson(wins, ties)
        strengths[name] = {**dict(zip(study.models, strength.tolist(), strict=True)), "(tie)": tie}
        alpha[f"{name} (ordinal)"] = statistics.krippendorff(list(units.values()), "ordinal")
        sides = [places[FIRST], places[SECOND]]
        position[name] = {"first": sides[0], "second": sides[1], "p": statistics.mcnemar(*sides)}
    return {"pairs": pairs, "bradley_terry": strengths, "alpha": alpha, "position": position}


def _outcomes(rows: Sequence[Row], criterion: str, ours: str) -> dict[str, float]:
    values = np.array([row.outcome(criterion, ours) for row in rows])
    people, sets = _numbers(rows, rows, "person")[0], _numbers(rows, rows, "set")[0]
    # wins minus losses against 0: the second half of a pair that is always 0 adds no spread
    found = statistics.difference(values, np.zeros_like(values), (people, people), (sets, sets))
    gained, lost = int((values > 0).sum()), int((values < 0).sum())
    shares = {"win": gained / len(values), "tie": float((values == 0).mean()), "loss": lost / len(values)}
    return {**shares, "answers": len(values), **found._asdict(), "sign_p": statistics.mcnemar(gained, lost)}


# Tables


def tables(results: Results) -> Iterator[str]:
    """Lines for people: the table of the paper in its form, then what it rests on."""
    found, study = results.figures, results.study
    if study.kind == "order":
        yield from _lines([["Model", *next(iter(found["models"].values()))], *_shares(found["models"])])
    elif study.kind == "choose":
        yield from _lines([["Captions", "accuracy"], *_shares(found["models"])])
    for pair, criteria in found.get("pairs", {}).items():
        if len(found["pairs"]) > 1:
            yield f"{pair}:"
        body = [
            [name.capitalize(), *(_percent(one[key]) for key in ("win", "tie", "loss"))]
            for name, one in criteria.items()
        ]
        yield from _lines([["Criterion", "Win", "Tie", "Loss"], *body])
    yield ""
    for model, own in found.get("models", {}).items():
        for name, one in own.items():
            yield f"{model}: {name} {_percent(one['value'])} [{_percent(one['low'])}, {_percent(one['high'])}]"
    for pair, own in {**found.get("differences", {}), **found.get("pairs", {})}.items():
        for name, one in own.items():
            what = "wins - losses, " if study.kind == "compare" else ""
            interval = f"[{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"
            exact = f"McNemar p {one['mcnemar_p']:.3g}" if "mcnemar_p" in one else f"sign test p {one['sign_p']:.3g}"
            yield f"{pair}: {what}{name} {100 * one['value']:+.1f} {interval}, p {one['p']:.3g}; {exact}"
    for name, one in found.get("bradley_terry", {}).items():
        yield f"Bradley-Terry, {name}: " + ", ".join(f"{model} {value:+.2f}" for model, value in one.items())
    for name, alpha in found["alpha"].items():
        yield f"Krippendorff's alpha, {name}: " + ("not measured" if math.isnan(alpha) else f"{alpha:.3f}")
    for name, own in found.get("agreement", {}).items():
        shares = (
            f"{of} {_percent(one['value'])} [{_percent(one['low'])}, {_percent(one['high'])}] of {one['pairs']} pairs"
            for of, one in own.items()
        )
        yield f"agreement with people, {name}: {'; '.join(shares)}"
    biases = found["position"] if study.kind == "compare" else {"chosen": found["position"]}
    for name, one in biases.items():
        counts = one.get("counts") or [one["first"], one["second"]]
        yield f"positions, {name}: {' '.join(map(str, counts))}, p {one['p']:.3g}"
    left = ", ".join(f"{count} {why}" for why, count in found["left_out"].items()) or "none"
    yield f"{found['people']} people, {found['answers']} answers; answers left out: {left}"
    yield ""
    columns = ["subject_id", "answers", "of", "catch_passed", "catch", "median_rt", "too_fast", "accuracy", "left_out"]
    yield from _lines([columns, *([_cell(person[name]) for name in columns] for person in results.people)])


def _shares(models: dict[str, Any]) -> list[list[str]]:
    return [[model, *(_percent(one["value"]) for one in own.values())] for model, own in models.items()]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        ("-" if math.isnan(value) else f"{value:.2f}" if value < 2 else f"{value:.0f}")
        if isinstance(value, float)
        else str(value)
    )


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return ("\t".join(map(printable, row)) for row in rows)


# Files


def write(results: Results, folder: Path) -> None:
    study = results.study
    records = [_record(study, row) for row in results.rows]
    files.replace(folder / "answers.jsonl", "".join(json.dumps(one) + "\n" for one in records).encode("ascii"))
    lines = [csv_table.line(records[0])] if records else []
    lines += [csv_table.line(_csv(value) for value in one.values()) for one in records]
    files.replace(folder / "answers.csv", "".join(lines).encode("utf-8", "surrogateescape"))
    content = {"figures": results.figures, "people": results.people}
    files.replace(folder / "results.json", (json.dumps(_finite(content), indent=1) + "\n").encode("ascii"))
    if study.kind == "compare":
        return
    own = {_query(row): f"{_query(row)} 0 {word(study.photos[row.trial.set])} 1\n" for row in results.counted}
    files.replace(folder / "qrels", "".join(own.values()).encode("ascii"))
    for model in study.models:
        run = [line for row in results.counted if row.trial.models == (model,) for line in _run(study, row, model)]
        files.replace(folder / f"{file_name(model)}.run", "".join(run).encode("ascii"))


def _query(row: Row) -> str:
    """A person's question is a query of its own."""
    return f"{row.trial.id}.{word(row.person.id)}"


def _run(study: Study, row: Row, model: str) -> Iterator[str]:
    response = row.answer.response
    chosen = [response] if isinstance(response, str) else response
    for place, photo in enumerate(chosen, start=1):
        yield f"{_query(row)} Q0 {word(study.photos[photo])} {place} {len(chosen) - place + 1} {word(model)}\n"


def _record(study: Study, row: Row) -> dict[str, Any]:
    trial, compare = row.trial, study.kind == "compare"
    correct = passed(study.kind, trial, row.answer.response) if trial.catch else None if compare else row.rank == 1
    return {
        "subject_id": row.person.subject_id or row.person.id,
        "study_id": row.person.study_id,
        "session_id": row.person.session_id,
        "trial_type": f"tellapart-{study.kind}",
        "trial_index": int(trial.id.rpartition("-")[2]),
        "time_elapsed": round(1000 * max(0.0, row.answer.received - row.person.started)),
        "rt": row.rt,
        "stimulus": list(trial.captions),
        "response": _named(study, row.answer.response),
        "correct": correct,
        "rank": None if compare else row.rank,
        "trial_id": trial.id,
        "models": list(trial.models),
        "photos": [study.photos[photo] for photo in trial.photos],
        "target": study.photos[trial.set],
        "position": None if compare else trial.photos.index(trial.set),
        "catch": trial.catch,
        "left_out": row.left_out,
    }


def _named(study: Study, response: Any) -> Any:
    """A response with the photos' ids of the data."""
    if isinstance(response, dict):
        return response
    return study.photos[response] if isinstance(response, str) else [study.photos[photo] for photo in response]


def _csv(value: Any) -> csv_table.Cell:
    return csv_table.Json.of(value) if isinstance(value, list | dict | bool) else value


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
