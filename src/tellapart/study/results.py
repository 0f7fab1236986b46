"""Results of a study: who counts, the papers' tables, tests, agreement with measures, and files for other programs.

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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.errors import UserError
from capscore.printable import printable
from capscore.tables import Json, csv_line
from tellapart.evaluation.trec import file_name, word
from tellapart.metrics.retrieval import RECALLS
from tellapart.study import statistics
from tellapart.study.folder import CRITERIA, FIRST, SECOND, Answer, Person, Study, Trial, photo_file

if TYPE_CHECKING:
    from tellapart.evaluation.models import Split
    from tellapart.retrievers.retriever import Retriever

FLOOR = 300.0  # milliseconds: nobody reads a caption and answers in less
CATCH = 0.5  # share of catch trials that a person has to pass
_SAMPLES = 1000  # of photos, for the intervals of agreement
_EQUAL = 1e-9

Caption = tuple[str, str]  # photo, model
Values = dict[str, dict[Caption, float]]  # measure -> caption -> value; higher is better


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
        return self.trial.rank(self.answer.response)

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
    study: Study, people: Sequence[Person], answers: Sequence[Answer], *, floor: float = FLOOR, catch: float = CATCH
) -> Results:
    trials, problems = study.trials(), list[str]()
    persons = dict[str, Person]()
    for person in people:
        if _is_whole(person, study):
            persons[person.id] = person
        else:
            problems.append(f"the person {person.subject_id or person.id!r} is damaged in the database.")
    answers_by: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if problem := _why_unusable(study, trials, persons, answer):
            problems.append(problem)
        else:
            answers_by[answer.person].append(answer)
    rows, table = list[Row](), []
    for person in persons.values():
        times = _times(person, answers_by[person.id])
        in_order = sorted(answers_by[person.id], key=lambda answer: answer.trial)
        checks = [trials[a.trial].passed(study.kind, a.response) for a in in_order if trials[a.trial].catch]
        failed = bool(checks) and bool(np.mean(checks) < catch)
        of_person = []
        for answer in in_order:
            why = "failed catch trials" if failed else "too fast" if times[answer.trial] < floor else ""
            of_person.append(Row(person, trials[answer.trial], answer, times[answer.trial], why))
        rows += of_person
        table.append(_of_person(study, person, of_person, checks, failed))
    results = Results(study, rows, table, {}, problems)
    if not results.counted:
        left = f"; {len(problems)} rows cannot be used, such as: {problems[0]}" if problems else "."
        raise UserError(f"there are no answers that count yet{left}")
    counted = results.counted
    results.figures.update(
        kind=study.kind,
        people=len({row.person.id for row in counted}),
        answers=len(counted),
        left_out=dict(Counter(row.left_out for row in rows if row.left_out)),
        **(_preferences(study, counted) if study.kind == "compare" else _retrieval(study, counted)),
    )
    return results


def _times(person: Person, answers: Sequence[Answer]) -> dict[str, float]:
    """Milliseconds for each trial.  A question is sent when the answer before it is received, so that what a page says
    cannot be more than what lies between the two."""
    sent, times = person.started, {}
    for answer in sorted(answers, key=lambda answer: answer.received):
        observed = 1000 * (answer.received - sent) if answer.received else math.inf
        times[answer.trial], sent = min(float(answer.rt), observed), answer.received or sent
    return times


def _is_whole(person: Person, study: Study) -> bool:
    texts = (person.id, person.subject_id or "", person.study_id, person.session_id)
    session = type(person.session) is int and 0 <= person.session < len(study.sessions)
    return session and _is_number(person.started) and all(isinstance(text, str) for text in texts)


def _why_unusable(study: Study, trials: Mapping[str, Trial], persons: Mapping[str, Person], answer: Answer) -> str:
    if answer.trial not in trials or answer.person not in persons:
        return f"there is an answer to the trial {answer.trial!r}, which is none of this study's."
    wrong = trials[answer.trial].why_wrong(study.kind, answer.response)
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
    return {
        "subject_id": person.subject_id or person.id,
        "session": person.session,
        "answers": len(rows),
        "of": len(study.sessions[person.session]),
        "catch_passed": sum(checks),
        "catch": len(checks),
        "median_rt": float(np.median([row.rt for row in asked])) if asked else math.nan,
        "too_fast": sum(row.left_out == "too fast" for row in rows),
        "accuracy": float(np.mean(right)) if right and study.kind != "compare" else math.nan,
        "left_out": failed,
    }


# Figures


def _retrieval(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    """Shares of answers that found the photo, for each model and between every two."""
    of_model = {model: [row for row in rows if row.trial.models == (model,)] for model in study.models}
    measures = {f"R@{k}-User": k for k in RECALLS} if study.kind == "order" else {"accuracy": 1}
    models = {
        model: {
            name: statistics.wilson(sum(0 < row.rank <= k for row in answered), len(answered))._asdict()
            for name, k in measures.items()
        }
        for model, answered in of_model.items()
        if answered
    }
    pairs = {
        f"{ours} - {theirs}": {name: _paired(of_model[ours], of_model[theirs], k) for name, k in measures.items()}
        for theirs, ours in combinations(models, 2)
    }
    responses = [row.answer.response for row in rows]
    chosen = [str(response if isinstance(response, str) else response[0]) for response in responses]
    places = Counter(row.trial.photos.index(photo) for row, photo in zip(rows, chosen, strict=True))
    counts = [places[place] for place in range(len(rows[0].trial.photos))]
    number = {photo: float(place) for place, photo in enumerate(sorted(set(chosen)))}
    units: dict[Caption, list[float]] = defaultdict(list)
    for row, photo in zip(rows, chosen, strict=True):
        units[row.trial.set, row.trial.models[0]].append(number[photo])
    return {
        "models": models,
        "differences": pairs,
        "alpha": {"chosen photo (nominal)": statistics.krippendorff(list(units.values()))},
        "position": {"counts": counts, "p": statistics.uniform(counts)},
    }


def _paired(ours: Sequence[Row], theirs: Sequence[Row], k: int) -> dict[str, float]:
    """By set: the clustered bootstrap, and McNemar's test on sets, of which one model's is found more often."""
    right = [np.array([float(0 < row.rank <= k) for row in rows]) for rows in (ours, theirs)]
    estimate = statistics.difference(right[0], right[1], *_clusters(ours, theirs))
    values: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    for side, rows in enumerate((ours, theirs)):
        for row, value in zip(rows, right[side], strict=True):
            values[row.trial.set][side].append(float(value))
    gaps = [float(np.mean(first) - np.mean(second)) for first, second in values.values() if first and second]
    gained, lost = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return {**estimate._asdict(), "gained": gained, "lost": lost, "mcnemar_p": statistics.mcnemar(gained, lost)}


def _clusters(ours: Sequence[Row], theirs: Sequence[Row]) -> list[tuple[statistics.Numbers, statistics.Numbers]]:
    """The people and the sets of both models' answers, as numbers."""
    rows = [*ours, *theirs]
    names = ([row.person.id for row in rows], [row.trial.set for row in rows])
    numbers = [np.unique(np.array(of_rows, object), return_inverse=True)[1] for of_rows in names]
    return [(of_rows[: len(ours)], of_rows[len(ours) :]) for of_rows in numbers]


