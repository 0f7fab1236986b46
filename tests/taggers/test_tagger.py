"""The tagger against plain loops, and on scenes of the toy world that it has not seen."""

import math

import numpy as np
import pytest
import torch

from support.toy import world as toy_world
from tellapart.data.media import photos
from tellapart.data.streams import Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders.encoder import Encoder
from tellapart.metrics.retrieval import average_precision
from tellapart.recipe import EncoderConfig
from tellapart.taggers.tagger import SPECIALS, Tagger, TaggerConfig, cropped, sentence_loss, tagging_loss
from tellapart.training.tagging import frequent_words, mentions

WORDS = 6


def tagger(**settings):
    torch.manual_seed(0)
    made = Tagger(TaggerConfig(WORDS + SPECIALS, feature_size=4, **settings))
    torch.nn.init.normal_(made.word.weight)
    torch.nn.init.normal_(made.word.bias)
    return made.eval()


def sigmoid(number):
    return 1 / (1 + math.exp(-number))


@pytest.mark.parametrize("context", [False, True])
def test_a_photo_has_a_word_if_any_region_has_it(context):
    network = tagger(context=context)
    values, mask = torch.randn(2, 3, 4), torch.tensor([[True, True, True], [True, True, False]])
    found = network.probabilities(Stream(values, mask)).tolist()
    weight, bias = network.word.weight.tolist(), network.word.bias.tolist()
    for photo, regions in enumerate((3, 2)):
        rows = values[photo, :regions].tolist()
        mean = [sum(row[d] for row in rows) / regions for d in range(4)]
        for word in range(WORDS):
            absent = 1.0
            for row in rows:
                logit = bias[word] + sum(w * x for w, x in zip(weight[word], row, strict=True))
                if context:
                    own = network.photo.weight[word].tolist()
                    logit += sum(w * x for w, x in zip(own, mean, strict=True))
                absent *= 1 - sigmoid(logit)
            assert found[photo][word] == pytest.approx(1 - absent, abs=1e-5)


def test_the_loss_is_binary_cross_entropy():
    probability, has = torch.rand(3, WORDS, dtype=torch.double) * 0.9 + 0.05, (torch.rand(3, WORDS) < 0.5).double()
    expected = 0.0
    for p, y in zip(probability.flatten().tolist(), has.flatten().tolist(), strict=True):
        expected -= math.log(p) if y else math.log(1 - p)
    assert tagging_loss(-torch.log1p(-probability), has).item() == pytest.approx(expected / 3)


def test_the_sentence_loss_is_that_of_finding_the_own_captions_among_all():
    predicted, sentences = torch.tensor([[0.6, 0.8], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.0]])
    scores = [[3.0, 4.0, 1.8], [5.0, 0.0, 3.0]]  # five times the products, by hand
    expected = sum(
        -math.log(math.exp(row[own]) / sum(map(math.exp, row))) for row, own in zip(scores, (1, 2), strict=True)
    )
    found = sentence_loss(predicted, sentences, torch.tensor([1, 2]), 5.0)
    assert found.item() == pytest.approx(expected / 2, abs=1e-5)


def test_a_sentence_is_predicted_from_the_mean_of_the_regions_that_exist():
    network = tagger(sentence_size=3)
    values, mask = torch.randn(1, 3, 4), torch.tensor([[True, True, False]])
    mean = (values[0, 0] + values[0, 1]) / 2
    raw = [sum(w * x for w, x in zip(row, mean.tolist(), strict=True)) for row in network.sentence.weight.tolist()]
    raw = [number + bias for number, bias in zip(raw, network.sentence.bias.tolist(), strict=True)]
    length = math.sqrt(sum(number**2 for number in raw))
    found = network.sentences(network.rows(Stream(values, mask)))
    assert found[0].tolist() == pytest.approx([number / length for number in raw], abs=1e-5)


def test_a_photo_without_regions_has_no_word_and_learning_from_it_stays_finite():
    network = tagger(context=True).train()
    absent = network(Stream(torch.randn(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool)))
    assert absent.tolist() == [[0.0] * WORDS]
    tagging_loss(absent, torch.ones(1, WORDS)).backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in network.parameters())


def test_before_the_first_step_words_are_as_probable_as_they_are_frequent():
    network = tagger()
    torch.nn.init.zeros_(network.word.weight)
    frequency = torch.tensor([0.9, 0.5, 0.1, 0.01, 0.001, 0.3])
    network.start_at(frequency, 64)
    found = network.probabilities(Stream(torch.randn(1, 64, 4), torch.ones(1, 64, dtype=torch.bool)))[0]
    torch.testing.assert_close(found, frequency, atol=1e-5, rtol=1e-4)


