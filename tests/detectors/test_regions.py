"""A detector's boxes as regions of photos, from the map to what a captioner is given."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from detectors import tiny_yolox
from tellapart import models
from tellapart.captioning.captioner import load as load_captioner
from tellapart.commands.caption import main as caption
from tellapart.commands.features import main as features
from tellapart.commands.train import main as train
from tellapart.commands.train import parse
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.store import Stores
from tellapart.data.tokenizers import WordTokenizer
from tellapart.detectors import yolox
from tellapart.detectors.detector import MOST, region_features, roi_align, sure_ones
from tellapart.encoders.encoder import Encoder
from tellapart.errors import BadPhoto
from tellapart.features.sources import Detected, grid_boxes
from tellapart.models.sources import of_model
from tellapart.recipe import EncoderConfig
from tellapart.training.preparation import check, sources_of

CPU = torch.device("cpu")
COLOURS = [(250, 0, 0), (0, 240, 0), (0, 0, 200), (0, 0, 0)]
WHOLE = [0.0, 0.0, 1.0, 1.0]
REGIONS = "{name: efficientnet_lite2, image_size: 64, grid: 1, detected: 2}"


@pytest.fixture
def file(tmp_path):
    """Sees one box in what is red, blue or green, and two more in what is red."""
    answers, by_colour = tiny_yolox.nothing(), np.zeros((3, *tiny_yolox.nothing().shape), np.float32)
    answers[[-1, -2, -3], 4] = 1
    by_colour[:, -1, 5:] = np.eye(3)
    by_colour[2, -2, 7], by_colour[2, -3, 7] = 0.8, 0.6
    return tiny_yolox.write(tmp_path / "tiny.onnx", answers, by_colour)


@pytest.fixture
def detector(file):
    return yolox.load(file)


@pytest.fixture
def data(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    images = []
    for number, colour in enumerate(COLOURS):
        pixels = np.random.default_rng(number).integers(0, 8, (64, 96, 3)) + np.array(colour) * 0.8
        Image.fromarray(pixels.astype(np.uint8)).save(photos / f"{number}.png")
        split = "val" if number == 3 else "train"
        images.append({"id": number, "file": f"photos/{number}.png", "split": split, "captions": ["a dog"]})
    (tmp_path / "pets.json").write_text(json.dumps({"dataset": "pets", "images": images}))
    return tmp_path / "pets.json"


def examples(data):
    return [Example(number, data.parent / "photos" / f"{number}.png", "train", ("a dog",)) for number in range(4)]


def bilinear(plane, y, x):
    """Of a map whose values stand in the middle of their cells."""
    y, x = (min(max(at - 0.5, 0), side - 1) for at, side in ((y, plane.shape[0]), (x, plane.shape[1])))
    total = 0.0
    for row in range(plane.shape[0]):
        for column in range(plane.shape[1]):
            total += plane[row, column] * max(0, 1 - abs(row - y)) * max(0, 1 - abs(column - x))
    return total


# The map


@pytest.mark.parametrize("box", [[0.1, 0.3, 0.8, 0.45], WHOLE, [0.0, 0.0, 0.02, 0.01], [0.9, 0.5, 1.0, 1.0]])
def test_a_bin_is_the_mean_of_its_points(box):
    height, width, bins, points = 3, 5, 2, 3
    feature_map = torch.randn(2, height, width, generator=torch.Generator().manual_seed(1))
    found = roi_align(feature_map, torch.tensor([WHOLE, box]), bins, points)[1]
    left, top, right, bottom = box
    for depth in range(2):
        for row in range(bins):
            for column in range(bins):
                values = [
                    bilinear(
                        feature_map[depth].numpy(),
                        height * (top + (bottom - top) * (row + (i + 0.5) / points) / bins),
                        width * (left + (right - left) * (column + (j + 0.5) / points) / bins),
                    )
                    for i in range(points)
                    for j in range(points)
                ]
                assert found[depth, row, column].item() == pytest.approx(np.mean(values), abs=1e-5)


def test_a_region_is_the_mean_or_the_largest_of_its_bins():
    feature_map = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(2))
    boxes = torch.tensor([[0.1, 0.2, 0.6, 0.9], WHOLE])
    bins = roi_align(feature_map, boxes)
    assert bins.shape == (2, 3, 7, 7)
    torch.testing.assert_close(region_features(feature_map, boxes, "avg"), bins.mean((2, 3)))
    assert region_features(feature_map, boxes, "max").equal(bins.amax((2, 3)))
    assert region_features(feature_map, boxes[:0], "avg").shape == (0, 3)


# Photos


def test_regions_are_the_cells_and_then_the_boxes_and_no_more_than_the_cap(detector, data, own_cache, tmp_path):
    config = EncoderConfig(image_size=64, grid=2, coarse=1, detected=2)
    encoder = Detected(Encoder(config), detector)
    store = encoder.fill(tmp_path / "f", examples(data)).store
    assert [store.count(one) for one in examples(data)] == [5 + 2, 5 + 1, 5 + 1, 5]  # red has 3 boxes, black none
    data_set = CaptionedPhotos(
        [(Stores(regions=store, boxes=encoder.beside("boxes").of(store)), examples(data))],
        WordTokenizer(["a", "dog"]),
        max_words=5,
    )
    inputs = data_set.inputs(np.arange(4))
    regions, boxes = inputs["regions"], inputs["boxes"]
    assert regions.mask.equal(boxes.mask)
    assert regions.mask.sum(1).tolist() == [7, 6, 6, 5]
    cells = Encoder(EncoderConfig(image_size=64, grid=2, coarse=1))
    for number, one in enumerate(examples(data)):
        found = detector(detector.read(one.file))
        np.testing.assert_allclose(boxes.values[number, 5:][boxes.mask[number, 5:]], found.boxes[:2], atol=1e-3)
        pixels = encoder.load(one.file).pixels[None]
        torch.testing.assert_close(boxes.values[number, :5], grid_boxes(2, 1), atol=1e-3, rtol=0)
        torch.testing.assert_close(regions.values[number, :5], cells(pixels).grid[0], atol=5e-3, rtol=5e-3)
        own = region_features(cells.feature_map(pixels)[0], torch.from_numpy(found.boxes[:2]), "avg")
        torch.testing.assert_close(regions.values[number, 5:][regions.mask[number, 5:]], own, atol=5e-3, rtol=5e-3)


def test_a_photo_with_which_the_detector_fails_is_named_and_the_others_go_on(
    detector, data, own_cache, tmp_path, capsys
):
    def broken(photo, call=detector):
        if photo.canvas[..., 2].mean() > 150:
            raise BadPhoto("", "the detector tiny gives numbers that are not finite")
        return call(photo)

    class Broken:
        name, sha256, identity, read = detector.name, detector.sha256, detector.identity, detector.read
        __call__ = staticmethod(broken)

    encoder = Detected(Encoder(EncoderConfig(image_size=64, grid=1, detected=5)), Broken())
    result = encoder.fill(tmp_path / "f", examples(data))
    assert result.failed == {"0": "the detector tiny gives numbers that are not finite"}
    assert result.computed == 3
    assert "0.png: the detector tiny gives numbers that are not finite" in capsys.readouterr().err
    with pytest.raises(BadPhoto, match=r"0\.png: the detector tiny gives numbers that are not finite$"):
        encoder.load(examples(data)[0].file)


def test_stores_of_different_detectors_lie_apart(file, data, own_cache, tmp_path):
    other = tiny_yolox.write(tmp_path / "other.onnx", tiny_yolox.nothing())
    settings = [str(data), "--image-size", "64", "--grid", "1", "--out", str(tmp_path / "f")]
    for detector in (file, other):
        assert features([*settings, "--detector", str(detector), "--detected", "4"]) == 0
    assert features(settings) == 0
    assert len({folder.name for folder in (tmp_path / "f").iterdir()}) == 3


def test_boxes_end_at_the_edges_of_the_photo_and_those_without_area_are_left_out():
    boxes = np.array([[-1, 0.2, 0.5, 3], [0.5, 0.5, 0.5, 0.9], [1.1, 0, 2, 1], [0.9, 0.1, 0.2, 0.4]], np.float32)
    found = sure_ones(boxes, np.array([0.6, 0.9, 0.8, 0.7], np.float32), np.array([3, 1, 1, 2]))
    np.testing.assert_allclose(found.boxes, [[0, 0.2, 0.5, 1]])
    assert (found.scores.tolist(), found.classes.tolist()) == ([pytest.approx(0.6)], [3])
    boxes = np.tile(np.array([0.1, 0.1, 0.5, 0.5], np.float32), (2, 1))
    found = sure_ones(boxes, np.array([np.nan, 0.4], np.float32), np.array([0, 0]))
    assert found.scores.tolist() == [pytest.approx(0.4)]  # no number is not above any threshold
    corner = np.linspace(0, 0.9, 300, dtype=np.float32)  # more than a photo can have are cut to the surest
    boxes = np.stack([corner, corner, corner + 0.1, corner + 0.1], 1)
    scores = np.random.default_rng(0).uniform(0.1, 1, 300).astype(np.float32)
    found = sure_ones(boxes, scores, np.arange(300))
    assert found.scores.tolist() == sorted(scores.tolist(), reverse=True)[:MOST]


def test_a_model_that_does_not_say_its_detector_is_refused_in_one_sentence(tmp_path, file):
    words, identity = WordTokenizer(["a", "dog"]), Encoder(EncoderConfig(image_size=64, grid=2)).identity
    captioner = models.build_captioner("show_tell", {}, vocab_size=len(words), feature_sizes={"regions": 1280})
    for damage in ({"detector": "x"}, {"detector": None}, {"detected": 3}, {"detector": {}}):
        model = models.Model(captioner, words, {"regions": identity | damage}, "")
        with pytest.raises(UserError, match="this model was trained with regions of the detector None"):
            of_model(model, CPU)
        with pytest.raises(UserError, match=r"--detector .*tiny\.onnx is another one"):
            of_model(model, CPU, detector=file)


# From a recipe to captions


def settings(data, *others):
    return [
        f"--inputs={{regions: {REGIONS}, boxes: {REGIONS}}}",
        "--captioner=gcn_lstm",
        "--data.min_count=1",
        f"--data.features={data.parent / 'f'}",
        "--device=cpu",
        *("--data", str(data)),
        *others,
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "inputs.regions.detected: boxes need a detector, which --detector names: a YOLOX export"),
        (["--detector=d.onnx", "--data.views=2"], "data.views: a detector's boxes are of whole photos"),
        (
            ["--detector=d.onnx", "--retriever=word_tower", "--captioner="],
            "encoder.detected: a retriever goes by whole",
        ),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(data, options, sentence):
    recipe, _, _ = parse(settings(data, *options))
    if recipe.retriever:
        recipe.objective.name, recipe.validation.metric = "info_nce", "recall"
    with pytest.raises(UserError, match=sentence):
        check(recipe)


def test_no_detector_is_refused_before_photos_are_read(data, tmp_path):
    (tmp_path / "bad.onnx").write_text("no graph")
    recipe, _, _ = parse(settings(data, f"--detector={tmp_path / 'bad.onnx'}"))
    with pytest.raises(UserError, match=r"bad\.onnx: is damaged, or is no ONNX file"):
        sources_of(recipe, CPU)


def test_a_model_learns_from_detected_regions_and_captions_with_the_same_detector(
    data, file, own_cache, tmp_path, capsys
):
    run, small = tmp_path / "run", "--model={word_width: 8, width: 8, attention_width: 8}"
    assert train(settings(data, "--detector", str(file), small, "--max_steps=1", "--out", str(run))) == 0
    said = json.loads((run / "config.json").read_text())["inputs"]["regions"]
    assert said["detector"]["weights_sha256"] == yolox.load(file).sha256
    model = models.load(run, CPU)
    photos = [str(one.file) for one in examples(data)]
    seen = of_model(model, CPU, detector=file)
    given = seen.inputs([seen.load(photo) for photo in photos])
    assert given["regions"].mask.sum(1).tolist() == [3, 2, 2, 1]  # with the whole photo
    assert given["boxes"].mask.equal(given["regions"].mask)
    assert [seen.region_boxes(seen.load(photo)).shape for photo in photos[:3]] == [(3, 4), (2, 4), (2, 4)]
    assert seen.region_boxes(seen.load(photos[3])) is None  # the one region is the whole photo
    without = models.Model(model.captioner, model.tokenizer, {"regions": model.inputs["regions"]}, "")
    alone = of_model(without, CPU, detector=file)
    assert alone.region_boxes(alone.load(photos[0])).equal(given["boxes"].values[0])
    kept = of_model(model, CPU, tmp_path / "f", [str(data)], detector=file)
    again = kept.inputs([kept.load(photo) for photo in photos[:3]])
    torch.testing.assert_close(again["regions"].values, given["regions"].values[:3], atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(again["boxes"].values, given["boxes"].values[:3], atol=1e-3, rtol=0)
    captioner = load_captioner(run, device="cpu", detector=file)
    by_file = [row.text for row in captioner.caption(photos)]
    opened = [row.text for row in captioner.caption([Image.open(photo) for photo in photos])]
    assert by_file == opened

    assert caption([*photos, "--model", str(run), "--detector", str(file), "--device", "cpu", "--beam", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        f"{p}\t{text}" for p, text in zip(photos, by_file, strict=True)
    ]
    digest = yolox.load(file).sha256[:12]
    with pytest.raises(UserError, match=rf"detector yolox \(sha256 {digest}\); give it: --detector FILE\.onnx\.$"):
        load_captioner(run, device="cpu")
    other = tiny_yolox.write(tmp_path / "other.onnx", tiny_yolox.nothing())
    with pytest.raises(UserError, match=rf"sha256 {digest}\); --detector .*other\.onnx is another one"):
        load_captioner(run, device="cpu", detector=other)
