"""The server of a folder: its API by HTTP, the page in a real browser, and a server that is killed."""

import http.client
import json
import signal
import threading

import numpy as np
import pytest
from PIL import Image

from desk.serve.reviewer import Reviewer, until
from support import browser
from support.postgresql import option, remove
from support.web import Address, ask, running
from tellapart.desk.serve.database import NAME, Photos


def decide(address, photo, review, **more):
    body = {"version": photo["version"], "review": review, **more}
    return ask(address, f"/api/photos/{photo['id']}", body, method="PATCH")


def test_the_api(serve, captioned, photo_folder, database_url, tmp_path):
    (photo_folder / "broken.jpg").write_bytes(b"\xff\xd8 no photo")
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    with serve(photo_folder, *option(database_url), TMPDIR=str(uploads)) as (_, address):
        job = captioned(address)
        assert (job["kind"], job["done"], job["total"], job["result"]) == ("caption", 7, 7, {"failed": 1})
        status, found = ask(address, "/api/photos")
        assert (status, found["total"], len(found["photos"])) == (200, 7, 7)
        broken = next(photo for photo in found["photos"] if photo["file"] == "broken.jpg")
        assert "is not a photo" in broken["error"]
        assert [finding["rule"] for finding in broken["findings"]] == ["missing"]
        assert decide(address, broken, "approved")[0] == 422
        photo = next(photo for photo in found["photos"] if photo["caption"])
        assert ask(address, f"/photos/{photo['id']}")[1][8:12] == b"WEBP"
        assert ask(address, f"/photos/{broken['id']}")[0] == 422

        status, decided = decide(address, photo, "edited", caption="  our\u202e  red\n bus ")
        assert (status, decided["photo"]["caption"], decided["photo"]["review"]) == (200, "our red bus", "edited")
        assert decided["photo"]["original"] == photo["caption"]
        assert decide(address, photo, "rejected")[0] == 409
        assert decide(address, decided["photo"], "edited", caption=" \u200b ")[0] == 422
        assert decide(address, decided["photo"], "edited", caption="x" * 3000)[0] == 422
        assert [one["id"] for one in ask(address, "/api/photos?search=RED+bus")[1]["photos"]] == [photo["id"]]
        assert ask(address, "/api/photos?filter=edited")[1]["total"] == 1
        assert ask(address, "/api/photos?filter=x")[0] == ask(address, "/api/photos?limit=99999")[0] == 422
        group = ask(address, f"/api/photos/{photo['id']}")[1]
        assert group["photo"]["caption"] == "our red bus"
        exported = [json.loads(line) for line in ask(address, "/api/export")[1].splitlines()]
        assert {"our red bus"} == {row["caption"] for row in exported if row.get("edited")}
        assert ask(address, "/api/export?format=csv")[1].startswith(b"file,caption,")
        status, undone = ask(address, "/api/undo", {"decision": decided["decision"]})
        assert (status, undone["photo"]) == (200, photo)
        assert ask(address, "/api/undo", {}) == (404, {"error": "there is nothing to undo."})

        upload = (photo_folder / photo["file"]).read_bytes()
        status, alone = ask(address, "/api/caption", upload)
        assert (status, alone["look_alikes"]) == (200, None)
        told_apart = ask(address, "/api/caption?among=true", upload)[1]
        assert told_apart["caption"] == photo["caption"]  # as the folder's own, which it is a copy of
        assert photo["file"] not in told_apart["look_alikes"]
        assert ask(address, "/api/caption", b"no photo")[0] == 422
        assert list(uploads.iterdir()) == []  # nothing is left of an upload
        kept = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
        assert not any(b"tellapart-upload" in file.read_bytes() for file in kept)
        scored = {"captions": {"1": "a red bus"}, "references": {"1": ["a red bus"]}, "metrics": ["ROUGE-L"]}
        assert ask(address, "/api/score", scored)[1]["scores"] == {"ROUGE-L": 1.0}
        for wrong in ({"metrics": ["SPICE"]}, {"metrics": ["x"]}, {"captions": "/etc/passwd"}, {"references": {}}):
            status, answer = ask(address, "/api/score", scored | wrong)
            assert (status, list(answer)) == (422, ["error"])
        assert ask(address, "/api/jobs/9") == (404, {"error": "there is no such job."})

        described = ask(address, "/openapi.json")[1]["paths"]
        assert {"/api/photos", "/api/caption", "/api/jobs", "/api/score"} <= set(described)
        page = ask(address, "/docs")[1].decode()
        assert all(path in page for path in described)
        assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere

        assert (photo_folder / NAME).exists() == (database_url is None)
        remove(database_url, photo_folder / NAME)
        gone = {"error": "the database does not answer, so nothing was changed; please try again."}
        assert decide(address, photo, "approved") == ask(address, "/api/photos") == (503, gone)


