"""Cross-entropy, against a captioner whose probabilities are known."""

import math
from contextlib import contextmanager

import pytest
import torch

from tellapart.captioners.transformer import Transformer, TransformerConfig
from tellapart.data.batches import Batch
from tellapart.data.streams import region_inputs
from tellapart.objectives.cross_entropy import cross_entropy_step

PAD, BOS, EOS, A, B = range(5)
# p(next word | word before): rows are the word before, columns the next
BIGRAMS = torch.tensor(
    [
        [0.2, 0.2, 0.2, 0.2, 0.2],  # after padding: never asked
        [0.0, 0.0, 0.1, 0.5, 0.4],  # after BOS
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.0, 0.0, 0.3, 0.2, 0.5],  # after A
        [0.0, 0.0, 0.6, 0.3, 0.1],  # after B
    ]
)


class Bigrams:
    """Looks at no photo: the next word depends on the last one only."""

    def __init__(self, table=BIGRAMS):
        self.logits, self.given = table.log().clamp(min=-1e4), []

    def encode(self, inputs):
        return (inputs["regions"].mask,)

    def start(self, memory):
        return (memory[0][:, :1],)

    def step(self, token, state, memory):
        self.given.append(token)
        return self.logits[token], state

    def forward(self, tokens, memory, token_mask=None):
        return self.logits[tokens] if token_mask is None else self.logits[tokens[token_mask]]


def batch(*captions, photos=1):
    length = max(map(len, captions))
    tokens = torch.tensor([[*caption, *[PAD] * (length - len(caption))] for caption in captions])
    return Batch(range(photos), region_inputs(torch.zeros(photos, 1, 1)), tokens, tokens != PAD)


def step(given, captioner=None, **options):
    return cross_entropy_step(captioner or Bigrams(), given, bos=BOS, **options)


def test_the_loss_is_the_mean_of_minus_log_p_over_all_words_and_the_end():
    loss, weight, line, _ = step(batch([A, B, EOS], [B, EOS]))
    p = [0.5, 0.5, 0.6, 0.4, 0.6]  # A B EOS, B EOS
    assert loss.item() == pytest.approx(-sum(map(math.log, p)) / 5)
    assert line["loss"] == pytest.approx(loss.item())
    assert line["words"] == weight == 5
    assert line["accuracy"] == pytest.approx(4 / 5)  # only B at the beginning is not the likeliest


def small_transformer(width=8):
    torch.manual_seed(0)
    sizes = {"width": width, "heads": 2, "feed_forward": 2 * width}
    return Transformer(TransformerConfig(vocab_size=9, feature_size=4, dropout=0.0, **sizes))


def test_padding_has_no_influence_on_a_transformer_and_its_gradient():
    """And own words at a chance that never comes are teacher forcing."""
    captioner = small_transformer()
    tokens = torch.tensor([[5, 6, EOS, PAD], [7, EOS, PAD, PAD], [8, 4, 5, EOS], [EOS, PAD, PAD, PAD]])
    given = Batch(range(2), region_inputs(torch.randn(2, 3, 4)), tokens, tokens != PAD)
    results = []
    for width in (0, 3):
        captioner.zero_grad()
        longer = torch.cat([tokens, torch.full((4, width), PAD)], 1)
        result = step(Batch(given.photos, given.inputs, longer, longer != PAD), captioner)
        result.loss.backward()
        assert result.log["words"] == 10
        results.append([result.loss.detach(), *(p.grad.clone() for p in captioner.parameters())])
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        free = step(given, captioner, own_words=1e-12).loss
    torch.testing.assert_close(free, results[0][0], atol=1e-5, rtol=0)


def test_label_smoothing_spreads_its_share_over_all_words():
    """(1 - e) * -log p(word) + e * mean over the vocabulary of -log p (Szegedy et al., 2016)."""
    p = torch.tensor([[0.1, 0.2, 0.3, 0.2, 0.2]]).repeat(5, 1)
    loss = step(batch([EOS]), Bigrams(p), label_smoothing=0.2).loss
    spread = -sum(math.log(x) for x in (0.1, 0.2, 0.3, 0.2, 0.2)) / 5
    assert loss.item() == pytest.approx(0.8 * -math.log(0.3) + 0.2 * spread)


class Seeing(Bigrams):
    def encode(self, inputs):
        self.seen = inputs["regions"].mask
        return super().encode(inputs)


