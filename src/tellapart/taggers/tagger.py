"""A tagger by multiple-instance learning (Fang et al., 2015): a photo has a word if any of its regions has it.

B photos, R regions, D numbers of a region, W words.

noisy-OR   P(w) = 1 - prod over regions of (1 - p(w | region)), p the sigmoid of a linear function of the region and of
           the mean of all regions: what a cell shows is easier to tell from where it is (`context`)

sentence   a linear function of the mean of all regions finds the embedding of the photo's captions among those of all
           training photos (`sentence_size`): the whole that single words do not tell.  In training alone

It is computed by the sum of -log(1 - p), which neither overflows nor vanishes over many regions.  The paper's own
network is VGG over 12 x 12 overlapping windows, with two more layers; ours takes any regions, and where it tunes the
encoder (`tuned_blocks`) those are its layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tellapart.data.streams import Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders.efficientnet_lite import EfficientNetLite

TINY = {"words": 20, "hidden": 0}
SPECIALS = len(WordTokenizer.specials)  # of a vocabulary, which are no words of photos
_LEAST = 1e-7  # of the sum, so that its logarithm is finite


@dataclass
class TaggerConfig:
    vocab_size: int  # of its vocabulary.json: W and the special tokens
    feature_size: int = 1280
    words: int = 1000  # the most that are taken of the training captions
    hidden: int = field(default=0, metadata={"least": 0})  # width of a layer between regions and words; 0: none
    context: bool = False  # a region is seen beside the mean of all
    dropout: float = 0.3  # of whole regions
    feature_dropout: float = 0.0  # of the numbers of regions, or of the layer between
    tuned_blocks: int = field(default=0, metadata={"least": 0})  # of the encoder, from its end; 0: it is frozen
    variant: int = field(default=2, metadata={"least": 0})  # of the EfficientNet-Lite that is tuned
    crop: float = 0.65  # where the encoder is tuned: the least share of a photo's area that a step sees
    crop_size: int = field(default=0, metadata={"least": 0})  # pixels a side of what a step sees; 0: as in use
    encoder_rate: float = 0.1  # the learning rate of the encoder, as a share of the others'
    sentence_size: int = field(default=0, metadata={"least": 0})  # of the sentence embedding predicted too; 0: none


class Tagger(nn.Module):
    def __init__(self, config: TaggerConfig):
        super().__init__()
        c = self.config = config
        width = c.hidden or c.feature_size
        self.project = nn.Sequential(nn.Linear(c.feature_size, width), nn.ReLU()) if c.hidden else nn.Identity()
        self.drop = nn.Dropout(c.feature_dropout)
        self.word = nn.Linear(width, c.vocab_size - SPECIALS)
        nn.init.normal_(self.word.weight, std=0.01)
        self.photo = nn.Linear(width, c.vocab_size - SPECIALS, bias=False) if c.context else None
        if self.photo is not None:
            nn.init.normal_(self.photo.weight, std=0.01)
        self.sentence = nn.Linear(width, c.sentence_size) if c.sentence_size else None
        self.encoder = EfficientNetLite(c.variant) if c.tuned_blocks else None
        if self.encoder is not None:
            self.encoder.requires_grad_(False)
            self.encoder.blocks[-c.tuned_blocks :].requires_grad_(True)
            self.encoder.head.requires_grad_(True)

    def forward(self, inputs: Stream | Tensor) -> Tensor:
        """-log P(no region has the word), (B, W); of regions, or where the encoder is tuned of pixels (B, S, S, 3)"""
        return self.words(self.rows(inputs))

    def rows(self, inputs: Stream | Tensor) -> Stream:
        """Regions as words and sentences are predicted from them, (B, R, width)"""
        if isinstance(inputs, Tensor):
            inputs = self.regions(inputs)
        return Stream(self.project(inputs.values), inputs.mask)

    def words(self, rows: Stream) -> Tensor:
        """-log P(no region has the word), (B, W)"""
        logits = self.word(self.drop(rows.values))  # (B, R, W)
        if self.photo is not None:
            logits = logits + self.photo(self.drop(_mean(rows)))[:, None]
        absent = F.softplus(logits).masked_fill(~rows.mask[..., None], 0)
        if self.training and self.config.dropout:
            absent = absent * F.dropout(torch.ones_like(absent[..., :1]), self.config.dropout)
        return absent.sum(1)

    def sentences(self, rows: Stream) -> Tensor:
        """The embedding of the photo's captions, as far as it can be seen, (B, sentence_size) unit norm"""
        assert self.sentence is not None
        return F.normalize(self.sentence(self.drop(_mean(rows))), dim=1)

    def regions(self, pixels: Tensor) -> Stream:
        """The cells of the tuned encoder's map; pixels in 0..255"""
        assert self.encoder is not None
        images = pixels.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)  # twice as quick on a CPU
        feature_map = self.encoder((images.float() - 127) / 128)
        values = feature_map.flatten(2).transpose(1, 2)
        return Stream(values, torch.ones(values.shape[:2], dtype=torch.bool, device=values.device))

    def probabilities(self, inputs: Stream | Tensor) -> Tensor:
        """(B, W)"""
        return -torch.expm1(-self(inputs))

    def start_at(self, frequency: Tensor, regions: int) -> None:
        """Before the first step each word is as probable as it is frequent.

        Otherwise a noisy-OR over many regions begins with every word certain, where nothing is learned.

        frequency  (W,) the share of photos that have the word
        """
        per_region = -torch.expm1(torch.log1p(-frequency.double().clamp(1e-5, 1 - 1e-5)) / regions)
        with torch.no_grad():
            self.word.bias.copy_(torch.logit(per_region))

    def rate_of(self, parameter: str) -> float:
        """The factor of a parameter's learning rate."""
        return self.config.encoder_rate if parameter.startswith("encoder.") else 1.0