def _preferences(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    """Shares of answers that prefer one model's caption to another's, by each criterion."""
    pairs: dict[str, Any] = {}
    strengths: dict[str, Any] = {}
    for theirs, ours in combinations(study.models, 2):
        of_pair = [row for row in rows if set(row.trial.models) == {ours, theirs}]
        if of_pair:
            pairs[f"{ours} - {theirs}"] = {name: _outcomes(of_pair, name, ours) for name in CRITERIA}
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
    # wins minus losses against 0: the second half of a pair that is always 0 adds no spread
    estimate = statistics.difference(values, np.zeros_like(values), *_clusters(rows, rows))
    gained, lost = int((values > 0).sum()), int((values < 0).sum())
    shares = {"win": gained / len(values), "tie": float((values == 0).mean()), "loss": lost / len(values)}
    return {**shares, "answers": len(values), **estimate._asdict(), "sign_p": statistics.mcnemar(gained, lost)}


# Agreement of measures with people: of two captions that people did not find equal, which does a measure prefer?
#
#     choose, order  every two captions, one of which brought people to its photo more often (order: by reciprocal
#                    rank); and of these, those of the same photo
#     compare        the two captions of a question, by the answers to it
#
# The share of pairs in which the measure prefers the same caption; 50 % is chance, and a measure that finds both equal
# counts as a half.  Intervals are by a bootstrap over photos.  The measures are those of `evaluate`, among the photos
# of the study as it shows them.


def captions_of(study: Study) -> dict[Caption, str]:
    trials = (trial for trial in study.trials().values() if not trial.catch)
    return {(t.set, model): text for t in trials for model, text in zip(t.models, t.captions, strict=True)}


def measure(study: Study, folder: Path, names: Sequence[str], device: str = "auto") -> tuple[Values, dict[str, str]]:
    """The value of each caption by each measure, and why other measures are left out."""
    from tellapart.data.examples import Example
    from tellapart.evaluation import grid
    from tellapart.evaluation.evaluate import text_reader
    from tellapart.evaluation.models import Split
    from tellapart.metrics import retrieval
    from tellapart.models import retrievers as retriever_models

    references, ids = study.settings.get("references") or {}, sorted(study.photos)
    photos = [Example(id, photo_file(folder, id), captions=tuple(references.get(id, ()))) for id in ids]
    retrievers = [retriever_models.load(name, device=device) for name in names]
    reader, left_out = text_reader(retrievers, device)
    seeing = [retriever for retriever in retrievers if retriever.sees == "photos"]
    split, embedded = grid.embed(seeing, Split(study.title, str(folder), photos, []))
    row_of = {str(photo.id): row for row, photo in enumerate(split.photos)}
    captions = {caption: text for caption, text in captions_of(study).items() if caption[0] in row_of}
    values: Values = {}
    for photo_retriever in grid.photo_retrievers_of(seeing, embedded, split, None):
        name, gallery = photo_retriever.retriever.name, photo_retriever.gallery
        rows = np.array([row_of[photo] for photo, _ in captions], np.int64)
        vectors = grid.embed_captions(photo_retriever.retriever, list(captions.values()))
        ranked = retrieval.find(vectors, rows, gallery, f"captions by {name}")
        for measured, column in (
            (str(retrieval.Name("R", 1, name)), ranked.ranks == 0),
            (str(retrieval.Name("GEG-Avg", retriever=name)), ranked.average),
            (f"Cosine[{name}]", (vectors * gallery.photos[rows]).sum(1)),
        ):
            values[measured] = dict(zip(captions, column.astype(float).tolist(), strict=True))
    if reader is not None and any(photo.captions for photo in split.photos):
        values[str(retrieval.Name("TT R", 1))] = _text_to_text(split, captions, row_of, reader)
    elif reader is not None:
        left_out = {"TT": "the study has no references."}
    return values, left_out


def _text_to_text(
    split: Split, captions: dict[Caption, str], row_of: dict[str, int], reader: Retriever
) -> dict[Caption, float]:
    """1 where a caption finds its photo by the references of all; a person's is compared with those of the others."""
    from tellapart.evaluation.grid import References
    from tellapart.evaluation.models import HUMAN
    from tellapart.metrics import retrieval

    references, values = References(split, reader), dict[Caption, float]()
    place_of = {row: place for place, row in enumerate(references.photos)}
    for of_people in (False, True):
        group = [
            caption
            for caption in captions
            if (caption[1] == HUMAN) == of_people and len(split.photos[row_of[caption[0]]].captions) > of_people
        ]
        places = np.array([place_of[row_of[photo]] for photo, _ in group], np.int64)
        vectors = references.embed([captions[caption] for caption in group])
        ranked = retrieval.text_to_text(vectors, places, references.vectors, references.counts, of_people=of_people)
        values |= zip(group, (ranked.ranks == 0).astype(float).tolist(), strict=True)
    return values


def agreement(results: Results, values: Values) -> dict[str, dict[str, dict[str, float]]]:
    """measure -> pairs of captions -> {value, low, high, pairs}"""
    agree = _agreement_on_preferences if results.study.kind == "compare" else _agreement_on_successes
    return {name: agree(results, of_captions) for name, of_captions in values.items()}


def _agreement_on_successes(results: Results, values: dict[Caption, float]) -> dict[str, dict[str, float]]:
    shares: dict[Caption, list[float]] = defaultdict(list)
    for row in results.counted:
        shares[row.trial.set, row.trial.models[0]].append(1 / row.rank if row.rank else 0.0)
    captions = sorted(shares.keys() & values)
    _, photo_of = np.unique([photo for photo, _ in captions], return_inverse=True)
    people = np.array([np.mean(shares[caption]) for caption in captions])
    measured = np.array([values[caption] for caption in captions])
    of_photo = np.eye(photo_of.max(initial=-1) + 1)[photo_of]  # (captions, photos)
    better = (people[:, None] - people > _EQUAL).astype(float)
    right = better * _preferred(measured[:, None] - measured)
    pairs, agreed = (of_photo.T @ matrix @ of_photo for matrix in (better, right))
    groups = {"all captions": _share(agreed, pairs)}
    if len(results.study.models) > 1:
        groups["of the same photo"] = _share(np.diag(agreed.diagonal()), np.diag(pairs.diagonal()))
    return groups


def _agreement_on_preferences(results: Results, values: dict[Caption, float]) -> dict[str, dict[str, float]]:
    shares, photos = {}, sorted({row.trial.set for row in results.counted})
    for criterion in CRITERIA:
        agreed, pairs = np.zeros((2, len(photos)))
        for first, second in combinations(results.study.models, 2):
            wins: dict[str, float] = defaultdict(float)
            for row in results.counted:
                if {*row.trial.models} == {first, second}:
                    wins[row.trial.set] += row.outcome(criterion, first)
            for place, photo in enumerate(photos):
                if wins[photo] and {(photo, first), (photo, second)} <= values.keys():
                    gap = np.sign(wins[photo]) * (values[photo, first] - values[photo, second])
                    agreed[place] += _preferred(np.array(gap))
                    pairs[place] += 1
        shares[criterion] = _share(np.diag(agreed), np.diag(pairs))
    return shares


def _preferred(gaps: NDArray[Any]) -> NDArray[Any]:
    """1: the measure prefers the same, 0.5: neither, 0: the other."""
    return np.where(np.abs(gaps) <= _EQUAL, 0.5, (gaps > 0).astype(float))


def _share(agreed: statistics.Floats, pairs: statistics.Floats) -> dict[str, float]:
    """The share of pairs of captions (photos, photos) in which they agree; pairs of one photo are on the diagonal."""
    if not pairs.sum():
        return {"value": np.nan, "low": np.nan, "high": np.nan, "pairs": 0}
    count = len(pairs)
    times = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _SAMPLES).astype(float)
    # pairs of one photo come as often as the photo, and not as often as pairs of it with itself
    right, total = (
        (times @ matrix * times).sum(1) - (times**2 - times) @ matrix.diagonal() for matrix in (agreed, pairs)
    )
    low, high = np.percentile(right[total > 0] / total[total > 0], [2.5, 97.5])
    return {"value": agreed.sum() / pairs.sum(), "low": float(low), "high": float(high), "pairs": int(pairs.sum())}


