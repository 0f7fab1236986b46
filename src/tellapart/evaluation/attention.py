"""Pictures of what words attend to, as PNG: regions of the photo, word by word; of GLIED, its Fig. 3."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from capscore.words import STOP_WORDS
from tellapart.captioners.glied import Glied, GliedConfig
from tellapart.captioning.captioner import PhotoCaptioner
from tellapart.data.media import clips
from tellapart.data.streams import ATTRIBUTES
from tellapart.decoding.word_regions import Attention, attention, mean_over_regions
from tellapart.errors import BadPhoto
from tellapart.evaluation.trec import file_name
from tellapart.html import render

FOLDER = "attention"
TOP = 3  # regions and attributes of a panel, as in the paper
_SIDE, _LARGE, _ACROSS, _MARGIN, _LINE = 180, 320, 6, 8, 18
_INK, _PAPER, _MARK = (20, 20, 20), (255, 255, 255), ((214, 39, 40), (255, 127, 14), (240, 200, 0))


@dataclass(frozen=True)
class Picture:
    """A drawing of what a model's words of one photo attended to."""

    model: str
    photo: str
    caption: str
    png: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class _Scene:
    """A photo as a captioner sees it, its caption, and what the words attended to."""

    photo: Image.Image
    boxes: Tensor  # (R, 4) fractions of the photo
    words: list[str]
    attention: Attention
    attributes: list[str]  # words, by row of the stream


def draw(captioner: PhotoCaptioner, file: Path, caption: str, word: str = "") -> bytes | None:
    """A PNG; none where the captioner has no attention, or the places of its regions are unknown.

    word  of the caption: the one whose four panels are drawn of GLIED, and the only one of other captioners; without
          it, all words, and of GLIED the content word whose attention is most on one region
    """
    scene = _scene(captioner, file, caption)
    if scene is None or (word and word not in scene.words):
        return None
    if isinstance(network := captioner.network, Glied):
        return _png(_four_panels(scene, network.config, scene.words.index(word) if word else _clearest(scene)))
    chosen = [scene.words.index(word)] if word else range(len(scene.words))
    return _png(_word_by_word(scene, chosen))


def file_names(pictures: Sequence[Picture]) -> list[str]:
    """A name for each that no other has."""
    numbered = enumerate(pictures, 1)
    return [f"{number:03d}.{file_name(of.model)}.{file_name(of.photo)}.png" for number, of in numbered]


def section(pictures: Sequence[Picture]) -> Markup:
    """All of them, inside a report."""
    return render("evaluation/pages/attention.html", pictures=pictures) if pictures else Markup("")


def _scene(captioner: PhotoCaptioner, file: Path, caption: str) -> _Scene | None:
    visual, words, network = captioner.streams, captioner.tokenizer, captioner.network
    tokens = words.encode(caption)
    if not tokens or len(tokens) != len(caption.split()):
        return None
    try:
        loaded = visual.load(file)
        inputs, boxes = visual.inputs([loaded]), visual.region_boxes(loaded)
        photo = clips.picture(file, at_least=_LARGE)
    except BadPhoto:
        return None
    if boxes is None or not isinstance(network, torch.nn.Module):
        return None
    if visual.encoder is not None and visual.encoder.fit.crop:
        side = min(photo.size)
        left, top = (photo.width - side) // 2, (photo.height - side) // 2
        photo = photo.crop((left, top, left + side, top + side))
    attended = attention(network, inputs, torch.tensor(tokens, device=captioner.device), bos=words.bos)
    if not all(word.regions for word in attended.words):
        return None
    ids = inputs[ATTRIBUTES].values[0, :, 0].int().tolist() if ATTRIBUTES in inputs else []
    return _Scene(photo, boxes, caption.split(), attended, [words.decode([id]) for id in ids])


def _clearest(scene: _Scene) -> int:
    """The content word whose attention is most on one region."""
    content = [place for place, word in enumerate(scene.words) if word not in STOP_WORDS]
    return max(content or range(len(scene.words)), key=lambda place: float(_regions(scene, place).max()))


def _regions(scene: _Scene, place: int) -> Tensor:
    """Attention of a word in the last layer: of GLIED, in local distilling where it has that."""
    return scene.attention.words[place].regions[-1].mean(0).cpu()


# Drawing


