import pytest
import torch

from tellapart.captioners import select
from tellapart.captioners.transformer import Transformer, TransformerConfig, positions

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


def test_stepping_with_the_cache_says_what_the_whole_caption_says(captioner, photos, tokens):
    memory = captioner.encode(*photos)
    whole = captioner.forward(tokens, memory)
    state = select(captioner.start(memory), torch.arange(B).repeat_interleave(K))
    for t in range(T):
        logits, state = captioner.step(tokens[:, t], state, memory)
        torch.testing.assert_close(logits, whole[:, t], atol=1e-5, rtol=0)


def test_each_caption_sees_only_its_own_photo(captioner, photos, tokens):
    together = captioner.forward(tokens, captioner.encode(*photos))
    for i in range(B):
        alone = captioner.forward(
            tokens[i * K : (i + 1) * K], captioner.encode(photos[0][i : i + 1], photos[1][i : i + 1])
        )
        torch.testing.assert_close(together[i * K : (i + 1) * K], alone, atol=1e-5, rtol=0)


def test_no_word_sees_a_later_one(captioner, photos, tokens):
    memory = captioner.encode(*photos)
    changed = tokens.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % V
    before, after = captioner.forward(tokens, memory), captioner.forward(changed, memory)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_leaving_out_the_padding_changes_no_word(captioner, photos, tokens):
    memory = captioner.encode(*photos)
    lengths = torch.tensor([6, 1, 4, 3, 6, 2])
    spoken = torch.arange(T) < lengths[:, None]
    torch.testing.assert_close(
        captioner.forward(tokens, memory, spoken), captioner.forward(tokens, memory)[spoken], atol=1e-5, rtol=0
    )


def test_what_stands_where_no_region_is_changes_nothing(captioner, photos, tokens):
    features, mask = photos
    noise = features.masked_fill(~mask[..., None], 1e3)
    torch.testing.assert_close(
        captioner.forward(tokens, captioner.encode(features, mask)),
        captioner.forward(tokens, captioner.encode(noise, mask)),
    )


def test_regions_are_a_set(captioner, photos, tokens):
    features, mask = photos
    order = torch.tensor([4, 2, 0, 1, 3])
    torch.testing.assert_close(
        captioner.forward(tokens, captioner.encode(features, mask)),
        captioner.forward(tokens, captioner.encode(features[:, order], mask[:, order])),
        atol=1e-5,
        rtol=0,
    )


def test_positions_are_those_of_the_paper():
    # "Attention is all you need", section 3.5: sin and cos of pos / 10000^(2i/d); the order of the columns is free
    table = positions(5, 4)[3]
    expected = torch.tensor([3.0, 3 / 10000 ** (2 / 4)])
    torch.testing.assert_close(table, torch.cat([expected.sin(), expected.cos()]))


def test_a_caption_longer_than_any_before_has_places_for_its_words(captioner, photos):
    memory = captioner.encode(*photos)
    long = torch.randint(V, (B, 70), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(captioner.forward(long, memory)[:, :6], captioner.forward(long[:, :6], memory))


def test_training_goes_on_after_a_validation_with_longer_captions(captioner, photos):
    with torch.inference_mode():
        captioner.forward(torch.zeros(B, 70, dtype=torch.long), captioner.encode(*photos))
    assert not captioner.places.is_inference()
    captioner.train().forward(torch.zeros(B, 40, dtype=torch.long), captioner.encode(*photos)).sum().backward()
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
