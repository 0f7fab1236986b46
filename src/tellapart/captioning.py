"""The captioner that people use: photos in, captions out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tellapart import models, numerics
from tellapart.album import DEFAULT
from tellapart.among import Choosing, Collection, tell_apart
from tellapart.caption import Candidate, Caption, Proposed
from tellapart.data import photos
from tellapart.data.tokenizers import split_words
from tellapart.decoding.candidates import candidates, in_words
from tellapart.decoding.contrast import contrastive_search
from tellapart.decoding.repeats import repeated_words
from tellapart.encoders.encoder import Encoder
from tellapart.errors import BadPhoto
from tellapart.parallel import batched, ordered_map
from tellapart.retrievers import DEFAULT as RETRIEVER
from tellapart.retrievers.embeddings import embed_photos
from tellapart.retrievers.loading import load as load_retriever
from tellapart.retrievers.retriever import Retriever

Source = str | os.PathLike[str] | Image.Image

MAX_WORDS = 20
_BATCH = 16  # photos that are captioned together
DEFAULT_CHOICE = Choosing()


class PhotoCaptioner:
    """A captioner with its words and the encoder that it was trained with."""

    def __init__(self, model: models.Model, encoder: Encoder, device: torch.device):
        self.model, self.encoder, self.device = model, encoder, device

    @overload
    def caption(  # type: ignore[overload-overlap]
        self,
        photos: Source,
        *,
        beam: int = 3,
        among: Iterable[Path | str] | Collection | None = None,
        retriever: str | Path = RETRIEVER,
        how: Choosing = DEFAULT_CHOICE,
    ) -> Caption: ...

    @overload
    def caption(
        self,
        photos: Iterable[Source],
        *,
        beam: int = 3,
        among: Iterable[Path | str] | Collection | None = None,
        retriever: str | Path = RETRIEVER,
        how: Choosing = DEFAULT_CHOICE,
    ) -> Iterator[Caption]: ...

    def caption(
        self,
        photos: Source | Iterable[Source],
        *,
        beam: int = 3,
        among: Iterable[Path | str] | Collection | None = None,
        retriever: str | Path = RETRIEVER,
        how: Choosing = DEFAULT_CHOICE,
    ) -> Caption | Iterator[Caption]:
        """One photo -> its caption, or `BadPhoto`.  Several -> captions in order; of a bad one, the `error`.

        among      photos of a collection: each caption is the one that best tells its photo apart from its look-alikes
                   there (itself and exact copies left out)
        retriever  who must find a photo by its caption: a name from `tellapart models`, or a run folder
        how        the choice among candidates
        """
        one = isinstance(photos, str | os.PathLike | Image.Image)
        sources: Iterable[Source] = [photos] if one else photos  # type: ignore[list-item, assignment]
        captions: Iterator[Caption]
        if among is None:
            captions = map(likeliest, self.propose(sources, beam=beam))
        else:
            if not isinstance(among, Collection):
                among = Collection.of(load_retriever(retriever), [str(file) for file in among])
            captions = self._told_apart(list(sources), beam, among, how)
        if not one:
            return captions
        (caption,) = captions
        if caption.error:
            raise BadPhoto(caption.file, caption.error)
        return caption

    def propose(
        self, sources: Iterable[Source], *, beam: int, samples: int = 0, temperature: float = 1.0
    ) -> Iterator[Proposed]:
        """Captions of each photo to choose from, in order: the beam's best; with samples, the whole beam too."""
        for batch in batched(ordered_map(self._read, sources), _BATCH):
            good = [photo for _, photo in batch if isinstance(photo, photos.Photo)]
            said = iter(self._speak(good, beam, samples, temperature) if good else [])
            for file, photo in batch:
                if isinstance(photo, BadPhoto):
                    yield Proposed(file, error=photo.reason)
                else:
                    yield Proposed(file, next(said), sha256=photo.sha256)

    def _told_apart(self, sources: list[Source], beam: int, among: Collection, how: Choosing) -> Iterator[Caption]:
        among.retriever.reader.require_words_of(self.model.tokenizer)
        seen = see(among.retriever, sources)
        if how.contrast == "words":
            proposed = self._propose_by_words(sources, beam, seen, among, how)
        else:
            proposed = self.propose(sources, beam=max(beam, how.beam), samples=how.samples, temperature=how.temperature)
        yield from tell_apart(proposed, seen, among, how)

    def _propose_by_words(
        self, sources: list[Source], beam: int, seen: Mapping[str, Tensor], among: Collection, how: Choosing
    ) -> Iterator[Proposed]:
        """One caption of each photo, contrasted at each word: the best that does not repeat itself, if there is one."""
        for batch in batched(ordered_map(self._read, sources), _BATCH):
            good = [photo for _, photo in batch if isinstance(photo, photos.Photo) and photo.sha256 in seen]
            own = [seen[photo.sha256] for photo in good]
            said = self._contrast(good, torch.stack(own), beam, among, how) if good else []
            by_photo = dict(zip((photo.sha256 for photo in good), said, strict=True))
            for file, photo in batch:
                if isinstance(photo, BadPhoto):
                    yield Proposed(file, error=photo.reason)
                else:
                    found = by_photo.get(photo.sha256, [])
                    steady = [one for one in found if not repeated_words(split_words(one.text))]
                    yield Proposed(file, (steady or found)[:1], sha256=photo.sha256)

    @torch.inference_mode()
    def _contrast(
        self, read: list[photos.Photo], own: Tensor, beam: int, among: Collection, how: Choosing
    ) -> list[list[Candidate]]:
        """The beam's captions of each photo, best first.  own (B, E): the photos as the listener sees them"""
        words = self.model.tokenizer
        best = contrastive_search(
            self.model.captioner,
            self._memory(read),
            among.listener(own, among.others([photo.sha256 for photo in read]), words),
            weight=how.listener_weight,
            floor=how.floor,
            beam=beam,
            n_best=beam,
            bos=words.bos,
            eos=words.eos,
            pad=words.pad,
            max_words=MAX_WORDS,
            banned=words.never_said,
        )
        return in_words(best.tokens, best.logp, best.mask, words)

    def _memory(self, read: list[photos.Photo]) -> Any:
        grid = self.encoder(np.stack([photo.pixels for photo in read])).grid
        mask = torch.ones(grid.shape[:2], dtype=torch.bool, device=grid.device)
        return self.model.captioner.encode(grid, mask)

    def _read(self, source: Source) -> tuple[str, photos.Photo | BadPhoto]:
        size = self.encoder.config.image_size
        if isinstance(source, Image.Image):
            return _name(source), photos.from_image(source, size, self.encoder.fit)
        try:
            return os.fspath(source), photos.read(source, size, self.encoder.fit)
        except BadPhoto as error:
            return os.fspath(source), error

    @torch.inference_mode()
    def _speak(self, read: list[photos.Photo], beam: int, samples: int, temperature: float) -> list[list[Candidate]]:
        """The candidates of each photo."""
        return candidates(
            self.model.captioner,
            self._memory(read),
            self.model.tokenizer,
            beam=beam,
            samples=samples,
            temperature=temperature,
            max_words=MAX_WORDS,
            seeds=[int(photo.sha256[:15], 16) for photo in read],
        )


