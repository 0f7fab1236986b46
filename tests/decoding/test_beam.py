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
    captions_of,
    every_caption,
    log_probability,
    table_of,
    toy,
    unpadded,
)
from support.decoders import beam_search, greedy
from support.pairwise import pairwise
from tellapart.captioners import select

CAT, DOG = 4, 5


def naive_beam(captioner, memory, beam, max_words, banned, length_penalty, n_best, groups=1, diversity=0.0):
    """(Diverse) beam search for one photo in plain Python: no batch, no early end, log p asked afresh every time."""

    def next_words(prefix):
        return captioner.forward(torch.tensor([[BOS, *prefix]]), memory)[0, -1].log_softmax(0).tolist()

    width, share = beam // groups, math.ceil(n_best / groups)
    live = [[(0.0, ())] for _ in range(groups)]
    banks = [[] for _ in range(groups)]
    for length in range(1, max_words + 1):
        chosen = []  # words of the earlier groups, at this step
        for group in range(groups):
            continuations = [
                (logp + word_logp - diversity * chosen.count(word), logp + word_logp, (*prefix, word))
                for logp, prefix in live[group]
                for word, word_logp in enumerate(next_words(prefix))
                if word not in banned
            ]
            continuations.sort(key=lambda each: -each[0])
            banks[group] += [
                (logp / length**length_penalty, logp, caption)
                for _, logp, caption in continuations[:width]
                if caption[-1] == EOS or length == max_words
            ]
            going_on = [(logp, caption) for _, logp, caption in continuations if caption[-1] != EOS]
            live[group] = going_on[:width]
            chosen += [caption[-1] for _, caption in live[group]]
    best = [each for bank in banks for each in sorted(bank, key=lambda each: -each[0])[:share]]
    return sorted(best, key=lambda each: -each[0])[:n_best]


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
    torch.testing.assert_close(best.score, score[:, :6])
    torch.testing.assert_close(best.logp, logp.gather(1, order[:, :6]))
    for photo in range(3):
        assert captions_of(best, photo) == [captions[place] for place in order[photo, :6].tolist()]


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
        count = len(expected)
        if diversity or groups == 1:  # or groups find the same, and either may come first
            assert captions_of(best, photo)[:count] == [caption for _, _, caption in expected]
        assert best.score[photo].tolist()[:count] == pytest.approx([score for score, _, _ in expected])
        assert best.logp[photo].tolist()[:count] == pytest.approx([logp for _, logp, _ in expected])
        assert (best.score[photo, count:] == -torch.inf).all()


def test_a_beam_of_one_is_greedy():
    captioner, memory, _ = toy(8, vocab_size=9)
    rollout = greedy(captioner, memory, **IDS, max_words=8, banned=(PAD,))
    best = beam_search(captioner, memory, **IDS, beam=1, max_words=8, banned=(PAD,))
    assert unpadded(best.tokens[:, 0], best.mask[:, 0]) == unpadded(rollout.tokens, rollout.mask)
    torch.testing.assert_close(best.logp[:, 0], rollout.logp.sum(1).detach())


def test_beam_finds_what_greedy_misses_by_hand():
    # greedy: CAT (0.6) then UNK or EOS (0.5 each): 0.3.  The better caption starts with the second word: 0.4 * 1.
    table = table_of({BOS: {CAT: 0.6, DOG: 0.4}, CAT: {UNK: 0.5, EOS: 0.5}}, vocab_size=6)
    best = beam_search(TableCaptioner(), (table[None],), **IDS, beam=2, n_best=3)
    assert captions_of(best, 0) == [(DOG, EOS), (CAT, EOS), (CAT, UNK, EOS)]
    torch.testing.assert_close(best.logp.exp(), torch.tensor([[0.4, 0.3, 0.3]], dtype=torch.double))


def test_an_ending_outside_the_beam_does_not_count():
    # The empty caption (0.2) beats every caption with words (0.8 * 0.1), but is not the best first continuation.
    words = dict.fromkeys(range(3, 12), 0.1) | {PAD: 0.1}
    table = table_of({BOS: {CAT: 0.8, EOS: 0.2}, CAT: words}, vocab_size=12)
    assert captions_of(beam_search(TableCaptioner(), (table[None],), **IDS, beam=1), 0)[0][0] == CAT
    assert captions_of(beam_search(TableCaptioner(), (table[None],), **IDS, beam=2), 0) == [(EOS,)]


