"""The step: what is drawn, compared and learned from, with every captioner and all choices together."""

import pytest
import torch

from support.decoders import greedy
from support.pairwise import pairwise
from tellapart.captioners import CAPTIONERS
from tellapart.data.batches import Batch
from tellapart.data.tokenizers import WordTokenizer
from tellapart.objectives import StepInfo
from tellapart.objectives.policy_gradient import PolicyGradient, divergence, sample_stats
from tellapart.protocols.captioners import FEATURES, every_stream, tiny
from tellapart.recipe import PolicyConfig
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.words import WordView

PAD, BOS, EOS, UNK, CAT, DOG = range(6)
VOCABULARY, START = 11, StepInfo(0, 0.0)


WORDS = WordTokenizer(["cat", "dog", "bird", "fish", "horse", "sheep", "cow"])


class Says:
    """Captions are worth the share of their words that are `word`; notes what it was asked for."""

    names = ("reward",)

    def __init__(self, word=CAT, per_word=False):
        self.word, self.per_word, self.heard, self.compared, self.missed = word, per_word, [], [], 0

    def __call__(self, said, samples):
        self.heard.append(said)
        reward = self._reward(said)
        return reward, {"reward": reward.per_caption(said.mask).mean().item()}

    def score_baseline(self, said):
        self.compared.append(said)
        return self._reward(said)

    def _reward(self, said):
        right = ((said.words == self.word) & said.mask).float()
        share = right.sum(1) / said.mask.sum(1).clamp(min=1)
        return Reward(torch.zeros_like(share), right) if self.per_word else Reward(share)

    def skip_batch(self):
        self.missed += 1

    def state(self):
        return {"seen": torch.tensor(len(self.heard))}

    def restore(self, state):
        self.restored = int(state["seen"])


class Arbitrary(Says):
    """Different captions are worth different numbers."""

    def _reward(self, said):
        places = torch.arange(1, said.words.shape[1] + 1)
        return Reward((said.words * said.mask * places).sum(1) % 7.0)


def batch(photos=3, references=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(CAT, VOCABULARY, (photos * references, 4), generator=draw)
    tokens[:, 2] = EOS
    tokens[:, 3] = PAD
    features = torch.randn(photos, 2, FEATURES, generator=draw)
    positions = torch.arange(10, 10 + photos).numpy()
    return Batch(positions, every_stream(features), tokens, tokens != PAD, torch.arange(references).repeat(photos))


def learner(captioner, scores=None, reference_policy=None, hide_regions=0.0, **policy):
    config, others = PolicyConfig(**policy), {"reference_policy": reference_policy, "hide_regions": hide_regions}
    view = WordView(WORDS, WORDS)
    return PolicyGradient(captioner, WORDS, scores or Says(), config, max_words=5, view=view, **others)


def gradients(captioner, loss):
    captioner.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in captioner.parameters() if p.grad is not None])


def learned(learn, captioner, given, steps=30):
    """The log lines of so many steps of Adam."""
    optimizer, lines = torch.optim.Adam(captioner.parameters(), lr=0.02), []
    torch.manual_seed(0)
    for _ in range(steps):
        result = learn(given, START)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        lines.append(result.log)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTIONERS)
def test_rewarding_a_word_makes_it_likelier(name):
    captioner = tiny(name, VOCABULARY)
    rewards = [line["reward"] for line in learned(learner(captioner), captioner, batch(), 60)]
    assert sum(rewards[-5:]) / 5 > 0.6
    assert rewards[0] < 0.3


@pytest.mark.parametrize("name", CAPTIONERS)
@pytest.mark.parametrize("policy", [{}, {"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.8}])
def test_one_pass_and_two_give_the_same_gradient(name, policy):
    captioner = tiny(name, VOCABULARY)
    found = []
    for passes in ("one", "two"):
        torch.manual_seed(1)
        result = learner(captioner, Arbitrary(), passes=passes, **policy)(batch(), START)
        found.append((result.loss.detach(), gradients(captioner, result.loss)))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-6, rtol=1e-4)
    assert found[0][1].abs().max() > 1e-4


@pytest.mark.parametrize("name", CAPTIONERS)
@pytest.mark.parametrize("chunk", [1, 2])
def test_chunks_give_the_same_gradient_and_keep_less(name, chunk):
    """Three photos in chunks of one or two: what is kept for the backward pass is counted as it is saved."""
    captioner, kept = tiny(name, VOCABULARY).train(), []  # as the loop has it in the backward pass

    def step(size):
        kept.clear()
        torch.manual_seed(1)
        learn = learner(captioner, Arbitrary(), passes="two", chunk=size)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved.numel()) or saved, lambda it: it):
            result = learn(batch(), START)
        count = sum(kept)
        return result.loss.detach(), gradients(captioner, result.loss), count

    whole, chunked = step(0), step(chunk)
    torch.testing.assert_close(whole[:2], chunked[:2], atol=1e-6, rtol=1e-4)
    assert chunked[2] < whole[2] / 2


