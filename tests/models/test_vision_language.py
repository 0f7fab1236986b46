"""Vision-language models of transformers as captioners: against transformers' own `generate`, on tiny saved folders."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers", reason="these models are loaded with transformers")

import tellapart
from capscore.errors import UserError
from encoders import tiny_backbones
from support import tiny_vlms
from tellapart.captioners import select
from tellapart.captioners.vision_language import Generates, VisionLanguage
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules, Search
from tellapart.decoding.sample import sample
from tellapart.decoding.score import score
from tellapart.models import vision_language

CPU = torch.device("cpu")
PLAIN = ("blip", "git", "llava", "idefics3")  # whose processors transformers builds here by itself


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vlms")
    return {name: make(root / name) for name, make in tiny_vlms.TINY.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(1)
    sizes = [(90, 64), (64, 100), (50, 50)]
    for i, size in enumerate(sizes):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return [str(folder / f"{i}.png") for i in range(len(sizes))]


def memory_of(captioner, files):
    return captioner._shown([captioner.streams.load(file) for file in files])[1]


def generated(folder: Path, kind: str, prompt: str, files: list[str], banned, beam: int) -> list[list[int]]:
    """As the documentation of transformers does it, one photo after the other."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    network, processor = (
        AutoModelForImageTextToText.from_pretrained(folder).eval(),
        AutoProcessor.from_pretrained(folder),
    )
    text = prompt if kind in ("blip", "git") else f"<image>\n{prompt}"
    found = []
    for file in files:
        inputs = processor(images=Image.open(file).convert("RGB"), text=text, return_tensors="pt")
        if kind == "git":  # a caption goes on from the prompt, not from its end
            inputs = {"pixel_values": inputs["pixel_values"], "input_ids": inputs["input_ids"][:, :-1]}
        search = {"num_beams": beam, "length_penalty": 0.0, "early_stopping": "never"} if beam > 1 else {}
        length = inputs["input_ids"].shape[1] - (kind == "blip")
        with torch.no_grad():
            out = network.generate(**inputs, **search, max_new_tokens=12, do_sample=False, suppress_tokens=list(banned))
        tokens = out[0, length:].tolist()
        end = tiny_vlms.SEP
        found.append(tokens[: tokens.index(end) + 1] if end in tokens else tokens)
    return found


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", PLAIN)
def test_greedy_and_beam_say_what_generate_says(folders, files, kind, beam):
    captioner = tellapart.load(folders[kind], prompt="a photo of the")
    assert isinstance(captioner.model.captioner, VisionLanguage)
    tokenizer = captioner.model.tokenizer
    with torch.no_grad():
        rules = Rules.of(tokenizer, max_words=12)
        best = beam_search(captioner.model.captioner, memory_of(captioner, files), rules, beam=beam)
    ours = [row[mask].tolist() for row, mask in zip(best.tokens[:, 0], best.mask[:, 0], strict=True)]
    assert ours == generated(folders[kind], kind, "a photo of the", files, tokenizer.banned_ids, beam)
    assert len({tuple(row) for row in ours}) > 1  # the photos count


@pytest.mark.parametrize("kind", ["git", "llava", "qwen2_vl"])
def test_a_model_that_cannot_be_taken_apart_is_asked_by_generate(folders, files, kind, monkeypatch):
    own = tellapart.load(folders[kind])
    monkeypatch.setattr(vision_language, "_taken_apart", lambda *_: None)
    other = tellapart.load(folders[kind])
    assert isinstance(other.model.captioner, Generates)
    for beam in (1, 3):
        expected = list(own.caption(files, search=Search(beam=beam)))
        found = list(other.caption(files, search=Search(beam=beam)))
        assert [one.text for one in found] == [one.text for one in expected]
        np.testing.assert_allclose([one.logprob for one in found], [one.logprob for one in expected], rtol=1e-4)
    (proposed,) = other.propose(files[:1], Search(), samples=4)
    assert len(proposed.candidates) > 3
    assert list(other.propose(files[:1], Search(), samples=4)) == [proposed]  # a photo's samples are its own


