"""GL-RG on the toy world of moving shapes: each encoder sees what the others cannot, two of them see time, and boosting
after seeding raises CIDEr-D."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from support.toy import moving
from tellapart import score
from tellapart.captioning.captioner import load
from tellapart.data import examples
from training.runs import train

ENCODERS = {  # stream: how clips are stored, and the network's settings
    "words": (  # the whole time, not sharply; between its frames, a period apart, nothing moves
        "{name: patches, image_size: 8, grid: 4, frames: 6}",
        "{words: 20, width: 24, steps: 2, dropout: 0}",
    ),
    "actions": (  # a moment
        "{name: patches, image_size: 16, grid: 8, frames: 2, around: 1}",
        "{words: 20, width: 24, resnet_width: 8, dropout: 0}",
    ),
    "classes": (  # a frame
        "{name: patches, image_size: 32, grid: 8, frames: 2}",
        "{words: 20, width: 24, dropout: 0}",
    ),
}
FACTS = ("object", "motion", "order")


def test_a_scene_is_rendered_as_it_is_described():
    scene = moving.Scene("square", "right", "blue")
    frames = moving.render(scene, 3)
    masks = [frame[..., 1] < 120 for frame in frames]
    for before, after in pairwise(masks):
        np.testing.assert_array_equal(np.roll(before, moving.SPEED, axis=1), after)
    np.testing.assert_array_equal(masks[0], masks[moving.PERIOD])
    reddish = [bool((frame[..., 0] == 220).any()) for frame in frames]
    assert reddish == sorted(reddish, reverse=True)
    assert (reddish[0], reddish[-1]) == (True, False)
    assert moving.facts_in(scene.caption()) == ("square", "right", "blue")
    assert moving.facts_in(moving.Scene("circle", "falls", "red").caption(1)) == ("circle", "falls", "red")
    assert [moving.facts_in(scene.caption(number))[1:] for number in (2, 3)] == [(None, "blue"), ("right", None)]
    # shapes differ in form and not in area
    areas = [(moving.render(moving.Scene(shape, "left", "red"), 0)[0][..., 1] < 120).sum() for shape in moving.SHAPES]
    assert max(areas) < 1.03 * min(areas)


def trained(recipe, folder, name, *options, data="clips.json"):
    files = (f"--data={folder / data}", f"--data.features={folder / 'features'}", "--data.min_count=1")
    settings = ("--batch_size=24", "--dtype=fp32", "--threads=1", "--validation={every: 30, metric: last}")
    return train(recipe, folder / name, *files, *settings, *options).folder


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving")
    moving.make(folder, {"train": 10, "val": 1, "test": 3})
    for stream, (encoder, model) in ENCODERS.items():
        network = (f"--encoder={encoder}", f"--model={model}")
        optim = "--optim={lr: 4e-3, schedule: cosine, clip_norm: 1}"
        trained("glrg/long_range", folder, f"of_{stream}", *network, optim, "--epochs=30")
    return folder


def captioner(folder, name, *options, streams=tuple(ENCODERS), data="clips.json"):
    """GL-RG over some of the encoders."""
    inputs = ", ".join(f"{stream}: {{name: {folder / f'of_{stream}'}}}" for stream in streams)
    base = folder / f"{name}.yaml"
    base.write_text(f"captioner: gl_rg\nmodel: {{width: 64, every_step: true, dropout: 0}}\ninputs: {{{inputs}}}\n")
    return load(trained(base, folder, name, *options, data=data))


SEEDING = ("--optim={lr: 5e-3, clip_norm: 1, schedule: cosine}", "--epochs=12")


def shares(captioner, clips):
    """Of clips whose shape, way and colour the caption has right; and their CIDEr-D."""
    rows = [row.text for row in captioner.caption([str(file) for file, _ in clips])]
    facts = [moving.facts_in(text) for text in rows]
    truth = [(scene.shape, scene.way, scene.turns) for _, scene in clips]
    right = np.array([[a == b for a, b in zip(*pair, strict=True)] for pair in zip(facts, truth, strict=True)])
    references = {str(n): [scene.caption(0), scene.caption(1)] for n, (_, scene) in enumerate(clips)}
    cider = score({str(n): text for n, text in enumerate(rows)}, references, metrics=["CIDEr-D"])["CIDEr-D"]
    return dict(zip(FACTS, right.mean(0), strict=True)), cider


@pytest.fixture
def known_encoders(world, monkeypatch):
    """Captioners in folders may ask for the networks of this world."""
    monkeypatch.setenv("TELLAPART_ENCODERS", ":".join(str(world / f"of_{stream}") for stream in ENCODERS))


@pytest.mark.slow
def test_together_they_beat_each_alone_and_shuffled_frames_hide_time(world, known_encoders, tmp_path):
    clips, shuffled = [], []
    scenes = [scene for scene in moving.SCENES for _ in range(3)]  # the test split
    for seed, scene in enumerate(scenes, 24 * 11 + 1):
        clips.append((world / f"{seed}.mkv", scene))
        frames = moving.render(scene, seed)
        random.Random(seed).shuffle(frames)
        moving.save(frames, tmp_path / f"{seed}.mkv")
        shuffled.append((tmp_path / f"{seed}.mkv", scene))
    every = captioner(world, "all", "--data.captions_per_photo=2", *SEEDING)
    found, cider = shares(every, clips)
    assert min(found.values()) > 0.9
    for stream, own in zip(ENCODERS, ("order", "motion", "object"), strict=True):
        alone, less = shares(captioner(world, stream, "--data.captions_per_photo=2", *SEEDING, streams=[stream]), clips)
        assert cider > 1.5 * less
        assert alone.pop(own) > 0.9
        # What it does not see is guessed: one of three shapes, four ways, two colours; 3 sd of 72 guesses.
        assert all(share < {"object": 0.5, "motion": 0.41, "order": 0.68}[fact] for fact, share in alone.items())
    mixed, _ = shares(every, shuffled)
    assert mixed["object"] > 0.85
    # Places without their order still show along which line something moves, so that one of two ways is guessed; three
    # standard deviations of 72 guesses.
    assert mixed["motion"] < 0.5 + 0.18
    assert mixed["order"] < 0.5 + 0.18


@pytest.mark.slow
def test_boosting_is_above_cross_entropy_in_cider_by_each_baseline(world, known_encoders):
    """People leave things out, and cross-entropy does as each of them; what most of them agree on is rewarded."""
    dataset = examples.read(world / "clips.json")
    told = [
        replace(clip, captions=tuple(map(moving.Scene(**clip.extra["scene"]).caption, range(4))))
        for clip in dataset.examples
    ]
    examples.write(replace(dataset, examples=told), world / "people.json")
    clips = [clip for clip in told if clip.split == "test"]

    def cider_of(name, *options):
        made = captioner(world, name, "--data.captions_per_photo=4", *options, data="people.json")
        rows = {clip.id: row.text for clip, row in zip(clips, made.caption([c.file for c in clips]), strict=True)}
        return score(rows, {clip.id: list(clip.captions) for clip in clips}, metrics=["CIDEr-D"])["CIDEr-D"]

    seeded, boosted = cider_of("seeded", *SEEDING), {}
    for name, baseline in {"scst": "greedy", "b1": "references", "b2": "best, top_q: 5"}.items():
        boosted[name] = cider_of(
            name,
            f"--objective={{name: policy_gradient, policy: {{samples: 5, baseline: {baseline}}}, "
            "rewards: {weights: {cider_d: 1}, count_end: true}}",
            f"--init_from={world / 'seeded'}",
            "--optim={lr: 1e-3, clip_norm: 1}",
            "--epochs=8",
        )
    assert min(boosted.values()) > 1.1 * seeded
