"""Rewards measure words: captions in sub-words get what a word-level captioner gets for the same text."""

from functools import partial

import pytest
import torch

from capscore import meteor
from capscore.unusual_order import END, WordOrder, roles
from meteor import miniature
from support.subwords import byte_pairs
from tellapart.data.batches import padded
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.recipe import LocalConfig
from tellapart.rewards import SampledCaptions
from tellapart.rewards.agreement import Consensus, MeteorConsensus, ReferenceGap
from tellapart.rewards.language_model import UnusualOrder, roles_of
from tellapart.rewards.local import Differences, LocalDiscriminative
from tellapart.rewards.words import (
    Different,
    Ending,
    Faithful,
    Repetition,
    RewardVocabulary,
    WordView,
    content_words,
    never_last,
    spread,
)

REFERENCES = [
    ["a man is riding a brown horse", "someone on a horse in a field", "a cowboy rides across the grass"],
    ["two dogs play in the snow", "a brown dog and a white dog run", "dogs chasing each other in snow"],
    ["a red double-decker bus", "the bus isn't moving", "a bus parked near the church"],
]
SAMPLED = [
    (0, "a man is riding a horse"),
    (0, "a cowboy on a horse in the grass"),
    (1, "a dog and a dog in the snow"),
    (1, "two dogs run across the white zebra"),  # zebra: in no reference
    (2, "the double-decker bus isn't parked near a"),
    (2, "bus"),
]
SUBWORDS = byte_pairs([text for texts in REFERENCES for text in texts])


def as_subwords():
    view = WordView.of(SUBWORDS, (text for texts in REFERENCES for text in texts))
    tokens, mask = padded([[*SUBWORDS.encode(text), SUBWORDS.eos] for _, text in SAMPLED], SUBWORDS.pad)
    words = view(tokens, mask)
    photos = torch.tensor([photo for photo, _ in SAMPLED])
    return view.vocabulary, SampledCaptions(words.ids, words.mask, photos, texts=words.texts), words.spans, tokens, mask


def as_words():
    vocabulary = WordTokenizer.build(
        [text for texts in REFERENCES for text in texts] + [text for _, text in SAMPLED], 1
    )
    tokens, mask = padded([[*vocabulary.encode(text), vocabulary.eos] for _, text in SAMPLED], vocabulary.pad)
    return vocabulary, SampledCaptions(tokens, mask, torch.tensor([photo for photo, _ in SAMPLED]))


def consensus(measure, vocabulary):
    references = [[vocabulary.encode(text) for text in texts] for texts in REFERENCES]
    return Consensus(references, end=vocabulary.eos, measure=measure)


def sentence(measure, vocabulary):
    score = consensus(measure, vocabulary)
    return lambda sampled: score(sampled.words, sampled.photos)


def texts_of(sampled, vocabulary):
    if sampled.texts is not None:
        return sampled.texts
    return [vocabulary.decode(words[mask].tolist()) for words, mask in zip(sampled.words, sampled.mask, strict=True)]


def meteor_of(vocabulary, data):
    score = MeteorConsensus(REFERENCES, data=data)
    return lambda sampled: score(texts_of(sampled, vocabulary), sampled.photos)


def faithful(vocabulary):
    references = [[vocabulary.encode(text) for text in texts] for texts in REFERENCES]
    return Faithful(references, content_words(vocabulary), end=vocabulary.eos)


def usual(vocabulary):
    usage = WordOrder.of([*roles(split_words(text)), END] for texts in REFERENCES for text in texts)
    return UnusualOrder(usage, roles_of(vocabulary), end=vocabulary.eos)


def different(vocabulary):
    term = Different()

    def reward(sampled):
        term.remember(sampled)
        return term(sampled)

    return reward


