"""The toy world: pictures whose captions have a known truth."""

import random
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from support.toy.drawing import COLOURS, OBJECTS
from support.toy.drawing import PLACES as PAINTED_PLACES
from support.toy.world import (
    COMPANIONS,
    DETAILS,
    NOUNS,
    PLACES,
    VARIED,
    Claim,
    Scene,
    claims,
    describe,
    finds,
    look_alike_groups,
    make,
    measure,
    references,
    render,
    scene_of,
    tells_apart,
    truth_of,
)
from tellapart.data.examples import read

BALL = Scene("ball", "red", "grass", "box", "blue", 2)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    return folder, make(folder, groups=10, seed=3)


def scenes(count, seed=0):
    groups = look_alike_groups(count, (4, 6), random.Random(seed))
    return [scene for group in groups for scene in group]


def pixels(image):
    return np.asarray(image, dtype=float)


# Pictures


def test_every_word_of_the_world_can_be_drawn():
    assert set(OBJECTS) == {*NOUNS, *COMPANIONS}
    assert set(PAINTED_PLACES) == set(PLACES)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("colour", COLOURS)
def test_the_salient_object_is_large_and_of_its_colour_in_any_light(place, colour):
    other = "red" if colour != "red" else "blue"
    shots = [pixels(render(Scene("ball", paint, place, "heart", other, 1), seed=5)) for paint in (colour, other)]
    ball = np.abs(shots[0] - shots[1]).max(axis=2) > 40  # the same shot with the ball painted otherwise
    assert 0.08 < ball.mean() < 0.25
    seen = np.median(shots[0][ball], axis=0)
    assert min(COLOURS, key=lambda name: np.abs(seen - COLOURS[name]).sum()) == colour


# Captions


@pytest.mark.parametrize(
    ("details", "caption"),
    [
        ((), "a ball"),
        (("colour",), "a red ball"),
        (("place",), "a ball on the grass"),
        (("companion",), "a ball next to boxes"),
        (("colour", "count"), "a red ball next to two boxes"),
        (DETAILS, "a red ball on the grass next to two blue boxes"),
    ],
)
def test_a_description_states_the_details_asked_for(details, caption):
    assert describe(BALL, details) == caption


def test_descriptions_and_references_are_always_true():
    rng = random.Random(0)
    for scene in scenes(30):
        for details in [(), *((d,) for d in DETAILS), *combinations(DETAILS, 3), DETAILS]:
            truth = truth_of(describe(scene, details), scene)
            assert truth.holds
            assert truth.names_object
            assert {claim.aspect for claim in truth.right} >= set(details) - {"count"}
        assert all(truth_of(c, scene).holds and truth_of(c, scene).names_object for c in references(scene, rng))


def test_a_full_description_tells_every_scene_apart_from_every_other():
    few = scenes(12)
    assert all(tells_apart(describe(scene, DETAILS), scene, set(few) - {scene}) for scene in few)


def test_four_of_five_references_name_only_the_salient_object():
    rng = random.Random(0)
    captions = [caption for scene in scenes(100) for caption in references(scene, rng)]
    with_detail = [c for c in captions if {claim.aspect for claim in claims(c)} - {"noun", "colour"}]
    assert 0.17 < len(with_detail) / len(captions) < 0.23
    for aspect in VARIED:  # each detail is mentioned often enough to be learnt
        assert sum(aspect in {claim.aspect for claim in claims(c)} for c in with_detail) > len(with_detail) / 4


# Truth


@pytest.mark.parametrize(
    ("caption", "wrong"),
    [
        ("a red ball", []),
        ("A RED BALL.", []),
        ("there is a ball", []),
        ("a red ball next to boxes", []),
        ("some boxes next to a ball", []),
        ("two blue boxes next to a ball on the grass", []),
        ("2 boxes and a ball", []),
        ("the ball on the grass is red", []),
        ("the ball is red near the two boxes", []),
        ("ball ball grass the the two blue box", []),
        ("<unk> red wobbly ball zzz on grass", []),
        ("a blue ball", [("colour", "blue")]),
        ("a red blue ball", [("colour", "blue")]),
        ("a red house", [("noun", "house")]),
        ("a red ball next to a house", [("noun", "house")]),
        ("two red balls", [("noun_count", "2")]),
        ("red balls", [("noun_count", "several")]),
        ("a red ball in the snow", [("place", "snow")]),
        ("a ball on the grass on the sand", [("place", "sand")]),
        ("a ball on the red grass", [("place_colour", "red")]),
        ("a red ball next to three blue boxes", [("count", "3")]),
        ("a red ball next to a blue box", [("count", "1")]),
        ("a red ball next to no boxes", [("count", "0")]),
        ("a red ball next to 12 boxes", [("count", "12")]),
        ("a red ball next to two red boxes", [("companion_colour", "red")]),
        ("a red ball next to two blue bottles", [("companion", "bottle")]),
        ("two blue boxes and three boxes", [("count", "3")]),
        (
            "ball the water three red two red box",
            [("place", "water"), ("noun_count", "3"), ("companion_colour", "red")],
        ),
    ],
)
def test_wrong_claims_are_found_whatever_the_grammar(caption, wrong):
    assert list(truth_of(caption, BALL).wrong) == [Claim(*claim) for claim in wrong]


