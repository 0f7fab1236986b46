"""Small retrievers with random weights: they find nothing, and quickly."""

import pytest

from support import small_models
from tellapart.models import retrievers as loading

WORDS = [*small_models.WORDS, "dog", "'s", "n't", "is"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or fills the cache of whoever runs it."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def encoder():
    return small_models.small_encoder()


def write_model(folder, name, seed=0):
    """A model folder of a retriever that reads words."""
    return small_models.retriever(folder, name, WORDS, seed, size=8, word_size=6)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Model folders by architecture."""
    root = tmp_path_factory.mktemp("retrievers")
    return {name: write_model(root / name, name) for name in ("word_tower", "vse", "text_tower")}


@pytest.fixture(scope="session")
def retrievers(folders):
    return {name: loading.load(folder) for name, folder in folders.items()}
