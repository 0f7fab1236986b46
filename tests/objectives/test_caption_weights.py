"""How much references count in cross-entropy, against plain loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from capscore.errors import UserError
from scored import ngrams
from tellapart.data.batches import Batch
from tellapart.data.streams import region_inputs
from tellapart.data.tokenizers import WordTokenizer
from tellapart.objectives.caption_weights import caption_weights
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.recipe import CaptionWeights, ScheduledSampling
from tellapart.rewards.agreement import Consensus
from tellapart.training.optimizer import chance_of_own_words

TEXTS = [
    ["a man rides a horse", "a man on a brown horse", "someone rides", "the horse runs fast in a field"],
    ["two dogs play", "a dog and a dog in snow", "dogs in the snow"],
    ["a bus"],
]
WORDS = WordTokenizer.build([text for texts in TEXTS for text in texts], 1)
REFERENCES = [[WORDS.encode(text) for text in texts] for texts in TEXTS]


def context(look_alikes=((1, 2), (0, -1), (-1, -1)), texts=TEXTS, words=WORDS):
    references = [[words.encode(text) for text in of_item] for of_item in texts]
    return SimpleNamespace(
        references=references,
        vocabulary=words,
        consensus=lambda measure: Consensus(references, end=words.eos, measure=measure),
        look_alikes=torch.tensor(look_alikes),
        data=SimpleNamespace(examples=[SimpleNamespace(captions=of_item) for of_item in texts]),
    )


def similarity_in(references, caption, reference):
    """CIDEr-D of one pair, with dictionaries; documents are the items with all of their references."""
    documents = [{g for text in texts for n in range(1, 5) for g in ngrams(text, n)} for texts in references]

    def weigh(words, n):
        df = {g: max(1, sum(g in document for document in documents)) for g in ngrams(words, n)}
        return {g: count * math.log(len(documents) / df[g]) for g, count in ngrams(words, n).items()}

    total = 0.0
    for n in range(1, 5):
        ours, theirs = weigh(caption, n), weigh(reference, n)
        lengths = math.sqrt(sum(w * w for w in ours.values())) * math.sqrt(sum(w * w for w in theirs.values()))
        product = sum(min(w, theirs[g]) * theirs[g] for g, w in ours.items() if g in theirs)
        total += product / lengths if lengths else 0.0
    return 10 * total / 4 * math.exp(-((len(caption) - len(reference)) ** 2) / (2 * 6**2))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (TEXTS, WORDS),
        # A captioner that knows no word at all gives the same weights; words count as they are written: "An", "naps."
        (
            [["An ocelot naps.", "an ocelot naps", "a serval naps"], ["dogs play", "Dogs play", "two dogs"]],
            WordTokenizer.build(["nothing of it"], 1),
        ),
    ],
)
def test_a_reference_weighs_by_its_agreement_with_all_others_of_its_item(texts, words):
    weights = caption_weights(CaptionWeights("leave_one_out"), context(texts=texts, words=words))
    split = [[text.split() for text in of_item] for of_item in texts]
    for item, references in enumerate(split[:2]):
        for number, caption in enumerate(references):
            others = [other for k, other in enumerate(references) if k != number]
            expected = np.mean([similarity_in(split, caption, other) for other in others])
            assert weights[item][number].item() == pytest.approx(expected, abs=1e-5)
    if texts is TEXTS:
        assert weights[2].tolist() == [0.0]  # there is no other
    else:
        assert weights[0][0] < weights[0][1]


@pytest.mark.parametrize("normalise", ["item", "global"])
def test_weights_may_have_mean_one(normalise):
    weights = caption_weights(CaptionWeights("leave_one_out", normalise=normalise), context())
    if normalise == "global":
        assert torch.cat(weights).mean().item() == pytest.approx(1)
    else:
        assert [each.mean().item() for each in weights] == pytest.approx([1, 1, 1])
    plain = caption_weights(CaptionWeights("leave_one_out"), context())
    ratio = weights[0] / plain[0]
    assert ratio[plain[0] > 0].std().item() == pytest.approx(0, abs=1e-4)  # the order of weights is kept


def test_a_reference_that_fits_the_look_alikes_counts_less():
    weights = caption_weights(CaptionWeights("cider_between"), context())
    consensus = Consensus(REFERENCES, end=WORDS.eos)
    rows = [[*caption, WORDS.eos] for caption in REFERENCES[0]]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [WORDS.pad] * (longest - len(row)) for row in rows])
    scores = np.mean([consensus(tokens, torch.full((4,), other)).numpy() for other in (1, 2)], axis=0)
    np.testing.assert_allclose(weights[0].numpy(), 1.5 - scores / scores.max(), atol=1e-5)
    assert weights[2].tolist() == [1.0]  # nothing to be told from
    with pytest.raises(UserError, match=r"caption_weights\.metric: there is no 'CIDR' here; there are CIDEr-D"):
        caption_weights(CaptionWeights("leave_one_out", metric="CIDR"), context())


class Sure:
    """Every word has the same log p."""

    def encode(self, inputs):
        return ()

    def forward(self, tokens, memory, token_mask=None):
        return torch.zeros(int(token_mask.sum()), 7)


def test_weighted_words_are_divided_by_the_number_of_words_so_that_shares_add_up():
    tokens = torch.tensor([[4, 5, 2], [6, 2, 0], [4, 2, 0], [5, 5, 2]])
    weights = torch.tensor([2.0, 0.0, 1.0, 0.5])

    def step(rows):
        part = Batch(range(len(rows)), region_inputs(torch.zeros(len(rows), 1, 1)), tokens[rows], tokens[rows] != 0)
        part.weights = weights[rows]
        return cross_entropy_step(Sure(), part, bos=1)

    whole, halves = step([0, 1, 2, 3]), [step([0, 1]), step([2, 3])]
    expected = np.log(7) * (2 * 3 + 0 * 2 + 1 * 2 + 0.5 * 3) / 10
    assert whole.loss.item() == pytest.approx(expected, abs=1e-6)
    joined = sum(half.loss.item() * half.weight for half in halves) / sum(half.weight for half in halves)
    assert joined == pytest.approx(expected, abs=1e-6)


def test_a_curve_of_scheduled_sampling_rises_and_falls():
    config = ScheduledSampling(curve=[[0, 0.25], [1 / 3, 0], [1, 0.25]])
    found = [chance_of_own_words(config, 0, progress) for progress in (0, 1 / 6, 1 / 3, 2 / 3, 1)]
    assert found == pytest.approx([0.25, 0.125, 0, 0.125, 0.25])
