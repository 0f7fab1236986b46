"""Captioners that are small, but real: they show that the house is open.  Also a plugin, of every command.

two_streams     regions and a second stream
language_model  a causal language model of transformers behind a prefix, with its own sub-words and a cache as state

And two encoders of clips, which are files of frames with times: `frames` has a row for each of four moments, `motion`
one row for what changes between the first and the last.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tellapart.captioners import CAPTIONERS, Entry, by_steps
from tellapart.captioners.layers import masked_mean
from tellapart.data.media.photos import SQUEEZE, Photo
from tellapart.encoders import ENCODERS, Custom
from tellapart.encoders.encoder import Features
from tellapart.errors import BadPhoto


@dataclass
class TwoStreamsConfig:
    vocab_size: int
    feature_size: int = 1280
    attributes_size: int = 1280
    width: int = 32
    dropout: float = 0.0


class TwoStreams(nn.Module):
    """A GRU that begins with the mean region, and at each word takes the mean of the second stream."""

    streams = ("regions", "attributes")

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.regions, self.attributes = nn.Linear(c.feature_size, c.width), nn.Linear(c.attributes_size, c.width)
        self.embed, self.cell = nn.Embedding(c.vocab_size, c.width), nn.GRUCell(2 * c.width, c.width)
        self.word = nn.Linear(c.width, c.vocab_size)

    def encode(self, inputs):
        return self.regions(masked_mean(*inputs["regions"])), self.attributes(masked_mean(*inputs["attributes"]))

    def start(self, memory):
        return (memory[0].tanh(),)

    def step(self, token, state, memory):
        second = memory[1].repeat_interleave(len(token) // len(memory[1]), 0)
        hidden = self.cell(torch.cat([self.embed(token), second], 1), state[0])
        return self.word(hidden), (hidden,)

    def forward(self, tokens, memory, token_mask=None):
        logits = by_steps(self, tokens, memory, len(memory[0]))
        return logits if token_mask is None else logits[token_mask]


@dataclass
class LanguageModelConfig:
    vocab_size: int
    feature_size: int = 1280
    width: int = 32
    layers: int = 1
    heads: int = 2
    prefix: int = 2
    dropout: float = 0.0


class Cache:
    """The key-value cache of transformers, whose rows can be chosen."""

    def __init__(self, cache):
        self.cache = cache

    def select_rows(self, rows: Tensor):
        from transformers import DynamicCache

        chosen = DynamicCache()
        for number, layer in enumerate(self.cache.layers):
            chosen.update(layer.keys[rows], layer.values[rows], number)
        return Cache(chosen)


class LanguageModel(nn.Module):
    """ClipCap in small: the mean region becomes the first embeddings of a causal language model."""

    def __init__(self, config):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        c = self.config = config
        settings = LlamaConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.width,
            intermediate_size=2 * c.width,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.heads,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
        self.lm = LlamaForCausalLM(settings)
        self.mapper = nn.Linear(c.feature_size, c.prefix * c.width)

    def encode(self, inputs):
        mean = masked_mean(*inputs["regions"])
        return (self.mapper(mean).view(len(mean), self.config.prefix, -1),)

    def start(self, memory):
        from transformers import DynamicCache

        seen = self.lm.model(inputs_embeds=memory[0], past_key_values=DynamicCache(), use_cache=True)
        return (Cache(seen.past_key_values),)

    def step(self, token, state, memory):
        state = state[0].select_rows(torch.arange(len(token)))  # transformers writes into a cache: ours stays as it was
        out = self.lm(input_ids=token[:, None], past_key_values=state.cache, use_cache=True)
        return out.logits[:, 0], (Cache(out.past_key_values),)

    def forward(self, tokens, memory, token_mask=None):
        prefix = memory[0].repeat_interleave(len(tokens) // len(memory[0]), 0)
        embedded = torch.cat([prefix, self.lm.get_input_embeddings()(tokens)], 1)
        logits = self.lm(inputs_embeds=embedded).logits[:, self.config.prefix :]
        return logits if token_mask is None else logits[token_mask]


class ClipEncoder:
    """Frames of a clip by their times, each as 48 numbers: the means of 4 x 4 cells in three colours."""

    takes, fit, weights_sha256 = ("clips",), SQUEEZE, "0" * 64
    feature_size = pooled_size = 48

    def __init__(self, config, device, motion):
        self.config, self._motion = config, motion
        self.regions = 1 if motion else 4

    @property
    def identity(self):
        return self.config.identity | {"weights_sha256": self.weights_sha256}

    def read(self, file):
        """Four moments, evenly over the length of the clip: (4, 4, 4, 3)"""
        data = Path(file).read_bytes() if Path(file).is_file() else b""
        if not data.startswith(b"PK"):
            raise BadPhoto(file, "is no clip")
        with np.load(file) as clip:
            frames, times = clip["frames"], clip["times"]
        wanted = np.linspace(times[0], times[-1], 4)
        chosen = frames[np.abs(times[:, None] - wanted).argmin(0)]
        cells = chosen.reshape(4, 4, chosen.shape[1] // 4, 4, chosen.shape[2] // 4, 3).mean((2, 4))
        return Photo(cells.astype(np.uint8), hashlib.sha256(data).hexdigest())

    def __call__(self, pixels):
        rows = torch.as_tensor(pixels).float().flatten(2) / 255  # (B, 4, 48)
        grid = (rows[:, -1] - rows[:, 0])[:, None] if self._motion else rows
        return Features(grid, grid.mean(1))


TINY = {"width": 32}
ENCODERS["frames"] = Custom(lambda config, device: ClipEncoder(config, device, motion=False), "frames (test)")
ENCODERS["motion"] = Custom(lambda config, device: ClipEncoder(config, device, motion=True), "motion (test)")
CAPTIONERS["two_streams"] = Entry(__name__, "TwoStreams", "two streams (test)")
CAPTIONERS["language_model"] = Entry(__name__, "LanguageModel", "a causal language model (test)")
