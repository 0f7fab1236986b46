"""Each captioner against the formulas of its paper, written out for one caption of one photo, without a batch."""

import math

import pytest
import torch
from torch import nn

from tellapart import models
from tellapart.captioners.gcn_lstm import TINY, spatial_relations
from tellapart.captioners.layers import lstm
from tellapart.captioners.transformer import positions
from tellapart.captioners.x_lan import HeadNorm
from tellapart.data.streams import Inputs, Stream
from tellapart.protocols.captioners import CLIPS, FEATURES, SIZES, B, T, V, every_stream, padded, tiny

R, NAN = 4, float("nan")


@pytest.fixture
def photos():
    """With four, two and three rows of each stream, and four, three and one attributes."""
    inputs = every_stream(torch.randn(B, R, FEATURES, generator=torch.Generator().manual_seed(1)))
    rows = {"attributes": [4, 3, 1]}
    masks = {name: torch.arange(R) < torch.tensor(rows.get(name, [4, 2, 3]))[:, None] for name in inputs}
    return Inputs((name, Stream(values.double(), masks[name])) for name, (values, _) in inputs.items())


@pytest.fixture
def tokens():
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(2))


def shaken(model):
    """All weights random, biases and norms too: none may be missed in a formula."""
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=draw)
    return model.double().eval()


@torch.no_grad()
def assert_that_of_its_paper(formulas, model, inputs, tokens):
    """formulas  (model, the rows that a photo has of each stream, tokens (T,)) -> logits (T, V)"""
    logits = model.forward(tokens, model.encode(inputs))
    for row in range(len(tokens)):
        photo = {name: values[row][mask[row]] for name, (values, mask) in inputs.items()}
        torch.testing.assert_close(logits[row], formulas(model, photo, tokens[row]))


# --- recurrent captioners ---


def cell(inputs, recurrent, bias=None):
    """torch's cell with our weights.  inputs: those of each part of the input"""
    result = nn.LSTMCell(sum(weight.shape[1] for weight in inputs), recurrent.shape[1]).double()
    result.weight_ih.data, result.weight_hh.data = torch.cat(inputs, 1), recurrent
    result.bias_hh.data.zero_()
    result.bias_ih.data = torch.zeros_like(result.bias_hh) if bias is None else bias
    return result


def zeros(width):
    return torch.zeros(width, dtype=torch.double)


def outputs(cell, inputs):
    """The output after each input."""
    states = [(zeros(cell.hidden_size), zeros(cell.hidden_size))]
    for row in inputs:
        states.append(cell(row, states[-1]))
    return torch.stack([output for output, _ in states[1:]])


def show_tell(model, photo, tokens):
    """Vinyals et al.: x(-1) = W I, x(t) = W_e w(t); with every_step, [W_e w(t), W I] at each word."""
    words, seen = model.embed(tokens), model.photo(photo["regions"].mean(0))
    weights, recurrent, bias = [model.word_gates.weight], model.recurrent_gates.weight, model.word_gates.bias
    if not model.config.every_step:
        return model.word(outputs(cell(weights, recurrent, bias), [seen, *words])[1:])
    beside = torch.cat([words, seen.expand_as(words)], 1)
    return model.word(outputs(cell([*weights, model.photo_gates.weight], recurrent, bias), beside))


def lstm_a3(model, photo, tokens):
    """Yao et al., A3: x(-2) = T_a A, x(-1) = T_v I, x(t) = T_s w(t); A has the probability of each word."""
    attributes = model.attributes.bias.clone()
    for word, probability in photo["attributes"].tolist():
        attributes += probability * model.attributes.weight[:, int(word)]
    theirs = cell([model.input_gates.weight], model.recurrent_gates.weight, model.input_gates.bias)
    seen = model.photo(photo["regions"].mean(0))
    return model.word(outputs(theirs, [attributes, seen, *model.embed(tokens)])[2:])


