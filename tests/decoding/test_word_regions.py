"""What words rest on, by a captioner of which it is known; and what they attend to, by a captioner's own parts."""

import pytest
import torch

from tellapart.captioners import CAPTIONERS
from tellapart.data.streams import Inputs, Stream, region_inputs
from tellapart.decoding.word_regions import attention, mean_over_regions, needed, windows, windows_a_side
from tellapart.protocols.captioners import FEATURES, every_stream, tiny


@pytest.mark.parametrize("side", [2, 3, 5, 7, 8, 14])
def test_windows_hide_every_cell_and_never_all_of_them(side):
    hidden = windows(side)
    assert hidden.shape == (windows_a_side(side) ** 2, side * side)
    assert hidden.any(0).all()
    assert not hidden.all(1).any()
    assert (hidden.sum(1) > 0).all()


def test_a_window_is_a_square_around_its_place():
    by_row = windows(8).view(4, 4, 8, 8)
    assert by_row[0, 0].nonzero().tolist() == [[row, column] for row in range(3) for column in range(3)]
    assert by_row[1, 2].nonzero().tolist() == [[row, column] for row in (1, 2, 3, 4) for column in (3, 4, 5, 6)]


class Counting:
    """Says word w with log p = the sum of feature w over the regions that it sees."""

    def encode(self, inputs):
        features, mask = inputs["regions"]
        return (features * mask[..., None]).sum(1)  # (B, D)

    def forward(self, tokens, memory, token_mask=None):
        return memory[:, None].expand(-1, tokens.shape[1], -1)[token_mask]


def test_a_word_needs_the_cells_that_speak_for_it_and_no_word_needs_what_speaks_against_it():
    features = torch.zeros(64, 3)
    features[0, 1] = 2.0  # word 1 stands in the corner at the top left
    features[63, 2] = -1.0  # word 2 would be likelier without the corner at the bottom right
    need = needed(Counting(), region_inputs(features[None]), torch.tensor([1, 2]), side=8, bos=0).view(2, 4, 4)
    logits = torch.tensor([0.0, 2.0, -1.0])
    hidden = torch.tensor([0.0, 0.0, -1.0])
    expected = (logits.log_softmax(0) - hidden.log_softmax(0))[1]
    assert need[0].nonzero().tolist() == [[0, 0], [3, 3]]  # without word 2's corner, word 2 takes some of its share
    assert need[0, 0, 0].item() == pytest.approx(expected.item(), abs=1e-6)
    assert need[1, 3, 3] == 0


@pytest.mark.parametrize("name", sorted(CAPTIONERS.keys() - {"gl_rg"}))  # which sees no regions
def test_words_of_every_captioner_can_be_asked(name):
    photo = every_stream(torch.randn(1, 4, FEATURES, generator=torch.Generator().manual_seed(0)))
    need = needed(tiny(name), photo, torch.tensor([5, 6, 2]), side=2, bos=1)
    assert need.shape == (3, 4)
    assert need.isfinite().all()
    assert (need > 0).any()


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
