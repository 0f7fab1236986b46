"""Captioners of regions and attributes on the toy world: they learn to name the object of scenes not seen before."""

import numpy as np
import pytest
import torch

from support.decoders import greedy
from support.toy import world as toy_world
from tellapart import models
from tellapart.data.batches import Batch, padded
from tellapart.data.streams import Inputs, Stream, region_inputs
from tellapart.data.tokenizers import WordTokenizer
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.training.build import seed_everything

pytestmark = pytest.mark.slow

CELLS, SHADES = 4, 4  # regions a side, and numbers a side of a region, three colours each


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    dataset = toy_world.make(tmp_path_factory.mktemp("toy"), groups=120, splits={"train": 0.75, "test": 0.25}, size=64)
    train, test = dataset.split("train"), dataset.split("test")
    words = WordTokenizer.build((caption for example in train for caption in example.captions), 1)
    return words, (train, inputs_of(train, words)), (test, inputs_of(test, words))


def inputs_of(examples, words):
    """Regions are the pixels of a grid, in few numbers; attributes are what a tagger might say."""
    side = CELLS * SHADES
    shades = [
        np.asarray(toy_world.Image.open(example.file).convert("RGB").resize((side, side))) for example in examples
    ]
    pixels = torch.from_numpy(np.stack(shades)).float() / 128 - 1
    cells = pixels.view(-1, CELLS, SHADES, CELLS, SHADES, 3).transpose(2, 3).flatten(3).flatten(1, 2)
    attributes = torch.stack([attributes_of(example, words) for example in examples])
    return Inputs(
        region_inputs(cells) | {"attributes": Stream(attributes, torch.ones(attributes.shape[:2], dtype=torch.bool))}
    )


def attributes_of(example, words):
    """(6, 2): four words that are true of a scene, likely, and two that are not, in any order."""
    scene, draw = toy_world.scene_of(example), np.random.default_rng(example.id)
    right = [scene.noun, scene.colour, scene.place, scene.companion]
    wrong = [word for word in (*toy_world.COMPANIONS, *toy_world.PLACES) if word not in right]
    rows = [[words.encode(word)[0], draw.uniform(0.6, 0.95)] for word in right]
    rows += [[words.encode(str(word))[0], draw.uniform(0.05, 0.4)] for word in draw.choice(wrong, 2, replace=False)]
    return torch.tensor(draw.permutation(rows), dtype=torch.float32)


SETTINGS = {
    "glied": {"word_width": 32, "width": 64, "heads": 4, "feed_forward": 128},
    "lstm_a3": {"width": 96, "dropout": 0.3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_it_learns_to_name_the_object_from_its_attributes(name, world):
    words, (train, given), (test, unseen) = world
    captioner = trained(name, train, given, words).eval()
    assert toy_world.measure(captions_of(captioner, unseen, words), test)["object"] >= 0.95
    values, mask = unseen["attributes"]
    without = Inputs(unseen | {"attributes": Stream(values, torch.zeros_like(mask))})
    assert toy_world.measure(captions_of(captioner, without, words), test)["object"] < 0.5


def trained(name, examples, inputs, words, steps=200):
    seed_everything(0)
    sizes = {stream: values.shape[2] for stream, (values, _) in inputs.items()}
    captioner = models.build_captioner(name, SETTINGS[name], vocab_size=len(words), feature_sizes=sizes)
    captions = [[[*words.encode(text), words.eos] for text in example.captions] for example in examples]
    rate = {"glied": 3e-3, "lstm_a3": 1e-2}[name]
    optimizer = torch.optim.AdamW(captioner.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        photos = torch.randperm(len(examples))[:32]
        tokens, mask = padded([captions[photo][k] for photo in photos for k in torch.randperm(5)[:2]], words.pad)
        loss, *_ = cross_entropy_step(
            captioner, Batch(photos.numpy(), inputs.select(photos), tokens, mask), bos=words.bos
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(captioner.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return captioner


@torch.inference_mode()
def captions_of(captioner, inputs, words):
    ids = {"bos": words.bos, "eos": words.eos, "pad": words.pad, "banned": words.banned_ids}
    best = greedy(captioner, captioner.encode(inputs), max_words=16, **ids)
    return [words.decode(row[mask].tolist()) for row, mask in zip(best.tokens, best.mask, strict=True)]
