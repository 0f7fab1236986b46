"""The page in a real browser: what a person does is neither lost nor done to another photo."""

import pytest

from desk.serve.reviewer import Reviewer
from support import browser
from support.web import Address, ask

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not browser.CHROMIUM, reason="needs Chromium")]
NAME = "document.querySelector('#name').textContent"
TYPED = "document.querySelector('#caption').value"


@pytest.fixture
def reviewed(serve, captioned, photo_folder):
    """The page of six photos, and the address."""
    with serve(photo_folder) as (_, address), browser.tab() as page:
        captioned(address)
        person = Reviewer(page)
        page.open(Address(address))
        person.until("document.querySelectorAll('#photos li').length === 6 && document.querySelector('#caption')")
        yield person, address


def reviews(address):
    return {photo["file"]: photo["review"] for photo in ask(address, "/api/photos")[1]["photos"]}


def names(address):
    return [photo["file"] for photo in ask(address, "/api/photos")[1]["photos"]]


def press(person, keys):
    """One after another, as fast as a browser can."""
    person.page.run(f"""(() => {{ for (const key of '{keys}')
      document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key, bubbles: true }})); }})()""")


def test_no_key_is_lost_while_decisions_are_under_way(reviewed):
    person, address = reviewed
    files = names(address)
    press(person, "aaraak")
    person.until("document.querySelector('#filter').textContent.includes('Approved (4)')")
    person.until(f"{NAME} === {files[4]!r}")
    decided = ["approved", "approved", "rejected", "approved", "approved", ""]
    assert [reviews(address)[file] for file in files] == decided
    for _ in range(2):  # back to the first of the last two; and what is decided anew counts
        person.key("u")
    person.until(f"{NAME} === {files[3]!r}")
    press(person, "rkakr")
    person.until("document.querySelector('#filter').textContent.includes('Rejected (2)')")
    person.until("document.querySelector('#filter').textContent.includes('Not reviewed (2)')")
    assert list(reviews(address).values()) == ["approved", "approved", "rejected", "rejected", "", ""]
    assert person.page.run("document.querySelectorAll('#failed li').length") == 0


def test_a_key_that_is_held_down_decides_once(reviewed):
    person, address = reviewed
    person.page.run("""(() => { for (const repeat of [false, true, true, true])
      document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', repeat, bubbles: true })); })()""")
    person.until("document.querySelector('#filter').textContent.includes('Approved (1)')")
    assert sorted(reviews(address).values()) == ["", "", "", "", "", "approved"]


def test_a_text_that_is_not_saved_stays_until_it_is_dropped(reviewed):
    person, address = reviewed
    first, second = names(address)[:2]
    before = person.page.run(TYPED)
    person.edit("my own words")
    person.key("Escape", windowsVirtualKeyCode=27)
    assert person.page.run(TYPED) == "my own words"
    person.key("j")
    person.until(f"{NAME} === {second!r}")
    assert person.page.run("document.querySelector('#unsaved').hidden")
    person.key("k")
    person.until(f"{NAME} === {first!r}")
    assert person.page.run(TYPED) == "my own words"
    assert reviews(address)[first] == ""
    assert person.page.inaccessible() == []
    person.page.point("#drop", click=True)
    person.until(f"{TYPED} !== 'my own words'")
    assert person.page.run(TYPED) == before


def test_what_the_second_of_two_people_typed_is_not_thrown_away(reviewed):
    person, address = reviewed
    photo = ask(address, "/api/photos")[1]["photos"][0]
    body = {"version": photo["version"], "review": "edited", "caption": "of somebody else"}
    assert ask(address, f"/api/photos/{photo['id']}", body, method="PATCH")[0] == 200
    person.edit("my own words")
    person.key("Enter", modifiers=2, windowsVirtualKeyCode=13)
    person.until("document.querySelector('#failed')?.textContent.includes('has been changed meanwhile')")
    assert ask(address, f"/api/photos/{photo['id']}")[1]["photo"]["caption"] == "of somebody else"
    person.page.point("#failed button", click=True)
    person.until(f"{NAME} === {photo['file']!r} && document.querySelector('#failed').childElementCount === 0")
    assert person.page.run(TYPED) == "my own words"
    assert "of somebody else" in person.text("#marked") + person.text("#photos li")
    person.page.point("#save", click=True)
    person.until("document.querySelector('#status').textContent.includes('edited')")
    assert ask(address, f"/api/photos/{photo['id']}")[1]["photo"]["caption"] == "my own words"
