"""The vectors of a retriever and of an encoder, around a retriever whose network is a table of colours."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from tellapart import __main__, encoders, paths
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders.encoder import Encoder, Features
from tellapart.models.retrievers import load
from tellapart.neighbours import collection, groups
from tellapart.neighbours.groups import quantile_of_pairs
from tellapart.recipe import EncoderConfig
from tellapart.retrievers import EMBEDDED


@pytest.fixture
def examples(tmp_path):
    """A red photo, one that is damaged, a blue photo, and the red one under another id."""
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    Image.new("RGB", (40, 30), "blue").save(tmp_path / "blue.png")
    (tmp_path / "bad.png").write_bytes(b"?")
    names = ("red", "bad", "blue", "red")
    return [Example(i, tmp_path / f"{name}.png", captions=(name, "red")) for i, name in enumerate(names)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


def embed(captions):
    table = {"red": [1.0, 0.0], "blue": [0.0, 1.0]}
    return torch.tensor([table.get(text, [0.0, 0.0]) for text in captions]).view(-1, 2)


class Corner:
    """In an encoder's place: the red and the blue of a photo's first pixel."""

    config, fit, pooled_size, identity = EncoderConfig(image_size=32), photos.SQUEEZE, 2, {"name": "corner"}
    weights_sha256 = "c0"

    def __call__(self, pixels):
        corner = torch.as_tensor(pixels)[:, 0, 0, ::2].float() / 255
        return Features(corner[:, None], corner)


def colours(sees="photos"):
    """What a source asks of a retriever."""
    return SimpleNamespace(
        name="colours",
        sha256="0123456789abcdef",
        sees=sees,
        size=2,
        encoder=Corner(),
        alike_above={},
        embed_images=lambda pooled: torch.nn.functional.normalize(pooled),
        embed_captions=embed,
        embed_references=lambda references: torch.stack([embed(texts).mean(0) for texts in references]),
    )


def test_a_retriever_gives_a_vector_to_each_photo_that_can_be_read(examples):
    result = collection.RetrieverSource(colours()).of_photos(examples)
    assert result.positions.tolist() == [0, 2, 3]
    np.testing.assert_allclose(result.vectors, [[1, 0], [0, 1], [1, 0]], atol=1e-3)
    assert result.sha256[0] == result.sha256[2] != result.sha256[1]
    assert list(result.failed) == [str(examples[1].file)]
    np.testing.assert_allclose(result.looks, [[1, 0], [0, 1], [1, 0]], atol=1e-3)


def test_a_text_to_text_retriever_knows_a_photo_by_its_captions(examples):
    source = collection.RetrieverSource(colours(sees="references"))
    examples[1].file.write_bytes(b"")
    result = source.of_photos(examples)
    assert not source.sees_photos
    assert result.positions.tolist() == [0, 2, 3]
    np.testing.assert_allclose(result.vectors, [[1, 0], [0.5, 0.5], [1, 0]])
    assert len(set(result.sha256)) == 2


def test_captions_come_in_order_whatever_their_number(monkeypatch):
    monkeypatch.setattr(collection, "_CAPTIONS", 2)
    source = collection.RetrieverSource(colours())
    expected = [[1, 0], [0, 1], [0, 0], [1, 0], [0, 1]]
    assert source.of_captions(["red", "blue", "green", "red", "blue"]).tolist() == expected
    assert source.of_captions([]).shape == (0, 2)


def test_an_encoder_gives_its_pooled_features_with_and_without_a_cache(examples, tmp_path, monkeypatch):
    encoder = Encoder(EncoderConfig(image_size=64, grid=1))
    source = collection.EncoderSource(encoder)
    pixels = np.zeros((1, 64, 64, 3), np.uint8)
    pixels[..., 0] = 255
    red = encoder(pixels).pooled.numpy()[0]
    for folder in (None, tmp_path / "cache"):
        monkeypatch.setattr(paths, "cache", lambda folder=folder: folder)
        result = source.of_photos(examples)
        assert result.positions.tolist() == [0, 2, 3]
        np.testing.assert_allclose(result.vectors[0], red, atol=1e-2, rtol=1e-2)  # half precision on disk
        np.testing.assert_array_equal(result.vectors[0], result.vectors[2])
        assert list(result.failed) == [str(examples[1].file)]


PAGE = (Path(__file__).parents[2] / "docs" / "look_alikes.md").read_text()


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_embedded_retriever_is_calibrated_with_the_weights_that_it_has(name):
    """New weights need new numbers: scripts/calibrate_look_alikes.py."""
    retriever = load(name)
    cosines = json.loads((EMBEDDED[name] / "look_alikes.json").read_text())["alike_above"]
    assert retriever.alike_above == cosines
    assert cosines.keys() == {"image", "caption"}
    assert re.search(rf"^\| `{name}`(, the default)? \| {cosines['image']:g} \| {cosines['caption']:g} \|$", PAGE, re.M)
    assert 0.8 < groups.duplicates_above(retriever.encoder) < 1
    assert groups.duplicates_above(retriever.encoder) != groups.OTHERWISE
    assert groups.alike_above(retriever.encoder)


def test_thresholds_are_of_the_weights_that_they_were_measured_with(small_retriever):
    assert load(small_retriever).alike_above == {}
    file = small_retriever / "look_alikes.json"
    try:
        for sha256, expected in (("0" * 64, {}), (load(small_retriever).sha256, {"image": 0.5})):
            file.write_text(json.dumps({"weights_sha256": sha256, "alike_above": {"image": 0.5}}))
            assert load(small_retriever).alike_above == expected
        file.write_text('{"alike_above": {"image": "much"}}')
        with pytest.raises(UserError, match=r"look_alikes\.json: \"alike_above\" must give cosines"):
            load(small_retriever)
    finally:
        file.unlink()


@pytest.mark.parametrize("name", groups.measured_encoders())
def test_the_page_has_the_thresholds_of_encoders(name):
    entry = groups.measured_encoders()[name]
    assert name in encoders.ENCODERS
    row = next(line for line in PAGE.splitlines() if re.match(rf"\| `{name}`( \(pooled features\))? \|", line))
    assert f"| {entry['alike_above']['image']:g} |" in row


def test_the_quantile_is_that_of_the_pairs_that_are_different_photos():
    count = 100
    scores = np.arange(count**2, dtype=float).reshape(count, count)
    different = np.ones((count, count), bool)
    others = np.sort(scores[~np.eye(count, dtype=bool)])
    result = quantile_of_pairs(scores, different, distances=False)
    assert np.mean(others > result) == pytest.approx(0.005, abs=1e-3)
    assert np.mean(others < quantile_of_pairs(scores, different, distances=True)) == pytest.approx(0.005, abs=1e-3)
    different[scores > 5000] = False  # bursts, which would raise the bar
    assert 4900 < quantile_of_pairs(scores, different, distances=False) < 5000
    # a small collection, and one of duplicates
    assert quantile_of_pairs(np.ones((20, 20)), np.ones((20, 20), bool), distances=False) is None
    assert quantile_of_pairs(np.ones((80, 80)), np.zeros((80, 80), bool), distances=False) is None


def test_help_names_the_thresholds_that_the_embedded_retriever_has(capsys):
    embedded = collection.source(None)
    with pytest.raises(SystemExit):
        __main__.main(["lookalikes", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"as measured for the encoder, {embedded.duplicates_above:g} for the embedded one" in text
    assert f"as measured for the retriever, {embedded.alike_above['image']:g} for the embedded one" in text