def test_length_penalty_by_hand():
    # CAT EOS: 0.5 in 2 words.  DOG UNK EOS: 0.4 in 3 words: log 0.4 / 3 is above log 0.5 / 2.
    table = table_of({BOS: {CAT: 0.5, DOG: 0.5}, DOG: {UNK: 0.8, EOS: 0.2}}, vocab_size=6)
    best = beam_search(TableCaptioner(), (table[None],), **IDS, length_penalty=1.0, n_best=2)
    assert captions_of(best, 0) == [(DOG, UNK, EOS), (CAT, EOS)]
    torch.testing.assert_close(best.score, torch.tensor([[math.log(0.4) / 3, math.log(0.5) / 2]], dtype=torch.double))
    assert captions_of(beam_search(TableCaptioner(), (table[None],), **IDS), 0) == [(CAT, EOS)]


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
        said = [BOS, *range(4, 4 + length)]
        chain = {one: {other: 0.96, UNK: 0.04} for one, other in zip(said, [*said[1:], EOS], strict=True)}
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


def test_the_search_goes_on_while_a_longer_caption_may_still_win():
    # log 0.4 / 3 is below log 0.6 / 2, the score of CAT EOS: DOG wins only with the words that follow, log 0.4 / 5.
    chain = {BOS: {CAT: 0.6, DOG: 0.4}, DOG: {6: 1.0}, 6: {7: 1.0}, 7: {8: 1.0}}
    memory = (table_of(chain, vocab_size=9)[None],)
    assert captions_of(beam_search(TableCaptioner(), memory, **IDS, length_penalty=1.0), 0) == [(DOG, 6, 7, 8, EOS)]
    assert captions_of(beam_search(TableCaptioner(), memory, **IDS), 0) == [(CAT, EOS)]


def test_the_search_goes_on_while_a_caption_may_still_win_by_ending_soon():
    # Long captions lose here: DOG must be judged by its next end, 3 * log 0.7, not by 20 * log 0.7.
    memory = (table_of({BOS: {CAT: 0.3, DOG: 0.7}, DOG: {6: 1.0}}, vocab_size=7)[None],)
    assert captions_of(beam_search(TableCaptioner(), memory, **IDS, length_penalty=-1.0), 0) == [(DOG, 6, EOS)]


# --- another score in place of log p ---


@pytest.mark.parametrize("length_penalty", [0.0, 0.7])
def test_a_rescore_steers_the_search_and_log_p_stays_log_p(length_penalty):
    """No word twice, and each UNK costs 1: every caption's score can be had from its words."""
    captioner, memory, _ = toy(3, vocab_size=6)

    def rescore(tokens, logp, photos):
        cost = torch.zeros_like(logp) + (tokens == UNK).sum(2)[:, :, None]
        cost[:, :, UNK] += 1
        return (logp - cost).scatter(2, tokens, -torch.inf)

    captions = [one for one in every_caption([UNK, CAT, DOG], max_words=3) if len(set(one)) == len(one)]
    logp = log_probability(captioner, memory, captions)
    cost = torch.tensor([caption.count(UNK) for caption in captions])
    length = torch.tensor([len(caption) for caption in captions], dtype=torch.double)
    score, order = ((logp - cost) / length**length_penalty).sort(1, descending=True)

    options = {**IDS, "max_words": 3, "banned": (PAD, BOS), "length_penalty": length_penalty}
    best = beam_search(captioner, memory, beam=30, n_best=30, rescore=rescore, **options)
    count = len(captions)
    torch.testing.assert_close(best.score[:, :count], score)
    torch.testing.assert_close(best.logp[:, :count], logp.gather(1, order))
    assert (best.logp[:, count:] == -torch.inf).all()
    for photo in range(3):
        assert captions_of(best, photo)[:count] == [captions[place] for place in order[photo].tolist()]


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


