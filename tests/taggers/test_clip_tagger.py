"""GL-RG's trained encoders: which frames they look at, and what becomes of several segments."""

import math

import pytest
import torch
import torch.nn.functional as F

from capscore.errors import UserError
from tellapart import models
from tellapart.data.streams import Stream
from tellapart.taggers import TAGGERS
from tellapart.taggers.clip_tagger import ClipTagger, ClipTaggerConfig
from tellapart.taggers.tagger import SPECIALS

W, D = 3, 4


def network(**settings):
    torch.manual_seed(0)
    given = {"width": 5, "dropout": 0.0, "frames": 6, "grid": 2} | settings
    return ClipTagger(ClipTaggerConfig(W + SPECIALS, D, **given))


def clips(frames=6, cells=4, count=2):
    values = torch.randn(count, frames * cells, D, generator=torch.Generator().manual_seed(1))
    return Stream(values, torch.ones(values.shape[:2], dtype=torch.bool))


def test_far_frames_stop_at_the_ends_of_the_clip():
    chosen = network(steps=2).eval()._segments(1, 6, torch.device("cpu"))[0].tolist()
    assert chosen == [[0, 0, 2], [0, 1, 3], [0, 2, 4], [1, 3, 5], [2, 4, 5], [3, 5, 5]]


def test_in_training_keyframe_and_distance_are_random_and_no_nearer_than_asked():
    torch.manual_seed(3)
    chosen = network(steps=2).train()._segments(400, 12, torch.device("cpu"))[:, 0]
    before, key, after = chosen.unbind(1)
    assert set(key.tolist()) == set(range(12))
    inside = (before > 0) & (after < 11)
    assert set((after - key)[inside].tolist()) == {2, 3, 4}  # with more, one of them is an end of the clip
    assert ((key - before) == (after - key))[inside].all()


def test_frames_close_together_are_stored_in_threes():
    chosen = network(around=2).eval()._segments(1, 6, torch.device("cpu"))[0].tolist()
    assert chosen == [[0, 1, 2], [3, 4, 5]]
    assert network().eval()._segments(1, 3, torch.device("cpu"))[0].tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("settings", [{}, {"steps": 1}, {"around": 2}, {"around": 2, "resnet_width": 4}], ids=str)
def test_probabilities_are_means_over_segments(settings):
    """Each segment by itself is a clip of its own frames."""
    model, seen = network(**settings).eval(), clips()
    frames = seen.values.view(2, 6, 4, D)
    chosen = model._segments(2, 6, torch.device("cpu"))
    expected = []
    for clip in range(2):
        alone = []
        for segment in chosen[clip]:
            maps = frames[clip, segment].view(-1, 2, 2, D).permute(0, 3, 1, 2)[None]
            alone.append(model.word(model._pooled(maps)).sigmoid()[0])
        expected.append(torch.stack(alone).mean(0))
    torch.testing.assert_close(model.probabilities(seen), torch.stack(expected), atol=1e-5, rtol=0)


def test_long_range_is_2d_and_then_3d_convolution():
    model, seen = network(steps=2).eval(), clips(count=1)
    maps = seen.values.view(6, 2, 2, D).permute(0, 3, 1, 2)
    cells, frame, motion = model.cells[0], model.frame[0], model.motion[0]
    two = F.conv2d(F.conv2d(maps, cells.weight, cells.bias).relu(), frame.weight, frame.bias, padding=1).relu()
    chances = []
    for key in range(6):
        three = torch.stack([two[max(key - 2, 0)], two[key], two[min(key + 2, 5)]], 1)[None]
        seen_in = F.conv3d(three, motion.weight, motion.bias, padding=(0, 1, 1)).relu()[0, :, 0].flatten(1)
        chances.append(model.word(torch.cat([seen_in.mean(1), seen_in.amax(1)])).sigmoid())
    torch.testing.assert_close(model.probabilities(seen)[0], torch.stack(chances).mean(0), atol=1e-5, rtol=0)


def test_it_begins_with_the_frequency_of_words():
    model, seen = network(steps=1).eval(), clips()
    model.start_at(torch.tensor([0.5, 0.1, 0.9]), 24)
    torch.nn.init.zeros_(model.word.weight)
    torch.testing.assert_close(model.probabilities(seen)[0], torch.tensor([0.5, 0.1, 0.9]))
    assert model.word.bias[0].item() == pytest.approx(math.log(1))


@pytest.mark.parametrize(
    ("settings", "reason"), [({"steps": 1, "around": 2}, "around must be 0"), ({"resnet_width": 4}, "frames in threes")]
)
def test_settings_that_exclude_each_other_are_refused(settings, reason):
    with pytest.raises(UserError, match=reason):
        models.build(TAGGERS, "network", "clip_tagger", {"vocab_size": 9, "feature_size": D, **settings})
