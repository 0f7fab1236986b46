"""Retrievers are trained by recipes, as captioners are: they learn, resume, load, and refuse what makes no sense."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from capscore.errors import UserError
from tellapart.data.examples import Example, Exclusion
from tellapart.data.media import photos
from tellapart.data.pairs import Pairs
from tellapart.data.store import Stores
from tellapart.features.sources import Sources
from tellapart.models import retrievers
from tellapart.retrievers import RETRIEVERS, readers
from tellapart.training.validation import validate_retriever as validate
from training.runs import asked, assert_same_tensors, curve, gathered, log_of, position_of, train

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 40), "blue": (30, 50, 220), "yellow": (240, 220, 40)}
PATTERNS = {"striped": (8, 64), "checked": (8, 8), "plain": (64, 64), "halved": (64, 32)}  # height and width of a field
MADE = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            RETRIEVERS[name].reads == "sentences" and readers.lacks() is not None, reason=str(readers.lacks())
        ),
    )
    for name in RETRIEVERS
]
OBJECTIVES = {"vse": "max_violation"}
PHRASES = {"size": 32, "word_size": 32, "channels": 32}
MODELS = {
    "word_tower": PHRASES,
    "text_tower": PHRASES,
    "vse": {"size": 64, "word_size": 300},
    "dual": {"size": 32, "hidden": 32},
}


def draw(colour, pattern, seed):
    """A field of a colour and of a darker one, with a little noise."""
    height, width = PATTERNS[pattern]
    rows, columns = np.mgrid[:64, :64]
    dark = (rows // height + columns // width) % 2
    noise = np.random.default_rng(seed).normal(0, 8, (64, 64, 3))
    pixels = np.array(COLOURS[colour]) * (1 - 0.7 * dark[..., None]) + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def flags(tmp_path_factory):
    """16 kinds of flags, three of each to learn from and one for validation; no caption fits two kinds."""
    folder = tmp_path_factory.mktemp("flags")
    records = []
    for kind, (colour, pattern) in enumerate(product(COLOURS, PATTERNS)):
        captions = [
            f"a {pattern} {colour} flag",
            f"the flag is {colour} and {pattern}",
            f"{pattern} cloth that is all {colour}",
        ]
        for i in range(4):
            name = f"{kind}-{i}.png"
            draw(colour, pattern, seed=10 * kind + i).save(folder / name)
            split = "val" if i == 3 else "train"
            records.append({"id": len(records), "file": name, "split": split, "captions": captions})
    (folder / "flags.json").write_text(json.dumps({"dataset": "flags", "images": records}))
    return folder


@pytest.fixture
def recipe_of(flags, tmp_path):
    """The recipe file of a retriever that trains on the flags in seconds."""

    def write(name, **changed):
        recipe = {
            "retriever": name,
            "model": MODELS.get(name, {}),
            "encoder": {"image_size": 64, "grid": 1},
            "data": {
                "files": [str(flags / "flags.json")],
                "features": str(flags / "features"),
                "min_count": 1,
                "captions_per_photo": 2,
            },
            "objective": {"name": OBJECTIVES.get(name, "info_nce")},
            "optim": {"lr": 0.003, "schedule": "cosine", "warmup": 3, "clip_norm": 1.0},
            "validation": {"every": 5, "metric": "R@1"},
            "batch_size": 8,
            "epochs": 10,
            "log_steps": 6,
            "dtype": "fp32",
            "threads": 1,
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe | changed))
        return tmp_path / "recipe.yaml"

    return write


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_a_retriever_learns_and_what_it_learned_can_be_loaded(tellapart, recipe_of, flags, tmp_path, name):
    code, out, err = tellapart("train", recipe_of(name), "--out", tmp_path / "run")
    assert code == 0, err
    assert "all epochs done after 60 steps" in out
    reported = {key for line in log_of(tmp_path / "run") for key in line if key.startswith("val/")}
    assert reported == {"val/R@1", "val/R@5", "val/R@10", "val/recall"}
    best = max(curve(tmp_path / "run", "val/R@1").values())
    assert best > 0.5  # chance is 1/16
    assert (tmp_path / "run" / "vocabulary.json").exists() == (RETRIEVERS[name].reads == "words")

    loaded = retrievers.load(tmp_path / "run")
    assert (loaded.name, loaded.sees, loaded.size) == ("run", RETRIEVERS[name].sees, MODELS[name]["size"])
    records = [r for r in json.loads((flags / "flags.json").read_text())["images"] if r["split"] == "val"]
    captions = loaded.embed_captions([text for record in records for text in record["captions"]])
    if loaded.sees == "photos":
        pixels = np.stack([photos.read(flags / record["file"], 64).pixels for record in records])
        match = loaded.similarity(captions, loaded.embed_pixels(pixels)).argmax(1)
        share = (match == torch.arange(16).repeat_interleave(3)).float().mean().item()
        assert share == pytest.approx(best, abs=0.03)  # features that validation used are of half precision
    assert train(recipe_of(name), tmp_path / "tiny", "--tiny").position.step == 10
    assert retrievers.load(tmp_path / "tiny").embed_captions(["a red flag"]).shape == (1, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_never_stopped(recipe_of, tmp_path, stopped_after, name):
    recipe = recipe_of(name, epochs=2, validation={"every": 1, "metric": "recall"}, save_minutes=0)
    train(recipe, tmp_path / "whole")
    stopped_after(lambda step: step == 8)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run")
    assert position_of(tmp_path / "run")["step"] == 8 < position_of(tmp_path / "whole")["step"]
    train(recipe, tmp_path / "run", resume=True)
    assert_same_tensors(tmp_path / "whole", tmp_path / "run")


def test_a_text_tower_needs_no_photos_and_who_looks_at_them_does(recipe_of, flags, tmp_path):
    content = json.loads((flags / "flags.json").read_text())
    for record in content["images"]:
        del record["file"]
    content["images"][0]["captions"] = ["only one caption"]
    (tmp_path / "texts.json").write_text(json.dumps(content))
    data = f"--data={tmp_path / 'texts.json'}", f"--data.features={tmp_path / 'features'}"
    train(recipe_of("text_tower"), tmp_path / "run", *data, "--max_steps=2")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["encoder"] == {}
    assert "only" not in (tmp_path / "run" / "vocabulary.json").read_text()  # a single caption has none to meet
    assert not (tmp_path / "features").exists()
    with pytest.raises(UserError, match="none of its records can be used"):
        train(recipe_of("vse"), tmp_path / "other", *data)


# --- photos that must not be learned from -----------------------------------------------------------------------------


LONG = ("a small dog runs on the wet grass", "the dog is running beside a fence")


def photo(id=1, file="/photos/dog.jpg", captions=()):
    return Example(id, Path(file) if file else Path(), "train", captions)


@pytest.mark.parametrize(
    ("example", "record", "expected"),
    [
        (photo(7), {"id": 3, "file": "elsewhere/dog.png"}, True),  # by the file's name
        (photo(7), {"id": 3, "file": "elsewhere/cat.jpg"}, False),
        (photo(7), {"id": "dog.jpg"}, True),  # where a file's name serves as the id
        (photo("dog", file=""), {"id": "dog"}, True),
        (photo("dog", file=""), {"id": "cat"}, False),
        (photo(3), {"id": 3, "file": "cat.jpg"}, False),  # running numbers of two data sets say nothing
        (photo(3), {"id": 3, "file": "cat.jpg", "dataset": "theirs"}, True),  # and within one they do
        (photo(4), {"id": 3, "file": "cat.jpg", "dataset": "theirs"}, False),
        (photo(7, captions=LONG), {"id": 3, "captions": [LONG[1] + ".", LONG[0].upper()]}, True),
        (photo(7, captions=LONG), {"id": 3, "captions": list(LONG), "file": None}, True),  # without a file, too
        (photo(7, captions=LONG), {"id": 3, "captions": [], "file": None}, False),
        (photo(7, captions=(*LONG, "wet grass")), {"id": 3, "captions": ["wet grass", "another thing"]}, False),
        (photo(7, captions=LONG), {"id": 3, "captions": ["something else", "nothing else"]}, False),
        (photo(7), {"id": 3, "captions": []}, False),
    ],
)
def test_a_photo_is_known_by_its_name_or_by_what_is_said_of_it(tmp_path, example, record, expected):
    record = {"file": "other.jpg", "captions": [], **record}
    dataset = record.pop("dataset", "mine")
    record = {key: value for key, value in record.items() if value is not None}
    (tmp_path / "test.json").write_text(json.dumps({"dataset": "theirs", "images": [record]}))
    assert Exclusion.of_files([str(tmp_path / "test.json")]).has(example, dataset) is expected


def test_photos_are_left_out_of_a_run(flags, recipe_of, tmp_path):
    content = json.loads((flags / "flags.json").read_text())
    unwanted = [{"id": f"x{i}", "file": record["file"]} for i, record in enumerate(content["images"][:5])]
    (tmp_path / "test.json").write_text(json.dumps({"dataset": "test", "images": unwanted}))
    recipe = asked(recipe_of("text_tower"), "--data.exclude", f"[{tmp_path / 'test.json'}]")
    ((_, kept),), problems = gathered(recipe, Sources())
    assert problems == []
    assert sorted(example.id for example in kept) == list(range(5, 64))


# --- validation -------------------------------------------------------------------------------------------------------


class Given:
    """Captions that are vectors already."""

    def __init__(self, vectors):
        self.vectors = torch.nn.functional.normalize(torch.as_tensor(vectors).float(), dim=1)

    def __call__(self, captions):
        return lambda numbers: self.vectors[torch.as_tensor(numbers)]

    def embed_captions(self, captions):
        return captions

    def embed_images(self, pooled):
        return pooled


class Kept:
    def __init__(self, vectors):
        self.vectors = torch.nn.functional.normalize(torch.as_tensor(vectors).float(), dim=1)

    def row(self, example):
        return example.id

    def pooled(self, rows):
        return self.vectors[rows]


def examples(*counts):
    return [photo(i, captions=("caption",) * count) for i, count in enumerate(counts)]


def validated(reader, *sets):
    return validate(reader, Pairs(list(sets), reader), torch.device("cpu"))


def test_recalls_are_what_a_loop_over_captions_finds():
    draw = np.random.default_rng(0)
    sets, captions = [], []
    for size in (30, 12):
        counts = draw.integers(1, 4, size)
        images = draw.normal(size=(size, 5)).astype(np.float16)
        sets.append((Stores(regions=Kept(images)), examples(*counts)))
        captions.append(np.repeat(images, counts, 0) + draw.normal(0, 1.0, (counts.sum(), 5)))
    recalls = []
    for (store, of_set), vectors in zip(sets, captions, strict=True):
        ranks, images = [], store.main.vectors.half().float().numpy()
        unit = iter(torch.nn.functional.normalize(torch.tensor(vectors).float(), dim=1).numpy())
        for match, example in enumerate(of_set):
            for _ in example.captions:
                cosines = images @ next(unit)
                ranks.append(sum(cosines[i] >= cosines[match] for i in range(len(images)) if i != match))
        recalls.append([np.mean([rank < k for rank in ranks]) for k in (1, 5, 10)])
    expected = np.mean(recalls, axis=0)
    result = validated(Given(np.concatenate(captions)), *sets)
    assert [result[f"R@{k}"] for k in (1, 5, 10)] == pytest.approx(expected.tolist())
    assert result["recall"] == pytest.approx(expected.mean())
    assert 0 < result["R@1"] < result["R@5"] < result["R@10"]


@pytest.mark.parametrize(
    ("captions", "photos", "counts"),
    [
        (np.ones((3, 2)), np.ones((3, 2)), (1, 1, 1)),
        # nearer than 1e-6, cosines in single precision are equal, as in every other ranking
        ([[1, 0], [1, 2.0**-12]], [[1, 0], [1, 2.0**-10]], (1, 1)),
        ([[1, 0], [1, 0], [1, 2.0**-10], [1, 2.0**-12]], None, (2, 2)),  # of references
    ],
)
def test_a_tie_does_not_count_as_found(captions, photos, counts):
    stores = Stores() if photos is None else Stores(regions=Kept(photos))
    reader = Given(captions)
    if len(captions) == 2:
        similarity = reader.vectors @ torch.tensor(photos).half().float().T
        assert 0 < float(similarity[1, 1] - similarity[1, 0]) < 1e-6  # the second is nearer to its own, by rounding
    result = validated(reader, (stores, examples(*counts)))
    assert (result["R@1"], result["R@5"]) == (0.0, 1.0)


def test_a_caption_is_not_among_the_references_that_it_is_judged_by():
    """Each caption is its photo's only support: without it the photo's other caption, which is far, is all there is."""
    vectors = np.array([[1, 0, 0, 0.0], [0, 1, 0, 0], [1, 0.1, 0, 0], [0, 1, 0.1, 0], [0, 0, 1, 0], [0, 0, 1, 0.1]])
    reader = Given(vectors)
    unit = reader.vectors.numpy()
    right = []
    for n, caption in enumerate(unit):
        cosines = [np.mean([caption @ unit[m] for m in (2 * p, 2 * p + 1) if m != n]) for p in range(3)]
        right.append(int(np.argmax(cosines)) == n // 2)
    assert right == [False, False, False, False, True, True]
    assert validated(reader, (Stores(), examples(2, 2, 2)))["R@1"] == pytest.approx(np.mean(right))
