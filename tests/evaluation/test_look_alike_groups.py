"""Who looks like whom, by the features of the judge's encoder."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tellapart import album
from tellapart.data.examples import Example
from tellapart.data.media import photos as data_photos
from tellapart.encoders.loading import load
from tellapart.evaluation.grid import groups_of
from tellapart.evaluation.models import Split
from tellapart.recipe import EncoderConfig


def split_of(files, captions=("a photo",)):
    return Split("x", "x", [Example(str(i), file, captions=captions) for i, file in enumerate(files)], [])


@pytest.fixture(scope="module")
def files():
    return sorted((Path(album.__file__).parent / "photos").glob("*.webp"))[:9]


def test_the_five_nearest_by_cosine_of_the_pooled_features(files):
    """Against the cosines of all pairs, in a loop; and a photo without references is nobody's look-alike."""
    split = split_of(files)
    split.photos[4] = Example("4", files[4], captions=())
    encoder = load(EncoderConfig("efficientnet_lite0", 224, 7), torch.device("cpu"))
    vectors = [encoder(data_photos.read(file, 224).pixels[None]).pooled[0].double().numpy() for file in files]
    unit = [vector / np.linalg.norm(vector) for vector in vectors]
    found = groups_of(split, "cpu")
    assert found.signature.startswith("efficientnet_lite0-06a4248e-5")
    for photo in range(9):
        others = [other for other in range(9) if other not in (photo, 4)]
        nearest = sorted(others, key=lambda other: -(unit[photo] @ unit[other]))[:5]
        assert found.nearest[photo].tolist() == ([-1] * 5 if photo == 4 else nearest)


def test_a_copy_is_no_look_alike_and_a_photo_that_cannot_be_read_has_none(files, tmp_path):
    copy = tmp_path / "copy.webp"
    shutil.copy(files[0], copy)
    found = groups_of(split_of([*files[:6], copy, tmp_path / "missing.webp"]), "cpu")
    assert 6 not in found.nearest[0]
    assert 0 not in found.nearest[6]
    assert found.nearest[7].tolist() == [-1] * 5
    assert 7 not in found.nearest[:7]


def test_six_photos_with_references_make_a_group(files):
    assert groups_of(split_of(files[:5])) is None
    assert sorted(groups_of(split_of(files[:6]), "cpu").nearest[0].tolist()) == [1, 2, 3, 4, 5]
