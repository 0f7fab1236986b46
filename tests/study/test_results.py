"""What results say of people whose answers are known."""

import csv
import json
import sqlite3

import numpy as np
import pytest

from capscore.errors import UserError
from study.studies import store, study
from support.postgresql import option, remove
from tellapart.__main__ import main
from tellapart.study import folder as stored
from tellapart.study import simulate, statistics
from tellapart.study.folder import Answer, Answers, Person, Taken
from tellapart.study.results import analyse, tables, write


def lines(made, persons, answers):
    return list(tables(analyse(made, persons, answers)))


def test_the_table_of_discritune(tmp_path):
    made = study(tmp_path, "choose", captions=("human", "plain.json", "rich.json"))
    persons, answers = simulate.people(made, {"human": 0, "plain": 1, "rich": 1})
    assert lines(made, persons, answers)[:4] == ["Captions\taccuracy", "human\t0.0", "plain\t100.0", "rich\t100.0"]


def test_the_tables_of_geg(tmp_path):
    def answered(kind, respond):
        made = study(tmp_path / kind, kind)
        persons, _ = simulate.people(made, {"plain": 1, "rich": 1})
        sessions = zip(persons, made.sessions, strict=True)
        answers = [Answer(person.id, t.id, respond(t), 900) for person, session in sessions for t in session]
        return lines(made, persons, answers)[:3]

    def ordered(trial):
        place = 0 if trial.catch else {"plain": 4, "rich": 9}[trial.models[0]]
        others = [photo for photo in trial.photos if photo != trial.set]
        return [*others[:place], trial.set, *others[place:]][:10]

    def preferred(trial):
        rich = trial.models[0] if trial.catch else ("first", "second")[trial.models.index("rich")]
        return {"accuracy": rich if trial.catch else "tie", "distinctiveness": rich}

    models = ["plain\t0.0\t100.0\t100.0", "rich\t0.0\t0.0\t100.0"]
    assert answered("order", ordered) == ["Model\tR@1-User\tR@5-User\tR@10-User", *models]
    criteria = ["Accuracy\t0.0\t100.0\t0.0", "Distinctiveness\t100.0\t0.0\t0.0"]
    assert answered("compare", preferred) == ["Criterion\tWin\tTie\tLoss", *criteria]


def test_a_listeners_accuracy_is_found_again_in_93_of_100_studies(tmp_path):
    made = study(tmp_path, "choose", captions=("plain.json",), answers=5)
    trials, held = made.trials(), 0
    for seed in range(100):
        _, answers = simulate.people(made, {"plain": 0.476}, seed=seed)
        right = [answer.response == trials[answer.trial].set for answer in answers if not trials[answer.trial].catch]
        found = statistics.wilson(sum(right), len(right))
        held += found.low <= 0.476 <= found.high
    assert held >= 93


def test_simulated_people_differ_and_are_right_as_often_as_asked_for(tmp_path):
    made = study(tmp_path, "choose", captions=("plain.json",), answers=20, catch=0)
    trials = made.trials()
    studies = [simulate.people(made, {"plain": 0.7}, spread=1, seed=seed)[1] for seed in range(30)]
    right = np.array([[answer.response == trials[answer.trial].set for answer in answers] for answers in studies])
    assert right.mean() == pytest.approx(0.7, abs=0.04)
    assert right.mean(1).std() > 2 * np.sqrt(0.7 * 0.3 / right.shape[1])  # than of answers that have nothing in common


def test_people_who_fail_catch_trials_and_answers_that_are_too_fast_do_not_count(tmp_path):
    made = study(tmp_path, "choose", per_person=12)
    persons, answers = simulate.people(made, {"plain": 1, "rich": 1})
    trials, careless, hasty = made.trials(), persons[0].id, persons[1].id
    changed = []
    for answer in answers:
        trial = trials[answer.trial]
        wrong = next(photo for photo in trial.photos if photo != trial.set)
        if answer.person == careless:
            answer = Answer(careless, answer.trial, wrong, 900)
        elif answer.person == hasty and not trial.catch:
            answer = Answer(hasty, answer.trial, wrong, 100)
        changed.append(answer)
    found = analyse(made, persons, changed)
    assert found.figures["models"]["plain"]["accuracy"]["value"] == 1
    assert found.figures["left_out"] == {"failed catch trials": 14, "too fast": 12}
    assert [person["left_out"] for person in found.people] == [True, False, False, False]
    kept = analyse(made, persons, changed, floor=0, catch=0)
    assert kept.figures["models"]["plain"]["accuracy"]["value"] == 0.5


