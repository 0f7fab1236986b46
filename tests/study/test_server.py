"""The page of a study: by HTTP, in a real browser, and by a server that is killed."""

import http.client
import json
import os
import shutil
import signal
import socket
import threading
from pathlib import Path

import pytest

from capscore.errors import UserError
from study.studies import study
from support import browser, web
from support.postgresql import option, remove
from support.web import ask
from tellapart.study import folder as stored
from tellapart.study.folder import Answers, load
from tellapart.study.results import analyse
from tellapart.study.server import serve


def running(folder, url=None):
    return web.running("study", "serve", folder, *option(url))


STEERING = " <img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A study of each kind; each has one person with three questions, one of them an attention check.

    Its texts try to steer the page.
    """
    made = {}
    for kind in ("choose", "order", "compare"):
        made[kind] = tmp_path_factory.mktemp(kind)
        study(made[kind], kind, captions=("plain.json", "rich.json"), sets=2, catch=1, completion_code="ABC123")
        file = made[kind] / "study" / "study.json"
        content = json.loads(file.read_text().replace(" by plain", STEERING).replace(" by rich", STEERING))
        file.write_text(json.dumps(content | {"title": STEERING, "consent": STEERING}))
    return {kind: folder / "study" for kind, folder in made.items()}


@pytest.fixture
def folder(folders, tmp_path):
    return shutil.copytree(folders["choose"], tmp_path / "study")


def test_answers_by_http(folder, database_url):
    with running(folder, database_url) as (_, address):
        assert ask(address, "/api/join", {"consent": False})[0] == 403
        joining = {"consent": True, "subject_id": "PID", "study_id": "S", "person": "secret-" * 4}
        status, state = ask(address, "/api/join", joining)
        assert (status, state["done"], state["total"]) == (200, 0, 3)
        assert set(state["trial"]) == {"id", "captions", "photos"}  # nothing of models and right answers
        assert ask(address, "/api/join", joining)[1] == state
        trial = state["trial"]
        answer = {"person": state["person"], "trial": trial["id"], "response": trial["photos"][0], "rt": 900}
        for wrong, code, sentence in [
            ({"trial": "9999-999"}, 404, "there is no such question."),
            ({"trial": "0001-000"}, 404, "there is no such question."),  # another person's
            ({"response": "../study.json"}, 422, "choose one of the photos."),
            ({"person": "somebody"}, 404, "nobody of this id takes part."),
        ]:
            assert ask(address, "/api/answers", {**answer, **wrong}) == (code, {"error": sentence})
        assert ask(address, "/api/answers", {**answer, "rt": -1})[0] == 422
        first = ask(address, "/api/answers", answer)
        assert first[1]["done"] == 1
        again = ask(address, "/api/answers", {**answer, "response": trial["photos"][1]})  # a double submit
        assert again == first
        assert ask(address, f"/api/people/{state['person']}") == first
        assert ask(address, f"/photos/{trial['photos'][0]}")[1][8:12] == b"WEBP"
        for path in ("/photos/..%2fstudy.json", "/photos/p99999", "/study.json", "/answers.db"):
            assert ask(address, path)[0] == 404
        assert ask(address, "/api/answers", {**answer, "more": "x" * 100_000})[0] == 413
        assert [a.response for a in Answers(folder, database_url).all()[1]] == [trial["photos"][0]]
        assert (folder / stored.ANSWERS).exists() == (database_url is None)
        remove(database_url, folder / stored.ANSWERS)
        gone = {"error": "the answer could not be stored; please try again."}
        assert ask(address, "/api/answers", answer) == (503, gone)


def test_an_address_that_is_taken_is_one_sentence(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: this address cannot be listened on"):
            serve(folder, "127.0.0.1", port)


@pytest.mark.slow
def test_no_answer_that_was_acknowledged_is_lost_by_a_kill(tmp_path, database_url):
    study(tmp_path, "choose", sets=24, per_person=24)
    acknowledged, person = [], None
    for turn in range(3):
        with running(tmp_path / "study", database_url) as (process, address):
            if person is None:
                state = ask(address, "/api/join", {"consent": True})[1]
                person = state["person"]
            else:
                state = ask(address, f"/api/people/{person}")[1]
                assert state["done"] >= len(acknowledged)
            # the kill comes while answers go on: before, within or after the writing of one
            kill = threading.Timer(0.002 * turn, process.kill)
            try:
                for count in range(24):
                    if count == 2:
                        kill.start()
                    trial = state["trial"]
                    body = {"person": person, "trial": trial["id"], "response": trial["photos"][0], "rt": 500}
                    state = ask(address, "/api/answers", body)[1]
                    acknowledged.append(trial["id"])
            except (OSError, http.client.HTTPException, KeyError):
                kill.join()
            process.wait(timeout=60)
            assert process.returncode == -signal.SIGKILL
        stored_now = [answer.trial for answer in Answers(tmp_path / "study", database_url).all()[1]]
        assert set(acknowledged) <= set(stored_now)
        assert len(stored_now) == len(set(stored_now)) <= len(acknowledged) + turn + 1  # one may lack its receipt
    assert len(acknowledged) >= 2 * 3


ANSWER = {  # clicks that answer a question, the right way where it is an attention check
    "choose": "document.querySelectorAll('.photo')[check ? number - 1 : 0].click()",
    "order": "{ const all = [...document.querySelectorAll('.photo')];"
    " if (check) all.unshift(...all.splice(number - 1, 1)); all.slice(0, 10).forEach((one) => one.click()) }",
    "compare": "document.querySelectorAll(`input[value=${check && text.includes('second') ? 'second' : 'first'}]`)"
    ".forEach((one) => one.click())",
}
UNTIL = "new Promise((done) => {{ const look = () => {} ? done(true) : setTimeout(look, 20); look(); }})"


def opened(page, address, **options):
    page.open(web.Address(address), **options)


@pytest.mark.slow
@pytest.mark.skipif(not browser.CHROMIUM, reason="needs Chromium")
@pytest.mark.parametrize("kind", ["choose", "order", "compare"])
def test_from_consent_to_completion_code_in_a_browser(folders, tmp_path, kind):
    folder = shutil.copytree(folders[kind], tmp_path / "study")
    with running(folder) as (_, address), browser.tab() as page:
        opened(page, f"{address}?PROLIFIC_PID=P1&STUDY_ID=S&SESSION_ID=T", width=390, height=800, dark=kind == "order")
        page.run(UNTIL.format("document.querySelector('#agree')"))
        assert page.run("document.querySelector('.go').disabled")
        assert page.inaccessible() == []
        texts = "document.querySelector('h1').textContent + document.querySelector('.consent').textContent"
        assert page.run(texts) == 2 * STEERING
        page.point("#agree", click=True)
        page.point(".go", click=True)
        for number in range(3):
            ready = f"document.querySelector('.caption') && progress.textContent.startsWith('{number} of 3')"
            page.run(UNTIL.format(ready))
            assert page.run("document.querySelector('.go').disabled")
            assert page.run("document.documentElement.scrollWidth <= innerWidth")  # nothing beside the phone's screen
            page.run(UNTIL.format("[...document.querySelectorAll('img')].every((one) => one.naturalWidth === 40)"))
            assert page.run("[...document.querySelectorAll('img')].every((one) => one.alt)")
            assert page.run("document.querySelectorAll('.caption img').length") == 0
            page.run(
                "(() => { const text = document.querySelector('.caption').textContent, check = text.includes('check');"
                f" const number = Number((/photo (\\d+)/.exec(text) || [0, 1])[1]); {ANSWER[kind]}; }})()"
            )
            if number == 0:
                assert page.inaccessible() == []
            if shots := os.environ.get("SCREENSHOTS"):
                page.screenshot(Path(shots) / f"{kind}-{number}.png")
            if number == 1:  # the keyboard alone; and a page that is loaded again goes on
                page.run("document.querySelector('.go').focus()")
                for type in ("keyDown", "keyUp"):
                    enter = {"key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13}
                    page.call("Input.dispatchKeyEvent", type=type, **enter)
                page.run(UNTIL.format("progress.textContent.startsWith('2 of 3')"))
                opened(page, f"{address}?PROLIFIC_PID=P1&STUDY_ID=S&SESSION_ID=T")
            else:
                page.run("(() => { const go = document.querySelector('.go'); go.click(); go.click(); })()")
        page.run(UNTIL.format("document.querySelector('#code')"))
        assert page.run("document.querySelector('#code').textContent") == "ABC123"
        assert page.run("document.title").strip() == STEERING.strip()  # and not what a script would make of it
        assert page.inaccessible() == []
        assert page.run("document.querySelector('a').href").endswith("complete?cc=ABC123")
        assert [line for line in page.problems if not line.startswith(address)] == []
    people, answers = Answers(folder).all()
    assert [(person.subject_id, person.study_id, person.session_id) for person in people] == [("P1", "S", "T")]
    assert len(answers) == 3
    assert analyse(load(folder), people, answers, floor=0).people[0]["catch_passed"] == 1


@pytest.mark.slow
@pytest.mark.skipif(not browser.CHROMIUM, reason="needs Chromium")
def test_the_back_button_and_double_clicks_change_no_answer(folder):
    def ready(number):
        return UNTIL.format(f"document.querySelector('.photo') && progress.textContent.startsWith('{number} of 3')")

    with running(folder) as (_, address), browser.tab() as page:
        opened(page, f"{address}?PROLIFIC_PID=P1&STUDY_ID=S&SESSION_ID=T")
        page.run(UNTIL.format("document.querySelector('#agree')"))
        page.point("#agree", click=True)
        page.run("(() => { const go = document.querySelector('.go'); go.click(); go.click(); })()")
        page.run(ready(0))
        choose = "document.querySelectorAll('.photo')[{}].click()"
        page.run(
            f"(() => {{ {choose.format(0)}; const go = document.querySelector('.go'); go.click(); go.click(); }})()"
        )
        page.run(ready(1))
        people, (first,) = Answers(folder).all()
        # away and back: the next question is there, not the one that has its answer
        opened(page, f"{address}study.css")
        page.run("history.back()")
        page.run(UNTIL.format("location.search && document.readyState === 'complete'"))
        page.run(ready(1))
        # a page that still shows the old question sends another choice, as a second window would
        other = next(photo for photo in load(folder).trials()[first.trial].photos if photo != first.response)
        body = {"person": first.person, "trial": first.trial, "response": other, "rt": 500}
        request = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": json.dumps(body)}
        sent = f"fetch('api/answers', {json.dumps(request)}).then((answer) => answer.json())"
        assert page.run(f"{sent}.then((state) => state.done)") == 1
    assert Answers(folder).all() == (people, [first])
    assert len(people) == 1
