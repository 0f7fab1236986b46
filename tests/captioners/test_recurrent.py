"""The recurrent captioners against their papers' formulas, written with torch's own LSTM cells or word by word."""

import pytest
import torch
from torch import nn

from tellapart import models
from tellapart.captioners.layers import lstm
from tellapart.data.streams import Inputs, Stream, region_inputs
from tellapart.protocols.captioners import FEATURES, every_stream, tiny

B, R, T, V = 2, 4, 5, 11


def photos_and_words():
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(B, R, FEATURES, generator=draw)
    return features, torch.ones(B, R, dtype=torch.bool), torch.randint(V, (B, T), generator=draw)


def cell(inputs, before, width):
    """torch's cell with our weights.  inputs: a layer for each part of the input; before: the recurrent weight"""
    made = nn.LSTMCell(sum(layer.shape[1] for layer in inputs), width)
    made.weight_ih.data = torch.cat(inputs, 1)
    made.weight_hh.data = before
    made.bias_hh.data.zero_()
    return made


def test_the_cell_is_that_of_torch():
    torch.manual_seed(0)
    theirs = nn.LSTMCell(3, 4)
    x, output, before = torch.randn(5, 3), torch.randn(5, 4), torch.randn(5, 4)
    gates = x @ theirs.weight_ih.T + theirs.bias_ih + output @ theirs.weight_hh.T + theirs.bias_hh
    torch.testing.assert_close(lstm(gates, before), theirs(x, (output, before)))


def test_show_tell_is_an_lstm_that_hears_the_photo_and_then_the_words():
    model = tiny("show_tell")
    features, mask, words = photos_and_words()
    width = model.config.width
    theirs = nn.LSTM(width, width, batch_first=True)
    theirs.weight_ih_l0.data, theirs.bias_ih_l0.data = model.word_gates.weight.data, model.word_gates.bias.data
    theirs.weight_hh_l0.data = model.recurrent_gates.weight.data
    theirs.bias_hh_l0.data.zero_()
    photo = model.photo(features.mean(1))
    outputs, _ = theirs(torch.cat([photo[:, None], model.embed(words)], 1))
    torch.testing.assert_close(
        model.forward(words, model.encode(region_inputs(features, mask))), model.word(outputs[:, 1:]), atol=1e-5, rtol=0
    )


def test_up_down_is_that_of_its_paper():
    """Anderson et al., Eqs. 1-6: x1 = [h2, mean, word]; a = v . tanh(W_v v + W_h h1); x2 = [seen, h1]."""
    model = tiny("up_down")
    features, mask, words = photos_and_words()
    width, seen_width = model.config.width, model.config.word_width
    by_speech, by_look = model.recurrent_gates.weight.split(width, dim=1)
    look = cell([by_speech, model.mean_gates.weight, model.word_gates.weight], by_look, width)
    look.bias_ih.data = model.word_gates.bias.data
    by_photo, by_other, by_itself = model.language_gates.weight.split([seen_width, width, width], dim=1)
    speak = cell([by_photo, by_other], by_itself, width)
    speak.bias_ih.data = model.language_gates.bias.data

    regions = torch.relu(model.project[0](features))
    h1 = c1 = h2 = c2 = torch.zeros(B, width)
    expected = []
    for t in range(T):
        word = model.embed(words[:, t])
        h1, c1 = look(torch.cat([h2, regions.mean(1), word], 1), (h1, c1))
        attention = []
        for i in range(R):
            key = model.attend.key(regions[:, i])
            attention.append(model.attend.score(torch.tanh(key + model.attend.query(h1))))
        weight = torch.softmax(torch.cat(attention, 1), 1)
        seen = sum(weight[:, i : i + 1] * regions[:, i] for i in range(R))
        h2, c2 = speak(torch.cat([seen, h1], 1), (h2, c2))
        expected.append(model.word(h2))
    torch.testing.assert_close(
        model.forward(words, model.encode(region_inputs(features, mask))), torch.stack(expected, 1), atol=1e-5, rtol=0
    )


