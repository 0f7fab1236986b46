import itertools
import math

import pytest
import torch

from decoding.toy_captioner import (
    BOS,
    EOS,
    IDS,
    PAD,
    UNK,
    TableCaptioner,
    assert_best,
    captions_of,
    every_caption,
    log_probability,
    naive_beam,
    searched,
    table_of,
    toy,
    unpadded,
)
from support.decoders import beam_search, greedy
from support.pairwise import pairwise
from tellapart.captioners import select

CAT, DOG = 4, 5


# --- exactness ---


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("banned", [(), (PAD, BOS)])
@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0, 2.0, -0.5])
def test_a_beam_wide_enough_finds_the_best_of_all_captions(length_penalty, banned, seed):
    captioner, memory, _ = toy(3, vocab_size=6, seed=seed)
    captions = every_caption([word for word in (PAD, BOS, UNK, CAT, DOG) if word not in banned], max_words=4)
    logp = log_probability(captioner, memory, captions)  # (3, C)
    length = torch.tensor([len(caption) for caption in captions], dtype=torch.double)
    score, order = (logp / length**length_penalty).sort(1, descending=True)

    best = beam_search(
        captioner, memory, **IDS, beam=5**4, n_best=6, max_words=4, banned=banned, length_penalty=length_penalty
    )
    for photo, places in enumerate(order[:, :6].tolist()):
        scores, logps = score[photo, :6].tolist(), logp[photo, places].tolist()
        assert_best(best, photo, list(zip(scores, logps, [captions[place] for place in places], strict=True)))


WIDTHS = [  # beam, n_best, groups, diversity
    *[(beam, n_best, 1, 0.0) for beam, n_best in [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (5, 2), (3, 5)]],
    *[(2, 2, 2, 0.5), (4, 3, 2, 0.5), (6, 6, 3, 1.0), (3, 1, 3, 5.0), (6, 4, 2, 0.0)],
]


@pytest.mark.parametrize(("width", "length_penalty", "seed"), pairwise(WIDTHS, [0.0, 0.7, 1.5, -0.5], range(4)))
def test_a_narrow_beam_is_the_plain_one(width, length_penalty, seed):
    beam, n_best, groups, diversity = width
    captioner, memory, alone = toy(5, vocab_size=8, seed=seed, sharpness=0.6)
    options = {"max_words": 6, "banned": (PAD, BOS), "length_penalty": length_penalty, "n_best": n_best}
    options |= {"beam": beam, "groups": groups, "diversity": diversity}
    best = beam_search(captioner, memory, **IDS, **options)
    for photo in range(5):
        expected = naive_beam(captioner, alone[photo], **options)
        assert_best(best, photo, expected, captions=diversity or groups == 1)  # else groups find the same, in any order


def test_a_beam_of_one_is_greedy():
    captioner, memory, _ = toy(8, vocab_size=9)
    rollout = greedy(captioner, memory, **IDS, max_words=8, banned=(PAD,))
    best = beam_search(captioner, memory, **IDS, beam=1, max_words=8, banned=(PAD,))
    assert unpadded(best.tokens[:, 0], best.mask[:, 0]) == unpadded(rollout.tokens, rollout.mask)
    torch.testing.assert_close(best.logp[:, 0], rollout.logp.sum(1).detach())


def by_hand(chain, **options):
    captions, best = searched(beam_search, chain, vocab_size=12, **options)
    return captions, best.score[0].exp().tolist()


def test_searches_by_hand():
    # Greedy says CAT (0.6), then UNK or EOS (0.5 each): 0.3.  The better caption begins with DOG: 0.4 * 1.
    captions, p = by_hand({BOS: {CAT: 0.6, DOG: 0.4}, CAT: {UNK: 0.5, EOS: 0.5}}, beam=2, n_best=3)
    assert captions == [(DOG, EOS), (CAT, EOS), (CAT, UNK, EOS)]
    assert p == pytest.approx([0.4, 0.3, 0.3])
    # The empty caption (0.2) beats every caption with words (0.8 * 0.1), but is not the best first continuation.
    words = {BOS: {CAT: 0.8, EOS: 0.2}, CAT: dict.fromkeys([PAD, *range(3, 12)], 0.1)}
    assert by_hand(words, beam=1)[0][0][0] == CAT
    assert by_hand(words, beam=2)[0] == [(EOS,)]
    # A caption is cut at max_words and ranks by its own score.
    forever = {BOS: {CAT: 0.7, EOS: 0.3}, CAT: {DOG: 1.0}, DOG: {CAT: 1.0}}
    captions, p = by_hand(forever, n_best=3, max_words=4)
    assert captions == [(CAT, DOG, CAT, DOG), (EOS,), ()]
    assert p == pytest.approx([0.7, 0.3, 0.0])
    # Of equals the lower word.
    equal = {BOS: dict.fromkeys([UNK, CAT, DOG, 6], 0.25)}
    assert by_hand(equal, beam=4, n_best=4)[0] == [(UNK, EOS), (CAT, EOS), (DOG, EOS), (6, EOS)]


