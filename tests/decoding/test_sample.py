"""Samples and greedy captions; gradients of weights made in one product over all words."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from decoding.toy_captioner import (
    BOS,
    EOS,
    IDS,
    PAD,
    UNK,
    TableCaptioner,
    ToyCaptioner,
    every_caption,
    log_probability,
    photos,
    table_of,
    toy,
    unpadded,
)
from support.decoders import greedy, sample
from tellapart.captioners import CAPTIONERS
from tellapart.captioners.transformer import Transformer, TransformerConfig
from tellapart.data.streams import region_inputs
from tellapart.decoding import caption_mask, score
from tellapart.decoding.sample import DeferredWeightGradients
from tellapart.protocols.captioners import FEATURES, every_stream, tiny

CAT, DOG = 4, 5
ONE_WORD = {CAT: 0.5, DOG: 0.3, UNK: 0.15, EOS: 0.05}  # what follows BOS; then EOS is certain


def one_word_photo():
    return TableCaptioner(), (table_of({BOS: ONE_WORD}, vocab_size=6)[None],)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- what is drawn ---

SQUARED = {word: p**2 for word, p in ONE_WORD.items()}
DRAWN = [  # weights of the words that are left
    (ONE_WORD, {}),
    (SQUARED, {"temperature": 0.5}),
    ({CAT: 0.5, DOG: 0.3}, {"top_k": 2}),
    (ONE_WORD, {"top_k": 100}),  # more than the vocabulary has
    ({CAT: 0.5}, {"top_p": 0.01}),
    ({CAT: 0.5}, {"top_p": 0.49}),
    ({CAT: 0.5, DOG: 0.3}, {"top_p": 0.51}),
    ({CAT: 0.5, DOG: 0.3, UNK: 0.15}, {"top_p": 0.81}),
    (ONE_WORD, {"top_p": 0.96}),
    ({CAT: 0.5, DOG: 0.3, EOS: 0.05}, {"banned": (UNK,)}),
]


@pytest.mark.parametrize(("weights", "options"), DRAWN, ids=str)
def test_words_come_as_often_as_their_probability_and_report_it(weights, options):
    (captioner, memory), count = one_word_photo(), 20_000
    rollout = sample(captioner, memory, samples=count, **IDS, max_words=2, generator=generator(), **options)
    words, logp = rollout.tokens[:, 0], rollout.logp[:, 0]
    drawn = words.unique().tolist()
    expected = {word: p / sum(weights.values()) for word, p in weights.items()}
    assert {word: logp[words == word][0].exp().item() for word in drawn} == pytest.approx(expected)
    frequency = {word: (words == word).double().mean().item() for word in drawn}
    assert frequency == pytest.approx(expected, abs=4 * math.sqrt(0.25 / count))


def test_whole_captions_come_as_often_as_their_probability():
    captioner, count = ToyCaptioner(vocab_size=5, sharpness=0.4), 20_000
    memory = captioner.encode(region_inputs(*photos(2)))
    captions = every_caption([PAD, BOS, UNK, 4], max_words=3)
    probability = log_probability(captioner, memory, captions).exp()  # (2, C)
    torch.testing.assert_close(probability.sum(1), torch.ones(2, dtype=torch.double))
    rollout = sample(captioner, memory, samples=count, **IDS, max_words=3, generator=generator())
    drawn = unpadded(rollout.tokens, rollout.mask)
    for photo in range(2):
        mine = drawn[photo * count : (photo + 1) * count]
        expected = probability[photo] * count
        observed = torch.tensor([mine.count(caption) for caption in captions])
        enough = expected >= 5
        chi_square = ((observed - expected) ** 2 / expected)[enough].sum().item()
        freedom = int(enough.sum())
        assert freedom > 20
        assert chi_square < freedom + 5 * math.sqrt(2 * freedom)
        assert observed.sum() == count


def test_reported_log_p_is_that_of_the_policy_drawn_from():
    captioner, options = ToyCaptioner(vocab_size=8), {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    memory = captioner.encode(region_inputs(*photos(3)))
    rollout = sample(
        captioner, memory, samples=4, **IDS, max_words=6, banned=(PAD, UNK), generator=generator(), **options
    )
    before = torch.cat([torch.full_like(rollout.tokens[:, :1], BOS), rollout.tokens[:, :-1]], 1)
    logits = captioner.forward(before, memory) / 0.7
    for caption, words in enumerate(unpadded(rollout.tokens, rollout.mask)):
        for place, word in enumerate(words):
            p = {w: math.exp(x) for w, x in enumerate(logits[caption, place].tolist()) if w not in (PAD, UNK)}
            ranked = sorted(p, key=lambda w: -p[w])[:5]
            total, reached, nucleus = sum(p[w] for w in ranked), 0.0, []
            for w in ranked:
                if reached < 0.9:
                    nucleus.append(w)
                reached += p[w] / total
            expected = math.log(p[word] / sum(p[w] for w in nucleus))
            assert rollout.logp[caption, place].item() == pytest.approx(expected)


def test_impossible_words_are_never_drawn_even_at_the_edges_of_the_draw(monkeypatch):
    """The first and the last word of the vocabulary have probability 0, and the random number is at its extremes."""
    table = table_of({BOS: {CAT: 0.6, DOG: 0.4}}, vocab_size=8).float()
    for extreme in (0.0, 1 - 2**-24):
        monkeypatch.setattr(
            torch, "rand", lambda *shape, value=extreme, dtype, **_: torch.full(shape, value, dtype=dtype)
        )
        rollout = sample(TableCaptioner(), (table[None],), samples=3, **IDS, max_words=3)
        assert set(rollout.tokens[:, 0].tolist()) <= {CAT, DOG}
        assert rollout.logp.isfinite().all()


# --- gradients ---


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}, {"banned": (PAD, BOS)}])
def test_truncation_and_bans_leave_finite_gradients(options):
    captioner = ToyCaptioner()
    rollout = sample(
        captioner, captioner.encode(region_inputs(*photos(3))), samples=4, **IDS, generator=generator(), **options
    )
    rollout.logp.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in captioner.parameters())


def test_reinforce_on_samples_climbs_the_expected_reward():
    """The mean of reward * grad log p over many samples is the exact gradient of the expected reward, bans included."""
    captioner, count = ToyCaptioner(vocab_size=5, sharpness=0.4), 50_000
    features = photos(1)
    captions = every_caption([UNK, 4], max_words=2)

    def reward_of(caption):
        return float(sum(word == 4 for word in caption))

    memory = captioner.encode(region_inputs(*features))
    logits, state = captioner.step(torch.tensor([BOS]), captioner.start(memory), memory)
    expected = 0.0
    for caption in captions:
        logp, here, inner = 0.0, logits, state
        for word in caption:
            logp = logp + here.index_fill(1, torch.tensor([PAD, BOS]), -torch.inf).log_softmax(1)[0, word]
            here, inner = captioner.step(torch.tensor([word]), inner, memory)
        expected = expected + logp.exp() * reward_of(caption)
    (exact,) = torch.autograd.grad(expected, [captioner.word])

    rollout = sample(
        captioner,
        captioner.encode(region_inputs(*features)),
        samples=count,
        **IDS,
        max_words=2,
        banned=(PAD, BOS),
        generator=generator(),
    )
    reward = ((rollout.tokens == 4) & rollout.mask).sum(1).double()
    (estimate,) = torch.autograd.grad((rollout.logp.sum(1) * reward).mean(), [captioner.word])
    torch.testing.assert_close(estimate, exact, atol=0.02, rtol=0)
    assert exact.abs().max() > 0.1


def test_gradients_of_greedy_flow_and_none_are_kept_when_disabled():
    captioner = ToyCaptioner()
    greedy(captioner, captioner.encode(region_inputs(*photos(2))), **IDS, banned=(PAD,)).logp.sum().backward()
    assert captioner.word.grad.abs().sum() > 0
    with torch.no_grad():
        assert not greedy(captioner, captioner.encode(region_inputs(*photos(2))), **IDS).logp.requires_grad


# --- shapes, ends, bans ---


def test_greedy_takes_the_likeliest_word_with_the_captioners_own_log_p():
    captioner, memory = one_word_photo()
    rollout = greedy(captioner, memory, **IDS)
    assert unpadded(rollout.tokens, rollout.mask) == [(CAT, EOS)]
    rollout = greedy(captioner, memory, **IDS, banned=(CAT, PAD))
    assert unpadded(rollout.tokens, rollout.mask) == [(DOG, EOS)]
    torch.testing.assert_close(rollout.logp, torch.tensor([[math.log(0.3), 0.0]], dtype=torch.double))


def test_sampling_from_one_word_is_greedy():
    captioner, memory, _ = toy(6, vocab_size=9)
    one = sample(captioner, memory, samples=1, **IDS, top_k=1, max_words=8)
    other = greedy(captioner, memory, **IDS, max_words=8)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.mask, other.mask)
    assert (one.logp == 0).all()  # the only word there is


def test_after_eos_comes_padding_without_log_p():
    captioner, memory, _ = toy(4)
    rollout = sample(captioner, memory, samples=50, **IDS, max_words=9, banned=(PAD,), generator=generator())
    assert torch.equal(rollout.mask, caption_mask(rollout.tokens, EOS))
    assert (~rollout.mask).any()
    assert (rollout.tokens[~rollout.mask] == PAD).all()
    assert (rollout.logp[~rollout.mask] == 0).all()
    assert (rollout.logp[rollout.mask] < 0).all()
    assert (rollout.tokens[rollout.mask] != PAD).all()


def test_a_caption_without_eos_is_cut_at_max_words():
    forever = table_of({BOS: {CAT: 1.0}, CAT: {DOG: 1.0}, DOG: {CAT: 1.0}}, vocab_size=6)
    for rollout in (
        sample(TableCaptioner(), (forever[None],), samples=2, **IDS, max_words=4),
        greedy(TableCaptioner(), (forever[None],), **IDS, max_words=4),
    ):
        assert rollout.mask.all()
        assert rollout.tokens.tolist() == [[CAT, DOG, CAT, DOG]] * len(rollout.tokens)


def test_captions_that_begin_alike_are_one_row_until_they_part():
    short = table_of({BOS: {CAT: 1.0}}, vocab_size=6)
    long = table_of({BOS: {CAT: 1.0}, CAT: {DOG: 1.0}, DOG: {UNK: 0.5, CAT: 0.5}, UNK: {EOS: 1.0}}, vocab_size=6)
    captioner = TableCaptioner()
    uniform = torch.full((10, 20), 0.25)
    uniform[8, 2] = uniform[9, 2] = 0.75  # of the second photo's five captions, two say "dog cat"
    rollout = sample(captioner, (torch.stack([short, long]),), samples=5, **IDS, max_words=4, uniform=uniform)
    (first, last) = sorted([UNK, CAT])
    second = [[CAT, DOG, first]] * 3 + [[CAT, DOG, last]] * 2
    assert rollout.tokens[5:, :3].tolist() == second
    # (rows of the memory, rows of the step): one a photo; the first photo's have ended; two ways to go on
    assert captioner.steps == [(2, 2), (2, 2), (1, 1), (2, 2)]


def drawn(captioner, memory, **more):
    """What is drawn, and the gradients of its log p by the captioner's parameters."""
    captioner.zero_grad()
    rollout = sample(captioner, memory(), samples=5, **IDS, max_words=9, generator=generator(3), **more)
    (rollout.logp * torch.linspace(-1, 1, rollout.logp.numel()).view_as(rollout.logp)).sum().backward()
    return rollout, [parameter.grad.clone() for parameter in captioner.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", CAPTIONERS)
@pytest.mark.parametrize("more", [{}, {"no_repeat": 2, "temperature": 0.6}], ids=["plain", "constrained"])
def test_sharing_rows_changes_neither_captions_nor_gradients(name, more):
    """The same captioner in training mode, but without dropout, shares nothing."""
    torch.manual_seed(0)
    captioner, photos = tiny(name, 9), every_stream(torch.randn(4, 5, FEATURES))

    def memory():
        return captioner.encode(photos)

    shared, gradients = drawn(captioner.eval(), memory, **more)
    alone, expected = drawn(captioner.train(), memory, **more)
    assert shared.tokens.equal(alone.tokens)
    assert len(set(map(tuple, shared.tokens[:, :2].tolist()))) < len(shared.tokens)  # some do begin alike
    torch.testing.assert_close(shared.logp, alone.logp, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-5)


def test_with_dropout_every_caption_has_a_row_of_its_own():
    torch.manual_seed(0)
    captioner = Transformer(TransformerConfig(9, feature_size=8, width=16, heads=2, feed_forward=16, dropout=0.5))
    memory = captioner.train().encode(region_inputs(torch.randn(1, 3, 8), torch.ones(1, 3, dtype=torch.bool)))
    nearly_sure = torch.full((40, 9), 1e-6)  # all draw the first word that may be
    rollout = sample(captioner, memory, samples=40, **IDS, max_words=4, uniform=nearly_sure)
    assert len(set(rollout.tokens[:, 0].tolist())) == 1
    assert len(set(rollout.logp[:, 0].tolist())) == 1  # the first step is shared
    assert len(set(rollout.logp[:, 1].tolist())) > 10


def test_captions_that_have_ended_leave_the_batch_and_nothing_else_changes():
    captioner, memory, _ = toy(3, sharpness=0.3)
    captioner.steps.clear()
    rollout = sample(captioner, memory, samples=20, **IDS, max_words=12, generator=generator(1))
    rows = [captions for _, captions in captioner.steps]
    going_on = rollout.mask.sum(0).tolist()  # at each word
    assert going_on[-1] < 30
    assert all(7 * computed <= 8 * needed for computed, needed in zip(rows[1:], going_on[1:], strict=True))
    own = score(captioner, memory, rollout.tokens, rollout.mask, bos=BOS)
    torch.testing.assert_close(rollout.logp, own)
    weight = torch.randn(own.shape, generator=generator(), dtype=torch.double)
    gradients = [
        torch.autograd.grad((logp * weight).sum(), list(captioner.parameters()), retain_graph=True)
        for logp in (rollout.logp, own)
    ]
    torch.testing.assert_close(*gradients)


class Cell(nn.Module):
    """Layers that are used at every word, one of them for two ends."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.first, self.again = nn.Embedding(7, 5), nn.Linear(4, 5, bias=False), nn.Linear(5, 5)
        self.word = nn.Linear(5, 7)
        self.word.weight = self.embed.weight

    def forward(self, photo, tokens):
        state = self.first(photo)
        logits = []
        for token in tokens.unbind(1):
            state = torch.tanh(self.again(state + self.embed(token)))
            logits.append(self.word(state))
        return torch.stack(logits, 1)


@pytest.fixture
def cell():
    return Cell().double()


@pytest.fixture
def photo_and_tokens():
    torch.manual_seed(1)
    return torch.randn(3, 4, dtype=torch.double, requires_grad=True), torch.randint(7, (3, 6))


def gradients(cell, photo, tokens):
    logits = cell(photo, tokens)
    (logits.log_softmax(2) * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    result = {name: parameter.grad.clone() for name, parameter in cell.named_parameters()}
    result["photo"] = photo.grad.clone()
    cell.zero_grad()
    photo.grad = None
    return result


def test_gradients_are_those_of_autograd(cell, photo_and_tokens):
    expected = gradients(cell, *photo_and_tokens)
    with DeferredWeightGradients():
        result = gradients(cell, *photo_and_tokens)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_layers_are_entered_with_any_number_of_dimensions(cell, photo_and_tokens):
    """A layer that all words pass together, as the words' own of teacher forcing, is no exception."""

    def of_all_words():
        return torch.autograd.grad(cell.again(cell.embed(photo_and_tokens[1])).square().sum(), cell.again.parameters())

    expected = of_all_words()
    with DeferredWeightGradients():
        torch.testing.assert_close(of_all_words(), expected)


def test_backward_may_come_after_it_was_left_and_twice(cell, photo_and_tokens):
    expected = gradients(cell, *photo_and_tokens)
    with DeferredWeightGradients():
        logits = cell(*photo_and_tokens)
    loss = (logits.log_softmax(2) * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum()
    for _ in range(2):
        cell.zero_grad()
        loss.backward(retain_graph=True)
        torch.testing.assert_close({k: p.grad for k, p in cell.named_parameters()}, dict(list(expected.items())[:-1]))


def test_frozen_weights_get_no_gradient_and_others_do(cell, photo_and_tokens):
    cell.again.requires_grad_(False)
    with DeferredWeightGradients():
        cell(*photo_and_tokens).sum().backward()
    assert cell.again.weight.grad is None
    assert cell.first.weight.grad is not None
    assert photo_and_tokens[0].grad is not None


def test_it_leaves_no_graph_where_gradients_are_off(cell, photo_and_tokens):
    with torch.no_grad(), DeferredWeightGradients():
        assert not cell(*photo_and_tokens).requires_grad


def test_under_autocast_layers_compute_in_its_type(photo_and_tokens):
    cell = Cell()
    with torch.autocast("cpu", torch.bfloat16), DeferredWeightGradients():
        assert cell(photo_and_tokens[0].float(), photo_and_tokens[1]).dtype == torch.bfloat16
