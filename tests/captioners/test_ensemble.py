"""Several captioners as one: the mean of their probabilities, and the folders that may speak together."""

import json
import shutil

import pytest
import torch

from capscore.errors import UserError
from decoding.toy_captioner import BOS, EOS, IDS, PAD, UNK, TableCaptioner, ToyCaptioner, photos, table_of, unpadded
from support.decoders import beam_search, greedy
from tellapart import models
from tellapart.captioners.ensemble import Ensemble
from tellapart.data.streams import region_inputs
from tellapart.decoding import score

CAT, DOG = 4, 5
CPU = torch.device("cpu")


# --- arithmetic ---


def test_by_hand_two_that_disagree_find_what_both_find_likely():
    # One is sure of CAT, the other of DOG; both give UNK some chance, and the mean makes it no likelier: 0.45 and 0.2.
    tables = [
        table_of({BOS: {CAT: 0.5, UNK: 0.4, DOG: 0.1}}, vocab_size=6),
        table_of({BOS: {DOG: 0.5, UNK: 0.4, CAT: 0.1}}, vocab_size=6),
    ]
    together, memory = Ensemble([TableCaptioner(), TableCaptioner()]), tuple((table[None],) for table in tables)
    best = beam_search(together, memory, **IDS, n_best=3)
    assert unpadded(best.tokens[0], best.mask[0]) == [(UNK, EOS), (CAT, EOS), (DOG, EOS)]
    torch.testing.assert_close(best.logp.exp(), torch.tensor([[0.4, 0.3, 0.3]], dtype=torch.double))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_copies_of_a_captioner_are_that_captioner(count):
    alone = ToyCaptioner(vocab_size=8)
    together, photo = Ensemble([alone] * count), photos(5)
    options = {**IDS, "beam": 3, "n_best": 3, "max_words": 7, "banned": (PAD,)}
    best, same = (beam_search(c, c.encode(region_inputs(*photo)), **options) for c in (alone, together))
    assert torch.equal(best.tokens, same.tokens)
    torch.testing.assert_close(best.logp, same.logp)
    inputs = region_inputs(*photo)
    captions = greedy(alone, alone.encode(inputs), **IDS)
    scores = [score(c, c.encode(inputs), captions.tokens, captions.mask, bos=BOS) for c in (alone, together)]
    torch.testing.assert_close(*scores)


def test_probabilities_too_small_for_a_float_are_not_lost():
    table = torch.zeros(1, 6, 6)
    table[:, :, CAT] = -500.0  # exp(-500) is 0 in single precision
    together = Ensemble([TableCaptioner(), TableCaptioner()])
    logits, _ = together.step(torch.tensor([BOS]), ((), ()), ((table,), (table,)))
    assert logits[0, CAT].item() == pytest.approx(table[0, 0].log_softmax(0)[CAT].item())


# --- model folders ---


def another_model(folder, like, seed, words=None, **encoder):
    """A model folder as `like`, with other random weights; and with other words or another encoder, if asked for."""
    shutil.copytree(like, folder)
    config = json.loads((folder / "config.json").read_text())
    torch.manual_seed(seed)
    size = config["settings"]["vocab_size"] if words is None else len(words) + 4
    settings = config["settings"] | {"vocab_size": size}
    captioner = models.build(models.CAPTIONERS, "captioner", config["captioner"], settings)
    if words is not None:
        (folder / "vocabulary.json").write_text(json.dumps({"kind": "words", "words": words}))
    config |= {"settings": settings, "encoder": config["encoder"] | encoder}
    (folder / "config.json").write_text(json.dumps(config))
    models.save_weights(folder / "model.safetensors", captioner)
    return folder


def test_folders_are_loaded_together_and_the_hash_is_of_all(small_model, tmp_path):
    other = another_model(tmp_path / "other", small_model, seed=1)
    one, two = models.load(small_model, CPU), models.load(other, CPU)
    both = models.load(f"{small_model}+{other}", CPU)
    grid = torch.randn(2, 4, one.captioner.config.feature_size, generator=torch.Generator().manual_seed(0))
    tokens, captioners = torch.tensor([[BOS, 5], [BOS, 9]]), [model.captioner for model in (one, two, both)]
    p = [each.forward(tokens, each.encode(region_inputs(grid))).softmax(-1).detach() for each in captioners]
    torch.testing.assert_close(p[2], (p[0] + p[1]) / 2)
    hashes = {model.sha256 for model in (one, two, both, models.load(f"{small_model}+{small_model}", CPU))}
    assert len(hashes) == 4


def test_other_words_are_refused_with_the_first_that_differs(small_model, tmp_path):
    words = json.loads((small_model / "vocabulary.json").read_text())["words"]
    swapped = another_model(tmp_path / "swapped", small_model, seed=1, words=["dog", *words[1:]])
    with pytest.raises(UserError) as error:
        models.load(f"{small_model}+{swapped}", CPU)
    assert f"{small_model} and {swapped} have different vocabularies" in str(error.value)
    assert f"word 4 is {words[0]!r} in the first and 'dog' in the second" in str(error.value)
    longer = another_model(tmp_path / "longer", small_model, seed=1, words=[*words, "zebra"])
    with pytest.raises(UserError, match=f"word {4 + len(words)} is absent in the first and 'zebra' in the second"):
        models.load(f"{small_model}+{longer}", CPU)


def test_another_encoder_is_refused(small_model, tmp_path):
    other = another_model(tmp_path / "other", small_model, seed=1, image_size=96)
    with pytest.raises(UserError, match=f"{small_model} and {other} learned from features of different encoders"):
        models.load(f"{small_model}+{other}", CPU)


def test_a_folders_name_may_have_a_plus_in_it(small_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    another_model(tmp_path / "a+b", small_model, seed=1)
    members = {"a+b": ["a+b"], "a+b+plain": ["a+b", "plain"], "plain+a+b": ["plain", "a+b"], "plain": ["plain"]}
    members["a+b+a+b+a"] = ["a+b", "a+b", "a"]
    assert {name: models.members(name) for name in members} == members
    assert models.load("a+b", CPU).sha256 == models.load(tmp_path / "a+b", CPU).sha256


@pytest.mark.parametrize("name", ["plain+", "+plain", "plain++plain", "plain+nowhere"])
def test_a_member_that_is_not_there_is_a_wrong_request(name):
    with pytest.raises(UserError, match=r"there is no model 'nowhere'|a model on both sides of a plus"):
        models.load(name, CPU)


def test_nobody_is_no_ensemble():
    with pytest.raises(ValueError, match="needs a member"):
        Ensemble([])
