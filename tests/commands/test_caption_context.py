"""`caption --context`, `--style`, `--language` and `--bursts`."""

import json

import pytest
from PIL import ExifTags, Image

from tellapart.desk.asking import PROMPTS


@pytest.fixture(autouse=True)
def cache(own_cache):
    return own_cache


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
def ask(tellapart, serve, tmp_path):
    """Run `caption` with a server; returns the rows by the photo's name, and the prompts that it got."""

    def run(behave, *arguments, code=0):
        server = serve(behave)
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        server_options = ("--endpoint", server.url, "--endpoint-model", "eyes", "--out", out)
        found, _, err = tellapart("caption", *arguments, *server_options)
        assert found == code, err
        rows = map(json.loads, out.read_text().splitlines())
        prompts = [request["messages"][0]["content"][0]["text"] for request in server.requests]
        return {row["file"].rpartition("/")[2]: row for row in rows}, prompts

    return run


def test_the_server_is_told_what_is_known_of_a_photo_if_the_user_says_so(ask, album):
    _, prompts = ask(lambda _, colour: [f"a {colour} tram"], album)
    assert set(prompts) == {PROMPTS["caption"]}
    _, prompts = ask(lambda _, colour: [f"a {colour} tram"], album, "--context")
    assert len(set(prompts)) == len(prompts) == 6
    for prompt in prompts:
        assert prompt.startswith(PROMPTS["caption"])
        for part in ('album "Lisbon trams"', "14 August 2019", 'note "with grandma"'):
            assert part in prompt


def test_context_goes_into_both_questions_and_into_the_choice(ask, album, small_retriever):
    def behave(request, colour):
        return ["a man on the street", f"{colour} tram on the street"][: request.get("n", 1)] if "n" in request else [
            "a man on the street"
        ]  # fmt: skip

    among = ("--among", album, "--retriever", small_retriever, "--strength", "0")
    _, prompts = ask(behave, album, "--context", *among)
    second = [prompt for prompt in prompts if "easily taken for" in prompt]
    assert second
    assert all('album "Lisbon trams"' in prompt for prompt in prompts)


def test_tags_and_alternative_text_are_asked_for_and_made(ask, album):
    rows, prompts = ask(lambda _, colour: [f"{colour}, Tram, #street, tram"], album, "--style", "tags")
    assert set(prompts) == {PROMPTS["tags"]}
    assert rows["red.jpg"]["caption"] == "red, tram, street"
    rows, prompts = ask(lambda _, colour: [f"The image shows a {colour} tram."], album, "--style", "alt")
    assert set(prompts) == {PROMPTS["alt"]}
    assert rows["blue.jpg"]["caption"] == "A blue tram."


def test_another_language_is_asked_for_or_translated_to_after_the_choice(ask, album, small_retriever):
    rows, prompts = ask(lambda _, colour: [f"ein Foto, {colour}"], album, "--language", "German")
    assert set(prompts) == {f"{PROMPTS['caption']} Write it in German."}
    assert {row["language"] for row in rows.values()} == {"de"}

    def behave(request, colour):
        asked = request["messages"][0]["content"][0]["text"]
        return [f"ein Bus, {colour}"] if "into German" in asked else [f"{colour} bus"]

    among = ("--among", album, "--retriever", small_retriever)
    rows, prompts = ask(behave, album, "--language", "German", *among)
    assert {row["caption"] for row in rows.values()} == {f"ein Bus, {name.removesuffix('.jpg')}" for name in rows}
    assert sum("into German" in prompt for prompt in prompts) == 6
    assert {row["language"] for row in rows.values()} == {"de"}
    rows, _ = ask(behave, album)
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