def gl_rg(model, photo, tokens):
    """Yan et al., Eqs. 4-7"""
    c, vectors = model.config, {name: photo[name].mean(0) for name in CLIPS}
    if c.joint:
        vectors = {"joint": torch.cat(list(vectors.values()))}
    parts = [torch.relu(model.project[name](vector)) for name, vector in vectors.items()]
    if c.adaptive:
        weights = torch.softmax(model.weigh(torch.cat(parts)), 0)
        parts = [len(parts) * weight * part for weight, part in zip(weights, parts, strict=True)]
    fused, words = torch.cat(parts), model.embed(tokens)
    weights, recurrent = [model.input_gates.weight], model.recurrent_gates.weight
    if not c.every_step:
        return model.word(outputs(cell(weights, recurrent, model.input_gates.bias), [model.first(fused), *words[1:]]))
    beside = torch.cat([words, fused.expand(T, -1)], 1)
    return model.word(outputs(cell([*weights, model.fused_gates.weight], recurrent), beside))


def attended(attend, question, regions):
    """softmax of score . tanh(W_v v + W_h h), region by region"""
    scores = [attend.score(torch.tanh(attend.key(region) + attend.query(question))) for region in regions]
    return sum(weight * region for weight, region in zip(torch.softmax(torch.cat(scores), 0), regions, strict=True))


def attention(model, photo, tokens):
    """Xu et al., Eqs. 1-7 and 13 with the gate of 4.2.1: z = beta(h) * sum of alpha a; p of E y + L_h h + L_z z."""
    regions, c = torch.relu(model.project[0](photo["regions"])), model.config
    of_photo, recurrent = model.context_gates.weight.split([c.word_width, c.width], dim=1)
    theirs = cell([model.word_gates.weight, of_photo], recurrent, model.word_gates.bias)
    state = tuple(torch.tanh(first(regions.mean(0))) for first in (model.first_output, model.first_cell))
    logits = []
    for word in model.embed(tokens):
        context = torch.sigmoid(model.gate(state[0])) * attended(model.attend, state[0], regions)
        state = theirs(torch.cat([word, context]), state)
        logits.append(model.word(word + model.output_projection(state[0]) + model.context_projection(context)))
    return torch.stack(logits)


def up_down(model, photo, tokens):
    return up_down_over(model, torch.relu(model.project[0](photo["regions"])), tokens)


def up_down_over(model, regions, tokens):
    """Anderson et al., Eqs. 1-6: x1 = [h2, mean, word]; a = v . tanh(W_v v + W_h h1); x2 = [attended, h1]."""
    width = model.config.width
    of_second, of_first = model.recurrent_gates.weight.split(width, dim=1)
    first = cell([of_second, model.mean_gates.weight, model.word_gates.weight], of_first, model.word_gates.bias)
    of_photo, of_first, of_second = model.language_gates.weight.split([regions.shape[1], width, width], dim=1)
    second = cell([of_photo, of_first], of_second, model.language_gates.bias)
    h1 = c1 = h2 = c2 = zeros(width)
    logits = []
    for word in model.embed(tokens):
        h1, c1 = first(torch.cat([h2, regions.mean(0), word]), (h1, c1))
        h2, c2 = second(torch.cat([attended(model.attend, h1, regions), h1]), (h2, c2))
        logits.append(model.word(h2))
    return torch.stack(logits)


def received(graph, regions, relations, i):
    """Eq. 4 of Yao et al.: the sum over neighbours j of gate * (W_dir v_j + b_lab), for one region."""
    total = torch.sigmoid(graph.own_gate(regions[i])) * graph.own(regions[i])
    for j in range(len(regions)):
        for label, gate, layer in (
            (relations[i, j], graph.target_gate, graph.target),
            (relations[j, i], graph.source_gate, graph.source),
        ):
            if label:
                weight = torch.sigmoid(gate(regions[j]) + graph.label_gate[label - 1])
                total = total + weight * (layer(regions[j]) + graph.label[label - 1])
    return total


