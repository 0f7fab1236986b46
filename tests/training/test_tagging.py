"""Taggers and tuned encoders, trained by recipe on a world of 45 scenes, and what is made of them afterwards."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from capscore.errors import UserError
from tellapart import models, onnx
from tellapart.__main__ import main
from tellapart.data import examples
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders import BUNDLED
from tellapart.encoders.encoder import Encoder
from tellapart.models.parts import load_encoder, read_tagger
from tellapart.models.sources import attributes as load_attributes
from tellapart.recipe import EncoderConfig
from training.runs import assert_same_tensors, log_of, tensors_of, train

CPU = torch.device("cpu")
LOOKS = {"image_size": 64, "grid": 2}
TAGGING = ["--objective.name=tagging", "--validation.metric=mAP", "--optim.schedule=constant", "--optim.accumulate=1"]


@pytest.fixture(scope="module")
def trained(recipe):
    def run(out, model, *more, resume=False):
        return train(recipe, out, *TAGGING, f"--model={json.dumps({'words': 12, **model})}", *more, resume=resume)

    return run


@pytest.fixture(scope="module")
def tagger(trained, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "tagger", {"context": True}, "--max_steps=8").folder


@pytest.fixture(scope="module")
def tuned(trained, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "tuned", {"tuned_blocks": 2}, "--max_steps=2").folder


def photos_of(small_world):
    return [one for one in examples.read(small_world / "toy" / "captions.json").examples if one.split != "test"]


@pytest.mark.parametrize("model", [{"context": True}, {"tuned_blocks": 1}])
def test_captions_are_found_beside_words_and_a_run_that_stopped_goes_on_alike(model, trained, retrievers, tmp_path):
    sentences = ["--objective.sentence_weight=2", f"--objective.rewards.text_retriever={retrievers[1]}"]
    trained(tmp_path / "whole", model, *sentences, "--max_steps=4")
    losses = [line["sentences"] for line in log_of(tmp_path / "whole", "sentences")]
    assert len(losses) == 4
    assert all(0 < loss < 10 for loss in losses)  # about ln 27, the photos
    for steps in (2, 4):
        trained(tmp_path / "parts", model, *sentences, f"--max_steps={steps}", resume=steps == 4)
    assert "model/sentence.weight" in tensors_of(tmp_path / "whole")
    assert_same_tensors(tmp_path / "whole", tmp_path / "parts", ["last"])


def test_only_the_last_blocks_and_the_head_are_tuned(tuned):
    found = read_tagger(tuned).network.encoder.state_dict()
    bundled = load_file(BUNDLED / "efficientnet_lite2.safetensors")
    changed = {name for name, tensor in found.items() if not tensor.half().equal(bundled[name].half())}
    parts = {".".join(name.split(".")[:2]) if name.startswith("blocks") else name.split(".")[0] for name in changed}
    assert parts == {"blocks.19", "blocks.20", "head"}  # of blocks 0 to 20


def test_a_tuned_encoder_gives_the_same_features_by_onnx_and_by_torch(tuned, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 255, (2, 64, 64, 3), np.uint8)
    by_graph = load_encoder(EncoderConfig(str(tuned), **LOOKS), CPU)
    monkeypatch.setattr(onnx, "is_installed", lambda: False)
    by_torch = load_encoder(EncoderConfig(str(tuned), **LOOKS), CPU)
    assert by_graph.identity == by_torch.identity
    assert by_graph.config.name == "tuned"
    one, other = by_graph(pixels), by_torch(pixels)
    torch.testing.assert_close(one.grid, other.grid, atol=1e-4, rtol=1e-4)
    untouched = Encoder(EncoderConfig(**LOOKS))(pixels)
    assert (one.grid - untouched.grid).abs().max() > 1e-3
    network = read_tagger(tuned).network
    torch.testing.assert_close(network.regions(torch.from_numpy(pixels)).values, other.grid, atol=1e-4, rtol=1e-4)


def test_a_model_carries_its_tuned_encoder_and_tagger(tuned, tagger, recipe, small_world, tmp_path, capsys):
    """Trained on both, it captions photos after their runs are gone, and shows the words that it was given."""
    runs = {"tuned": tmp_path / "tuned", "tagger": tmp_path / "tagger"}
    shutil.copytree(tuned, runs["tuned"])
    shutil.copytree(tagger, runs["tagger"])
    inputs = {"regions": {"name": str(runs["tuned"]), **LOOKS}, "attributes": {"name": str(runs["tagger"]), "most": 5}}
    settings = {"word_width": 8, "width": 16, "heads": 2, "feed_forward": 16}
    given = ("--captioner=glied", f"--inputs={json.dumps(inputs)}", f"--model={json.dumps(settings)}", "--max_steps=1")
    out = tmp_path / "captioner"
    train(recipe, out, "--encoder={image_size: 256, grid: 8}", *given, f"--data.features={tmp_path / 'features'}")
    for folder in runs.values():
        shutil.rmtree(folder)
    photo = str(photos_of(small_world)[0].file)
    assert main(["caption", photo, "--model", str(out), "--show", "attributes", "--beam", "1"]) == 0
    file, _, words = capsys.readouterr().out.strip().split("\t")
    assert file == photo
    known = set(WordTokenizer.load(tagger).words)
    assert 1 <= len(words.split(", ")) <= 5
    assert {pair.split(" ")[0] for pair in words.split(", ")} <= known
    for inner in (out / "parts").iterdir():
        (inner / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no weights"):
        models.encoder_of(models.load(out, CPU), CPU)
    shutil.rmtree(out / "parts")
    assert main(["caption", photo, "--model", str(out)]) == 2
    assert "its folder does not have" in capsys.readouterr().err


def test_attributes_are_kept_and_read_by_the_captioners_ids(tagger, small_world, tmp_path, capsys):
    data = str(small_world / "toy" / "captions.json")
    arguments = ["features", data, "--encoder", str(tagger), "--attributes", "4", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert main(arguments) == 0
    assert "0 photos added" in capsys.readouterr().out.splitlines()[-1]
    source = load_attributes(EncoderConfig(str(tagger), most=4), CPU)
    store = source.open(tmp_path, "toy_world")
    photo = photos_of(small_world)[0]
    expected = source.probabilities([source.load(photo.file)])[0]
    best = expected.argsort(descending=True)[:4].tolist()
    found = store.grid([store.row(photo)])[0]
    assert found[:, 0].tolist() == best
    torch.testing.assert_close(found[:, 1], expected[best].float())
    # A vocabulary with the first and the third word: the others are no attributes.
    vocabulary = WordTokenizer([source.words[best[2]], source.words[best[0]]])
    store.use(vocabulary)
    assert store.grid([store.row(photo)])[0, :, 0].tolist() == [5, -1, 4, -1]
    none = load_attributes(EncoderConfig(str(tagger), most=4, threshold=1.0), CPU)  # no word is above the threshold
    assert [part.tolist() for part in none.best([none.load(photo.file)])] == [[[-1] * 4], [[0.0] * 4]]


def test_a_retriever_finds_words_without_training(small_world):
    source = load_attributes(EncoderConfig("word", most=3), CPU)
    assert len(source.words) == 1000
    assert {"dog", "red", "man"} <= set(source.words)
    assert not {"a", "the", "with"} & set(source.words)
    probability = source.probabilities([source.load(photos_of(small_world)[0].file)])[0]
    assert probability.sum().item() == pytest.approx(1, abs=1e-4)


def test_a_tuned_encoder_sees_frames_of_clips_and_is_carried_as_it_is(tuned):
    of_photos, of_clips = (load_encoder(EncoderConfig(str(tuned), **LOOKS, frames=frames), CPU) for frames in (0, 3))
    assert of_clips.regions == 3 * of_photos.regions
    assert of_clips.identity == of_photos.identity | {"frames": 3}
    assert of_clips.part == of_photos.part is not None


def test_what_is_no_encoder_or_has_no_attributes_is_said(tagger, tuned, trained, small_world, tmp_path, capsys):
    with pytest.raises(UserError, match="only one that was trained with tuned_blocks is an encoder"):
        load_encoder(EncoderConfig(str(tagger)), CPU)
    with pytest.raises(UserError, match="encoders that can be tuned are"):
        trained(tmp_path / "run", {"tuned_blocks": 1}, f"--encoder.name={tuned}")
    photo = str(photos_of(small_world)[0].file)
    assert main(["caption", photo, "--show", "attributes"]) == 2
    assert "uses no attributes" in capsys.readouterr().err
    assert Encoder(EncoderConfig(**LOOKS)).part is None  # of what a package brings nothing is carried
    assert not (tmp_path / "parts").exists()


def by_loops(scores, has):
    """Of each word that a photo has: the mean precision at the photos that have it."""
    found = []
    for word in range(scores.shape[1]):
        right = [row for row in range(len(scores)) if has[row][word]]
        seen = [sum(scores[other, word] >= scores[row, word] for other in range(len(scores))) for row in right]
        true = [sum(scores[other, word] >= scores[row, word] for other in right) for row in right]
        found += [np.mean(np.array(true) / seen)] if right else []
    return np.mean(found)


def test_taggers_are_judged_beside_chance_and_a_probe(tagger, tuned, small_world, own_cache, tmp_path, capsys):
    data, out = small_world / "toy" / "captions.json", tmp_path / "out"
    stored = ["--features", str(small_world / "features"), "--split", "val"]
    assert main(["evaluate", str(tagger), str(tuned), "--data", str(data), *stored, "--out", str(out)]) == 0
    printed = [re.split(r"\s\s+", line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in printed] == ["chance", "linear probe", "tagger", "tuned"]
    (metrics,) = json.loads((out / "results.json").read_text()).values()
    assert [f"{100 * one['mAP']:.1f}" for one in metrics.values()] == [line[1] for line in printed]
    photos = [one for one in photos_of(small_world) if one.split == "val"]
    for folder in (tagger, tuned):
        source = load_attributes(EncoderConfig(str(folder)), CPU)
        scores = source.probabilities([source.load(one.file) for one in photos]).double().numpy()
        has = [[any(word in text.split() for text in one.captions) for word in source.words] for one in photos]
        expected = pytest.approx(by_loops(scores, has), abs=0.02)  # features in half precision
        assert metrics[folder.name]["mAP"] == expected
    assert metrics["chance"]["mAP"] == pytest.approx(np.mean([share for share in np.mean(has, 0) if share]))
    lines = next(out.glob("*.words.csv")).read_text().splitlines()
    assert lines[0] == "word,part of speech,photos,chance,linear probe,tagger,tuned"
    assert [line.split(",")[0] for line in lines[1:]] == list(source.words)
    assert [int(line.split(",")[2]) for line in lines[1:]] == np.sum(has, 0).tolist()
    page = next(out.glob("*.html")).read_text()
    assert page.count("<figure>") == len(photos)
    best = source.words[int(scores[0].argmax())]
    assert best in page.split("<figcaption>")[1].split(",")[0]


def test_what_cannot_be_judged_is_named_and_the_rest_goes_on(tagger, small_world, own_cache, tmp_path, capsys):
    world = tmp_path / "toy"
    shutil.copytree(small_world / "toy", world)
    data = world / "captions.json"
    photos = [one for one in examples.read(data).examples if one.split == "val"]
    photos[0].file.write_bytes(b"no photo")
    assert main(["evaluate", str(tagger), "--data", str(data), "--split", "val"]) == 1
    got = capsys.readouterr()
    assert f"{photos[0].file}: cannot be read" in got.err
    assert got.out.splitlines()[-1].split()[0] == "tagger"
    assert main(["evaluate", str(tagger), "--data", str(data), "--split", "nowhere"]) == 2
    assert "no photo with captions in the split 'nowhere'" in capsys.readouterr().err
    other = tmp_path / "other"
    shutil.copytree(tagger, other)
    vocabulary = (other / "vocabulary.json").read_text()
    word = WordTokenizer.load(other).words[-1]
    (other / "vocabulary.json").write_text(vocabulary.replace(f'"{word}"', '"kazoo"'))
    assert main(["evaluate", str(tagger), str(other), "--data", str(data), "--split", "val"]) == 2
    assert "other words" in capsys.readouterr().err