@pytest.mark.slow
def test_without_a_folder_there_is_the_api_alone(small_model, photo_folder):
    with running("serve", "--model", small_model) as (_, address):
        assert ask(address, "/api/state")[1]["folder"] is None
        assert ask(address, "/api/caption", (photo_folder / "0.png").read_bytes())[1]["caption"]
        assert ask(address, "/api/caption?among=1", (photo_folder / "0.png").read_bytes())[0] == 422
        assert ask(address, "/api/photos")[0] == 404
        assert ask(address, "/api/jobs", {"kind": "caption"}) == (404, {"error": "this server has no folder."})


@pytest.mark.slow
def test_no_decision_that_was_acknowledged_is_lost_by_a_kill(serve, captioned, photo_folder, database_url):
    acknowledged = {}
    for turn in range(3):
        with serve(photo_folder, *option(database_url)) as (process, address):
            captioned(address)
            now = {photo["id"]: photo for photo in ask(address, "/api/photos")[1]["photos"]}
            assert {id: now[id]["caption"] for id in acknowledged} == acknowledged or turn == 0
            kill = threading.Timer(0.004 * turn, process.kill)
            try:
                for count in range(1000):
                    if count == 3:  # while others follow: before, within or after the writing of one
                        kill.start()
                    id = list(now)[count % len(now)]
                    status, answer = decide(address, now[id], "edited", caption=f"bus {turn} {count}")
                    assert status == 200
                    now[id], acknowledged[id] = answer["photo"], answer["photo"]["caption"]
            except (OSError, http.client.HTTPException):
                kill.join()
            process.wait(timeout=60)
            assert process.returncode == -signal.SIGKILL
        stored = {photo.id: photo.caption for photo in Photos(photo_folder, database_url).all()}
        later = [id for id in acknowledged if stored[id] != acknowledged[id]]
        assert len(later) <= 1  # one may lack its receipt
        assert all(int(stored[id].split()[2]) > int(acknowledged[id].split()[2]) for id in later)
        acknowledged |= {id: stored[id] for id in later}
    assert len(acknowledged) >= 3


@pytest.fixture
def sixty_photos(tmp_path):
    folder = tmp_path / "sixty"
    folder.mkdir()
    draw = np.random.default_rng(1)
    for number in range(60):
        pixels = draw.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        photo = Image.fromarray(pixels).resize((64, 48), Image.Resampling.NEAREST)
        exif = photo.getexif()
        exif[0x013B] = "SECRET PERSON"
        photo.save(folder / f"{number:02}.jpg", exif=exif)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not browser.CHROMIUM, reason="needs Chromium")
