"""ClipCap (Mokady et al., 2021): a mapper turns the photo into the first embeddings of a causal language model.

The language model (GPT-2 in the paper; any of transformers here) continues.  It is trained with the mapper, or
frozen, or frozen with LoRA beside its layers; what is frozen is not in checkpoints.  As in the authors' program the
first word follows the last embedding of the photo: there is no BOS.

What we add: regions.  An MLP sees their mean; the Transformer mapper sees the mean as `image_tokens` tokens, as in the
paper, or with `image_tokens: 0` each region as a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capscore.errors import UserError
from tellapart.captioners import language_models
from tellapart.captioners.layers import masked_mean, masked_softmax
from tellapart.captioners.lora import add_lora
from tellapart.captioners.transformer import KeysValues
from tellapart.data.streams import REGIONS, Inputs, Stream


@dataclass
class ClipCapConfig:
    vocab_size: int
    feature_size: int = 512
    language_model: str = ""  # folder, hub id, GGUF file or smollm2; empty: a new GPT-2 of the sizes at the end
    mapper: str = field(default="mlp", metadata={"choices": ("mlp", "transformer")})
    prefix: int = 10  # embeddings that stand for the photo
    image_tokens: int = field(default=40, metadata={"least": 0})  # of the Transformer mapper; 0: one for each region
    mapper_layers: int = 8
    mapper_heads: int = 8
    frozen: bool = False  # the language model
    lora_rank: int = field(default=0, metadata={"least": 0})  # above 0: the language model is frozen and learns so
    lora_alpha: int = 32
    dropout: float = 0.0  # of the mapper, and of a new language model
    width: int = 768
    layers: int = 12
    heads: int = 12
    architecture: dict[str, Any] = field(default_factory=dict)  # of the language model, as transformers describes it
    base_sha256: str = ""  # of the weights that it began with


TINY = {
    "language_model": "",
    "lora_rank": 0,
    "frozen": False,
    "prefix": 2,
    "image_tokens": 2,
    "mapper_layers": 1,
    "mapper_heads": 2,
    "width": 32,
    "layers": 1,
    "heads": 2,
}
_LENGTH = 1024  # positions of a new GPT-2


class State(NamedTuple):
    """The language model's cache: N rows."""

    layers: tuple[KeysValues, ...]
    first: Tensor  # (N, V) logits of the first word; (N, 0) from then on