def gcn_lstm(model, photo, tokens):
    """Up-Down over related regions.  Relations with itself, or of what is no region or label, do not count."""
    regions = photo["regions"]
    count = len(regions)
    related = regions
    if model.graph is not None:
        spatial = spatial_relations(photo["boxes"][None])[0]
        related = related + torch.stack([received(model.graph, regions, spatial, i) for i in range(count)])
    if model.semantic is not None:
        semantic = torch.zeros(count, count, dtype=torch.long)
        for first, second, label in photo["relations"].tolist():
            if first != second and {first, second} <= set(range(count)) and label in range(len(model.semantic.label)):
                semantic[int(first), int(second)] = int(label) + 1
        related = related + torch.stack([received(model.semantic, regions, semantic, i) for i in range(count)])
    return up_down_over(model.words, torch.relu(related), tokens)


def x_linear(block, question, regions):
    """Eqs. 1-8 of Pan et al.: bilinear products, weighed over regions and over channels; one question (W,), (R, W)."""

    def embedded(layers, rows):
        mapped = layers[0](rows)
        return layers[2](torch.where(mapped > 0, mapped, mapped.exp() - 1))

    key, asked = embedded(block.key, regions), embedded(block.key_query, question)
    value, taken = embedded(block.value, regions), embedded(block.value_query, question)
    size, out = len(question) // block.heads, []
    for head in range(block.heads):
        part = slice(head * size, (head + 1) * size)
        narrow = [torch.relu(block.narrow[0](row[part] * asked[part])) for row in key]
        spatial = torch.softmax(torch.cat([block.score(row) for row in narrow]), 0)
        channel = torch.sigmoid(block.channel(sum(narrow) / len(narrow)))
        products = [row[part] * taken[part] for row in value]
        out.append(channel * sum(weight * product for weight, product in zip(spatial, products, strict=True)))
    return torch.cat(out)


def x_lan(model, photo, tokens):
    regions, width = torch.relu(model.project[0](photo["regions"])), model.config.width
    photos = [regions.mean(0)]
    for layer in model.encoder:
        photos.append(x_linear(layer.attention, photos[-1], regions))
        updates = [torch.relu(layer.update[0](torch.cat([photos[-1], region]))) for region in regions]
        regions = layer.norm(regions + torch.stack(updates))
    whole = model.photo_norm(model.photo(torch.cat(photos)))
    weights = [model.word_gates.weight, model.context_gates.weight]
    theirs = cell(weights, model.recurrent_gates.weight, model.word_gates.bias)
    h = c = context = zeros(width)
    logits = []
    for word in model.embed(tokens):
        h, c = theirs(torch.cat([word, whole + context]), (h, c))
        answers = [h]
        for block in model.attentions:
            answers.append(x_linear(block, answers[-1], regions))
        both = model.context(torch.cat([model.attended_norm(model.attended(torch.cat(answers))), h]))
        context = both[:width] * torch.sigmoid(both[width:])
        logits.append(model.word(context))
    return torch.stack(logits)


# --- captioners of attention ---


def heads(attention, query, keys, values, weights=None):
    """softmax(q k / sqrt(d)) v of each head, before the output matrix; 0 of no rows.  weights: of the rows"""
    size, result = len(query) // attention.heads, []
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        scores = [math.exp(float(query[part] @ key[part]) / math.sqrt(size)) for key in keys]
        scores = [score * weight for score, weight in zip(scores, weights or [1.0] * len(keys), strict=True)]
        result.append(sum((s / sum(scores) * v[part] for s, v in zip(scores, values, strict=True)), zeros(size)))
    return torch.cat(result)


