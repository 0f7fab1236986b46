"""Every captioner takes clips: frame vectors as regions, from training to the command line."""

import itertools
import json

import numpy as np
import pytest

from support.clips import write_clip
from tellapart.captioning.captioner import load
from tellapart.commands.train import parse
from tellapart.training.build import run

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
    recipe, out, _ = parse(
        [
            "glrg/sa_lstm_xe",
            f"--out={tmp_path / 'run'}",
            f"--data={clips / 'clips.json'}",
            f"--data.features={tmp_path / 'features'}",
            "--data.min_count=1",
            "--data.captions_per_photo=2",
            "--encoder={name: efficientnet_lite0, image_size: 64, grid: 1, frames: 4}",
            "--model={word_width: 24, width: 48, attention_width: 16, dropout: 0}",
            "--optim.lr=0.01",
            "--optim.clip_norm=5",
            "--batch_size=8",
            "--epochs=60",
            "--validation.every=60",
            "--validation.metric=last",
        ]
    )
    run(recipe, out)
    captioner = load(out)
    held_out = [str(clips / f"{number}.mkv") for number in range(16, 24)]
    found = [row.text for row in captioner.caption(held_out)]
    assert found == [" and ".join(PAIRS[number % 3]) for number in range(16, 24)]
