"""Captions of models on a split: made by a captioner, read from a file, or people's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from capscore import caption_files
from tellapart.captioning.captioner import PhotoCaptioner, load
from tellapart.captioning.rerank import RerankConfig
from tellapart.captioning.rows import CaptionsFile
from tellapart.captioning.sources import of_captioner
from tellapart.captioning.writing import write
from tellapart.data.items import Input
from tellapart.decoding.search import Search
from tellapart.decoding.word_regions import needed
from tellapart.errors import BadPhoto
from tellapart.evaluation import models as rows
from tellapart.evaluation.models import Model, ModelCaptions, Split
from tellapart.evaluation.pages.attention import Picture, draw
from tellapart.evaluation.pages.cards import WordRegions
from tellapart.evaluation.trec import file_name

_BEAM = 3
_HIGHEST_LEVEL = 9  # of what the most needed word needs most


class Captioners:
    """Captions of models; those that are made are kept in a folder, so that a second run need not make them again."""

    def __init__(
        self,
        folder: Path,
        device: str,
        features: Path | None,
        data: Sequence[str],
        detector: str | os.PathLike[str] | None = None,
    ):
        """features  where features of these data are stored
        detector  for captioners whose regions are its boxes
        """
        self._folder = folder
        self._load = partial(load, device=device, features=features, paths=data, detector=detector)
        self._loaded: dict[str, PhotoCaptioner] = {}

    def check(self, model: Model) -> None:
        """A model that cannot be read should not cost the time that the others take."""
        if model.kind == "captioner":
            self.load(model)
        elif model.kind == "file":
            caption_files.read(model.given)

    def load(self, model: Model) -> PhotoCaptioner:
        if model.name not in self._loaded:
            self._loaded[model.name] = self._load(model.given)
        return self._loaded[model.name]

    def captions_of(self, model: Model, split: Split) -> ModelCaptions:
        if model.kind == "human":
            return rows.by_people(model, split)
        if model.kind == "file":
            return rows.from_file(model, split)
        self._folder.mkdir(parents=True, exist_ok=True)
        file = CaptionsFile(self._folder / f"{file_name(split.name)}.{file_name(model.name)}.jsonl")
        inputs = {str(photo.file): Input(str(photo.file), photo.id) for photo in split.photos}
        write(of_captioner(self.load(model), Search(_BEAM), None, RerankConfig()), list(inputs.values()), file)
        texts = {row["file"]: row["caption"] for row in file.rows if "caption" in row}
        photos = enumerate(split.photos)
        return rows.ModelCaptions(
            model, {row: [texts[str(photo.file)]] for row, photo in photos if str(photo.file) in texts}
        )

    def word_regions(self, speaker: str, photo: Path, caption: str) -> WordRegions | None:
        """Which part of a photo the words of a caption rest on; unknown for captions from a file."""
        return _word_regions(self._loaded[speaker], photo, caption) if speaker in self._loaded else None

    def attention(self, captions: Mapping[str, Mapping[Path, str]], photos: int, word: str) -> list[Picture]:
        """What words attend to, of so many photos, the first whose captions have the word.

        captions  model -> photo -> caption
        """
        drawn = []
        for name in (name for name in captions if name in self._loaded):
            fitting = [(file, text) for file, text in captions[name].items() if not word or word in text.split()]
            for file, text in fitting[:photos]:
                if (png := draw(self._loaded[name], file, text, word)) is not None:
                    drawn.append(Picture(name, file.name, text, png))
        return drawn


def _word_regions(captioner: PhotoCaptioner, file: Path, caption: str) -> WordRegions | None:
    """Of a caption that the captioner made; none where it is unknown which part of the photo a feature belongs to."""
    visual, words = captioner.visual_input, captioner.model.tokenizer
    tokens = words.encode(caption)
    encoder = visual.encoder
    if (
        encoder is None
        or encoder.config.grid < 2
        or encoder.regions != encoder.config.grid**2
        or not tokens
        or len(tokens) != len(caption.split())
    ):
        return None
    try:
        inputs = visual.inputs([visual.load(file)])
    except BadPhoto:
        return None
    given = torch.tensor(tokens, device=captioner.device)
    need = needed(captioner.model.captioner, inputs, given, side=encoder.config.grid, bos=words.bos)
    levels = (_HIGHEST_LEVEL * need / need.max().clamp(min=1e-9)).round().int().tolist()
    return WordRegions(["".join(map(str, word)) for word in levels], middle=encoder.fit.crop)
