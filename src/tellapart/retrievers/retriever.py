"""A retriever as the rest of the program uses it: photos and captions in, unit vectors and similarities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.data.tokenizers import Tokenizer
from tellapart.encoders import PhotoEncoder
from tellapart.features.extracted import Pooled, ReadPhotos, pooled_features
from tellapart.parallel import batched
from tellapart.retrievers import Towers
from tellapart.retrievers.readers import Reader

_CAPTIONS, _PHOTOS = 512, 4096  # at once


@dataclass(frozen=True)
class Retriever:
    """Frozen towers, with the reader of captions and the encoder of photos that go with them."""

    name: str  # as tables show it
    sha256: str  # of its weights
    sees: Literal["photos", "references"]  # what it knows a photo by
    size: int  # E
    towers: Towers
    reader: Reader
    encoder: PhotoEncoder | None  # whose pooled features it takes; none where it sees only references
    device: torch.device
    alike_above: Mapping[str, float] = field(default_factory=dict)  # by image and by caption: cosines of look-alikes

    @property
    def scale(self) -> float:
        """Factor of a cosine before a softmax."""
        return float(self.towers.log_scale.exp())

    @torch.inference_mode()
    def embed_images(self, pooled: Tensor) -> Tensor:
        """pooled features (B, D) -> (B, E) unit norm"""
        return self.towers.embed_images(pooled.to(self.device))

    @torch.inference_mode()
    def embed_pixels(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        """(B, S, S, 3) in 0..255 -> (B, E) unit norm"""
        if self.encoder is None:
            raise ValueError(f"{self.name} sees references, not photos")
        return self.embed_images(self.encoder(pixels).pooled)

    @torch.inference_mode()
    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """-> (N, E) unit norm; a caption without a word is like nothing: zeros"""
        parts = []
        for batch in batched(captions, _CAPTIONS):
            has_words = torch.tensor([any(map(str.isalnum, caption)) for caption in batch], device=self.device)
            parts.append(self._embed(self.reader.read(batch)) * has_words[:, None])
        return torch.cat(parts) if parts else torch.zeros(0, self.size, device=self.device)

    @torch.inference_mode()
    def embed_tokens(self, tokens: Tensor, words: Tokenizer) -> Tensor:
        """A captioner's tokens (N, T), which count up to EOS -> (N, E); none: zeros.  `words` are the captioner's."""
        before_eos = (tokens == words.eos).cumsum(1) == 0
        is_word = before_eos & (tokens != words.pad) & (tokens != words.bos)
        return self._embed(self.reader.read_tokens(tokens, words)) * is_word.any(1, keepdim=True).to(self.device)

    @torch.inference_mode()
    def embed_references(self, references: Sequence[Sequence[str]]) -> Tensor:
        """(P, E): the mean of their unit vectors, so that a product with a caption is the mean cosine; none: zeros"""
        flat = self.embed_captions([text for texts in references for text in texts])
        photo = torch.tensor([i for i, texts in enumerate(references) for _ in texts], dtype=torch.long).to(self.device)
        total = torch.zeros(len(references), self.size, device=self.device).index_add_(0, photo, flat)
        count = torch.tensor([max(len(texts), 1) for texts in references], device=self.device)
        return total / count[:, None]

    def similarity(self, captions: Tensor, images: Tensor) -> Tensor:
        """(N, E), (P, E) -> (N, P)"""
        return captions @ images.T

    def _embed(self, read: Tensor) -> Tensor:
        return self.towers.embed_captions(read.to(self.device))


@dataclass
class Embedded(ReadPhotos):
    vectors: NDArray[np.float32]  # (P, E) unit norm
    features: NDArray[np.float32] | None = None  # (P, D) the encoder's, by which near-duplicates are known


def embed_photos(retriever: Retriever, files: Sequence[str]) -> Embedded:
    """The vectors of photos.  Features, which are what costs, are kept: all retrievers on an encoder share them."""
    if retriever.encoder is None:
        raise ValueError(f"{retriever.name} sees references, not photos")
    return embed(retriever, pooled_features(retriever.encoder, files))


def embed(retriever: Retriever, pooled: Pooled) -> Embedded:
    """The vectors of photos whose features are at hand."""
    parts = [retriever.embed_images(part).float().cpu() for part in torch.from_numpy(pooled.vectors).split(_PHOTOS)]  # type: ignore[no-untyped-call]
    vectors: NDArray[np.float32] = (
        torch.cat(parts).numpy() if pooled.files else np.zeros((0, retriever.size), np.float32)
    )
    return Embedded(pooled.files, pooled.sha256, pooled.failed, vectors, pooled.vectors)
