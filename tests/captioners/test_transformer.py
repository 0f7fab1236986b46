import pytest
import torch

from tellapart.captioners.transformer import Transformer, TransformerConfig, positions
from tellapart.data.streams import region_inputs

B, K, R, T, V = 3, 2, 5, 6, 11


@pytest.fixture
def captioner():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=V, feature_size=8, width=16, heads=4, decoder_layers=2, feed_forward=32)
    return Transformer(config).eval()


@pytest.fixture
def photos():
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(B, R, dtype=torch.bool)
    mask[1, 3:] = False
    return torch.randn(B, R, 8, generator=generator), mask


@pytest.fixture
def tokens():
    return torch.randint(V, (B * K, T), generator=torch.Generator().manual_seed(2))


def test_positions_are_those_of_the_paper():
    # "Attention is all you need", section 3.5: sin and cos of pos / 10000^(2i/d); the order of the columns is free
    table = positions(5, 4)[3]
    expected = torch.tensor([3.0, 3 / 10000 ** (2 / 4)])
    torch.testing.assert_close(table, torch.cat([expected.sin(), expected.cos()]))


def test_a_caption_longer_than_any_before_has_places_for_its_words(captioner, photos):
    memory = captioner.encode(region_inputs(*photos))
    long = torch.randint(V, (B, 70), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(captioner.forward(long, memory)[:, :6], captioner.forward(long[:, :6], memory))


def test_training_goes_on_after_a_validation_with_longer_captions(captioner, photos):
    with torch.inference_mode():
        captioner.forward(torch.zeros(B, 70, dtype=torch.long), captioner.encode(region_inputs(*photos)))
    assert not captioner.places.table.is_inference()
    captioner.train().forward(
        torch.zeros(B, 40, dtype=torch.long), captioner.encode(region_inputs(*photos))
    ).sum().backward()
    assert captioner.embed.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 10, "heads": 4},
        {"width": 9, "heads": 3},
        {"heads": 0},
        {"heads": -2},
        {"decoder_layers": 0},
        {"encoder_layers": -1},
    ],
    ids=str,
)
def test_settings_that_make_no_captioner_are_refused(settings):
    with pytest.raises(ValueError, match="must be"):
        Transformer(TransformerConfig(vocab_size=5, **settings))
