"""Diverse beam search, against a plain one that is written photo by photo and group by group."""

import math

import pytest
import torch

from decoding.toy_captioner import BOS, EOS, IDS, PAD, UNK, TableCaptioner, ToyCaptioner, photos, table_of, unpadded
from support.decoders import beam_search
from tellapart.data.streams import region_inputs

CAT, DOG = 4, 5


def captions_of(best, photo: int) -> list[tuple[int, ...]]:
    return unpadded(best.tokens[photo], best.mask[photo])


def naive_diverse_beam(captioner, memory, beam, groups, diversity, max_words, banned, n_best, length_penalty):
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
            continuations.sort(key=lambda one: -one[0])
            banks[group] += [
                (logp / length**length_penalty, logp, caption)
                for _, logp, caption in continuations[:width]
                if caption[-1] == EOS or length == max_words
            ]
            going_on = [(logp, caption) for _, logp, caption in continuations if caption[-1] != EOS]
            live[group] = going_on[:width]
            chosen += [caption[-1] for _, caption in live[group]]
    best = [one for bank in banks for one in sorted(bank, key=lambda one: -one[0])[:share]]
    return sorted(best, key=lambda one: -one[0])[:n_best]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length_penalty", [0.0, 0.7])
@pytest.mark.parametrize(
    ("beam", "groups", "n_best", "diversity"),
    [(2, 2, 2, 0.5), (4, 2, 3, 0.5), (6, 3, 6, 1.0), (3, 3, 1, 5.0), (6, 2, 4, 0.0)],
)
def test_it_is_the_plain_one(beam, groups, n_best, diversity, length_penalty, seed):
    captioner = ToyCaptioner(vocab_size=8, seed=seed, sharpness=0.7)
    features, regions = photos(5, seed=seed)
    options = {"beam": beam, "groups": groups, "diversity": diversity, "n_best": n_best}
    options |= {"max_words": 5, "banned": (PAD, BOS), "length_penalty": length_penalty}
    best = beam_search(captioner, captioner.encode(region_inputs(features, regions)), **IDS, **options)
    for photo in range(5):
        memory = captioner.encode(region_inputs(features[photo, None], regions[photo, None]))
        expected = naive_diverse_beam(captioner, memory, **options)
        found = len(expected)
        assert best.score[photo].tolist()[:found] == pytest.approx([score for score, _, _ in expected])
        assert best.logp[photo].tolist()[:found] == pytest.approx([logp for _, logp, _ in expected])
        assert (best.score[photo, found:] == -torch.inf).all()
        if diversity:  # or groups find the same, and either may come first
            assert captions_of(best, photo)[:found] == [caption for _, _, caption in expected]


def test_one_group_is_beam_search():
    captioner = ToyCaptioner(vocab_size=9)
    memory = captioner.encode(region_inputs(*photos(7)))
    options = {**IDS, "beam": 4, "n_best": 3, "max_words": 8, "banned": (PAD,)}
    plain, diverse = beam_search(captioner, memory, **options), beam_search(captioner, memory, **options, groups=1)
    assert torch.equal(plain.tokens, diverse.tokens)
    assert torch.equal(plain.logp, diverse.logp)


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


def test_a_photos_captions_do_not_depend_on_the_batch():
    captioner, (features, regions) = ToyCaptioner(vocab_size=9, sharpness=1.5), photos(12)
    options = {**IDS, "beam": 6, "groups": 3, "n_best": 4, "max_words": 9, "banned": (PAD,), "no_repeat": 2}
    together = beam_search(captioner, captioner.encode(region_inputs(features, regions)), **options)
    assert len({count for count, _ in captioner.steps}) > 1  # some photos left the batch before others
    for photo in range(12):
        alone = beam_search(
            captioner, captioner.encode(region_inputs(features[photo, None], regions[photo, None])), **options
        )
        assert captions_of(alone, 0) == captions_of(together, photo)
        torch.testing.assert_close(alone.logp[0], together.logp[photo])


@pytest.mark.parametrize(
    "wrong", [{"groups": 2}, {"groups": 0}, {"groups": 3, "diversity": -1.0}, {"groups": 3, "diversity": math.nan}]
)
def test_groups_that_cannot_be_made_are_refused(wrong):
    captioner = ToyCaptioner()
    with pytest.raises(ValueError, match="must be"):
        beam_search(captioner, captioner.encode(region_inputs(*photos(1))), **IDS, beam=3, **wrong)
