"""Sampled captions as words of any tokens; rewards about single words, against counts over words."""

import math
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from capscore import meteor
from capscore.objects import CLASSES
from capscore.words import END as LAST_WORD
from capscore.words import WordOrder, bad_end, precision, roles
from detectors import tiny_yolox
from meteor import miniature
from rewards.captions import context, sampled
from support.subwords import byte_pairs
from tellapart.data.batches import padded
from tellapart.data.examples import Example
from tellapart.data.store import Stores
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.metrics.objects import objects as measured
from tellapart.recipe import LocalConfig, RewardsConfig
from tellapart.rewards import SampledCaptions, registry
from tellapart.rewards.agreement import Agreement, Consensus, MeteorConsensus, ReferenceGap
from tellapart.rewards.combine import Combined
from tellapart.rewards.language_model import UnusualOrder
from tellapart.rewards.local import Differences, LocalDiscriminative
from tellapart.rewards.words import (
    Different,
    Ending,
    Faithful,
    Objects,
    Repetition,
    RewardVocabulary,
    WordView,
    content_words,
    fingerprints,
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
    texts = [text for texts in REFERENCES for text in texts] + [text for _, text in SAMPLED]
    vocabulary = WordTokenizer.build(texts, 1)
    ids = [vocabulary.encode(text) for _, text in SAMPLED]
    return vocabulary, sampled(ids, [photo for photo, _ in SAMPLED], end=vocabulary.eos, filler=vocabulary.pad)


def ids_of(vocabulary):
    return [[vocabulary.encode(text) for text in texts] for texts in REFERENCES]


def consensus(vocabulary, measure="CIDEr-D"):
    return Consensus(ids_of(vocabulary), end=vocabulary.eos, measure=measure)


def different(vocabulary):
    term = Different()

    def reward(sampled):
        term.remember(sampled)
        return term(sampled)

    return reward


LOW = LocalConfig(threshold=0.1, word_threshold=0.1)
USAGE = WordOrder.of([*roles(split_words(text)), LAST_WORD] for texts in REFERENCES for text in texts)
TERMS = {
    **{
        name: lambda words, name=name: Agreement(consensus(words, name))
        for name in ("CIDEr-D", "CIDEr", "BLEU-4", "ROUGE-L")
    },
    "ld": lambda words: LocalDiscriminative(consensus(words), LocalConfig()),
    "ld_low": lambda words: LocalDiscriminative(consensus(words), LOW),
    "ld_diff": lambda words: Differences(consensus(words)),
    "reference_gap": lambda words: ReferenceGap(consensus(words), torch.tensor([[1, 2], [0, 2], [0, 1]])),
    "faithful": lambda words: Faithful(ids_of(words), content_words(words), end=words.eos),
    "repetition": lambda words: Repetition(content_words(words), end=words.eos),
    "unusual_order": lambda words: UnusualOrder(USAGE, words),
    "ending": lambda words: Ending(never_last(words), end=words.eos),
    "different": different,
}


@pytest.mark.parametrize("name", TERMS)
def test_a_reward_is_that_of_the_same_words(name):
    vocabulary, captions, *_ = as_subwords()
    words, by_words = as_words()
    result, expected = TERMS[name](vocabulary)(captions), TERMS[name](words)(by_words)
    torch.testing.assert_close(result.sentence, expected.sentence, atol=1e-6, rtol=0)
    if expected.words is not None:
        torch.testing.assert_close(result.words, expected.words, atol=1e-6, rtol=0)


def test_meteor_reads_the_text(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    score = MeteorConsensus(REFERENCES, data=meteor.load(miniature.write(tmp_path / "data")))
    _, captions, *_ = as_subwords()
    result, expected = (score(texts, captions.photos) for texts in (captions.texts, [text for _, text in SAMPLED]))
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)


def test_a_word_tokenizer_is_taken_as_it_is():
    tokenizer, captions = as_words()
    view = WordView.of(tokenizer, ["never read"])
    words = view(captions.words, captions.mask)
    assert view.vocabulary is tokenizer
    assert (words.ids is captions.words, words.mask is captions.mask, words.spans) == (True, True, None)
    assert spread(words.ids, words.ids[:, 0], None) is words.ids


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
    cut = view(torch.tensor([spelt]), torch.ones(1, len(spelt), dtype=torch.bool))  # one that was cut has no end
    assert (cut.ids.shape, bool(cut.mask.all())) == ((1, 3), True)


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


TOKENIZER = WordTokenizer(["a", "dog", "and", "red", "in", "cat", "two", "n't", "-", "runs"])
CONTENT = content_words(TOKENIZER)
END = TOKENIZER.eos
ENDING = Ending(never_last(TOKENIZER), end=END)
TEXTS = st.lists(st.sampled_from(TOKENIZER.words[4:]), max_size=6).map(" ".join)


def captions_of(texts, photos=None, *, width=8, filler=5, reference=None):
    ids = map(TOKENIZER.encode, texts)
    return sampled([*ids], photos, end=END, width=width, filler=filler, reference=reference)


def faithful_to(references):
    return Faithful([[TOKENIZER.encode(text) for text in texts] for texts in references], CONTENT, end=END)


def words(text):
    return [TOKENIZER.words[token] for token in TOKENIZER.encode(text)]


def is_content(word):
    return bool(CONTENT[TOKENIZER.words.index(word)])


def test_content_words_are_neither_special_nor_stop_words_nor_signs():
    content = [word for word, is_one in zip(TOKENIZER.words, CONTENT, strict=True) if is_one]
    assert content == ["dog", "red", "cat", "two", "runs"]
    assert CONTENT.dtype == torch.bool


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=3), st.integers(-1, 2)), min_size=1, max_size=4))
def test_faithful_is_a_count_over_words(world):
    captions, references, left_out = (list(part) for part in zip(*world, strict=True))
    expected = []
    for caption, texts, left in world:
        others = {word for number, text in enumerate(texts) if number != left for word in words(text)}
        content = [word for word in words(caption) if is_content(word)]
        expected.append(sum(word in others for word in content) / max(len(content), 1))
    result = faithful_to(references)(captions_of(captions, list(range(len(world))), reference=left_out))
    assert result.sentence.tolist() == pytest.approx(expected)


