"""People who mean harm to a study: by the names under which they come, and by captions that it is made of."""

import csv
import json

import pytest

from study.studies import study
from support.postgresql import option
from support.web import ask, running
from tellapart.__main__ import main
from tellapart.study.folder import load

STEERING = ["a\0b", "\x1b[31m", "x\nforged\t20\t20", "\x7f"]


@pytest.fixture
def folder(tmp_path):
    study(tmp_path, "choose", captions=("plain.json",), sets=2, catch=0, per_person=2)
    return tmp_path / "study"


def test_names_that_are_none_are_refused_alike_by_every_database(folder, database_url):
    with running("study", "serve", folder, *option(database_url)) as (_, address):
        for name in [*STEERING, "x" * 200, "", "\ud800"]:
            status, answer = ask(address, "/api/join", {"consent": True, "subject_id": name})
            assert (status, list(answer)) == (422, ["error"]), name
            status, answer = ask(address, "/api/join", {"consent": True, "subject_id": "P", "study_id": name or "\0"})
            assert (status, list(answer)) == (422, ["error"]), name
        for path in ("/api/people/%00", "/api/people/" + "x" * 500, "/api/people/%1b[31m"):
            assert ask(address, path)[0] in (404, 422)
        person = ask(address, "/api/join", {"consent": True, "subject_id": "P"})[1]
        trial = person["trial"]
        body = {"person": person["person"], "trial": trial["id"], "response": trial["photos"][0], "rt": 1}
        for wrong in ({"person": "\0"}, {"trial": "\0"}, {"response": ["\0"]}, {"response": {"a": "\ud800"}}):
            assert ask(address, "/api/answers", body | wrong)[0] in (404, 422)
        assert ask(address, "/api/answers", body)[1]["done"] == 1


SECRET = "0123456789abcdef0123456789abcdef"


def test_nobody_answers_for_another_by_knowing_their_name(folder, database_url):
    with running("study", "serve", folder, *option(database_url)) as (_, address):
        joining = {"consent": True, "subject_id": "alice", "person": SECRET}
        alice = ask(address, "/api/join", joining)
        assert (alice[0], alice[1]["person"]) == (200, SECRET)
        assert ask(address, "/api/join", joining) == alice  # the answer got lost on its way
        for other in ({"person": None}, {"person": SECRET[::-1]}, {"person": SECRET, "subject_id": "mallory"}):
            status, answer = ask(address, "/api/join", joining | other)
            assert (status, list(answer)) == (409, ["error"])
            assert SECRET not in answer["error"]
        for short in ("", "a", "x" * 21, "x" * 65, "ü" * 30, "a b" * 10):
            assert ask(address, "/api/join", joining | {"person": short})[0] == 422


def test_questions_are_answered_as_they_are_shown_and_a_bot_is_too_fast_whatever_it_says(folder, capsys):
    trials = load(folder).sessions[0]
    with running("study", "serve", folder) as (_, address):
        person = ask(address, "/api/join", {"consent": True})[1]["person"]

        def answer(trial):
            body = {"person": person, "trial": trial.id, "response": trial.photos[0], "rt": 5000}
            return ask(address, "/api/answers", body)

        assert answer(trials[1]) == (409, {"error": "this question has not been asked yet; load the page again."})
        for count, trial in enumerate(trials, start=1):
            state = answer(trial)
            assert (state[0], state[1]["done"]) == (200, count)
        assert answer(trials[0]) == state  # the back button
    assert main(["study", "results", str(folder), "--retriever", "none"]) == 2
    assert "no answers that count" in capsys.readouterr().err


def test_names_neither_forge_lines_of_the_results_nor_steer_a_spreadsheet(folder, tmp_path, capsys):
    from tellapart.study.folder import Answer, Answers

    answers = Answers(folder)
    trials = load(folder).sessions[0]
    for name in ('=HYPERLINK("http://evil.example")', *STEERING[1:]):  # as if they were in the database already
        person = answers.join(1, name)
        times = [person.started + count for count in range(1, len(trials) + 1)]
        answers.add(*(Answer(person.id, t.id, t.photos[0], 900, at) for t, at in zip(trials, times, strict=True)))
    assert main(["study", "results", str(folder), "--retriever", "none", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not any(line.startswith("forged") for line in out.splitlines())
    assert "x\\nforged\\t20\\t20\t" in out
    with (tmp_path / "out" / "answers.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in cells)
    assert "\x1b" not in (tmp_path / "out" / "answers.csv").read_text()
    rows = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 4
