"""GL-RG against its paper's equations, with loops over numbers."""

import math

import pytest
import torch

from tellapart import models
from tellapart.captioners.gl_rg import GlRg, GlRgConfig
from tellapart.data.streams import Inputs, Stream
from tellapart.protocols.captioners import CLIPS, FEATURES, every_stream, tiny

B, K, R, T, V = 2, 2, 3, 4, 11
SWITCHES = {
    "paper": {},
    "joint": {"joint": True},
    "every step": {"every_step": True},
    "every step, joint": {"every_step": True, "joint": True},
    "adaptive": {"adaptive": True},
    "adaptive, every step": {"adaptive": True, "every_step": True},
}


@pytest.fixture
def clips():
    """Two clips: the second has two segments of three."""
    features = torch.randn(B, R, FEATURES, generator=torch.Generator().manual_seed(1))
    return every_stream(features, torch.arange(R) < torch.tensor([[3], [2]]))


def network(**switches):
    model = tiny("gl_rg", V, width=5, **switches)
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():  # all of them, biases too: none may be missed in a formula
        weight.data = 0.4 * torch.randn(weight.shape, generator=draw)
    return model


def chained(parts):
    return [x for part in parts for x in part]


def linear(layer, x):
    rows = [sum(float(w) * v for w, v in zip(row, x, strict=True)) for row in layer.weight]
    return [row + (float(layer.bias[n]) if layer.bias is not None else 0.0) for n, row in enumerate(rows)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def cell(model, given, output, state):
    """given: what goes into the gates beside the last output"""
    gates = [g + r for g, r in zip(given, linear(model.recurrent_gates, output), strict=True)]
    size = len(output)
    write, keep, new, show = (gates[n * size : (n + 1) * size] for n in range(4))
    state = [sigmoid(k) * c + sigmoid(w) * math.tanh(n) for k, c, w, n in zip(keep, state, write, new, strict=True)]
    return [sigmoid(s) * math.tanh(c) for s, c in zip(show, state, strict=True)], state


def fused(model, inputs, clip):
    """Eq. 4"""
    vectors = []
    for name in CLIPS:
        values, mask = inputs[name]
        rows = [row.tolist() for row, exists in zip(values[clip], mask[clip], strict=True) if exists]
        vectors.append([sum(column) / len(rows) for column in zip(*rows, strict=True)])
    if model.config.joint:
        return [max(x, 0) for x in linear(model.project["joint"], chained(vectors))]
    parts = [[max(x, 0) for x in linear(model.project[n], vector)] for n, vector in zip(CLIPS, vectors, strict=True)]
    if model.config.adaptive:
        powers = [math.exp(x) for x in linear(model.weigh, chained(parts))]
        parts = [
            [len(parts) * power / sum(powers) * x for x in part] for power, part in zip(powers, parts, strict=True)
        ]
    return chained(parts)


def said(model, inputs, clip, tokens):
    """Eqs. 5-7: logits after each token"""
    f = fused(model, inputs, clip)
    output = state = [0.0] * model.config.width
    found = []
    for place, token in enumerate(tokens):
        word = model.embed.weight[token].tolist()
        if model.config.every_step:
            gates = linear(model.input_gates, word)
            given = [g + h for g, h in zip(gates, linear(model.fused_gates, f), strict=True)]
        else:
            given = linear(model.input_gates, linear(model.first, f) if place == 0 else word)
        output, state = cell(model, given, output, state)
        found.append(linear(model.word, output))
    return found


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_it_is_that_of_its_paper(clips, switches):
    model = network(**switches)
    tokens = torch.randint(V, (B * K, T), generator=torch.Generator().manual_seed(2))
    expected = [said(model, clips, n // K, row.tolist()) for n, row in enumerate(tokens)]
    logits = model.forward(tokens, model.encode(clips))
    torch.testing.assert_close(logits, torch.tensor(expected), atol=1e-5, rtol=0)


def test_the_first_word_comes_from_the_clip_alone_where_it_is_seen_once(clips):
    once, always = network(), network(every_step=True)
    for model, same in ((once, True), (always, False)):
        memory = model.encode(clips)
        logits = [model.step(torch.full((B,), first), model.start(memory), memory)[0] for first in (1, 7)]
        assert logits[0].equal(logits[1]) == same


def test_the_cell_that_sees_the_clip_at_every_step_has_no_biases():
    with_bias = {name for name, _ in network(every_step=True).named_parameters() if name.endswith("bias")}
    assert with_bias == {*(f"project.{name}.bias" for name in CLIPS), "word.bias"}


@pytest.mark.parametrize("streams", [("words",), ("actions", "classes"), ("words", "actions", "classes")])
def test_it_takes_the_streams_that_it_is_given(clips, streams, tmp_path):
    """The rows of Table 2; other streams make no difference."""
    sizes = {name: CLIPS[name] for name in streams}
    torch.manual_seed(0)
    model = models.build_captioner("gl_rg", {"width": 8}, vocab_size=V, feature_sizes=sizes).eval()
    assert set(model.project) == set(streams)
    tokens = torch.tensor([[1, 4, 5], [1, 6, 2]])
    given = Inputs((name, stream) for name, stream in clips.items() if name in streams)
    whole = model.forward(tokens, model.encode(clips))
    torch.testing.assert_close(model.forward(tokens, model.encode(given)), whole)
    changed = Inputs(clips | {streams[0]: Stream(1 - clips[streams[0]].values, clips[streams[0]].mask)})
    assert not torch.allclose(model.forward(tokens, model.encode(changed)), whole, atol=1e-3)


def test_weights_over_the_granularities_begin_equal(clips):
    plain, adaptive = (tiny("gl_rg", V, adaptive=adaptive) for adaptive in (False, True))
    adaptive.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(plain.encode(clips), adaptive.encode(clips))


@pytest.mark.parametrize(
    ("switches", "decoder"),
    [
        ({}, (1536 * 512 + 512) + 4 * 512 * (512 + 512 + 1)),
        ({"every_step": True}, 4 * 512 * (512 + 1536 + 512)),
    ],
)
@pytest.mark.parametrize("joint", [False, True])
def test_parameters_at_the_size_of_the_paper(switches, decoder, joint):
    """K = 300 words, J = 400 actions, M = 1,000 classes, MSR-VTT's 10,536 words in the program's vocabulary."""
    words = 10_536
    sizes = {"words_size": 300, "actions_size": 400, "classes_size": 1000}
    with torch.device("meta"):
        model = GlRg(GlRgConfig(words, **sizes, joint=joint, **switches))
    fusion = (1700 + 1) * 1536 if joint else (1700 + 3) * 512
    expected = fusion + decoder + 512 * words + (512 + 1) * words
    assert sum(weight.numel() for weight in model.parameters()) == expected
