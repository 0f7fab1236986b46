"""GCN-LSTM, the Meshed-Memory Transformer and X-LAN against their papers' formulas, written out in plain loops."""

import math

import pytest
import torch
from torch import nn

from captioners.test_recurrent import cell
from tellapart.captioners.gcn_lstm import TINY, GatedGraph, GcnLstm, GcnLstmConfig, spatial_relations
from tellapart.captioners.meshed_memory import MeshedMemory, MeshedMemoryConfig
from tellapart.captioners.transformer import positions
from tellapart.captioners.x_lan import HeadNorm, XLan, XLanConfig
from tellapart.data.streams import Inputs, Stream, region_inputs
from tellapart.protocols.captioners import FEATURES, SIZES, every_stream, tiny

B, R, T, V = 2, 4, 5, 11


@pytest.fixture
def photos():
    """The second has three regions."""
    features = torch.randn(B, R, FEATURES, generator=torch.Generator().manual_seed(1))
    return features, torch.arange(R) < torch.tensor([[R], [3]])


@pytest.fixture
def words():
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(2))


def shaken(model, seed=3):
    """All weights random, also those that begin at zero or one."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    return model.eval()


# --- GCN-LSTM ---------------------------------------------------------------------------------------------------------


def given(graph, regions, relations, i):
    """Eq. 4 of Yao et al.: the sum over neighbours j of gate * (W_dir v_j + b_lab), for one region."""
    total = torch.sigmoid(graph.own_gate(regions[i])) * graph.own(regions[i])
    for j in range(len(regions)):
        if label := int(relations[i, j]):  # a relation from i to j
            gate = torch.sigmoid(graph.target_gate(regions[j]) + graph.label_gate[label - 1])
            total = total + gate * (graph.target(regions[j]) + graph.label[label - 1])
        if label := int(relations[j, i]):  # a relation from j to i
            gate = torch.sigmoid(graph.source_gate(regions[j]) + graph.label_gate[label - 1])
            total = total + gate * (graph.source(regions[j]) + graph.label[label - 1])
    return total


@pytest.mark.parametrize("labels", [11, 21])
def test_the_gated_graph_is_a_sum_over_relations(labels):
    """Also with the labels of a semantic graph, which need not come from boxes."""
    graph = shaken(GatedGraph(6, labels))
    draw = torch.Generator().manual_seed(4)
    regions, relations = (torch.randn(B, 7, 6, generator=draw), torch.randint(labels + 1, (B, 7, 7), generator=draw))
    relations[:, range(7), range(7)] = 0
    expected = [
        [given(graph, photo, related, i) for i in range(7)] for photo, related in zip(regions, relations, strict=True)
    ]
    found = graph(regions, relations)
    torch.testing.assert_close(found, torch.stack([torch.stack(rows) for rows in expected]), atol=1e-5, rtol=1e-5)


def test_gcn_lstm_is_up_down_over_related_regions(photos, words):
    """On boxes drawn by hand, a small one inside a large one, one below, and one far away; and with labelled relations.

    Of these some do not count: of a region with itself, or that does not exist; a label too high; what is no number.
    """
    model = shaken(tiny("gcn_lstm", relation_labels=5))
    drawn = [(0.1, 0.1, 0.5, 0.5), (0.2, 0.2, 0.3, 0.3), (0.12, 0.55, 0.4, 0.75), (0.9, 0.9, 1.0, 1.0)]
    relations = [[0, 2, 6, 0], [1, 0, 5, 0], [10, 9, 0, 0], [0, 0, 0, 0]]
    inputs = every_stream(*photos)
    inputs["boxes"].values[:] = torch.tensor(drawn)
    nothing = float("nan")
    labelled = [
        (0, 1, 4),
        (1, 0, 2),
        (3, 2, 0),
        (2, 2, 1),
        (0, 2, 5),
        (0, 4, 1),
        (0, 2, -1),
        (nothing, 1, 1),
        (2, 0, 3),
    ]
    exists = torch.tensor([[True] * 9, [True] * 8 + [False]])
    inputs["relations"] = Stream(torch.tensor(labelled).expand(B, -1, -1), exists)
    semantic = [
        torch.tensor([[0, 5, 0, 0], [3, 0, 0, 0], [4, 0, 0, 0], [0, 0, 1, 0]]),
        torch.tensor([[0, 5, 0], [3, 0, 0], [0, 0, 0]]),  # the last is masked, and of region 3 there is none
    ]
    assert spatial_relations(torch.tensor([drawn])).tolist() == [relations]
    memory = model.encode(inputs)
    features, mask = photos
    for photo in range(B):
        count = int(mask[photo].sum())
        seen = features[photo, :count]
        related = [
            torch.relu(
                seen[i]
                + given(model.graph, seen, torch.tensor(relations)[:count, :count], i)
                + given(model.semantic, seen, semantic[photo], i)
            )
            for i in range(count)
        ]
        torch.testing.assert_close(memory.regions[photo, :count], torch.stack(related), atol=1e-5, rtol=1e-5)

    width, talks = model.config.width, model.words
    by_speech, by_look = talks.recurrent_gates.weight.split(width, dim=1)
    look = cell([by_speech, talks.mean_gates.weight, talks.word_gates.weight], by_look, width)
    look.bias_ih.data = talks.word_gates.bias.data
    by_photo, by_other, by_itself = talks.language_gates.weight.split([FEATURES, width, width], dim=1)
    speak = cell([by_photo, by_other], by_itself, width)
    speak.bias_ih.data = talks.language_gates.bias.data
    found = model.forward(words, memory)
    for photo in range(B):
        regions = memory.regions[photo, : int(mask[photo].sum())]
        h1 = c1 = h2 = c2 = torch.zeros(1, width)
        for t in range(T):
            word = talks.embed(words[photo, t])[None]
            h1, c1 = look(torch.cat([h2, regions.mean(0, keepdim=True), word], 1), (h1, c1))
            scores = [talks.attend.score(torch.tanh(talks.attend.key(v) + talks.attend.query(h1[0]))) for v in regions]
            seen = sum(weight * v for weight, v in zip(torch.softmax(torch.cat(scores), 0), regions, strict=True))
            h2, c2 = speak(torch.cat([seen[None], h1], 1), (h2, c2))
            torch.testing.assert_close(found[photo, t], talks.word(h2[0]), atol=1e-5, rtol=1e-5)


def test_a_region_whose_box_is_unknown_is_related_to_none(photos, words):
    model = shaken(tiny("gcn_lstm"))
    inputs = every_stream(*photos)
    inputs["boxes"].values[:, 1] = float("nan")
    inputs["relations"].mask[:] = False
    found = model.encode(inputs).regions
    assert found.isfinite().all()
    alone = every_stream(photos[0][:, 1:2], torch.ones(B, 1, dtype=torch.bool))
    torch.testing.assert_close(found[:, 1:2], model.encode(alone).regions, atol=1e-5, rtol=1e-5)
    inputs["boxes"].mask[:] = False
    assert model.forward(words, model.encode(inputs)).isfinite().all()


def test_regions_with_another_number_of_boxes_are_refused(photos):
    inputs = every_stream(*photos)
    inputs["boxes"] = every_stream(photos[0][:, :3])["boxes"]
    with pytest.raises(ValueError, match="4 regions have 3 boxes"):
        tiny("gcn_lstm").encode(inputs)


@pytest.mark.parametrize("graph", ["boxes", "relations"])
def test_either_stream_alone_is_a_graph(photos, words, graph):
    """What is known of the other kind does not matter, and a photo without relations is Up-Down's, but for itself."""
    model = shaken(GcnLstm(GcnLstmConfig(V, FEATURES, **{f"{graph}_size": SIZES[graph]}, **TINY)))
    layer = model.graph if graph == "boxes" else model.semantic
    assert (model.graph is None, model.semantic is None) == (graph != "boxes", graph != "relations")
    inputs = Inputs({name: every_stream(*photos)[name] for name in ("regions", graph)})
    exact, mask = model.encode(inputs).regions, photos[1]
    inputs[graph].mask[0] = False
    found = model.encode(inputs).regions
    unrelated = [torch.relu(v + given(layer, v[None], torch.zeros(1, 1), 0)) for v in photos[0][0]]
    torch.testing.assert_close(found[0], torch.stack(unrelated), atol=1e-5, rtol=1e-5)
    assert (found[0] - exact[0]).abs().max() > 1e-3
    torch.testing.assert_close(found[1][mask[1]], exact[1][mask[1]], atol=1e-5, rtol=1e-5)