def _word_by_word(scene: _Scene, places: Sequence[int]) -> Image.Image:
    tile = _fitted(scene.photo, _SIDE if len(places) > 1 else _LARGE)
    across = min(_ACROSS, len(places))
    width, height = tile.width + _MARGIN, tile.height + _LINE + _MARGIN
    sheet = Image.new("RGB", (across * width + _MARGIN, -(-len(places) // across) * height + _MARGIN), _PAPER)
    for number, place in enumerate(places):
        weights = mean_over_regions(scene.attention.words[place])
        assert weights is not None
        left, top = _MARGIN + number % across * width, _MARGIN + number // across * height
        ImageDraw.Draw(sheet).text((left, top), scene.words[place], _INK, _font())
        shown = _framed(_lit(tile, scene.boxes, weights.cpu()), scene.boxes, weights.cpu(), 1)
        sheet.paste(shown, (left, top + _LINE))
    return sheet


def _four_panels(scene: _Scene, config: GliedConfig, place: int) -> Image.Image:
    """Global distilling on the left, local on the right; regions above attributes.  What a model lacks stays empty."""
    weights, groups = scene.attention.words[place], scene.attention.groups
    local = _regions(scene, place)
    group = groups[int(local.argmax())].cpu() if groups is not None else None
    pivot = config.attribute_distilling and not config.attributes_attend
    collocated = weights.attributes[0].mean(0).cpu() if pivot else None
    last = weights.attributes[-1].mean(0).cpu() if weights.attributes else None
    tile = _fitted(scene.photo, _LARGE)
    below = _LINE * (TOP + 1)
    previous = scene.words[place - 1] if place else "the beginning"
    heading = f"{' '.join(scene.words)}   |   after {previous!r}: {scene.words[place]!r}"
    width = max(2 * tile.width + 3 * _MARGIN, round(_font().getlength(heading)) + 2 * _MARGIN)
    sheet = Image.new("RGB", (width, tile.height + below + 2 * _LINE + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, 2), heading, _INK, _font())
    columns = (
        ("global distilling", group, collocated),
        ("local distilling" if config.local_distilling else "attention", local, last),
    )
    for column, (title, regions, attributes) in enumerate(columns):
        left = _MARGIN + column * (tile.width + _MARGIN)
        pen.text((left, _LINE + 4), title, _INK, _font())
        if regions is not None:
            shown = _framed(_lit(tile, scene.boxes, regions), scene.boxes, regions, TOP)
            sheet.paste(shown, (left, 2 * _LINE + 4))
        if attributes is not None:
            top = attributes.topk(min(TOP, len(attributes)))
            for number, (weight, row) in enumerate(zip(top.values.tolist(), top.indices.tolist(), strict=True)):
                line = f"{scene.attributes[row]}  {100 * weight:.0f} %"
                pen.text((left, 2 * _LINE + tile.height + 8 + number * _LINE), line, _INK, _font())
    return sheet


def _lit(photo: Image.Image, boxes: Tensor, weights: Tensor) -> Image.Image:
    """The photo, dark where nothing is attended to; where regions overlap, the one with the most weight counts."""
    light = np.zeros((photo.height, photo.width), np.float32)
    for region in weights.argsort().tolist():  # the heaviest last
        left, top, right, bottom = _pixels(boxes[region], photo)
        light[top:bottom, left:right] = float(weights[region] / weights.max().clamp(min=1e-9))
    return Image.fromarray((np.asarray(photo) * (0.4 + 0.6 * light[..., None])).astype(np.uint8))


def _framed(photo: Image.Image, boxes: Tensor, weights: Tensor, count: int) -> Image.Image:
    pen = ImageDraw.Draw(photo)
    heaviest = weights.topk(min(count, len(weights))).indices.tolist()
    for colour, region in reversed(list(zip(_MARK, heaviest, strict=False))):
        left, top, right, bottom = _pixels(boxes[region], photo)
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=2)
    return photo


def _pixels(box: Tensor, photo: Image.Image) -> tuple[int, int, int, int]:
    across, down = (box.nan_to_num().clamp(0, 1).view(2, 2) * torch.tensor(photo.size)).round().int().T.tolist()
    return across[0], down[0], across[1], down[1]


def _fitted(photo: Image.Image, side: int) -> Image.Image:
    factor = side / max(photo.size)
    return photo.convert("RGB").resize((max(1, round(photo.width * factor)), max(1, round(photo.height * factor))))


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=13)


def _png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()