def test_faithful_of_one_caption_each_is_the_precision_of_the_evaluation():
    captions, references = ["a red cat", "two dog runs", "a dog"], [["a red dog"], ["a dog runs"], ["two cat"]]
    reward = faithful_to(references)(captions_of(captions, [0, 1, 2])).sentence
    content = torch.tensor([2.0, 3.0, 1.0])  # Prec weighs captions by their content words
    measured = precision([words(c) for c in captions], [[words(text) for text in texts] for texts in references])
    assert (reward @ content / content.sum()).item() == pytest.approx(measured.corpus()["Prec"])


@pytest.mark.parametrize(
    ("caption", "times"),
    [
        ("dog in a red in a cat", 0),  # "in a" twice
        ("a dog in in in a red", 2),  # "in" follows itself
        ("a dog and a dog", 2),  # "dog", "a dog"
        ("dog dog dog", 3),  # "dog" twice more, "dog dog" once more
    ],
)
def test_repetition_counts_what_is_said_again(caption, times):
    assert Repetition(CONTENT, end=END)(captions_of([caption])).sentence.tolist() == [-times]


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_repetition_is_a_count_over_words(captions):
    expected = []
    for caption in map(words, captions):
        single = [word for word in caption if is_content(word)]
        pairs = [pair for pair in pairwise(caption) if any(map(is_content, pair))]
        stutters = sum(first == second and not is_content(first) for first, second in pairwise(caption))
        expected.append(-stutters - sum(times - 1 for items in (single, pairs) for times in Counter(items).values()))
    result = Repetition(CONTENT, end=END)(captions_of(captions))
    assert result.words is None
    assert result.sentence.dtype == torch.float32
    assert result.sentence.tolist() == expected


def test_a_caption_that_breaks_off_is_penalised_once():
    captions = [
        "a dog and",
        "a dog in a",
        "a dog in",
        "a dog",
        "",
        "a",
        "a dog and a cat",
        "dog dog dog dog dog dog dog a",
    ]
    result = ENDING(captions_of(captions))
    assert result.words is None
    assert result.sentence.tolist() == [-1, -1, 0, 0, 0, -1, 0, 0]  # the last one was cut
    measured = bad_end([words(caption) for caption in captions[:-1]])
    assert (result.sentence[:-1] < 0).float().mean().item() == pytest.approx(measured.corpus()["BadEnd"])


@pytest.mark.parametrize("reward", [faithful_to([["a red dog"], ["a cat runs"]]), Repetition(CONTENT, end=END), ENDING])
def test_neither_padding_nor_order_nor_company_changes_a_caption_s_reward(reward):
    captions, photos = ["a dog and a dog", "a cat", "", "red runs red in a"], [0, 1, 1, 1]
    expected = reward(captions_of(captions, photos)).sentence
    assert len(expected.unique()) > 1
    for width, filler in [(6, 5), (20, TOKENIZER.pad), (20, -7), (20, 10**6)]:
        torch.testing.assert_close(reward(captions_of(captions, photos, width=width, filler=filler)).sentence, expected)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(reward(captions_of(captions, photos).of(order)).sentence, expected[order])
    torch.testing.assert_close(reward(captions_of(captions[:1], photos[:1])).sentence, expected[:1])