def meshed_memory(model, photo, tokens):
    """Cornia et al., Eqs. 2-9"""

    def look(attention, rows, keys, values):
        return torch.stack([attention.out(heads(attention, attention.query(row), keys, values)) for row in rows])

    def keys_values(attention, rows):
        return attention.key_value(rows).chunk(2, dim=-1)

    x, levels = model.project[3](torch.relu(model.project[0](photo["regions"]))), []
    for layer in model.encoder:
        keys, values = keys_values(layer.look, x)
        slots = torch.cat([keys, layer.slot_keys]), torch.cat([values, layer.slot_values])  # K = [W_k X, M_k]
        x = layer.look_norm(x + look(layer.look, x, *slots))
        x = layer.think_norm(x + layer.think(x))
        levels.append(x)
    y = model.embed(tokens) + positions(T, model.config.width)
    for layer in model.decoder:
        keys, values = keys_values(layer.recall, y)
        past = [look(layer.recall, y[t : t + 1], keys[: t + 1], values[: t + 1]) for t in range(T)]
        y = layer.recall_norm(y + torch.cat(past))
        total = torch.zeros_like(y)
        for level, gate in zip(levels, layer.gates, strict=True):
            seen = look(layer.look, y, *keys_values(layer.look, level))
            if model.config.norm_each:
                seen = layer.look_norm(y + seen)
            total = total + torch.sigmoid(gate(torch.cat([y, seen], 1))) * seen
        y = total / math.sqrt(len(levels)) if model.config.norm_each else layer.look_norm(y + total)
        y = layer.think_norm(y + layer.think(y))
    return y @ model.word.weight.T


def glied(model, photo, tokens):
    """Liu et al., Eqs. 1-11"""
    c = model.config
    assert model.aspect.heads == (c.heads if c.global_aspect else 1)
    regions, stream = model.project(photo["regions"]), photo["attributes"]  # I
    attributes = model.widen(model.embed(stream[:, 0].long()))  # A
    weights = stream[:, 1].tolist() if c.weigh_attributes else None

    def g(residual, f, x):
        return residual.norm(x + f)

    def h(attention, rows, *sources):
        """Eq. 2; of a pair that shares its weights the sum.  sources: their rows, and weights of these"""
        read = [(*attention.key_value(source).chunk(2, dim=-1), factors) for source, factors in sources]
        sums = [sum(heads(attention, attention.query(row), *source) for source in read) for row in rows]
        return attention.out(torch.stack(sums)) if sums else rows

    def transform(layer, f, x):
        """Eq. 5"""
        return g(layer.outer, g(layer.inner, layer.feed_forward(f), f), x)

    groups = regions
    if c.visual_distilling:  # Eq. 7, then 5
        groups = g(model.group_norm, h(model.group, regions, (regions, None)), regions)
        groups = transform(model.group_transform, groups, regions)
    words = model.widen(model.embed(tokens)) + positions(T, c.width)
    pivots, collocated = words, attributes
    if c.attributes_attend:
        collocated = g(model.collocate_norm, h(model.collocate, attributes, (attributes, weights)), attributes)
    elif c.attribute_distilling:  # Eq. 8
        pivots = g(model.collocate_norm, h(model.collocate, words, (attributes, weights)), words)
    if c.global_aspect:  # Eq. 10
        semantic = c.semantic_aspect or c.attributes_attend
    else:  # Eq. 4; each source once
        semantic = c.attributes_attend or not c.attribute_distilling
    sources = [(groups, None), *[(collocated, weights)] * semantic]
    past = [h(model.context, pivots[t : t + 1], (pivots[: t + 1], None)) for t in range(T)]
    context = g(model.context_norm, torch.cat(past), pivots)  # Eqs. 3 and 9
    aspect = g(model.aspect_norm, h(model.aspect, context, *sources), context)
    outcome = transform(model.aspect_transform, aspect, words)  # Eq. 5
    if c.local_distilling:  # Eq. 11
        assert model.local.heads == 1
        outcome = g(model.local_norm, h(model.local, outcome, (regions, None), (attributes, weights)), outcome)
    return model.word(outcome)  # Eq. 6


# --- all of them ---

