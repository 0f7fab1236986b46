"""Words of a clip from some of its frames: GL-RG's encoders as networks that are trained (Yan et al., 2022).

B clips, F stored frames of each, S segments that are used, W words.  A stored frame is a map of g x g cells.

long-range   2D convolutions on the keyframe and on those n before and after it, then a 3D convolution over the three.
             `steps` is the least n, in stored frames; those are evenly in time, and should be so far apart that it is
             more than 25 frames of the clip.  In training keyframe and n are random; frames outside of the clip are its
             first or last
short-range  the encoder's `around` stores frames in threes; with `resnet_width` a 3D-ResNet-18 of that width takes
             them, beside 2D convolutions of the keyframe, and a dense layer both
keyframe     2D convolutions on single frames: where neither is set

In training a clip is seen by one segment; otherwise probabilities are means over all of them.  The paper trains on
pixels.  Here a stored frame is the map of any frozen encoder, or its pixels (the encoder `patches`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tellapart.data.streams import Stream
from tellapart.encoders.classifiers import ResNet3d
from tellapart.taggers.tagger import SPECIALS

TINY = {"words": 20, "width": 16}


@dataclass
class ClipTaggerConfig:
    vocab_size: int  # of its vocabulary.json: W and the special tokens
    feature_size: int = 1280
    words: int = 300  # K: the most that are taken of the training captions
    width: int = 256
    steps: int = field(default=0, metadata={"least": 0})
    resnet_width: int = field(default=0, metadata={"least": 0})
    dropout: float = 0.5
    frames: int = 1  # of a clip, the cells a side of each, and `around`: follow from the encoder
    grid: int = 1
    around: int = field(default=0, metadata={"least": 0})


class ClipTagger(nn.Module):
    encoder = None  # it is frozen

    def __init__(self, config: ClipTaggerConfig):
        super().__init__()
        c = self.config = config
        if c.steps and c.around:
            raise ValueError("steps are between frames that stand alone, and the encoder's around must be 0")
        self.deep = bool(c.steps or c.around)  # more than one frame is used
        self.cells = nn.Sequential(nn.Conv2d(c.feature_size, c.width, 1), nn.ReLU(), nn.Dropout(c.dropout))
        self.frame = nn.Sequential(nn.Conv2d(c.width, c.width, 3, padding=1), nn.ReLU())
        self.motion, self.resnet, size = None, None, 2 * c.width
        if c.resnet_width:
            if not self.deep:
                raise ValueError("resnet_width needs frames in threes: the encoder's around")
            self.resnet = ResNet3d(1, c.resnet_width, c.feature_size)
            self.resnet.fc = nn.Identity()  # type: ignore[assignment]
            size += 8 * c.resnet_width
        elif self.deep:
            self.motion = nn.Sequential(nn.Conv3d(c.width, c.width, 3, padding=(0, 1, 1)), nn.ReLU())
        self.dropout, self.word = nn.Dropout(c.dropout), nn.Linear(size, c.vocab_size - SPECIALS)
        nn.init.normal_(self.word.weight, std=0.01)

    def forward(self, inputs: Stream) -> Tensor:
        """-log P(the clip does not have the word), (B, W); of the cells of all frames (B, R, D)"""
        c = self.config
        frames = torch.unflatten(inputs.values, 1, (-1, c.grid, c.grid)).movedim(4, 2)  # (B, F, D, g, g)
        chosen = self._segments(len(frames), frames.shape[1], frames.device)  # (B, S, frames of a segment)
        rows = torch.arange(len(frames), device=frames.device)[:, None, None]
        segments = frames[rows, chosen].flatten(0, 1)  # (B*S, 1 or 3, D, g, g)
        absent = F.softplus(self.word(self.dropout(self._pooled(segments)))).view(*chosen.shape[:2], -1)
        # -log of the mean over segments of 1 - p
        return math.log(chosen.shape[1]) - torch.logsumexp(-absent, 1)

    def _pooled(self, segments: Tensor) -> Tensor:
        count, length = segments.shape[:2]
        if self.resnet is not None:
            key = self.frame(self.cells(segments[:, length // 2]))
            return torch.cat([_both(key), self.resnet.features(segments.transpose(1, 2))], 1)
        maps = self.frame(self.cells(segments.flatten(0, 1)))
        if self.motion is None:
            return _both(maps)
        return _both(self.motion(maps.unflatten(0, (count, length)).transpose(1, 2)).squeeze(2))

    def _segments(self, clips: int, frames: int, device: torch.device) -> Tensor:
        """The stored frames of each segment that is used: (B, S, 3), or (B, S, 1) of keyframes alone"""
        c = self.config
        count = frames // 3 if c.around else frames
        if self.training:
            key = torch.randint(count, (clips, 1), device=device)
        else:
            key = torch.arange(count, device=device).expand(clips, -1)
        if c.around:
            return 3 * key[..., None] + torch.arange(3, device=device)
        if not c.steps:
            return key[..., None]
        reach = torch.full_like(key, c.steps)
        if self.training:
            reach += torch.randint(max(frames // 2 - c.steps, 0) + 1, key.shape, device=device)
        return torch.stack([key - reach, key, key + reach], 2).clamp(0, frames - 1)

    def probabilities(self, inputs: Stream) -> Tensor:
        """(B, W)"""
        return -torch.expm1(-self(inputs))

    def start_at(self, frequency: Tensor, regions: int) -> None:
        """Before the first step each word is as probable as it is frequent."""
        with torch.no_grad():
            self.word.bias.copy_(torch.logit(frequency.double().clamp(1e-5, 1 - 1e-5)))


def _both(maps: Tensor) -> Tensor:
    """Mean and maximum of maps (N, C, g, g): (N, 2 * C)"""
    return torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], 1)
