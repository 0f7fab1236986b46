"""From a name to a retriever: an embedded one, a run or model folder, MiniLM, or a CLIP from a folder or the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError
from tellapart import models, numerics
from tellapart.data.streams import REGIONS
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.encoders import pretrained
from tellapart.retrievers import DEFAULT, EMBEDDED, MINILM, RETRIEVERS, clip
from tellapart.retrievers.readers import SIZE, Reader, SentenceEncoder, SentenceReader, WordReader
from tellapart.retrievers.retriever import Retriever


def load(name: str | Path = DEFAULT, *, device: str = "auto", prompt: str = "") -> Retriever:
    """`prompt` is what CLIP finds at the beginning of every caption, such as "A photo depicts"."""
    chosen = numerics.choose_device(device)
    ours = str(name) in EMBEDDED or str(name) == MINILM
    if not ours and pretrained.could_be(str(name)):
        return clip.load(str(name), chosen, prompt=prompt)
    if prompt:
        raise UserError(f"a prompt is for CLIP; the retriever {str(name)!r} takes captions as they are.")
    if str(name) == MINILM:
        encoder = SentenceEncoder(chosen)
        towers: Any = _Same().to(chosen)
        return Retriever(MINILM, encoder.sha256, "references", SIZE, towers, SentenceReader(encoder), None, chosen)
    folder = EMBEDDED.get(str(name), Path(name))
    if not files.is_folder(folder):
        raise UserError(
            f"there is no retriever {str(name)!r}: neither a folder nor one of {', '.join([*EMBEDDED, MINILM])}."
        )
    return _from_folder(folder, chosen)


def _from_folder(folder: Path, device: torch.device) -> Retriever:
    config = models.read_config(folder, "retriever")
    entry = RETRIEVERS.get(config.name)
    if entry is None:
        raise UserError(f"{folder}: there is no retriever {config.name!r}; there are {', '.join(RETRIEVERS)}.")
    towers: Any
    towers, sha256 = models.rebuild(folder, RETRIEVERS, "retriever", config)
    encoder = models.encoder_from(config.inputs.get(REGIONS, {}), device, [folder]) if entry.sees == "photos" else None
    towers.to(device).eval().requires_grad_(False)
    tokenizer = models.load_tokenizer(folder, config.settings) if entry.reads == "words" else None
    reader = reader_of(config.name, tokenizer, device)
    name, size, alike = files.real(folder).name, int(towers.config.size), _look_alikes(folder, sha256)
    return Retriever(name, sha256, entry.sees, size, towers, reader, encoder, device, alike)


def _look_alikes(folder: Path, sha256: str) -> dict[str, float]:
    """From which cosine on photos look alike, by image and by caption, where that was measured with these weights."""
    if not os.path.lexists(folder / "look_alikes.json"):
        return {}
    file = files.inside(folder, "look_alikes.json")
    content = files.read_json(file)
    cosines = content.get("alike_above")
    if not isinstance(cosines, dict) or not all(isinstance(c, float) and -1 <= c <= 1 for c in cosines.values()):
        raise UserError(f'{file}: "alike_above" must give cosines, from -1 to 1.')
    return cosines if content.get("weights_sha256") == sha256 else {}


def reader_of(name: str, tokenizer: Tokenizer | None, device: torch.device) -> Reader:
    """The reader of captions for a network of this name: of words, or without a vocabulary of whole sentences."""
    if tokenizer is None:
        return SentenceReader(SentenceEncoder(device))
    if not isinstance(tokenizer, WordTokenizer):
        raise UserError(f"the retriever {name} reads words; its tokenizer must be one of words.")
    return WordReader(tokenizer, with_eos=name == "vse")


class _Same(nn.Module):
    """A sentence encoder's own vectors are the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale: Tensor
        self.register_buffer("log_scale", torch.tensor(20.0).log())  # what its authors trained it with

    def embed_captions(self, captions: Tensor) -> Tensor:
        return captions
