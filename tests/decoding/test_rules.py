"""Minimum length and no-repeat: what may follow is worked out from the words alone, caption by caption."""

import math
from functools import partial

import pytest
import torch

from decoding.toy_captioner import (
    BOS,
    EOS,
    IDS,
    PAD,
    UNK,
    TableCaptioner,
    ToyCaptioner,
    captions_of,
    every_caption,
    log_probability,
    photos,
    table_of,
    toy,
    unpadded,
)
from support.decoders import beam_search, contrastive_search, greedy, sample
from tellapart.data.streams import region_inputs
from tellapart.decoding.rules import Rules

CAT, DOG = 4, 5
WORDS = (UNK, CAT, DOG)
RULES = [{"min_words": 2}, {"no_repeat": 1}, {"no_repeat": 2}, {"no_repeat": 3}, {"min_words": 3, "no_repeat": 2}]


def repeats(words: tuple[int, ...], length: int) -> bool:
    """Whether the last words, so many, were said before."""
    sequences = [words[i : i + length] for i in range(len(words) - length + 1)]
    return bool(sequences) and sequences[-1] in sequences[:-1]


def may_follow(prefix: tuple[int, ...], words: tuple[int, ...], min_words: int = 0, no_repeat: int = 0) -> set[int]:
    """Of words and EOS, with the way on where there is no other."""
    allowed = {word for word in words if not (no_repeat and repeats((*prefix, word), no_repeat))}
    return allowed | {EOS} if len(prefix) >= min_words or not allowed else allowed


def keeps_to(caption: tuple[int, ...], words: tuple[int, ...], rules: dict[str, int]) -> bool:
    return all(word in may_follow(caption[:i], words, **rules) for i, word in enumerate(caption))


def contrast(captioner, memory, **options):
    return contrastive_search(captioner, memory, lambda tokens, photo: torch.zeros(len(tokens)), **options)


# --- which words may follow ---


@pytest.mark.parametrize("rules", RULES)
def test_the_words_ruled_out_are_those_of_the_definition(rules):
    draw = torch.Generator().manual_seed(0)
    checked = Rules(**IDS, banned=(PAD, BOS), max_words=9, **rules)
    for length in range(8):
        prefix = torch.randint(UNK, DOG + 1, (40, length), generator=draw)
        left = checked.rule_out_(torch.randn(40, 6, generator=draw), prefix) > -torch.inf
        for row, allowed in zip(prefix.tolist(), left, strict=True):
            assert set(allowed.nonzero().flatten().tolist()) == may_follow(tuple(row), WORDS, **rules)


def test_without_constraints_only_banned_words_change():
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    left = Rules(**IDS, banned=(PAD,), max_words=9).rule_out_(logits.clone(), torch.full((3, 5), CAT))
    assert (left[:, PAD] == -torch.inf).all()
    assert torch.equal(left[:, 1:], logits[:, 1:])


# --- the decoders keep to them ---


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_captions_that_keep_to_them(rules, seed):
    captioner, memory, _ = toy(3, vocab_size=6, seed=seed)
    captions = [each for each in every_caption(list(WORDS), max_words=5) if keeps_to(each, WORDS, rules)]
    logp, order = log_probability(captioner, memory, captions).sort(1, descending=True)

    best = beam_search(captioner, memory, **IDS, beam=3**5, n_best=6, max_words=5, banned=(PAD, BOS), **rules)
    torch.testing.assert_close(best.logp, logp[:, :6])
    for photo in range(3):
        assert captions_of(best, photo) == [captions[place] for place in order[photo, :6].tolist()]


@pytest.mark.parametrize("rules", RULES)
def test_greedy_takes_the_likeliest_word_that_may_follow(rules):
    captioner, memory, alone = toy(8, vocab_size=6, seed=1)
    rollout = greedy(captioner, memory, **IDS, max_words=8, banned=(PAD, BOS), **rules)
    assert rollout.logp.isfinite().all()
    for photo, caption in enumerate(unpadded(rollout.tokens, rollout.mask)):
        for i, word in enumerate(caption):
            logits = captioner.forward(torch.tensor([[BOS, *caption[:i]]]), alone[photo])[0, -1]
            assert word == max(may_follow(caption[:i], WORDS, **rules), key=lambda id: logits[id])
            assert rollout.logp[photo, i].item() == pytest.approx(logits.log_softmax(0)[word].item())