def test_right_and_wrong_details_are_told_from_each_other():
    truth = truth_of("a red ball in the snow next to two green boxes", BALL)
    assert truth.names_object
    assert not truth.holds
    assert truth.details_right == (("colour", "red"), ("companion", "box"), ("count", "2"))
    assert truth.details_wrong == (("place", "snow"), ("companion_colour", "green"))


@pytest.mark.parametrize("caption", ["a red house", "a ball and a house", "on the grass", "two blue boxes", "", "!!"])
def test_the_object_is_not_named_when_it_is_missing_or_another_stands_beside_it(caption):
    assert not truth_of(caption, BALL).names_object


def test_several_is_wrong_of_one():
    alone = Scene("ball", "red", "grass", "box", "blue", 1)
    assert not truth_of("a ball next to boxes", alone).holds
    assert truth_of("a ball next to a box", alone).holds


def test_a_caption_tells_apart_when_it_is_true_of_its_scene_alone():
    elsewhere = Scene("ball", "red", "sand", "box", "blue", 2)
    more = Scene("ball", "red", "grass", "box", "blue", 3)
    others = [elsewhere, more]
    assert not tells_apart("a red ball", BALL, others)
    assert not tells_apart("a red ball on the grass", BALL, others)
    assert not tells_apart("a red ball next to two boxes", BALL, others)
    assert tells_apart("a red ball on the grass next to two boxes", BALL, others)
    assert tells_apart("a red ball on the grass", BALL, [elsewhere])
    assert not tells_apart("a red ball in the snow", BALL, others)  # true of nobody
    assert not tells_apart("", BALL, others)  # true of everybody


def test_a_caption_finds_its_scene_when_more_is_right_of_it_than_of_any_other():
    elsewhere = Scene("ball", "red", "sand", "box", "blue", 2)
    more = Scene("ball", "red", "grass", "box", "blue", 3)
    assert not finds("a red ball", BALL, [elsewhere, more])  # as right of all
    assert not finds("a red ball on the grass", BALL, [elsewhere, more])
    assert finds("a red ball on the grass", BALL, [elsewhere])
    assert finds("a red ball on the grass next to two green boxes", BALL, [elsewhere, more])  # one wrong, of all alike
    assert not finds("a red ball on the sand next to two boxes", BALL, [elsewhere, more])
    assert finds("anything", BALL, [])


# Look-alike groups and the data set


def test_look_alikes_share_object_and_colour_and_differ_pairwise_in_a_detail():
    seen = set()
    for group in look_alike_groups(50, (4, 6), random.Random(0)):
        assert 4 <= len(group) <= 6
        assert len({(scene.noun, scene.colour) for scene in group}) == 1
        for a, b in combinations(group, 2):
            assert any(getattr(a, key) != getattr(b, key) for key in VARIED)
        assert seen.isdisjoint(group)
        seen.update(group)


def test_the_same_seed_makes_the_same_bytes(world, tmp_path):
    folder, _ = world
    make(tmp_path, groups=10, seed=3)
    files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file())
    assert all((folder / file).read_bytes() == (tmp_path / file).read_bytes() for file in files)


def test_the_data_file_gives_the_world_back(world):
    folder, dataset = world
    again = read(folder / "captions.json")
    assert not again.problems
    assert again.examples == dataset.examples
    assert [scene_of(example) for example in again.examples] == [scene_of(example) for example in dataset.examples]
    for example in again.examples[:5]:
        assert len(example.captions) == 5
        with Image.open(example.file) as photo:
            assert (photo.size, photo.mode) == ((96, 96), "RGB")


def test_groups_stay_whole_in_their_split_and_no_scene_is_in_two(world):
    _, dataset = world
    groups = {name: {e.extra["group"] for e in dataset.split(name)} for name in ("train", "val", "test")}
    assert {name: len(ids) for name, ids in groups.items()} == {"train": 7, "val": 1, "test": 2}
    assert len(set.union(*groups.values())) == 10
    assert len({scene_of(example) for example in dataset.examples}) == len(dataset.examples)


def test_a_plain_captioner_is_right_and_tells_nothing_apart_and_a_full_one_tells_all(world):
    _, dataset = world
    plain = measure([describe(scene_of(e)) for e in dataset.examples], dataset.examples)
    full = measure([describe(scene_of(e), DETAILS) for e in dataset.examples], dataset.examples)
    assert plain == {"object": 1, "details": 1, "details_true": 1, "true": 1, "tells_apart": 0, "found": 0}
    assert full == {"object": 1, "details": 5, "details_true": 1, "true": 1, "tells_apart": 1, "found": 1}


def test_a_captioner_that_makes_details_up_is_found_out(world):
    _, dataset = world
    captions = [f"a {scene_of(e).noun} next to six boxes" for e in dataset.examples]
    boxes = sum(scene_of(e).companion == "box" for e in dataset.examples)
    result = measure(captions, dataset.examples)
    assert result["object"] == 1
    assert result["details"] == 2  # the boxes and their number
    assert result["details_true"] == pytest.approx(boxes / (2 * len(captions)))
    assert result["true"] == result["tells_apart"] == 0
