"""`caption --endpoint`, against a real server on this machine."""

import json

import pytest

from chat_server import COLOURS


@pytest.fixture(autouse=True)
def settings(own_cache, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("TELLAPART_API_KEY", "secret-key\n")


def test_each_photo_gets_the_servers_caption(tellapart, serve, coloured_photos):
    server = serve()
    code, out, err = tellapart(
        "caption", *coloured_photos.values(), "--endpoint", server.url, "--endpoint-model", "eyes"
    )
    assert code == 0, err
    said = dict(line.split("\t") for line in out.splitlines())
    assert list(said) == list(coloured_photos.values())
    for colour, file in coloured_photos.items():
        assert said[file].startswith(f"a {colour} photo")
    assert len(server.requests) == len(COLOURS)  # one caption each: there is nothing to choose
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret-key"}
    assert "secret" not in out + err


def test_of_several_captions_one_of_the_same_photo_is_chosen(
    tellapart, serve, coloured_photos, small_retriever, tmp_path
):
    server = serve(lambda request, colour: [f"{colour} bus", f"a {colour} cat", "a man"][: request.get("n", 1)])
    out = tmp_path / "out.jsonl"
    arguments = ("--endpoint", server.url, "--endpoint-model", "eyes", "--retriever", small_retriever, "--out", out)
    code, _, err = tellapart("caption", *coloured_photos.values(), "--among", *coloured_photos.values(), *arguments)
    assert code == 0, err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["file"] for row in rows] == list(coloured_photos.values())
    for colour, row in zip(coloured_photos, rows, strict=True):
        assert row["caption"] in (f"{colour} bus", f"a {colour} cat", "a man")
        assert row["logprob"] is None
        assert len(row["look_alikes"]) == 5
    asked = len(server.requests)
    code, _, err = tellapart("caption", *coloured_photos.values(), "--among", *coloured_photos.values(), *arguments)
    assert "6 of them from before" in err
    assert len(server.requests) == asked


def test_a_server_that_is_not_there_is_one_sentence(tellapart, coloured_photos, monkeypatch):
    monkeypatch.setattr("tellapart.endpoint.Endpoint.back_off", 0.001)
    arguments = ("--endpoint", "http://127.0.0.1:9", "--endpoint-model", "eyes")
    code, out, err = tellapart("caption", *coloured_photos.values(), *arguments)
    assert (code, out) == (2, "")
    assert "127.0.0.1:9" in err
    assert len(err.splitlines()) == 1


def test_rubbish_is_named_beside_its_photo_and_the_rest_goes_on(tellapart, serve, coloured_photos):
    server = serve(lambda request, colour: (200, b"<html>", {}) if colour == "blue" else [f"a {colour} photo"])
    code, out, err = tellapart(
        "caption", *coloured_photos.values(), "--endpoint", server.url, "--endpoint-model", "eyes"
    )
    assert code == 1
    assert len(out.splitlines()) == len(COLOURS) - 1
    assert "blue.png" in err
