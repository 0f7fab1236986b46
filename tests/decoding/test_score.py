"""Log-probabilities of given captions, of pairs with photos one by one, and of all pairs at once."""

import random
from importlib import import_module

import pytest
import torch

from decoding.toy_captioner import (
    BOS,
    EOS,
    IDS,
    PAD,
    TableCaptioner,
    ToyCaptioner,
    log_probability,
    padded,
    photos,
    table_of,
    toy,
)
from support.decoders import beam_search, greedy
from tellapart.captioners import select
from tellapart.captioners.transformer import TINY, Transformer, TransformerConfig
from tellapart.data.streams import region_inputs
from tellapart.decoding import caption_mask, score
from tellapart.decoding.score import log_probabilities_of_pairs


def test_the_mask_ends_with_the_first_eos():
    tokens = torch.tensor([[4, EOS, PAD], [4, 5, 4], [EOS, EOS, 4], [4, 5, EOS]])
    expected = [[True, True, False], [True, True, True], [True, False, False], [True, True, True]]
    assert caption_mask(tokens, EOS).tolist() == expected
    assert caption_mask(tokens.view(2, 2, 3), EOS).shape == (2, 2, 3)


def test_the_mask_holds_where_padding_and_eos_are_one_id():
    assert caption_mask(torch.tensor([[4, 0, 0], [0, 0, 0]]), 0).tolist() == [[True, True, False], [True, False, False]]


def test_score_is_the_log_p_of_every_word_and_zero_elsewhere():
    captioner, memory, _ = toy(2)
    captions = [(4, 5, EOS), (EOS,), (5, 5, 5)]
    tokens, mask = (part.repeat(2, 1) for part in padded(captions, 3))
    logp = score(captioner, memory, tokens, mask, bos=BOS)
    assert logp.shape == tokens.shape
    assert (logp[~mask] == 0).all()
    torch.testing.assert_close(logp.sum(1).view(2, 3), log_probability(captioner, memory, captions))


def test_what_stands_in_the_padding_changes_nothing():
    captioner, memory, _ = toy(2)
    tokens, mask = padded([(4, EOS), (4, 5, EOS)], 4)
    other = tokens.where(mask, 5)
    torch.testing.assert_close(
        score(captioner, memory, tokens, mask, bos=BOS), score(captioner, memory, other, mask, bos=BOS)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.double])
@pytest.mark.parametrize("banned", [(), (PAD, BOS)])
def test_greedy_and_beam_report_the_log_p_that_score_finds(dtype, banned):
    captioner = ToyCaptioner(vocab_size=8).to(dtype)
    features, regions = photos(5)
    memory = captioner.encode(region_inputs(features.to(dtype), regions))
    rollout = greedy(captioner, memory, **IDS, max_words=7, banned=banned)
    again = score(captioner, memory, rollout.tokens, rollout.mask, bos=BOS)
    torch.testing.assert_close(rollout.logp, again, atol=1e-5, rtol=0)

    best = beam_search(captioner, memory, **IDS, beam=4, n_best=3, max_words=7, banned=banned, length_penalty=0.6)
    again = score(captioner, memory, best.tokens.flatten(0, 1), best.mask.flatten(0, 1), bos=BOS)
    torch.testing.assert_close(best.logp.flatten(), again.sum(1), atol=1e-5, rtol=0)


def test_half_precision_logits_are_summed_in_single_precision():
    class Half(ToyCaptioner):
        def step(self, token, state, memory):
            logits, state = super().step(token, state, memory)
            return logits.bfloat16(), state

    captioner = Half()
    memory = captioner.encode(region_inputs(*photos(2)))
    assert greedy(captioner, memory, **IDS).logp.dtype == torch.float32
    assert beam_search(captioner, memory, **IDS).logp.dtype == torch.float32


EDGES = {"bos": BOS, "eos": EOS}


def pair_by_pair(captioner, features, mask, captions, *, with_eos):
    """The naive loop: one call of `score` for each caption and photo."""
    memory = captioner.encode(region_inputs(features, mask))
    result = torch.zeros(len(captions), len(features), dtype=features.dtype)
    for i, caption in enumerate(captions):
        words = [*caption, EOS][: [*caption, EOS].index(EOS)] + [EOS] * with_eos
        for j in range(len(features)):
            if words:
                tokens = torch.tensor([words])
                photo = select(memory, torch.tensor([j]))
                result[i, j] = score(captioner, photo, tokens, torch.ones_like(tokens, dtype=torch.bool), bos=BOS).sum()
    return result.detach()


def transformer(dtype=torch.double):
    torch.manual_seed(0)
    return Transformer(TransformerConfig(vocab_size=9, feature_size=5, **TINY)).to(dtype).eval()


def some_captions(count, words=range(3, 6), longest=7, seed=0):
    """Of few words, so that they begin alike, and some are the beginning of others or occur again."""
    draw = random.Random(seed)
    return [draw.choices(words, k=draw.randint(0, longest)) + [EOS, PAD] * draw.randint(0, 1) for _ in range(count)]


