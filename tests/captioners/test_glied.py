"""GLIED against its paper's equations, written with loops over heads, words, regions and attributes."""

import math

import pytest
import torch

from tellapart import models
from tellapart.data.streams import Inputs, Stream
from tellapart.protocols.captioners import FEATURES, every_stream, padded, tiny

B, R, T, V = 2, 4, 5, 11
NONE = dict.fromkeys(["visual_distilling", "attribute_distilling", "global_aspect", "local_distilling"], False)
TABLE_4 = {
    "base": NONE,
    "visual": NONE | {"visual_distilling": True},
    "attribute": NONE | {"attribute_distilling": True},
    "global": {"local_distilling": False},
    "local": NONE | {"local_distilling": True},
    "glied": {},
}
OURS = {"attributes_attend": {"attributes_attend": True}, "semantic_aspect": {"semantic_aspect": True}}
OTHERS = {
    "base with attributes that attend": NONE | {"attribute_distilling": True, "attributes_attend": True},
    "weighed": {"semantic_aspect": True, "weigh_attributes": True},
    "aspect alone": NONE | {"global_aspect": True},
}


@pytest.fixture
def photos():
    """The first has four regions and four attributes, the second two and three."""
    inputs = every_stream(torch.randn(B, R, FEATURES, generator=torch.Generator().manual_seed(1)))
    for name, counts in (("regions", [4, 2]), ("attributes", [4, 3])):
        inputs[name] = Stream(inputs[name].values, torch.arange(R) < torch.tensor(counts)[:, None])
    return inputs


@pytest.fixture
def tokens():
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(2))


def random_weights(model):
    """All of them, biases and norms too: none may be missed in a formula."""
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.data = 0.4 * torch.randn(weight.shape, generator=draw)
    return model


def linear(layer, x):
    return torch.stack([sum(w * v for w, v in zip(row, x, strict=True)) for row in layer.weight]) + layer.bias


def norm(layer, x):
    centred = x - x.sum() / len(x)
    return centred / torch.sqrt((centred * centred).sum() / len(x) + layer.eps) * layer.weight + layer.bias


def g(residual, f, x):
    """G(f, x), without dropout"""
    return norm(residual.norm, x + f)


def heads_of(attention, query, rows, weights=None):
    """Eq. 1, the heads of Eq. 2 one behind the other, before the output matrix."""
    width = len(query)
    size = width // attention.heads
    key_value = [linear(attention.key_value, row) for row in rows]
    asked, result = linear(attention.query, query), []
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        scores = [math.exp(float(asked[part] @ kv[:width][part]) / math.sqrt(size)) for kv in key_value]
        scores = [score * weight for score, weight in zip(scores, weights or [1.0] * len(rows), strict=True)]
        seen = sum(score / sum(scores) * kv[width:][part] for score, kv in zip(scores, key_value, strict=True))
        result.append(seen if rows else torch.zeros(size))
    return torch.cat(result)


def h(attention, query, *sources, weights=(None, None)):
    """Eq. 2; of a pair that shares its weights the sum."""
    parts = [heads_of(attention, query, rows, weight) for rows, weight in zip(sources, weights, strict=False)]
    return linear(attention.out, sum(parts))


def transform(layer, c, x):
    """Eq. 5"""
    first, _, second = layer.feed_forward
    return g(layer.outer, g(layer.inner, linear(second, linear(first, c).clamp(min=0)), c), x)


