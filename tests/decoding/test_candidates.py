"""Captions to choose from: a beam's best, random ones, and those that contrast at each word finds."""

import math
from functools import cache, partial

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
    assert_best,
    every_caption,
    naive_beam,
    next_words,
    photos,
    searched,
    table_of,
    toy,
)
from support.decoders import beam_search, candidates, contrastive_search, sample
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


CAT, DOG, RED, BIG = 4, 5, 6, 7


class ToyRetriever:
    """Reads the set and the order of words, as random vectors; chooses among the photos of the batch."""

    def __init__(self, count: int, vocab_size: int = 8, seed: int = 0):
        draw = torch.Generator().manual_seed(seed + 100)
        self.word = torch.randn(vocab_size, count, generator=draw, dtype=torch.double)
        self.calls = []

    def log_p(self, caption: tuple[int, ...], photo: int) -> float:
        """Plain Python, one caption: what the search should get."""
        votes = [0.0] * self.word.shape[1]
        for place, word in enumerate(word for word in caption if word != EOS):
            votes = [vote + weight / (1 + place) for vote, weight in zip(votes, self.word[word].tolist(), strict=True)]
        return votes[photo] - math.log(sum(map(math.exp, votes)))

    def __call__(self, tokens, photo):
        self.calls.append(len(tokens))
        assert (tokens[:, :-1] != EOS).all()  # what has ended is not continued
        return torch.tensor([self.log_p(tuple(t), p) for t, p in zip(tokens.tolist(), photo.tolist(), strict=True)])


def by_hand(probability: dict[tuple[int, ...], float]):
    """A retriever's probability of every photo, by the words said; one half after other words."""

    def retriever(tokens, photo):
        captions = [tuple(word for word in caption if word != EOS) for caption in tokens.tolist()]
        return torch.tensor([probability.get(words, 0.5) for words in captions]).log()

    return retriever


def plausible(logp: list[float], banned, floor: float, most_words: int) -> list[int]:
    """Ids of the words that a retriever is asked about, from a list of log p."""
    allowed = sorted((word for word in range(len(logp)) if word not in banned), key=lambda word: -logp[word])
    return [word for word in allowed[:most_words] if math.exp(logp[word]) >= floor * math.exp(logp[allowed[0]])]


# --- exactness ---