# --- Meshed-Memory Transformer ----------------------------------------------------------------------------------------


def attend(attention, query, keys, values):
    """softmax(q k / sqrt(d)) v of each head by itself: query (W,), keys and values (P, W), all projected."""
    size = len(query) // attention.heads
    heads = []
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        weight = torch.softmax(torch.stack([query[part] @ key[part] / math.sqrt(size) for key in keys]), 0)
        heads.append(sum(w * value[part] for w, value in zip(weight, values, strict=True)))
    return attention.out(torch.cat(heads))


def keys_values(attention, rows):
    return attention.key_value(rows).chunk(2, dim=-1)


def meshed(model, regions, tokens):
    """Cornia et al., Eqs. 2-9, for one photo and one caption."""
    x = model.project[3](torch.relu(model.project[0](regions)))
    levels = []
    for layer in model.encoder:
        keys, values = keys_values(layer.look, x)
        keys, values = torch.cat([keys, layer.slot_keys]), torch.cat([values, layer.slot_values])  # K = [W_k X, M_k]
        seen = torch.stack([attend(layer.look, layer.look.query(row), keys, values) for row in x])
        x = layer.look_norm(x + seen)
        x = layer.think_norm(x + layer.think(x))
        levels.append(x)
    y = model.embed(tokens) + positions(len(tokens), model.config.width)
    for layer in model.decoder:
        keys, values = keys_values(layer.recall, y)
        past = [attend(layer.recall, layer.recall.query(y[t]), keys[: t + 1], values[: t + 1]) for t in range(len(y))]
        y = layer.recall_norm(y + torch.stack(past))
        rows = []
        for word in y:
            total = torch.zeros_like(word)
            for level, gate in zip(levels, layer.gates, strict=True):
                seen = attend(layer.look, layer.look.query(word), *keys_values(layer.look, level))
                if model.config.norm_each:
                    seen = layer.look_norm(word + seen)
                total = total + torch.sigmoid(gate(torch.cat([word, seen]))) * seen
            rows.append(total / math.sqrt(len(levels)) if model.config.norm_each else layer.look_norm(word + total))
        y = torch.stack(rows)
        y = layer.think_norm(y + layer.think(y))
    return y @ model.word.weight.T


