"""`caption --endpoint`, `--context`, `--style` and `--language`, against a real server on this machine."""

import pytest
from PIL import ExifTags, Image

from support.chat_server import COLOURS
from support.written import rows_of
from tellapart.desk.asking import PROMPTS


@pytest.fixture(autouse=True)
def settings(own_cache, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("TELLAPART_API_KEY", "secret-key\n")


@pytest.fixture
def ask(tellapart, coloured_photos):
    """Run `caption` with a server for all photos, or for those that are named."""

    def run(server, *arguments, photos=None, among=None):
        files = list(coloured_photos.values()) if photos is None else photos
        told_apart = [] if among is None else ["--among", *files, "--retriever", among]
        url = server if isinstance(server, str) else server.url
        return tellapart("caption", *files, *told_apart, "--endpoint", url, "--endpoint-model", "eyes", *arguments)

    return run


def test_each_photo_gets_the_servers_caption(ask, serve, coloured_photos):
    server = serve()
    code, out, err = ask(server)
    assert code == 0, err
    captions = dict(line.split("\t") for line in out.splitlines())
    assert list(captions) == list(coloured_photos.values())
    for colour, file in coloured_photos.items():
        assert captions[file].startswith(f"a {colour} photo")
    assert len(server.requests) == len(COLOURS)  # one caption each: there is nothing to choose
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret-key"}
    assert "secret" not in out + err


def test_of_several_captions_one_of_the_same_photo_is_chosen(ask, serve, coloured_photos, small_retriever, tmp_path):
    server = serve(lambda request, colour: [f"{colour} bus", f"a {colour} cat", "a man"][: request.get("n", 1)])
    out = tmp_path / "out.jsonl"
    code, _, err = ask(server, "--out", out, among=small_retriever)
    assert code == 0, err
    assert [row["file"] for row in rows_of(out)] == list(coloured_photos.values())
    for colour, row in zip(coloured_photos, rows_of(out), strict=True):
        assert row["caption"] in (f"{colour} bus", f"a {colour} cat", "a man")
        assert row["logprob"] is None
        assert len(row["look_alikes"]) == 5
    requests = len(server.requests)
    assert "6 kept" in ask(server, "--out", out, among=small_retriever)[2]
    assert len(server.requests) == requests


def test_a_photo_whose_second_question_went_wrong_is_told_apart_by_the_next_run(
    ask, serve, small_retriever, tmp_path, monkeypatch
):
    monkeypatch.setattr("tellapart.desk.endpoint.Run._pause", lambda *_: None)
    broken = {"red"}

    def behave(request, colour):
        is_second = len(request["messages"][0]["content"]) > 2
        return (500, b"busy", {}) if is_second and colour in broken else ["a photo"] * request.get("n", 1)

    server, out = serve(behave), tmp_path / "out.jsonl"
    assert ask(server, "--out", out, among=small_retriever)[0] == 1
    assert [row.get("error") for row in rows_of(out)] == ["the server answers 500 (busy)", *[None] * 5]
    broken.clear()
    server.requests.clear()
    assert ask(server, "--out", out, among=small_retriever)[0] == 0
    assert all("caption" in row for row in rows_of(out))
    assert len(server.requests) == 2  # its first caption was kept


# Keys


@pytest.mark.parametrize(
    ("ours", "others", "named", "sent"),
    [
        (None, "sk-others", False, [None]),  # keys of other programs are sent to nobody
        ("secret", "sk-named", True, ["Bearer sk-named"]),  # but for one that is named
        *(("secret", nothing, True, []) for nothing in (None, "", " \n")),
    ],
)
def test_only_our_key_is_sent_or_one_that_is_named(ask, serve, coloured_photos, monkeypatch, ours, others, named, sent):
    for name, key in (("TELLAPART_API_KEY", ours), ("OPENAI_API_KEY", others), ("HF_TOKEN", "sk-hub")):
        monkeypatch.delenv(name, raising=False)
        if key is not None:
            monkeypatch.setenv(name, key)
    server = serve()
    more = ["--api-key-env", "OPENAI_API_KEY"] if named else []
    code, out, err = ask(server, *more, photos=[coloured_photos["red"]])
    assert [headers.get("Authorization") for headers in server.headers] == sent
    assert "sk-" not in out + err
    if not sent:
        sentence = "--api-key-env OPENAI_API_KEY: this environment variable is not set, or empty."
        assert (code, out + err) == (2, f"tellapart caption: {sentence}\n")


# What is asked, and what it was in all


def test_prompt_and_length_are_as_asked_and_the_help_says_what_is_sent(ask, tellapart, serve, coloured_photos, capfd):
    server = serve()
    assert ask(server, "--prompt", "Was ist das?", "--max-tokens", "99", photos=[coloured_photos["red"]])[0] == 0
    (request,) = server.requests
    assert (request["messages"][0]["content"][0]["text"], request["max_tokens"]) == ("Was ist das?", 99)
    with pytest.raises(SystemExit):
        tellapart("caption", "--help")
    text = " ".join(capfd.readouterr().out.split())
    for fact in ("JPEG of at most 768 pixels", "without metadata", "A photo is one request.", "TELLAPART_API_KEY"):
        assert fact in text


def test_a_run_that_ended_at_its_limit_goes_on_later(ask, serve, coloured_photos, tmp_path):
    server, out = serve(), tmp_path / "out.jsonl"
    code, _, err = ask(server, "--out", out, "--max-requests", "4")
    assert code == 1
    assert err.count("(--max-requests)") == 2
    code, _, err = ask(server, "--out", out)
    assert code == 0, err
    assert [row["caption"].split()[1] for row in rows_of(out)] == list(coloured_photos)
    assert len(server.requests) == 6


# Context, style and language


@pytest.fixture
def album(coloured_photos, tmp_path):
    """Photos of one colour each in a folder with a name and a note."""
    folder = tmp_path / "Lisbon trams"
    folder.mkdir()
    for colour, file in coloured_photos.items():
        exif = Image.Exif()
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2019:08:14 21:30:00"
        Image.open(file).save(folder / f"{colour}.jpg", exif=exif)
    (folder / "note.txt").write_text("with grandma")
    return folder


@pytest.fixture
def captioned(ask, serve, album, tmp_path):
    """The rows of the album by the photo's name, and the prompts that the server got."""

    def run(behave, *arguments, among=None):
        server, out = serve(behave), tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        code, _, err = ask(server, *arguments, "--out", out, photos=[album], among=among)
        assert code == 0, err
        prompts = [request["messages"][0]["content"][0]["text"] for request in server.requests]
        return {row["file"].rpartition("/")[2]: row for row in rows_of(out)}, prompts

    return run


def test_the_server_is_told_what_is_known_of_a_photo_if_the_user_says_so(captioned, small_retriever):
    _, prompts = captioned(lambda _, colour: [f"a {colour} tram"])
    assert set(prompts) == {PROMPTS["caption"]}
    _, prompts = captioned(lambda *_: ["a man"], "--context", "--strength", "0", among=small_retriever)
    assert any("easily taken for" in prompt for prompt in prompts)  # the second question
    assert all('album "Lisbon trams"' in prompt for prompt in prompts)
    _, prompts = captioned(lambda _, colour: [f"a {colour} tram"], "--context")
    assert len(set(prompts)) == len(prompts) == 6
    for prompt in prompts:
        assert prompt.startswith(PROMPTS["caption"])
        for part in ('album "Lisbon trams"', "14 August 2019", 'note "with grandma"'):
            assert part in prompt


def test_tags_and_alternative_text_are_asked_for_and_made(captioned):
    for style, answer, caption in (
        ("tags", "{}, Tram, #street, tram", "red, tram, street"),
        ("alt", "The image shows a {} tram.", "A red tram."),
    ):
        rows, prompts = captioned(lambda _, colour, answer=answer: [answer.format(colour)], "--style", style)
        assert set(prompts) == {PROMPTS[style]}
        assert rows["red.jpg"]["caption"] == caption


def test_another_language_is_asked_for_or_translated_to_after_the_choice(captioned, small_retriever):
    rows, prompts = captioned(lambda _, colour: [f"ein Foto, {colour}"], "--language", "German")
    assert set(prompts) == {f"{PROMPTS['caption']} Write it in German."}
    assert {row["language"] for row in rows.values()} == {"de"}

    def behave(request, colour):
        asked = request["messages"][0]["content"][0]["text"]
        return [f"ein Bus, {colour}"] if "into German" in asked else [f"{colour} bus"]

    rows, prompts = captioned(behave, "--language", "German", among=small_retriever)
    assert {row["caption"] for row in rows.values()} == {f"ein Bus, {name.removesuffix('.jpg')}" for name in rows}
    assert sum("into German" in prompt for prompt in prompts) == 6
    assert {row["language"] for row in rows.values()} == {"de"}
    rows, _ = captioned(behave)
    assert not any("language" in row for row in rows.values())


def test_the_note_of_a_folder_decides_between_captions_of_an_embedded_captioner(tellapart, photo_folder, small_model):
    """Its random captions have more words of the note than without it, or as many."""
    known, counts = {"man", "riding", "wave", "red", "bus", "street", "cat", "bed"}, []
    for note in ("", " ".join(sorted(known))):
        (photo_folder / "note.txt").write_text(note)
        code, out, _ = tellapart("caption", photo_folder, "--model", small_model, "--context")
        captions = [set(line.split("\t")[1].split()) for line in out.splitlines()]
        assert (code, len(captions)) == (0, 6)
        counts.append(sum(len(caption & known) for caption in captions))
    assert counts[1] >= counts[0]