def position(place, width):
    rates = [place / 10000 ** (2 * i / width) for i in range(width // 2)]
    return torch.tensor([math.sin(rate) for rate in rates] + [math.cos(rate) for rate in rates])


def by_hand(model, inputs, photo, words):
    """Logits (T, V) of one caption of one photo, by the paper's equations."""
    c = model.config
    features, has_region = (part[photo] for part in inputs["regions"])
    stream, has_attribute = (part[photo] for part in inputs["attributes"])
    regions = [linear(model.project[1], norm(model.project[0], row)) for row in features[has_region]]  # I
    attributes = [linear(model.widen, model.embed.weight[int(row[0])]) for row in stream[has_attribute]]  # A
    weigh = [float(row[1]) for row in stream[has_attribute]] if c.weigh_attributes else None

    groups = regions
    if c.visual_distilling:  # Eq. 7, then 5
        found = [g(model.group_norm, h(model.group, i, regions), i) for i in regions]
        groups = [transform(model.group_transform, f, i) for f, i in zip(found, regions, strict=True)]
    xs = [linear(model.widen, model.embed.weight[w]) + position(t, c.width) for t, w in enumerate(words)]
    ts, collocated = xs, attributes
    if c.attributes_attend:
        collocated = [
            g(model.collocate_norm, h(model.collocate, a, attributes, weights=[weigh]), a) for a in attributes
        ]
    elif c.attribute_distilling:  # Eq. 8
        ts = [g(model.collocate_norm, h(model.collocate, x, attributes, weights=[weigh]), x) for x in xs]

    if c.global_aspect:  # Eq. 10
        sources = [groups, collocated] if c.semantic_aspect or c.attributes_attend else [groups]
    else:  # Eq. 4; each source once
        sources = [groups] if c.attribute_distilling and not c.attributes_attend else [groups, collocated]
    logits = []
    for t, x in enumerate(xs):
        context = g(model.context_norm, h(model.context, ts[t], ts[: t + 1]), ts[t])  # Eqs. 3 and 9
        aspect = g(model.aspect_norm, h(model.aspect, context, *sources, weights=[None, weigh]), context)
        outcome = transform(model.aspect_transform, aspect, x)  # Eq. 5
        if c.local_distilling:  # Eq. 11
            seen = h(model.local, outcome, regions, attributes, weights=[None, weigh])
            outcome = g(model.local_norm, seen, outcome)
        logits.append(linear(model.word, outcome))  # Eq. 6
    return torch.stack(logits)


@pytest.mark.parametrize("row", TABLE_4 | OURS | OTHERS)
def test_every_row_is_what_the_equations_say(row, photos, tokens):
    model = random_weights(
        tiny("glied", word_width=6, width=8, heads=2, feed_forward=12, **(TABLE_4 | OURS | OTHERS)[row])
    )
    heads = {"aspect": 2 if model.config.global_aspect else 1, "local": 1}
    assert all(getattr(model, name).heads == count for name, count in heads.items() if hasattr(model, name))
    with torch.no_grad():
        found = model.forward(tokens, model.encode(photos))
        expected = torch.stack([by_hand(model, photos, i, tokens[i].tolist()) for i in range(B)])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_step_computes_no_earlier_word_again(photos):
    """What a step multiplies is the same at the third word and at the fortieth, but for attention to the words."""
    model = tiny("glied")
    memory, rows = model.encode(photos), []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda layer, given, made: rows.append((layer, given[0].shape[:-1].numel())))
    state, made = model.start(memory), []
    for _ in range(40):
        rows.clear()
        _, state = model.step(torch.zeros(B, dtype=torch.long), state, memory)
        made.append(list(rows))
    assert made[2] == made[39]
    assert {count for _, count in made[39]} == {B}
    assert state.keys.shape == (B, 2, 40, 16)


@pytest.mark.parametrize("name", ["regions", "attributes"])
@pytest.mark.parametrize("row", ["glied", "attributes_attend"])
def test_a_photo_without_attributes_or_regions_has_captions(row, name, photos, tokens):
    """Attention to nothing is 0, however many places there are for what is not there, or none."""
    values, mask = photos[name]
    empty = Inputs(photos | {name: Stream(values, mask & torch.tensor([[True], [False]]))})
    settings = (TABLE_4 | OURS)[row]
    model = random_weights(tiny("glied", word_width=6, width=8, heads=2, feed_forward=12, **settings))
    with torch.no_grad():
        expected = torch.stack([by_hand(model, empty, i, tokens[i].tolist()) for i in range(B)])
    found = model.forward(tokens, model.encode(empty))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    found.square().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())
    wider = model.forward(tokens, model.encode(padded(empty, 3, torch.nan)))
    torch.testing.assert_close(wider, expected, atol=1e-5, rtol=0)
    without_rows = Inputs(empty | {name: Stream(values[:, :0], mask[:, :0])})
    torch.testing.assert_close(model.forward(tokens, model.encode(without_rows))[1], expected[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["glied", "lstm_a3"])
def test_what_is_no_attribute_is_left_out(name, photos, tokens):
    """Ids that are not in the vocabulary, below 0 or no number; probabilities that are no number."""
    model = tiny(name, V)
    values, mask = photos["attributes"]
    wrong = torch.tensor([[V, 0.5], [1e9, 0.5], [-1, 0.5], [torch.nan, 0.5], [3, torch.nan]]).expand(B, -1, -1)
    more = Stream(torch.cat([values, wrong], 1), torch.cat([mask, torch.ones(B, 5, dtype=torch.bool)], 1))
    torch.testing.assert_close(
        model.forward(tokens, model.encode(Inputs(photos | {"attributes": more}))),
        model.forward(tokens, model.encode(photos)),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("name", ["glied", "lstm_a3"])
def test_what_is_said_depends_on_the_attributes(name, photos, tokens):
    model = tiny(name, V)
    values, mask = photos["attributes"]
    other = Stream(torch.stack([(values[..., 0] + 1) % V, values[..., 1]], 2), mask)
    found = model.forward(tokens, model.encode(Inputs(photos | {"attributes": other})))
    assert not torch.allclose(found, model.forward(tokens, model.encode(photos)), atol=1e-3)


COUNTS = {"base": 12.3e6, "glied": 18.3e6}  # the paper's Table 2


@pytest.mark.parametrize("row", TABLE_4 | OURS)
def test_parameters_at_the_paper_s_sizes(row):
    words = 9487 + 4
    settings = (TABLE_4 | OURS)[row]
    with torch.device("meta"):
        model = models.build_captioner(
            "glied", settings, vocab_size=words, feature_sizes={"regions": 2048, "attributes": 2}
        )
    count = sum(weight.numel() for weight in model.parameters())
    attention, feed_forward = 4 * 512 * 512, 2 * 512 * 2048  # by hand, without biases and norms
    expected = words * 256 + 256 * 512 + 2048 * 512 + 512 * words + 2 * attention + feed_forward  # base
    expected += (attention + feed_forward) * settings.get("visual_distilling", True)
    expected += attention * settings.get("attribute_distilling", True)
    expected += attention * settings.get("local_distilling", True)
    assert count == pytest.approx(expected, rel=0.005)
    if row in COUNTS:
        assert count == pytest.approx(COUNTS[row], rel=0.05)
