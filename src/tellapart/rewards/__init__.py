"""The reward of a sampled caption: tensors in, tensors out.  The types that all rewards share, and their table.

B photos of a batch, N = B*K captions grouped by photo, W words, P photos of the data, E embedding size.

A reward is called with captions as word ids and gives each of them a number, and where it can tell them apart each of
its words one more.  What it needs besides (references, a frozen retriever, look-alikes) it closes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capscore.errors import UserError
from tellapart.plugins import maker

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from tellapart.rewards.caption_reward import PhotoReward


@dataclass(frozen=True)
class SampledCaptions:
    """Captions of a batch of photos as words of the reward vocabulary, grouped by photo."""

    words: Tensor  # (N, W) without BOS, padding after the first EOS
    mask: Tensor  # (N, W) True up to and including the first EOS; a caption that was cut has none, and all of it counts
    photos: Tensor  # (N,) position in the data of each caption's photo
    reference: Tensor | None = None  # (N,) which of its photo's references a caption is; -1 where it is none of them
    progress: float = 0.0  # of the training, from 0 to 1: for rewards that grow harder
    texts: Sequence[str] | None = None  # of each caption, where the captioner's tokens are parts of words
    gathered: SampledCaptions | None = None  # those of all processes; none: there are no others
    first: int = 0  # of those, the first that is here

    @property
    def batch(self) -> SampledCaptions:
        """The captions of the whole batch, over all processes: what a caption is compared with."""
        return self if self.gathered is None else self.gathered

    @property
    def here(self) -> slice:
        """The places of these captions in the batch."""
        return slice(self.first, self.first + len(self.words))

    def reward(self, sentence: Any, words: Any = None) -> Reward:
        """Numbers of these captions (N,), and of their words (N, W), in single precision and on their device."""
        import torch

        here, number = self.words.device, torch.float32
        each = None if words is None else torch.as_tensor(words).to(here, number)
        return Reward(torch.as_tensor(sentence).to(here, number), each)

    @property
    def ids(self) -> Tensor:
        """(N, W) the words, with -1 behind each caption: one that was cut has no end to tell where it stops."""
        return self.words.masked_fill(~self.mask, -1)

    def of(self, rows: Tensor) -> SampledCaptions:
        """These captions alone: (n,) indices."""
        reference = None if self.reference is None else self.reference[rows]
        texts = None if self.texts is None else [self.texts[row] for row in rows.tolist()]
        words, mask, photos = self.words[rows], self.mask[rows], self.photos[rows]
        return SampledCaptions(words, mask, photos, reference, self.progress, texts)


@dataclass(frozen=True)
class Reward:
    """Rewards of captions: a number each, and perhaps one more for each word, which that word alone gets."""

    sentence: Tensor  # (N,)
    words: Tensor | None = None  # (N, W) 0 at padding

    def __add__(self, other: Reward) -> Reward:
        words = self.words if other.words is None else other.words if self.words is None else self.words + other.words
        return Reward(self.sentence + other.sentence, words)

    def __mul__(self, factor: Tensor | float) -> Reward:
        """`factor` is a number, or one for each caption (N,)."""
        of_words = factor if isinstance(factor, int | float) else factor[:, None]
        return Reward(self.sentence * factor, None if self.words is None else self.words * of_words)

    def per_caption(self, mask: Tensor) -> Tensor:
        """(N,) the sentence's number and the mean of its words': one figure for choosing and for logs.

        mask  (N, W) True at the words that captions have
        """
        if self.words is None:
            return self.sentence
        return self.sentence + self.words.sum(1) / mask.sum(1).clamp(min=1)


Term = Callable[[SampledCaptions], Reward]


def reward(term: str, retriever: str | Path = "word", *, scale: float = 0.0, device: str = "auto") -> PhotoReward:
    """A reward of texts and photos as they come, without a pool: a function (texts, images) -> a number each.

    term       similarity, log_probability or accuracy
    retriever  that sees photos: word, judge, a run folder, a CLIP by folder or hub id
    scale      of log_probability before the softmax (default: the retriever's own)

    Example:
        >>> clip_reward = tellapart.rewards.reward("similarity", "word")  # or "openai/clip-vit-base-patch32"
        >>> [right, wrong] = clip_reward(["a kitchen with a stove", "a red bus on a street"], ["a.jpg", "a.jpg"])
        >>> right > wrong
        True
    """
    from tellapart.rewards.caption_reward import PhotoReward

    return PhotoReward(term, retriever, scale=scale, device=device)


def of_term(term: Term, sampled: SampledCaptions, name: str) -> Reward:
    """The reward of sampled captions by a term, if it has the shape of one and is a number for each of them."""
    reward: object = term(sampled)
    plugin = maker(term)
    what = f"{plugin}: the reward {name!r}" if plugin else f"the reward {name!r}"
    if not isinstance(reward, Reward):
        raise UserError(f"{what} must give a Reward, not a {type(reward).__name__}.")
    for field, values, wanted in (
        ("sentence", reward.sentence, sampled.mask.shape[:1]),
        ("words", reward.words, sampled.mask.shape),
    ):
        shape = getattr(values, "shape", None)
        if shape != wanted and (field == "sentence" or values is not None):
            kind = f"a {type(values).__name__}" if shape is None else tuple(shape)
            raise UserError(f"{what}: Reward.{field} must be a tensor of shape {tuple(wanted)}, not {kind}.")
    wrong = ~reward.per_caption(sampled.mask).isfinite()
    if wrong.any():
        photos = ", ".join(map(str, sorted(set(sampled.photos[wrong].tolist()))))
        raise UserError(f"{what} is not a finite number for the photos at {photos} of the training data.")
    return reward
