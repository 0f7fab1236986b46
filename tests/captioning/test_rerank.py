"""Captions told apart in a collection: the formula, look-alikes, copies and bursts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.retrievers import bag_of_words_retriever, photos
from tellapart.captioning.pipeline import RerankConfig, tell_apart
from tellapart.captioning.rerank import Collection, Scene, choose, rerank
from tellapart.data.captions import Candidate, Proposed
from tellapart.retrievers.retriever import Embedded
from tellapart.rewards import language_model

WORDS = ["dog", "red", "blue", "ball", "grass", "runs"]
SHOWN = {"1": "dog red ball", "2": "dog blue ball", "3": "dog grass"}
LISTENED = RerankConfig(strength=1.0)


@pytest.fixture
def listener():
    return bag_of_words_retriever(WORDS)


@pytest.fixture
def collection(listener):
    return Collection(listener, photos(listener, SHOWN))


def vector_of(collection, file):
    return collection.vectors[collection.photos.files.index(file)]


def proposed(file, *captions, sha256=None):
    candidates = [Candidate(text, logp, len(text.split()) + 1) for text, logp in captions]
    return Proposed(file, candidates, sha256=file if sha256 is None else sha256)


BALLS = proposed("1", ("dog ball", -3.0), ("dog red ball", -4.4))


def choice(collection, item, config=None, *, vector=None, features=None):
    """The caption of one photo, which looks like the one of its name in the collection."""
    vector = vector_of(collection, item.file) if vector is None else vector
    scene = Scene(collection, {item.sha256: 0}, vector[None], None if features is None else features[None])
    (caption,) = choose([item], scene, RerankConfig() if config is None else config)
    return caption


def test_the_caption_that_picks_its_photo_out_is_chosen_over_a_likelier_one_that_fits_all(collection):
    assert choice(collection, BALLS, LISTENED).text == "dog red ball"
    assert choice(collection, BALLS, RerankConfig(strength=0.0)).text == "dog ball"


@pytest.mark.parametrize("length", [1.0, 0.75])
def test_the_worth_of_a_candidate_is_what_the_formula_says(collection, length):
    """Where likelihood and listener cancel out two candidates are equally good; there the choice turns."""

    def log_p(bag):  # cosines of bags of words, by hand
        cosines = [
            len(set(bag) & set(shown.split())) / math.sqrt(len(bag) * len(shown.split())) for shown in SHOWN.values()
        ]
        scaled = [10 * cosine for cosine in cosines]
        return scaled[0] - math.log(sum(map(math.exp, scaled)))

    gain = log_p(["dog", "red", "ball"]) - log_p(["dog", "ball"])
    turning = (-3.0 / 3**length - -4.4 / 4**length) / gain
    for strength, text in ((turning * 0.99, "dog ball"), (turning * 1.01, "dog red ball")):
        assert choice(collection, BALLS, RerankConfig(strength=strength, length=length)).text == text


def test_the_language_model_counts_as_much_as_its_weight_says(collection):
    """The reward's own model gives the terms; the choice turns where likelihood and what they lack cancel out."""
    texts = [("a dog is in the grass", -3.0), ("a dog are in of grass", -2.0)]
    short = []
    for text, _ in texts:
        terms = language_model.coco().terms([text.split()])[0].tolist()
        short.append(min(max(sum(terms) / len(terms), 0), 2) - 2 + max(min(*terms, -1.3), -5.5) + 1.3)
    assert short[1] < short[0] - 1
    turning = (1.0 / 7) / (short[0] - short[1])
    for weight, (text, _) in ((turning * 0.99, texts[1]), (turning * 1.01, texts[0]), (0.0, texts[1])):
        config = RerankConfig(strength=0.0, length=1.0, fluency=weight)
        assert choice(collection, proposed("1", *texts), config).text == text


class Given:
    """Proposes what it was given."""

    identity = "given"

    def __init__(self, items):
        self.items = items

    def propose(self, files, scene):
        return iter(self.items)


