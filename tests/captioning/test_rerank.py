import math
from dataclasses import replace

import pytest
import torch

from support.retrievers import bag_of_words_retriever, photos
from tellapart.captioning.rerank import Collection, PhotoVectors, RerankConfig, choose, rerank
from tellapart.data.captions import Candidate, Proposed
from tellapart.retrievers.retriever import Embedded
from tellapart.rewards import language_model

WORDS = ["dog", "red", "blue", "ball", "grass", "runs"]
SHOWN = {"1": "dog red ball", "2": "dog blue ball", "3": "dog grass"}


@pytest.fixture
def listener():
    return bag_of_words_retriever(WORDS)


@pytest.fixture
def collection(listener):
    return Collection(listener, photos(listener, SHOWN))


def own(collection, *files):
    return torch.stack([collection.vectors[collection.photos.files.index(file)] for file in files])


def seen_in(collection):
    return {file: PhotoVectors(vector) for file, vector in zip(SHOWN, collection.vectors, strict=True)}


def proposed(file, *captions, sha256=None):
    candidates = [Candidate(text, logp, len(text.split()) + 1) for text, logp in captions]
    return Proposed(file, candidates, sha256=file if sha256 is None else sha256)


def test_the_caption_that_picks_its_photo_out_is_chosen_over_a_likelier_one_that_fits_all(collection):
    said = proposed("1", ("dog ball", -3.0), ("dog red ball", -4.4))
    (chosen,) = choose([said], own(collection, "1"), collection, RerankConfig(strength=1.0))
    assert chosen.text == "dog red ball"
    (likely,) = choose([said], own(collection, "1"), collection, RerankConfig(strength=0.0))
    assert likely.text == "dog ball"


@pytest.mark.parametrize("length", [1.0, 0.75])
def test_the_worth_of_a_candidate_is_what_the_formula_says(collection, length):
    """Where likelihood and listener cancel out two candidates are equally good; there the choice turns."""
    said = proposed("1", ("dog ball", -3.0), ("dog red ball", -4.4))

    def log_found(bag):  # cosines of bags of words, by hand
        cosines = [
            len(set(bag) & set(shown.split())) / math.sqrt(len(bag) * len(shown.split())) for shown in SHOWN.values()
        ]
        scaled = [10 * cosine for cosine in cosines]
        return scaled[0] - math.log(sum(map(math.exp, scaled)))

    gain = log_found(["dog", "red", "ball"]) - log_found(["dog", "ball"])
    loss = -3.0 / 3**length - -4.4 / 4**length
    turning = loss / gain
    for strength, text in ((turning * 0.99, "dog ball"), (turning * 1.01, "dog red ball")):
        (chosen,) = choose([said], own(collection, "1"), collection, RerankConfig(strength=strength, length=length))
        assert chosen.text == text


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
        how = RerankConfig(strength=0.0, length=1.0, fluency=weight)
        (chosen,) = choose([proposed("1", *texts)], own(collection, "1"), collection, how)
        assert chosen.text == text


def test_captions_belong_to_their_photos_whatever_the_order(collection):
    texts = {"1": "dog red", "2": "dog blue", "3": "dog grass"}
    for order in (["1", "2", "3"], ["3", "1", "2"], ["2", "3", "1"]):
        said = [proposed(file, *((text, -3.0) for text in texts.values())) for file in order]
        told = list(rerank(said, seen_in(collection), collection, RerankConfig(strength=1.0)))
        assert [(caption.file, caption.text) for caption in told] == [(file, texts[file]) for file in order]


def test_look_alikes_and_gap_are_those_of_the_listener(collection):
    (told,) = choose([proposed("1", ("dog red ball", -3.0))], own(collection, "1"), collection, RerankConfig(k=2))
    assert told.look_alikes == ("2", "3")  # two words in common, one word in common
    cosine = {"2": 2 / 3, "3": 1 / math.sqrt(6)}
    assert told.gap == pytest.approx(1.0 - sum(cosine.values()) / 2, abs=1e-6)


def test_the_photo_itself_and_exact_copies_are_left_out(listener):
    shown = SHOWN | {"copy": "dog red ball"}
    there = Collection(listener, photos(listener, shown, sha256=["a", "b", "c", "a"]))
    (told,) = choose([proposed("1", ("dog red", -2.0), sha256="a")], own(there, "1"), there, RerankConfig(k=5))
    assert told.look_alikes == ("2", "3")
    (as_if_alone,) = choose(
        [proposed("1", ("dog red", -2.0), sha256="1")],
        own(there, "1"),
        Collection(listener, photos(listener, SHOWN)),
        RerankConfig(k=5),
    )
    assert told.gap == pytest.approx(as_if_alone.gap)


