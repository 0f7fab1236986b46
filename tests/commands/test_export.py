import json
import re

import pytest

from tellapart import paths
from tellapart.models.onnx import export


def test_a_folder_is_written_and_the_largest_difference_said(exported_model):
    assert exported_model.code == 0
    names = {file.name for file in exported_model.folder.iterdir()}
    assert names == {"config.json", "vocabulary.json", "README.md", "encode.onnx", "step.onnx"}
    assert [file.name for file in exported_model.folder.parent.iterdir()] == ["model"]
    found = re.search(r"largest difference from \S+: (\S+) in numbers up to", exported_model.out)
    assert 0 < float(found[1]) < 1e-4
    config, original = (
        json.loads((folder / "config.json").read_text()) for folder in (exported_model.folder, exported_model.source)
    )
    assert config == original


def test_photos_are_captioned_with_it(tellapart, exported_model, photo_folder):
    code, out, _ = tellapart("caption", photo_folder, "--model", exported_model.folder)
    assert (code, len(out.splitlines())) == (0, 6)
    assert out == tellapart("caption", photo_folder, "--model", exported_model.source)[1]


def test_what_is_wrong_is_one_sentence_and_nothing_is_left(
    tellapart, exported_model, small_model, small_retriever, tmp_path
):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for model, out, sentence in (
        ("nothere", "new", "there is no model 'nothere'"),
        (tmp_path / "empty", "new", "it has no config.json"),
        (small_retriever, "new", "holds a retriever"),
        (exported_model.folder, "new", "is exported already"),
        (small_model, "full", "exists already"),
        (small_model, "file", "exists already"),
    ):
        code, out, err = tellapart("export", model, "--out", tmp_path / out)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert sentence in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_without_weights_is_refused_before_the_work(tellapart, small_model, tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("config.json", "vocabulary.json"):
        (tmp_path / "model" / name).write_bytes((small_model / name).read_bytes())
    code, _, err = tellapart("export", tmp_path / "model", "--out", tmp_path / "new")
    assert code == 2
    assert "has no weights" in err
    (tmp_path / "model" / "model.safetensors").write_bytes((small_model / "model.safetensors").read_bytes()[:1000])
    code, _, err = tellapart("export", tmp_path / "model", "--out", tmp_path / "new")
    assert code == 2
    assert "model.safetensors is not a safetensors file" in err
    assert not (tmp_path / "new").exists()


def test_graphs_that_are_not_right_are_not_written(tellapart, exported_model, small_model, tmp_path, monkeypatch):
    import onnx

    made = export.Graphs(*(onnx.load(exported_model.folder / name) for name in ("encode.onnx", "step.onnx")))
    (bias,) = [tensor for tensor in made.step.graph.initializer if list(tensor.dims) == [15]]
    bias.raw_data = b"\x00\x00\x80\x3f" * 15  # another bias: 1.0 everywhere
    monkeypatch.setattr(export, "graphs", lambda *_, **__: made)
    code, out, err = tellapart("export", small_model, "--out", tmp_path / "new")
    assert (code, out) == (2, "")
    assert "do not say what the captioner says" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_without_a_package_the_error_says_what_to_install(tellapart, small_model, tmp_path, monkeypatch, missing):
    there = paths.package
    monkeypatch.setattr(paths, "package", lambda name: None if name == missing else there(name))
    code, _, err = tellapart("export", small_model, "--out", tmp_path / "new")
    assert code == 2
    assert f"needs {missing}" in err
    assert "pip install 'tellapart[export]'" in err
