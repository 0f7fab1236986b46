"""Captioners that learn from frames of clips, and from clips beside photos."""

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from support.clips import counted, write_clip
from tellapart.captioning.captioner import load
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.tokenizers import WordTokenizer
from tellapart.training.preparation import select, sources_of, visits
from training.runs import asked, gathered, train

COLOURS = {"red": (200, 30, 30), "blue": (30, 30, 200), "green": (30, 160, 30)}
PAIRS = list(itertools.combinations(COLOURS, 2))


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips that change from one colour to another, in either order: no single frame shows both."""
    folder = tmp_path_factory.mktemp("clips")
    videos = []
    for number in range(24):
        pair = PAIRS[number % 3]
        order = pair if number % 2 else pair[::-1]
        frames = [np.full((48, 64, 3), COLOURS[name], np.uint8) for name in order for _ in range(6 + number // 4)]
        write_clip(folder / f"{number}.mkv", frames, codec="ffv1")
        split = "train" if number < 16 else "val"
        videos.append({"id": number, "file": f"{number}.mkv", "split": split, "captions": [" and ".join(pair)] * 2})
    (folder / "clips.json").write_text(json.dumps({"dataset": "colours", "videos": videos}))
    return folder


@pytest.mark.slow
def test_sa_lstm_learns_from_all_frames_of_a_clip(clips, tmp_path):
    files = f"--data={clips / 'clips.json'}", f"--data.features={tmp_path / 'features'}"
    network = "--model={word_width: 24, width: 48, attention_width: 16, dropout: 0}"
    looks = "--encoder={name: efficientnet_lite0, image_size: 64, grid: 1, frames: 4}"
    words = "--data.min_count=1", "--data.captions_per_photo=2", "--validation={every: 60, metric: last}"
    settings = "--optim.lr=0.01", "--optim.clip_norm=5", "--batch_size=8", "--epochs=60"
    train("glrg/sa_lstm_xe", tmp_path / "run", *files, network, looks, *words, *settings)
    held_out = [str(clips / f"{number}.mkv") for number in range(16, 24)]
    captions = [row.text for row in load(tmp_path / "run").caption(held_out)]
    assert captions == [" and ".join(PAIRS[number % 3]) for number in range(16, 24)]


def data_file(folder, kind, key, write, count):
    records = []
    for number in range(count):
        name = write(number)
        split = "val" if number == 0 else "train"
        records.append({"id": number, "file": name, "split": split, "captions": [f"a {kind} {number % 2}", "a thing"]})
    (folder / f"{kind}.json").write_text(json.dumps({"dataset": kind, key: records}))
    return folder / f"{kind}.json"


@pytest.fixture
def world(tmp_path):
    def photo(number):
        Image.fromarray(counted(number)).save(tmp_path / f"p{number}.png")
        return f"p{number}.png"

    def clip(number):
        return write_clip(tmp_path / f"c{number}.mkv", [counted(number + n) for n in range(9)], codec="ffv1").name

    data_file(tmp_path, "photo", "images", photo, 6)
    data_file(tmp_path, "clip", "videos", clip, 3)
    (tmp_path / "recipe.yaml").write_text(
        "captioner: transformer\n"
        "model: {width: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, feed_forward: 16}\n"
        "encoder: {name: patches, image_size: 16, grid: 2}\n"
        "batch_size: 2\nmax_steps: 4\nthreads: 1\ndtype: fp32\nvalidation: {metric: last}\n"
        f"data: {{min_count: 1, captions_per_photo: 2, by_length: true, features: {tmp_path / 'features'}}}\n"
    )
    return tmp_path


def data_of(world, *kinds):
    return ["--data", *(world / f"{kind}.json" for kind in kinds)]


def test_a_photo_has_the_rows_of_one_frame_and_a_clip_those_of_all_and_items_are_repeated(world):
    recipe = asked(world / "recipe.yaml", *data_of(world, "photo", "clip"), "--encoder.frames=3")
    sources, problems = gathered(recipe, sources_of(recipe, torch.device("cpu")))
    assert problems == []
    both = CaptionedPhotos(sources, WordTokenizer(["a"]), 5)
    assert both.rows.tolist() == [4] * 6 + [12] * 3
    values, mask = both.inputs(np.array([1, 6]))["regions"]  # the second photo and the first clip
    assert mask.sum(1).tolist() == [4, 12]
    assert not values[0, 4:].any()
    stores = sorted((world / "features").iterdir())
    assert [path.name.rsplit("-", 1)[0] for path in stores] == ["clip.patches", "photo.patches"]
    settings = [json.loads((path / "manifest.json").read_text())["encoder"] for path in stores]
    assert [encoder.get("frames", 0) for encoder in settings] == [3, 0]
    chosen, _ = select(recipe, takes=("photos", "clips"))
    examples = [example for selection in chosen for example in selection.training]
    assert visits({"clip": 3}, chosen, examples).tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6]


@pytest.mark.slow
def test_a_captioner_of_photos_goes_on_with_clips(world):
    train(world / "recipe.yaml", world / "photos", *data_of(world, "photo"))
    more = (*data_of(world, "photo", "clip"), "--encoder.frames=3", f"--init_from={world / 'photos'}")
    train(world / "recipe.yaml", world / "both", *more, "--data.repeat={clip: 3}")
    captioner = load(world / "both")
    assert captioner.encoder.identity["frames"] == 3
    rows = list(captioner.caption([str(world / "p1.png"), str(world / "c1.mkv")]))
    assert [row.error for row in rows] == ["", ""]
    streams = captioner.streams
    inputs = streams.inputs([streams.load(str(world / name)) for name in ("c1.mkv", "p1.png", "c2.mkv")])
    assert inputs["regions"].mask.sum(1).tolist() == [12, 4, 12]
    with pytest.raises(UserError, match=r"another encoder: grid is 2 there and 4 here"):
        train(world / "recipe.yaml", world / "other", *more, "--encoder.grid=4")
