"""Where regions are and how they are related: streams that go with them, from store or recipe to a captioner."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from support import region_archives as archives
from tellapart import models
from tellapart.commands.train import main as train
from tellapart.commands.train import parse
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.store import Stores
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders.encoder import Encoder
from tellapart.features.importing import bring_in
from tellapart.features.sources import Imported, grid_boxes, regions_of
from tellapart.models.sources import of_model
from tellapart.recipe import EncoderConfig
from tellapart.training.preparation import sources_of

CPU = torch.device("cpu")
COUNTS = {"11": 3, "12": 1, "13": 5}  # regions of each photo
PHOTOS = {id: archives.photo(int(id), count) for id, count in COUNTS.items()}
EXAMPLES = [Example(int(id), Path(f"/photos/{id}.jpg"), "train", ("a dog",)) for id in COUNTS]
GRID = "{name: efficientnet_lite2, image_size: 64, grid: 2, coarse: 1}"
SCALE = np.array([archives.WIDTH, archives.HEIGHT] * 2)


@pytest.fixture
def store(tmp_path):
    return bring_in(EXAMPLES, archives.as_tsv(tmp_path / "a", PHOTOS), tmp_path / "f" / "pets.bu", "bu", cap=4).store


def test_the_cells_of_a_second_grid_follow_those_of_the_first():
    boxes = grid_boxes(4, 2)
    assert boxes.shape == (16 + 4, 4)
    assert boxes[:16].equal(grid_boxes(4))
    assert boxes[16:].equal(grid_boxes(2))
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert (area[:16].sum(), area[16:].sum()) == (1, 1)


def test_imported_boxes_stand_beside_their_regions_in_a_batch(store):
    data = CaptionedPhotos(
        [(Stores(regions=store, boxes=store.source.beside("boxes").of(store)), EXAMPLES)],
        WordTokenizer(["a", "dog"]),
        max_words=5,
    )
    inputs = data.inputs(np.array([2, 0]))
    boxes, mask = inputs["boxes"]
    assert boxes.shape == (2, 4, 4)
    assert mask.equal(inputs["regions"].mask)
    np.testing.assert_allclose(boxes[0], (PHOTOS["13"]["boxes"] / SCALE)[:4].clip(0, 1), atol=1e-3)
    np.testing.assert_allclose(boxes[1, :3], PHOTOS["11"]["boxes"] / SCALE, atol=1e-3)


def test_boxes_are_known_by_what_makes_their_regions():
    regions = Imported("bu", 8)
    for gives, size in (("boxes", 4), ("relations", 3)):
        beside = regions.beside(gives)
        assert beside.feature_size == size
        assert regions_of(beside.identity) == (regions.identity, gives)
    assert regions_of(regions.identity) == (regions.identity, None)


@pytest.mark.parametrize("boxes", ["{name: efficientnet_lite2, grid: 3}", "{name: efficientnet_lite0, grid: 2}"])
def test_boxes_of_others_than_the_regions_are_refused(boxes):
    recipe, _, _ = parse(
        ["--captioner=gcn_lstm", f"--inputs={{regions: {{name: efficientnet_lite2, grid: 2}}, boxes: {boxes}}}"]
    )
    with pytest.raises(UserError, match=r"inputs\.boxes: boxes belong to the regions"):
        sources_of(recipe, CPU)


def model_folder(folder, inputs, name="gcn_lstm", size=8):
    words = WordTokenizer(["a", "dog"])
    sizes = {stream: {"boxes": 4, "relations": 3}.get(stream, size) for stream in inputs}
    settings = {"word_width": 4, "width": 4, "attention_width": 4}
    captioner = models.build_captioner(name, settings, vocab_size=len(words), feature_sizes=sizes)
    folder.mkdir()
    models.describe(folder, name, captioner, words, inputs)
    models.save_weights(folder / "model.safetensors", captioner)
    return folder


def trained(tmp_path, inputs, files, validation):
    """A model that learned for one step, from files of which some are for validation."""
    images = [
        {"id": int(Path(f).stem), "file": f, "split": "val" if f in validation else "train", "captions": ["a dog"]}
        for f in files
    ]
    (tmp_path / "pets.json").write_text(json.dumps({"dataset": "pets", "images": images}))
    settings = ["--captioner=gcn_lstm", f"--inputs={inputs}", "--data.min_count=1", f"--data.features={tmp_path / 'f'}"]
    settings += ["--data", str(tmp_path / "pets.json"), "--device=cpu", "--max_steps=1", "--out", str(tmp_path / "run")]
    assert train([*settings, "--model={word_width: 8, width: 8, attention_width: 8}"]) == 0
    return models.load(tmp_path / "run", CPU)


def test_a_graph_of_two_grids_is_learned_from_photos_and_captions_them(tmp_path):
    """From a recipe with raw photos to a model folder, and from that to the boxes that the captioner is given."""
    files = [f"{number}.png" for number in range(6)]
    for number, file in enumerate(files):
        Image.new("RGB", (80, 60), (40 * number, 90, 0)).save(tmp_path / file)
    model = trained(tmp_path, f"{{regions: {GRID}, boxes: {GRID}}}", files, files[:2])
    seen = of_model(model, CPU)
    given = seen.inputs([seen.load(str(tmp_path / "3.png"))])
    assert given["boxes"].values[0].equal(grid_boxes(2, 1))
    assert seen.region_boxes(seen.load(str(tmp_path / "3.png"))).equal(grid_boxes(2, 1))
    assert given["regions"].values.shape == (1, 5, 1280)
    torch.testing.assert_close(given["regions"].values[0, 4], given["regions"].values[0, :4].mean(0))


def test_a_model_whose_boxes_are_of_another_grid_than_its_regions_is_refused_in_one_sentence(tmp_path):
    identity = Encoder(EncoderConfig(image_size=64, grid=2)).identity
    model = model_folder(tmp_path / "model", {"regions": identity, "boxes": identity | {"gives": "boxes"}}, size=1280)
    loaded, others = models.load(model, CPU), [{"grid": grid} for grid in (0, -1, 1000, "2", None)]
    for grid in (*others, {"coarse": 0}, {"coarse": "2"}):
        loaded.inputs["boxes"] = identity | grid | {"gives": "boxes"}
        with pytest.raises(UserError, match="does not say which regions its boxes belong to"):
            of_model(loaded, CPU)


def test_models_of_which_one_needs_boxes_speak_together(tmp_path):
    source = Imported("bu", 8)
    inputs = {"regions": source.identity, "boxes": source.beside("boxes").identity}
    one = model_folder(tmp_path / "one", inputs)
    other = model_folder(tmp_path / "other", {"regions": source.identity}, "up_down")
    assert models.load(f"{one}+{other}", CPU).inputs == inputs
    assert models.load(f"{other}+{one}", CPU).inputs == inputs
    labelled = {"regions": source.identity, "relations": source.beside("relations").identity}
    semantic = model_folder(tmp_path / "semantic", labelled)
    assert models.load(f"{one}+{semantic}", CPU).inputs == inputs | labelled  # Yao et al.'s captioner of both graphs
    strange = model_folder(tmp_path / "strange", {"regions": Imported("other", 8).identity}, "up_down")
    with pytest.raises(UserError, match="learned from features of different encoders"):
        models.load(f"{one}+{strange}", CPU)


RELATIONS = {  # of photo 13 only four regions are kept; of two from one region to another the first counts
    "11": np.array([[0, 1, 7], [2, 0, 20], [0, 1, 3]]),
    "12": np.zeros((0, 3)),
    "13": np.array([[4, 0, 1], [3, 1, 2]], np.float32),
}
KEPT = {"11": [[0, 1, 7], [2, 0, 20]], "12": [], "13": [[3, 1, 2]]}


def brought_in(tmp_path, relations):
    related = {id: arrays | {"relations": relations[id]} for id, arrays in PHOTOS.items() if id in relations}
    photos = PHOTOS | related
    return bring_in(EXAMPLES, archives.as_npz(tmp_path / "a", photos), tmp_path / "f" / "pets.bu", "bu", cap=4)


@pytest.mark.parametrize("given", [("11", "12", "13"), ("11", "13")])
def test_relations_stand_beside_their_regions_in_a_batch(tmp_path, given):
    """A photo may have none, whether that is written down or not."""
    result = brought_in(tmp_path, {id: RELATIONS[id] for id in given})
    assert result.notes[-1] == "relations have labels up to 20: a captioner needs model.relation_labels=21"
    relations = result.store.source.beside("relations").of(result.store)
    data = CaptionedPhotos(
        [(Stores(regions=result.store, relations=relations), EXAMPLES)], WordTokenizer(["a", "dog"]), max_words=5
    )
    values, mask = data.inputs(np.array([2, 0, 1]))["relations"]
    for photo, id in enumerate(("13", "11", "12")):
        assert values[photo][mask[photo]].tolist() == KEPT[id]
    values, mask = data.inputs(np.array([1]))["relations"]
    assert (values.shape, mask.any()) == ((1, 1, 3), False)


@pytest.mark.parametrize(
    ("relations", "why"),
    [
        ([[0, 3, 1]], "has a relation of region 3 \\(counted from 0\\), and has 3 regions"),
        ([[0, 1, -1]], "not three whole numbers from 0"),
        ([[0, 0.5, 1]], "not three whole numbers from 0"),
        ([[0, 1, np.nan]], "not three whole numbers from 0"),
        ([[0, 1]], "shape \\(1, 2\\), not \\(relations, 3\\)"),
    ],
)
def test_relations_that_cannot_be_are_named_and_other_photos_go_on(tmp_path, relations, why):
    result = brought_in(tmp_path, RELATIONS | {"11": np.array(relations)})
    (failed,) = result.failed
    assert re.search(f"image 11: .*{why}", failed)
    assert (result.added, result.missing) == (2, ["11"])


def test_features_without_relations_say_so(tmp_path):
    store = brought_in(tmp_path, {}).store
    with pytest.raises(UserError, match=r"pets\.bu has none; import archives that have `relations`"):
        store.source.beside("relations").of(store)
    recipe, _, _ = parse([f"--inputs={{regions: {GRID}, relations: {GRID}}}"])
    with pytest.raises(UserError, match=r"inputs\.relations: only imported features have them"):
        sources_of(recipe, CPU)


def test_a_semantic_graph_is_learned_from_imported_relations(tmp_path):
    brought_in(tmp_path, RELATIONS)
    files = [f"{id}.jpg" for id in COUNTS]
    loaded = trained(tmp_path, "{regions: {name: bu}, relations: {name: bu}}", files, ["12.jpg"])
    seen = of_model(loaded, CPU, tmp_path / "f", [str(tmp_path / "pets.json")])
    given = seen.inputs([seen.load(str(tmp_path / f"{id}.jpg")) for id in COUNTS])
    for photo, id in enumerate(COUNTS):
        values, mask = given["relations"]
        assert values[photo][mask[photo]].tolist() == KEPT[id]
    assert loaded.captioner.encode(given).regions.isfinite().all()
    assert loaded.captioner.graph is None