def test_captions_belong_to_their_photos_whatever_the_order(collection):
    texts = {"1": "dog red", "2": "dog blue", "3": "dog grass"}
    for order in (["1", "2", "3"], ["3", "1", "2"], ["2", "3", "1"]):
        items = [proposed(file, *((text, -3.0) for text in texts.values())) for file in order]
        captions = tell_apart(Given(items), collection, LISTENED).caption(order)
        assert [(caption.file, caption.text) for caption in captions] == [(file, texts[file]) for file in order]


def test_errors_keep_their_place(collection):
    items = [
        proposed("1", ("dog red", -1.0)),
        Proposed("broken", error="is damaged"),
        Proposed("2"),
        proposed("3", ("dog", -1.0), sha256="changed since it was compared"),
        proposed("3", ("dog grass", -1.0)),
    ]
    captions = list(tell_apart(Given(items), collection).caption(["1", "2", "3"]))
    assert [caption.file for caption in captions] == ["1", "broken", "2", "3", "3"]
    assert [bool(caption.error) for caption in captions] == [False, True, True, True, False]
    assert captions[1].error == "is damaged"


def test_look_alikes_and_gap_are_those_of_the_listener(collection):
    caption = choice(collection, proposed("1", ("dog red ball", -3.0)), RerankConfig(k=2))
    assert caption.look_alikes == ("2", "3")  # two words in common, one word in common
    cosine = {"2": 2 / 3, "3": 1 / math.sqrt(6)}
    assert caption.gap == pytest.approx(1.0 - sum(cosine.values()) / 2, abs=1e-6)


def test_the_photo_itself_and_exact_copies_are_left_out(listener, collection):
    shown = SHOWN | {"copy": "dog red ball"}
    there = Collection(listener, photos(listener, shown, sha256=["a", "b", "c", "a"]))
    caption = choice(there, proposed("1", ("dog red", -2.0), sha256="a"))
    assert caption.look_alikes == ("2", "3")
    assert caption.gap == pytest.approx(choice(collection, proposed("1", ("dog red", -2.0))).gap)


def test_a_photo_from_elsewhere_is_told_apart_from_the_collection_too(listener, collection):
    (vector,) = listener.embed_captions(["dog red grass"])
    item = proposed("new", ("dog", -1.0), ("dog red grass", -4.0))
    caption = choice(collection, item, LISTENED, vector=vector)
    assert (caption.text, set(caption.look_alikes)) == ("dog red grass", {"1", "2", "3"})


@pytest.mark.parametrize("by", ["softmax", "gap"])
def test_a_collection_of_one_photo_has_nothing_to_tell_it_apart_from(listener, by):
    alone = Collection(listener, photos(listener, {"1": "dog red ball"}))
    caption = choice(alone, BALLS, RerankConfig(strength=1.0, by=by))
    assert caption.look_alikes == ()
    assert math.isnan(caption.gap)
    assert caption.row()["gap"] is None
    assert caption.text == "dog ball"  # the likeliest
    copies = Collection(listener, photos(listener, {"1": "dog", "2": "dog"}, sha256=["a", "a"]))
    assert choice(copies, proposed("1", ("dog", -1.0), sha256="a")).look_alikes == ()