def test_a_caption_is_cut_at_max_words_and_ranks_by_its_own_score():
    forever = table_of({BOS: {CAT: 0.7, EOS: 0.3}, CAT: {DOG: 1.0}, DOG: {CAT: 1.0}}, vocab_size=6)
    best = beam_search(TableCaptioner(), (forever[None],), **IDS, n_best=3, max_words=4)
    assert captions_of(best, 0) == [(CAT, DOG, CAT, DOG), (EOS,), ()]
    torch.testing.assert_close(best.logp.exp(), torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.double))


def test_banned_words_are_never_said_and_log_p_is_not_renormalised():
    captioner, memory, _ = toy(6, vocab_size=8)
    best = beam_search(captioner, memory, **IDS, beam=4, n_best=4, max_words=5, banned=(PAD, BOS, UNK))
    assert set(best.tokens[best.mask].tolist()) <= {EOS, 4, 5, 6, 7}
    for photo in range(6):
        logp = log_probability(captioner, memory, captions_of(best, photo))[photo]
        torch.testing.assert_close(best.logp[photo], logp)


def test_padding_follows_eos():
    captioner, memory, _ = toy(6, vocab_size=8)
    best = beam_search(captioner, memory, **IDS, beam=4, n_best=4, banned=(PAD,))
    assert (best.tokens[~best.mask] == PAD).all()
    assert (best.tokens[best.mask] != PAD).all()
    assert best.mask.any(dim=(0, 1)).all()  # no column of padding alone


def test_equal_scores_go_to_the_lower_word():
    table = table_of({BOS: {UNK: 0.25, CAT: 0.25, DOG: 0.25, 6: 0.25}}, vocab_size=7)
    best = beam_search(TableCaptioner(), (table.expand(3, 7, 7),), **IDS, beam=4, n_best=4)
    for photo in range(3):
        assert captions_of(best, photo) == [(UNK, EOS), (CAT, EOS), (DOG, EOS), (6, EOS)]


@pytest.mark.parametrize("vocab_size", [6, 500])
def test_where_everything_ties_the_answer_is_still_the_same_everywhere(vocab_size):
    uniform = torch.zeros(4, vocab_size, vocab_size, dtype=torch.double)
    best = beam_search(TableCaptioner(), (uniform,), **IDS, beam=3, n_best=3, max_words=4)
    alone = beam_search(TableCaptioner(), (uniform[:1],), **IDS, beam=3, n_best=3, max_words=4)
    assert torch.equal(best.tokens, alone.tokens.expand_as(best.tokens))


# --- groups ---


def test_the_second_group_says_something_else_by_hand():
    # CAT has 0.6, DOG 0.4: only a penalty above log(0.6 / 0.4) makes the second group say DOG.
    memory = (table_of({BOS: {CAT: 0.6, DOG: 0.4}}, vocab_size=6)[None],)
    options = {**IDS, "beam": 2, "groups": 2, "n_best": 2}
    shy = beam_search(TableCaptioner(), memory, **options, diversity=math.log(1.5) - 0.01)
    assert captions_of(shy, 0) == [(CAT, EOS)] * 2
    bold = beam_search(TableCaptioner(), memory, **options, diversity=math.log(1.5) + 0.01)
    assert captions_of(bold, 0) == [(CAT, EOS), (DOG, EOS)]
    torch.testing.assert_close(bold.logp.exp(), torch.tensor([[0.6, 0.4]], dtype=torch.double))  # without the penalty


def test_each_hypothesis_of_an_earlier_group_counts():
    # The first group goes on with UNK from both CAT and DOG, so UNK costs twice the diversity in the second.
    after = {UNK: 0.75, 6: 0.25}
    memory = (table_of({BOS: {CAT: 0.5, DOG: 0.5}, CAT: after, DOG: after}, vocab_size=7)[None],)
    third = math.log(3) / 2  # UNK is three times as likely as 6: with two penalties of this they are level
    options = {**IDS, "beam": 4, "groups": 2, "n_best": 4}
    alike = beam_search(TableCaptioner(), memory, **options, diversity=third - 0.01)
    assert {caption[1] for caption in captions_of(alike, 0)} == {UNK}
    other = beam_search(TableCaptioner(), memory, **options, diversity=third + 0.01)
    assert sorted(caption[1] for caption in captions_of(other, 0)) == [UNK, UNK, 6, 6]
