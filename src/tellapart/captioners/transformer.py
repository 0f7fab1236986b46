"""Transformer captioner (Vaswani et al., 2017) over a grid of cells or a set of regions, layer norm first.

What we leave out on purpose: positions of regions (a set of boxes has no order, and a convolutional grid leaks its
own), copies of a photo's memory for each of its captions (a photo's captions ask it their questions together), and
dropout inside attention and feed-forward (random numbers are a large part of a step on a CPU; the residuals have it).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.layers import SharedPrefixes, masked_softmax
from tellapart.data.streams import REGIONS, Inputs


@dataclass
class TransformerConfig:
    vocab_size: int
    feature_size: int = 1280
    width: int = 384
    heads: int = 6
    encoder_layers: int = 1  # self-attention among the regions
    decoder_layers: int = 2
    feed_forward: int = 1536
    dropout: float = 0.1


TINY = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feed_forward": 64}


class KeysValues(NamedTuple):
    keys: Tensor  # (rows, heads, positions, width / heads)
    values: Tensor


class Memory(NamedTuple):
    """The photo as the decoder attends to it, projected once for each of its layers."""

    layers: tuple[KeysValues, ...]  # B rows, R positions
    padding: Tensor  # (B, R) True where there is no region


State = tuple[KeysValues, ...]  # per layer, the words so far: N rows


class Layout(NamedTuple):
    """The places of words.

    Layers take all words of a batch as one list (M, width), without the padding between captions, and words that follow
    the same beginning once; only attention needs them in their captions (N, T, width).
    """

    captions: int  # N
    length: int  # T
    place: Tensor | None = None  # (M,) index of each word in N*T; None: every place has one
    word: Tensor | None = None  # (N*T,) the word at each place, where one word may stand at several

    def spread(self, words: Tensor) -> Tensor:
        """(M, C) -> (N*T, C)"""
        if self.place is None:
            return words
        if self.word is not None:  # where there is no word stands any: words look only at those before them
            return words.index_select(0, self.word)
        return words.new_zeros(self.captions * self.length, words.shape[1]).index_copy(0, self.place, words)

    def gather(self, words: Tensor) -> Tensor:
        """(N*T, C), in any shape -> (M, C)"""
        words = words.reshape(self.captions * self.length, -1)
        return words if self.place is None else words.index_select(0, self.place)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor, rows: int) -> Tensor:
        """(rows * positions, width), or with the two apart -> (rows, heads, positions, width / heads)"""
        return x.view(rows, -1, self.heads, x.shape[-1] // self.heads).transpose(1, 2)

    def remember(self, keys_values: Tensor, rows: int) -> KeysValues:
        """(rows * positions, 2 * width), from `key_value`"""
        keys, values = keys_values.chunk(2, dim=-1)
        return KeysValues(self.split(keys, rows), self.split(values, rows))

    def look(self, queries: Tensor, memory: KeysValues, padding: Tensor | None) -> Tensor:
        """queries (rows * queries, width), from `query`, to (rows, queries, width), for `out`.

        padding: True where a query must not look; fits (rows, heads, queries, positions)
        """
        # Written out: at these sizes two matrix products and a softmax are quicker on a CPU than the fused kernel.
        weight: Tensor = self.split(queries, len(memory.keys)) @ memory.keys.transpose(2, 3) * self.scale
        weight = weight.softmax(-1) if padding is None else masked_softmax(weight, padding)
        return (weight @ memory.values).transpose(1, 2).flatten(2)

    def recall(self, x: Tensor, layout: Layout, past_words: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """New words look at those before them, and at themselves.

        x        (M, width): new words
        past     the words before them, N rows; none: these are the first
        returns  (M, width), and all words up to now
        """
        words = self.remember(layout.spread(self.key_value(x)), layout.captions)
        if past_words is not None:
            words = KeysValues(*(torch.cat(both, 2) for both in zip(past_words, words, strict=True)))
        later = None  # (T, T) True where a word would look at a later one
        if layout.length > 1:
            later = torch.ones(layout.length, layout.length, dtype=torch.bool, device=x.device).triu(1)
        past = self.look(layout.spread(self.query(x)), words, later)
        return self.out(layout.gather(past)), words


def require_heads(width: int, heads: int) -> None:
    if heads < 1 or width < 2 or width % heads or width % 2:
        raise ValueError(f"width must be even and a multiple of heads, not {width} with {heads} heads")


def feed_forward(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))


class EncoderLayer(nn.Module):
    """Regions attend to each other, then to a feed-forward network each."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.look_norm, self.look = nn.LayerNorm(config.width), Attention(config.width, config.heads)
        self.think_norm, self.think = nn.LayerNorm(config.width), feed_forward(config.width, config.feed_forward)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """x (B, R, width), padding (B, R)"""
        y, look = self.look_norm(x), self.look
        attended = look.look(look.query(y), look.remember(look.key_value(y), len(x)), padding[:, None, None])
        x = x + self.dropout(look.out(attended))
        return x + self.dropout(self.think(self.think_norm(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention to the words before, attention to the photo, and a feed-forward network."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.recall_norm, self.recall = nn.LayerNorm(config.width), Attention(config.width, config.heads)
        self.look_norm, self.look = nn.LayerNorm(config.width), Attention(config.width, config.heads)
        self.think_norm, self.think = nn.LayerNorm(config.width), feed_forward(config.width, config.feed_forward)
        self.dropout = nn.Dropout(config.dropout)

    def remember(self, regions: Tensor) -> KeysValues:
        """Keys and values for this layer's words: regions (B, R, width)"""
        return self.look.remember(self.look.key_value(regions), len(regions))

    def forward(
        self, x: Tensor, layout: Layout, past_words: KeysValues | None, photo: KeysValues, padding: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """x (M, width): new words; past: the words before them (N rows); photo (B rows), padding (B, R)"""
        past, words = self.recall.recall(self.recall_norm(x), layout, past_words)
        x = x + self.dropout(past)

        # The K captions of a photo stand in one row, as K*T questions to the same memory.
        questions = layout.spread(self.look.query(self.look_norm(x)))
        attended = self.look.look(questions, photo, padding[:, None, None])
        x = x + self.dropout(self.look.out(layout.gather(attended)))
        return x + self.dropout(self.think(self.think_norm(x))), words


class AttentionDecoder(nn.Module):
    """`step` and `forward` of a captioner whose `_decode` takes the words of captions all at once, with attention."""

    parallel_forward = True  # in `forward`: scoring captions there is quicker than keeping what `step` has computed
    shares_prefixes = True  # `forward` takes `SharedPrefixes` in place of `token_mask`
    places: Positions
    dropout: nn.Dropout

    def step(self, token: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any]:
        return self._decode(token, Layout(len(token), 1), state, memory)

    def forward(self, tokens: Tensor, memory: Any, token_mask: Tensor | SharedPrefixes | None = None) -> Tensor:
        """Teacher forcing: tokens (N, T) in, logits (N, T, V) out.

        Or (M, V) at the words where `token_mask` is True; or (M, V) after each of the beginnings.
        """
        layout = Layout(*tokens.shape)
        if isinstance(token_mask, SharedPrefixes):
            layout = layout._replace(place=token_mask.place, word=token_mask.which.flatten())
        elif token_mask is not None:
            layout = layout._replace(place=token_mask.flatten().nonzero().squeeze(1))
        logits, _ = self._decode(layout.gather(tokens).squeeze(1), layout, None, memory)
        return logits.view(*tokens.shape, -1) if token_mask is None else logits

    def _decode(self, words: Tensor, layout: Layout, state: Any, memory: Any) -> tuple[Tensor, Any]:
        """words (M,) -> logits (M, V), and the keys and values of the captions up to them

        state  of the words before them; None: these are the first
        """
        raise NotImplementedError

    def _placed(self, words: Tensor, layout: Layout, past: KeysValues | None) -> Tensor:
        """words (M, width) with their positions after `past`, (M, width)"""
        first = 0 if past is None else past.keys.shape[2]
        place = self.places(first, layout.length).expand(layout.captions, -1, -1)
        return self.dropout(words + layout.gather(place))  # type: ignore[no-any-return]

    def _through_layers(
        self, layers: Iterable[nn.Module], x: Tensor, layout: Layout, state: State | None, memory: Any
    ) -> tuple[Tensor, State]:
        """Words (M, width) through decoder layers, each with its own part of state and memory."""
        caption = []
        for i, (layer, photo) in enumerate(zip(layers, memory.layers, strict=True)):
            x, words = layer(x, layout, None if state is None else state[i], photo, memory.padding)
            caption.append(words)
        return x, tuple(caption)


class Transformer(AttentionDecoder):
    def __init__(self, config: TransformerConfig):
        super().__init__()
        c = self.config = config
        require_heads(c.width, c.heads)
        if c.decoder_layers < 1 or c.encoder_layers < 0:
            raise ValueError("decoder_layers must be at least 1 and encoder_layers at least 0")
        self.project = nn.Sequential(
            nn.LayerNorm(c.feature_size), nn.Linear(c.feature_size, c.width), nn.Dropout(c.dropout)
        )
        self.encoder = nn.ModuleList(EncoderLayer(c) for _ in range(c.encoder_layers))
        self.encoder_norm = nn.LayerNorm(c.width)
        self.embed, self.dropout = nn.Embedding(c.vocab_size, c.width), nn.Dropout(c.dropout)
        self.decoder = nn.ModuleList(DecoderLayer(c) for _ in range(c.decoder_layers))
        self.decoder_norm = nn.LayerNorm(c.width)
        self.word_bias = nn.Parameter(torch.zeros(c.vocab_size))  # the output matrix is the embedding
        self.places = Positions(c.width)
        nn.init.normal_(self.embed.weight, std=c.width**-0.5)

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        x = self.project(features)
        for layer in self.encoder:
            x = layer(x, ~mask)
        x = self.encoder_norm(x)
        return Memory(tuple(layer.remember(x) for layer in self.decoder), ~mask)  # type: ignore[operator]

    def start(self, memory: Memory) -> State:
        return tuple(KeysValues(*(part[:, :, :0] for part in photo)) for photo in memory.layers)

    def _decode(self, words: Tensor, layout: Layout, state: State | None, memory: Memory) -> tuple[Tensor, State]:
        x = self._placed(self.embed(words) * self.config.width**0.5, layout, state[0] if state else None)
        x, caption = self._through_layers(self.decoder, x, layout, state, memory)
        return nn.functional.linear(self.decoder_norm(x), self.embed.weight, self.word_bias), caption


class Positions(nn.Module):
    """Sinusoidal positions, from a table that grows when a caption is longer than any before."""

    def __init__(self, width: int):
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", positions(32, width), persistent=False)

    def forward(self, start: int, count: int) -> Tensor:
        """(count, width), from position `start` on"""
        if start + count > len(self.table):
            with torch.inference_mode(False):  # the table outlives the validation in which it may have to grow
                self.table = positions(2 * (start + count), self.table.shape[1]).to(self.table)
        return self.table[start : start + count]


def positions(count: int, width: int) -> Tensor:
    """Sinusoidal positions (count, width): captions may be longer than any in training."""
    place = torch.arange(count, device="cpu")[:, None]
    rate = torch.exp(torch.arange(0, width, 2, device="cpu") * (-math.log(10000.0) / width))
    return torch.cat([torch.sin(place * rate), torch.cos(place * rate)], 1)