@pytest.mark.parametrize(
    ("captions", "config", "text"),
    [
        # one that repeats itself or breaks off is not chosen while there is another
        ([("dog runs", -9.0), ("dog red red ball", -2.0)], RerankConfig(strength=5.0, unlikely=100), "dog runs"),
        ([("dog runs", -9.0), ("dog red ball with a", -2.0)], RerankConfig(strength=5.0, unlikely=100), "dog runs"),
        ([("dog red red ball", -2.0)], RerankConfig(), "dog red red ball"),
        # nor one that is far less likely than the best
        ([("dog", -2.0), ("dog red ball", -40.0)], RerankConfig(strength=1000.0, unlikely=1.0), "dog"),
        ([("dog", -2.0), ("dog red ball", -40.0)], RerankConfig(strength=1000.0, unlikely=10.0), "dog red ball"),
        # without log p the listener alone decides, also where some have one
        ([("dog", math.nan), ("dog red ball", math.nan), ("dog blue", math.nan)], RerankConfig(), "dog red ball"),
        ([("dog", -0.1), ("dog red ball", math.nan), ("dog blue", -0.1)], RerankConfig(), "dog red ball"),
        # of equally good ones the first; unknown words are as good as none
        ([("red dog", math.nan), ("dog red", math.nan)], RerankConfig(), "red dog"),
        ([("qqq zzz", math.nan), ("dog red", math.nan)], RerankConfig(), "dog red"),
    ],
)
def test_which_candidates_are_chosen(collection, captions, config, text):
    caption = choice(collection, proposed("1", *captions), config)
    assert caption.text == text
    assert math.isfinite(caption.gap)
    assert (caption.row()["logprob"] is None) == any(math.isnan(logp) for other, logp in captions if other == text)


def test_the_collection_is_known_by_its_listener(listener, collection):
    assert collection.identity == Collection(listener, photos(listener, {"1": "dog"})).identity
    other = replace(listener, sha256="1" * 64)
    assert collection.identity != Collection(other, photos(listener, SHOWN)).identity


def test_settings_that_are_as_ever_go_without_saying():
    assert RerankConfig().identity == ""
    assert RerankConfig(k=3, bursts="share").identity == "k=3 bursts=share"


def test_photos_that_are_not_similar_enough_are_no_look_alikes(listener):
    there = Collection(replace(listener, alike_above={"image": 0.5}), photos(listener, SHOWN))
    assert choice(there, proposed("1", ("dog red", -2.0))).look_alikes == ("2",)  # cosine 0.67; the other has 0.41
    caption = choice(there, proposed("3", ("dog grass", -2.0)))
    assert (caption.look_alikes, caption.row()["gap"]) == ((), None)


def test_a_large_collection_of_a_listener_that_nobody_calibrated_takes_a_quantile(listener):
    draw = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(80, 6, generator=draw), dim=1)
    files = [str(number) for number in range(80)]
    there = Collection(listener, Embedded(files, files, {}, vectors.numpy()))
    pairs = (vectors @ vectors.T)[~torch.eye(80, dtype=torch.bool)]
    assert (pairs > there.alike_above).float().mean() == pytest.approx(0.005, abs=1e-3)


# Bursts


@pytest.fixture
def burst(listener):
    """The dog with the red ball three times, and the other photos; features by hand: unit vectors in a plane."""
    shown = {"1": "dog red ball", "1b": "dog red ball", "1c": "dog red ball", "2": "dog blue ball", "3": "dog grass"}
    angles = torch.deg2rad(torch.tensor([0.0, 10.0, 20.0, 90.0, 180.0]))  # cosines 0.985, 0.94 of the ends
    embedded = photos(listener, shown)
    embedded.features = (5 * torch.stack([angles.cos(), angles.sin()], 1)).numpy()
    return Collection(listener, embedded), torch.from_numpy(embedded.features)


def test_frames_of_a_burst_do_not_compete_with_each_other(burst, collection):
    there, features = burst
    caption = choice(there, BALLS, LISTENED, features=features[0])
    assert caption.look_alikes == ("2", "3")
    assert caption.near_duplicates == ("1b", "1c")  # the last is none of the first, but of one that is
    assert caption.row()["near_duplicates"] == ["1b", "1c"]
    expected = choice(collection, BALLS, LISTENED)
    assert (caption.text, caption.gap) == (expected.text, pytest.approx(expected.gap))
    photo, alone = vector_of(there, "1")[None], vector_of(collection, "1")[None]
    log_p = there.log_p_of_photo(photo, photo, there.others(["1"], there.near_duplicates(["1"], features[:1])))
    torch.testing.assert_close(log_p, collection.log_p_of_photo(alone, alone, collection.others(["1"], [[]])))