def test_files_for_other_programs(tmp_path):
    made = study(tmp_path, "order", sets=6)
    persons, answers = simulate.people(made, {"plain": 0.5, "rich": 0.5})
    write(analyse(made, persons, answers), tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == len(answers)
    assert set(rows[0]) >= {"trial_type", "trial_index", "time_elapsed", "rt", "stimulus", "response", "subject_id"}
    with (tmp_path / "out" / "answers.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [json.loads(cell["response"]) for cell in cells] == [row["response"] for row in rows]
    # reciprocal ranks by the two TREC files alone, and by the rows
    right = {line.split()[0]: line.split()[2] for line in (tmp_path / "out" / "qrels").read_text().splitlines()}
    ranks = {}
    for line in (tmp_path / "out" / "plain.run").read_text().splitlines():
        query, _, photo, place, _, _ = line.split()
        ranks.setdefault(query, 0)
        if right[query] == photo:
            ranks[query] = int(place)
    assert sorted(ranks.values()) == sorted(row["rank"] for row in rows if row["models"] == ["plain"])
    assert json.loads((tmp_path / "out" / "results.json").read_text())["figures"]["kind"] == "order"


def test_answers_to_trials_that_do_not_exist_are_refused(tmp_path):
    made = study(tmp_path, "choose")
    person = Person("x", 0)
    with pytest.raises(UserError, match="an answer to the trial '9999-000', which is none of this study's"):
        analyse(made, [person], [Answer("x", "9999-000", "p00000", 900)])
    with pytest.raises(UserError, match="choose one of the photos"):
        analyse(made, [person], [Answer("x", "0000-000", "elsewhere", 900)])


def test_a_time_is_what_the_server_saw_where_the_page_says_more(tmp_path):
    made = study(tmp_path, "choose", per_person=4, catch=0)
    trials = made.sessions[0][:4]
    person = Person("x", 0, started=1000.0)
    # received after 28 ms, 2 s and 3 s, each with other times that the page says
    given = [(1000.028, 5000.0), (1002.028, 900.0), (1005.028, 1e9), (0.0, 700.0)]
    answers = [Answer("x", t.id, t.set, rt, received) for t, (received, rt) in zip(trials, given, strict=True)]
    found = analyse(made, [person], answers[::-1])
    rows = {row.trial.id: row for row in found.rows}
    assert [rows[trial.id].rt for trial in trials] == pytest.approx([28, 900, 3000, 700], abs=0.01)
    assert [rows[trial.id].left_out for trial in trials] == ["too fast", "", "", ""]
    assert found.people[0]["median_rt"] == pytest.approx(800, abs=0.01)


PERSON, TIMES, RESPONSE = "the person 'subject-0000' is damaged", "its times are damaged", "choose one"
DAMAGE = {
    **dict.fromkeys(("people set session = 99", "people set session = 'x'", "people set started = 'x'"), PERSON),
    **dict.fromkeys(("answers set rt = 'abc'", "answers set received = 'x'"), f"'0000-000' cannot be used: {TIMES}"),
    **{f"answers set response = {v}": f"'0000-000' cannot be used: {RESPONSE}" for v in ("'\"p0'", "x'ff'", "5")},
    "answers set trial = 'none'": "'none', which is none of this study's",
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.items())
def test_a_damaged_row_is_named_and_left_out_and_the_others_count(tmp_path, capsys, damage, sentence):
    made = study(tmp_path, "choose", sets=6)
    database, (persons, answers) = Answers(tmp_path / "study"), simulate.people(made, {"plain": 0.3, "rich": 0.7})
    store(database, made, persons, answers)
    with sqlite3.connect(tmp_path / "study" / stored.ANSWERS) as connection:
        where = "subject_id = 'subject-0000'" if "people" in damage else "trial = '0000-000'"
        connection.execute(f"update {damage} where {where}")
    assert main(["study", "results", str(tmp_path / "study"), "--retriever", "none"]) == 1
    out, err = capsys.readouterr()
    assert sentence in err
    assert "Traceback" not in err
    counted = len(answers) - (len(made.sessions[0]) if "people" in damage else 1)
    catch = sum(trial.catch for session in made.sessions for trial in session)
    assert counted - catch <= int(out.split(" answers; ")[0].split()[-1]) <= counted


def test_the_database_keeps_the_first_answer_and_fills_sessions_evenly(tmp_path, database_url):
    database = Answers(tmp_path, database_url)
    people = [database.join(3) for _ in range(7)]
    assert sorted(person.session for person in people) == [0, 0, 0, 1, 1, 2, 2]
    person = database.join(3, "PID", id="a secret")
    assert database.join(3, "PID", id="a secret") == person
    for wrong in ({"subject_id": "PID"}, {"subject_id": "PID", "id": "another"}, {"id": "a secret"}):
        with pytest.raises(Taken):
            database.join(3, **wrong)
    for response in ("p1", "p2"):
        database.add(Answer(people[0].id, "0000-000", response, 800))
    assert [answer.response for answer in Answers(tmp_path, database_url).all()[1]] == ["p1"]


def test_a_database_that_goes_away_is_one_sentence_and_is_not_made_again(tmp_path, database_url):
    database = Answers(tmp_path, database_url)
    remove(database_url, tmp_path / stored.ANSWERS)
    with pytest.raises(UserError, match="the answers cannot be stored or read"):
        database.add(Answer("x", "0000-000", "p1", 800))
    assert not (tmp_path / stored.ANSWERS).exists()
    with pytest.raises(UserError, match="this database cannot be used"):
        Answers(tmp_path, "nosuch://x")


def test_the_command_line(tmp_path, capsys, database_url):
    study(tmp_path, "choose", sets=6)
    folder = str(tmp_path / "study")
    for code, words, sentence in (
        (0, ["size", "0.476", "0.428"], "paired\t1134\t"),
        (0, ["simulate", folder, "--accuracy", "0.5", "--studies", "2"], "of 2 studies"),
        (2, ["results", folder], "there are no answers yet"),
        (2, ["simulate", folder, "--accuracy", "other=0.5"], "the models of the study are plain, rich"),
        (2, ["wave"], "wave"),
    ):
        assert main(["study", *words]) == code
        assert sentence in "".join(capsys.readouterr())
    made_of = [str(tmp_path / "plain.json"), str(tmp_path / "rich.json"), "--data", str(tmp_path / "data.json")]
    assert main(["study", "new", "compare", *made_of, "--out", str(tmp_path / "two")]) == 0
    database = Answers(tmp_path / "two", database_url)
    made = stored.load(tmp_path / "two")
    store(database, made, *simulate.people(made, {"plain": 0.3, "rich": 0.7}))
    options = ["--retriever", "none", "--out", str(tmp_path / "out"), *option(database_url)]
    assert main(["study", "results", str(tmp_path / "two"), *options]) == 0
    assert capsys.readouterr().out.startswith("Criterion\tWin\tTie\tLoss\nAccuracy\t")
