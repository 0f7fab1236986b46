"""GL-RG's seeding and boosting by its formulas, for clips with more captions than are drawn."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from objectives.test_caption_weights import context, similarity_in
from objectives.test_policy_gradient import Says
from tellapart import score
from tellapart.data.batches import Batch, BatchStream, CaptionedPhotos
from tellapart.data.streams import region_inputs
from tellapart.data.tokenizers import WordTokenizer
from tellapart.objectives.caption_weights import caption_weights
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.objectives.policy_gradient import PolicyGradient
from tellapart.recipe import CaptionWeights, PolicyConfig
from tellapart.rewards import Reward
from tellapart.rewards.agreement import Consensus
from tellapart.rewards.words import WordView

DRAW = np.random.default_rng(0)
NOUNS, VERBS = ["man", "dog", "horse", "girl", "car"], ["runs", "jumps", "rides", "sings"]
PLACES = ["in a field", "on a road", "at home", "in the rain", ""]


def written():
    noun, verb, place = (DRAW.choice(part) for part in (NOUNS, VERBS, PLACES))
    return f"a {noun} {verb} {place}".strip()


TEXTS = [[written() for _ in range(count)] for count in (9, 6, 12)]
WORDS = WordTokenizer.build([text for texts in TEXTS for text in texts], 1)
REFERENCES = [[WORDS.encode(text) for text in texts] for texts in TEXTS]
CONTEXT = context(texts=TEXTS, words=WORDS)


class Store:
    shape = (1, 1)

    def row(self, example):
        return example.id

    def count(self, example):
        return 1

    def grid(self, rows, most=None):
        return torch.zeros(len(rows), 1, 1)


class Guess:
    """Log p depends on the word alone."""

    def encode(self, inputs):
        return ()

    def forward(self, tokens, memory, token_mask=None):
        return torch.linspace(-2, 2, len(WORDS)).expand(int(token_mask.sum()), -1)


@pytest.mark.parametrize("metric", ["BLEU-4", "ROUGE-L", "METEOR"])
def test_weights_are_the_metrics_own_scores_against_all_other_references(metric):
    """Words without punctuation, so that the metrics' tokens are the vocabulary's."""
    if metric == "METEOR":
        pytest.importorskip("pycocoevalcap")
    weights = caption_weights(CaptionWeights("leave_one_out", metric=metric), CONTEXT)
    for item in (0, 2):
        for number in (0, 3, 5):
            others = [text for n, text in enumerate(TEXTS[item]) if n != number]
            alone = score({"a": TEXTS[item][number]}, {"a": others}, metrics=[metric])[metric]
            assert weights[item][number].item() == pytest.approx(alone, abs=1e-4)


def test_a_drawn_caption_keeps_its_weight_and_the_loss_is_eq_8_over_words():
    examples = [SimpleNamespace(id=n, captions=texts) for n, texts in enumerate(TEXTS)]
    data = CaptionedPhotos([({"regions": Store()}, examples)], WORDS, 20)
    data.weights = caption_weights(CaptionWeights("leave_one_out"), CONTEXT)
    own = {(item, tuple(ids)): [] for item, of in enumerate(REFERENCES) for ids in of}
    for item, of in enumerate(REFERENCES):
        for number, ids in enumerate(of):
            others = [other for n, other in enumerate(of) if n != number]
            own[item, tuple(ids)].append(np.mean([similarity_in(REFERENCES, ids, other) for other in others]))
    logp = torch.linspace(-2, 2, len(WORDS)).log_softmax(0)
    seen = set()
    stream = iter(BatchStream(data, batch_size=2, captions_per_photo=4, seed=5))
    for _ in range(8):
        batch = next(stream)
        total, words = 0.0, 0
        for row, (tokens, mask) in enumerate(zip(batch.tokens, batch.token_mask, strict=True)):
            ids = tokens[mask].tolist()
            item = int(batch.photos[row // 4])
            weight = own[item, tuple(ids[:-1])][0]  # equal captions of an item have equal weights
            assert batch.weights[row].item() == pytest.approx(weight, abs=1e-5)
            seen.add((item, tuple(ids)))
            total -= weight * sum(logp[id].item() for id in ids)
            words += len(ids)
        loss = cross_entropy_step(Guess(), batch, bos=WORDS.bos).loss
        assert loss.item() == pytest.approx(total / words, rel=1e-4)
    assert len(seen) > 12


class ByCider(Says):
    """CIDEr-D with EOS counted, as in boosting."""

    def __init__(self):
        super().__init__()
        self._consensus = Consensus(REFERENCES, end=WORDS.eos)

    def _reward(self, said):
        return Reward(self._consensus(said.words, said.photos, said.reference))


class OneWord(torch.nn.Module):
    """Draws any words; greedy says the last one of the vocabulary without end."""

    def __init__(self):
        super().__init__()
        self.score = torch.nn.Parameter(torch.linspace(0, 1, len(WORDS)))

    def encode(self, inputs):
        return (torch.zeros(inputs.items_count, 1),)

    def start(self, memory):
        return memory

    def step(self, token, state, memory):
        return self.score.expand(len(token), -1), state


def boosted(baseline, **policy):
    """The baseline of each of two items' four samples, with their rewards; three of the references are drawn."""
    chosen = [[7, 2, 5], [4, 0, 3]]
    rows = [[*REFERENCES[item][k], WORDS.eos] for item, ks in enumerate(chosen) for k in ks]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [WORDS.pad] * (longest - len(row)) for row in rows])
    which = torch.tensor(sum(chosen, []))  # noqa: RUF017
    batch = Batch(np.array([0, 1]), region_inputs(torch.zeros(2, 1, 1)), tokens, tokens != WORDS.pad, which)
    config = PolicyConfig(samples=4, baseline=baseline, **policy)
    view = WordView(WORDS, WORDS)
    learn = PolicyGradient(OneWord(), WORDS, ByCider(), config, max_words=5, view=view)
    torch.manual_seed(0)
    memory = learn._captioner.encode(batch.inputs)
    drawn = torch.tensor([[*REFERENCES[n // 4][n % 4], WORDS.eos, WORDS.pad, WORDS.pad][:5] for n in range(8)])
    sampled, _ = learn._in_words(drawn, drawn != WORDS.pad, batch, 0.0)
    reward = learn._scores._reward(sampled)
    return learn._baseline(reward, sampled, 4, memory, batch).sentence, reward.sentence, chosen


def test_b1_is_the_mean_of_references_each_against_all_others_with_the_rewards_own_scorer():
    found, _, chosen = boosted("references")
    with_end = [[[*ids, WORDS.eos] for ids in of] for of in REFERENCES]
    expected = []
    for item, ks in enumerate(chosen):
        scores = []
        for k in ks:
            others = [other for n, other in enumerate(with_end[item]) if n != k]
            scores.append(np.mean([similarity_in(with_end, with_end[item][k], other) for other in others]))
        expected += [np.mean(scores)] * 4
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert expected[0] != pytest.approx(expected[4])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_b2_is_the_mean_of_the_best_samples_of_the_clip(count):
    found, reward, _ = boosted("best", top_q=count)
    expected = [np.mean(sorted(part.tolist())[-count:]) for part in reward.view(2, 4) for _ in range(4)]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_b_scst_is_the_greedy_caption_and_none_is_nothing():
    found, _, _ = boosted("greedy")
    said = [len(WORDS) - 1] * 5
    with_end = [[[*ids, WORDS.eos] for ids in of] for of in REFERENCES]
    expected = [np.mean([similarity_in(with_end, said, other) for other in of]) for of in with_end[:2]]
    np.testing.assert_allclose(found.numpy(), np.repeat(expected, 4), atol=1e-5)
    assert boosted("none")[0].tolist() == [0.0] * 8
