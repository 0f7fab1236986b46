"""The Transformer's positions, and prefixes that captions of a photo share, against a set of tuples."""

import pytest
import torch

from tellapart.captioners.layers import SharedPrefixes, shared_prefixes
from tellapart.captioners.transformer import Transformer, TransformerConfig, positions
from tellapart.data.streams import region_inputs
from tellapart.decoding import caption_mask, score
from tellapart.protocols.captioners import FEATURES, every_stream, tiny

B, K, R, T, V = 3, 2, 5, 6, 11


@pytest.fixture
def captioner():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=V, feature_size=8, width=16, heads=4, decoder_layers=2, feed_forward=32)
    return Transformer(config).eval()


@pytest.fixture
def photos():
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(B, R, dtype=torch.bool)
    mask[1, 3:] = False
    return torch.randn(B, R, 8, generator=generator), mask


@pytest.fixture
def tokens():
    return torch.randint(V, (B * K, T), generator=torch.Generator().manual_seed(2))


def test_positions_are_those_of_the_paper():
    # "Attention is all you need", section 3.5: sin and cos of pos / 10000^(2i/d); the order of the columns is free
    table = positions(5, 4)[3]
    expected = torch.tensor([3.0, 3 / 10000 ** (2 / 4)])
    torch.testing.assert_close(table, torch.cat([expected.sin(), expected.cos()]))


def test_a_caption_longer_than_any_before_has_places_for_its_words(captioner, photos):
    memory = captioner.encode(region_inputs(*photos))
    long = torch.randint(V, (B, 70), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(captioner.forward(long, memory)[:, :6], captioner.forward(long[:, :6], memory))


def test_training_goes_on_after_a_validation_with_longer_captions(captioner, photos):
    with torch.inference_mode():
        captioner.forward(torch.zeros(B, 70, dtype=torch.long), captioner.encode(region_inputs(*photos)))
    assert not captioner.places.table.is_inference()
    captioner.train().forward(
        torch.zeros(B, 40, dtype=torch.long), captioner.encode(region_inputs(*photos))
    ).sum().backward()
    assert captioner.embed.weight.grad.isfinite().all()


# Prefixes

BOS, EOS = 1, 2


def drawn(seed, photos=3, each=4, length=6, words=6):
    """Captions of few different words, so that many begin alike, some of them whole."""
    tokens = torch.randint(2, words, (photos * each, length), generator=torch.Generator().manual_seed(seed))
    return tokens, caption_mask(tokens, EOS)


@pytest.mark.parametrize("seed", range(5))
def test_as_many_as_there_are_different_tuples(seed):
    tokens, token_mask = drawn(seed)
    found = shared_prefixes(tokens, token_mask, 3)
    expected = {}
    for caption, place in token_mask.nonzero().tolist():
        beginning = (caption // 4, *tokens[caption, : place + 1].tolist())
        expected.setdefault(beginning, set()).add(int(found.which[caption, place]))
        where = int(found.place[found.which[caption, place]])
        assert (where // 6 // 4, *tokens[where // 6, : where % 6 + 1].tolist()) == beginning
    assert all(len(ids) == 1 for ids in expected.values())
    assert len({*map(tuple, map(sorted, expected.values()))}) == len(expected) == len(found.place)


@pytest.mark.parametrize("layers", [1, 2])
def test_scores_and_gradients_are_those_of_captions_by_themselves(layers):
    torch.manual_seed(layers)
    config = TransformerConfig(8, feature_size=8, width=16, heads=2, decoder_layers=layers, feed_forward=32, dropout=0)
    captioner, (tokens, mask) = Transformer(config), drawn(9, words=5)
    features = torch.randn(3, 5, 8)
    assert len(shared_prefixes(tokens, mask, 3).place) < 0.9 * mask.sum()

    def learned(shared):
        captioner.train(not shared)  # in training nothing is shared; there is no dropout that could differ
        captioner.zero_grad()
        logp = score(
            captioner,
            captioner.encode(region_inputs(features)),
            tokens,
            mask,
            bos=BOS,
        )
        (logp * torch.linspace(-1, 1, logp.numel()).view_as(logp)).sum().backward()
        return logp.detach(), [parameter.grad.clone() for parameter in captioner.parameters()]

    (logp, gradients), (expected, wanted) = learned(True), learned(False)
    torch.testing.assert_close(logp, expected)
    for own, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["glied", "meshed_memory", "transformer"])
def test_scoring_computes_what_captions_share_only_once(name, monkeypatch):
    captioner, (tokens, mask) = tiny(name), drawn(9, words=5)
    memory = captioner.encode(every_stream(torch.randn(3, 5, FEATURES)))
    given = []
    forward = type(captioner).forward
    monkeypatch.setattr(type(captioner), "forward", lambda *a: given.append(a[-1]) or forward(*a))
    score(captioner, memory, tokens, mask, bos=BOS)
    assert [type(token_mask) for token_mask in given] == [SharedPrefixes]


def test_captions_without_a_word_have_no_beginnings():
    tokens = torch.zeros(4, 0, dtype=torch.long)
    assert len(shared_prefixes(tokens, tokens.bool(), 2).place) == 0
