"""What all rewards that ask a retriever have in common."""

import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from rewards.retriever_by_hand import EOS, FIRST, frozen, sampled_captions
from tellapart.rewards import SampledCaptions
from tellapart.rewards.retrieval import (
    BoundedRank,
    GlobalDiscriminative,
    GroupGap,
    HardNeighbour,
    HardPositives,
    InBatch,
    InBatchLogProbability,
    InTurn,
    OwnSimilarity,
)

PHOTOS, WORDS = 30, 12
torch.manual_seed(0)
EARS = frozen(F.normalize(torch.randn(PHOTOS, 6), dim=1), torch.randn(WORDS, 6), pool=[i // 18 for i in range(PHOTOS)])
GROUPS = torch.stack([torch.randperm(PHOTOS)[:8] for _ in range(PHOTOS)])
GROUPS[3, 4:], GROUPS[5] = -1, -1
NEAREST = GROUPS[:, 0]
TERMS = {
    "hard neighbour": HardNeighbour(EARS, NEAREST, 0.4),
    "in batch": InBatch(EARS, 0.4),
    "GD": GlobalDiscriminative(EARS, NEAREST, 0.4, per_photo=torch.linspace(0.5, 1.5, PHOTOS)),
    "average gap": GroupGap(EARS, GROUPS),
    "hardest gap": GroupGap(EARS, GROUPS, "hardest", k=3, curriculum=True),
    "own similarity": OwnSimilarity(EARS),
    "log probability": InBatchLogProbability(EARS),
    "log probability among look-alikes": InBatchLogProbability(EARS, distractors=GROUPS),
    "hard positives": HardPositives(EARS, F.normalize(torch.randn(2, PHOTOS, 6), dim=2)),
    "in turn": InTurn([InBatchLogProbability(EARS), OwnSimilarity(EARS)]),
    "rank": BoundedRank(EARS, base=12),
}


@pytest.fixture(params=TERMS)
def term(request):
    return TERMS[request.param]


def batch(*, width=5):
    """Six photos of two data sets, one of them in two places, with three captions each; one says nothing."""
    torch.manual_seed(1)
    photos = torch.tensor([3, 17, 20, 5, 3, 29]).repeat_interleave(3)
    captions = torch.randint(WORDS, (18, 4)).tolist()
    captions = [caption[: 1 + i % 4] for i, caption in enumerate(captions)]
    captions[7] = []
    return sampled_captions(captions, photos.tolist(), width=width, progress=0.4)


def test_every_caption_has_a_finite_number(term):
    found = term(batch())
    assert found.sentence.shape == (18,)
    assert found.sentence.dtype == torch.float32
    assert found.sentence.isfinite().all()
    assert found.sentence.unique().numel() > 4  # and they differ
    assert found.words is None


@pytest.mark.parametrize("seed", range(3))
def test_rewards_move_with_their_captions(term, seed):
    plain = batch()
    order = torch.randperm(18, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(term(plain.of(order)).sentence, term(plain).sentence[order])


def test_padding_and_what_follows_the_end_change_nothing(term):
    plain = batch()
    expected = term(plain).sentence
    torch.testing.assert_close(term(batch(width=9)).sentence, expected)
    garbage = plain.words.masked_fill(~plain.mask, FIRST)
    torch.testing.assert_close(term(replace(plain, words=garbage)).sentence, expected)


def test_a_pickled_reward_gives_the_same(term):
    again = pickle.loads(pickle.dumps(term))
    torch.testing.assert_close(again(batch()).sentence, term(batch()).sentence, rtol=0, atol=0)


def test_a_reward_asked_twice_and_in_between_about_something_else_gives_the_same(term):
    first, second = batch(), batch().of(torch.arange(6, 12))
    before = term(first).sentence.clone()
    term(second)
    torch.testing.assert_close(term(first).sentence, before, rtol=0, atol=0)


def test_one_photo_and_one_caption_are_a_batch_too(term):
    one = batch().of(torch.tensor([4]))
    assert term(one).sentence.shape == (1,)
    assert term(one).sentence.isfinite().all()


def test_captions_that_say_nothing_at_all_are_worth_the_same(term):
    silent = SampledCaptions(torch.full((4, 1), EOS), torch.ones(4, 1, dtype=torch.bool), torch.tensor([3, 3, 20, 20]))
    found = term(silent).sentence
    assert found.isfinite().all()
    assert found[0] == found[1]
    assert found[2] == found[3]


def test_no_reward_changes_what_the_retriever_remembers():
    shared = batch()
    together = {name: term(shared).sentence for name, term in TERMS.items()}
    for name, term in reversed(TERMS.items()):
        torch.testing.assert_close(term(batch()).sentence, together[name], rtol=0, atol=0)
