"""Requests that mean harm to `tellapart serve`: uploads, names, other sites, people without the token."""

import http.client
from urllib.parse import urlsplit

import pytest
from PIL import Image

from attacks import photos
from desk.serve.conftest import captioned
from support.web import ask, connected, running
from tellapart.desk.serve.api import MOST_UPLOAD


@pytest.fixture(scope="module")
def served(small_model, tmp_path_factory):
    """A server of a folder with a photo, links that lead out of the folder, and a file that is no photo."""
    base = tmp_path_factory.mktemp("served")
    folder, outside = base / "photos", base / "outside"
    folder.mkdir()
    outside.mkdir()
    Image.new("RGB", (40, 30), "red").save(folder / "red.png")
    Image.new("RGB", (40, 30), "blue").save(outside / "secret.png")
    (outside / "secret.txt").write_text("secret")
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "away").symlink_to(outside)
    (folder / "passwords.txt").write_text("secret")
    with running("serve", folder, "--model", small_model, TELLAPART_CACHE=str(base / "cache")) as (process, address):
        captioned(address)
        yield process, address, folder


@pytest.fixture
def address(served):
    process, address, _ = served
    yield address
    assert process.poll() is None
    assert ask(address, "/api/photos")[0] == 200  # it goes on


def raw(address, request):
    with connected(address, request) as wire:
        return wire.recv(1 << 16)


def test_only_photos_of_the_folder_that_were_found_are_served(served, address):
    _, _, folder = served
    assert [photo["file"] for photo in ask(address, "/api/photos")[1]["photos"]] == ["red.png"]
    names = ["..%2f..%2foutside%2fsecret.png", "%2e%2e/%2e%2e/passwords.txt", *map(str, (2, 0, -1, 10**20))]
    for path in ("/page/../api.py", "/passwords.txt", "/tellapart.db", *(f"/photos/{name}" for name in names)):
        status, answer = ask(address, path)
        assert status in (404, 422), path
        assert b"secret" not in str(answer).encode().replace(b"secret.png", b"")
    (folder / "red.png").rename(folder / "kept")  # a link in the place of a photo that was found
    try:
        (folder / "red.png").symlink_to(folder.parent / "outside" / "secret.png")
        assert ask(address, "/photos/1") == (404, {"error": "there is no such photo in the folder."})
        (folder / "red.png").unlink()
        assert ask(address, "/photos/1") == (404, {"error": "the file of this photo is gone."})
    finally:
        (folder / "kept").rename(folder / "red.png")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the photo the file is empty."),
        (b"GIF89a", "the photo is"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not a photo that we can open"),
        (b"http://127.0.0.1/photo.jpg", "is not a photo that we can open"),  # nothing is fetched
        (photos.png(40_000, 40_000, [b"\0"]), "is damaged"),
        (photos.palette_bomb(14_000), "has more than 178 megapixels"),
    ],
    ids=["empty", "cut off", "SVG", "an address", "too few pixels", "a bomb"],
)
def test_an_upload_that_is_no_photo_is_one_sentence(address, data, reason):
    for query in ("", "?among=true"):
        status, answer = ask(address, f"/api/caption{query}", data)
        assert status == 422
        assert reason in answer["error"]
        assert "/tmp" not in answer["error"]


def test_an_upload_of_100_mb_is_refused_before_it_is_sent(address):
    request = b"POST /api/caption HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
    assert b" 413 " in raw(address, request % (100 << 20))
    assert b" 413 " in raw(address, request % (MOST_UPLOAD + 1))
    assert b" 413 " in raw(address, request.replace(b"caption", b"undo") % (1 << 20))
    assert b" 400 " in raw(address, request % -1)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},  # a name of another site that leads here
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Content_Type": "text/plain"},
    ],
    ids=str,
)
def test_other_sites_cannot_change_anything(address, headers):
    status, answer = ask(address, "/api/undo", {}, **headers)
    assert (status, list(answer)) == (403, ["error"])


def test_other_sites_can_neither_read_nor_frame_the_page(address):
    assert ask(address, "/api/photos", Host="evil.example")[0] == 403
    client = http.client.HTTPConnection(urlsplit(address).netloc)
    for path in ("/", "/photos/1", "/api/photos", "/docs", "/nothing"):
        client.request("GET", path, headers={"Origin": "http://evil.example"})
        answer = client.getresponse()
        answer.read()
        assert answer.getheader("Access-Control-Allow-Origin") is None
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        assert "frame-ancestors 'none'" in answer.getheader("Content-Security-Policy")
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
    client.close()


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"[" * 60_000, b'{"decision": 1e400}', b'{"decision": "1; DROP TABLE photos"}', b"\xff\xfe", b"null"],
    ids=["nothing", "cut off", "deep", "infinite", "SQL", "no text", "null"],
)
def test_a_body_that_is_not_as_expected_is_one_sentence(address, body):
    status, answer = ask(address, "/api/undo", body)
    assert (status in (400, 422), list(answer)) == (True, ["error"])


@pytest.mark.parametrize("text", ["\0", "'; DROP TABLE photos; --", "%" * 100, "\\" * 100])
def test_no_text_breaks_the_database(address, text):
    photo = ask(address, "/api/photos")[1]["photos"][0]
    body = {"version": photo["version"], "review": "edited", "caption": f"a {text} bus"}
    status, answer = ask(address, "/api/photos/1", body, method="PATCH")
    assert status == 200
    assert ask(address, "/api/photos?search=bus")[1]["total"] == 1
    assert ask(address, "/api/undo", {"decision": answer["decision"]})[1]["photo"]["caption"] == photo["caption"]


def test_people_without_the_token_get_nothing(small_model):
    with running("serve", "--model", small_model, TELLAPART_TOKEN="right token") as (_, printed):
        parts = urlsplit(printed)
        assert parts.query == "token=right%20token"
        address = f"http://{parts.netloc}/"
        wrong = ({"Authorization": "Bearer wrong"}, {"Cookie": "tellapart-token=wrong"}, {"Host": "x.example"})
        for headers in ({}, *wrong):
            for path in ("/", "/api/state", "/docs", "/openapi.json", "/serve.js", "/?token=wrong"):
                status, answer = ask(address, path, **headers)
                assert status == 401
                assert answer == {"error": "a token is needed; open the address that the server has printed."}
        assert ask(address, "/api/state", Authorization="Bearer right token", Host="x.example")[0] == 200
        client = http.client.HTTPConnection(parts.netloc)
        client.request("GET", "/?token=right%20token")
        answer = client.getresponse()
        assert (answer.status, answer.getheader("Location")) == (303, "/")  # the address is without it then
        cookie = answer.getheader("Set-Cookie")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        client.close()
        assert ask(address, "/api/state", Cookie=cookie.split(";")[0])[0] == 200


def test_another_host_always_has_a_token(monkeypatch, photo_folder, small_model):
    from tellapart import web
    from tellapart.commands import serve

    started = []
    monkeypatch.setattr(web, "run", lambda server, host, port, query: started.append((host, query)))
    monkeypatch.delenv("TELLAPART_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", "127.0.0.1", "localhost", "::1"):
        serve.main(["--model", str(small_model), "--host", host])
    assert [bool(query) for _, query in started] == [True, True, True, True, False, False, False]
    assert len({query for _, query in started[:4]}) == 4
    assert all(len(query) > 30 for _, query in started[:4])
