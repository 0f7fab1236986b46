"""What rewards are made of."""

from math import cos, exp, radians, sin, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rewards.captions import context
from tellapart.data.examples import Example
from tellapart.data.store import Stores
from tellapart.data.tokenizers import WordTokenizer
from tellapart.recipe import RewardsConfig
from tellapart.rewards.context import _without


def test_look_alikes_that_are_dropped_make_room_for_the_next():
    indices = np.array([[4, 2, 7, -1], [1, 3, 5, 6]])
    scores = np.array([[0.9, 0.85, 0.5, 0.0], [0.7, 0.6, 0.5, 0.4]], np.float32)
    found, theirs = _without(indices, scores, scores > 0.8, 2)
    assert found.tolist() == [[7, -1], [1, 3]]
    assert theirs[0, 0] == np.float32(0.5)
    assert theirs[1].tolist() == [np.float32(0.7), np.float32(0.6)]


def test_a_caption_that_ends_where_a_reference_was_cut_for_training_earns_less():
    """An end after the cut reference "w x" would make "w x" the best caption, and broken-off captions usual.

    With two photos, a word or n-gram that one of them has weighs ln 2, and the end, which both have, 0.  So of "w x
    END" and the whole reference "w x y z END" the cosines are 2 / (sqrt 2 * 2) for words, 1 / (sqrt 2 * 2) for pairs
    (w x; not x END) and 0 for more; their lengths differ by 2.
    """
    words = WordTokenizer(["v", "w", "x", "y", "z"])
    sources = [(Stores(), [Example(0, "0.jpg", "train", ("w x y z",)), Example(1, "1.jpg", "train", ("v",))])]
    consensus = context(RewardsConfig(weights={"cider_d": 1.0}), sources, words, 2).consensus("CIDEr-D")
    sampled = torch.tensor([[*words.encode(text), words.eos, words.pad, words.pad][:5] for text in ("w x", "w x y z")])
    assert consensus(sampled, torch.tensor([0, 0])).tolist() == pytest.approx(
        [10 * (3 / sqrt(8)) / 4 * exp(-(2**2) / 72), 10], rel=1e-5
    )


@pytest.mark.parametrize("by", ["image", "caption"])
def test_a_photo_that_is_another_one_now_gets_look_alikes_of_its_own(tmp_path, by):
    """Ids and captions stay; of 0, the next one was 1, and is 3 after the photos have moved."""
    words = WordTokenizer(["v"])
    sources = [(Stores(), [Example(i, f"{i}.jpg", "train", ("v",)) for i in range(4)])]

    def nearest_to_0(*degrees):
        config = RewardsConfig(weights={"geg_avg": 1.0}, group_size=1, look_alikes=by)
        made = context(config, sources, words, 2, features=tmp_path)
        photos = torch.tensor([[cos(radians(angle)), sin(radians(angle))] for angle in degrees])
        made.__dict__["retriever"] = SimpleNamespace(name="by hand", sha256="0", embed_captions=lambda _: photos)
        made.__dict__["image_retriever"] = SimpleNamespace(images=photos)
        return made.look_alikes[0].tolist()

    assert nearest_to_0(0, 10, 40, 80) == [1]
    assert nearest_to_0(0, 80, 40, 10) == [3]
    assert nearest_to_0(0, 10, 40, 80) == [1]
    assert len(list(tmp_path.iterdir())) == 2  # the third time it was known
