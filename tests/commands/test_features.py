"""Features from elsewhere, from the archive over the training to captions."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import yaml

from support import region_archives as archives
from support.written import put
from tellapart.captioners.transformer import TINY
from tellapart.data import examples
from tellapart.features.sources import open_imported

SUBJECTS = ["dog", "cat", "bus", "horse"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Twelve photos that are not there, whose regions say what is on them, and a recipe that learns from those."""
    folder = tmp_path_factory.mktemp("world")
    photos, records = {}, []
    for i in range(12):
        arrays = archives.photo(i, 1 + i % 3)
        arrays["features"][:] = 0
        arrays["features"][:, i % 4] = 8  # every region shows the subject
        photos[str(i)] = arrays
        captions = [f"a {SUBJECTS[i % 4]} on the grass", f"the {SUBJECTS[i % 4]} on the grass"]
        split = "val" if i >= 8 else "train"
        records.append({"id": i, "file": f"photos/{i}.jpg", "split": split, "captions": captions})
    archives.as_tsv(folder / "regions", photos)
    (folder / "data.json").write_text(json.dumps({"dataset": "pets", "images": records}))
    recipe = {
        "model": TINY | {"dropout": 0.0},
        "encoder": {"name": "bottom_up"},
        "data": {"files": [str(folder / "data.json")], "features": str(folder / "features"), "min_count": 1},
        "optim": {"lr": 0.01},
        "validation": {"metric": "loss", "every": 25},
        "batch_size": 4,
        "epochs": 25,
        "dtype": "fp32",
        "threads": 1,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def import_into(tellapart, world, out="features", *more):
    archive = ("--from", world / "regions.tsv", "--name", "bottom_up", "--cap", 3, *more)
    return tellapart("features", world / "data.json", *archive, "--out", world / out)


def test_photos_are_added_once_and_need_not_be_there(tellapart, world):
    store = world / "once" / "pets.bottom_up"
    for added, there in ((12, 0), (0, 12)):
        code, out, err = import_into(tellapart, world, "once")
        assert (code, out, err) == (0, f"{store}: {added} photos added, {there} were there\n", "")
    assert open_imported(store).rows == 12


def test_what_an_archive_lacks_is_counted_and_some_of_it_named(tellapart, world, tmp_path):
    lines = (world / "regions.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "few.tsv").write_text("".join(lines[:5]) + lines[5][:100])
    arguments = ("--from", tmp_path / "few.tsv", "--name", "few", "--out", tmp_path)
    code, out, err = tellapart("features", world / "data.json", *arguments)
    assert (code, out) == (1, f"{tmp_path / 'pets.few'}: 5 photos added, 0 were there, 7 have none\n")
    assert f"{tmp_path / 'few.tsv'}: line 6: image 5: " in err
    assert "7 of 12 photos have no features there: 5, 6, 7 ...\n" in err


@pytest.fixture(scope="module")
def trained(world):
    """The run folder of a captioner that learned from the imported regions."""
    from tellapart.commands.train import parse
    from tellapart.features.importing import bring_in
    from tellapart.training.build import run

    data = examples.read(world / "data.json")
    folder = world / "features" / "pets.bottom_up"
    bring_in(data.examples, [world / "regions.tsv"], folder, "bottom_up", cap=3)
    recipe, out, _ = parse([str(world / "recipe.yaml"), f"--out={world / 'run'}"])
    assert run(recipe, out).problems == []
    return out


def test_its_captions_are_made_of_the_stored_features(trained, world, tellapart):
    code, out, _ = tellapart(
        "caption", world / "data.json", "--split", "val", "--model", trained, "--features", world / "features"
    )
    lines = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert [file for file, _ in lines] == [str(world / "photos" / f"{i}.jpg") for i in range(8, 12)]
    assert [text.split()[1] for _, text in lines] == [SUBJECTS[i % 4] for i in range(8, 12)]


def test_captions_of_a_second_run_are_kept(trained, world, tellapart, tmp_path):
    """Photos that are there are known by their bytes, as always."""
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    data = {"dataset": "pets", "images": [{"id": 0, "file": str(tmp_path / "0.png")}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    arguments = ("--model", trained, "--features", world / "features", "--out", tmp_path / "captions.jsonl")
    for said in ("1 caption in", "1 kept"):
        code, _, err = tellapart("caption", tmp_path / "data.json", *arguments)
        assert code == 0
        assert said in err


@pytest.mark.parametrize(
    ("path", "features", "word"),
    [
        ("photos", None, "was trained on imported features (bottom_up)"),
        ("photos", "features", "no features 'bottom_up' of the data set 'photos'"),
        ("photos/0.png", "features", "features are stored per data set"),
        ("data.json", "photos", "no features 'bottom_up' of the data set 'pets'"),
        ("new.json", "features", "99.jpg: has no features in"),
    ],
)
def test_it_captions_no_photo_that_has_no_features(trained, world, tellapart, photo_folder, path, features, word):
    put(world / "new.json", {"dataset": "pets", "images": [{"id": id, "file": f"{id}.jpg"} for id in (0, 99)]})
    place = photo_folder.parent / path if path.startswith("photos") else world / path
    stored = {None: [], "features": ["--features", world / "features"], "photos": ["--features", photo_folder]}
    code, out, err = tellapart("caption", place, "--model", trained, *stored[features])
    assert (code, out.count("\n")) == ((1, 1) if path == "new.json" else (2, 0))  # the other photo is captioned
    assert err.count("\n") == 1
    assert word in err
    assert features or "--features DIR" in err


def test_a_captioner_that_looks_itself_needs_no_features(small_model, world, tellapart, photo_folder):
    code, out, _ = tellapart("caption", photo_folder, "--model", small_model, "--features", world / "features")
    assert (code, out.count("\n")) == (0, 6)


def test_a_captioner_of_imported_regions_is_evaluated(trained, world, tellapart, photo_folder, tmp_path, own_cache):
    """The retriever looks at the photos themselves, and they must be there."""
    said = json.loads((world / "data.json").read_text())
    images = [image | {"file": str(photo_folder / f"{image['id'] - 8}.png")} for image in said["images"][8:]]
    (tmp_path / "data.json").write_text(json.dumps(said | {"images": images}))
    arguments = ("--data", tmp_path / "data.json", "--split", "val", "--features", world / "features")
    code, _, err = tellapart("evaluate", trained, *arguments, "--metrics", "CIDEr-D", "--out", tmp_path / "evaluation")
    assert code == 0, err
    captions = (tmp_path / "evaluation" / "captions" / "pets.run.jsonl").read_text().splitlines()
    assert [json.loads(line)["caption"].split()[1] for line in captions] == SUBJECTS


@pytest.fixture(scope="module")
def tagger(trained, world):
    """The run folder of a tagger that learned words from the imported regions."""
    from tellapart.commands.train import parse
    from tellapart.training.build import run

    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    recipe |= {"objective": {"name": "tagging"}, "model": {"words": 5}, "validation": {"metric": "mAP"}}
    (world / "tagger.yaml").write_text(yaml.safe_dump(recipe))
    recipe, out, _ = parse([str(world / "tagger.yaml"), f"--out={world / 'tagger'}"])
    assert run(recipe, out).problems == []
    return out


def test_a_tagger_of_imported_regions_gives_a_captioner_its_attributes(tagger, world, tellapart, tmp_path):
    """The photos are not there.  Of a photo's words the subject is the most probable."""
    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    del recipe["encoder"]
    recipe |= {
        "captioner": "glied",
        "model": {"word_width": 8, "width": 16, "heads": 2, "feed_forward": 16, "dropout": 0.0},
        "inputs": {"regions": {"name": "bottom_up"}, "attributes": {"name": str(tagger), "most": 2}},
    }
    (tmp_path / "glied.yaml").write_text(yaml.safe_dump(recipe))
    run = tmp_path / "run"
    code, _, err = tellapart("train", tmp_path / "glied.yaml", "--out", run)
    assert code == 0, err
    arguments = ("--split", "val", "--model", run, "--features", world / "features")
    code, out, err = tellapart("caption", world / "data.json", *arguments)
    assert code == 0, err
    assert [line.split("\t")[1].split()[1] for line in out.splitlines()] == [SUBJECTS[i % 4] for i in range(8, 12)]
    (of_model,) = [one for one in json.loads((run / "config.json").read_text())["inputs"].values() if "most" in one]
    assert of_model["encoder"] == {"name": "bottom_up", "from": "elsewhere", "feature_size": 8}
    code, out, err = tellapart("caption", world / "data.json", "--model", run)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--features DIR" in err


def test_attributes_of_imported_regions_are_a_noisy_or_over_the_regions_of_each_photo(tagger, world, tellapart):
    from safetensors.torch import load_file

    arguments = ("--encoder", tagger, "--attributes", 5, "--out", world / "features")
    code, _, err = tellapart("features", world / "data.json", *arguments)
    assert code == 0, err
    weights = {name: one.half().double() for name, one in load_file(tagger / "best.safetensors").items()}
    words = json.loads((tagger / "vocabulary.json").read_text())["words"]
    stores = (world / "features").glob("pets.tagger-*")
    (store,) = (one for one in stores if json.loads((one / "manifest.json").read_text())["encoder"]["most"] == 5)
    count = len(weights["word.bias"])
    ids, chances = (
        np.fromfile(store / name, kind).reshape(12, count)
        for name, kind in (("ids.i32", "i4"), ("probability.f32", "f4"))
    )
    rows = {line["id"]: line["row"] for line in map(json.loads, (store / "rows.jsonl").read_text().splitlines())}
    for i in range(12):
        region = np.zeros(8)
        region[i % 4] = 8
        logits = weights["word.weight"].numpy() @ region + weights["word.bias"].numpy()
        expected = 1 - (1 - 1 / (1 + np.exp(-logits))) ** (1 + i % 3)  # every region shows the same
        np.testing.assert_allclose(chances[rows[i]], np.sort(expected)[::-1], atol=1e-5)
        assert {words[-count:][word] for word in ids[rows[i], :2]} == {"grass", SUBJECTS[i % 4]}


def test_a_tagger_of_imported_regions_is_evaluated(tagger, world, tellapart, photo_folder, tmp_path, own_cache):
    """Of 4 photos with a subject each, every subject is found; the other words are in all captions."""
    given = json.loads((world / "data.json").read_text())
    images = [image | {"file": str(photo_folder / f"{image['id'] - 8}.png")} for image in given["images"][8:]]
    (tmp_path / "data.json").write_text(json.dumps(given | {"images": images}))
    arguments = ("--data", tmp_path / "data.json", "--split", "val", "--features", world / "features")
    code, out, err = tellapart("evaluate", tagger, *arguments)
    assert code == 0, err
    assert re.search(r"^tagger +100\.0 ", out, re.M)


def test_attributes_of_regions_that_were_imported_anew_are_made_anew(tagger, world, tellapart, tmp_path):
    from tellapart.features.importing import bring_in

    data = examples.read(world / "data.json").examples
    arguments = ("--encoder", tagger, "--attributes", 5, "--out", tmp_path)
    for number in range(2):
        arrays = {str(i): archives.photo(i + number, 2) for i in range(12)}
        folder = tmp_path / "pets.bottom_up"
        if number:
            folder.rename(tmp_path / "old")
        bring_in(data, archives.as_tsv(tmp_path / f"a{number}", arrays), folder, "bottom_up", cap=3)
        code, out, err = tellapart("features", world / "data.json", *arguments)
        assert code == 0, err
        assert ": 12 photos added, 0 were there" in out
    assert len(list(tmp_path.glob("pets.tagger-*"))) == 2


def test_photos_that_have_no_features_are_named_and_left_out_of_training(trained, world, tellapart, tmp_path):
    data = json.loads((world / "data.json").read_text())
    data["images"].append({"id": 99, "file": "99.jpg", "split": "train", "captions": ["a dog"]})
    (tmp_path / "data.json").write_text(json.dumps(data))
    arguments = ("--data", tmp_path / "data.json", "--out", tmp_path / "run", "--max_steps", 2)
    code, _, err = tellapart("train", world / "recipe.yaml", *arguments)
    assert code == 1
    assert f"image 99: has no features in {world / 'features' / 'pets.bottom_up'}" in err


def test_a_recipe_whose_features_nobody_imported_says_how_to(world, tellapart, tmp_path):
    arguments = ("--out", tmp_path / "run", "--data.features", tmp_path / "none")
    code, _, err = tellapart("train", world / "recipe.yaml", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no encoder 'bottom_up'" in err
    assert "tellapart features DATA.json --from ARCHIVE --name bottom_up" in err