@pytest.mark.parametrize("norm_each", [False, True])
def test_the_meshed_memory_transformer_is_that_of_its_paper(photos, words, norm_each):
    config = MeshedMemoryConfig(
        V,
        FEATURES,
        16,
        heads=4,
        encoder_layers=3,
        decoder_layers=2,
        feed_forward=24,
        memory_slots=5,
        norm_each=norm_each,
    )
    model = shaken(MeshedMemory(config))
    found = model.forward(words, model.encode(region_inputs(*photos)))
    for row, (features, mask) in enumerate(zip(*photos, strict=True)):
        torch.testing.assert_close(found[row], meshed(model, features[mask], words[row]), atol=1e-5, rtol=1e-5)


# --- X-LAN ------------------------------------------------------------------------------------------------------------


def embedded(layers, rows, heads):
    """ELU of a linear map, each head normalised: a group norm of single rows."""
    linear, _, norm = layers
    mapped = linear(rows)
    elu = torch.where(mapped > 0, mapped, mapped.exp() - 1)
    return nn.functional.group_norm(elu.reshape(-1, mapped.shape[-1]), heads, norm.weight, norm.bias).view_as(mapped)


def x_linear(block, question, regions):
    """Eqs. 1-8 of Pan et al.: bilinear products, weighed over regions and over channels; one question (W,), (R, W)."""
    key, asked = embedded(block.key, regions, block.heads), embedded(block.key_query, question, block.heads)
    value, taken = embedded(block.value, regions, block.heads), embedded(block.value_query, question, block.heads)
    size, out = len(question) // block.heads, []
    for head in range(block.heads):
        part = slice(head * size, (head + 1) * size)
        narrow = [torch.relu(block.narrow[0](key[i, part] * asked[part])) for i in range(len(regions))]
        spatial = torch.softmax(torch.cat([block.score(one) for one in narrow]), 0)
        channel = torch.sigmoid(block.channel(sum(narrow) / len(narrow)))
        products = [value[i, part] * taken[part] for i in range(len(regions))]
        out.append(channel * sum(weight * product for weight, product in zip(spatial, products, strict=True)))
    return torch.cat(out)


