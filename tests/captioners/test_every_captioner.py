"""What holds for every captioner of the table, at a tiny size."""

import pytest
import torch

from capscore.errors import UserError
from support.decoders import beam_search, greedy
from tellapart import models
from tellapart.captioners import CAPTIONERS, by_steps
from tellapart.captioners.ensemble import Ensemble
from tellapart.data.batches import Batch
from tellapart.data.streams import Inputs, Stream
from tellapart.decoding import score
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.protocols.captioners import WORDS, B, CaptionerCase, T, V, sizes_of, tiny

RULES = {"bos": WORDS.bos, "eos": WORDS.eos, "pad": WORDS.pad, "banned": WORDS.banned_ids, "max_words": T}


@pytest.fixture(params=CAPTIONERS)
def case(request):
    return CaptionerCase(request.param)


@pytest.mark.parametrize("check", CaptionerCase.checks())
def test_it_keeps_its_promise(case, check):
    getattr(case, check)()


def test_regions_are_a_set(case):
    order = torch.tensor([4, 2, 0, 1, 3])
    others = Inputs((name, Stream(values[:, order], mask[:, order])) for name, (values, mask) in case.photos.items())
    others["relations"].values[..., :2] = order.argsort()[others["relations"].values[..., :2].long()].float()
    torch.testing.assert_close(case._logits(photos=others), case._logits(), atol=1e-5, rtol=0)


def test_it_learns_a_caption_by_heart(case):
    """Cross-entropy: of three photos, each is given a caption of its own, until greedy says it."""
    captioner = case.captioner
    captions = torch.tensor([[*WORDS.encode(text), WORDS.eos] for text in ("a red bus", "the cat on", "a bed on")])
    batch = Batch(torch.arange(B).numpy(), case.photos, captions, captions != WORDS.pad)
    optimizer = torch.optim.Adam(captioner.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss, *_ = cross_entropy_step(captioner.train(), batch, bos=WORDS.bos)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < 1 < losses[0]
    assert greedy(captioner.eval(), captioner.encode(case.photos), **RULES).tokens.tolist() == captions.tolist()


@pytest.mark.parametrize("name", CAPTIONERS)
def test_a_captioner_that_is_saved_and_loaded_gives_the_same_logits(name, tmp_path):
    case, identity = CaptionerCase(name), {"name": "efficientnet_lite2", "image_size": 64, "grid": 2}
    expected = case._logits()
    identities = dict.fromkeys(sizes_of(name), identity | {"weights_sha256": "0"})
    models.describe(tmp_path, name, case.captioner, WORDS, identities)
    models.save_weights(tmp_path / "model.safetensors", case.captioner)
    case.captioner = models.load(tmp_path, torch.device("cpu")).captioner
    torch.testing.assert_close(case._logits(), expected, atol=1e-6, rtol=0)


def test_captioners_of_all_kinds_are_an_ensemble():
    """The mean of their probabilities at each word, whole captions or step by step."""
    members, case = [tiny(name) for name in CAPTIONERS], CaptionerCase("transformer")
    case.captioner = together = Ensemble(members)
    memory, logits = together.encode(case.photos), case._logits()
    mean = sum(member.forward(case.tokens, member.encode(case.photos)).softmax(-1) for member in members) / len(members)
    torch.testing.assert_close(logits.exp(), mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(by_steps(together, case.tokens, memory, B), logits, atol=1e-5, rtol=0)
    best = beam_search(together, memory, beam=3, **RULES)
    again = score(together, memory, best.tokens[:, 0], best.mask[:, 0], bos=WORDS.bos).sum(1)
    torch.testing.assert_close(best.logp[:, 0], again, atol=1e-5, rtol=0)


OFF = dict.fromkeys(["visual_distilling", "attribute_distilling", "global_aspect", "local_distilling"], False)
VARIANTS = [  # settings by which a captioner computes something else
    ("show_tell", {"every_step": True}),
    ("gl_rg", {"every_step": True, "adaptive": True}),
    ("meshed_memory", {"norm_each": True}),
    ("x_lan", {"encoder_layers": 0, "decoder_layers": 2}),
    ("glied", OFF),
    *(("glied", OFF | {switch: True}) for switch in OFF),
    ("glied", {"attributes_attend": True}),
    ("glied", OFF | {"attribute_distilling": True, "attributes_attend": True}),
    ("glied", {"semantic_aspect": True, "weigh_attributes": True}),
]


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=str)
def test_a_variant_steps_as_it_goes_forward_and_learns_with_all_its_weights(name, settings):
    case = CaptionerCase(name)
    case.captioner = tiny(name, **settings)
    case.steps_are_forward()
    case.every_weight_learns()


HEADS = [{"width": 10, "heads": 4}, {"width": 9, "heads": 3}, {"heads": 0}, {"heads": -2}]
REFUSED = [
    *(("transformer", settings) for settings in (*HEADS, {"decoder_layers": 0}, {"encoder_layers": -1})),
    *(("meshed_memory", settings) for settings in (*HEADS, {"decoder_layers": 0}, {"encoder_layers": 0})),
    *(("glied", settings) for settings in (*HEADS, {"attributes_size": 3})),
    ("glied", {"attribute_distilling": False, "attributes_attend": True}),
    ("glied", {"global_aspect": False, "semantic_aspect": True}),
    *(("x_lan", settings) for settings in (HEADS[0], {"heads": 0}, {"decoder_layers": 0}, {"encoder_layers": -1})),
    ("gcn_lstm", {"boxes_size": 5}),  # must have 4 numbers
    ("gcn_lstm", {"boxes_size": 4, "relations_size": 2}),
    ("gcn_lstm", {}),  # no graph
    ("gl_rg", {}),  # no stream
    ("gl_rg", {"words_size": 8, "joint": True, "adaptive": True}),
]


@pytest.mark.parametrize(("name", "settings"), REFUSED, ids=str)
def test_settings_that_make_no_captioner_are_refused(name, settings):
    make, config = CAPTIONERS[name].load()
    with pytest.raises(ValueError, match=r"must|needs? "):
        make(config(vocab_size=5, **settings))


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("gl_rg", {"regions": 8}, r"inputs\.regions: gl_rg takes no such stream; it takes words, actions"),
        ("gl_rg", {}, "it needs at least one stream"),
        ("glied", {"regions": 8}, "glied takes a stream 'attributes' too"),
    ],
)
def test_a_captioner_is_built_for_its_streams_alone(name, sizes, message):
    with pytest.raises(UserError, match=message):
        models.build_captioner(name, {}, vocab_size=V, feature_sizes=sizes)
