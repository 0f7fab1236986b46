"""A prefix captioner says what transformers says after the same embeddings; and what its language model may be."""

import json
import shutil

import pytest
import torch

from capscore.errors import UserError
from support import tiny_language_models as tiny
from support.decoders import beam_search, greedy
from tellapart import models
from tellapart.captioners import CAPTIONERS, language_models
from tellapart.captioners.lora import lora_parameters
from tellapart.data.streams import Inputs, Stream
from tellapart.models.networks import outline_network

CPU = torch.device("cpu")
MAPPERS = {
    "mlp": {"mapper": "mlp", "prefix": 3},
    "transformer": {"mapper": "transformer", "prefix": 3, "image_tokens": 2, "mapper_layers": 1, "mapper_heads": 2},
    "regions": {"mapper": "transformer", "prefix": 3, "image_tokens": 0, "mapper_layers": 1, "mapper_heads": 2},
}
IDENTITY = {"regions": {"name": "efficientnet_lite2", "image_size": 64, "grid": 2, "weights_sha256": "0"}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("language_models")
    return {kind: tiny.save(root / kind, kind) for kind in ("gpt2", "llama")}


def build(folder, mapper="mlp", **settings):
    torch.manual_seed(1)
    words = len(language_models.tokenizer(str(folder)))
    given = {"language_model": str(folder)} | MAPPERS[mapper] | settings
    return models.build_captioner("clipcap", given, vocab_size=words, feature_sizes={"regions": 8}).eval()


def save(captioner, folder, out):
    """A model folder; folder: of its language model"""
    models.describe(out, "clipcap", captioner, language_models.tokenizer(str(folder)), IDENTITY)
    models.save_weights(out / "model.safetensors", captioner)


def assert_same(captioner, other):
    tokens = words(captioner, 2, 5)
    with torch.no_grad():
        expected, found = (model.forward(tokens, model.encode(photos())) for model in (captioner, other))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def photos(count=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(4) < torch.tensor([[4], [2], [3]])[:count]
    return Inputs(regions=Stream(torch.randn(count, 4, 8, generator=draw), mask))


def words(captioner, rows, length):
    draw = torch.Generator().manual_seed(2)
    return torch.randint(captioner.config.vocab_size, (rows, length), generator=draw)


@pytest.mark.parametrize("mapper", MAPPERS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@torch.no_grad()
def test_logits_are_those_of_transformers(folders, kind, mapper):
    from transformers import AutoModelForCausalLM

    captioner, original = build(folders[kind], mapper), AutoModelForCausalLM.from_pretrained(folders[kind]).eval()
    memory, tokens = captioner.encode(photos()), words(captioner, 4, 5)
    prefix = memory[0].repeat_interleave(2, 0)
    assert prefix.shape[1] == 3
    # The first word follows the last embedding of the photo: what stands at the place of BOS is not read.
    embedded = torch.cat([prefix, original.get_input_embeddings()(tokens[:, 1:])], 1)
    expected = original(inputs_embeds=embedded).logits[:, 2:]
    torch.testing.assert_close(captioner.forward(tokens, memory), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_captions_are_those_of_generate(folders, beam):
    """Token for token; ours ends at a full stop, so theirs is given the same end."""
    from transformers import AutoModelForCausalLM

    captioner, original = build(folders["llama"]), AutoModelForCausalLM.from_pretrained(folders["llama"]).eval()
    tokenizer = language_models.tokenizer(str(folders["llama"]))
    memory = captioner.encode(photos(3))
    special = {"bos": tokenizer.bos, "eos": tokenizer.eos, "pad": tokenizer.pad, "banned": tokenizer.banned_ids}
    if beam == 1:
        ours = greedy(captioner, memory, max_words=8, **special).tokens
    else:
        ours = beam_search(captioner, memory, beam=beam, max_words=8, **special).tokens[:, 0]
    theirs = original.generate(
        inputs_embeds=memory[0],
        attention_mask=torch.ones(memory[0].shape[:2]),
        num_beams=beam,
        do_sample=False,
        max_new_tokens=8,
        eos_token_id=tokenizer.eos,
        pad_token_id=tokenizer.pad,
        bad_words_ids=[[tokenizer.pad]],
        length_penalty=0.0,
        early_stopping=False,
    )
    assert ours.tolist() == theirs.tolist()


def test_the_sizes_are_the_papers():
    """GPT-2 and CLIP ViT-B/32: 512 -> 3840 -> 7680, ten embeddings; or 8 layers over 40 and 40 tokens."""
    make, _ = CAPTIONERS["clipcap"].load()

    def outline(**settings):
        settings = make.complete({"vocab_size": 50257, "feature_size": 512, **settings})
        return outline_network(CAPTIONERS, "captioner", "clipcap", settings)

    mlp = outline()
    assert [tuple(weight.shape) for weight in mlp.mapper.parameters()] == [(3840, 512), (3840,), (7680, 3840), (7680,)]
    assert sum(weight.numel() for weight in mlp.language_model.parameters()) == 124_439_808  # GPT-2 small
    large = outline(mapper="transformer", prefix=40, frozen=True)
    assert large.mapper.linear.weight.shape == (40 * 768, 512)
    assert large.mapper.prefix.shape == (40, 768)
    assert len(large.mapper.layers) == 8
    # four matrices of 768 x 768, one bias of them, and 768 -> 1536 -> 768
    layer = 4 * 768**2 + 768 + 2 * 768 * 1536 + 1536 + 768 + 4 * 768
    assert sum(weight.numel() for weight in large.mapper.layers[0].parameters()) == layer


@pytest.mark.parametrize("settings", [{"frozen": True}, {"lora_rank": 2}], ids=str)
def test_a_checkpoint_holds_what_was_trained_only(folders, settings, tmp_path, monkeypatch):
    captioner = build(folders["gpt2"], **settings)
    for _, weight in lora_parameters(captioner):
        torch.nn.init.normal_(weight, std=0.3)
    save(captioner, folders["gpt2"], tmp_path)
    saved, _ = models.read_tensors(tmp_path / "model.safetensors")
    assert set(saved) == {name for name, weight in captioner.named_parameters() if weight.requires_grad}
    assert all(name.startswith("mapper.") or ".lora_" in name for name in saved)

    with pytest.raises(UserError, match=r"does not decide what is read.*TELLAPART_ENCODERS=FOLDER"):
        models.load(tmp_path, CPU)
    other = tmp_path / "clip"  # also has a tokenizer
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "clip"}')
    (other / "tokenizer.json").write_text("{}")
    monkeypatch.setenv("TELLAPART_ENCODERS", f"{other}:{folders['gpt2']}")
    loaded = models.load(tmp_path, CPU).captioner
    assert not list(lora_parameters(loaded))  # merged
    assert_same(captioner, loaded)

    monkeypatch.setenv("TELLAPART_ENCODERS", str(tiny.save(tmp_path / "another", "gpt2", seed=5)))
    with pytest.raises(UserError, match=r"trained over the language model .* and those of"):
        models.load(tmp_path, CPU)
    monkeypatch.delenv("TELLAPART_ENCODERS")
    shutil.copytree(folders["gpt2"], tmp_path / "language_model")  # a copy of its own: no other is needed
    assert_same(captioner, models.load(tmp_path, CPU).captioner)


def test_a_language_model_that_was_trained_with_the_mapper_is_in_the_checkpoint(folders, tmp_path):
    captioner = build(folders["llama"])
    save(captioner, folders["llama"], tmp_path)
    assert_same(captioner, models.load(tmp_path, CPU).captioner)  # without the folder of the language model
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["language_model"] == str(folders["llama"])
    config["settings"]["architecture"]["num_hidden_layers"] = 10**8
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="num_hidden_layers is too large"):
        models.load(tmp_path, CPU)


def test_captions_end_with_a_full_stop_and_eos_is_the_padding(folders):
    tokenizer = language_models.tokenizer(str(folders["gpt2"]))
    assert tokenizer._tokenizer.id_to_token(tokenizer.eos) == "."
    assert tokenizer.bos == tokenizer.pad != tokenizer.eos
    plain, spaced, two = map(tokenizer.encode, ("a red bus", "a red bus .", "a red bus. a cat."))
    assert plain == spaced == two
    assert tokenizer.eos not in plain
    assert tokenizer.decode([*plain, tokenizer.eos, *plain]) == "a red bus"


def test_without_a_token_for_a_full_stop_the_eos_of_the_model_ends_captions(folders, tmp_path):
    shutil.copytree(folders["gpt2"], tmp_path / "lm")
    file = tmp_path / "lm" / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["<stop>"] = vocabulary.pop(".")
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if "." not in pair]
    file.write_text(json.dumps(content))
    tokenizer = language_models.tokenizer(str(tmp_path / "lm"))
    assert tokenizer.eos == tokenizer.pad == tokenizer.bos


def test_a_few_tokens_that_round_the_number_up_are_never_chosen(tmp_path):
    folder = tiny.save(tmp_path / "lm", "llama")
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder)
    network.resize_token_embeddings(320)
    network.save_pretrained(folder)
    captioner = build(folder)
    assert captioner.forward(words(captioner, 2, 3), captioner.encode(photos())).shape[-1] == 300


