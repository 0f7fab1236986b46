"""What holds for every captioner of the table, at a tiny size."""

import pytest
import torch

from captioners.every import FEATURES, SIZES, every_stream, padded, sizes_of, tiny
from support.decoders import beam_search, greedy, sample
from tellapart import models
from tellapart.captioners import CAPTIONERS, select
from tellapart.captioners.ensemble import Ensemble
from tellapart.data.batches import Batch
from tellapart.data.streams import Inputs, Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.decoding import score
from tellapart.objectives.cross_entropy import cross_entropy_step

WORDS = WordTokenizer(["a", "red", "bus", "cat", "on", "the", "bed"])
SAID = {"bos": WORDS.bos, "eos": WORDS.eos, "pad": WORDS.pad, "banned": WORDS.banned_ids}
B, K, R, T, V = 3, 2, 5, 6, len(WORDS)


@pytest.fixture(params=CAPTIONERS)
def name(request):
    return request.param


@pytest.fixture
def captioner(name):
    return tiny(name, V)


@pytest.fixture
def photos():
    """All streams: the second photo has three rows in each, the third one."""
    features = torch.randn(B, R, FEATURES, generator=torch.Generator().manual_seed(1))
    return every_stream(features, torch.arange(R) < torch.tensor([[R], [3], [1]]))


@pytest.fixture
def tokens():
    return torch.randint(V, (B * K, T), generator=torch.Generator().manual_seed(2))


