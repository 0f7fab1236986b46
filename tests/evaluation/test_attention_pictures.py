"""Pictures of attention: what is framed is what has the most weight, and files and report have the same pictures."""

import base64
import io
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from detectors import tiny_yolox
from evaluation import world
from tellapart import models
from tellapart.captioners import CAPTIONERS
from tellapart.data.streams import Inputs
from tellapart.data.tokenizers import WordTokenizer
from tellapart.decoding.word_regions import attention, mean_over_regions
from tellapart.detectors import yolox
from tellapart.encoders.encoder import Encoder
from tellapart.evaluation import attention as pages
from tellapart.features.sources import Attributes, Detected, Loaded, Sources
from tellapart.protocols.captioners import FEATURES, every_stream, tiny
from tellapart.recipe import EncoderConfig

WORDS = WordTokenizer(["a", "dog", "cat", "on", "the", "bed", "bus"])
RED = (214, 39, 40)
GRID = torch.tensor([[column, row, column + 1, row + 1] for row in range(3) for column in range(3)]) / 3


@pytest.fixture
def photo(tmp_path):
    Image.new("RGB", (80, 60), "white").save(tmp_path / "white.png")
    return tmp_path / "white.png"


def captioner(name, streams=("regions", "attributes"), boxes=GRID, crop=False, **settings):
    """With nine regions, in a grid of 3 x 3."""
    torch.manual_seed(1)
    given = every_stream(torch.randn(1, 9, FEATURES) * 3)
    visual = SimpleNamespace(
        load=lambda file: file,
        inputs=lambda loaded: Inputs({stream: given[stream] for stream in streams}),
        region_boxes=lambda loaded: boxes,
        encoder=SimpleNamespace(fit=SimpleNamespace(crop=crop)),
    )
    network = tiny(name, len(WORDS), **settings)
    return SimpleNamespace(streams=visual, network=network, tokenizer=WORDS, device=torch.device("cpu"))


