"""A retriever whose similarities can be worked out by hand: a caption is the direction in which its words point."""

import math

import torch
import torch.nn.functional as F

from rewards.captions import sampled
from tellapart.rewards.retrieval import FrozenRetriever

PAD, BOS, EOS, FIRST = 0, 1, 2, 3  # word 0 of the tables below is token FIRST


class Directions:
    """The unit vector of the sum of the words' vectors (V, E), up to EOS; without a word zeros."""

    def __init__(self, vectors):
        self.vectors = vectors

    def __call__(self, sampled):
        tokens = sampled.words
        counts = ((tokens == EOS).cumsum(1) == 0) & (tokens >= FIRST)
        vectors = self.vectors[(tokens - FIRST).clamp(min=0)] * counts[..., None]
        return F.normalize(vectors.sum(1), dim=1)


def degrees(*angles):
    """Unit vectors of the plane: the cosine of two is that of the angle between them."""
    return torch.tensor([[math.cos(math.radians(angle)), math.sin(math.radians(angle))] for angle in angles])


def frozen(images, words, *, pool=None, scale=10.0, references=None):
    pool = torch.zeros(len(images), dtype=torch.long) if pool is None else torch.tensor(pool)
    return FrozenRetriever("directions", images, pool, scale, Directions(words), references)


def sampled_captions(captions, photos, **more):
    """Captions as lists of words."""
    return sampled([[FIRST + word for word in caption] for caption in captions], photos, end=EOS, filler=PAD, **more)


def cosine(a, b):
    """In double precision and without torch."""
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