def test_regions_are_hidden_by_chance_and_never_all_of_them():
    torch.manual_seed(0)
    there = torch.ones(400, 50, dtype=torch.bool)
    there[:, 40:] = False  # regions that these photos do not have
    captioner, given = Seeing(), batch(*[[EOS]] * 400, photos=400)
    given.inputs = region_inputs(torch.zeros(400, 50, 1), there)
    step(given, captioner, hide_regions=0.25)
    assert not captioner.seen[:, 40:].any()
    share = captioner.seen[:, :40].float().mean().item()
    assert share == pytest.approx(0.75, abs=4 * (0.25 * 0.75 / 16_000) ** 0.5)
    step(given, captioner, hide_regions=1.0)
    assert (captioner.seen.sum(1) == 1).all()
    assert len(captioner.seen.float().argmax(1).unique()) > 30  # any of them
    step(given, captioner)
    assert captioner.seen is there


def test_own_words_at_a_chance_that_never_comes_are_the_reference():
    captioner = Bigrams()
    step(batch([A, B, EOS]), captioner, own_words=1e-12)
    assert torch.stack(captioner.given, 1).tolist() == [[BOS, A, B]]
    given = batch([A, B, EOS], [B, EOS], [A, A, EOS], [EOS], photos=2)
    assert step(given, own_words=1e-12).loss.item() == pytest.approx(step(given).loss.item())


def test_with_only_own_words_every_word_given_was_drawn_from_the_answer_before_and_the_target_is_the_reference():
    certain = torch.zeros(5, 5)
    certain[BOS, B] = certain[B, A] = certain[A, A] = 1.0  # says B A A A ... whatever the reference says
    captioner = Bigrams(certain)
    step(batch([A, B, B, EOS], [B, B, B, EOS]), captioner, own_words=1.0)
    assert torch.stack(captioner.given, 1).tolist() == [[BOS, B, A, A]] * 2  # the first word is always BOS
    likely = torch.full((5, 5), 0.1)
    likely[:, B] = 0.6
    assert step(batch([A, EOS]), Bigrams(likely), own_words=1.0).loss.item() == pytest.approx(-math.log(0.1))


def test_about_as_many_words_are_the_captioners_own_as_the_chance_says():
    torch.manual_seed(0)
    always_b = torch.zeros(5, 5)
    always_b[:, B] = 1.0
    captioner = Bigrams(always_b)
    step(batch(*[[A] * 20 + [EOS]] * 200), captioner, own_words=0.25)
    given = torch.stack(captioner.given, 1)[:, 1:]  # 4,000 draws: the standard deviation is 0.007
    assert (given == B).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_a_captioner_learns_to_say_of_two_photos_what_was_said_of_them():
    """Two photos and a caption each: whoever looks at the photo can be sure of every word."""
    captioner = small_transformer(width=16)
    tokens = torch.tensor([[5, 6, 7, EOS], [8, 6, EOS, PAD]])
    given = Batch(range(2), region_inputs(torch.eye(2, 4)[:, None]), tokens, tokens != PAD)
    optimizer = torch.optim.Adam(captioner.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        loss, _, line, _ = step(given, captioner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(line["loss"])
    assert losses[0] > 1.0  # nine words to choose from: ln 9 = 2.2 for one that knows nothing
    assert losses[-1] < 0.05
    assert line["accuracy"] == 1.0


def test_a_teacher_adds_the_mean_squared_difference_of_logits_and_learns_nothing():
    """By plain loops: the teacher is the same captioner with other weights, which it has only for its own pass."""
    own, other = (torch.linspace(-1, 2, 25).reshape(5, 5) * scale for scale in (1.0, 0.4))
    captioner = Bigrams()
    captioner.logits = own.clone().requires_grad_(True)
    taught, given = other.clone().requires_grad_(True), batch([A, B, EOS], [B, EOS])

    @contextmanager
    def as_teacher():
        before, captioner.logits = captioner.logits, taught
        yield
        captioner.logits = before

    plain, result = step(given, captioner), step(given, captioner, distillation=0.3, as_teacher=as_teacher)
    squares = [
        (own[before, word] - other[before, word]).item() ** 2 for before in (BOS, A, B, BOS, B) for word in range(5)
    ]
    apart = sum(squares) / len(squares)
    assert result.log["distillation"] == pytest.approx(apart, rel=1e-5)
    assert result.loss.item() == pytest.approx(plain.loss.item() + 0.3 * apart, rel=1e-5)
    result.loss.backward()
    assert taught.grad is None
    assert captioner.logits.grad is not None