@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("weight", [0.0, 0.5, 0.9])
def test_a_beam_wide_enough_finds_the_best_of_all_captions(weight, floor):
    (captioner, memory, alone), retriever, banned = toy(3, vocab_size=6), ToyRetriever(3), (PAD, BOS)
    options = {"max_words": 4, "n_best": 6, "weight": weight, "floor": floor, "beam": 3**4, "banned": banned}
    best = contrastive_search(captioner, memory, retriever, **IDS, **options)
    for photo in range(3):
        expected, words_after = [], cache(partial(next_words, captioner, alone[photo]))
        for caption in every_caption([UNK, CAT, DOG], max_words=4):
            steps = [words_after(caption[:place]) for place in range(len(caption))]
            if all(word in plausible(step, banned, floor, 6) for step, word in zip(steps, caption, strict=True)):
                logp = sum(step[word] for step, word in zip(steps, caption, strict=True))
                expected.append(((1 - weight) * logp + weight * retriever.log_p(caption, photo), logp, caption))
        assert_best(best, photo, sorted(expected, reverse=True)[:6])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("weight", "floor", "most_words"), [(0.9, 0.01, 50), (0.5, 0.1, 4), (0.97, 0.0, 3)])
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (2, 2), (3, 5)])
def test_a_narrow_beam_is_the_plain_one(beam, n_best, weight, floor, most_words, seed):
    captioner, memory, alone = toy(4, vocab_size=8, seed=seed, sharpness=0.7)
    retriever = ToyRetriever(4, seed=seed)
    options = {"weight": weight, "floor": floor, "most_words": most_words, "beam": beam, "n_best": n_best}
    options |= {"max_words": 6, "banned": (PAD, UNK)}
    best = contrastive_search(captioner, memory, retriever, **IDS, **options)
    plain = {"beam": beam, "n_best": n_best, "max_words": 6, "banned": (PAD, UNK)}
    for photo in range(4):
        expected = naive_beam(
            captioner,
            alone[photo],
            **plain,
            allowed=lambda logp: plausible(logp, (PAD, UNK), floor, most_words),
            value=lambda caption, logp, p=photo: (1 - weight) * logp + weight * retriever.log_p(caption, p),
        )
        assert_best(best, photo, expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_without_weight_and_floor_it_is_beam_search(beam):
    captioner, memory, _ = toy(6, vocab_size=9, sharpness=0.7)
    options = {**IDS, "beam": beam, "n_best": 2, "max_words": 7, "banned": (PAD,)}
    plain = beam_search(captioner, memory, **options)
    # No search over 2 * beam continuations can need more words than that of one hypothesis.
    contrast = contrastive_search(
        captioner, memory, ToyRetriever(6, vocab_size=9), **options, weight=0.0, floor=0.0, most_words=2 * beam
    )
    assert torch.equal(contrast.tokens, plain.tokens)
    assert torch.equal(contrast.mask, plain.mask)
    assert torch.equal(contrast.logp, plain.logp)
    assert torch.equal(contrast.score, plain.score)


# --- by hand ---


def contrasted(chain, probability, **options):
    captions, best = searched(partial(contrastive_search, retriever=by_hand(probability)), chain, **options)
    return captions, best.score[0].tolist()


def test_the_retriever_chooses_among_what_the_captioner_finds_plausible():
    chain, probability = {BOS: {CAT: 0.6, DOG: 0.3, RED: 0.1}}, {(CAT,): 0.3, (DOG,): 0.6, (RED,): 1.0}
    captions, score = contrasted(chain, probability, weight=0.75, floor=0.2)
    assert captions == [(DOG, EOS)]  # RED is below a fifth of 0.6
    assert score == pytest.approx([0.25 * math.log(0.3) + 0.75 * math.log(0.6)])
    # 0.25 log 0.1 = -0.58 is above the -0.68 of DOG
    assert contrasted(chain, probability, weight=0.75, floor=0.16)[0] == [(RED, EOS)]
    assert contrasted(chain, probability, weight=0.1, floor=0.16)[0] == [(CAT, EOS)]
    # The floor is under the likeliest word that may be said.
    chain, probability = {BOS: {UNK: 0.98, CAT: 0.015, DOG: 0.005}}, {(CAT,): 0.1, (DOG,): 0.9}
    assert contrasted(chain, probability, floor=0.2, banned=(UNK,))[0] == [(DOG, EOS)]
    # EOS must pass it too.
    chain, probability = {BOS: {CAT: 1.0}, CAT: {RED: 0.9, EOS: 0.1}}, {(CAT,): 1.0, (CAT, RED): 0.2}
    assert contrasted(chain, probability)[0] == [(CAT, EOS)]
    assert contrasted(chain, probability, floor=0.2)[0] == [(CAT, RED, EOS)]
    # There may be fewer plausible captions than places.
    captions, score = contrasted({BOS: {CAT: 0.9, DOG: 0.1}}, {}, floor=0.5, beam=4, n_best=3)
    assert captions == [(CAT, EOS), (), ()]
    assert score[1:] == [-math.inf, -math.inf]


def test_the_search_goes_on_while_the_retriever_may_still_be_won():
    # After CAT EOS, DOG is worth less, and only its last word convinces: 0.1 log 0.4 against 0.9 log 0.6.
    chain = {BOS: {CAT: 0.6, DOG: 0.4}, DOG: {BIG: 1.0}, BIG: {RED: 1.0}}
    captions, score = contrasted(chain, {(CAT,): 0.6, (DOG,): 0.3, (DOG, BIG): 0.2, (DOG, BIG, RED): 1.0})
    assert captions == [(DOG, BIG, RED, EOS)]
    assert score == pytest.approx([0.1 * math.log(0.4)])
    # After CAT EOS (0.3), RED is worth more than DOG, but can no longer win; DOG can, and does: 0.6.
    chain = {BOS: {CAT: 0.3, DOG: 0.6, RED: 0.1}, DOG: {BIG: 1.0}, BIG: {8: 1.0}, RED: {9: 1.0}}
    probability = {(CAT,): 1.0, (RED,): 1.0, (RED, 9): 1.0, (DOG, BIG): 0.01, (DOG, BIG, 8): 1.0}
    assert contrasted(chain, probability, weight=0.5)[0] == [(DOG, BIG, 8, EOS)]


def test_the_search_ends_when_a_sure_retriever_could_not_save_a_caption():
    table = table_of({BOS: {CAT: 0.9, DOG: 0.1}, DOG: {BIG: 1.0}, BIG: {BIG: 1.0}}, vocab_size=8)
    captioner = TableCaptioner()
    contrastive_search(captioner, (table[None],), by_hand({(CAT,): 0.9}), **IDS, weight=0.5)
    assert len(captioner.steps) == 2  # log 0.1 is below log 0.9 + log 0.9 even if no word more were lost


# --- how the retriever is asked ---


def test_the_retriever_is_asked_once_a_step_and_about_few_words():
    captioner, retriever = ToyCaptioner(vocab_size=8, sharpness=0.1), ToyRetriever(5)
    memory = captioner.encode(region_inputs(*photos(5)))
    captioner.steps.clear()
    contrastive_search(captioner, memory, retriever, **IDS, beam=2, most_words=3, max_words=4, banned=(PAD, BOS))
    assert len(retriever.calls) == len(captioner.steps) == 4
    assert retriever.calls[0] == 5 * 3
    assert max(retriever.calls) <= 5 * 2 * 3


@pytest.mark.parametrize("wrong", [math.nan, 0.3, -math.inf])
def test_a_retriever_that_gives_no_log_probability_is_refused(wrong):
    captioner, memory, _ = toy()
    with pytest.raises(ValueError, match="retriever must return log-probabilities"):
        contrastive_search(captioner, memory, lambda tokens, photo: torch.full((len(tokens),), wrong), **IDS)