def test_a_caption_that_was_cut_counts_whole():
    tokens = torch.tensor([TOKENIZER.encode("a dog dog")])
    cut = SampledCaptions(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([0]))
    assert Repetition(CONTENT, end=END)(cut).sentence.tolist() == [-1]
    assert faithful_to([["dog"]])(cut).sentence.tolist() == [1]


def test_a_word_costs_one_where_people_do_not_put_it_and_none_behind_the_end_or_where_a_caption_was_cut():
    texts = ["a dog in a red", "a cat and a dog", "two"]
    people = WordOrder.of([[*roles(text.split()), LAST_WORD] for text in texts])
    reward = UnusualOrder(people, TOKENIZER)
    captions = [
        "a cat in a dog",
        "a dog and a red",
        "in a dog",
        "a dog in",
        "a dog in in in in a dog",
        "a dog in a red",
    ]
    result = reward(captions_of(captions))
    assert result.words is None
    assert result.sentence.tolist() == [0, 0, -1, -1, -1, 0]
    assert reward(captions_of(["a dog in a red"], width=3)).sentence.tolist() == [0]  # cut after "in"


said = partial(sampled, end=2)


def scores(reward, captions, photos):
    return reward(said(captions, photos)).sentence.tolist()


def test_a_caption_loses_by_the_logarithm_of_how_often_it_was_said_of_others():
    reward = Different()
    reward.remember(said([[5, 6], [5, 6], [5, 6], [7]], [0, 1, 1, 1]))
    expected = [-math.log(3), -math.log(2), -math.log(4), 0.0, 0.0]  # of photos 1 and 1; of 0; of all; own; new
    assert scores(reward, [[5, 6], [5, 6], [5, 6], [7], [6, 5]], [0, 1, 2, 1, 0]) == pytest.approx(expected)


def test_only_the_last_captions_are_remembered():
    reward = Different(window=3)
    reward.remember(said([[5], [6]], [0, 0]))
    reward.remember(said([[7], [8]], [0, 0]))
    assert scores(reward, [[5], [6], [7], [8]], [1] * 4) == pytest.approx([0.0] + 3 * [-math.log(2)])
    reward.remember(said([[caption] for caption in range(10, 15)], [0] * 5))  # more than the window at once
    assert scores(reward, [[11], [12], [14]], [1] * 3) == pytest.approx([0.0, -math.log(2), -math.log(2)])


def test_the_words_count_and_not_what_follows_the_end():
    tokens = torch.tensor([[5, 2, 0, 0], [5, 2, 9, 9], [5, 9, 2, 0]])
    mask = torch.tensor([[True, True, False, False], [True, True, False, False], [True, True, True, False]])
    first, same, other = fingerprints(SampledCaptions(tokens, mask, torch.zeros(3, dtype=torch.long))).tolist()
    assert first == same != other


def test_different_captions_have_different_fingerprints():
    """All captions of up to three words of eight: sums and swaps of words are among them."""
    words = range(3, 11)
    captions = [[a] for a in words] + [[a, b] for a in words for b in words]
    captions += [[a, b, c] for a in words for b in words for c in words]
    assert len(set(fingerprints(said(captions, [0] * len(captions))).tolist())) == len(captions)


@given(st.lists(st.tuples(st.lists(st.integers(3, 4), max_size=2), st.integers(0, 2)), min_size=1, max_size=12))
def test_as_counted_one_by_one(lately):
    captions, photos = map(list, zip(*lately, strict=True))
    reward = Different()
    reward.remember(said(captions, photos))
    times = Counter((tuple(caption), photo) for caption, photo in lately)
    expected = [
        -math.log1p(sum(times[tuple(caption), other] for other in range(3) if other != photo))
        for caption, photo in lately
    ]
    assert scores(reward, captions, photos) == pytest.approx(expected)


def test_processes_remember_what_all_of_them_said():
    both = [said([[5]], [0]), said([[6], [7]], [1, 1])]
    shares = [[fingerprints(part).tolist(), part.photos.tolist()] for part in both]
    first, second, third = (Different(window=8, gather=lambda own: [*shares, []]) for _ in range(3))
    for reward, part in zip((first, second, third), (*both, None), strict=True):
        reward.remember(part)
    assert torch.equal(first.state(), second.state())
    assert torch.equal(first.state(), third.state())
    assert scores(first, [[6]], [0]) == pytest.approx([-math.log(2)])


def test_a_sum_tells_its_terms_what_was_learned_from_and_not_what_that_is_compared_with():
    combined = Combined({"different": Different()}, {"different": 2.0})
    combined.score_baseline(said([[5], [6]], [0, 0]))
    combined(said([[7], [7]], [0, 0]), 2)
    total, _ = combined(said([[5], [7]], [1, 1]), 2)
    assert total.sentence.tolist() == pytest.approx([0.0, -2 * math.log(3)])


