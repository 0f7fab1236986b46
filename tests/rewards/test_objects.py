"""What captions earn for the objects that they name."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from capscore.object_words import CLASSES
from capscore.objects import objects as measured
from detectors import tiny_yolox
from support.subwords import byte_pairs
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.store import Stores
from tellapart.data.tokenizers import WordTokenizer
from tellapart.recipe import RewardsConfig
from tellapart.rewards import SampledCaptions, registry
from tellapart.rewards.context import RewardContext
from tellapart.rewards.words import Objects, WordView

WORDS = WordTokenizer(
    ["a", "dog", "cat", "on", "the", "bench", "orange", "hot", "puppies", "bed", "flower", "and", "dogs", "red"]
)
DOG, CAT, BENCH = (CLASSES.index(name) for name in ("dog", "cat", "bench"))
SEEN = [{DOG, BENCH}, {CAT}, set(), None]


def sampled(captions, photos, tokenizer=WORDS):
    rows = [[*tokenizer.encode(text), tokenizer.eos] for text in captions]
    tokens = torch.full((len(rows), max(map(len, rows)) + 1), tokenizer.encode("dog")[0])  # what a sampler left
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, own in enumerate(rows):
        tokens[row, : len(own)] = torch.tensor(own)
        mask[row, : len(own)] = True
    words = WordView.of(tokenizer, ["a dog on the bench"])(tokens, mask)
    return SampledCaptions(words.ids, words.mask, torch.tensor(photos), texts=words.texts)


def reward(captions, photos, tokenizer=WORDS):
    view = WordView.of(tokenizer, ["a dog on the bench"])
    return Objects(SEEN, view.vocabulary)(sampled(captions, photos, tokenizer)).sentence.tolist()


@pytest.mark.parametrize("tokenizer", [WORDS, byte_pairs(["a dog on the bench", "a cat"])], ids=["words", "parts"])
@pytest.mark.parametrize(
    ("caption", "photo", "expected"),
    [
        ("a dog on the bench", 0, 1.0),
        ("puppies on the bench", 0, 1.0),
        ("a dog and a cat", 0, 0.0),
        ("a dog on the bench and a cat", 0, 1 / 3),
        ("a cat", 0, -1.0),
        ("a cat", 1, 1.0),
        ("a dog", 2, -1.0),
        ("a dog and a dog and a cat", 1, -1 / 3),  # each occurrence counts
        ("the red orange", 2, 0.0),  # a colour, perhaps
        ("a flower bed", 2, 0.0),
        ("the red", 0, 0.0),
        ("a dog", 3, 0.0),  # the detector failed
    ],
)
def test_seen_objects_earn_and_others_cost(tokenizer, caption, photo, expected):
    assert reward([caption], [photo], tokenizer) == pytest.approx([expected])


@given(st.lists(st.tuples(st.lists(st.sampled_from(WORDS.words[4:]), max_size=8), st.integers(0, 2)), min_size=1))
def test_it_is_twice_the_precision_of_the_measure_less_one(captions):
    texts, photos = [" ".join(words) for words, _ in captions], [photo for _, photo in captions]
    for (words, photo), found in zip(captions, reward(texts, photos), strict=True):
        right, named, *_ = measured([[words]], [SEEN[photo]], [()], "d").rows[0]
        assert found == pytest.approx(2 * right / named - 1 if named else 0)


def test_the_table_makes_it_of_what_a_detector_finds(tmp_path, own_cache, capsys):
    """A photo that cannot be read costs its captions nothing, and is named."""
    answers, by_colour = (
        tiny_yolox.nothing(classes=80),
        np.zeros((3, *tiny_yolox.nothing(classes=80).shape), np.float32),
    )
    answers[-1, 4], by_colour[2, -1, 5 + DOG], by_colour[0, -1, 5 + CAT] = 1, 0.15, 0.08  # weak, and too weak
    detector = tiny_yolox.write(tmp_path / "tiny.onnx", answers, by_colour)
    examples = [Example(number, tmp_path / f"{number}.png", "train", ("a dog",)) for number in range(3)]
    for number, colour in enumerate([(255, 0, 0), (0, 0, 255)]):
        Image.new("RGB", (96, 64), colour).save(examples[number].file)
    (tmp_path / "2.png").write_bytes(b"no photo")
    sources = [(Stores(), examples)]
    context = RewardContext(
        RewardsConfig(weights={"objects": 1.0}),
        sources,
        CaptionedPhotos(sources, WORDS, 20),
        WordView(WORDS, WORDS),
        features=tmp_path,
        device=torch.device("cpu"),
        detector=str(detector),
    )
    term = registry.REWARDS["objects"].build(context)
    found = term(sampled(["a dog", "a cat", "a dog", "a cat", "a dog"], [0, 0, 1, 1, 2])).sentence
    assert found.tolist() == [1, -1, -1, -1, 0]
    assert "2.png" in capsys.readouterr().err