# Tables


def tables(results: Results) -> Iterator[str]:
    """Lines for people: the table of the paper in its form, then what it rests on."""
    figures, study = results.figures, results.study
    models, pairs = figures.get("models", {}), figures.get("pairs", {})
    if study.kind != "compare":
        first = "Model" if study.kind == "order" else "Captions"
        yield _line(first, *next(iter(models.values())))
        yield from (_line(model, *(_percent(e["value"]) for e in values.values())) for model, values in models.items())
    for pair, criteria in pairs.items():
        if len(pairs) > 1:
            yield f"{pair}:"
        yield _line("Criterion", "Win", "Tie", "Loss")
        for name, shares in criteria.items():
            yield _line(name.capitalize(), *(_percent(shares[key]) for key in ("win", "tie", "loss")))
    yield ""
    for model, values in models.items():
        yield from (f"{model}: {name} {_with_interval(estimate)}" for name, estimate in values.items())
    for pair, values in {**figures.get("differences", {}), **pairs}.items():
        for name, estimate in values.items():
            what = "wins - losses, " if study.kind == "compare" else ""
            interval = f"[{100 * estimate['low']:+.1f}, {100 * estimate['high']:+.1f}]"
            test, p = ("McNemar", "mcnemar_p") if "mcnemar_p" in estimate else ("sign test", "sign_p")
            exact = f"p {estimate['p']:.3g}; {test} p {estimate[p]:.3g}"
            yield f"{pair}: {what}{name} {100 * estimate['value']:+.1f} {interval}, {exact}"
    for name, strengths in figures.get("bradley_terry", {}).items():
        yield f"Bradley-Terry, {name}: " + ", ".join(f"{model} {value:+.2f}" for model, value in strengths.items())
    for name, alpha in figures["alpha"].items():
        yield f"Krippendorff's alpha, {name}: " + ("not measured" if math.isnan(alpha) else f"{alpha:.3f}")
    for name, groups in figures.get("agreement", {}).items():
        shares = "; ".join(f"{of} {_with_interval(share)} of {share['pairs']} pairs" for of, share in groups.items())
        yield f"agreement with people, {name}: {shares}"
    for name, places in (figures["position"] if study.kind == "compare" else {"chosen": figures["position"]}).items():
        counts = places.get("counts") or [places["first"], places["second"]]
        yield f"positions, {name}: {' '.join(map(str, counts))}, p {places['p']:.3g}"
    left = ", ".join(f"{count} {why}" for why, count in figures["left_out"].items()) or "none"
    yield f"{figures['people']} people, {figures['answers']} answers; answers left out: {left}"
    yield ""
    columns = ["subject_id", "answers", "of", "catch_passed", "catch", "median_rt", "too_fast", "accuracy", "left_out"]
    yield _line(*columns)
    yield from (_line(*(_cell(person[name]) for name in columns)) for person in results.people)


