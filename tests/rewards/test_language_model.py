"""The reward `fluency`: against plain loops, and against leaks."""

import json
import math
from pathlib import Path
from time import process_time

import numpy as np
import pytest
import torch

from capscore import fluency
from capscore.errors import UserError
from capscore.fluency import KneserNey
from rewards.captions import sampled as sampled_ids
from tellapart.data.tokenizers import WordTokenizer
from tellapart.recipe import DataConfig, Recipe, RewardsConfig
from tellapart.rewards import SampledCaptions, registry
from tellapart.rewards.language_model import Fluency, coco, learned, readable
from tellapart.training.preparation import not_learned_from
from test_kneser_ney import TOY, by_definition, padded, with_unknown

HERE = Path(__file__).parents[1]
WORDS = WordTokenizer(["a", "dog", "runs", "on", "grass", "bed", "zebras", "two"])  # "cat" is <unk> to it


def sampled(texts, *, width=None):
    return sampled_ids([*map(WORDS.encode, texts)], end=WORDS.eos, width=width)


def by_loops(words, *, ended=True):
    """Means of log p(w | three before) - log p(w), what they lack of 2, and the lowest's lack of -1.3, to -5.5."""
    frequencies = [word for text in TOY for word in [*with_unknown(text), "</s>"]]
    terms = []
    for place, word in enumerate([*with_unknown(words), "</s>"][: None if ended else -1]):
        history = padded(words)[place : place + 3]
        share = frequencies.count(word) / len(frequencies)
        terms.append(math.log(by_definition(history, word)) - math.log(share))
    mean = sum(terms) / len(terms)
    return min(max(mean, 0), 2) - 2 + min(max(min(terms), -5.5), -1.3) + 1.3


def test_the_reward_is_what_a_caption_lacks_of_a_usual_one():
    texts = ["a dog runs", "a dog on zebras", "grass a on", "two two two", "bed"]
    result = Fluency(KneserNey.of(TOY), WORDS)(sampled(texts))
    assert result.words is None
    assert result.sentence.tolist() == pytest.approx([by_loops(text.split()) for text in texts], rel=1e-5)
    assert len({round(value, 4) for value in result.sentence.tolist()}) == len(texts)


def test_a_caption_that_was_cut_has_no_end_that_could_be_unusual():
    reward, text = Fluency(KneserNey.of(TOY), WORDS), "a dog on a"
    expected = [by_loops(text.split(), ended=ended) for ended in (True, False)]
    assert reward(sampled([text])).sentence.tolist() == pytest.approx(expected[:1], rel=1e-5)
    assert reward(sampled([text], width=4)).sentence.tolist() == pytest.approx(expected[1:], rel=1e-5)
    assert expected[0] < expected[1]


def test_a_caption_without_words_has_its_end_and_an_empty_batch_nothing():
    reward = Fluency(KneserNey.of(TOY), WORDS)
    assert reward(sampled([""])).sentence.tolist() == pytest.approx([by_loops([])], rel=1e-5)
    empty = SampledCaptions(torch.zeros(0, 3, dtype=torch.long), torch.zeros(0, 3, dtype=torch.bool), torch.zeros(0))
    assert reward(empty).sentence.shape == (0,)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("a bus is parked in front of trees", "a bus is parked in a trees"),
        ("a group of computers", "a group of computer"),
        ("a kitchen with a stove and a sink", "a kitchen with a stove and a"),
        ("a bathroom with a toilet", "a bathroom with a toilet in it on it"),
    ],
)
def test_what_nobody_would_write_costs(better, worse):
    words = WordTokenizer(sorted({*better.split(), *worse.split()}))
    captions = sampled_ids([words.encode(better), words.encode(worse)], end=words.eos)
    good, bad = Fluency(coco(), words)(captions).sentence.tolist()
    assert good > bad + 0.1


def test_a_batch_takes_no_more_than_two_percent_of_a_step():
    """160 captions in 6 ms; a step of a small captioner takes half a second."""
    words = WordTokenizer(coco().words)
    ids = torch.randint(4, len(words.words), (160, 12), generator=torch.Generator().manual_seed(0))
    batch, reward = SampledCaptions(ids, torch.ones_like(ids).bool(), torch.zeros(160)), Fluency(coco(), words)
    times = []
    for _ in range(5):
        start = process_time()
        reward(batch)
        times.append(process_time() - start)
    assert min(times) < 0.02


# Leaks


def photo(id, split, *captions):
    return {"id": id, "split": split, "file": f"{id}.jpg", "captions": list(captions)}


@pytest.fixture
def write(tmp_path):
    def write(name, dataset, *photos):
        (tmp_path / f"{name}.json").write_text(json.dumps({"dataset": dataset, "images": list(photos)}))
        return str(tmp_path / f"{name}.json")

    return write


def test_no_caption_of_a_photo_that_a_run_is_judged_by_is_learned(write):
    data = write(
        "data",
        "mine",
        photo(1, "train", "a red dog", "the dog is red"),
        photo(2, "val", "a green frog", "the frog is green"),
        photo(3, "test", "a blue bird", "the bird is blue"),
    )
    excluded = write("excluded", "theirs", photo(4, "train", "a pink pig", "the pig is pink"))
    text = write(
        "text",
        "flickr30k",
        photo(10, "train", "a red dog", "the dog is red"),
        photo(11, "train", "A green frog.", "The frog is green!", "something else"),
        photo(12, "train", "a blue bird", "the bird is blue"),
        photo(13, "train", "a pink pig", "the pig is pink"),
        photo(15, "val", "their own validation", "photo"),
        photo(17, "train", "a blue bird", "one in common may be chance"),
    )
    recipe = Recipe(data=DataConfig(files=[data], exclude=[excluded]))
    assert [each.id for each in readable([text], not_learned_from(recipe))] == [10, 17]
    assert "frog" not in learned([text], not_learned_from(recipe)).words
    assert "frog" in learned([text]).words  # without a run to leave photos out for


def test_coco_photos_of_the_measures_model_are_left_out(write):
    coco_text = write("coco", "coco", *(photo(id, "restval", f"number {id}") for id in (2, 3, 8, 11)))
    other = write(
        "other", "other", *(photo(id, "train", f"number {id}") for id in (2, 3)), photo("5.jpg", "train", "b")
    )
    assert [each.id for each in readable([coco_text, other])] == [2, 8, 2, 3, "5.jpg"]
    assert [each.id for each in readable([coco_text], odd=True)] == [3, 11]


def test_the_bundled_model_has_seen_no_validation_or_test_photo_and_even_ids_alone():
    held_out = set(json.loads((HERE / "golden" / "coco_val_test_ids.json").read_text()))
    folder = Path(fluency.__file__).parent / "data"
    with np.load(folder / "coco_even_language_model.npz") as archive:
        seen = set(archive["photos"].cumsum().tolist())
    assert len(held_out) == 2500
    assert len(seen) == 5068
    assert len(seen & held_out) == 0
    assert not any(id % 2 for id in seen)


def test_files_that_teach_nothing_are_refused(write):
    with pytest.raises(UserError, match=r"fluency_text: .*text\.json: no captions are left"):
        learned([write("text", "coco", photo(1, "train", "odd"), photo(2, "val", "held out"))])
    config = RewardsConfig(weights={"fluency": 1.0}, fluency_text=["nowhere.json"])
    with pytest.raises(UserError, match=r"objective\.rewards\.fluency_text: there is no file nowhere\.json"):
        registry.require(config, [], lambda name: None)
