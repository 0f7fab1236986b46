"""CLIP and SigLIP as retrievers, against transformers' own models, tokenizers and processors."""

from __future__ import annotations

import atexit
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

pytest.importorskip("transformers", reason="CLIP is loaded with transformers")

from capscore.errors import UserError
from retrievers import tiny_clip
from tellapart import paths
from tellapart.data.media import photos
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders import pretrained
from tellapart.models.retrievers import load
from tellapart.retrievers.retriever import Retriever, embed_photos

CAPTIONS = ["a red bus", "two cats on the street", "a cat"]
LONG = "the red bus on the street " * 5  # far more than 20 tokens


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory) -> Path:
    return tiny_clip.clip(tmp_path_factory.mktemp("models") / "tiny-clip")


@pytest.fixture(scope="module")
def siglip_folder(tmp_path_factory) -> Path:
    return tiny_clip.siglip(tmp_path_factory.mktemp("models") / "tiny-siglip")


@pytest.fixture(scope="module")
def clip(clip_folder) -> Retriever:
    return load(clip_folder, device="cpu")


@pytest.fixture(scope="module")
def siglip(siglip_folder) -> Retriever:
    return load(siglip_folder, device="cpu")


@pytest.fixture
def folder(clip_folder, tmp_path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(clip_folder, tmp_path / "model"))


@pytest.fixture
def at_exit(monkeypatch) -> list:
    """What would be done when the program ends."""
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    return registered


def theirs(folder: Path, captions: list[str], model: str = "CLIPModel", **padding) -> torch.Tensor:
    import transformers

    network = getattr(transformers, model).from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        captions, return_tensors="pt", truncation=True, max_length=tiny_clip.LONGEST, **padding
    )
    mask = {"attention_mask": tokens["attention_mask"]} if model == "CLIPModel" else {}
    with torch.inference_mode():
        return F.normalize(network.get_text_features(input_ids=tokens["input_ids"], **mask).pooler_output, dim=1)


# Captions


def test_captions_are_where_transformers_puts_them(clip, clip_folder):
    torch.testing.assert_close(clip.embed_captions(CAPTIONS), theirs(clip_folder, CAPTIONS, padding=True))


def test_siglip_reads_captions_filled_up_to_its_full_length_and_in_small_letters(siglip, siglip_folder):
    expected = theirs(siglip_folder, CAPTIONS, "SiglipModel", padding="max_length")
    torch.testing.assert_close(siglip.embed_captions(["A red Bus", *CAPTIONS[1:]]), expected)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_caption_is_embedded_alike_alone_and_among_many(kind, request):
    retriever = request.getfixturevalue(kind)
    captions = ["cat " * (1 + i % 5) for i in range(150)]
    together = retriever.embed_captions(captions)
    for place in (0, 71, 149):
        torch.testing.assert_close(together[place], retriever.embed_captions([captions[place]])[0])


def test_a_prompt_stands_before_every_caption(clip_folder, clip, at_exit):
    prompted = load(clip_folder, device="cpu", prompt="A photo")
    with_it = prompted.embed_captions([*CAPTIONS, ""])
    torch.testing.assert_close(with_it[:3], clip.embed_captions([f"A photo {caption}" for caption in CAPTIONS]))
    assert with_it[3].abs().max() == 0  # nothing was said, whatever it begins with
    assert prompted.sha256 == clip.sha256  # it sees photos as it did


def test_tokens_of_a_captioner_are_read_as_text_up_to_their_end(clip):
    words = WordTokenizer(tiny_clip.WORDS)
    red_bus = words.encode("a red bus")
    tokens = torch.tensor([[*red_bus, words.eos, *words.encode("cat")], [words.eos] + [words.pad] * 4])
    vectors = clip.embed_tokens(tokens, words)
    torch.testing.assert_close(vectors[0], clip.embed_captions(["a red bus"])[0])
    assert vectors[1].abs().max() == 0


@pytest.mark.parametrize(
    ("kind", "title", "model"), [("clip", "CLIP", "CLIPModel"), ("siglip", "SigLIP", "SiglipModel")]
)
def test_long_captions_are_cut_as_transformers_does_and_counted_once(kind, title, model, request, at_exit, capsys):
    folder = request.getfixturevalue(f"{kind}_folder")
    retriever = load(folder, device="cpu")
    expected = theirs(folder, [LONG, "a cat"], model, padding="max_length")
    torch.testing.assert_close(retriever.embed_captions([LONG, "a cat"]), expected)
    retriever.embed_captions(["a red bus"] * 1200)
    retriever.embed_captions([LONG])
    assert capsys.readouterr().err == ""
    (announce,) = at_exit
    announce()
    assert capsys.readouterr().err == (
        f"2 of 1,203 captions are longer than {title}'s 20 tokens; the rest is ignored\n"
    )


# Photos


@pytest.fixture
def files(tmp_path) -> list[str]:
    draw = np.random.default_rng(0)
    for i in range(5):
        pixels = draw.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((48 + 30 * i, 48), Image.Resampling.BICUBIC).save(tmp_path / f"{i}.png")
    return [str(tmp_path / f"{i}.png") for i in range(5)]


