"""The Transformer's positions, and prefixes that captions of a photo share, against a set of tuples."""

import pytest
import torch

from tellapart.captioners.layers import SharedPrefixes, shared_prefixes
from tellapart.captioners.transformer import positions
from tellapart.decoding import caption_mask, score
from tellapart.protocols.captioners import FEATURES, WORDS, B, CaptionerCase, V, every_stream, tiny


def test_positions_are_those_of_the_paper():
    # "Attention is all you need", section 3.5: sin and cos of pos / 10000^(2i/d); the order of the columns is free
    expected = torch.tensor([3.0, 3 / 10000 ** (2 / 4)])
    torch.testing.assert_close(positions(5, 4)[3], torch.cat([expected.sin(), expected.cos()]))


def test_captions_longer_than_any_before_have_places_for_their_words():
    """Also where training goes on after a validation with longer captions."""
    case, long = CaptionerCase("transformer"), torch.randint(V, (B, 70), generator=torch.Generator().manual_seed(3))
    captioner = case.captioner
    with torch.inference_mode():
        torch.testing.assert_close(case._logits(long)[:, :6], case._logits(long[:, :6]))
    assert not captioner.places.table.is_inference()
    captioner.train()
    case._logits(long[:, :40]).sum().backward()
    assert captioner.embed.weight.grad.isfinite().all()


def drawn(seed, photos=3, each=4, length=6, words=6):
    """Captions of few different words, so that many begin alike, some of them whole."""
    tokens = torch.randint(2, words, (photos * each, length), generator=torch.Generator().manual_seed(seed))
    return tokens, caption_mask(tokens, WORDS.eos)


@pytest.mark.parametrize("seed", range(5))
def test_there_are_as_many_prefixes_as_different_tuples(seed):
    tokens, token_mask = drawn(seed)
    prefixes = shared_prefixes(tokens, token_mask, 3)
    expected = {}
    for caption, place in token_mask.nonzero().tolist():
        words = (caption // 4, *tokens[caption, : place + 1].tolist())
        number = int(prefixes.which[caption, place])
        first, last = divmod(int(prefixes.place[number]), 6)
        assert (first // 4, *tokens[first, : last + 1].tolist()) == words
        expected.setdefault(words, set()).add(number)
    assert all(len(numbers) == 1 for numbers in expected.values())
    assert len({*map(tuple, expected.values())}) == len(expected) == len(prefixes.place)


def test_captions_without_a_word_have_no_prefixes():
    tokens = torch.zeros(4, 0, dtype=torch.long)
    assert len(shared_prefixes(tokens, tokens.bool(), 2).place) == 0


@pytest.mark.parametrize("name", ["glied", "meshed_memory", "transformer"])
def test_scores_and_gradients_with_shared_prefixes_are_those_of_captions_by_themselves(name, monkeypatch):
    captioner, (tokens, mask), masks = tiny(name), drawn(9, words=5), []
    inputs = every_stream(torch.randn(3, 5, FEATURES))
    assert len(shared_prefixes(tokens, mask, 3).place) < 0.9 * mask.sum()
    forward = type(captioner).forward
    monkeypatch.setattr(type(captioner), "forward", lambda *a: masks.append(type(a[-1])) or forward(*a))

    def learned(shared):
        captioner.train(not shared)  # in training nothing is shared; there is no dropout that could differ
        captioner.zero_grad()
        logp = score(captioner, captioner.encode(inputs), tokens, mask, bos=WORDS.bos)
        (logp * torch.linspace(-1, 1, logp.numel()).view_as(logp)).sum().backward()
        return logp.detach(), [parameter.grad.clone() for parameter in captioner.parameters()]

    (logp, gradients), (expected, expected_gradients) = learned(True), learned(False)
    assert masks == [SharedPrefixes, torch.Tensor]
    torch.testing.assert_close(logp, expected)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-3, atol=1e-5)