REFUSED = {  # changes of config.json
    "eos_token_id is not a token": {"eos_token_id": None},
    "needs a program of its own": {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "own.Model"}},
    "'vit', which is no causal language model": {"model_type": "vit"},
    "n_layer is too large": {"n_layer": 10**9},
    "has 280 tokens, and captions are written in 300": {"vocab_size": 280},
    "has 50257 tokens, its tokenizer 300": {"vocab_size": 50257},
}


@pytest.mark.parametrize("message", REFUSED)
def test_language_models_that_cannot_be_used_are_refused_in_a_sentence(folders, message, tmp_path):
    folder = tiny.edit(shutil.copytree(folders["gpt2"], tmp_path / "lm"), **REFUSED[message])
    with pytest.raises(UserError, match=message) as refused:
        language_models.tokenizer(str(folder))
    assert "\n" not in str(refused.value)


def test_sources_that_are_no_causal_language_model_are_refused(folders, tmp_path, monkeypatch):
    from huggingface_hub import constants
    from transformers import BertConfig, BertLMHeadModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertLMHeadModel(BertConfig(vocab_size=40, **sizes)).save_pretrained(tmp_path / "bert")
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    for source, message in [
        (tmp_path / "bert", "no causal language model: its words depend on those that follow"),
        ("nobody/nothing", r"config.json of nobody/nothing was wanted .*local folder"),
        (tmp_path / "broken.gguf", r"broken.gguf is not a language model"),
        (tmp_path / "absent.gguf", "there is no language model"),
    ]:
        with pytest.raises(UserError, match=message) as refused:
            language_models.read(str(source))
        assert "\n" not in str(refused.value)
    assert not list((tmp_path / "cache" / "language_models").iterdir())
    settings = {"language_model": str(folders["gpt2"])}
    with pytest.raises(UserError, match=r"has 300 tokens, and captions are written in 301"):
        models.build_captioner("clipcap", settings, vocab_size=301, feature_sizes={"regions": 8})