SAMPLERS = [
    {"sampler": "sample"},
    {"sampler": "beam"},
    {"sampler": "diverse_beam", "samples": 4, "groups": 2},
    {"sampler": "sample", "no_repeat": 1},
    {"sampler": "sample", "references": 2},
    {"sampler": "greedy", "samples": 1, "references": 2},
]
BASELINES = ["leave_one_out", "greedy", "second_sample", "mean", "best", "references", "running_mean", "none"]


CHOICES = {
    "sampler": SAMPLERS,
    "baseline": BASELINES,
    "whiten": ["none", "batch", "photo"],
    "reduction": ["words", "sentence_mean", "sentence_sum"],
    "per_word": [False, True],
}


def a_recipe_may_say(sampler, baseline, *_):
    return baseline != "second_sample" or sampler["sampler"] == "sample"


@pytest.mark.parametrize(tuple(CHOICES), pairwise(*CHOICES.values(), allowed=a_recipe_may_say), ids=str)
def test_all_choices_combine(sampler, baseline, whiten, reduction, per_word):
    captioner = tiny("show_tell", VOCABULARY)
    torch.manual_seed(2)
    scores = Says(per_word=per_word)
    choices = {"samples": 3} | sampler
    learn = learner(captioner, scores, baseline=baseline, whiten=whiten, reduction=reduction, **choices)
    for _ in range(2):  # what runs along is 0 at first
        result = learn(batch(), START)
    assert gradients(captioner, result.loss).isfinite().all()
    each = choices["samples"] + choices.get("references", 0)
    assert len(scores.heard[0].words) == 3 * each
    assert scores.heard[0].photos.tolist() == [10] * each + [11] * each + [12] * each
    compares = baseline in ("greedy", "second_sample", "references")
    assert len(scores.compared) == 2 * compares


def test_references_beside_samples_know_which_they_are():
    scores = Says()
    given = batch()
    given.chosen = torch.tensor([4, 1, 0, 3, 2, 2])
    learner(tiny("transformer", VOCABULARY), scores, samples=2, references=2)(given, START)
    said = scores.heard[0]
    assert said.reference.tolist() == [-1, -1, 4, 1, -1, -1, 0, 3, -1, -1, 2, 2]
    for row, own in ((2, 0), (3, 1), (6, 2), (7, 3)):
        assert said.words[row][said.mask[row]].tolist() == given.tokens[own][:3].tolist()


def test_a_reference_that_is_worth_more_than_the_samples_becomes_likelier():
    captioner = tiny("show_tell", VOCABULARY)
    given = batch(photos=1, references=1)
    given.tokens[0] = torch.tensor([DOG, DOG, EOS, PAD])
    learned(learner(captioner, Says(DOG), samples=2, references=1, reduction="sentence_sum"), captioner, given)
    ids = {"bos": BOS, "eos": EOS, "pad": PAD}
    said = greedy(captioner, captioner.encode(given.inputs), **ids, max_words=3).tokens
    assert DOG in said[0].tolist()


@pytest.mark.parametrize("policy", [{}, {"kl": 0.1}, {"top_k": 2}, {"top_p": 0.9}], ids=str)
@pytest.mark.parametrize("name", ["transformer", "up_down"])
def test_words_of_a_reference_that_can_never_be_said_teach_nothing(name, policy):
    captioner = tiny(name, VOCABULARY)
    before = tiny(name, VOCABULARY) if "kl" in policy else None
    given = batch(photos=1, references=1)
    given.tokens[0] = torch.tensor([UNK, DOG, EOS, PAD])
    learn = learner(captioner, Says(DOG), before, samples=2, references=1, **policy)
    torch.manual_seed(0)
    result = learn(given, START)
    found = gradients(captioner, result.loss)
    assert result.loss.isfinite()
    assert found.isfinite().all()
    assert found.abs().max() > 0  # from the words that can be


@pytest.mark.parametrize("passes", ["one", "two"])
def test_the_first_words_of_a_mixer_are_references_learned_by_cross_entropy(passes):
    """Without a reward nothing else is learned, so that the gradient is that of cross-entropy over these words."""
    captioner, here = tiny("transformer", VOCABULARY).eval(), batch()
    nothing = Says(word=-1)
    learn = learner(captioner, nothing, samples=2, baseline="none", mixer=2, passes=passes)
    found = gradients(captioner, learn(here, START).loss)
    (said,) = nothing.heard
    assert said.words[:, :2].tolist() == here.tokens[:, :2].tolist()

    fed = torch.cat([torch.full((6, 1), BOS), here.tokens[:, :1]], 1)
    logits = captioner(fed, captioner.encode(here.inputs)).index_fill(2, torch.tensor([PAD, BOS, UNK]), -torch.inf)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), here.tokens[:, :2].flatten(), reduction="sum")
    torch.testing.assert_close(found, gradients(captioner, loss / said.mask.sum()), atol=1e-5, rtol=1e-4)


