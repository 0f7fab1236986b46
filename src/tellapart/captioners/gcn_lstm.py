"""GCN-LSTM (Yao et al., 2018): regions learn from those that they are related to, and Up-Down captions the result.

One layer of a gated graph convolution over the regions, which keep their width.  A relation has a label and a
direction: what a region is given by another depends on which of the two the relation starts from (a matrix for each,
and one for what it gives itself), and on the label (a bias).  A gate decides how much of it counts.  The residual is
X-modaler's, whose program the GEG paper's row is of.

Which graph it has follows from its streams.  `boxes`: the spatial graph, whose relations follow from the boxes
(`spatial_relations`).  `relations`: the semantic graph, whose labelled pairs come from elsewhere, such as a classifier
of object pairs.  With both streams a region is given the sum of what two such layers give, which is ours: the paper's
own captioner of both graphs averages the word probabilities of a spatial and a semantic one, an ensemble here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tellapart.captioners.up_down import Memory, State, UpDown, UpDownConfig
from tellapart.data.streams import BOXES, REGIONS, RELATIONS, Inputs, Stream, read_relations

SPATIAL = 11  # kinds of relations
_OVERLAP, _NEAR = 0.5, 0.5
_TURN = 45.0  # degrees of a direction
_ROUNDING = 0.5  # degrees: the cells of a grid lie exactly on the borders of directions, but for rounding


@dataclass
class GcnLstmConfig:
    vocab_size: int
    feature_size: int = 1280  # regions keep this width
    boxes_size: int = field(default=0, metadata={"least": 0})  # 0: no spatial graph
    relations_size: int = field(default=0, metadata={"least": 0})  # 0: no semantic graph
    relation_labels: int = 21  # of the semantic graph; X-modaler's
    word_width: int = 512
    width: int = 512  # of both LSTMs
    attention_width: int = 512
    dropout: float = 0.5


TINY = {"word_width": 24, "width": 32, "attention_width": 16}


class GatedGraph(nn.Module):
    """A layer in which each region is given something by those that it is related to (Eq. 4 of the paper)."""

    def __init__(self, width: int, labels: int):
        super().__init__()
        # What a region gives to itself, to those that point to it, and to those that it points to.
        self.own, self.own_gate = nn.Linear(width, width), nn.Linear(width, 1)
        self.target, self.target_gate = nn.Linear(width, width, bias=False), nn.Linear(width, 1, bias=False)
        self.source, self.source_gate = nn.Linear(width, width, bias=False), nn.Linear(width, 1, bias=False)
        self.label, self.label_gate = nn.Parameter(torch.zeros(labels, width)), nn.Parameter(torch.zeros(labels))
        # Small first weights: else what dozens of others give drowns the region itself, and all become alike.
        for layer in (self.own, self.target, self.source):
            nn.init.normal_(layer.weight, std=0.1 * width**-0.5)

    def forward(self, regions: Tensor, relations: Tensor) -> Tensor:
        """The update of each region: regions (B, R, width), relations (B, R, R) -> (B, R, width)

        relations  0 where there is none, else the label from 1 on of the relation from the first region to the second
        """
        label = relations[..., None] == torch.arange(1, len(self.label) + 1, device=relations.device)
        label = label.to(regions.dtype)  # (B, R, R, labels)
        related = (relations > 0).to(regions.dtype)
        bias = label @ self.label_gate  # (B, R, R)
        # weight[b, i, j]: how much of what region j has to give reaches region i
        to_source = (self.target_gate(regions).transpose(1, 2) + bias).sigmoid() * related
        to_target = (self.source_gate(regions) + bias).sigmoid() * related
        update: Tensor = self.own(regions) * self.own_gate(regions).sigmoid()
        update = update + to_source @ self.target(regions) + to_target.transpose(1, 2) @ self.source(regions)
        # The biases of labels, without a vector for each pair: first how much of each label reaches a region.
        reached = torch.einsum("bij,bijl->bil", to_source, label) + torch.einsum("bij,bijl->bjl", to_target, label)
        return update + reached @ self.label


class GcnLstm(nn.Module):
    streams = (REGIONS, BOXES, RELATIONS)
    optional_streams = True

    def __init__(self, config: GcnLstmConfig):
        super().__init__()
        c = self.config = config
        if not (c.boxes_size or c.relations_size):
            raise ValueError("it needs a stream 'boxes' (the spatial graph) or 'relations' (the semantic graph)")
        if c.boxes_size not in (0, 4):
            raise ValueError(f"boxes must have 4 numbers (left, top, right, bottom), not {c.boxes_size}")
        if c.relations_size not in (0, 3):
            raise ValueError(f"relations must have 3 numbers (first region, second, label), not {c.relations_size}")
        self.graph = GatedGraph(c.feature_size, SPATIAL) if c.boxes_size else None
        self.semantic = GatedGraph(c.feature_size, c.relation_labels) if c.relations_size else None
        self.dropout = nn.Dropout(c.dropout)
        self.words = UpDown(
            UpDownConfig(c.vocab_size, c.feature_size, c.word_width, c.width, c.attention_width, c.dropout),
            projects=False,
        )

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        # What stands where there is no region is given to nobody, whatever it is.
        features = related = features.masked_fill(~mask[..., None], 0.0)
        if self.graph is not None:
            related = related + self.graph(features, _spatial(inputs[BOXES], mask))
        if self.semantic is not None:
            relations = read_relations(inputs[RELATIONS], mask, self.config.relation_labels)
            related = related + self.semantic(features, relations)
        return self.words.encode(Inputs({REGIONS: Stream(self.dropout(torch.relu(related)), mask)}))

    def start(self, memory: Memory) -> State:
        return self.words.start(memory)

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        return self.words.step(token, state, memory)

    def forward(self, tokens: Tensor, memory: Memory, token_mask: Tensor | None = None) -> Tensor:
        return self.words.forward(tokens, memory, token_mask)


def _spatial(boxes: Stream, regions: Tensor) -> Tensor:
    """(B, R, R): the relations between regions (B, R) that exist and whose boxes are known"""
    if regions.shape[1] != boxes.mask.shape[1]:
        raise ValueError(f"{regions.shape[1]} regions have {boxes.mask.shape[1]} boxes; each region must have its own")
    present = regions & boxes.mask
    return spatial_relations(boxes.values) * (present[:, :, None] & present[:, None])


def spatial_relations(boxes: Tensor) -> Tensor:
    """The relations of Yao et al. (2018), section 3.2.

    boxes    (B, R, 4): left, top, right, bottom, as fractions of the photo's width and height
    returns  (B, R, R): how the first, by row, lies to the second

    0        none: the boxes are far apart, or one of them is no box
    1        the first lies inside the second
    2        the first covers the second
    3        they overlap: intersection over union of at least 0.5
    4 to 11  else, where their centres are closer than half the photo's diagonal: the direction from the first to the
             second in steps of 45 degrees, clockwise as seen: 4 is right and at most 45 degrees down, 11 the one before
             straight right, which it includes

    Directions and distances are those of the photo stretched to a square; inside, cover and overlap do not depend on
    that.  Two equal boxes overlap.  A box that reaches outside the photo ends at its edges.  What then has no area, or
    is not a number, is no box, and has no relation to any other.
    """
    numbers = boxes.isfinite().all(-1)
    boxes = boxes.float().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
    first, second = boxes[:, :, None], boxes[:, None]  # (B, R, 1, 4), (B, 1, R, 4)
    area = (boxes[..., 2] - boxes[..., 0]).clamp(min=0) * (boxes[..., 3] - boxes[..., 1]).clamp(min=0)
    usable = numbers & (area > 0)

    shared = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    shared_area = shared.clamp(min=0).prod(-1)  # (B, R, R)
    overlap = shared_area / (area[:, :, None] + area[:, None] - shared_area).clamp(min=1e-12)

    equal = (first == second).all(-1)
    inside = (first[..., :2] >= second[..., :2]).all(-1) & (first[..., 2:] <= second[..., 2:]).all(-1) & ~equal
    covers = inside.transpose(1, 2)

    away = (second[..., :2] + second[..., 2:] - first[..., :2] - first[..., 2:]) / 2  # between the centres
    near = away.square().sum(-1).sqrt() < _NEAR * math.sqrt(2)
    angle = torch.rad2deg(torch.atan2(away[..., 1], away[..., 0])) % 360
    turns = torch.ceil((angle - _ROUNDING) / _TURN)  # 0 is a whole turn: straight to the right
    direction = torch.where(turns < 1, 8, turns) + 3

    relation = torch.where(near, direction, 0)
    relation = torch.where(overlap >= _OVERLAP, 3, relation)
    relation = torch.where(covers, 2, torch.where(inside, 1, relation))
    both = usable[:, :, None] & usable[:, None]
    itself = torch.eye(boxes.shape[1], dtype=torch.bool, device=boxes.device)
    return torch.where(both & ~itself, relation, 0).long()