def by_steps(captioner, tokens, memory):
    """Logits (N, T, V), one word after another."""
    state = select(captioner.start(memory), torch.arange(B).repeat_interleave(len(tokens) // B))
    logits = []
    for token in tokens.unbind(1):
        out, state = captioner.step(token, state, memory)
        logits.append(out)
    return torch.stack(logits, 1)


def test_forward_gives_each_word_of_each_caption_a_logit(captioner, photos, tokens):
    logits = captioner.forward(tokens, captioner.encode(photos))
    assert logits.shape == (B * K, T, V)
    assert logits.isfinite().all()


def test_every_weight_learns(captioner, photos, tokens):
    captioner.forward(tokens, captioner.encode(photos)).square().sum().backward()
    still = [name for name, weight in captioner.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not still


def test_stepping_says_what_the_whole_caption_says(captioner, photos, tokens):
    memory = captioner.encode(photos)
    torch.testing.assert_close(
        by_steps(captioner, tokens, memory), captioner.forward(tokens, memory), atol=1e-5, rtol=0
    )


def test_a_cached_state_is_as_good_as_all_words_anew(captioner, photos, tokens):
    memory = captioner.encode(photos)
    stepped = by_steps(captioner, tokens, memory)
    for length in range(1, T + 1):
        anew = captioner.forward(tokens[:, :length], captioner.encode(photos))[:, -1]
        torch.testing.assert_close(stepped[:, length - 1], anew, atol=1e-5, rtol=0)


def test_each_caption_sees_only_its_own_photo(captioner, photos, tokens):
    together = captioner.forward(tokens, captioner.encode(photos))
    for i in range(B):
        rows = slice(i * K, (i + 1) * K)
        alone = captioner.forward(tokens[rows], captioner.encode(photos.select([i])))
        torch.testing.assert_close(together[rows], alone, atol=1e-5, rtol=0)


def test_what_is_said_depends_on_the_photo(captioner, photos, tokens):
    same = tokens[:1].expand(B, -1)
    first, second, third = captioner.forward(same, captioner.encode(photos))
    assert not torch.allclose(first, second, atol=1e-4)
    assert not torch.allclose(second, third, atol=1e-4)


def test_no_word_sees_a_later_one(captioner, photos, tokens):
    memory = captioner.encode(photos)
    changed = tokens.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % V
    before, after = captioner.forward(tokens, memory), captioner.forward(changed, memory)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_leaving_out_the_padding_of_captions_changes_no_word(captioner, photos, tokens):
    memory = captioner.encode(photos)
    token_mask = torch.arange(T) < torch.tensor([6, 1, 4, 3, 6, 2])[:, None]
    torch.testing.assert_close(
        captioner.forward(tokens, memory, token_mask), captioner.forward(tokens, memory)[token_mask], atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("filler", [1e3, -7.0])
def test_more_places_for_regions_change_nothing(captioner, photos, tokens, filler):
    """Padding: whatever stands where no region is, and however much of it there is."""
    torch.testing.assert_close(
        captioner.forward(tokens, captioner.encode(photos)),
        captioner.forward(tokens, captioner.encode(padded(photos, 2, filler))),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("places", [0, 1, 4])
def test_a_photo_of_which_nothing_was_found_is_captioned_all_the_same(captioner, photos, tokens, places):
    """No row in any stream, with or without room for some: finite, whatever the room, and of no influence on others."""
    mask = torch.zeros(1, places, dtype=torch.bool)
    nothing = Inputs((name, Stream(torch.zeros(1, places, SIZES[name]), mask)) for name in photos)
    words = tokens[:K]
    alone = captioner.forward(words, captioner.encode(nothing))
    assert alone.isfinite().all()
    together = captioner.forward(words.repeat(B, 1), captioner.encode(without_second(photos)))
    torch.testing.assert_close(together[K : 2 * K], alone, atol=1e-5, rtol=0)
    others = captioner.forward(words, captioner.encode(photos.select([0])))
    torch.testing.assert_close(together[:K], others, atol=1e-5, rtol=0)


def test_a_photo_without_regions_leaves_the_gradients_numbers(captioner, photos, tokens):
    captioner.forward(tokens, captioner.encode(without_second(photos))).square().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in captioner.parameters() if weight.grad is not None)


def without_second(photos):
    """The same photos, but nothing was found in the second."""
    kept = torch.tensor([[True], [False], [True]])
    return Inputs((name, Stream(values, mask & kept)) for name, (values, mask) in photos.items())


def test_regions_are_a_set(captioner, photos, tokens):
    order = torch.tensor([4, 2, 0, 1, 3])
    others = Inputs((name, Stream(values[:, order], mask[:, order])) for name, (values, mask) in photos.items())
    others["relations"].values[..., :2] = order.argsort()[others["relations"].values[..., :2].long()].float()
    torch.testing.assert_close(
        captioner.forward(tokens, captioner.encode(photos)),
        captioner.forward(tokens, captioner.encode(others)),
        atol=1e-5,
        rtol=0,
    )


def test_the_order_of_the_batch_is_that_of_the_answers(captioner, photos, tokens):
    order = torch.tensor([2, 0, 1])
    rows = (order[:, None] * K + torch.arange(K)).flatten()
    torch.testing.assert_close(
        captioner.forward(tokens, captioner.encode(photos))[rows],
        captioner.forward(tokens[rows], captioner.encode(photos.select(order))),
        atol=1e-5,
        rtol=0,
    )


def test_memory_and_state_are_rows_that_can_be_chosen(captioner, photos, tokens):
    order = torch.tensor([2, 0])
    memory = captioner.encode(photos)
    _, state = captioner.step(tokens[::K, 0], captioner.start(memory), memory)
    whole, _ = captioner.step(tokens[::K, 1], state, memory)
    chosen, _ = captioner.step(tokens[::K, 1][order], select(state, order), select(memory, order))
    torch.testing.assert_close(chosen, whole[order], atol=1e-5, rtol=0)


def test_greedy_says_the_likeliest_word_again_and_again(captioner, photos):
    memory = captioner.encode(photos)
    said = greedy(captioner, memory, max_words=T, **SAID)
    assert not torch.isin(said.tokens[said.mask], torch.tensor(list(WORDS.banned_ids))).any()
    for row in range(B):
        words = [WORDS.bos]
        for _ in range(int(said.mask[row].sum())):
            alone = captioner.encode(photos.select([row]))
            logits = captioner.forward(torch.tensor([words]), alone)[0, -1]
            logits[list(WORDS.banned_ids)] = -torch.inf
            words.append(int(logits.argmax()))
        assert words[1:] == said.tokens[row][said.mask[row]].tolist()


def test_samples_come_with_their_log_p(captioner, photos):
    memory = captioner.encode(photos)
    words = {"bos": WORDS.bos, "eos": WORDS.eos, "pad": WORDS.pad}
    drawn = sample(captioner, memory, samples=4, max_words=T, generator=torch.Generator().manual_seed(0), **words)
    assert len(drawn.tokens) == 4 * B
    again = score(captioner, memory, drawn.tokens, drawn.mask, bos=WORDS.bos)
    torch.testing.assert_close(drawn.logp, again, atol=1e-5, rtol=0)


def test_a_beam_finds_captions_at_least_as_likely_as_greedy(captioner, photos):
    memory = captioner.encode(photos)
    best = beam_search(captioner, memory, beam=4, n_best=4, max_words=T, **SAID)
    simple = greedy(captioner, memory, max_words=T, **SAID)
    assert (best.logp[:, 0] >= simple.logp.sum(1) - 1e-5).all()
    for k in range(4):
        again = score(captioner, memory, best.tokens[:, k], best.mask[:, k], bos=WORDS.bos).sum(1)
        torch.testing.assert_close(best.logp[:, k], again, atol=1e-5, rtol=0)


def test_it_learns_a_caption_by_heart(captioner, photos):
    """Cross-entropy: of three photos, each is given a caption of its own, until greedy says it."""
    captions = torch.tensor(
        [
            [*WORDS.encode("a red bus"), WORDS.eos],
            [*WORDS.encode("the cat on"), WORDS.eos],
            [*WORDS.encode("a bed on"), WORDS.eos],
        ]
    )
    batch = Batch(torch.arange(B).numpy(), photos, captions, captions != WORDS.pad)
    optimizer = torch.optim.Adam(captioner.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss, *_ = cross_entropy_step(captioner.train(), batch, bos=WORDS.bos)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < 1 < losses[0]
    said = greedy(captioner.eval(), captioner.encode(photos), max_words=T, **SAID)
    assert said.tokens.tolist() == captions.tolist()


def test_a_saved_captioner_speaks_as_before(name, captioner, photos, tokens, tmp_path):
    identity = {"name": "efficientnet_lite2", "image_size": 64, "grid": 2, "weights_sha256": "0"}
    models.describe(tmp_path, name, captioner, WORDS, dict.fromkeys(sizes_of(name), identity))
    models.save_weights(tmp_path / "model.safetensors", captioner)
    loaded = models.load(tmp_path, torch.device("cpu")).captioner
    torch.testing.assert_close(
        loaded.forward(tokens, loaded.encode(photos)),
        captioner.forward(tokens, captioner.encode(photos)),
        atol=1e-6,
        rtol=0,
    )


def test_two_of_a_kind_speak_as_one(name, captioner, photos, tokens):
    """Ensembles: the mean of the two probabilities at each word, whole captions or step by step."""
    other = tiny(name, V, seed=1)
    both = Ensemble([captioner, other])
    memory = both.encode(photos)
    said = both.forward(tokens, memory)
    mean = sum(one.forward(tokens, one.encode(photos)).softmax(-1) for one in (captioner, other)) / 2
    torch.testing.assert_close(said.exp(), mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(by_steps(both, tokens, memory), said, atol=1e-5, rtol=0)
    best = beam_search(both, memory, beam=3, max_words=T, **SAID)
    again = score(both, memory, best.tokens[:, 0], best.mask[:, 0], bos=WORDS.bos).sum(1)
    torch.testing.assert_close(best.logp[:, 0], again, atol=1e-5, rtol=0)


def test_captioners_of_all_kinds_speak_as_one(photos):
    everyone = Ensemble([tiny(name, V) for name in CAPTIONERS])
    memory = everyone.encode(photos)
    best = beam_search(everyone, memory, beam=3, max_words=T, **SAID)
    again = score(everyone, memory, best.tokens[:, 0], best.mask[:, 0], bos=WORDS.bos).sum(1)
    torch.testing.assert_close(best.logp[:, 0], again, atol=1e-5, rtol=0)
