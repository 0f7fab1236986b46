"""`caption --endpoint`, against a real server on this machine."""

import json

import pytest

from support.chat_server import COLOURS


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
    assert "6 kept" in err
    assert len(server.requests) == asked


def test_a_photo_whose_second_question_went_wrong_is_told_apart_by_the_next_run(
    tellapart, serve, coloured_photos, small_retriever, tmp_path, monkeypatch
):
    monkeypatch.setattr("tellapart.desk.endpoint.Run._pause", lambda *_: None)
    broken = {"red"}

    def behave(request, colour):
        is_second = len(request["messages"][0]["content"]) > 2
        return (500, b"busy", {}) if is_second and colour in broken else ["a photo"] * request.get("n", 1)

    server, out, photos = serve(behave), tmp_path / "out.jsonl", list(coloured_photos.values())
    arguments = ("--endpoint", server.url, "--endpoint-model", "eyes", "--retriever", small_retriever, "--out", out)
    command = ("caption", *photos, "--among", *photos, *arguments)
    assert tellapart(*command)[0] == 1
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("error") for row in rows] == ["the server answers 500 (busy)", *[None] * 5]
    broken.clear()
    server.requests.clear()
    assert tellapart(*command)[0] == 0
    assert all("caption" in json.loads(line) for line in out.read_text().splitlines())
    assert len(server.requests) == 2  # its first caption was kept


def test_a_server_that_is_not_there_is_one_sentence(tellapart, coloured_photos, monkeypatch):
    monkeypatch.setattr("tellapart.desk.endpoint.Run._pause", lambda *_: None)
    arguments = ("--endpoint", "http://127.0.0.1:9", "--endpoint-model", "eyes")
    code, out, err = tellapart("caption", *coloured_photos.values(), *arguments)
    assert (code, out) == (2, "")
    assert "127.0.0.1:9" in err
    assert len(err.splitlines()) == 1


# Keys


def authorizations(tellapart, serve, coloured_photos, *arguments):
    server = serve()
    server_arguments = ("--endpoint", server.url, "--endpoint-model", "eyes", *arguments)
    code, out, err = tellapart("caption", coloured_photos["red"], *server_arguments)
    return code, [headers.get("Authorization") for headers in server.headers], out + err


def test_keys_of_other_programs_are_sent_to_nobody(tellapart, serve, coloured_photos, monkeypatch):
    monkeypatch.delenv("TELLAPART_API_KEY")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "OPENAI_KEY"):
        monkeypatch.setenv(name, "sk-others")
    assert authorizations(tellapart, serve, coloured_photos)[:2] == (0, [None])


def test_a_key_that_is_named_is_sent_in_place_of_ours(tellapart, serve, coloured_photos, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-named")
    code, sent, shown = authorizations(tellapart, serve, coloured_photos, "--api-key-env", "OPENAI_API_KEY")
    assert (code, sent) == (0, ["Bearer sk-named"])
    assert "sk-named" not in shown


@pytest.mark.parametrize("key", [None, "", " \n"])
def test_a_key_that_is_named_and_not_there_is_a_wrong_request(tellapart, serve, coloured_photos, monkeypatch, key):
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    code, sent, shown = authorizations(tellapart, serve, coloured_photos, "--api-key-env", "OPENAI_API_KEY")
    assert (code, sent) == (2, [])
    assert shown == "tellapart caption: --api-key-env OPENAI_API_KEY: this environment variable is not set, or empty.\n"


# What is asked, and what it was in all


def test_prompt_and_length_are_as_asked_and_the_help_says_what_is_sent(tellapart, serve, coloured_photos, capfd):
    server = serve()
    arguments = ("--endpoint", server.url, "--endpoint-model", "eyes", "--prompt", "Was ist das?", "--max-tokens", "99")
    assert tellapart("caption", coloured_photos["red"], *arguments)[0] == 0
    (request,) = server.requests
    assert (request["messages"][0]["content"][0]["text"], request["max_tokens"]) == ("Was ist das?", 99)
    with pytest.raises(SystemExit):
        tellapart("caption", "--help")
    text = " ".join(capfd.readouterr().out.split())
    for fact in (
        "JPEG of at most 768 pixels",
        "without metadata",
        "A photo is one request.",
        "TELLAPART_API_KEY",
    ):
        assert fact in text


def test_a_run_that_ended_at_its_limit_goes_on_later(tellapart, serve, coloured_photos, tmp_path):
    server, out = serve(), tmp_path / "out.jsonl"
    arguments = ("--endpoint", server.url, "--endpoint-model", "eyes", "--out", out)
    code, _, err = tellapart("caption", *coloured_photos.values(), *arguments, "--max-requests", "4")
    assert code == 1
    assert err.count("(--max-requests)") == 2
    code, _, err = tellapart("caption", *coloured_photos.values(), *arguments)
    assert code == 0, err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["caption"].split()[1] for row in rows] == list(coloured_photos)
    assert len(server.requests) == 6


def test_a_refusal_is_an_error_of_its_photo_and_chatter_is_taken_off(tellapart, serve, coloured_photos, tmp_path):
    """The one is written as an error, and made again by the next run; the other is a caption without its wrapping."""

    def behave(request, colour):
        if colour == "red":
            return ["I'm sorry, but I can't help with identifying people in images."]
        return [f"Sure! Here is a caption:\n\n**The image shows a {colour}\x1b[2J\u202e wall.** #wall #{colour}"]

    out = tmp_path / "out.jsonl"
    arguments = ("--endpoint", serve(behave).url, "--endpoint-model", "eyes", "--out", out)
    code, _, err = tellapart("caption", *coloured_photos.values(), *arguments)
    assert code == 1
    red, *others = (json.loads(line) for line in out.read_text().splitlines())
    refusal = "the model refused to caption it (\"I'm sorry, but I can't help with identifying people in images.\")"
    assert ("caption" in red, red["error"]) == (False, refusal)
    assert f"red.png: {refusal}" in err
    assert [row["caption"] for row in others] == [f"A {colour} wall." for colour in list(COLOURS)[1:]]