def test_a_photo_from_elsewhere_is_told_apart_from_the_collection_too(listener, collection):
    vector = listener.embed_captions(["dog red grass"])
    said = proposed("new", ("dog", -1.0), ("dog red grass", -4.0))
    (told,) = choose([said], vector, collection, RerankConfig(strength=1.0))
    assert told.text == "dog red grass"
    assert set(told.look_alikes) == {"1", "2", "3"}


@pytest.mark.parametrize("by", ["softmax", "gap"])
def test_a_collection_of_one_photo_has_nothing_to_tell_it_apart_from(listener, by):
    alone = Collection(listener, photos(listener, {"1": "dog red ball"}))
    said = proposed("1", ("dog ball", -3.0), ("dog red ball", -4.4))
    (told,) = choose([said], own(alone, "1"), alone, RerankConfig(strength=1.0, by=by))
    assert told.look_alikes == ()
    assert math.isnan(told.gap)
    assert told.row()["gap"] is None
    assert told.text == "dog ball"  # the likeliest


def test_a_collection_of_copies_only_is_a_collection_of_one(listener):
    copies = Collection(listener, photos(listener, {"1": "dog", "2": "dog"}, sha256=["a", "a"]))
    (told,) = choose([proposed("1", ("dog", -1.0), sha256="a")], own(copies, "1"), copies, RerankConfig())
    assert told.look_alikes == ()


def test_a_candidate_that_repeats_itself_or_breaks_off_is_not_chosen_while_there_is_another(collection):
    for flawed in ("dog red red ball", "dog red ball with a"):
        said = proposed("1", ("dog runs", -9.0), (flawed, -2.0))
        (told,) = choose([said], own(collection, "1"), collection, RerankConfig(strength=5.0, unlikely=100))
        assert told.text == "dog runs"
    only = proposed("1", ("dog red red ball", -2.0))
    (told,) = choose([only], own(collection, "1"), collection, RerankConfig())
    assert told.text == "dog red red ball"


def test_a_candidate_far_less_likely_than_the_best_is_not_chosen(collection):
    said = proposed("1", ("dog", -2.0), ("dog red ball", -40.0))
    (told,) = choose([said], own(collection, "1"), collection, RerankConfig(strength=1000.0, unlikely=1.0))
    assert told.text == "dog"
    (told,) = choose([said], own(collection, "1"), collection, RerankConfig(strength=1000.0, unlikely=10.0))
    assert told.text == "dog red ball"


def test_captions_made_elsewhere_have_no_log_p_and_are_chosen_by_the_listener(collection):
    said = Proposed("1", [Candidate("dog"), Candidate("dog red ball"), Candidate("dog blue")], sha256="1")
    (told,) = choose([said], own(collection, "1"), collection, RerankConfig())
    assert told.text == "dog red ball"
    assert told.row()["logprob"] is None


def test_where_only_some_candidates_have_a_log_p_none_counts(collection):
    said = Proposed(
        "1", [Candidate("dog", -0.1, 2), Candidate("dog red ball"), Candidate("dog blue", -0.1, 3)], sha256="1"
    )
    (told,) = choose([said], own(collection, "1"), collection, RerankConfig())
    assert told.text == "dog red ball"


def test_of_equally_good_candidates_the_first_is_taken(collection):
    said = Proposed("1", [Candidate("red dog"), Candidate("dog red")], sha256="1")
    (told,) = choose([said], own(collection, "1"), collection, RerankConfig())
    assert told.text == "red dog"


def test_a_caption_of_unknown_words_is_as_good_as_none(collection):
    said = Proposed("1", [Candidate("qqq zzz"), Candidate("dog red")], sha256="1")
    (told,) = choose([said], own(collection, "1"), collection, RerankConfig())
    assert told.text == "dog red"
    assert math.isfinite(told.gap)


