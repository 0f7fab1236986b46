"""The vectors of a retriever and of an encoder, around a retriever whose network is a table of colours."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart import paths
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders.encoder import Encoder, Features
from tellapart.neighbours import collection
from tellapart.recipe import EncoderConfig


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
    known = collection.RetrieverSource(colours()).of_photos(examples)
    assert known.positions.tolist() == [0, 2, 3]
    np.testing.assert_allclose(known.vectors, [[1, 0], [0, 1], [1, 0]], atol=1e-3)
    assert known.sha256[0] == known.sha256[2] != known.sha256[1]
    assert list(known.failed) == [str(examples[1].file)]
    np.testing.assert_allclose(known.looks, [[1, 0], [0, 1], [1, 0]], atol=1e-3)


def test_a_text_to_text_retriever_knows_a_photo_by_its_captions(examples):
    source = collection.RetrieverSource(colours(sees="references"))
    examples[1].file.write_bytes(b"")
    known = source.of_photos(examples)
    assert not source.sees_photos
    assert known.positions.tolist() == [0, 2, 3]
    np.testing.assert_allclose(known.vectors, [[1, 0], [0.5, 0.5], [1, 0]])
    assert len(set(known.sha256)) == 2


def test_captions_come_in_order_whatever_their_number(monkeypatch):
    monkeypatch.setattr(collection, "_CAPTIONS", 2)
    source = collection.RetrieverSource(colours())
    assert source.of_captions(["red", "blue", "green", "red", "blue"]).tolist() == [
        [1, 0],
        [0, 1],
        [0, 0],
        [1, 0],
        [0, 1],
    ]
    assert source.of_captions([]).shape == (0, 2)


def test_an_encoder_gives_its_pooled_features_with_and_without_a_cache(examples, tmp_path, monkeypatch):
    encoder = Encoder(EncoderConfig(image_size=64, grid=1))
    source = collection.EncoderSource(encoder)
    pixels = np.zeros((1, 64, 64, 3), np.uint8)
    pixels[..., 0] = 255
    red = encoder(pixels).pooled.numpy()[0]
    for folder in (None, tmp_path / "cache"):
        monkeypatch.setattr(paths, "cache", lambda folder=folder: folder)
        known = source.of_photos(examples)
        assert known.positions.tolist() == [0, 2, 3]
        np.testing.assert_allclose(known.vectors[0], red, atol=1e-2, rtol=1e-2)  # half precision on disk
        np.testing.assert_array_equal(known.vectors[0], known.vectors[2])
        assert list(known.failed) == [str(examples[1].file)]
