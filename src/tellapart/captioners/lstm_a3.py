"""LSTM-A3 (Yao et al., 2017): an LSTM that is given the attributes of a photo, then the photo, and then the words.

Attributes are a vector with the probability of each attribute word, as an input at t = -2; the photo is one at t = -1.
Regions and grids are averaged into one vector.  The vector of attributes is indexed by word id: a vocabulary is ordered
by frequency, and attributes are frequent words, which have low ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tellapart.captioners.layers import LSTMState, RecurrentDecoder, init_gates_, lstm, masked_mean
from tellapart.data.streams import ATTRIBUTES, REGIONS, Inputs, Stream, read_attributes


@dataclass
class LstmA3Config:
    vocab_size: int
    feature_size: int = 1280
    attributes_size: int = 2
    attribute_words: int = 2000  # size of the vector of attributes: a word with a higher id has no place in it
    width: int = 512  # of words, photo, attributes and LSTM alike
    dropout: float = 0.5


TINY = {"width": 32}


class LstmA3(RecurrentDecoder):
    streams = (REGIONS, ATTRIBUTES)

    def __init__(self, config: LstmA3Config):
        super().__init__()
        c = self.config = config
        if c.attributes_size != 2:
            raise ValueError(f"attributes must be a word id and a probability, not {c.attributes_size} numbers")
        self.words = min(c.attribute_words, c.vocab_size)
        self.attributes, self.photo = nn.Linear(self.words, c.width), nn.Linear(c.feature_size, c.width)
        self.embed = nn.Embedding(c.vocab_size, c.width)
        self.input_gates = nn.Linear(c.width, 4 * c.width)
        self.recurrent_gates = nn.Linear(c.width, 4 * c.width, bias=False)
        self.dropout, self.word = nn.Dropout(c.dropout), nn.Linear(c.width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        init_gates_([self.input_gates, self.recurrent_gates], self.word)

    def encode(self, inputs: Inputs) -> LSTMState:
        """The state after both inputs: there is no other memory of the photo."""
        attributes = self.attributes(self._vector(inputs[ATTRIBUTES]))
        state = lstm(self.input_gates(attributes), attributes.new_zeros(attributes.shape))
        photo = self.photo(masked_mean(*inputs[REGIONS]))
        return lstm(self.input_gates(photo) + self.recurrent_gates(state.output), state.cell)

    def start(self, memory: LSTMState) -> LSTMState:
        return memory

    def _gates(self, tokens: Tensor, memory: LSTMState) -> Tensor:
        return self.input_gates(self.dropout(self.embed(tokens)))  # type: ignore[no-any-return]

    def _vector(self, stream: Stream) -> Tensor:
        """(B, attribute_words): the probability of each word, 0 where it is no attribute of the item"""
        ids, probability, _ = read_attributes(stream, self.words)
        vector = probability.new_zeros(len(ids), self.words)
        return vector.scatter_reduce(1, ids, probability, "amax")
