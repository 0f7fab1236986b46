"""Copies share a caption, frames of a burst may, look-alikes must not."""

import numpy as np
import pytest
import torch

from support.retrievers import bag_of_words_retriever, photos
from tellapart.captioning.kinds import with_difference
from tellapart.captioning.rerank import Collection, PhotoVectors, RerankConfig, rerank
from tellapart.data.captions import Candidate, Proposed

WORDS = ["dog", "red", "blue", "ball", "grass", "runs", "cat", "sofa"]
# Two photos of dogs that look alike, a copy of the second with other bytes, a burst of three, and a cat.
SHOWN = {
    "1": "dog red ball", "2": "dog red ball grass", "2 again": "dog red ball grass",
    "b1": "dog blue grass", "b2": "dog blue grass runs", "b3": "dog blue grass", "cat": "cat sofa",
}  # fmt: skip
ANGLES = {"1": 0, "2": 40, "2 again": 40, "b1": 90, "b2": 95, "b3": 99, "cat": 180}  # of their features


def features(file):
    return [np.cos(np.radians(ANGLES[file])), np.sin(np.radians(ANGLES[file]))]


@pytest.fixture
def collection():
    listener = bag_of_words_retriever(WORDS)
    embedded = photos(listener, SHOWN)
    embedded.features = np.array([features(file) for file in SHOWN], np.float32)
    found = Collection(listener, embedded)
    found.duplicates_above = float(np.cos(np.radians(8)))  # b1 - b2 - b3 are one set, through b2
    found.alike_above = 0.5
    return found


def chosen(collection, proposals, how=None):
    """proposals: file -> captions, the likeliest first"""
    proposed = [
        Proposed(file, [Candidate(text, -1.0 - 0.1 * i, 4) for i, text in enumerate(texts)], sha256=file)
        for file, texts in proposals.items()
    ]
    places = {file: place for place, file in enumerate(collection.photos.files)}
    seen = {
        file: PhotoVectors(collection.vectors[places[file]], torch.tensor(features(file), dtype=torch.float32))
        for file in proposals
    }
    found = rerank(proposed, seen, collection, how or RerankConfig(strength=0.0))
    return {caption.file: caption.text for caption in found}


def test_look_alikes_do_not_share_a_caption_while_there_is_another_one(collection):
    same = ["a dog with a ball", "a dog in the grass"]
    assert chosen(collection, {"1": same, "2": same}) == {"1": same[0], "2": same[1]}
    assert chosen(collection, {"2": same, "1": same}) == {"2": same[0], "1": same[1]}
    assert chosen(collection, {"1": same, "2": ["A dog, with a ball."]})["2"] == "A dog, with a ball."  # no other one
    assert chosen(collection, {"1": same, "cat": same}) == {"1": same[0], "cat": same[0]}  # they are not alike


def test_a_caption_that_is_in_the_file_already_is_taken_too(collection):
    collection.remember({"./2": "A dog with a ball.", "elsewhere": "a dog in the grass"})
    assert chosen(collection, {"1": ["a dog with a ball", "a dog in the grass"]}) == {"1": "a dog in the grass"}


def test_files_of_the_same_picture_share_a_caption(collection):
    asked = {"2": ["a dog with a ball"], "2 again": ["something else"], "1": ["a dog with a ball", "a dog"]}
    assert chosen(collection, asked) == {"2": "a dog with a ball", "2 again": "a dog with a ball", "1": "a dog"}
    collection.remember({"2 again": "my dog Rex"})
    assert chosen(collection, {"2": ["a dog with a ball"]}) == {"2": "my dog Rex"}


BURST = {
    "b1": ["a dog in the grass"],
    "b2": ["a dog in the grass", "a dog runs in the grass"],
    "b3": ["a dog in the grass"],
}


def test_frames_of_a_burst_may_share_a_caption(collection):
    other = BURST | {"b3": ["a blue dog"]}
    assert chosen(collection, other) == {"b1": BURST["b1"][0], "b2": BURST["b1"][0], "b3": "a blue dog"}
    shared = chosen(collection, other, RerankConfig(strength=0.0, bursts="share"))
    assert set(shared.values()) == {BURST["b1"][0]}


def test_frames_of_a_burst_can_have_a_stem_and_what_they_add(collection):
    stem = "a dog in the grass"
    found = chosen(collection, BURST, RerankConfig(strength=0.0, bursts="stem"))
    assert found == {"b1": stem, "b2": f"{stem} (runs)", "b3": f"{stem} (frame 3)"}


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (["a dog on a beach with a ball"], [], "a dog on a beach (ball)"),
        (["a dog on a beach with a ball"], ["a dog on a beach (ball)"], "a dog on a beach (frame 2)"),
        (["a dog", "a wet dog and a ball"], ["a ball"], "a dog on a beach (wet)"),
        (["the dog"], [], "a dog on a beach"),
    ],
)
def test_what_a_frame_adds_is_what_no_other_frame_has(own, others, expected):
    assert with_difference("a dog on a beach", [Candidate(text) for text in own], others) == expected


def test_rows_of_before_stay_valid_unless_something_new_is_asked_for():
    from dataclasses import astuple

    usual = RerankConfig(k=3)
    assert usual.identity == str(astuple(usual)[:11])
    assert RerankConfig(k=3, bursts="share").identity == f"{usual.identity} bursts=share"
