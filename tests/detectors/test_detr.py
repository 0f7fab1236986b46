"""DETR and its like, against transformers' own way of making photos ready and of reading their answers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from encoders import tiny_backbones
from tellapart.detectors import load
from tellapart.detectors.detector import LEAST, BadDetector, Failed, detect
from tellapart.detectors.detr import Detr, resized
from tellapart.detectors.yolox import Yolox

RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
LABELS = {0: "person", 1: "N/A", 2: "dog", 3: "sofa"}
EDGES = {"shortest_edge": 48, "longest_edge": 80}
SQUARE = {"height": 64, "width": 96}


def network(kind):
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig, YolosConfig, YolosForObjectDetection

    torch.manual_seed(0)
    if kind == "yolos":  # its logits have "nothing", too; it is built of patches
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = YolosConfig(**sizes, image_size=[64, 96], patch_size=16, num_detection_tokens=6, id2label=LABELS)
        return YolosForObjectDetection(config).eval()
    stages = {"backbone_config": ResNetConfig(**RESNET, out_features=["stage4"]), "use_timm_backbone": False}
    width = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_queries": 12}
    depth = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    made = DetrForObjectDetection(DetrConfig(**stages, **width, **depth, id2label=LABELS)).eval()
    made.bbox_predictor.layers[-1].weight.data *= 20  # fresh weights put all boxes into the same place
    return made


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    def save(kind, **processor):
        folder = tmp_path_factory.mktemp(kind)
        network(kind).save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        return folder

    return save


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3)).astype(np.uint8)
    Image.fromarray(pixels).resize((180, 120)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize(("kind", "size"), [("detr", EDGES), ("detr", SQUARE), ("yolos", SQUARE)])
def test_boxes_are_those_that_transformers_finds(saved, photo, kind, size):
    from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

    processor = DetrImageProcessorPil(size=size, do_pad=False)
    folder = saved(kind, size=size)
    detector = Detr(str(folder))
    image = Image.open(photo)
    ready = processor(images=image, return_tensors="pt")
    own = detector.read(photo)
    assert own.pixels.shape[:2] == ready["pixel_values"].shape[2:]
    with torch.inference_mode():
        answer = network(kind)(pixel_values=ready["pixel_values"])
    theirs = processor.post_process_object_detection(answer, threshold=LEAST, target_sizes=[(1, 1)])[0]
    found = detector(own)
    assert len(found.scores) > 0
    place = {round(score, 3): number for number, score in enumerate(theirs["scores"].tolist())}
    for box, score, label in zip(found.boxes, found.scores, found.classes, strict=True):
        number = min(place.items(), key=lambda one: abs(one[0] - score))[1]
        assert theirs["scores"][number].item() == pytest.approx(score, abs=2e-3)
        assert theirs["labels"][number] == label
        np.testing.assert_allclose(theirs["boxes"][number].clamp(0, 1), box, atol=5e-3)


def test_logits_without_nothing_are_sigmoids(saved, photo, monkeypatch):
    """As RT-DETR gives them."""
    detector = Detr(str(saved("detr", size=SQUARE)))
    logits = torch.tensor([[[-9.0, -9, 1, -9], [-9, -9, -9, -9], [2, -9, -9, 1.5]]])
    boxes = torch.tensor([[[0.5, 0.5, 0.5, 0.5], [0.1, 0.1, 0.1, 0.1], [0.9, 0.5, 0.4, 2.0]]])
    answer = type("Answer", (), {"logits": logits, "pred_boxes": boxes})
    monkeypatch.setattr(detector, "network", lambda pixel_values: answer)
    found = detector(detector.read(photo))
    np.testing.assert_allclose(found.scores, [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1))], rtol=1e-6)
    np.testing.assert_allclose(found.boxes, [[0.7, 0, 1, 1], [0.25, 0.25, 0.75, 0.75]], atol=1e-6)
    assert found.classes.tolist() == [0, 2]
    boxes[0, 1, 0] = torch.nan
    with pytest.raises(Failed, match="gives numbers that are not finite"):
        detector(detector.read(photo))


def test_a_photo_keeps_its_shape_within_the_edges():
    """As transformers does it: the short side as said, unless the long one becomes too long."""
    for photo, expected in (((640, 480), (1067, 800)), ((1000, 100), (1333, 133)), ((5000, 1), (1333, 1))):
        assert resized(photo, {"shortest_edge": 800, "longest_edge": 1333}) == expected
    assert resized((640, 480), {"height": 640, "width": 320}) == (320, 640)


def test_classes_are_known_by_their_names(saved):
    detector = Detr(str(saved("detr", size=SQUARE)))
    assert detector.numbers_of(["dog", "couch", "person"]) == {2: 0, 3: 1, 0: 2}
    with pytest.raises(BadDetector, match=r"does not know 'cat' \(1 of 2 classes are missing\)\.$"):
        detector.numbers_of(["dog", "cat"])


def test_a_folder_is_a_detector_like_a_file(saved, photo, own_cache):
    detector = load(str(saved("detr", size=SQUARE)))
    assert not isinstance(detector, Yolox)
    first, second = (detect(detector, [str(photo)]) for _ in range(2))
    assert first.boxes.equal(second.boxes)
    assert first.mask.any()
    assert len(list((own_cache / "detections").iterdir())) == 1


def test_what_is_no_detector_is_refused_in_one_sentence(saved, tmp_path):
    backbone = tiny_backbones.save(tmp_path / "resnet", "resnet")
    with pytest.raises(UserError, match=r"is a model of the type 'resnet', which does not detect objects\.$"):
        load(str(backbone))
    with pytest.raises(UserError, match=r"photos cannot be made ready as this file says \(the size is given as 7\)"):
        load(str(saved("detr", size=7)))
    with pytest.raises(UserError, match="sides of 32 to 2048 pixels"):
        load(str(saved("detr", size={"height": 10**6, "width": 64})))
    damaged = saved("detr", size=SQUARE)
    (damaged / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="the detector cannot be loaded"):
        load(str(damaged))
    with pytest.raises(UserError, match="nowhere"):
        load(str(tmp_path / "nowhere.onnx"))
