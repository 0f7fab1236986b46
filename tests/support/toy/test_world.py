"""The toy world: pictures whose captions have a known truth."""

import random
from itertools import combinations

import pytest

from support.toy.drawing import OBJECTS
from support.toy.drawing import PLACES as PAINTED_PLACES
from support.toy.world import (
    COMPANIONS,
    DETAILS,
    NOUNS,
    PLACES,
    VARIED,
    Claim,
    Scene,
    describe,
    finds,
    look_alike_groups,
    make,
    measure,
    references,
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


def test_every_word_of_the_world_can_be_drawn():
    assert set(OBJECTS) == {*NOUNS, *COMPANIONS}
    assert set(PAINTED_PLACES) == set(PLACES)


def test_descriptions_and_references_are_always_true():
    rng = random.Random(0)
    for scene in scenes(30):
        for details in [(), *((d,) for d in DETAILS), *combinations(DETAILS, 3), DETAILS]:
            truth = truth_of(describe(scene, details), scene)
            assert truth.holds
            assert truth.names_object
            assert {claim.aspect for claim in truth.right} >= set(details) - {"count"}
        assert all(truth_of(c, scene).holds and truth_of(c, scene).names_object for c in references(scene, rng))


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


def test_a_caption_tells_apart_what_it_is_true_of_alone_and_finds_what_it_is_most_right_of():
    elsewhere, more = (
        Scene("ball", "red", *rest) for rest in (("sand", "box", "blue", 2), ("grass", "box", "blue", 3))
    )
    for caption, among, apart, found in [
        ("a red ball on the grass", [elsewhere], True, True),
        ("a red ball", [elsewhere, more], False, False),
        ("a red ball on the grass", [elsewhere, more], False, False),
        ("a red ball on the grass next to two boxes", [elsewhere, more], True, True),
        ("a red ball on the grass next to two green boxes", [elsewhere, more], False, True),  # one wrong, of all alike
        ("a red ball in the snow", [elsewhere, more], False, False),  # true of nobody
        ("", [elsewhere, more], False, False),  # true of everybody
    ]:
        assert (tells_apart(caption, BALL, among), finds(caption, BALL, among)) == (apart, found), caption


def test_look_alikes_share_object_and_colour_and_differ_pairwise_in_a_detail():
    seen = set()
    for group in look_alike_groups(50, (4, 6), random.Random(0)):
        assert 4 <= len(group) <= 6
        assert len({(scene.noun, scene.colour) for scene in group}) == 1
        for a, b in combinations(group, 2):
            assert any(getattr(a, key) != getattr(b, key) for key in VARIED)
        assert seen.isdisjoint(group)
        seen.update(group)


def test_the_same_seed_makes_the_same_bytes_and_the_data_file_gives_the_world_back(world, tmp_path):
    folder, dataset = world
    make(tmp_path, groups=10, seed=3)
    files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file())
    assert all((folder / file).read_bytes() == (tmp_path / file).read_bytes() for file in files)
    again = read(folder / "captions.json")
    assert not again.problems
    assert again.examples == dataset.examples
    assert len({scene_of(example) for example in again.examples}) == len(again.examples)  # none is in two splits


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
