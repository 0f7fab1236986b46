"""What words rest on, by a captioner of which it is known."""

import pytest
import torch

from tellapart.captioners import CAPTIONERS
from tellapart.data.streams import region_inputs
from tellapart.decoding.word_regions import needed, windows, windows_a_side
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