def test_attention_is_that_of_its_paper():
    """Xu et al., Eqs. 1-7 and 13 with the gate of 4.2.1: z = beta(h) * sum of alpha a; p of E y + L_h h + L_z z."""
    model = tiny("attention")
    features, mask, words = photos_and_words()
    by_photo, by_itself = model.context_gates.weight.split([model.config.word_width, model.config.width], dim=1)
    theirs = cell([model.word_gates.weight, by_photo], by_itself, model.config.width)
    theirs.bias_ih.data = model.word_gates.bias.data

    regions = torch.relu(model.project[0](features))
    h, c = torch.tanh(model.first_output(regions.mean(1))), torch.tanh(model.first_cell(regions.mean(1)))
    expected = []
    for t in range(T):
        word = model.embed(words[:, t])
        keys = [model.attend.key(regions[:, i]) + model.attend.query(h) for i in range(R)]
        weight = torch.softmax(torch.cat([model.attend.score(torch.tanh(key)) for key in keys], 1), 1)
        seen = torch.sigmoid(model.gate(h)) * sum(weight[:, i : i + 1] * regions[:, i] for i in range(R))
        h, c = theirs(torch.cat([word, seen], 1), (h, c))
        expected.append(model.word(word + model.output_projection(h) + model.context_projection(seen)))
    torch.testing.assert_close(
        model.forward(words, model.encode(region_inputs(features, mask))), torch.stack(expected, 1), atol=1e-5, rtol=0
    )


def test_lstm_a3_is_an_lstm_that_is_given_attributes_then_the_photo_and_then_the_words():
    """Yao et al., A3: x(-2) = T_a A, x(-1) = T_v I, x(t) = T_s w(t); A has the probability of each word."""
    model = tiny("lstm_a3")
    features, mask, words = photos_and_words()
    inputs = every_stream(features, mask)
    width = model.config.width
    theirs = nn.LSTM(width, width, batch_first=True)
    theirs.weight_ih_l0.data, theirs.bias_ih_l0.data = model.input_gates.weight.data, model.input_gates.bias.data
    theirs.weight_hh_l0.data = model.recurrent_gates.weight.data
    theirs.bias_hh_l0.data.zero_()
    vector = torch.zeros(B, V)
    for photo in range(B):
        for id, probability in inputs["attributes"].values[photo].tolist():
            vector[photo, int(id)] = probability
    attributes = torch.zeros(B, width)
    for photo in range(B):
        for word in range(V):
            attributes[photo] += vector[photo, word] * model.attributes.weight[:, word]
    first = [attributes + model.attributes.bias, model.photo(features.mean(1))]
    outputs, _ = theirs(torch.cat([torch.stack(first, 1), model.embed(words)], 1))
    torch.testing.assert_close(
        model.forward(words, model.encode(inputs)), model.word(outputs[:, 2:]), atol=1e-5, rtol=0
    )


def test_lstm_a3_has_a_place_for_so_many_words_as_it_is_set_to():
    model = tiny("lstm_a3", attribute_words=6)
    features, mask, words = photos_and_words()
    values = torch.tensor([[[5.0, 0.9], [5.0, 0.4], [2.0, 0.3], [6.0, 0.8]]]).expand(B, -1, -1)
    seen = model._vector(Stream(values, mask))
    assert seen.tolist() == [pytest.approx([0, 0, 0.3, 0, 0, 0.9])] * B  # twice the same word: the larger
    nothing = Inputs(region_inputs(features) | {"attributes": Stream(values, torch.zeros_like(mask))})
    zeros = Inputs(region_inputs(features) | {"attributes": Stream(0 * values, mask)})
    without = model.forward(words, model.encode(nothing))
    torch.testing.assert_close(without, model.forward(words, model.encode(zeros)))
    assert without.isfinite().all()


@pytest.mark.parametrize("attribute_words", [1000, 2000])
def test_lstm_a3_has_the_parameters_of_the_library_that_the_geg_paper_uses(attribute_words):
    """32,419,800 with 1,000 attribute words; ours has one bias in the LSTM where that one has two."""
    settings = {"width": 1024, "attribute_words": attribute_words}
    with torch.device("meta"):
        model = models.build_captioner(
            "lstm_a3", settings, vocab_size=10200, feature_sizes={"regions": 2048, "attributes": 2}
        )
    count = sum(weight.numel() for weight in model.parameters())
    assert count == 32_419_800 - 4 * 1024 + (attribute_words - 1000) * 1024
    assert count == pytest.approx(32_419_800, rel=0.05)


def test_a_photo_without_regions_has_captions_where_it_is_one_vector():
    features, _, words = photos_and_words()
    nothing = every_stream(features, torch.tensor([[True] * R, [False] * R]))
    for name in ("show_tell", "lstm_a3"):
        model = tiny(name)
        assert model.forward(words, model.encode(nothing)).isfinite().all()
