"""Small retrievers with random weights: they find nothing, and quickly."""

import pytest
import torch

from tellapart import models
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders.encoder import Encoder
from tellapart.models import retrievers as loading
from tellapart.recipe import EncoderConfig
from tellapart.retrievers import RETRIEVERS

WORDS = ["a", "man", "riding", "wave", "red", "bus", "street", "cat", "on", "the", "bed", "dog", "'s", "n't", "is"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or fills the cache of whoever runs it."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def encoder():
    return Encoder(EncoderConfig(image_size=64, grid=2))


@pytest.fixture(scope="session")
def write_model(encoder):
    """Write a model folder of a retriever that reads words."""

    def write(folder, name, words=WORDS, seed=0):
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = WordTokenizer(words)
        settings = {"size": 8, "word_size": 6, "vocab_size": len(tokenizer), "feature_size": encoder.feature_size}
        torch.manual_seed(seed)
        network = models.build(RETRIEVERS, "retriever", name, settings)
        identity = encoder.identity if RETRIEVERS[name].sees == "photos" else {}
        models.describe(folder, name, network, tokenizer, {"regions": identity}, "retriever")
        models.save_weights(folder / "model.safetensors", network)
        return folder

    return write


@pytest.fixture(scope="session")
def folders(write_model, tmp_path_factory):
    """Model folders by architecture."""
    root = tmp_path_factory.mktemp("retrievers")
    return {name: write_model(root / name, name) for name in ("word_tower", "vse", "text_tower")}


@pytest.fixture(scope="session")
def retrievers(folders):
    return {name: loading.load(folder) for name, folder in folders.items()}