def test_length_penalties_by_hand():
    # CAT EOS: 0.5 in 2 words.  DOG UNK EOS: 0.4 in 3 words: log 0.4 / 3 is above log 0.5 / 2.
    chain = {BOS: {CAT: 0.5, DOG: 0.5}, DOG: {UNK: 0.8, EOS: 0.2}}
    captions, p = by_hand(chain, length_penalty=1.0, n_best=2)
    assert captions == [(DOG, UNK, EOS), (CAT, EOS)]
    assert p == pytest.approx([0.4 ** (1 / 3), 0.5 ** (1 / 2)])
    assert by_hand(chain)[0] == [(CAT, EOS)]
    # The search goes on while a longer caption may still win: log 0.4 / 3 is below log 0.6 / 2, log 0.4 / 5 is not.
    late = {BOS: {CAT: 0.6, DOG: 0.4}, DOG: {6: 1.0}, 6: {7: 1.0}, 7: {8: 1.0}}
    assert by_hand(late, length_penalty=1.0)[0] == [(DOG, 6, 7, 8, EOS)]
    assert by_hand(late)[0] == [(CAT, EOS)]
    # Long captions lose here: DOG must be judged by its next end, 3 * log 0.7, not by 20 * log 0.7.
    assert by_hand({BOS: {CAT: 0.3, DOG: 0.7}, DOG: {6: 1.0}}, length_penalty=-1.0)[0] == [(DOG, 6, EOS)]


def test_groups_by_hand():
    # CAT has 0.6, DOG 0.4: only a penalty above log(0.6 / 0.4) makes the second group say DOG.
    chain, options = {BOS: {CAT: 0.6, DOG: 0.4}}, {"groups": 2, "beam": 2, "n_best": 2}
    assert by_hand(chain, **options, diversity=math.log(1.5) - 0.01)[0] == [(CAT, EOS)] * 2
    captions, p = by_hand(chain, **options, diversity=math.log(1.5) + 0.01)
    assert captions == [(CAT, EOS), (DOG, EOS)]
    assert p == pytest.approx([0.6, 0.4])  # without the penalty
    # The first group goes on with UNK from both CAT and DOG, so UNK costs twice the diversity in the second.
    after = {UNK: 0.75, 6: 0.25}
    chain = {BOS: {CAT: 0.5, DOG: 0.5}, CAT: after, DOG: after}
    third = math.log(3) / 2  # UNK is three times as likely as 6: with two penalties of this they are level
    for diversity, expected in ((third - 0.01, [UNK] * 4), (third + 0.01, [UNK, UNK, 6, 6])):
        captions, _ = by_hand(chain, groups=2, beam=4, n_best=4, diversity=diversity)
        assert sorted(caption[1] for caption in captions) == expected


# --- batches ---


@pytest.mark.parametrize("more", [{}, {"length_penalty": 0.7}, {"beam": 6, "groups": 3, "no_repeat": 2}], ids=str)
def test_a_photos_captions_do_not_depend_on_the_batch(more):
    captioner, memory, alone = toy(12, vocab_size=9, sharpness=1.5)
    options = {**IDS, "beam": 3, "n_best": 2, "max_words": 9, "banned": (PAD,)} | more
    together = beam_search(captioner, memory, **options)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = beam_search(captioner, select(memory, order), **options)
    torch.testing.assert_close(shuffled.logp, together.logp[order])
    assert torch.equal(shuffled.tokens, together.tokens[order])
    for photo in range(12):
        by_itself = beam_search(captioner, alone[photo], **options)
        assert captions_of(by_itself, 0) == captions_of(together, photo)
        torch.testing.assert_close(by_itself.score[0], together.score[photo])


def certain_lengths(lengths: list[int]) -> torch.Tensor:
    """One table per photo; photo i says its `lengths[i]` words one after the other, almost surely, then EOS."""
    vocab_size, tables = 4 + max(lengths), []
    for length in lengths:
        words = [BOS, *range(4, 4 + length), EOS]
        chain = {word: {following: 0.96, UNK: 0.04} for word, following in itertools.pairwise(words)}
        tables.append(table_of(chain, vocab_size))
    return torch.stack(tables)