def picture(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def framed(pixels):
    """The corners of what is drawn in red."""
    rows, columns = np.nonzero((abs(pixels - RED) < 2).all(2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_the_frame_is_around_the_region_with_the_most_weight_and_it_is_brightest(photo):
    one = captioner("up_down", streams=("regions",))
    tokens = torch.tensor(WORDS.encode("a dog on the bed"))
    weights = mean_over_regions(attention(one.network, one.streams.inputs([]), tokens, bos=WORDS.bos).words[1])
    row, column = divmod(int(weights.argmax()), 3)
    pixels = picture(pages.draw(one, photo, "a dog on the bed", "dog"))
    left, top, right, bottom = framed(pixels)
    width, height = 320 / 3, 240 / 3  # the photo is drawn 320 pixels wide, 8 from the left and 8 + 18 from the top
    assert (left - 8, right - 8) == pytest.approx((column * width, (column + 1) * width), abs=1)
    assert (top - 26, bottom - 26) == pytest.approx((row * height, (row + 1) * height), abs=1)
    middle = pixels[(top + bottom) // 2, (left + right) // 2]
    assert (middle == 255).all()
    dimmest = int(weights.argmin())
    row, column = divmod(dimmest, 3)
    expected = 255 * (0.4 + 0.6 * float(weights[dimmest] / weights.max()))
    at = pixels[int(26 + (row + 0.5) * height), int(8 + (column + 0.5) * width)]
    assert at == pytest.approx([expected] * 3, abs=1.5)


def test_of_each_word_there_is_a_panel_six_in_a_row(photo):
    height = 135 + 18 + 8  # 180 x 135 photo, a line above it
    for words, shape in ((6, (height + 8, 6 * 188 + 8)), (7, (2 * height + 8, 6 * 188 + 8))):
        text = " ".join(["dog"] * words)
        assert picture(pages.draw(captioner("attention", streams=("regions",)), photo, text)).shape[:2] == shape


def test_regions_of_a_detector_are_framed_where_their_boxes_are(photo):
    corner = torch.rand(9, 2, generator=torch.Generator().manual_seed(0)) * 0.6
    boxes = torch.cat([corner, corner + 0.3], 1)
    one = captioner("gcn_lstm", streams=("regions", "boxes", "relations"), boxes=boxes)
    tokens = torch.tensor(WORDS.encode("a dog"))
    found = attention(one.network, one.streams.inputs([]), tokens, bos=WORDS.bos).words[1]
    box = boxes[int(mean_over_regions(found).argmax())]
    left, top, right, bottom = framed(picture(pages.draw(one, photo, "a dog", "dog")))
    assert ((left - 8) / 320, (top - 26) / 240) == pytest.approx(box[:2].tolist(), abs=0.01)
    assert ((right - 8) / 320, (bottom - 26) / 240) == pytest.approx(box[2:].tolist(), abs=0.01)


@pytest.mark.parametrize(("name", "left", "top"), [("up_down", 8, 26), ("glied", 8 + 320 + 8, 40)])
def test_a_captioner_that_is_given_no_boxes_has_pictures_of_what_its_detector_found(name, left, top, tmp_path):
    """Two regions, the whole photo and a box.  In the last of 2 x 3 cells of 32 pixels, of 64 x 96, its middle is at
    (64, 32), and its sides are exp(0) = 1 cell."""
    answers = tiny_yolox.nothing()
    answers[-1, 4:6] = 1
    detector = yolox.load(tiny_yolox.write(tmp_path / "tiny.onnx", answers))
    noise = np.random.default_rng(0).integers(0, 32, (64, 96, 3), np.uint8)  # dark: nothing but the frame is red
    Image.fromarray(noise).save(tmp_path / "noise.png")
    alone = Encoder(EncoderConfig(image_size=64, grid=1, detected=1))
    words = Attributes("one word", ("dog",), lambda file: Loaded("0"), lambda loaded: torch.tensor([[0.9]]), {}, 1, 0.0)
    streams, sizes = {"regions": Detected(alone, detector)}, {"regions": alone.feature_size}
    if name == "glied":
        sizes["attributes"] = 2
        streams["attributes"] = words.in_vocabulary(WORDS)
    visual = Sources(streams)
    given = visual.inputs([visual.load(tmp_path / "noise.png")])
    assert given["regions"].mask.tolist() == [[True, True]]

    def prefers_the_box(network):
        found = attention(network, given, torch.tensor(WORDS.encode("a dog")), bos=WORDS.bos).words[1]
        return bool(found.regions[-1].mean(0).argmax() == 1)

    def network(seed):
        torch.manual_seed(seed)
        settings = import_module(CAPTIONERS[name].module).TINY
        return models.build_captioner(name, settings, vocab_size=len(WORDS), feature_sizes=sizes).eval()

    networks = map(network, range(50))
    chosen = next(filter(prefers_the_box, networks))
    one = SimpleNamespace(streams=visual, network=chosen, tokenizer=WORDS, device=torch.device("cpu"))
    pixels = picture(pages.draw(one, tmp_path / "noise.png", "a dog", "dog"))[top : top + 213, left : left + 320]
    assert framed(pixels) == pytest.approx((160, 213 / 4, 320 * 5 / 6, 213 * 3 / 4), abs=1.01)


@pytest.mark.parametrize("settings", [{}, {"visual_distilling": False, "attribute_distilling": False}])
def test_glied_has_two_columns_and_the_group_is_that_of_the_region_most_attended_to(photo, settings):
    one = captioner("glied", **settings)
    tokens = torch.tensor(WORDS.encode("a dog on the bed"))
    found = attention(one.network, one.streams.inputs([]), tokens, bos=WORDS.bos)
    pixels = picture(pages.draw(one, photo, "a dog on the bed", "bed"))
    half = 8 + 320 + 4
    chosen = int(found.words[4].regions[-1].mean(0).argmax())
    columns = {half: (pixels[:, half:], chosen)}
    if not settings:
        columns[0] = pixels[:, :half], int(found.groups[chosen].argmax())
    for start, (part, region) in columns.items():
        left, _, _, _ = framed(part)
        assert left - (8 if start == 0 else 4) == pytest.approx(region % 3 * 320 / 3, abs=2)
    if settings:  # no global distilling: nothing but white paper below the title
        assert (pixels[50:300, 8 : 8 + 320] == 255).all()


def test_no_picture_without_attention_places_or_the_word(photo, tmp_path):
    assert pages.draw(captioner("show_tell"), photo, "a dog") is None
    assert pages.draw(captioner("up_down", streams=("regions",), boxes=None), photo, "a dog") is None
    assert pages.draw(captioner("up_down", streams=("regions",)), photo, "a dog", "cat") is None
    assert pages.draw(captioner("up_down", streams=("regions",)), photo, "") is None
    (tmp_path / "broken.png").write_bytes(b"no photo")
    assert pages.draw(captioner("up_down", streams=("regions",)), tmp_path / "broken.png", "a dog") is None


def test_evaluate_writes_pictures_and_the_report_has_them(monkeypatch, tellapart, small_model, tmp_path):
    world.words_for_photos(monkeypatch)
    data, out = world.make(tmp_path / "w", 4), tmp_path / "out"
    asked = ("evaluate", small_model, "--data", data, "--metrics", "AvgLen", "--retriever", "word")
    assert tellapart(*asked, "--attention", 2, "--out", out)[0] == 0
    files = sorted((out / "attention").iterdir())
    assert len(files) == 2
    report = (out / "report.html").read_text()
    for file in files:
        assert base64.b64encode(file.read_bytes()).decode() in report