def test_a_new_frame_of_a_burst_is_not_told_apart_from_the_others(burst):
    there, features = burst
    new = torch.nn.functional.normalize(features[0] + features[1], dim=0)
    item = proposed("new", ("dog red ball", -2.0))
    caption = choice(there, item, vector=vector_of(there, "1"), features=new)
    assert (caption.look_alikes, caption.near_duplicates) == (("2", "3"), ("1", "1b", "1c"))


def test_a_burst_counts_once_among_the_look_alikes_of_another_photo(burst):
    there, features = burst
    caption = choice(there, proposed("2", ("dog blue", -2.0)), RerankConfig(k=3), features=features[3])
    assert caption.look_alikes == ("1", "3")
    assert "near_duplicates" not in caption.row()


# Copies share a caption, frames of a burst may, look-alikes must not

# Two photos of dogs that look alike, a copy of the second with other bytes, a burst of three, and a cat; with the
# angles of their features.
KINDS = {
    "1": ("dog red ball", 0), "2": ("dog red ball grass", 40), "2 again": ("dog red ball grass", 40),
    "b1": ("dog blue grass", 90), "b2": ("dog blue grass runs", 95), "b3": ("dog blue grass", 99),
    "cat": ("cat sofa", 180),
}  # fmt: skip


@pytest.fixture
def kinds():
    listener = bag_of_words_retriever([*WORDS, "cat", "sofa"])
    embedded = photos(listener, {file: shown for file, (shown, _) in KINDS.items()})
    angles = np.radians([angle for _, angle in KINDS.values()])
    embedded.features = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    there = Collection(listener, embedded)
    there.duplicates_above = float(np.cos(np.radians(8)))  # b1 - b2 - b3 are one set, through b2
    there.alike_above = 0.5
    return there


def chosen(collection, proposals, config=None):
    """proposals: file -> captions, the likeliest first"""
    items = [
        Proposed(file, [Candidate(text, -1.0 - 0.1 * i, 4) for i, text in enumerate(texts)], sha256=file)
        for file, texts in proposals.items()
    ]
    captions = rerank(items, collection.scene(list(proposals)), config or RerankConfig(strength=0.0))
    return {caption.file: caption.text for caption in captions}


def test_look_alikes_do_not_share_a_caption_while_there_is_another_one(kinds):
    same = ["a dog with a ball", "a dog in the grass"]
    assert chosen(kinds, {"1": same, "2": same}) == {"1": same[0], "2": same[1]}
    assert chosen(kinds, {"2": same, "1": same}) == {"2": same[0], "1": same[1]}
    assert chosen(kinds, {"1": same, "2": ["A dog, with a ball."]})["2"] == "A dog, with a ball."  # no other one
    assert chosen(kinds, {"1": same, "cat": same}) == {"1": same[0], "cat": same[0]}  # they are not alike


def test_a_caption_that_is_in_the_file_already_is_taken_too(kinds):
    kinds.remember({"./2": "A dog with a ball.", "elsewhere": "a dog in the grass"})
    assert chosen(kinds, {"1": ["a dog with a ball", "a dog in the grass"]}) == {"1": "a dog in the grass"}


def test_files_of_the_same_picture_share_a_caption(kinds):
    asked = {"2": ["a dog with a ball"], "2 again": ["something else"], "1": ["a dog with a ball", "a dog"]}
    assert chosen(kinds, asked) == {"2": "a dog with a ball", "2 again": "a dog with a ball", "1": "a dog"}
    kinds.remember({"2 again": "my dog Rex"})
    assert chosen(kinds, {"2": ["a dog with a ball"]}) == {"2": "my dog Rex"}


def test_frames_of_a_burst_may_share_a_caption(kinds):
    same = "a dog in the grass"
    frames = {"b1": [same], "b2": [same, "a dog runs in the grass"], "b3": ["a blue dog"]}
    assert chosen(kinds, frames) == {"b1": same, "b2": same, "b3": "a blue dog"}
    assert set(chosen(kinds, frames, RerankConfig(strength=0.0, bursts="share")).values()) == {same}
