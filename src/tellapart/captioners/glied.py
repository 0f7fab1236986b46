"""GLIED (Liu et al., 2019): Global-and-Local Information Exploring-and-Distilling, over regions and attribute words.

One decoder layer.  The equations are the paper's, and each of its parts is a switch, so that the rows of its Table 4
are settings.  G(f, x) is LayerNorm(x + dropout(f)), F the feed-forward network, x the word and its position.

base                  Eqs. 3-6: x attends to the words before it, then to regions I and attributes A
visual_distilling     Eq. 7: regions attend to each other; region groups stand in the place of regions
attribute_distilling  Eq. 8: x gathers the attributes that go with it (it is their pivot) before Eq. 3, which is then
                      Eq. 9; the attributes have been used by then, and only regions are attended to after it
global_aspect         Eq. 10 in the place of Eq. 4: an attention with weights of its own and all heads, to regions alone
local_distilling      Eq. 11: the outcome attends to single regions and attributes once more

Two switches are ours: `attributes_attend` (to each other in place of the pivot word, and then Eq. 10 attends to them
beside the regions) and `semantic_aspect` (Eq. 10 attends to the attributes A, too).

The paper's program could not be found.  What it leaves open: features pass a LayerNorm before their projection, as in
our Transformer; F has the double residual of Eq. 5 after visual distilling (whose x is I) and after the aspect, and
there is none after local distilling; regions and attributes have no positions.  The cross-modal pair of Eqs. 4 and 11
adds what its two halves attend to before the output matrix that they share, whose bias then counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.transformer import (
    Attention,
    AttentionDecoder,
    KeysValues,
    Layout,
    Positions,
    feed_forward,
    require_heads,
)
from tellapart.data.streams import ATTRIBUTES, REGIONS, Inputs, Stream, read_attributes


@dataclass
class GliedConfig:
    vocab_size: int
    feature_size: int = 1280
    attributes_size: int = 2
    word_width: int = 256  # of words and attributes, which share a table and its projection to `width`
    width: int = 512
    heads: int = 8  # the cross-modal pair has one
    feed_forward: int = 2048
    visual_distilling: bool = True
    attribute_distilling: bool = True
    attributes_attend: bool = False
    global_aspect: bool = True
    semantic_aspect: bool = False
    local_distilling: bool = True
    weigh_attributes: bool = False  # attention to an attribute is in proportion to its probability
    dropout: float = 0.1


TINY = {"word_width": 16, "width": 32, "heads": 2, "feed_forward": 64}


class Modality(NamedTuple):
    """The regions of items, or their attributes."""

    rows: Tensor  # (B, R, width)
    mask: Tensor  # (B, R) True where a row exists
    offset: Tensor  # (B, R) added to attention scores


class Source(NamedTuple):
    """A modality as one attention uses it; keys and values of rows that do not exist are 0."""

    keys: Tensor  # (B, heads, R, width / heads), divided by the root of their size
    values: Tensor  # (B, heads, R, width / heads)
    offset: Tensor  # (B, R)


class Memory(NamedTuple):
    """The sources of each attention of the decoder, projected once per item."""

    collocations: tuple[Source, ...]  # Eq. 8: attributes, or nothing
    aspect: tuple[Source, ...]  # Eq. 4 or 10: regions or region groups, and attributes where it attends to them
    local: tuple[Source, ...]  # Eq. 11: regions and attributes, or nothing


State = KeysValues  # of the caption so far: N rows


class Glied(AttentionDecoder):
    streams = (REGIONS, ATTRIBUTES)

    def __init__(self, config: GliedConfig):
        super().__init__()
        c = self.config = config
        require_heads(c.width, c.heads)
        if c.attributes_size != 2:
            raise ValueError(f"attributes must be a word id and a probability, not {c.attributes_size} numbers")
        if c.attributes_attend and not c.attribute_distilling:
            raise ValueError("attributes_attend must not be true where attribute_distilling is false")
        if c.semantic_aspect and not c.global_aspect:
            raise ValueError("semantic_aspect must not be true where global_aspect is false")
        self.project = nn.Sequential(
            nn.LayerNorm(c.feature_size), nn.Linear(c.feature_size, c.width), nn.Dropout(c.dropout)
        )
        self.embed, self.widen = nn.Embedding(c.vocab_size, c.word_width), nn.Linear(c.word_width, c.width)
        self.places, self.dropout = Positions(c.width), nn.Dropout(c.dropout)
        if c.visual_distilling:
            self.group, self.group_norm = SourceAttention(c.width, c.heads), Residual(c)  # H_vd
            self.group_transform = Transform(c)
        if c.attribute_distilling:
            self.collocate, self.collocate_norm = SourceAttention(c.width, c.heads), Residual(c)  # H_ad
        self.context, self.context_norm = Attention(c.width, c.heads), Residual(c)  # H_x
        self.aspect, self.aspect_norm = SourceAttention(c.width, c.heads if c.global_aspect else 1), Residual(c)  # H_v
        self.aspect_transform = Transform(c)
        if c.local_distilling:
            self.local, self.local_norm = SourceAttention(c.width, 1), Residual(c)  # H_vl and H_al
        self.word = nn.Linear(c.width, c.vocab_size)

    def encode(self, inputs: Inputs) -> Memory:
        c = self.config
        regions, attributes = self._regions(inputs[REGIONS]), self._attributes(inputs[ATTRIBUTES])
        groups, collocated = regions, attributes
        if c.visual_distilling:
            group = self.group_norm(self.group.among(regions), regions.rows)
            groups = regions._replace(rows=self.group_transform(group, regions.rows))  # Eq. 7
        pivot = c.attribute_distilling and not c.attributes_attend
        if c.attributes_attend:
            rows = self.collocate_norm(self.collocate.among(attributes), attributes.rows)
            collocated = attributes._replace(rows=rows)
        semantic = c.semantic_aspect or c.attributes_attend or not (pivot or c.global_aspect)
        return Memory(
            (self.collocate.source(attributes),) if pivot else (),
            tuple(self.aspect.source(source) for source in ((groups, collocated) if semantic else (groups,))),
            tuple(self.local.source(source) for source in (regions, attributes)) if c.local_distilling else (),
        )

    def start(self, memory: Memory) -> State:
        keys, c = memory.aspect[0].keys, self.config
        nothing = keys.new_zeros(len(keys), c.heads, 0, c.width // c.heads)
        return KeysValues(nothing, nothing)

    def _decode(self, words: Tensor, layout: Layout, state: State | None, memory: Memory) -> tuple[Tensor, State]:
        """words (M,) -> logits (M, V), and the keys and values of the captions up to them"""
        x = self._placed(self.widen(self.embed(words)), layout, state)
        word = x
        if memory.collocations:
            word = self.collocate_norm(self.collocate(x, layout, memory.collocations), x)  # Eq. 8
        attended, caption = self.context.recall(word, layout, state)
        context = self.context_norm(attended, word)  # Eqs. 3 and 9
        aspect = self.aspect_norm(self.aspect(context, layout, memory.aspect), context)  # Eqs. 4 and 10
        outcome = self.aspect_transform(aspect, x)  # Eq. 5
        if memory.local:
            outcome = self.local_norm(self.local(outcome, layout, memory.local), outcome)  # Eq. 11
        return self.word(outcome), caption  # Eq. 6

    def _regions(self, stream: Stream) -> Modality:
        rows = self.project(stream.values.masked_fill(~stream.mask[..., None], 0))
        return Modality(rows, stream.mask, _offset(rows, stream.mask))

    def _attributes(self, stream: Stream) -> Modality:
        ids, probability, mask = read_attributes(stream, self.config.vocab_size)
        rows = self.dropout(self.widen(self.embed(ids)))
        offset = _offset(rows, mask)
        if self.config.weigh_attributes:
            offset = offset + probability.clamp(1e-6, 1).log()
        return Modality(rows, mask, offset)


class SourceAttention(Attention):
    """Multi-head attention (Eqs. 1-2) to a modality, or to two with the same weights, whose outcomes are added."""

    def source(self, modality: Modality) -> Source:
        rows, mask, offset = modality
        keys, values = self.key_value(rows).masked_fill(~mask[..., None], 0).chunk(2, dim=2)
        return Source(self.split(keys, len(keys)) * self.scale, self.split(values, len(values)), offset)

    def forward(self, questions: Tensor, layout: Layout, sources: Sequence[Source]) -> Tensor:
        """(M, width) -> (M, width).  The K captions of an item stand in one row, as K*T questions to its sources."""
        queries = self.split(layout.spread(self.query(questions)), len(sources[0].keys))
        return self.out(layout.gather(_attended(queries, sources)))  # type: ignore[no-any-return]

    def among(self, modality: Modality) -> Tensor:
        """Self-attention among the rows of a modality: (B, R, width)"""
        queries = self.split(self.query(modality.rows), len(modality.rows))
        return self.out(_attended(queries, (self.source(modality),)))  # type: ignore[no-any-return]


def _attended(queries: Tensor, sources: Sequence[Source]) -> Tensor:
    """queries (B, heads, Q, width / heads) -> the sum over the sources (B, Q, width)"""
    parts = [
        (queries @ keys.transpose(2, 3) + offset[:, None, None]).softmax(-1) @ values
        for keys, values, offset in sources
    ]
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return total.transpose(1, 2).flatten(2)


class Residual(nn.Module):
    """G(f, x)"""

    def __init__(self, config: GliedConfig):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(config.width), nn.Dropout(config.dropout)

    def forward(self, f: Tensor, x: Tensor) -> Tensor:
        return self.norm(x + self.dropout(f))  # type: ignore[no-any-return]


class Transform(nn.Module):
    """Eq. 5: G(G(F(c), c), x)"""

    def __init__(self, config: GliedConfig):
        super().__init__()
        self.feed_forward = feed_forward(config.width, config.feed_forward)
        self.inner, self.outer = Residual(config), Residual(config)

    def forward(self, c: Tensor, x: Tensor) -> Tensor:
        return self.outer(self.inner(self.feed_forward(c), c), x)  # type: ignore[no-any-return]


def _offset(rows: Tensor, mask: Tensor) -> Tensor:
    """(B, R): -inf where no row exists.

    0 everywhere in an item that has none: its values are 0, and so is then what is attended to.
    """
    return rows.new_zeros(mask.shape).masked_fill(~mask & mask.any(1, keepdim=True), -torch.inf)