def _mean(rows: Stream) -> Tensor:
    """(B, width)"""
    mask = rows.mask[..., None]
    return rows.values.masked_fill(~mask, 0).sum(1) / mask.sum(1).clamp(min=1)


def sentence_loss(predicted: Tensor, sentences: Tensor, photos: Tensor, scale: float) -> Tensor:
    """Cross-entropy of finding a photo's captions among those of all training photos.

    predicted  (B, E) unit norm
    sentences  (P, E) the mean embedding of each training photo's captions, by a frozen text retriever
    photos     (B,) the rows of these photos
    scale      what a cosine is multiplied with
    """
    return F.cross_entropy(scale * predicted @ sentences.T, photos)


def tagging_loss(absent: Tensor, has: Tensor) -> Tensor:
    """Binary cross-entropy, the mean over photos of the sum over words.

    absent  (B, W) -log P(the photo does not have the word)
    has     (B, W) 1 where a caption of the photo has the word
    """
    absent = absent.clamp(min=_LEAST)
    return (absent * (1 - has) - torch.log(-torch.expm1(-absent)) * has).sum() / max(len(has), 1)


def cropped(pixels: Tensor, chance: Sequence[float], least: float, side: int = 0) -> Tensor:
    """A part of each photo, half of them mirrored.  pixels (B, S, S, 3) -> (B, side, side, 3) float

    chance  of each photo, from 0 to below 1: decides which part
    least   share of the area that it has
    side    pixels; 0: as the photos
    """
    boxes = []
    for number in chance:
        area, shape, across, down, mirror = np.random.default_rng(int(number * 2**53)).random(5).tolist()
        area = least + (1 - least) * area
        ratio = math.exp((shape - 0.5) * math.log(4 / 3))  # width over height, as a share of the photo's own
        ratio = min(max(ratio, area), 1 / area)  # neither side is longer than the photo's
        width, height = math.sqrt(area * ratio), math.sqrt(area / ratio)
        x, y = (2 * across - 1) * (1 - width), (2 * down - 1) * (1 - height)
        boxes.append([[-width if mirror < 0.5 else width, 0, x], [0, height, y]])
    size = [len(pixels), 3, *([side, side] if side else pixels.shape[1:3])]
    grid = F.affine_grid(torch.tensor(boxes, device=pixels.device), size, align_corners=False)
    images = F.grid_sample(pixels.permute(0, 3, 1, 2).float(), grid, padding_mode="border", align_corners=False)
    return images.permute(0, 2, 3, 1)