@pytest.mark.parametrize("kind", tiny_vlms.TINY)
def test_stepping_equals_forward_and_photos_do_not_affect_each_other(folders, files, kind):
    captioner = tellapart.load(folders[kind])
    network, memory = captioner.model.captioner, memory_of(captioner, files)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(tiny_vlms.SPECIAL), tiny_vlms.VOCABULARY, (6, 5), generator=draw)  # two of each photo
    with torch.no_grad():
        at_once = network(tokens, memory)
        state, steps = select(network.start(memory), torch.arange(3).repeat_interleave(2)), []
        for token in tokens.unbind(1):
            logits, state = network.step(token, state, memory)
            steps.append(logits)
        torch.testing.assert_close(torch.stack(steps, 1), at_once, atol=1e-4, rtol=1e-4)
        alone = network(tokens[2:4], memory_of(captioner, files[1:2]))
        torch.testing.assert_close(alone, at_once[2:4], atol=1e-4, rtol=1e-4)
        mask = torch.tensor([[True] * 3 + [False] * 2] * 6)
        torch.testing.assert_close(network(tokens, memory, mask), at_once[mask])


@pytest.mark.parametrize("kind", ["blip", "git", "llava"])
def test_the_policy_gradient_reaches_the_language_side_alone(folders, files, kind):
    captioner = tellapart.load(folders[kind])
    network = captioner.model.captioner
    assert len(network.frozen_names) == len(list(network.named_parameters()))
    for weight in network.language.parameters():
        weight.requires_grad_(True)
    rules = Rules.of(captioner.model.tokenizer, max_words=6)
    torch.manual_seed(0)
    memory = tuple(part.clone() for part in memory_of(captioner, files))
    with torch.no_grad():
        drawn = sample(network, memory, rules, samples=2)
    logp = score(network, memory, drawn.tokens, drawn.mask, bos=rules.bos)
    (logp.sum(1) * torch.arange(6.0)).sum().backward()
    trained = {name for name, weight in network.named_parameters() if weight.grad is not None}
    assert trained
    assert not any("vision" in name or "image_encoder" in name for name in trained)
    assert trained.isdisjoint(network.frozen_names)
    assert (
        sum(float(weight.grad.abs().sum()) for weight in network.language.parameters() if weight.grad is not None) > 0
    )


def test_a_photo_of_any_shape_and_any_kind_is_captioned(folders, tmp_path):
    Image.new("RGB", (3, 4000), "red").save(tmp_path / "thin.png")
    for kind in ("git", "qwen2_vl"):
        captioner = tellapart.load(folders[kind])
        from_file = captioner.caption(tmp_path / "thin.png")
        assert captioner.caption(Image.open(tmp_path / "thin.png")).text == from_file.text


def test_a_saved_model_says_the_same_and_keeps_its_prompt(folders, files, tmp_path):
    captioner = tellapart.load(folders["blip"], prompt="a red bus")
    captioner.save_pretrained(tmp_path / "mine")
    again = tellapart.load(tmp_path / "mine")
    assert [one.text for one in again.caption(files)] == [one.text for one in captioner.caption(files)]
    other = tellapart.load(folders["blip"], prompt="the dog")
    assert [one.text for one in other.caption(files)] != [one.text for one in captioner.caption(files)]