class ClipCap(nn.Module):
    parallel_forward = True
    max_words = 40  # sub-words of a caption, by default

    def __init__(self, config: ClipCapConfig):
        super().__init__()
        c = self.config = config
        self.language_model = language_models.build(c.architecture)
        self.width = self.language_model.get_input_embeddings().embedding_dim
        if c.lora_rank:
            add_lora(self.language_model, c.lora_rank, c.lora_alpha)
        elif c.frozen:
            self.language_model.requires_grad_(False)
        self.frozen_names = frozenset(name for name, weight in self.named_parameters() if not weight.requires_grad)
        self.mapper = TransformerMapper(c, self.width) if c.mapper == "transformer" else MlpMapper(c, self.width)

    @staticmethod
    def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a recipe with what follows from the language model that they name."""
        chosen = {key: value for key, value in settings.items() if key in ClipCapConfig.__dataclass_fields__}
        c = ClipCapConfig(**chosen)
        if not c.language_model:
            dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), c.dropout)
            sizes = {"n_embd": c.width, "n_layer": c.layers, "n_head": c.heads, "n_positions": _LENGTH}
            gpt2 = {"model_type": "gpt2", "vocab_size": c.vocab_size, **sizes, **dropout}
            return {**settings, "architecture": gpt2}
        values = language_models.architecture(c.language_model)
        language_models.require_words(c.language_model, c.vocab_size, values.get("vocab_size"))
        return {**settings, "architecture": values, "language_model": language_models.resolved(c.language_model)}

    def load_base(self, folder: Path | None = None) -> None:
        """The weights of the language model that the settings name, where the checkpoint does not have them.

        folder  of the model, if it comes from one: it does not decide what is read from this machine
        """
        c = self.config
        if not c.language_model or self.language_model.get_input_embeddings().weight.is_meta:
            return
        if folder is None:
            source = c.language_model
        elif not self.frozen_names:
            return
        else:
            source = language_models.allowed(c.language_model, c.base_sha256, folder)
        base, sha256 = language_models.read(source)
        if folder is not None and sha256 != c.base_sha256:
            raise UserError(
                f"{folder} was trained over the language model {c.language_model} with weights {c.base_sha256[:8]}, "
                f"and those of {source} are {sha256[:8]}."
            )
        c.base_sha256 = sha256
        self.language_model.load_state_dict(base.state_dict(), strict=False)  # what LoRA brings is not in it

    def train(self, mode: bool = True) -> ClipCap:
        super().train(mode)
        if self.frozen_names:  # no dropout in what does not learn
            self.language_model.eval()
        return self

    def encode(self, inputs: Inputs) -> tuple[Tensor]:
        """(B, prefix, width)"""
        return (self.mapper(inputs[REGIONS]),)

    def start(self, memory: tuple[Tensor]) -> State:
        logits, layers = self._read(memory[0], None, last=True)
        return State(layers, logits[:, -1])

    def step(self, token: Tensor, state: State, memory: tuple[Tensor]) -> tuple[Tensor, State]:
        """Before the first word, any token."""
        if state.first.shape[1]:
            return state.first, State(state.layers, state.first[:, :0])
        logits, layers = self._read(self._embed(token[:, None]), state.layers)
        return logits[:, 0], State(layers, state.first)

    def forward(self, tokens: Tensor, memory: tuple[Tensor], token_mask: Tensor | None = None) -> Tensor:
        """The captions of a photo share its prefix."""
        begun = self.start(memory)
        several = len(tokens) // max(1, len(memory[0]))
        logits = begun.first.repeat_interleave(several, 0)[:, None]
        if tokens.shape[1] > 1:
            layers = tuple(KeysValues(*(part.repeat_interleave(several, 0) for part in each)) for each in begun.layers)
            following, _ = self._read(self._embed(tokens[:, 1:]), layers)
            logits = torch.cat([logits, following], 1)
        return logits if token_mask is None else logits[token_mask]

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.language_model.get_input_embeddings()(tokens)  # type: ignore[no-any-return]

    def _read(
        self, embeddings: Tensor, past: tuple[KeysValues, ...] | None, last: bool = False
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """embeddings (N, T, width) after what was read before -> logits (N, T, V) and all that is read now

        last  logits (N, 1, V) of the last one only
        """
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        cache = DynamicCache()
        for keys, values in past or ():  # as it is: `update` would copy it first
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            cache.layers.append(layer)
        out = self.language_model(
            inputs_embeds=embeddings, past_key_values=cache, use_cache=True, logits_to_keep=1 if last else 0
        )
        layers = tuple(KeysValues(layer.keys, layer.values) for layer in cache.layers)
        return out.logits[..., : self.config.vocab_size], layers  # some have more, to round their number up


class MlpMapper(nn.Module):
    """512 -> 3840 -> 7680 with tanh between, at the sizes of CLIP and GPT-2: 10 embeddings."""

    def __init__(self, config: ClipCapConfig, width: int):
        super().__init__()
        size = config.prefix * width
        self.width = width
        self.inner, self.outer = nn.Linear(config.feature_size, size // 2), nn.Linear(size // 2, size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, regions: Stream) -> Tensor:
        inner = self.dropout(self.inner(masked_mean(*regions)).tanh())
        return self.outer(inner).view(len(inner), -1, self.width)  # type: ignore[no-any-return]


class TransformerMapper(nn.Module):
    """Tokens of the photo and learned ones look at each other; what becomes of the learned ones is the prefix."""

    def __init__(self, config: ClipCapConfig, width: int):
        super().__init__()
        if width % config.mapper_heads:
            raise ValueError(f"mapper_heads must divide the width of the language model, {width}")
        self.tokens = config.image_tokens
        self.linear = nn.Linear(config.feature_size, max(1, self.tokens) * width)
        self.prefix = nn.Parameter(torch.randn(config.prefix, width))
        self.layers = nn.ModuleList(MapperLayer(config, width) for _ in range(config.mapper_layers))

    def forward(self, regions: Stream) -> Tensor:
        photos, learned = len(regions.values), len(self.prefix)
        if self.tokens:
            image = self.linear(masked_mean(*regions)).view(photos, self.tokens, -1)
            mask = regions.mask.new_ones(photos, self.tokens)
        else:
            image, mask = self.linear(regions.values.masked_fill(~regions.mask[..., None], 0)), regions.mask
        x = torch.cat([image, self.prefix.expand(photos, -1, -1)], 1)
        padding = ~torch.cat([mask, mask.new_ones(photos, learned)], 1)
        for layer in self.layers:
            x = layer(x, padding)
        return x[:, -learned:]


class MapperLayer(nn.Module):
    """Layer norm first; queries, keys and values without bias; the inner layer is twice as wide."""

    def __init__(self, config: ClipCapConfig, width: int):
        super().__init__()
        self.heads, self.scale = config.mapper_heads, (width // config.mapper_heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_queries = nn.Linear(width, width, bias=False)
        self.to_keys_values = nn.Linear(width, 2 * width, bias=False)
        self.project = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """x (B, S, width), padding (B, S)"""
        y = self.norm1(x)
        keys, values = self.to_keys_values(y).chunk(2, 2)
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.to_queries(y), keys, values)
        )
        weight = masked_softmax(queries @ keys.transpose(2, 3) * self.scale, padding[:, None, None])
        x = x + self.dropout(self.project((weight @ values).transpose(1, 2).flatten(2)))
        return x + self.dropout(self.fc2(torch.relu(self.fc1(self.norm2(x)))))  # type: ignore[no-any-return]