def test_dropping_regions_leaves_the_sum_as_it_is_on_average():
    network, seen = tagger(dropout=0.3), Stream(torch.randn(1, 2000, 4), torch.ones(1, 2000, dtype=torch.bool))
    whole = network(seen)
    network.train()
    dropped = torch.stack([network(seen) for _ in range(20)]).mean(0)
    torch.testing.assert_close(dropped, whole, rtol=0.05, atol=0)


def test_a_crop_of_everything_is_the_photo_or_its_mirror_image():
    pixels = torch.randint(0, 255, (8, 16, 16, 3), dtype=torch.uint8)
    found = cropped(pixels, [number / 8 for number in range(8)], 1.0)
    same, mirrored = (
        [torch.allclose(one, photo.float(), atol=0.1) for one, photo in zip(found, photos, strict=True)]
        for photos in (pixels, pixels.flip(2))
    )
    assert [one != other for one, other in zip(same, mirrored, strict=True)] == [True] * 8
    assert any(same)
    assert any(mirrored)


def test_a_crop_has_its_share_of_the_area_and_the_same_chance_gives_the_same():
    place = torch.stack(torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij"), -1)
    place = torch.cat([place, place[..., :1]], -1)[None]  # a pixel says where it is: row, column
    found = torch.cat([cropped(place, [number / 40], 0.65) for number in range(40)])
    height = (found[:, 40, 32, 0] - found[:, 24, 32, 0]) / 16
    width = (found[:, 32, 40, 1] - found[:, 32, 24, 1]) / 16
    area = height * width.abs()
    assert 0.65 - 1e-3 <= area.min() < 0.75
    assert 0.9 < area.max() <= 1 + 1e-3
    assert -1e-3 <= found.min() <= found.max() <= 63 + 1e-3
    assert 10 < (width < 0).sum() < 30
    assert cropped(place, [0.3], 0.65).equal(cropped(place, [0.3], 0.65))


def test_a_crop_of_everything_at_another_size_is_the_photo_scaled():
    slope = torch.arange(16.0)[None, None, :, None].expand(1, 16, 16, 3)  # brightness grows from left to right
    smaller = cropped(slope, [0.0], 1.0, 8)[0, :, :, 0]
    assert smaller.shape == (8, 8)
    assert smaller.sort(1).values.allclose(torch.arange(8.0) * 2 + 0.5)


def test_words_are_frequent_content_words_and_mentions_count_captions():
    captions = ["a red dog", "the red dog", "a dog on a kazoo"]
    words = frequent_words(captions, 2, 1)
    assert words.words[SPECIALS:] == ["dog", "red"]
    assert mentions([captions, ["a cat"]], words).tolist() == [[3, 2], [0, 0]]
    assert mentions([["dog dog dog"]], words).tolist() == [[1, 0]]


def test_it_learns_objects_and_colours_of_the_toy_world(tmp_path):
    dataset = toy_world.make(tmp_path, groups=40, splits={"train": 0.75, "test": 0.25}, size=128)
    encoder = Encoder(EncoderConfig(image_size=128, grid=4))
    train, test = (cells(encoder, dataset.split(name)) for name in ("train", "test"))
    words = WordTokenizer([*toy_world.NOUNS, "red", "blue", "green", "yellow"])
    has, real = (
        mentions([example.captions for example in dataset.split(name)], words) > 0 for name in ("train", "test")
    )
    torch.manual_seed(0)
    network = Tagger(TaggerConfig(len(words), feature_size=train.shape[2], dropout=0.3, context=True))
    network.start_at(torch.from_numpy(has.mean(0)), train.shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(80):
        rows = torch.randperm(len(train))[:64]
        loss = tagging_loss(network(stream(train[rows])), torch.from_numpy(has).float()[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = network.eval().probabilities(stream(test)).detach().numpy()
    assert np.nanmean(average_precision(np.zeros_like(scores), real)) < 0.3
    assert np.nanmean(average_precision(scores, real)) > 0.85


def cells(encoder, examples):
    """(P, 16, 1280)"""
    return torch.cat([encoder(photos.read(one.file, 128).pixels[None]).grid for one in examples])


def stream(values):
    return Stream(values, torch.ones(values.shape[:2], dtype=torch.bool))
