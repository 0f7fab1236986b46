"""Attributes that nobody trained for: the classes of a detector, and words that a CLIP finds."""

import numpy as np
import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from capscore.objects import CLASSES
from detectors import tiny_yolox
from retrievers import tiny_clip
from tellapart.commands.features import main as features
from tellapart.models import sources
from tellapart.models.sources import attributes as load
from tellapart.models.sources import attributes_from
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")
BLUE, GREEN, RED = range(3)


def detector_file(file, person=1.0):
    """Two people where a photo is red, of which the second is half as sure, and a hot dog where it is blue."""
    answers = tiny_yolox.nothing(len(CLASSES))
    by_colour = np.zeros((3, *answers.shape), np.float32)
    answers[[-1, -2, -3], 4] = 1
    by_colour[RED, -1, 5], by_colour[RED, -2, 5] = person, 0.5 * person
    by_colour[BLUE, -3, 5 + CLASSES.index("hot dog")] = 1
    return tiny_yolox.write(file, answers, by_colour)


@pytest.fixture
def file(tmp_path):
    return detector_file(tmp_path / "tiny.onnx")


@pytest.fixture
def photos(tmp_path):
    """A red and blue one, a blue one, a black one."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, colour in enumerate([(204, 0, 102), (0, 0, 51), (0, 0, 0)]):
        Image.new("RGB", (96, 64), colour).save(folder / f"{number}.png")
    return folder


def test_the_classes_of_a_detector_are_words_with_their_highest_score(file, photos):
    source = load(EncoderConfig(str(file), most=3), CPU)
    loaded = [source.load(photos / f"{number}.png") for number in range(3)]
    named = [[(word, round(score, 4)) for word, score in words] for words in source.named(loaded)]
    assert named == [[("person", 0.8), ("hotdog", 0.4)], [("hotdog", 0.2)], []]  # 204, 102 and 51 of 255
    (opened,) = source.named([source.load(Image.open(photos / "0.png"))])
    assert [word for word, _ in opened] == ["person", "hotdog"]
    words = source.words  # each class is one word of its own
    assert len(set(words)) == len(words) == 80
    assert all(word.isalpha() and word.islower() for word in words)
    pairs = {"dog": "dog", "hot dog": "hotdog", "bear": "bear", "teddy bear": "teddy", "traffic light": "light"}
    assert {name: words[CLASSES.index(name)] for name in pairs} == pairs


def test_what_a_detector_finds_is_kept_and_bad_photos_are_named(file, photos, tmp_path, capsys):
    (photos / "3.png").write_bytes(b"no photo")
    arguments = [str(photos), "--encoder", str(file), "--attributes", "2", "--out", str(tmp_path / "f")]
    assert features(arguments) == 1
    assert "3.png" in capsys.readouterr().err
    store = load(EncoderConfig(str(file), most=2), CPU).open(tmp_path / "f", "photos")
    rows = {line["file"].rsplit("/", 1)[1]: line["row"] for line in store.lines.values()}
    assert sorted(rows) == ["0.png", "1.png", "2.png"]
    places = [CLASSES.index("person"), CLASSES.index("hot dog")]
    assert store.grid([rows["0.png"]])[0, :, 0].tolist() == places
    counts = {line["row"]: line["regions"] for line in store.lines.values()}
    assert [counts[rows[name]] for name in sorted(rows)] == [2, 1, 0]


def test_a_model_sees_by_the_detector_that_the_user_names_and_by_no_other(file, tmp_path, monkeypatch):
    source = load(EncoderConfig(str(file), most=3, threshold=0.25), CPU)
    with pytest.raises(UserError, match=r"If you trust that file, name it: TELLAPART_ENCODERS"):
        attributes_from(source.identity, CPU, [])
    monkeypatch.setenv("TELLAPART_ENCODERS", str(file))
    assert attributes_from(source.identity, CPU, []).identity == source.identity
    (tmp_path / "other").mkdir()
    detector_file(tmp_path / "other" / "tiny.onnx", person=0.9)
    monkeypatch.setenv("TELLAPART_ENCODERS", str(tmp_path / "other"))
    with pytest.raises(UserError, match="but the weights here are"):
        attributes_from(source.identity, CPU, [])


def test_what_is_no_detector_of_cocos_classes_is_refused(tmp_path):
    few = tiny_yolox.write(tmp_path / "few.onnx", tiny_yolox.nothing(3))
    with pytest.raises(UserError, match=r"few\.onnx: knows 3 classes"):
        load(EncoderConfig(str(few)), CPU)
    (tmp_path / "bad.onnx").write_text("no graph")
    with pytest.raises(UserError, match=r"bad\.onnx: is damaged, or is no ONNX file"):
        load(EncoderConfig(str(tmp_path / "bad.onnx")), CPU)


def test_a_clip_compares_a_photo_with_a_photo_of_each_word(tmp_path, monkeypatch):
    """As transformers' own model does."""
    transformers = pytest.importorskip("transformers", reason="CLIP is loaded with transformers")
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    words = ("dog", "red", "street")
    monkeypatch.setattr(sources, "zero_shot_words", lambda: words)
    folder = tiny_clip.clip(tmp_path / "tiny-clip")
    pixels = np.random.default_rng(0).integers(0, 255, (2, tiny_clip.SIZE, tiny_clip.SIZE, 3), np.uint8)
    images = [Image.fromarray(own) for own in pixels]
    for number, image in enumerate(images):
        image.save(tmp_path / f"{number}.png")
    source = load(EncoderConfig(str(folder), most=2), CPU)
    loaded = [source.load(tmp_path / f"{number}.png") for number in range(2)]
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
    seen = CLIPImageProcessorPil.from_pretrained(folder)(images=images, return_tensors="pt")
    texts = tokenizer([f"a photo of {word}" for word in words], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = transformers.CLIPModel.from_pretrained(folder)(**seen, **texts).logits_per_image
    expected = logits.softmax(1)
    torch.testing.assert_close(source.probabilities(loaded), expected, atol=1e-3, rtol=1e-3)
    best = [[words[place] for place in row] for row in expected.argsort(descending=True)[:, :2].tolist()]
    assert [[word for word, _ in own] for own in source.named(loaded)] == best
