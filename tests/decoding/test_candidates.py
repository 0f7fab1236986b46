"""Captions to choose from: the beam's best and random ones, which a photo gets whatever it is captioned with."""

import pytest
import torch

from decoding.toy_captioner import IDS, PAD, UNK, TableCaptioner, ToyCaptioner, photos, table_of
from support.decoders import beam_search, candidates, sample
from tellapart.data.streams import region_inputs
from tellapart.data.tokenizers import WordTokenizer
from tellapart.decoding.score import score

WORDS = WordTokenizer(["a", "cat", "dog", "red", "bed", "on"])
BANNED = (PAD, 1, UNK)
MAX_WORDS = 6
SETTINGS = {"beam": 3, "samples": 8, "temperature": 1.0, "max_words": MAX_WORDS}


@pytest.fixture
def captioner():
    return ToyCaptioner(vocab_size=len(WORDS), seed=7)


def propose(captioner, features, mask, seeds, **changed):
    return candidates(
        captioner, captioner.encode(region_inputs(features, mask)), WORDS, seeds=seeds, **{**SETTINGS, **changed}
    )


def test_the_first_is_the_beams_best_and_no_caption_comes_twice(captioner):
    features, mask = photos(5)
    result = propose(captioner, features, mask, seeds=range(5))
    best = beam_search(
        captioner, captioner.encode(region_inputs(features, mask)), beam=3, max_words=MAX_WORDS, banned=BANNED, **IDS
    )
    assert [of_photo[0].text for of_photo in result] == [WORDS.decode(row[0].tolist()) for row in best.tokens]
    for of_photo in result:
        texts = [candidate.text for candidate in of_photo]
        assert len(set(texts)) == len(texts)
        assert 4 <= len(texts) <= 11  # more than the beam has, and no more than beam and samples together
        assert "" not in texts
    assert len({of_photo[0].text for of_photo in result}) > 1


def test_log_p_is_the_captioners_own_whether_a_caption_was_found_or_drawn(captioner):
    features, mask = photos(4)
    result = propose(captioner, features, mask, seeds=range(4), temperature=0.7)
    for photo, of_photo in enumerate(result):
        memory = captioner.encode(region_inputs(features[photo : photo + 1], mask[photo : photo + 1]))
        for candidate in of_photo:
            ids = WORDS.encode(candidate.text)
            said = [*ids, WORDS.eos] if len(ids) < MAX_WORDS else ids
            tokens = torch.tensor([said])
            expected = score(captioner, memory, tokens, torch.ones_like(tokens, dtype=torch.bool), bos=WORDS.bos)
            assert candidate.logp == pytest.approx(expected.sum().item(), abs=1e-9)
            assert candidate.tokens == len(said)


def test_a_photo_gets_the_same_candidates_alone_and_among_others(captioner):
    features, mask = photos(5)
    seeds = [11, 12, 13, 14, 11]
    together = propose(captioner, features, mask, seeds)
    for photo, seed in enumerate(seeds):
        (alone,) = propose(captioner, features[photo : photo + 1], mask[photo : photo + 1], [seed])
        assert [c.text for c in alone] == [c.text for c in together[photo]]
        assert [c.logp for c in alone] == pytest.approx([c.logp for c in together[photo]], abs=1e-9)
    torch.rand(7)  # whatever else was drawn meanwhile
    assert propose(captioner, features, mask, seeds) == together
    backwards = propose(captioner, features.flip(0), mask.flip(0), seeds[::-1])
    assert [[c.text for c in of_photo] for of_photo in reversed(backwards)] == [[c.text for c in p] for p in together]


def test_another_seed_draws_other_captions(captioner):
    features, mask = photos(1)
    drawn = {tuple(c.text for c in propose(captioner, features, mask, [seed])[0]) for seed in range(6)}
    assert len(drawn) > 3
    assert len({texts[:3] for texts in drawn}) == 1  # the beam's own are always there


def test_without_samples_there_is_only_the_beams_best(captioner):
    features, mask = photos(3)
    result = propose(captioner, features, mask, range(3), samples=0)
    assert [len(of_photo) for of_photo in result] == [1, 1, 1]
    assert [p[0] for p in result] == [p[0] for p in propose(captioner, features, mask, range(3))]


@pytest.mark.parametrize("samples", [0, 5])
def test_who_has_nothing_else_to_say_says_nothing(samples):
    table = table_of({}, len(WORDS))  # EOS is certain
    ((only,),) = candidates(TableCaptioner(), (table[None],), WORDS, seeds=[0], **{**SETTINGS, "samples": samples})
    assert (only.text, only.tokens) == ("", 1)
    assert only.logp == pytest.approx(0.0, abs=1e-6)


def test_only_captions_that_can_be_said_and_say_something_are_candidates():
    """Of four captions that have a chance one is empty; and words that are never said are not drawn either."""
    a, cat = 4, 5
    table = table_of({1: {a: 0.4, 2: 0.3, UNK: 0.2, cat: 0.1}, a: {2: 0.5, cat: 0.5}}, len(WORDS))
    captioner = TableCaptioner()
    result = candidates(captioner, (table[None],), WORDS, seeds=[0], **{**SETTINGS, "samples": 200})
    assert sorted(candidate.text for candidate in result[0]) == ["a", "a cat", "cat"]
    chance = {candidate.text: candidate.logp for candidate in result[0]}
    expected = {"a": 0.2, "a cat": 0.2, "cat": 0.1}
    assert chance == pytest.approx({text: torch.tensor(p).log().item() for text, p in expected.items()}, abs=1e-6)


def test_numbers_that_are_given_decide_each_word():
    """Words of chances 0.5, 0.25 and 0.25: where a number falls among them is the word that is said."""
    table = table_of({1: {4: 0.5, 5: 0.25, 6: 0.25}}, len(WORDS))
    uniform = torch.tensor([[1e-9], [0.49], [0.51], [0.74], [0.76], [1.0]])
    drawn = sample(TableCaptioner(), (table[None],), samples=6, max_words=1, uniform=uniform, **IDS)
    assert drawn.tokens[:, 0].tolist() == [4, 4, 5, 5, 6, 6]


def test_given_numbers_draw_from_the_captioners_distribution(captioner):
    """The mean over an even grid of numbers is the probability itself, up to the step of the grid."""
    features, mask = photos(1)
    memory = captioner.encode(region_inputs(features, mask))
    grid = (torch.arange(2000, dtype=torch.double)[:, None] + 0.5) / 2000
    drawn = sample(captioner, memory, samples=2000, max_words=1, uniform=grid, **IDS)
    logits, _ = captioner.step(torch.tensor([1]), captioner.start(memory), memory)
    share = torch.bincount(drawn.tokens[:, 0], minlength=len(WORDS)) / 2000
    torch.testing.assert_close(share.double(), logits[0].softmax(0).detach(), atol=1e-3, rtol=0)
