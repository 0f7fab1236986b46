"""CLIP and SigLIP as retrievers: any that transformers can load, from a folder or by hub id, used as they are."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capscore.errors import UserError
from tellapart.encoders.towers import CLIP_INSTALL, ClipEncoder, Pretrained, load_clip
from tellapart.hub import reason
from tellapart.retrievers.readers import TextReader
from tellapart.retrievers.retriever import Retriever

_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")
_BATCH = 64  # captions through the text tower at once


def load(source: str, device: torch.device, *, prompt: str = "") -> Retriever:
    """source  a folder or a hub id
    prompt  what every caption begins with, such as "A photo depicts"; none: captions as they are
    """
    pretrained = load_clip(source, device)
    encoder = ClipEncoder(pretrained, device)
    reader = ClipReader(pretrained, prompt)
    towers = ClipTowers(pretrained.network)
    name, sha256 = pretrained.name, pretrained.weights_sha256
    return Retriever(name, sha256, "photos", encoder.pooled_size, towers, reader, encoder, device)  # type: ignore[arg-type]


class ClipTowers(nn.Module):
    """Images come from the encoder, which has projected them already."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    @property
    def log_scale(self) -> Tensor:
        scale: Tensor = self.network.logit_scale
        return scale

    def embed_images(self, pooled: Tensor) -> Tensor:
        return F.normalize(pooled.float(), dim=1)

    def embed_captions(self, captions: Tensor) -> Tensor:
        parts = [self.network.get_text_features(input_ids=part).pooler_output for part in torch.split(captions, _BATCH)]
        return F.normalize(torch.cat(parts), dim=1)


class ClipReader(TextReader):
    """Token ids (N, T) of the model's own tokenizer.

    No mask goes with them: CLIP reads from left to right up to the end of a text, and SigLIP was trained on texts that
    are all filled up to its full length.
    """

    def __init__(self, pretrained: Pretrained, prompt: str = ""):
        self.title, self.prompt = pretrained.family.title, prompt
        self.limit = int(pretrained.network.config.text_config.max_position_embeddings)
        self._fills_up = pretrained.family.model == "SiglipModel"
        self._tokenizer = _tokenizer(pretrained)
        self._captions = self._cut = 0

    def read(self, captions: Sequence[str]) -> Tensor:
        texts = [f"{self.prompt} {caption}" if self.prompt else caption for caption in captions]
        if self._fills_up:
            texts = list(map(str.lower, texts))  # SigLIP knows no capitals, and not every tokenizer of it says so
        ids = self._tokenizer(texts)["input_ids"]
        long = [place for place, tokens in enumerate(ids) if len(tokens) > self.limit]
        for place in long:  # the tokenizer knows which tokens must stay at the end
            ids[place] = self._tokenizer(texts[place], truncation=True, max_length=self.limit)["input_ids"]
        if long and not self._cut:  # captions come in many batches: reported when the last has been read
            atexit.register(self.announce)
        self._captions, self._cut = self._captions + len(texts), self._cut + len(long)
        padding = "max_length" if self._fills_up else "longest"
        padded = self._tokenizer.pad({"input_ids": ids}, padding=padding, max_length=self.limit, return_tensors="pt")
        tokens: Tensor = padded["input_ids"]
        return tokens

    def announce(self) -> None:
        print(
            f"{self._cut:,} of {self._captions:,} captions are longer than {self.title}'s {self.limit} tokens; "
            "the rest is ignored",
            file=sys.stderr,
        )


def _tokenizer(pretrained: Pretrained) -> Any:
    from transformers import AutoTokenizer

    folder, text = pretrained.folder, pretrained.network.config.text_config
    if not any((folder / file).exists() for file in _VOCABULARIES):  # transformers would continue with an empty one
        raise UserError(f"{folder} has no tokenizer: none of {', '.join(_VOCABULARIES)}.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except ImportError:
        raise UserError(
            f"{folder}: its tokenizer is made for sentencepiece, which is not installed; `{CLIP_INSTALL}` brings it."
        ) from None
    except Exception as error:  # a damaged file fails in as many ways as there are fields
        raise UserError(f"{folder}: the tokenizer cannot be loaded ({reason(error)}).") from None
    if tokenizer.pad_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no token to fill up short captions with (pad_token).")
    if max(tokenizer.get_vocab().values(), default=0) >= text.vocab_size:
        raise UserError(f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model {text.vocab_size}.")
    # CLIP looks for the end of a text by its id; where it finds none, all captions are alike to it.  2 is what older
    # configs say wrongly, and transformers knows.
    if pretrained.family.model == "CLIPModel" and text.eos_token_id not in (2, tokenizer.eos_token_id):
        raise UserError(
            f"{folder}: a text ends with token {tokenizer.eos_token_id} for the tokenizer and {text.eos_token_id} for "
            "the model; they are not of one CLIP."
        )
    return tokenizer