@pytest.mark.parametrize(("kind", "model"), [("clip", "CLIPModel"), ("siglip", "SiglipModel")])
def test_similarities_are_those_of_transformers(kind, model, files, request):
    import transformers

    retriever, folder = request.getfixturevalue(kind), request.getfixturevalue(f"{kind}_folder")
    pixels = np.stack([photos.read(file, 32, retriever.encoder.fit).pixels for file in files])
    similarity = retriever.similarity(retriever.embed_captions(CAPTIONS), retriever.embed_pixels(pixels))
    processor = {"clip": "CLIPImageProcessorPil", "siglip": "SiglipImageProcessorPil"}[kind]
    seen = getattr(transformers, processor).from_pretrained(folder)([Image.open(f) for f in files], return_tensors="pt")
    network = getattr(transformers, model).from_pretrained(folder).eval()
    with torch.inference_mode():
        image = F.normalize(network.get_image_features(pixel_values=seen["pixel_values"]).pooler_output, dim=1)
    expected = theirs(folder, CAPTIONS, model, padding="max_length") @ image.T
    assert similarity.shape == (3, 5)
    size = {"clip": 16, "siglip": 32}[kind]
    assert (retriever.name, retriever.sees, retriever.size) == (f"tiny-{kind}", "photos", size)
    assert retriever.scale == pytest.approx(math.exp({"clip": 3.0, "siglip": 2.0}[kind]))
    torch.testing.assert_close(similarity, expected, atol=1e-5, rtol=1e-4)


def test_vectors_of_photos_are_kept(clip, files, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "cache")
    (tmp_path / "broken.png").write_bytes(b"no photo")
    first = embed_photos(clip, [*files, str(tmp_path / "broken.png")])
    assert first.files == files
    assert list(first.failed) == [str(tmp_path / "broken.png")]
    pixels = np.stack([photos.read(file, 32, clip.encoder.fit).pixels for file in files])
    np.testing.assert_allclose(first.vectors, clip.embed_pixels(pixels).numpy(), atol=1e-3)  # half precision

    monkeypatch.setattr(photos, "read", None)  # nothing is opened again
    np.testing.assert_array_equal(embed_photos(clip, files).vectors, first.vectors)


# Folders and names that are not what they should be


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def in_another_format(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_a_layer(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["text_projection.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def larger_vocabulary(folder: Path) -> None:
    tokenizer_file = folder / "tokenizer.json"
    text = tokenizer_file.read_text()
    assert '"re": 512' in text
    tokenizer_file.write_text(text.replace('"re": 512', '"re": 9512'))


def text_config(**changes):
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        tiny_clip.change(folder, "config.json", text_config=config["text_config"] | changes)

    return change


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (in_another_format, r"no weights in the safetensors format; others are not read"),
        (cut_short, r"the CLIP cannot be loaded"),
        (without_a_layer, r"the weights are not complete: text_projection.weight is not there \(1 in all\)"),
        (without_tokenizer, r"has no tokenizer: none of tokenizer.json, vocab.json"),
        (larger_vocabulary, r"the tokenizer has \d+ tokens, the model 516"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), r"the tokenizer cannot be loaded"),
        (text_config(eos_token_id=7), r"a text ends with token 515 for the tokenizer and 7 for the model"),
        (text_config(hidden_size="wide"), r"the CLIP cannot be loaded"),
        (text_config(hidden_size=64), r"the CLIP cannot be loaded"),
        (lambda f: tiny_clip.change(f, "config.json", model_type="bert"), r"a model of the type 'bert'; .* clip and"),
        (lambda f: tiny_clip.change(f, "config.json", model_type="siglip2"), r"in their own shape \(NaFlex\)"),
        (lambda f: tiny_clip.change(f, "config.json", model_type=None), r"config.json is damaged, or of a version"),
        (lambda f: (f / "config.json").write_text("{"), r"config.json is damaged, or of a version"),
        (lambda f: (f / "config.json").unlink(), r"not a model or run folder: it has no config.json"),
        (lambda f: (f / "preprocessor_config.json").write_text("[]"), r"must hold a JSON object, not a list"),
    ],
)
def test_a_damaged_folder_is_named_in_one_sentence(folder, damage, sentence, capfd):
    damage(folder)
    with pytest.raises(UserError, match=sentence) as error:
        load(folder, device="cpu")
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")  # transformers keeps its reports to itself


def test_a_name_that_neither_this_machine_nor_the_hub_knows(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = r"no folder 'nobody/no-such-clip', and the Hugging Face hub gave no model"
    with pytest.raises(UserError, match=message) as error:
        load("nobody/no-such-clip")
    assert "\n" not in str(error.value)
    for name in ("nowhere", "a/b/c", "../away", "/no/folder", ""):  # what cannot be there
        with pytest.raises(UserError):
            load(name)


def test_a_model_of_the_hub_that_is_here_is_loaded_without_it(clip_folder, clip, tmp_path, monkeypatch):
    from huggingface_hub import constants

    kept = tmp_path / "models--somebody--some-clip"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(clip_folder, kept / "snapshots" / ("0" * 40))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    result = load("somebody/some-clip", device="cpu")
    assert (result.name, result.sha256) == ("some-clip", clip.sha256)


def test_without_transformers_it_says_how_to_get_it(clip_folder, monkeypatch):
    monkeypatch.setattr(pretrained, "package_folder", lambda name: None)
    for name in (clip_folder, "openai/clip-vit-base-patch32"):
        with pytest.raises(UserError, match=r"pip install 'tellapart\[clip\]'"):
            load(name)
