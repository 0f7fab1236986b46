"""What words attend to, against weights that are computed from a captioner's own parts."""

import pytest
import torch

from tellapart.captioners import CAPTIONERS
from tellapart.data.streams import Inputs, Stream
from tellapart.decoding.word_regions import attention, mean_over_regions
from tellapart.protocols.captioners import FEATURES, every_stream, tiny

BOS, CAPTION = 1, torch.tensor([4, 7, 5, 9])
WITHOUT = {"show_tell", "lstm_a3", "clipcap", "gl_rg"}  # they see one vector, or none of regions


def photo(regions=6, seed=3):
    torch.manual_seed(seed)
    return every_stream(torch.randn(1, regions, FEATURES))


@pytest.mark.parametrize("name", CAPTIONERS)
def test_weights_of_every_captioner_add_up_to_one(name):
    result = attention(tiny(name), photo(), CAPTION, bos=BOS)
    assert len(result.words) == len(CAPTION)
    for looks in result.words:
        assert bool(looks.regions) == (name not in WITHOUT)
        assert bool(looks.attributes) == (name == "glied")
        for weights in [*looks.regions, *looks.attributes]:
            assert weights.shape[1] == 6
            torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))


@pytest.mark.parametrize("count", [1, 5])  # five: as many regions as words stand before the last one
def test_words_before_are_not_taken_for_regions(count):
    result = attention(tiny("transformer"), photo(count), CAPTION, bos=BOS)
    assert [len(looks.regions) for looks in result.words] == [1] * len(CAPTION)  # one layer


def test_the_weights_of_up_down_are_those_of_its_additive_attention():
    """softmax of score(tanh(keys + query(output of the attention LSTM))), by a plain loop over the regions"""
    captioner, inputs = tiny("up_down"), photo()
    result = attention(captioner, inputs, CAPTION, bos=BOS)
    captured = []
    additive = captioner.attend
    handle = additive.query.register_forward_hook(lambda _module, _given, out: captured.append(out))
    with torch.inference_mode():
        memory = captioner.encode(inputs)
        state = captioner.start(memory)
        for place, token in enumerate([BOS, *CAPTION[:-1].tolist()]):
            _, state = captioner.step(torch.tensor([token]), state, memory)
            query = captured[-1].flatten()
            scores = [additive.score(torch.tanh(key + query)).item() for key in memory.keys[0]]
            expected = torch.tensor(scores).softmax(0)
            torch.testing.assert_close(mean_over_regions(result.words[place]), expected, atol=1e-5, rtol=1e-4)
    handle.remove()


def test_the_sources_of_glied_come_in_the_order_of_its_equations():
    """Eq. 7 among regions; then of a word Eq. 8 to attributes, Eq. 10 to groups, Eq. 11 to regions and attributes."""
    result = attention(tiny("glied"), photo(), CAPTION, bos=BOS)
    assert result.groups.shape == (6, 6)
    torch.testing.assert_close(result.groups.sum(1), torch.ones(6))
    heads = [([len(one) for one in looks.regions], [len(one) for one in looks.attributes]) for looks in result.words]
    assert heads == [([2, 1], [2, 1])] * len(CAPTION)  # the cross-modal pair has one head, the others all
    base = attention(tiny("glied", visual_distilling=False, local_distilling=False), photo(), CAPTION, bos=BOS)
    assert base.groups is None


def test_a_region_that_does_not_exist_has_no_weight():
    inputs = photo()
    mask = inputs["regions"].mask.clone()
    mask[:, 4:] = False
    hidden = Inputs({name: Stream(values, mask) for name, (values, _) in inputs.items()})
    for name in sorted(CAPTIONERS.keys() - WITHOUT):
        for looks in attention(tiny(name), hidden, CAPTION, bos=BOS).words:
            assert mean_over_regions(looks)[4:].abs().max() == 0, name