def x_lan(model, features, tokens):
    """One photo and one caption, with torch's own LSTM cell and gated linear unit."""
    regions = torch.relu(model.project[0](features))
    photo = regions.mean(0)
    photos = [photo]
    for layer in model.encoder:
        photo = x_linear(layer.attention, photo, regions)
        given = [torch.relu(layer.update[0](torch.cat([photo, region]))) for region in regions]
        regions = layer.norm(regions + torch.stack(given))
        photos.append(photo)
    photo = model.photo_norm(model.photo(torch.cat(photos)))
    width = model.config.width
    theirs = cell([model.word_gates.weight, model.context_gates.weight], model.recurrent_gates.weight, width)
    theirs.bias_ih.data = model.word_gates.bias.data
    h = c = context = torch.zeros(width)
    logits = []
    for token in tokens:
        heard = torch.cat([model.embed(token), photo + context])
        h, c = (part[0] for part in theirs(heard[None], (h[None], c[None])))
        seen = [h]
        for look in model.attentions:
            seen.append(x_linear(look, seen[-1], regions))
        attended = model.attended_norm(model.attended(torch.cat(seen)))
        both = model.context(torch.cat([attended, h]))
        context = both[:width] * torch.sigmoid(both[width:])
        logits.append(model.word(context))
    return torch.stack(logits)


@pytest.mark.parametrize(("encoder_layers", "decoder_layers"), [(2, 1), (0, 2)])
def test_x_lan_is_that_of_its_paper(photos, words, encoder_layers, decoder_layers):
    layers = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    model = shaken(XLan(XLanConfig(V, FEATURES, 16, heads=4, attention_width=3, **layers)))
    found = model.forward(words, model.encode(region_inputs(*photos)))
    for row, (features, mask) in enumerate(zip(*photos, strict=True)):
        torch.testing.assert_close(found[row], x_lan(model, features[mask], words[row]), atol=1e-5, rtol=1e-5)


def test_the_norm_of_heads_is_a_group_norm_of_single_rows():
    norm = shaken(HeadNorm(12, 3))
    rows = torch.randn(5, 12, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(norm(rows), nn.functional.group_norm(rows, 3, norm.weight, norm.bias))


# --- the LSTM that sees the photo at every step -----------------------------------------------------------------------


def test_with_every_step_show_tell_sees_the_photo_beside_each_word(photos, words):
    model = shaken(tiny("show_tell", every_step=True))
    width = model.config.width
    theirs = cell([model.word_gates.weight, model.photo_gates.weight], model.recurrent_gates.weight, width)
    theirs.bias_ih.data = model.word_gates.bias.data
    found = model.forward(words, model.encode(region_inputs(*photos)))
    for row, (features, mask) in enumerate(zip(*photos, strict=True)):
        photo = model.photo(features[mask].mean(0))
        h = c = torch.zeros(1, width)
        for t in range(T):
            h, c = theirs(torch.cat([model.embed(words[row, t]), photo])[None], (h, c))
            torch.testing.assert_close(found[row, t], model.word(h[0]), atol=1e-5, rtol=1e-5)


# --- the eleven relations of boxes, drawn by hand and against plain loops ---------------------------------------------

NAN, INF = float("nan"), float("inf")
MIDDLE = (0.4, 0.4, 0.6, 0.6)


def between(first, second):
    """The relation of the first to the second, and of the second to the first."""
    found = spatial_relations(torch.tensor([[first, second]]))[0]
    assert found.diagonal().tolist() == [0, 0]
    return found[0, 1].item(), found[1, 0].item()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0.45, 0.45, 0.5, 0.5), MIDDLE, (1, 2)),  # inside, covers
        (MIDDLE, (0.0, 0.0, 1.0, 1.0), (1, 2)),
        ((0.4, 0.4, 0.5, 0.6), MIDDLE, (1, 2)),  # three sides shared
        (MIDDLE, MIDDLE, (3, 3)),  # equal boxes overlap: neither is inside
        (MIDDLE, (0.4, 0.45, 0.6, 0.65), (3, 3)),  # 3/4 of each is shared: 0.6 of the union
        (MIDDLE, (0.5, 0.4, 0.7, 0.6), (11, 7)),  # half of each: a third of the union; straight right, straight left
        (MIDDLE, (0.61, 0.45, 0.81, 0.65), (4, 8)),  # right and a little down; back: left and a little up
        (MIDDLE, (0.45, 0.61, 0.65, 0.81), (5, 9)),  # down and a little to the right
        (MIDDLE, (0.35, 0.61, 0.55, 0.81), (6, 10)),  # down and a little to the left
        (MIDDLE, (0.19, 0.45, 0.39, 0.65), (7, 11)),  # left and a little down
        (MIDDLE, (0.4, 0.7, 0.6, 0.9), (5, 9)),  # straight down and up: the end of the turn before
        (MIDDLE, (0.7, 0.7, 0.9, 0.9), (4, 8)),  # 45 degrees: as well
        ((0.0, 0.0, 0.1, 0.1), (0.9, 0.9, 1.0, 1.0), (0, 0)),  # 0.9 of the diagonal apart
        ((0.0, 0.0, 0.1, 0.1), (0.45, 0.45, 0.55, 0.55), (4, 8)),  # 0.45 of it
        ((0.0, 0.0, 0.1, 0.1), (0.55, 0.55, 0.65, 0.65), (0, 0)),  # 0.55 of it
    ],
)
def test_boxes_drawn_by_hand(first, second, expected):
    assert between(first, second) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        (0.5, 0.5, 0.5, 0.7),  # a line
        (0.5, 0.5, 0.5, 0.5),  # a point
        (0.0, 0.0, 0.0, 0.0),  # unknown, as stores have it
        (0.6, 0.6, 0.4, 0.4),  # right of its right side
        (1.2, 0.2, 1.4, 0.4),  # outside the photo
        (NAN, 0.1, 0.5, 0.5),
        (0.1, 0.1, INF, 0.5),
    ],
    ids=str,
)
def test_what_is_no_box_has_no_relation_and_changes_no_other(wrong):
    good = [MIDDLE, (0.45, 0.45, 0.5, 0.5), (0.61, 0.45, 0.81, 0.65)]
    alone = spatial_relations(torch.tensor([good]))[0]
    found = spatial_relations(torch.tensor([[*good, wrong]]))[0]
    assert not found[3].any()
    assert not found[:, 3].any()
    assert found[:3, :3].equal(alone)