def test_what_a_term_of_a_sum_remembers_is_in_its_checkpoint():
    first, second = (Combined({"different": Different()}, {"different": 1.0}, balance=True) for _ in range(2))
    first(said([[5], [6]], [0, 0]), 2)
    assert set(first.state()) == {"different", "different/memory"}
    second.restore(first.state())
    assert second.score_baseline(said([[5]], [1])).sentence.item() < 0


OBJECT_WORDS = WordTokenizer(
    ["a", "dog", "cat", "on", "the", "bench", "orange", "hot", "puppies", "bed", "flower", "and", "dogs", "red"]
)
DOG, CAT, BENCH = (CLASSES.index(name) for name in ("dog", "cat", "bench"))
SEEN = [{DOG, BENCH}, {CAT}, set(), None]


def objects_reward(texts, photos, tokenizer=OBJECT_WORDS):
    view = WordView.of(tokenizer, ["a dog on the bench"])
    dog = tokenizer.encode("dog")[0]  # what a sampler left
    tokens = sampled([*map(tokenizer.encode, texts)], photos, end=tokenizer.eos, filler=dog)
    words = view(tokens.words, tokens.mask)
    captions = SampledCaptions(words.ids, words.mask, tokens.photos, texts=words.texts)
    return Objects(SEEN, view.vocabulary)(captions).sentence.tolist()


@pytest.mark.parametrize(
    "tokenizer", [OBJECT_WORDS, byte_pairs(["a dog on the bench", "a cat"])], ids=["words", "parts"]
)
@pytest.mark.parametrize(
    ("caption", "photo", "expected"),
    [
        ("a dog on the bench", 0, 1.0),
        ("puppies on the bench", 0, 1.0),
        ("a dog and a cat", 0, 0.0),
        ("a dog on the bench and a cat", 0, 1 / 3),
        ("a cat", 0, -1.0),
        ("a cat", 1, 1.0),
        ("a dog", 2, -1.0),
        ("a dog and a dog and a cat", 1, -1 / 3),  # each occurrence counts
        ("the red orange", 2, 0.0),  # a colour, perhaps
        ("a flower bed", 2, 0.0),
        ("the red", 0, 0.0),
        ("a dog", 3, 0.0),  # the detector failed
    ],
)
def test_seen_objects_earn_and_others_cost(tokenizer, caption, photo, expected):
    assert objects_reward([caption], [photo], tokenizer) == pytest.approx([expected])


@given(
    st.lists(st.tuples(st.lists(st.sampled_from(OBJECT_WORDS.words[4:]), max_size=8), st.integers(0, 2)), min_size=1)
)
def test_it_is_twice_the_precision_of_the_measure_less_one(captions):
    texts, photos = [" ".join(words) for words, _ in captions], [photo for _, photo in captions]
    for (words, photo), result in zip(captions, objects_reward(texts, photos), strict=True):
        right, named, *_ = measured([[words]], [SEEN[photo]], [()], "d").rows[0]
        assert result == pytest.approx(2 * right / named - 1 if named else 0)


def test_the_table_makes_it_of_what_a_detector_finds(tmp_path, own_cache, capsys):
    """A photo that cannot be read costs its captions nothing, and is named."""
    answers = tiny_yolox.nothing(classes=80)
    by_colour = np.zeros((3, *answers.shape), np.float32)
    answers[-1, 4], by_colour[2, -1, 5 + DOG], by_colour[0, -1, 5 + CAT] = 1, 0.15, 0.08  # weak, and too weak
    detector = tiny_yolox.write(tmp_path / "tiny.onnx", answers, by_colour)
    examples = [Example(number, tmp_path / f"{number}.png", "train", ("a dog",)) for number in range(3)]
    for number, colour in enumerate([(255, 0, 0), (0, 0, 255)]):
        Image.new("RGB", (96, 64), colour).save(examples[number].file)
    (tmp_path / "2.png").write_bytes(b"no photo")
    sources = [(Stores(), examples)]
    config = RewardsConfig(weights={"objects": 1.0})
    term = registry.REWARDS["objects"].build(context(config, sources, OBJECT_WORDS, detector=str(detector)))
    texts = ["a dog", "a cat", "a dog", "a cat", "a dog"]
    ids = [*map(OBJECT_WORDS.encode, texts)]
    result = term(sampled(ids, [0, 0, 1, 1, 2], end=OBJECT_WORDS.eos)).sentence
    assert result.tolist() == [1, -1, -1, -1, 0]
    assert "2.png" in capsys.readouterr().err