OFF = dict.fromkeys(["visual_distilling", "attribute_distilling", "global_aspect", "local_distilling"], False)
GLIED = {  # rows of the paper's Table 4, and ours
    "base": OFF,
    "visual": OFF | {"visual_distilling": True},
    "attribute": OFF | {"attribute_distilling": True},
    "global": {"local_distilling": False},
    "local": OFF | {"local_distilling": True},
    "aspect alone": OFF | {"global_aspect": True},
    "glied": {},
    "attributes attend": {"attributes_attend": True},
    "base, attributes attend": OFF | {"attribute_distilling": True, "attributes_attend": True},
    "semantic": {"semantic_aspect": True},
    "weighed": {"semantic_aspect": True, "weigh_attributes": True},
}
CASES = [
    *((show_tell, {"every_step": every_step}) for every_step in (False, True)),
    *((formulas, {}) for formulas in (lstm_a3, attention, up_down, gcn_lstm)),
    *((gl_rg, dict.fromkeys(switches.split(), True)) for switches in ("", "joint", "adaptive", "every_step")),
    *((gl_rg, {"every_step": True, other: True}) for other in ("joint", "adaptive")),
    *((x_lan, {"encoder_layers": n, "decoder_layers": m, "heads": 4}) for n, m in ((2, 1), (0, 2))),
    *((meshed_memory, {"encoder_layers": 3, "decoder_layers": 2, "norm_each": each}) for each in (False, True)),
    *((glied, settings) for settings in GLIED.values()),
]