def test_a_box_that_reaches_outside_the_photo_ends_at_its_edge():
    reaches, ends = (0.7, -0.5, 1.6, 0.3), (0.7, 0.0, 1.0, 0.3)
    for other in (MIDDLE, (0.75, 0.05, 0.9, 0.2), (0.7, 0.0, 0.9, 0.3)):
        assert between(reaches, other) == between(ends, other)


def test_one_region_or_none_has_no_relations():
    assert spatial_relations(torch.tensor([[MIDDLE]])).tolist() == [[[0]]]
    assert spatial_relations(torch.zeros(2, 0, 4)).shape == (2, 0, 0)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("cells", [3, 7, 8])
def test_cells_of_a_grid_in_the_same_direction_have_the_same_relation(cells, half):
    """Whatever rounding does, in half precision too, as boxes are stored."""
    steps = torch.arange(cells) / cells
    top, left = torch.meshgrid(steps, steps, indexing="ij")
    boxes = torch.stack([left, top, left + 1 / cells, top + 1 / cells], -1).view(1, -1, 4)
    found = spatial_relations(boxes.half() if half else boxes)[0].view(cells, cells, cells, cells)
    for down, right, expected in [(0, 1, 11), (1, 1, 4), (1, 0, 5), (1, -1, 6), (0, -1, 7), (-1, 0, 9), (-1, 1, 10)]:
        seen = {
            found[y, x, y + down, x + right].item()
            for y in range(max(0, -down), min(cells, cells - down))
            for x in range(max(0, -right), min(cells, cells - right))
        }
        assert seen == {expected}


def relation_by_hand(a, b):
    """Section 3.2, for two usable boxes."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = width * height if width > 0 and height > 0 else 0.0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    if a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]:
        return 1
    if b[0] >= a[0] and b[1] >= a[1] and b[2] <= a[2] and b[3] <= a[3]:
        return 2
    if shared / union >= 0.5:
        return 3
    x, y = (b[0] + b[2] - a[0] - a[2]) / 2, (b[1] + b[3] - a[1] - a[3]) / 2
    if math.hypot(x, y) / math.hypot(1, 1) >= 0.5:
        return 0
    degrees = (math.degrees(math.atan2(y, x)) - 0.5) % 360  # half a degree is rounding's
    return 3 + (math.ceil(degrees / 45) or 8)


def test_random_boxes_against_plain_loops():
    draw = torch.Generator().manual_seed(0)
    corner, size = torch.rand(6, 24, 2, generator=draw) * 0.6, torch.rand(6, 24, 2, generator=draw) * 0.4 + 0.01
    boxes = torch.cat([corner, corner + size], -1)
    found, seen = spatial_relations(boxes), set()
    for photo, rows in zip(boxes.tolist(), found.tolist(), strict=True):
        for i, first in enumerate(photo):
            for j, second in enumerate(photo):
                assert rows[i][j] == (0 if i == j else relation_by_hand(first, second))
                seen.add(rows[i][j])
    assert seen == set(range(12))