def likeliest(proposed: Proposed) -> Caption:
    """The candidate that is best by itself."""
    if proposed.error or not proposed.candidates:
        return Caption(proposed.file, error=proposed.error or "nothing was said of it")
    best = proposed.candidates[0]
    return Caption(proposed.file, best.text, best.logp, sha256=proposed.sha256)


def see(retriever: Retriever, sources: Sequence[Source]) -> dict[str, Tensor]:
    """Photos as a retriever sees them: (E,) each, by the hash of the photo, for pictures in memory have no names.

    Those that cannot be read are left out.
    """
    files = [os.fspath(source) for source in sources if not isinstance(source, Image.Image)]
    embedded = embed_photos(retriever, files)
    seen = dict(zip(embedded.sha256, torch.from_numpy(embedded.vectors).to(retriever.device), strict=True))
    for source in sources:
        if isinstance(source, Image.Image) and retriever.encoder is not None:
            encoder = retriever.encoder
            photo = photos.from_image(source, encoder.config.image_size, encoder.fit)
            seen[photo.sha256] = retriever.embed_pixels(photo.pixels[None])[0]
    return seen


def _name(image: Image.Image) -> str:
    return str(getattr(image, "filename", "") or "image")


def load(name: str | Path = DEFAULT, *, device: str = "auto") -> PhotoCaptioner:
    """The embedded default, another embedded captioner, or a model or run folder."""
    chosen = numerics.choose_device(device)
    model = models.load(name, chosen)
    return PhotoCaptioner(model, models.encoder_of(model, chosen), chosen)