@pytest.mark.parametrize("with_eos", [False, True])
@pytest.mark.parametrize("captioner", [ToyCaptioner(), transformer()], ids=["recurrent", "transformer"])
def test_every_pair_has_the_log_p_that_score_finds_for_it_alone(captioner, with_eos):
    features, mask = photos(3)
    captions = some_captions(30)
    assert len({tuple(caption) for caption in captions}) < 30
    batch = [region_inputs(features, mask)]
    result = log_probabilities_of_pairs(captioner, batch, captions, **EDGES, with_eos=with_eos)
    expected = pair_by_pair(captioner, features, mask, captions, with_eos=with_eos)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_single_precision_is_exact_to_its_rounding():
    captioner = transformer(torch.float32)
    features, mask = photos(4)
    captions = some_captions(30)
    result = log_probabilities_of_pairs(captioner, [region_inputs(features.float(), mask)], captions, **EDGES)
    expected = pair_by_pair(captioner, features.float(), mask, captions, with_eos=False)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 10**6])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("captioner", [ToyCaptioner(), transformer()], ids=["recurrent", "transformer"])
def test_how_photos_and_captions_are_divided_changes_nothing(captioner, rows, batch, monkeypatch):
    features, mask = photos(5)
    captions = some_captions(12)
    whole = log_probabilities_of_pairs(captioner, [region_inputs(features, mask)], captions, **EDGES)
    monkeypatch.setattr(import_module("tellapart.decoding.score"), "_ROWS", rows)
    batches = map(region_inputs, features.split(batch), mask.split(batch))
    torch.testing.assert_close(log_probabilities_of_pairs(captioner, batches, captions, **EDGES), whole)


def test_log_p_by_hand():
    """Two photos, in which the next word depends on the last one alone."""
    cat, dog = 4, 5
    one = table_of({BOS: {cat: 0.5, dog: 0.25, EOS: 0.25}, cat: {dog: 0.5, EOS: 0.5}, dog: {EOS: 1.0}}, 6)
    two = table_of({BOS: {cat: 1.0}, cat: {cat: 0.75, EOS: 0.25}}, 6)
    tables = torch.stack([one, two])
    captions = [[cat], [cat, dog], [cat], [], [dog], [cat, cat, EOS, dog]]
    batch = [region_inputs(tables)]
    without = torch.tensor([[0.5, 1], [0.25, 0], [0.5, 1], [1, 1], [0.25, 0], [0, 0.75]])
    result = log_probabilities_of_pairs(TableCaptioner(), batch, captions, **EDGES)
    torch.testing.assert_close(result.exp(), without.double())
    with_eos = torch.tensor([[0.25, 0.25], [0.25, 0], [0.25, 0.25], [0.25, 0], [0.25, 0], [0, 0.1875]])
    result = log_probabilities_of_pairs(TableCaptioner(), batch, captions, **EDGES, with_eos=True)
    torch.testing.assert_close(result.exp(), with_eos.double())


def test_what_captions_share_is_computed_once():
    captioner = ToyCaptioner()
    captions = [[4, 5, 4], [4, 5, 5], [4, 5], [4, 5, 4], [4], [5, 4, 4, EOS]]
    log_probabilities_of_pairs(captioner, [region_inputs(*photos(3))], captions, **EDGES)
    # One photo first, for the size of a state; then all three after "", after 4 and 5, after 45 and 54.
    assert captioner.steps == [(1, 1), (3, 3), (3, 6), (3, 6)]


def test_large_states_are_made_in_parts(monkeypatch):
    captioner = transformer()
    features, mask = photos(6)
    captions = some_captions(40)
    whole = log_probabilities_of_pairs(captioner, [region_inputs(features, mask)], captions, **EDGES)
    step, rows = captioner.step, []

    def watched(token, state, memory):
        rows.append(len(token))
        return step(token, state, memory)

    monkeypatch.setattr(captioner, "step", watched)
    word = 2 * 32 * 8  # bytes of keys and values of one word, one layer of width 32 in double precision
    row = 3 * max(map(len, captions)) * word + 2 * 9 * 8
    monkeypatch.setattr(import_module("tellapart.decoding.score"), "_BYTES", 10 * row)
    torch.testing.assert_close(
        log_probabilities_of_pairs(captioner, [region_inputs(features, mask)], captions, **EDGES), whole
    )
    assert 5 < max(rows) <= 10


def batches(*sizes):
    return [region_inputs(*photos(size)) for size in sizes]


def test_without_captions_or_photos_the_matrix_is_empty():
    assert log_probabilities_of_pairs(ToyCaptioner(), batches(3, 2), [], **EDGES).shape == (0, 5)
    assert log_probabilities_of_pairs(ToyCaptioner(), [], [[4], [4]], **EDGES).shape == (2, 0)
    assert log_probabilities_of_pairs(ToyCaptioner(), [], [], **EDGES).shape == (0, 0)


def test_progress_counts_every_photo_once(monkeypatch):
    monkeypatch.setattr(import_module("tellapart.decoding.score"), "_ROWS", 4)
    done = []
    log_probabilities_of_pairs(ToyCaptioner(), batches(5, 2), [[4, 4], [5, 4]], **EDGES, advance=done.append)
    assert done == [2, 2, 1, 2]
