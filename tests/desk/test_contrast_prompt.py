"""Telling a model what to tell apart, against a server process that knows the truth of a toy world."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image

from capscore.object_words import CLASSES
from support.retrievers import bag_of_words_retriever, photos
from support.toy import world
from tellapart.captioning.rerank import Collection, PhotoVectors, RerankConfig
from tellapart.data.media import photos as media
from tellapart.data.tokenizers import split_words
from tellapart.desk import sources
from tellapart.desk.contrast_prompt import Contrast, ContrastConfig, unseen
from tellapart.desk.endpoint import Endpoint, Question, ServerCaptions
from tellapart.desk.endpoint.sheet import contact_sheet

HOW = RerankConfig(k=5)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Examples in look-alike groups, and a collection by a listener that knows all that is in a photo."""
    folder = tmp_path_factory.mktemp("toy")
    examples = world.make(folder, groups=8, splits={"test": 1.0}).examples
    files = [str(example.file) for example in examples]
    told = [world.describe(world.scene_of(example), world.DETAILS) for example in examples]
    listener = bag_of_words_retriever(sorted({word for text in told for word in split_words(text)}), scale=20.0)
    hashes = [media.sha256(file) for file in files]
    collection = Collection(listener, photos(listener, dict(zip(files, told, strict=True)), hashes))
    seen = {sha256: PhotoVectors(vector) for sha256, vector in zip(hashes, collection.vectors, strict=True)}
    scenes = folder / "scenes.json"
    records = [{"file": str(one.file), "scene": asdict(world.scene_of(one))} for one in examples]
    scenes.write_text(json.dumps(records))
    return examples, files, collection, seen, scenes


@pytest.fixture(scope="module")
def server(toy):
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "truthful_server.py"), str(toy[4])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def known_photos(toy, monkeypatch):
    monkeypatch.setattr(sources, "see", lambda retriever, files: toy[3])


def measured(toy, endpoint, contrast):
    examples, files, collection, *_ = toy
    captions = list(sources.of_endpoint(endpoint, collection, HOW, contrast).caption(files))
    assert [one.file for one in captions] == files
    return world.measure([one.text for one in captions], examples)


def test_photos_are_told_apart_and_wrong_details_are_not_added(toy, server):
    notes: list[str] = []
    endpoint = Endpoint(server, "truth", candidates=5, notify=notes.append)
    before = measured(toy, endpoint, None)
    after = measured(toy, endpoint, ContrastConfig())
    assert before["tells_apart"] < 0.2  # a server that is not told what to tell apart names the object
    assert after["tells_apart"] > before["tells_apart"] + 0.5
    assert after["true"] >= before["true"] - 0.02
    count = len(toy[1])
    assert len(notes) == 2  # one line for each run, both passes in one
    requests = int(notes[1].split(": ")[1].split()[0])
    assert count + 1 < requests <= 3 * count
    assert f"{10 * requests} prompt tokens" in notes[1]


def test_no_more_is_asked_than_allowed_and_first_captions_are_kept(toy, server):
    count = len(toy[1])
    notes: list[str] = []
    endpoint = Endpoint(server, "truth", max_requests=count + 4, at_once=1, notify=notes.append)
    after = measured(toy, endpoint, ContrastConfig(answers=1))
    assert after["object"] == 1.0  # every photo has a caption
    assert notes[-1].startswith(f"{server}: {count + 4} requests")


class Recorder:
    """Gives the same first caption for all, and records what is asked then."""

    def __init__(self, *answers):
        self.answers, self.questions = answers, []

    def __call__(self, questions):
        for question in questions:
            if question.prompt:
                self.questions.append(question)
            texts = list(self.answers) if question.prompt else ["a red ball"]
            yield ServerCaptions(question.file, texts, sha256=question.file)


def ball_collection():
    """Two red balls, one of them on grass, and a blue fish."""
    listener = bag_of_words_retriever(["a", "red", "ball", "on", "grass", "snow", "blue", "fish", "dog"])
    shown = {"grass": "a red ball on grass", "snow": "a red ball on snow", "fish": "a blue fish"}
    collection = Collection(listener, photos(listener, shown))
    return collection, {name: PhotoVectors(vector) for name, vector in zip(shown, collection.vectors, strict=True)}


def test_a_photo_is_shown_with_those_that_share_its_caption(toy):
    collection, seen = ball_collection()
    ask = Recorder("a red ball on grass")
    captions = list(
        Contrast(ask, collection, HOW, ContrastConfig(images=2, answers=1)).captions(["grass", "snow"], seen)
    )
    assert [(one.file, one.beside) for one in ask.questions] == [("grass", ("snow",)), ("snow", ("grass",))]
    assert '"a red ball"' in ask.questions[0].prompt
    assert "{" not in ask.questions[0].prompt
    assert [one.text for one in captions] == ["a red ball on grass", "a red ball"]  # what finds another is not used


def test_an_own_prompt_is_filled_in():
    collection, seen = ball_collection()
    ask = Recorder("a red ball on snow")
    config = ContrastConfig(prompt="not {caption} x{count} {others}", images=3)
    list(Contrast(ask, collection, HOW, config).captions(["grass", "snow"], seen))
    assert ask.questions[1].prompt == 'not a red ball x2 Captions of the others: 2. "a red ball" '
    assert ask.questions[1] == Question("snow", ("grass", "fish"), ask.questions[1].prompt, 3)


def test_a_photo_that_its_caption_finds_is_not_shown_again():
    collection, seen = ball_collection()
    ask = Recorder("a dog")
    list(Contrast(ask, collection.only([0, 2]), HOW).captions(["grass"], seen))
    assert ask.questions == []


def test_answers_that_are_long_or_name_what_is_not_seen_are_not_used():
    collection, seen = ball_collection()
    long = "a red ball on grass " * 6
    ask = Recorder(long, "a red ball on grass dog", "a red ball on grass")
    checks = Contrast(ask, collection, HOW, objects_in=lambda files: [frozenset({CLASSES.index("sports ball")})])
    captions = list(checks.captions(["grass", "snow"], seen))
    assert captions[0].text == "a red ball on grass"
    assert unseen("a dog on the grass", frozenset())
    assert not unseen("a dog on the grass", frozenset({CLASSES.index("dog")}))


def test_a_contact_sheet_shows_all_photos_in_order():
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    sheet = contact_sheet([Image.new("RGB", (600, 600), colour) for colour in colours])
    assert sheet.size == (768, 832)
    assert [sheet.getpixel(place) for place in ((200, 200), (600, 200), (200, 600))] == colours
    assert sheet.getpixel((600, 600)) == (255, 255, 255)


def test_the_sheet_is_one_picture_for_the_server(serve, coloured_photos):
    server = serve(lambda request, colour: ["a bus"])
    endpoint = Endpoint(server.url, "eyes", candidates=1, sheet=True)
    red, blue = coloured_photos["red"], coloured_photos["blue"]
    (answer,) = endpoint.answers_to([Question(red, (blue,), "what differs?", 1)])
    assert answer.captions == ["a bus"]
    (request,) = server.requests
    kinds = [part["type"] for part in request["messages"][0]["content"]]
    assert kinds == ["text", "image_url"]
    assert torch.tensor(server.photos[0].size).tolist() == [768, 416]