@pytest.mark.parametrize("rules", RULES)
def test_the_log_p_of_a_sample_is_that_of_what_may_follow_renormalised(rules):
    captioner, memory, _ = toy(1, vocab_size=6, sharpness=0.4)
    options = {"max_words": 6, "banned": (PAD, BOS), "generator": torch.Generator().manual_seed(0)}
    rollout = sample(captioner, memory, samples=60, **IDS, **options, **rules)
    rollout.logp.sum().backward()
    assert captioner.word.grad.isfinite().all()
    captions = unpadded(rollout.tokens, rollout.mask)
    assert len(set(captions)) > 8
    for row, caption in enumerate(captions):
        for i, word in enumerate(caption):
            allowed = sorted(may_follow(caption[:i], WORDS, **rules))
            assert word in allowed
            policy = captioner.forward(torch.tensor([[BOS, *caption[:i]]]), memory)[0, -1, allowed].log_softmax(0)
            assert rollout.logp[row, i].item() == pytest.approx(policy[allowed.index(word)].item())


def test_contrast_at_each_word_keeps_to_them():
    captioner, memory, _ = toy(6, vocab_size=7, seed=3)
    rules = {"min_words": 3, "no_repeat": 1}
    options = {"max_words": 7, "banned": (PAD, BOS)} | rules
    best = contrastive_search(captioner, memory, lambda tokens, _: -(tokens == EOS).any(1).double(), **IDS, **options)
    for caption in unpadded(best.tokens[:, 0], best.mask[:, 0]):
        assert keeps_to(caption, (UNK, CAT, DOG, 6), rules)


# --- the way on ---


def test_where_nothing_else_may_be_said_a_short_caption_ends():
    captioner = ToyCaptioner(vocab_size=5)  # with PAD, BOS and UNK banned, the one word is CAT
    memory = captioner.encode(region_inputs(*photos(2)))
    rules = {"banned": (PAD, BOS, UNK), "min_words": 4, "no_repeat": 1, "max_words": 9}
    rollout = greedy(captioner, memory, **IDS, **rules)
    best = beam_search(captioner, memory, **IDS, **rules)
    drawn = sample(captioner, memory, samples=3, **IDS, **rules)
    for tokens in (rollout.tokens, best.tokens[:, 0], drawn.tokens):
        assert tokens.tolist() == [[CAT, EOS]] * len(tokens)


def test_a_minimum_as_long_as_the_room_fills_it():
    captioner, memory, _ = toy(3, vocab_size=6)
    best = beam_search(captioner, memory, **IDS, max_words=4, min_words=4, banned=(PAD, BOS), n_best=3)
    assert best.mask.all()
    assert (best.tokens != EOS).all()


def test_by_hand():
    again = {CAT: 0.8, DOG: 0.15, EOS: 0.05}
    memory = (table_of({BOS: again, CAT: again, DOG: again}, vocab_size=6)[None],)
    assert greedy(TableCaptioner(), memory, **IDS, max_words=5).tokens.tolist() == [[CAT] * 5]
    once = greedy(TableCaptioner(), memory, **IDS, max_words=5, no_repeat=1, min_words=2)
    assert once.tokens.tolist() == [[CAT, DOG, EOS]]
    assert once.logp[0].tolist() == pytest.approx([math.log(0.8), math.log(0.15), math.log(0.05)])
    pairs = greedy(TableCaptioner(), memory, **IDS, max_words=5, no_repeat=2)
    assert pairs.tokens.tolist() == [[CAT, CAT, DOG, CAT, EOS]]


@pytest.mark.parametrize(
    ("decode", "wrong"),
    [
        *[(decode, wrong) for decode in (greedy, beam_search) for wrong in [{"min_words": -1}, {"no_repeat": -1}]],
        *[(beam_search, wrong) for wrong in [{"beam": 0}, {"n_best": 0}, {"max_words": 0}, {"banned": (EOS,)}]],
        *[(partial(beam_search, beam=3), wrong) for wrong in [{"groups": 2}, {"groups": 3, "diversity": math.nan}]],
        *[(partial(sample, samples=1), wrong) for wrong in [{"temperature": 0.0}, {"top_p": 1.1}, {"top_k": -1}]],
        *[(contrast, wrong) for wrong in [{"weight": 1.0}, {"weight": math.nan}, {"floor": 1.1}, {"most_words": 0}]],
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else getattr(value, "__name__", "partial"),
)
def test_settings_that_mean_nothing_are_refused(decode, wrong):
    captioner, memory, _ = toy()
    with pytest.raises(ValueError, match=r"must be|cannot"):
        decode(captioner, memory, **IDS, **wrong)