TERMS = {
    **{name: partial(sentence, name) for name in ("CIDEr-D", "CIDEr", "BLEU-4", "ROUGE-L")},
    "ld": lambda vocabulary: LocalDiscriminative(consensus("CIDEr-D", vocabulary), LocalConfig()),
    "ld_low": lambda v: LocalDiscriminative(consensus("CIDEr-D", v), LocalConfig(threshold=0.1, word_threshold=0.1)),
    "ld_diff": lambda vocabulary: Differences(consensus("CIDEr-D", vocabulary)),
    "reference_gap": lambda v: ReferenceGap(consensus("CIDEr-D", v), torch.tensor([[1, 2], [0, 2], [0, 1]])),
    "faithful": faithful,
    "repetition": lambda vocabulary: Repetition(content_words(vocabulary), end=vocabulary.eos),
    "unusual_order": usual,
    "ending": lambda vocabulary: Ending(never_last(vocabulary), end=vocabulary.eos),
    "different": different,
}


@pytest.mark.parametrize("name", TERMS)
def test_a_reward_is_that_of_the_same_words(name):
    vocabulary, sampled, *_ = as_subwords()
    words, by_words = as_words()
    found, expected = TERMS[name](vocabulary)(sampled), TERMS[name](words)(by_words)
    if isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        assert found.unique().numel() > 2
        return
    torch.testing.assert_close(found.sentence, expected.sentence, atol=1e-6, rtol=0)
    if expected.words is not None:
        torch.testing.assert_close(found.words, expected.words, atol=1e-6, rtol=0)


def test_meteor_reads_the_text(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    data = meteor.load(miniature.write(tmp_path / "data"))
    vocabulary, sampled, *_ = as_subwords()
    words, by_words = as_words()
    found, expected = meteor_of(vocabulary, data)(sampled), meteor_of(words, data)(by_words)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_word_tokenizer_is_taken_as_it_is():
    words, sampled = as_words()
    view = WordView.of(words, ["never read"])
    seen = view(sampled.words, sampled.mask)
    assert view.vocabulary is words
    assert seen.ids is sampled.words
    assert seen.mask is sampled.mask
    assert seen.spans is None
    assert spread(seen.ids, seen.ids[:, 0], None) is seen.ids


def test_what_a_word_gets_reaches_all_of_its_tokens_and_punctuation_gets_the_rest():
    text = "a cowboy, riding"
    spelt = SUBWORDS.encode(text)
    view = WordView.of(SUBWORDS, [])
    words = view(torch.tensor([[*spelt, SUBWORDS.eos]]), torch.ones(1, len(spelt) + 1, dtype=torch.bool))
    assert words.texts == [text]
    assert words.ids.tolist() == [[*map(view.vocabulary.id_of, ("a", "cowboy", "riding")), view.vocabulary.eos]]
    each = spread(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([9.0]), words.spans)[0].tolist()
    by_letter = dict.fromkeys(range(len(text)), 9.0) | {0: 1.0} | dict.fromkeys(range(2, 8), 2.0)
    by_letter |= dict.fromkeys(range(10, 16), 3.0)
    end = 0
    for token, value in zip(spelt, each, strict=False):
        piece = SUBWORDS.decode([token])
        start = text.index(piece, end)
        end = start + len(piece)
        assert value == by_letter[start], piece
    assert each[-1] == 4.0
    assert len(spelt) > 4  # words really are spelt in parts


def test_a_caption_that_was_cut_has_no_end():
    spelt = SUBWORDS.encode("two dogs")
    words = WordView.of(SUBWORDS, [])(torch.tensor([spelt]), torch.ones(1, len(spelt), dtype=torch.bool))
    assert words.ids.shape == (1, 2)
    assert words.mask.all()


def test_unseen_words_differ_and_are_content_words():
    vocabulary = RewardVocabulary(["a dog"])
    zebra, giraffe = vocabulary.encode("zebra giraffe")
    assert zebra != giraffe
    assert vocabulary.encode("zebra") == [zebra]
    assert vocabulary.unk not in (zebra, giraffe)
    content = content_words(vocabulary)
    assert content[zebra]
    assert content[giraffe]
    assert not content[vocabulary.encode("the")[0]]  # no reference has it, but everybody knows it