def _with_interval(estimate: dict[str, float]) -> str:
    return f"{_percent(estimate['value'])} [{_percent(estimate['low'])}, {_percent(estimate['high'])}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.2f}" if value < 2 else f"{value:.0f}"


def _line(*cells: str) -> str:
    return "\t".join(map(printable, cells))


# Files


def write(results: Results, folder: Path) -> None:
    study = results.study
    records = [_record(study, row) for row in results.rows]
    files.replace(folder / "answers.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode("ascii"))
    lines = [csv_line(records[0])] if records else []
    for record in records:
        cells = (Json.of(v) if isinstance(v, list | dict | bool) else v for v in record.values())
        lines.append(csv_line(cells))
    files.replace(folder / "answers.csv", "".join(lines).encode("utf-8", "surrogateescape"))
    content = {"figures": results.figures, "people": results.people}
    files.replace(folder / "results.json", (json.dumps(_finite(content), indent=1) + "\n").encode("ascii"))
    if study.kind == "compare":
        return
    qrels = {_query(row): f"{_query(row)} 0 {word(study.photos[row.trial.set])} 1\n" for row in results.counted}
    files.replace(folder / "qrels", "".join(qrels.values()).encode("ascii"))
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
    trial, response, compare = row.trial, row.answer.response, study.kind == "compare"
    correct = trial.passed(study.kind, response) if trial.catch else None if compare else row.rank == 1
    if not isinstance(response, dict):  # with the photos' ids of the data
        response = study.photos[response] if isinstance(response, str) else [study.photos[photo] for photo in response]
    return {
        "subject_id": row.person.subject_id or row.person.id,
        "study_id": row.person.study_id,
        "session_id": row.person.session_id,
        "trial_type": f"tellapart-{study.kind}",
        "trial_index": int(trial.id.rpartition("-")[2]),
        "time_elapsed": round(1000 * max(0.0, row.answer.received - row.person.started)),
        "rt": row.rt,
        "stimulus": list(trial.captions),
        "response": response,
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


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
