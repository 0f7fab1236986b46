"""Captions of models on a split: made by a captioner, read from a file, or people's own."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from capscore import caption_files, files
from capscore.errors import UserError
from capscore.progress import Progress
from capscore.tables import json_rows
from tellapart import journals
from tellapart.captioning.captioner import PhotoCaptioner, load
from tellapart.data.examples import Example
from tellapart.data.items import Unusable
from tellapart.data.media import clips
from tellapart.data.streams import REGIONS
from tellapart.decoding.rules import Search
from tellapart.decoding.word_regions import needed
from tellapart.errors import BadPhoto
from tellapart.evaluation import models as rows
from tellapart.evaluation.attention import Picture, draw
from tellapart.evaluation.cards import WordRegions
from tellapart.evaluation.models import Model, ModelCaptions, Split
from tellapart.evaluation.trec import file_name
from tellapart.parallel import batched

_BEAM = 3
_SAVED_TOGETHER = 16  # captions; a kill loses at most so many
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
            caption_files.read(model.source)

    def load(self, model: Model) -> PhotoCaptioner:
        if model.name not in self._loaded:
            self._loaded[model.name] = self._load(model.source)
        return self._loaded[model.name]

    def captions_of(self, model: Model, split: Split) -> ModelCaptions:
        if model.kind == "human":
            return rows.by_people(model, split)
        if model.kind == "file":
            return rows.from_file(model, split)
        file = self._folder / f"{file_name(split.name)}.{file_name(model.name)}.jsonl"
        texts = kept_or_made(self.load(model), Search(_BEAM), split.photos, file)
        of_photos = [texts.get(str(photo.file)) for photo in split.photos]
        return ModelCaptions(model, {row: [text] for row, text in enumerate(of_photos) if text is not None})

    def word_regions(self, model: str, photo: Path, caption: str) -> WordRegions | None:
        """The part of a photo that the words of a caption rest on; unknown for captions from a file."""
        return _word_regions(self._loaded[model], photo, caption) if model in self._loaded else None

    def attention(self, captions: Mapping[str, Mapping[Path, str]], photos: int, word: str) -> list[Picture]:
        """Pictures of what words attend to, of so many photos, the first whose captions have the word.

        captions  model -> photo -> caption
        """
        drawn = []
        for name in (name for name in captions if name in self._loaded):
            fitting = [(file, text) for file, text in captions[name].items() if not word or word in text.split()]
            for file, text in fitting[:photos]:
                if (png := draw(self._loaded[name], file, text, word)) is not None:
                    drawn.append(Picture(name, file.name, text, png))
        return drawn


def kept_or_made(captioner: PhotoCaptioner, search: Search, photos: Sequence[Example], file: Path) -> dict[str, str]:
    """The caption of each photo by its file; those that a run with the same model, settings and photos kept are used.

    file  JSON lines, to which rows are added as they are made: a run that was stopped continues
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    ids = {str(photo.file): photo.id for photo in photos}
    wanted = {name: _key(captioner, search, name) for name in ids}
    with journals.held_file(file, "another process writes to this file.") as held:
        kept = {row["file"]: row for row in read_kept(file) if row.get("key") == wanted.get(row["file"])}
        held.replace(b"".join(map(_line, kept.values())))
        todo = [name for name in wanted if name not in kept]
        with Progress("captions", len(wanted), unit=clips.unit(wanted), done=len(kept)) as bar:
            failed = Unusable(bar.message)
            for batch in batched(captioner.caption(todo, search=search), _SAVED_TOGETHER):
                new = [c.row() | {"id": ids[c.file], "key": wanted[c.file]} for c in batch if not c.error]
                journals.append(file, b"".join(map(_line, new)))
                kept |= {row["file"]: row for row in new}
                for caption in batch:
                    if caption.error:
                        failed.add(caption.file, caption.error)
                bar.advance(len(batch))
            failed.rest()
    return {name: row["caption"] for name, row in kept.items()}


def read_kept(file: Path) -> list[dict[str, Any]]:
    """The rows that `kept_or_made` wrote; a last line that a kill cut off is left out."""
    if not files.is_file(file):
        return []
    rows, broken = json_rows(files.read_bytes(file).split(b"\n"), _checked)
    if broken and broken[0].number <= len(rows):
        raise UserError(f"{file}: {broken[0]}.")
    return rows


def _checked(row: object) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("file"), str) or not isinstance(row.get("caption"), str):
        raise ValueError('must have a "file" and a "caption"')
    return row


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode("ascii")


def _key(captioner: PhotoCaptioner, search: Search, name: str) -> str:
    try:
        sha256 = clips.sha256(name)
    except BadPhoto:  # with imported features the photo need not be there
        sha256 = ""
    return hashlib.sha256(f"{captioner.identity} {search} {sha256}".encode()).hexdigest()


def _word_regions(captioner: PhotoCaptioner, file: Path, caption: str) -> WordRegions | None:
    """None where it is unknown which part of the photo a feature belongs to."""
    visual, words = captioner.streams, captioner.tokenizer
    tokens = words.encode(caption)
    encoder = visual.encoder
    if (
        encoder is None
        or encoder.config.grid < 2
        or visual[REGIONS].most != encoder.config.grid**2
        or not tokens
        or len(tokens) != len(caption.split())
    ):
        return None
    try:
        inputs = visual.inputs([visual.load(file)])
    except BadPhoto:
        return None
    caption_tokens = torch.tensor(tokens, device=captioner.device)
    need = needed(captioner.network, inputs, caption_tokens, side=encoder.config.grid, bos=words.bos)
    levels = (_HIGHEST_LEVEL * need / need.max().clamp(min=1e-9)).round().int().tolist()
    return WordRegions(["".join(map(str, word)) for word in levels], middle=encoder.fit.crop)