@pytest.fixture
def broken(folders, tmp_path):
    """A copy of LLaVA's folder whose config.json has other values."""

    def make(**changes):
        folder = Path(shutil.copytree(folders["llava"], tmp_path / "broken"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    return make


def refusal(folder) -> str:
    with pytest.raises(UserError) as refused:
        tellapart.load(folder)
    assert len(str(refused.value).splitlines()) == 1
    assert Path(folder).name in str(refused.value)
    return str(refused.value)


def test_a_model_that_needs_a_program_of_its_own_or_does_not_caption_is_refused(broken, tmp_path):
    folder = broken(model_type="their_own", auto_map={"AutoConfig": "configuration_their_own.TheirConfig"})
    (folder / "configuration_their_own.py").write_text("raise SystemExit('ran')")
    assert "code from its repository" in refusal(folder)
    assert "does not caption photos" in refusal(tiny_backbones.save(tmp_path / "bert", "bert"))


def test_a_tokenizer_of_another_model_is_refused(broken):
    folder = broken()
    tokenizer = tiny_vlms.words(ends=False)
    tokenizer.add_tokens([f"word{i}" for i in range(9)])
    tokenizer.save_pretrained(folder)
    assert "they do not match" in refusal(folder)


def test_a_model_that_cannot_end_is_refused(broken):
    folder = broken()
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        for part in (content, content.get("text_config", {})):
            part |= {"eos_token_id": None, "eos_token": None}
        (folder / name).write_text(json.dumps(content))
    assert "must know how to end" in refusal(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"image_seq_length": 10**9},  # tokens
        {"size": {"height": 60_000, "width": 60_000}},
        {"size": {"shortest_edge": 12_000}},
        {"crop_size": {"height": 12_000, "width": 12_000}},
        {"size": {"shortest_edge": 5e8}},
        {"image_grid_pinpoints": [[336, 99_999]]},
        {"image_grid_pinpoints": [[336, 672]] * 9_999},
        {"max_pixels": 10**12},
        {"max_patches": 4_000},  # tiles of 448 pixels
        {"size": {"longest_edge": 4_000}, "max_image_size": {"longest_edge": 4}},
    ],
)
def test_photos_that_no_memory_has_are_refused_before_any_is_made_ready(broken, settings, monkeypatch):
    monkeypatch.setattr(vision_language, "_processor", lambda *_: pytest.fail("made"))
    folder = broken()
    file = folder / "processor_config.json"
    content = json.loads(file.read_text())
    content["image_processor"] = {**content["image_processor"], "size": {"height": 448, "width": 448}, **settings}
    file.write_text(json.dumps(content))
    assert "too" in refusal(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(content.pop("image_processor")))
    file.write_text(json.dumps(content))
    assert "too" in refusal(folder)


def test_sizes_that_published_models_have_are_not_refused(tmp_path):
    """Of SmolVLM, LLaVA-OneVision, InternVL, Donut and Qwen2-VL, whose sizes are numbers of pixels."""
    for kind, settings in {
        "smolvlm": {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        "llava_onevision": {"size": {"height": 384, "width": 384}, "image_grid_pinpoints": [[384, 2304], [2304, 2304]]},
        "internvl": {"size": {"height": 448, "width": 448}, "max_patches": 12, "crop_to_patches": True},
        "vision-encoder-decoder": {"size": {"height": 2560, "width": 1920}},
        "qwen2_vl": {"min_pixels": 3136, "max_pixels": 12845056, "image_processor_type": "Qwen2VLImageProcessor"},
        "qwen3_vl": {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "image_token_id": 151655},
    }.items():
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
        vision_language.check_sizes(tmp_path, kind)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3,
        "{{ 9**(9**9) }}",
        "{{ 'a' * 99999999999 }}",
        "{{ ('a' * 999999) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ raise_exception('not for\nphotos') }}",
        "{{ '%99999999999d' % 1 }}",
    ],
)
def test_a_chat_template_has_limits_of_time_memory_and_length(broken, template, monkeypatch):
    monkeypatch.setattr(vision_language, "_RENDER", vision_language._RENDER.replace("(10, 10)", "(2, 2)"))
    folder = broken()
    (folder / "chat_template.jinja").write_text(template + "<image> a")
    began = time.monotonic()
    assert "its chat template cannot be used" in refusal(folder)
    assert time.monotonic() - began < vision_language._PATIENCE


def test_a_chat_template_says_what_transformers_makes_of_it(folders, tmp_path):
    from transformers import AutoProcessor

    folder = Path(shutil.copytree(folders["llava"], tmp_path / "chat"))
    part = "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] | trim }}{% endif %}"
    message = "{{ m['role'] | upper }}: {% for c in m['content'] %}" + part + "{% endfor %}"
    end = "{% if add_generation_prompt %} {{ bos_token }}{% endif %}"
    (folder / "chat_template.jinja").write_text("{% for m in messages %}" + message + "{% endfor %}" + end)
    content = [{"type": "image"}, {"type": "text", "text": " a red bus "}]
    wanted = AutoProcessor.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    assert wanted == "USER: <image>a red bus [CLS]"
    loaded = vision_language.Loaded(str(folder), CPU, " a red bus ", "fp32")
    assert loaded.question == wanted


def test_without_weights_that_can_be_read_safely_it_is_refused(broken):
    folder = broken()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "safetensors" in refusal(folder)


def test_memory_that_runs_out_is_one_sentence(folders, files, monkeypatch):
    captioner = tellapart.load(folders["llava"])

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(captioner.model.captioner.network, "forward", full)
    with pytest.raises(UserError, match="--dtype bf16"):
        list(captioner.caption(files))
