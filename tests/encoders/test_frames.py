"""Frames of clips through an encoder of photos."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image

from support.clips import counted, write_clip
from support.doc_pages import ROOT, blocks
from support.stores import extract
from tellapart.captioners import CAPTIONERS
from tellapart.data.examples import Example
from tellapart.data.media.photos import SQUEEZE, fitted
from tellapart.data.streams import region_inputs
from tellapart.encoders import ENCODERS
from tellapart.encoders.encoder import Features, FrameEncoder, in_view
from tellapart.encoders.loading import load
from tellapart.features.extracted import pooled_features, read_item
from tellapart.models import build_captioner
from tellapart.recipe import EncoderConfig


class Cells:
    """The mean colour of four cells; counts the frames that it sees."""

    fit, weights_sha256 = SQUEEZE, "0" * 64
    regions, feature_size, pooled_size = 4, 3, 3

    def __init__(self):
        self.config, self.seen = EncoderConfig("cells", 32, 2), 0
        self.identity = self.config.identity | {"weights_sha256": self.weights_sha256}

    def __call__(self, pixels):
        self.seen += len(pixels)
        values = torch.as_tensor(pixels).float().reshape(-1, 2, 16, 2, 16, 3).mean((2, 4)).flatten(1, 2)
        return Features(values, values.mean(1))


def expected(numbers):
    """Each frame's cells by plain loops over its own square."""
    rows = []
    for number in numbers:
        square = fitted(Image.fromarray(counted(number)), "", 32).pixels.astype(float)
        rows += [square[16 * y : 16 * y + 16, 16 * x : 16 * x + 16].mean((0, 1)) for y in (0, 1) for x in (0, 1)]
    return np.stack(rows)


def test_the_rows_are_the_cells_of_frames_evenly_in_time(tmp_path):
    file = write_clip(tmp_path / "a.mkv", 40, codec="ffv1")  # without loss
    encoder = FrameEncoder(Cells(), 4)
    features = encoder(read_item(encoder, file).pixels[None])
    np.testing.assert_allclose(features.grid[0].numpy(), expected([5, 15, 25, 35]), atol=1e-4)
    np.testing.assert_allclose(features.pooled[0].numpy(), expected([5, 15, 25, 35]).mean(0), atol=1e-4)
    assert (encoder.regions, encoder.identity["frames"]) == (16, 4)
    middle = Cells()(read_item(Cells(), file).pixels[None])  # of a clip, where no number of frames is asked for
    np.testing.assert_allclose(middle.grid[0].numpy(), expected([20]), atol=1e-4)


def test_a_photo_is_a_clip_of_one_frame_and_is_seen_once(tmp_path):
    Image.fromarray(counted(9)).save(tmp_path / "a.png")
    cells = Cells()
    encoder = FrameEncoder(cells, 4)
    for source in (tmp_path / "a.png", Image.open(tmp_path / "a.png")):
        item = read_item(encoder, source)
        np.testing.assert_allclose(encoder(item.pixels[None]).grid[0].numpy(), expected([9] * 4), atol=1e-4)
    assert cells.seen == 2
    assert item.sha256 == read_item(encoder, tmp_path / "a.png").sha256


def test_clips_and_photos_are_embedded_together_in_the_order_given(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    files = [str(write_clip(tmp_path / "b.mkv", 40, codec="ffv1")), str(tmp_path / "gone.mp4"), str(tmp_path / "a.png")]
    Image.fromarray(counted(9)).save(files[2])
    found = pooled_features(Cells(), files)
    assert found.files == [files[0], files[2]]
    frames = [int(40 * (part + 0.5) / 8) for part in range(8)]
    np.testing.assert_allclose(found.vectors, [expected(frames).mean(0), expected([9]).mean(0)], rtol=2e-3)
    assert found.failed == {files[1]: "there is no such file"}
    reversed_order = pooled_features(Cells(), files[::-1])
    np.testing.assert_array_equal(reversed_order.vectors, found.vectors[::-1])


def test_one_bad_clip_in_ten_is_named_and_the_others_have_features(tmp_path):
    examples = [Example(n, write_clip(tmp_path / f"{n}.mkv", n + 1, codec="ffv1")) for n in range(10)]
    examples[3].file.write_bytes(examples[3].file.read_bytes()[:300])
    result = extract(examples, FrameEncoder(Cells(), 2), tmp_path / "features")
    assert (result.computed, list(result.failed)) == (9, ["3"])
    assert result.store.grid([result.store.row(examples[9])]).shape == (1, 8, 3)


def test_a_view_of_a_clip_is_the_same_part_of_each_frame(tmp_path):
    file = write_clip(tmp_path / "a.mkv", [counted(7)] * 10, codec="ffv1")
    encoder = FrameEncoder(Cells(), 3)
    seen = in_view(encoder, 2)
    pixels = read_item(seen, file).pixels
    assert (pixels == pixels[:1]).all()
    assert not np.array_equal(pixels, read_item(encoder, file).pixels)
    assert seen.identity != encoder.identity


def test_a_recipe_asks_for_frames_by_number(tmp_path):
    config = EncoderConfig("patches", 64, 1, frames=3)
    encoder = load(config, torch.device("cpu"))
    grid = encoder(read_item(encoder, write_clip(tmp_path / "a.mp4", 12)).pixels[None]).grid
    assert (grid.shape, encoder.identity["frames"]) == ((1, 3, 3 * 64**2), 3)
    assert "frames" not in replace(config, frames=0).identity


@pytest.mark.parametrize("name", ["transformer", "attention", "up_down"])
def test_to_a_captioner_frames_that_are_all_the_same_are_as_one(name):
    torch.manual_seed(0)
    tiny = import_module(CAPTIONERS[name].module).TINY
    captioner = build_captioner(name, tiny, vocab_size=20, feature_sizes={"regions": 3}).eval()
    rows, tokens = torch.rand(2, 4, 3), torch.randint(4, 20, (2, 5))
    one, several = (captioner(tokens, captioner.encode(region_inputs(seen))) for seen in (rows, rows.repeat(1, 3, 1)))
    torch.testing.assert_close(several, one, atol=1e-5, rtol=1e-4)


def test_the_encoder_of_sound_in_the_docs_hears_which_windows_are_silent(tmp_path):
    (block,) = [block for block in blocks(ROOT / "docs" / "extending.md") if block.file == "my_sound.py"]
    names, added = {}, dict(ENCODERS._lines)
    exec(block.code, names)
    ENCODERS._lines.clear()
    ENCODERS._lines.update(added)
    encoder = names["Loudness"](EncoderConfig("loudness", frames=4), torch.device("cpu"))
    heard = np.sin(2 * np.pi * 500 * np.arange(64000) / 16000)
    heard *= np.repeat([0, 0, 0, 0, 0, 0.5, 0, 0.05], 8000)  # of four seconds, the ends of the third and the last
    files = [write_clip(tmp_path / "a.mp4", [counted(0)] * 100, sound=heard), write_clip(tmp_path / "b.mp4", 10)]
    Image.fromarray(counted(0)).save(tmp_path / "c.png")
    features = encoder(np.stack([read_item(encoder, file).pixels for file in [*files, tmp_path / "c.png"]]))
    assert features.counts.tolist() == [2, 0, 0]
    assert features.grid[0, :2, 1].tolist() == pytest.approx([0.5, 0.05], abs=0.02)
    assert not features.grid[0, 2:].any()