@pytest.mark.parametrize(("formulas", "settings"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_captioner_is_that_of_its_paper(formulas, settings, photos, tokens):
    assert_that_of_its_paper(formulas, shaken(tiny(formulas.__name__, **settings)), photos, tokens)


def test_the_cell_is_that_of_torch():
    theirs = shaken(nn.LSTMCell(3, 4))
    x, output, state = (torch.randn(5, size, dtype=torch.double) for size in (3, 4, 4))
    gates = x @ theirs.weight_ih.T + theirs.bias_ih + output @ theirs.weight_hh.T + theirs.bias_hh
    torch.testing.assert_close(lstm(gates, state), theirs(x, (output, state)))


def test_the_norm_of_heads_is_a_group_norm_of_single_rows():
    norm, rows = shaken(HeadNorm(12, 3)), torch.randn(5, 12, dtype=torch.double)
    torch.testing.assert_close(norm(rows), nn.functional.group_norm(rows, 3, norm.weight, norm.bias))


# The sizes of the papers, and of the programs that published figures come from: vocabulary, streams, parameters
LSTM_A3 = 32_419_800 - 1004 * 1024  # one bias in the LSTM where the GEG paper's library has two
CLIP_SIZES = {"words": 300, "actions": 400, "classes": 1000}  # of GL-RG; MSR-VTT's vocabulary in its program
GL_RG_WORDS = 10_536 * (2 * 512 + 1)
ONCE, ALWAYS = (1536 * 512 + 512) + 4 * 512 * (512 + 512 + 1), 4 * 512 * (512 + 1536 + 512)
BASE = 9491 * (256 + 512) + 256 * 512 + 2048 * 512 + 2 * 4 * 512**2 + 2 * 512 * 2048  # of GLIED, without biases
COUNTS = [
    *(("lstm_a3", {"width": 1024, "attribute_words": n}, 10200, LSTM_A3 + n * 1024, 0) for n in (1000, 2000)),
    *(("gl_rg", {"every_step": s == ALWAYS}, 10_536, 1703 * 512 + s + GL_RG_WORDS, 0) for s in (ONCE, ALWAYS)),
    ("gl_rg", {"joint": True}, 10_536, 1701 * 1536 + ONCE + GL_RG_WORDS, 0),
    ("glied", OFF, 9491, BASE, 0.005),
    ("glied", OFF, 9491, 12.3e6, 0.05),  # the paper's Table 2
    ("glied", {}, 9491, 18.3e6, 0.05),
    ("glied", GLIED["visual"], 9491, BASE + 4 * 512**2 + 2 * 512 * 2048, 0.005),
    ("glied", GLIED["attribute"], 9491, BASE + 4 * 512**2, 0.005),
    ("glied", GLIED["local"], 9491, BASE + 4 * 512**2, 0.005),
]


@pytest.mark.parametrize(("name", "settings", "words", "expected", "tolerance"), COUNTS)
def test_parameters_at_the_size_of_the_paper(name, settings, words, expected, tolerance):
    sizes = CLIP_SIZES if name == "gl_rg" else {"regions": 2048, "attributes": 2}
    with torch.device("meta"):
        model = models.build_captioner(name, settings, vocab_size=words, feature_sizes=sizes)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(expected, rel=tolerance)


# --- what is not in the papers ---


@pytest.mark.parametrize("stream", ["regions", "attributes"])
@pytest.mark.parametrize("settings", [{}, {"attributes_attend": True}], ids=str)
def test_glied_captions_a_photo_without_attributes_or_regions(settings, stream, photos, tokens):
    """Attention to nothing is 0, however many places there are for what is not there, or none."""
    values, mask = photos[stream]
    empty = Inputs(photos | {stream: Stream(values, mask & torch.tensor([[True], [False], [True]]))})
    model = shaken(tiny("glied", **settings))
    assert_that_of_its_paper(glied, model, empty, tokens)
    expected = model.forward(tokens, model.encode(empty))
    expected.square().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())
    torch.testing.assert_close(model.forward(tokens, model.encode(padded(empty, 3, torch.nan))), expected)
    without_rows = Inputs(empty | {stream: Stream(values[:, :0], mask[:, :0])})
    torch.testing.assert_close(model.forward(tokens, model.encode(without_rows))[1], expected[1])


@pytest.mark.parametrize("name", ["glied", "lstm_a3"])
def test_attributes_matter_and_what_is_none_is_left_out(name, photos, tokens):
    """Ids that are not in the vocabulary, below 0 or no number; probabilities that are no number."""
    model, (values, mask) = tiny(name).double(), photos["attributes"]
    wrong = torch.tensor([[V, 0.5], [1e9, 0.5], [-1, 0.5], [torch.nan, 0.5], [3, torch.nan]]).expand(B, -1, -1)
    more = Stream(torch.cat([values, wrong], 1), torch.cat([mask, torch.ones(B, 5, dtype=torch.bool)], 1))
    others = Stream(torch.stack([(values[..., 0] + 1) % V, values[..., 1]], 2), mask)
    logits, same, different = (
        model.forward(tokens, model.encode(Inputs(photos | {"attributes": attributes})))
        for attributes in (photos["attributes"], more, others)
    )
    torch.testing.assert_close(same, logits)
    assert not torch.allclose(different, logits, atol=1e-3)


def test_lstm_a3_has_a_place_for_so_many_words_as_it_is_set_to():
    values = torch.tensor([[[5.0, 0.9], [5.0, 0.4], [2.0, 0.3], [6.0, 0.8]]])
    vector = tiny("lstm_a3", attribute_words=6)._vector(Stream(values, torch.ones(1, R, dtype=torch.bool)))
    assert vector.tolist() == [pytest.approx([0, 0, 0.3, 0, 0, 0.9])]  # twice the same word: the larger


def test_gl_rg_begins_with_the_clip_alone_where_it_is_seen_once(photos):
    for every_step in (False, True):
        model = shaken(tiny("gl_rg", every_step=every_step))
        memory = model.encode(photos)
        logits = [model.step(torch.full((B,), first), model.start(memory), memory)[0] for first in (1, 7)]
        assert logits[0].equal(logits[1]) != every_step
    with_bias = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    assert with_bias == {*(f"project.{name}.bias" for name in CLIPS), "word.bias"}  # as in the paper's program


def test_weights_over_gl_rg_s_granularities_begin_equal(photos):
    plain, adaptive = (tiny("gl_rg", adaptive=adaptive).double() for adaptive in (False, True))
    adaptive.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(plain.encode(photos), adaptive.encode(photos))


@pytest.mark.parametrize("streams", [("words",), ("actions", "classes"), ("words", "actions", "classes")])
def test_gl_rg_takes_the_streams_that_it_is_built_for(photos, streams, tokens):
    """The rows of Table 2; other streams make no difference."""
    sizes = {name: CLIPS[name] for name in streams}
    model = models.build_captioner("gl_rg", {"width": 8}, vocab_size=V, feature_sizes=sizes).double().eval()
    assert set(model.project) == set(streams)
    whole = model.forward(tokens, model.encode(photos))
    alone = Inputs({name: photos[name] for name in streams})
    torch.testing.assert_close(model.forward(tokens, model.encode(alone)), whole)
    values, mask = photos[streams[0]]
    changed = model.forward(tokens, model.encode(Inputs(photos | {streams[0]: Stream(1 - values, mask)})))
    assert not torch.allclose(changed, whole, atol=1e-3)


def test_a_step_of_glied_computes_no_earlier_word_again(photos):
    """What a step multiplies is the same at the third word and at the fortieth, but for attention to the words."""
    model = tiny("glied").double()
    memory, rows = model.encode(photos), []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda layer, inputs, _: rows.append((layer, inputs[0].shape[:-1].numel())))
    state, of_steps = model.start(memory), []
    for _ in range(40):
        rows.clear()
        _, state = model.step(torch.zeros(B, dtype=torch.long), state, memory)
        of_steps.append(list(rows))
    assert of_steps[2] == of_steps[39]
    assert {count for _, count in of_steps[39]} == {B}
    assert state.keys.shape == (B, 2, 40, 16)


