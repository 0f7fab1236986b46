import pytest
import torch

from decoding.toy_captioner import BOS, EOS, IDS, PAD, ToyCaptioner, log_probability, padded, photos, toy
from support.decoders import beam_search, greedy
from tellapart.data.streams import region_inputs
from tellapart.decoding import caption_mask, score


def test_the_mask_ends_with_the_first_eos():
    tokens = torch.tensor([[4, EOS, PAD], [4, 5, 4], [EOS, EOS, 4], [4, 5, EOS]])
    expected = [[True, True, False], [True, True, True], [True, False, False], [True, True, True]]
    assert caption_mask(tokens, EOS).tolist() == expected
    assert caption_mask(tokens.view(2, 2, 3), EOS).shape == (2, 2, 3)


def test_the_mask_holds_where_padding_and_eos_are_one_id():
    assert caption_mask(torch.tensor([[4, 0, 0], [0, 0, 0]]), 0).tolist() == [[True, True, False], [True, False, False]]


def test_score_is_the_log_p_of_every_word_and_zero_elsewhere():
    captioner, memory, _ = toy(2)
    captions = [(4, 5, EOS), (EOS,), (5, 5, 5)]
    tokens, mask = (part.repeat(2, 1) for part in padded(captions, 3))
    logp = score(captioner, memory, tokens, mask, bos=BOS)
    assert logp.shape == tokens.shape
    assert (logp[~mask] == 0).all()
    torch.testing.assert_close(logp.sum(1).view(2, 3), log_probability(captioner, memory, captions))


def test_what_stands_in_the_padding_changes_nothing():
    captioner, memory, _ = toy(2)
    tokens, mask = padded([(4, EOS), (4, 5, EOS)], 4)
    other = tokens.where(mask, 5)
    torch.testing.assert_close(
        score(captioner, memory, tokens, mask, bos=BOS), score(captioner, memory, other, mask, bos=BOS)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.double])
@pytest.mark.parametrize("banned", [(), (PAD, BOS)])
def test_greedy_and_beam_report_the_log_p_that_score_finds(dtype, banned):
    captioner = ToyCaptioner(vocab_size=8).to(dtype)
    features, regions = photos(5)
    memory = captioner.encode(region_inputs(features.to(dtype), regions))
    rollout = greedy(captioner, memory, **IDS, max_words=7, banned=banned)
    again = score(captioner, memory, rollout.tokens, rollout.mask, bos=BOS)
    torch.testing.assert_close(rollout.logp, again, atol=1e-5, rtol=0)

    best = beam_search(captioner, memory, **IDS, beam=4, n_best=3, max_words=7, banned=banned, length_penalty=0.6)
    again = score(captioner, memory, best.tokens.flatten(0, 1), best.mask.flatten(0, 1), bos=BOS)
    torch.testing.assert_close(best.logp.flatten(), again.sum(1), atol=1e-5, rtol=0)


def test_half_precision_logits_are_summed_in_single_precision():
    class Half(ToyCaptioner):
        def step(self, token, state, memory):
            logits, state = super().step(token, state, memory)
            return logits.bfloat16(), state

    captioner = Half()
    memory = captioner.encode(region_inputs(*photos(2)))
    assert greedy(captioner, memory, **IDS).logp.dtype == torch.float32
    assert beam_search(captioner, memory, **IDS).logp.dtype == torch.float32