def test_errors_keep_their_place(collection):
    seen = seen_in(collection)
    said = [
        proposed("1", ("dog red", -1.0)),
        Proposed("broken", error="is damaged"),
        Proposed("2"),
        proposed("unseen", ("dog", -1.0)),
        proposed("3", ("dog grass", -1.0)),
    ]
    told = list(rerank(said, seen, collection, RerankConfig()))
    assert [caption.file for caption in told] == ["1", "broken", "2", "unseen", "3"]
    assert [bool(caption.error) for caption in told] == [False, True, True, True, False]
    assert told[1].error == "is damaged"


def test_the_collection_is_known_by_its_photos_and_its_listener(listener):
    one, other = Collection(listener, photos(listener, SHOWN)), Collection(listener, photos(listener, {"1": "dog"}))
    assert one.identity == Collection(listener, photos(listener, SHOWN)).identity
    assert one.identity != other.identity


# Bursts


def burst(listener, degrees):
    """The dog with the red ball three times, and the other photos; features by hand: unit vectors in a plane."""
    shown = {"1": "dog red ball", "1b": "dog red ball", "1c": "dog red ball", "2": "dog blue ball", "3": "dog grass"}
    angles = torch.deg2rad(torch.tensor(degrees))
    found = photos(listener, shown)
    found.features = (5 * torch.stack([angles.cos(), angles.sin()], 1)).numpy()
    return Collection(listener, found), torch.from_numpy(found.features)


def test_frames_of_a_burst_do_not_compete_with_each_other(listener):
    there, features = burst(listener, [0.0, 10.0, 20.0, 90.0, 180.0])  # cosines 0.985 of neighbours, 0.94 of the ends
    said = proposed("1", ("dog ball", -3.0), ("dog red ball", -4.4))
    (told,) = choose([said], own(there, "1"), there, RerankConfig(strength=1.0), features[:1])
    assert told.look_alikes == ("2", "3")
    assert told.near_duplicates == ("1b", "1c")  # the last is none of the first, but of one that is
    assert told.row()["near_duplicates"] == ["1b", "1c"]
    alone = Collection(listener, photos(listener, SHOWN))
    (expected,) = choose([said], own(alone, "1"), alone, RerankConfig(strength=1.0))
    assert (told.text, told.gap) == (expected.text, pytest.approx(expected.gap))
    log_found = there.log_found(own(there, "1"), own(there, "1"), there.others(["1"], features[:1]))
    torch.testing.assert_close(log_found, alone.log_found(own(alone, "1"), own(alone, "1"), alone.others(["1"])))


def test_a_new_frame_of_a_burst_is_not_told_apart_from_the_others(listener):
    there, features = burst(listener, [0.0, 10.0, 20.0, 90.0, 180.0])
    new = torch.nn.functional.normalize(features[0] + features[1], dim=0)[None]
    said = proposed("new", ("dog red ball", -2.0))
    (told,) = choose([said], own(there, "1"), there, RerankConfig(), new)
    assert (told.look_alikes, told.near_duplicates) == (("2", "3"), ("1", "1b", "1c"))


def test_a_burst_counts_once_among_the_look_alikes_of_another_photo(listener):
    there, features = burst(listener, [0.0, 10.0, 20.0, 90.0, 180.0])
    (told,) = choose([proposed("2", ("dog blue", -2.0))], own(there, "2"), there, RerankConfig(k=3), features[3:4])
    assert told.look_alikes == ("1", "3")
    assert "near_duplicates" not in told.row()


def test_photos_that_are_not_similar_enough_are_no_look_alikes(listener):
    listener = replace(listener, alike_above={"image": 0.5})
    there = Collection(listener, photos(listener, SHOWN))
    (told,) = choose([proposed("1", ("dog red", -2.0))], own(there, "1"), there, RerankConfig())
    assert told.look_alikes == ("2",)  # cosine 0.67; the other has 0.41
    (told,) = choose([proposed("3", ("dog grass", -2.0))], own(there, "3"), there, RerankConfig())
    assert (told.look_alikes, told.row()["gap"]) == ((), None)


def test_a_large_collection_of_a_listener_that_nobody_calibrated_takes_a_quantile(listener):
    draw = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(80, 6, generator=draw), dim=1)
    files = [str(number) for number in range(80)]
    there = Collection(listener, Embedded(files, files, {}, vectors.numpy()))
    pairs = (vectors @ vectors.T)[~torch.eye(80, dtype=torch.bool)]
    assert (pairs > there.alike_above).float().mean() == pytest.approx(0.005, abs=1e-3)