# --- graphs ---


def test_gcn_lstm_on_boxes_drawn_by_hand(photos, tokens):
    """A box inside a larger one, one below, and one far away; and labelled relations, some of which do not count."""
    drawn = [(0.1, 0.1, 0.5, 0.5), (0.2, 0.2, 0.3, 0.3), (0.12, 0.55, 0.4, 0.75), (0.9, 0.9, 1.0, 1.0)]
    assert spatial_relations(torch.tensor([drawn])).tolist() == [[[0, 2, 6, 0], [1, 0, 5, 0], [10, 9, 0, 0], [0] * 4]]
    triples = [(0, 1, 4), (1, 0, 2), (3, 2, 0), (2, 2, 1), (0, 2, 5), (0, 4, 1), (0, 2, -1), (NAN, 1, 1), (2, 0, 3)]
    exists = torch.arange(9) < torch.tensor([[9], [8], [9]])
    photos["boxes"].values[:] = torch.tensor(drawn)
    photos["relations"] = Stream(torch.tensor(triples, dtype=torch.double).expand(B, -1, -1), exists)
    assert_that_of_its_paper(gcn_lstm, shaken(tiny("gcn_lstm", relation_labels=5)), photos, tokens)


@pytest.mark.parametrize("graph", ["boxes", "relations"])
def test_either_stream_alone_is_a_graph(photos, tokens, graph):
    """A photo without relations is Up-Down's, but for itself."""
    sizes = {name: SIZES[name] for name in ("regions", graph)}
    model = shaken(models.build_captioner("gcn_lstm", TINY, vocab_size=V, feature_sizes=sizes))
    assert (model.graph is None, model.semantic is None) == (graph != "boxes", graph != "relations")
    assert_that_of_its_paper(gcn_lstm, model, photos, tokens)
    related = model.encode(photos).regions
    photos[graph].mask[0] = False
    alone = model.encode(photos).regions
    layer = model.graph or model.semantic
    nothing, regions = torch.zeros(1, 1).long(), photos["regions"].values[0]
    expected = [torch.relu(row + received(layer, row[None], nothing, 0)) for row in regions]
    torch.testing.assert_close(alone[0], torch.stack(expected))
    assert (related[0] - alone[0]).abs().max() > 1e-3
    torch.testing.assert_close(alone[1:], related[1:])


def test_a_region_whose_box_is_unknown_is_related_to_none(photos, tokens):
    model = shaken(tiny("gcn_lstm"))
    photos["boxes"].values[:, 1] = NAN
    photos["relations"].mask[:] = False
    regions = model.encode(photos).regions
    assert regions.isfinite().all()
    alone = Inputs((name, Stream(values[:, 1:2], mask[:, 1:2])) for name, (values, mask) in photos.items())
    torch.testing.assert_close(regions[:, 1:2], model.encode(alone).regions)
    photos["boxes"].mask[:] = False
    assert model.forward(tokens, model.encode(photos)).isfinite().all()


def test_regions_with_another_number_of_boxes_are_refused(photos):
    photos["boxes"] = Stream(*(part[:, :3] for part in photos["boxes"]))
    with pytest.raises(ValueError, match="4 regions have 3 boxes"):
        tiny("gcn_lstm").encode(photos)
