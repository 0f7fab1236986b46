"""The models that come with the package, as they are."""

import numpy as np
import pytest

import tellapart
from capscore.scoring import score
from tellapart import album, encoders, retrievers
from tellapart.data import examples
from tellapart.metrics.retrieval import ranks
from tellapart.models import find
from tellapart.models.retrievers import load
from tellapart.retrievers.retriever import embed_photos

FOLDERS = [*album.EMBEDDED.values(), *retrievers.EMBEDDED.values()]
PHOTOS = examples.read(album.HERE / "album.json").examples


def test_all_of_them_together_are_small_enough_for_a_wheel():
    files = [file for folder in (*FOLDERS, encoders.BUNDLED) for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 62e6  # the wheel, which compresses them, has less than 60 MB


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_has_a_card_that_says_what_made_it_and_what_it_may_be_used_for(folder):
    card = (folder / "README.md").read_text()
    assert f"\n# {folder.name}\n" in card
    for said in ("| made by | `recipes/", "Flickr8k", "COCO", "Research and evaluation only", "## Limits"):
        assert said in card


def test_the_default_is_the_distinctive_one():
    assert album.DEFAULT == "distinctive"
    assert [name for name in album.EMBEDDED if name != album.CLIPS] == ["plain", "distinctive"]
    assert find(album.DEFAULT) == album.HERE / "distinctive"
    assert list(album.EMBEDDED)[2:] in ([], [album.CLIPS])  # weights may be left out of a source tree


@pytest.fixture(scope="module")
def said():
    """What each of the two says of the album."""
    files = [photo.file for photo in PHOTOS]
    return {name: [one.text for one in tellapart.load(name).caption(files)] for name in ("plain", "distinctive")}


@pytest.mark.slow
def test_the_distinctive_one_is_found_more_often_and_shares_fewer_captions(said, own_cache):
    """By the judge, which had no part in its training; photos that were in no training."""
    judge = load("judge")
    photos = embed_photos(judge, [str(photo.file) for photo in PHOTOS]).vectors
    found = {
        name: (ranks(judge.embed_captions(captions).numpy() @ photos.T, np.arange(len(photos))) < 5).mean()
        for name, captions in said.items()
    }
    assert found["distinctive"] > found["plain"]
    assert len(set(said["distinctive"])) > len(set(said["plain"]))


@pytest.mark.slow
def test_both_say_what_people_say(said):
    references = [photo.captions for photo in PHOTOS]
    scores = {name: score(captions, references, metrics="CIDEr-D,Rep") for name, captions in said.items()}
    assert scores["plain"]["CIDEr-D"] >= 0.86  # what it has on all 2,000 test photos of COCO
    # On those distinctive has 0.96 times as much; the album is 92 that look alike, of which it says what differs.
    assert scores["distinctive"]["CIDEr-D"] >= 0.85 * scores["plain"]["CIDEr-D"]
    assert scores["distinctive"]["Rep"] <= 0.08
