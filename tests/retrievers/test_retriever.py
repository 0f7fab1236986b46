"""A retriever in use: captions, tokens, references and photos as vectors."""

import numpy as np
import pytest
import torch

from tellapart.data.tokenizers import WordTokenizer

NAMES = ("word_tower", "vse", "text_tower")
CAPTIONS = ["a red bus on the street", "the cat's bed", "a dog isn't on the bed", "man", "a zebra riding"]


@pytest.fixture(params=NAMES)
def retriever(request, retrievers):
    return retrievers[request.param]


def test_captions_are_unit_vectors_whatever_they_are_embedded_with(retriever):
    together = retriever.embed_captions(CAPTIONS)
    assert together.shape == (5, 8)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
    alone = torch.cat([retriever.embed_captions([caption]) for caption in CAPTIONS])
    torch.testing.assert_close(together, alone)
    assert (together @ together.T - torch.eye(5)).max() < 0.9999  # no two captions are the same


def test_more_captions_than_go_at_once(retriever):
    many = CAPTIONS * 110  # 550
    torch.testing.assert_close(retriever.embed_captions(many), retriever.embed_captions(CAPTIONS).repeat(110, 1))


@pytest.mark.parametrize("nothing", ["", "  ", "...", "?!", "\N{WAVING HAND SIGN}"])
def test_a_caption_without_a_word_is_like_nothing(retriever, nothing):
    result = retriever.embed_captions(["a dog", nothing, "cat"])
    assert result[1].tolist() == [0.0] * 8
    torch.testing.assert_close(result[[0, 2]], retriever.embed_captions(["a dog", "cat"]))
    assert retriever.embed_captions([nothing]).tolist() == [[0.0] * 8]


def test_tokens_are_like_the_text_they_stand_for(retriever):
    words = WordTokenizer(["street", "the", "bus", "a", "on", "dog", "is", "n't", "cat", "'s", "zebra"])
    captions = ["a bus on the street", "", "the dog isn't a cat", "a cat's zebra", "dog dog dog dog dog dog dog dog"]
    rows = [[*words.encode(caption), words.eos] for caption in captions]
    rows[4].pop()  # one that was cut
    tokens = torch.tensor([row + [words.pad] * (9 - len(row)) for row in rows])
    texts = [words.decode(row) for row in tokens.tolist()]
    assert texts == captions
    result = retriever.embed_tokens(tokens, words)
    torch.testing.assert_close(result, retriever.embed_captions(texts))
    assert result[1].tolist() == [0.0] * 8
    begun = torch.cat([torch.full((5, 1), words.bos), tokens], 1)
    torch.testing.assert_close(retriever.embed_tokens(begun, words), result)


def test_a_photos_references_are_the_mean_of_their_vectors(retriever):
    references = [["a dog", "the dog on the bed"], [], ["a bus"], ["cat", "man", "wave"]]
    result = retriever.embed_references(references)
    assert result.shape == (4, 8)
    for row, texts in zip(result, references, strict=True):
        expected = np.mean([retriever.embed_captions([text])[0].numpy() for text in texts] or [np.zeros(8)], axis=0)
        np.testing.assert_allclose(row.numpy(), expected, atol=1e-6)
    caption = retriever.embed_captions(["a bus"])  # so that the product is the mean cosine
    cosines = [float(caption[0] @ retriever.embed_captions([text])[0]) for text in references[0]]
    assert retriever.similarity(caption, result)[0, 0].item() == pytest.approx(sum(cosines) / 2, abs=1e-6)


@pytest.mark.parametrize("name", ["word_tower", "vse"])
def test_a_photo_is_seen_through_the_encoder(retrievers, encoder, name):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8)
    result = retrievers[name].embed_pixels(pixels)
    torch.testing.assert_close(result.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(result, retrievers[name].embed_images(encoder(pixels).pooled))
