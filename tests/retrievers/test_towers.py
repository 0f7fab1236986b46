"""The networks against references built of torch's own layers, one caption at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tellapart.retrievers import RETRIEVERS, towers
from tellapart.retrievers.towers import VSE, Dual, TextTower, WordTower

EOS = 2
CAPTIONS = [[5, 4, 7, 6, 4], [9], [8, 8], [3, 10, 11], [4, 5, 6, 7, 8, 9, 10, 11]]
SMALL = {"vocab_size": 12, "size": 7, "word_size": 5}


def padded(captions, length=None):
    length = length or max(map(len, captions))
    return torch.tensor([caption + [0] * (length - len(caption)) for caption in captions])


@pytest.fixture
def word_tower():
    torch.manual_seed(0)
    return WordTower(towers.WordTowerConfig(**SMALL, feature_size=6, channels=9)).eval()


@pytest.fixture
def text_tower():
    torch.manual_seed(0)
    return TextTower(towers.TextTowerConfig(**SMALL, channels=9)).eval()


@pytest.fixture(params=[False, True], ids=["as the program", "as the paper"])
def vse(request):
    torch.manual_seed(0)
    return VSE(towers.VSEConfig(**SMALL, feature_size=6, linear_captions=request.param)).eval()


def by_convolution(tower, caption):
    """The word tower's vector of one caption, with torch's own convolution."""
    phrases = tower.captions
    to_next, own, to_last = phrases.phrases.weight.chunk(3)  # each (C, W)
    convolution = nn.Conv1d(own.shape[1], own.shape[0], kernel_size=3, padding=1)
    with torch.no_grad():
        convolution.weight.copy_(torch.stack([to_next, own, to_last], 2))
        convolution.bias.copy_(phrases.bias)
        words = phrases.words(torch.tensor(caption))  # (T, W)
        strongest = convolution(words.T[None]).relu()[0].amax(1)
        total = words.sum(0) / len(caption) ** 0.5
        return F.normalize(phrases.out(torch.cat([strongest, total])), dim=0)


def by_gru(vse, caption):
    with torch.no_grad():
        _, last = vse.gru(vse.words(torch.tensor([caption])))
        return F.normalize(vse.linear(last[0, 0]), dim=0)


def trained(tower):
    """Biases begin at zero, where a forgotten one would not be missed."""
    with torch.no_grad():
        tower.captions.bias.normal_()
    return tower


@pytest.mark.parametrize("length", [8, 13])
def test_a_caption_is_its_strongest_phrases_and_the_sum_of_its_words(word_tower, text_tower, length):
    """Whatever its neighbours are, and however much padding there is."""
    for tower in (trained(word_tower), trained(text_tower)):
        expected = torch.stack([by_convolution(tower, caption) for caption in CAPTIONS])
        torch.testing.assert_close(tower.embed_captions(padded(CAPTIONS, length)), expected)
        torch.testing.assert_close(tower.embed_captions(padded(CAPTIONS[:1])), expected[:1])


@pytest.mark.parametrize("captions", [[[]], [[], []], [[], [4, 5]], [[4, 5], []]])
def test_captions_without_words_are_finite_and_harm_nobody(word_tower, captions):
    vectors = trained(word_tower).embed_captions(padded(captions, 3))
    assert vectors.isfinite().all()
    for row, caption in zip(vectors, captions, strict=True):
        if caption:
            torch.testing.assert_close(row, by_convolution(word_tower, caption))
    word_tower.train().embed_captions(padded(captions, 3)).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in word_tower.captions.parameters())


def test_words_are_forgotten_only_while_it_learns():
    torch.manual_seed(0)
    tower = WordTower(towers.WordTowerConfig(**SMALL, feature_size=6, channels=9, dropout=0.0, word_dropout=1.0))
    with torch.no_grad():
        forgotten, unknown = tower.embed_captions(torch.tensor([[5, 4, 7], [3, 3, 3]]))
        torch.testing.assert_close(forgotten, unknown)
        known, unknown = tower.eval().embed_captions(torch.tensor([[5, 4, 7], [3, 3, 3]]))
    assert (known - unknown).abs().max() > 1e-3


@pytest.mark.parametrize("length", [9, 14])
def test_a_caption_is_the_state_at_its_end_whatever_the_padding(vse, length):
    ids = [[*caption, EOS] for caption in [*CAPTIONS, []]]
    expected = torch.stack([by_gru(vse, caption) for caption in ids])
    torch.testing.assert_close(vse.embed_captions(padded(ids, length)), expected)
    torch.testing.assert_close(vse.embed_captions(padded(ids[:1])), expected[:1])


def test_vse_normalises_images_before_and_after_the_map(vse):
    pooled = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(vse.embed_images(pooled), vse.embed_images(10 * pooled))
    with torch.no_grad():
        mapped = pooled / pooled.norm(dim=1, keepdim=True) @ vse.images.weight.T + vse.images.bias
    torch.testing.assert_close(vse.embed_images(pooled), mapped / mapped.norm(dim=1, keepdim=True))


def test_dual_without_a_hidden_layer_is_linear_on_both_sides():
    torch.manual_seed(0)
    dual = Dual(towers.DualConfig(sentence_size=4, feature_size=6, size=7, hidden=0)).eval()
    sentences, pooled = torch.randn(2, 4), torch.randn(2, 6)
    with torch.no_grad():
        captions, images = dual(pooled, sentences)
        centred = pooled - pooled.mean(1, keepdim=True)
        normed = centred / (pooled.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        linear = dual.images[2].linear
        torch.testing.assert_close(images, F.normalize(normed @ linear.weight.T + linear.bias, dim=1))
        linear = dual.captions.linear
        torch.testing.assert_close(captions, F.normalize(sentences @ linear.weight.T + linear.bias, dim=1))


@pytest.mark.parametrize("name", RETRIEVERS)
def test_every_retriever_gives_unit_vectors_and_a_positive_scale(name):
    network, config = RETRIEVERS[name].load()
    settings = {"vocab_size": 12, "feature_size": 6, "sentence_size": 4, "size": 7}
    torch.manual_seed(0)
    known = {key: value for key, value in settings.items() if key in config.__dataclass_fields__}
    made = network(config(**known)).eval()
    captions = torch.randn(6, 4) if RETRIEVERS[name].reads == "sentences" else padded([*CAPTIONS, [4]])
    sees = RETRIEVERS[name].sees == "photos"
    with torch.no_grad():
        sides = made(torch.randn(3, 6) if sees else None, captions)
    assert [tuple(vectors.shape) for vectors in sides] == [(6 if sees else 3, 7), (3, 7)]
    for vectors in sides:
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
    assert made.log_scale.exp() > 1


def test_the_text_tower_brings_the_first_and_the_second_caption_of_a_photo_together(text_tower):
    tokens = padded(CAPTIONS[:4])
    first, second = text_tower(None, tokens)
    torch.testing.assert_close(first, text_tower.embed_captions(tokens[[0, 2]]))
    torch.testing.assert_close(second, text_tower.embed_captions(tokens[[1, 3]]))