def test_a_mixer_forces_ever_fewer_words_and_none_at_the_end():
    captioner, here, counts = tiny("transformer", VOCABULARY).eval(), batch(photos=30), []
    for progress in (0.0, 0.5, 0.99):
        scores = Says()
        torch.manual_seed(0)
        learner(captioner, scores, samples=2, mixer=2)(here, StepInfo(0, progress))
        same = scores.heard[0].words[:, :2] == here.tokens[:, :2]
        counts.append(same.float().mean(0).tolist())
    (first, second), (half, after), (last, _) = counts
    assert (first, second, half) == (1, 1, 1)
    assert max(after, last) < 0.5


def test_dropout_is_off_while_captions_are_drawn_and_learned_from():
    captioner = tiny("transformer", VOCABULARY, dropout=0.5).train()
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        result = learner(captioner)(batch(), START)
        found.append(gradients(captioner, result.loss))
        assert captioner.training
    torch.testing.assert_close(*found)
    torch.manual_seed(5)
    with_dropout = gradients(captioner, learner(captioner, dropout=True)(batch(), START).loss)
    assert not torch.allclose(found[0], with_dropout)
    result = learner(captioner, Says(word=-1))(batch(), START)
    assert not gradients(captioner, result.loss).any()  # equal rewards teach nothing


def test_the_greedy_caption_of_the_baseline_is_that_of_test_time_though_samples_have_dropout():
    """Self-critical training compares with what the captioner would say at test time (Rennie et al., 2017)."""
    captioner = tiny("transformer", VOCABULARY, dropout=0.5).train()
    compared = []
    for seed in range(4):
        torch.manual_seed(seed)
        scores = Says()
        learner(captioner, scores, dropout=True, baseline="greedy", samples=1)(batch(), START)
        compared.append(scores.compared[0].words)
    assert captioner.training
    expected = Says()
    learner(captioner, expected, baseline="greedy", samples=1)(batch(), START)
    assert all(words.equal(expected.compared[0].words) for words in compared)


def test_no_divergence_at_the_start_and_some_after():
    """Whatever the two see: regions are hidden from both, and of each photo one stays."""
    captioner, before = tiny("up_down", VOCABULARY), tiny("up_down", VOCABULARY).requires_grad_(False)
    learn = learner(captioner, reference_policy=before, kl=0.1, hide_regions=1.0)
    masks = []
    encode = captioner.encode
    captioner.encode = lambda inputs: masks.append(inputs["regions"].mask) or encode(inputs)
    torch.manual_seed(0)
    assert learn(batch(), START).log["kl"] == pytest.approx(0, abs=1e-6)
    assert [mask.sum(1).tolist() for mask in masks] == [[1, 1, 1]]
    with torch.no_grad():
        for p in captioner.parameters():
            p.add_(0.3 * torch.randn_like(p))
    assert learn(batch(), START).log["kl"] > 0.01


def test_divergence_is_that_of_the_distributions():
    """Over many draws, the estimate is the true KL."""
    p, q = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    draws = torch.multinomial(p.exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(0))[None]
    exact = (p.exp() * (p - q)).sum().item()
    found = divergence(p[draws], q[draws], torch.ones_like(draws, dtype=torch.bool)).item()
    assert found == pytest.approx(exact, rel=0.01)


def test_the_running_mean_is_read_before_it_grows():
    captioner, scores = tiny("show_tell", VOCABULARY), Says()
    learn = learner(captioner, scores, baseline="running_mean", sampler="greedy", samples=1)
    score_baseline = []
    for seed in range(3):
        learn(batch(seed=seed), START)
        score_baseline.append(scores._reward(scores.heard[-1]).sentence)
    total, count = learn.state()["so_far"].tolist()
    assert count == 9
    assert total == pytest.approx(torch.cat(score_baseline).sum().item(), rel=1e-5)
    again = learner(captioner, Says(), baseline="running_mean", sampler="greedy", samples=1)
    again.restore(learn.state())
    assert again.state()["so_far"].tolist() == [total, count]


def test_a_share_without_photos_has_the_same_log_line():
    captioner, scores = tiny("show_tell", VOCABULARY), Says()
    learn = learner(captioner, scores, baseline="running_mean")
    torch.manual_seed(0)
    some = learn(batch(), StepInfo(3, 0.75))
    assert scores.heard[0].progress == 0.75  # rewards know how far training is
    nothing = learn(batch(photos=0), START)
    assert list(nothing.log) == list(some.log)
    assert nothing.weight == 0
    assert scores.missed == 1


def test_portrait_by_hand():
    tokens = torch.tensor([[CAT, DOG, EOS, CAT], [CAT, CAT, EOS, PAD], [CAT, DOG, EOS, PAD], [6, 7, 8, 9]])
    mask = torch.tensor([[True, True, True, False]] * 3 + [[True] * 4])
    content = torch.arange(VOCABULARY) >= CAT
    said = SampledCaptions(tokens, mask, torch.tensor([0, 0, 0, 0]))
    assert sample_stats(said, 4, content, EOS) == (10 / 4, 3 / 4, 1 / 4, 1 / 4, 13)
    assert sample_stats(said, 2, content, EOS).unique == 1  # the same caption of two photos
