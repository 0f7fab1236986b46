"""`caption` with n-best lists, constraints, diverse groups and ensembles."""

import json
import shutil

import pytest
import torch

from support.written import rows_of
from tellapart import models
from tellapart.captioning.captioner import load
from tellapart.data.tokenizers import split_words
from tellapart.decoding.rules import Search
from tellapart.evaluation import evaluate


@pytest.fixture(autouse=True)
def cache(own_cache):
    return own_cache


@pytest.fixture
def caption(tellapart, small_model):
    return lambda *arguments: tellapart("caption", "--model", small_model, *arguments)


@pytest.fixture(scope="module")
def other_model(small_model, tmp_path_factory):
    """The same words and the same encoder, other weights."""
    folder = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(small_model, folder)
    model = models.load(small_model, torch.device("cpu"))
    for weight in model.captioner.parameters():
        weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    models.save_weights(folder / "model.safetensors", model.captioner)
    return folder


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ("--n-best 4", Search(n_best=4)),
        ("--beam 1 --length-penalty 1", Search(beam=1, length_penalty=1.0)),
        ("--min-words 7 --no-repeat 1 --n-best 3", Search(min_words=7, no_repeat=1, n_best=3)),
        ("--n-best 4 --diverse 4 --diversity 100", Search(n_best=4, groups=4, diversity=100.0)),
    ],
)
def test_options_are_the_fields_of_a_search_and_captions_are_listed_best_first(
    caption, photo_folder, tmp_path, small_model, options, search
):
    photo = photo_folder / "0.png"
    _, out, _ = caption(photo, *options.split())
    assert caption(photo, *options.split(), "--out", tmp_path / "o.jsonl")[0] == 0
    (row,) = rows_of(tmp_path / "o.jsonl")
    listed = row.get("captions", [row])
    assert len({one["caption"] for one in listed}) == len(listed) == search.n_best
    assert [line.split("\t") for line in out.splitlines()] == [[str(photo), one["caption"]] for one in listed]
    assert (row["caption"], row["logprob"]) == (listed[0]["caption"], listed[0]["logprob"])
    expected = load(small_model).caption(photo, search=search)
    assert [one.text for one in expected.candidates or [expected]] == [one["caption"] for one in listed]
    logprobs = [one.logp for one in expected.candidates] or [expected.logprob]
    assert logprobs == pytest.approx([one["logprob"] for one in listed], abs=1e-4)
    words = [split_words(one["caption"]) for one in listed]
    assert all(len(text) >= (search.min_words or 0) for text in words)
    assert search.groups < 2 or len({text[0] for text in words}) == 4


def test_a_beam_is_made_wide_enough_for_lists_and_groups():
    wide = [Search(), Search(beam=2, n_best=5), Search(beam=3, groups=2), Search(beam=6, n_best=4, groups=3)]
    assert [search.width for search in wide] == [3, 5, 4, 6]


# --- n-best lists ---


def test_a_list_made_once_can_be_chosen_from_later(tellapart, caption, photo_folder, tmp_path, small_retriever):
    (photo_folder / "broken.png").write_bytes(b"no photo")
    code, _, _ = caption(photo_folder, "--n-best", 5, "--out", tmp_path / "list.jsonl")
    assert code == 1
    code, _, err = tellapart(
        *("caption", photo_folder, "--candidates", tmp_path / "list.jsonl", "--among", photo_folder),
        *("--retriever", small_retriever, "--out", tmp_path / "chosen.jsonl"),
    )
    assert code == 1
    assert "broken.png" in err
    listed = {row["file"]: row for row in rows_of(tmp_path / "list.jsonl")}
    chosen = [row for row in rows_of(tmp_path / "chosen.jsonl") if "error" not in row]
    assert len(chosen) == 6
    for row in chosen:
        said = {one["caption"]: one["logprob"] for one in listed[row["file"]]["captions"]}
        assert row["logprob"] == said[row["caption"]]
        assert len(row["look_alikes"]) == 5


# --- constraints and groups ---


def test_constraints_hold_for_what_is_chosen_among(caption, photo_folder, small_retriever):
    request = (photo_folder, "--among", photo_folder, "--retriever", small_retriever, "--min-words", 8)
    for more in ((), ("--contrast", "words"), ("--diverse", 2)):
        code, out, _ = caption(*request, *more)
        assert code == 0
        assert all(len(split_words(line.split("\t")[1])) >= 8 for line in out.splitlines())


def test_other_settings_make_rows_anew_and_the_same_ones_do_not(caption, photo_folder, tmp_path):
    out, kinds = tmp_path / "o.jsonl", set()
    asked = [(), ("--n-best", 3), ("--min-words", 7), ("--no-repeat", 1), ("--n-best", 3, "--diverse", 3)]
    asked += [("--n-best", 3, "--diverse", 3, "--diversity", 2)]
    for settings in asked:
        _, _, err = caption(photo_folder / "0.png", *settings, "--out", out)
        assert "kept" not in err
        kinds.add(rows_of(out)[0]["key"])
        _, _, err = caption(photo_folder / "0.png", *settings, "--out", out)
        assert "1 kept" in err
    assert len(kinds) == len(asked)


# --- ensembles ---


def test_an_ensemble_captions_and_its_rows_depend_on_all_members(
    tellapart, small_model, other_model, photo_folder, tmp_path
):
    said = {}
    for name in (small_model, other_model, f"{small_model}+{other_model}", f"{small_model}+{small_model}"):
        code, _, err = tellapart("caption", photo_folder, "--model", name, "--out", tmp_path / "o.jsonl")
        assert code == 0, err
        assert "kept" not in err
        said[name] = [(row["caption"], row["logprob"]) for row in rows_of(tmp_path / "o.jsonl")]
    one, other, both, twice = said.values()
    assert both not in (one, other)
    assert [text for text, _ in twice] == [text for text, _ in one]
    assert [logprob for _, logprob in twice] == pytest.approx([logprob for _, logprob in one], abs=1e-4)
    found = load(f"{small_model}+{other_model}").caption(photo_folder / "0.png")
    assert (found.text, found.logprob) == (both[0][0], pytest.approx(both[0][1], abs=1e-4))


def test_an_ensemble_is_evaluated_under_the_names_of_its_members(
    tellapart, small_model, other_model, small_retriever, photo_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        evaluate, "text_reader", lambda *_: (None, {})
    )  # text to text loads a network and is another story
    photos = [{"id": i, "file": f"photos/{i}.png", "split": "test", "captions": ["a red bus"]} for i in range(6)]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "d", "images": photos}))
    request = ("evaluate", f"{small_model}+{other_model}", other_model, "--data", tmp_path / "data.json")
    code, _, err = tellapart(
        *request, "--retriever", small_retriever, "--metrics", "AvgLen", "--self-retrieval", "--out", tmp_path / "e"
    )
    assert code == 0, err
    results = json.loads((tmp_path / "e" / "results.json").read_text())
    assert set(results["d"]) == {f"{small_model.name}+{other_model.name}", other_model.name}
    assert all("self R@1" in scores for scores in results["d"].values())