def test_sixty_photos_from_captions_to_sidecars_in_a_browser(serve, sixty_photos):
    with serve(sixty_photos) as (_, address), browser.tab() as page:
        person = Reviewer(page)
        page.open(Address(address))
        person.until("document.querySelectorAll('#photos li').length === 60 && document.querySelector('#caption')")
        person.until("document.querySelector('#job-text').textContent === '60 photos captioned'")
        person.until("[...document.querySelectorAll('.picture img')].every((one) => one.naturalWidth === 64)")
        person.screenshot("review")

        person.edit("our holiday bus")
        person.key("Enter", modifiers=2, windowsVirtualKeyCode=13)
        person.until("document.querySelector('#name').textContent === '01.jpg'")
        page.point("#reject", click=True)
        person.until("document.querySelector('#name').textContent === '02.jpg'")
        person.key("u")  # the rejection is undone, and the photo shown again
        person.until("document.querySelector('#name').textContent === '01.jpg'")
        assert person.text("#review") == "not reviewed"
        person.key("r")
        person.until("document.querySelector('#name').textContent === '02.jpg'")
        for number in range(2, 60):
            person.key("a")
            person.until(f"document.querySelector('#status').textContent.startsWith('{number:02}.jpg: approved')")
            if number < 59:
                person.until(f"document.querySelector('#name').textContent === '{number + 1:02}.jpg'")
        person.until("document.querySelector('#filter').textContent.includes('Not reviewed (0)')")
        person.until("document.querySelector('#photos [aria-current=true]')")
        ends = "(({{top, bottom}}) => [top, bottom])(document.querySelector('{}').getBoundingClientRect())"
        top, bottom = page.run(ends.format("#list"))
        card_top, card_bottom = page.run(ends.format("#photos [aria-current=true]"))
        assert top - 1 <= card_top < card_bottom <= bottom + 1  # the last photo, in the list

        person.key("/", code="Slash")
        person.until("document.activeElement.id === 'search'")
        person.type("HOLIDAY")
        person.until("document.querySelectorAll('#photos li').length === 1")
        person.until("document.querySelector('#name').textContent === '00.jpg'")
        assert person.text("#review").startswith("edited · before: ")
        person.type(" and more")
        person.until("document.querySelector('#photo').textContent.includes('No photo matches.')")
        assert page.inaccessible() == []
        page.point("#photo button", click=True)  # all of them
        person.until("document.querySelectorAll('#photos li').length === 60")
        person.key("Escape", windowsVirtualKeyCode=27)

        page.point("#more-tools", click=True)
        page.point("#preview", click=True)
        person.until("document.querySelector('#outcome')?.textContent === '59 to write'")
        assert list(sixty_photos.glob("*.xmp")) == []
        person.screenshot("preview")
        page.point("#help", click=True)
        assert page.inaccessible() == []
        page.point("#write", click=True)
        person.until("document.querySelector('#outcome')?.textContent === '59 written'")
        assert [line for line in page.problems if not line.startswith(address)] == []
        assert "our holiday bus" in (sixty_photos / "00.jpg.xmp").read_text()
        assert not (sixty_photos / "01.jpg.xmp").exists()
        assert len(list(sixty_photos.glob("*.xmp"))) == 59
        status, picture = ask(address, "/photos/1")
        assert status == 200
        assert b"SECRET" in (sixty_photos / "00.jpg").read_bytes()
        assert b"SECRET" not in picture

        for dark in (False, True):  # a phone, in both themes
            page.open(Address(address), width=390, height=844, dark=dark)
            person.until("document.querySelector('#caption')")
            assert page.run("document.documentElement.scrollWidth <= innerWidth")  # nothing beside the screen
            tools = "[...document.querySelectorAll('button, a, select')]"
            assert page.run(f"{tools}.every((one) => one.textContent.trim())")
            person.screenshot(f"phone-{'dark' if dark else 'light'}")
        assert page.inaccessible() == []
        page.open(Address(f"{address}docs"))
        assert page.inaccessible() == []


@pytest.mark.slow
@pytest.mark.skipif(not browser.CHROMIUM, reason="needs Chromium")
def test_names_and_captions_cannot_steer_the_page(serve, captioned, photo_folder):
    name = "<img src=x onerror=document.title='owned'>.png"
    (photo_folder / "0.png").rename(photo_folder / name)
    with serve(photo_folder) as (_, address), browser.tab() as page:
        captioned(address)
        photo = next(one for one in ask(address, "/api/photos")[1]["photos"] if one["file"] == name)
        decide(address, photo, "edited", caption="<script>document.title = 'owned'</script> & a bus")
        page.open(Address(address))
        page.run(until("document.querySelectorAll('#photos li').length === 6"))
        page.run(f"document.querySelector('#photos [data-id=\"{photo['id']}\"]').click()")
        page.run(until("document.querySelector('#caption')?.value.startsWith('<script>')"))
        assert page.run("document.title") == "tellapart"
        assert page.run("document.querySelector('#name').textContent") == name