def test_done_photos_leave_the_batch_and_the_answers_keep_their_places():
    lengths, captioner = [9, 1, 5, 1, 2, 9, 1, 3], TableCaptioner()
    best = beam_search(captioner, (certain_lengths(lengths),), **IDS, beam=3, max_words=20)
    for photo, length in enumerate(lengths):
        assert captions_of(best, photo) == [(*range(4, 4 + length), EOS)]
    searched = [count for count, _ in captioner.steps]
    assert searched[:2] == [8, 8]
    assert searched[2] == 5  # three captions of one word are done
    assert searched[-1] == 2
    assert len(searched) == 10  # nine words and EOS, not twenty
    assert all(rows == 3 * count for count, rows in captioner.steps[1:])


def test_one_photo_done_among_many_is_not_worth_a_copy():
    captioner = TableCaptioner()
    beam_search(captioner, (certain_lengths([1, 3, 3, 3, 3]),), **IDS, beam=2)
    assert {count for count, _ in captioner.steps} == {5}


# --- another score in place of log p ---


@pytest.mark.parametrize("length_penalty", [0.0, 0.7])
def test_a_rescore_steers_the_search_and_log_p_stays_log_p(length_penalty):
    """No word twice, and each UNK costs 1: every caption's score can be had from its words."""
    captioner, memory, _ = toy(3, vocab_size=6)

    def rescore(tokens, logp, photos):
        cost = torch.zeros_like(logp) + (tokens == UNK).sum(2)[:, :, None]
        cost[:, :, UNK] += 1
        return (logp - cost).scatter(2, tokens, -torch.inf)

    captions = [each for each in every_caption([UNK, CAT, DOG], max_words=3) if len(set(each)) == len(each)]
    logp = log_probability(captioner, memory, captions)
    cost = torch.tensor([caption.count(UNK) for caption in captions])
    length = torch.tensor([len(caption) for caption in captions], dtype=torch.double)
    score, order = ((logp - cost) / length**length_penalty).sort(1, descending=True)

    options = {**IDS, "max_words": 3, "banned": (PAD, BOS), "length_penalty": length_penalty}
    best = beam_search(captioner, memory, beam=30, n_best=30, rescore=rescore, **options)
    for photo, places in enumerate(order.tolist()):
        expected = zip(score[photo].tolist(), logp[photo, places].tolist(), [captions[p] for p in places], strict=True)
        assert_best(best, photo, list(expected))


# --- corners ---


def test_a_vocabulary_smaller_than_the_beam():
    captioner, memory, _ = toy(2, vocab_size=3)
    best = beam_search(captioner, memory, **IDS, beam=10, n_best=4, max_words=3)
    assert best.logp.isfinite().all()
    captions = every_caption([PAD, BOS], max_words=3)
    expected = log_probability(captioner, memory, captions).sort(1, descending=True).values
    torch.testing.assert_close(best.logp, expected[:, :4])


def test_when_all_else_is_banned_the_only_caption_is_the_empty_one():
    captioner, memory, _ = toy(3)
    captioner.steps.clear()
    best = beam_search(captioner, memory, **IDS, beam=3, n_best=3, banned=(PAD, BOS, UNK, CAT, DOG), length_penalty=0.7)
    assert best.tokens.tolist() == [[[EOS], [PAD], [PAD]]] * 3
    assert best.mask.tolist() == [[[True], [False], [False]]] * 3
    assert best.logp[:, 0].isfinite().all()
    assert (best.logp[:, 1:] == -torch.inf).all()
    assert (best.score[:, 1:] == -torch.inf).all()
    assert len(captioner.steps) == 1


def test_padding_follows_eos():
    captioner, memory, _ = toy(6, vocab_size=8)
    best = beam_search(captioner, memory, **IDS, beam=4, n_best=4, banned=(PAD,))
    assert (best.tokens[~best.mask] == PAD).all()
    assert (best.tokens[best.mask] != PAD).all()
    assert best.mask.any(dim=(0, 1)).all()  # no column of padding alone


@pytest.mark.parametrize("vocab_size", [6, 500])
def test_where_everything_ties_the_answer_is_still_the_same_everywhere(vocab_size):
    uniform = torch.zeros(4, vocab_size, vocab_size, dtype=torch.double)
    best = beam_search(TableCaptioner(), (uniform,), **IDS, beam=3, n_best=3, max_words=4)
    alone = beam_search(TableCaptioner(), (uniform[:1],), **IDS, beam=3, n_best=3, max_words=4)
    assert torch.equal(best.tokens, alone.tokens.expand_as(best.tokens))
