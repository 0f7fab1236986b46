"""The captioner that people use: photos in, captions out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from PIL import Image
from torch import Tensor

from tellapart import models, numerics, sharing
from tellapart.album import DEFAULT
from tellapart.among import Choosing, Collection, tell_apart
from tellapart.caption import Candidate, Caption, Proposed
from tellapart.data import photos
from tellapart.data.tokenizers import split_words
from tellapart.decoding.candidates import candidates, in_words
from tellapart.decoding.contrast import contrastive_search
from tellapart.decoding.flaws import flaws
from tellapart.decoding.search import Search
from tellapart.encoders import PhotoEncoder
from tellapart.errors import BadPhoto, UserError
from tellapart.parallel import batched, ordered_map
from tellapart.retrievers import DEFAULT as RETRIEVER
from tellapart.retrievers.embeddings import embed_photos
from tellapart.retrievers.loading import load as load_retriever
from tellapart.retrievers.retriever import Retriever
from tellapart.sight import Eyes, Look, Sight, sight_of
from tellapart.sight import Source as Source  # part of what `caption` takes

MAX_WORDS = 20
BATCH = 16  # photos that are captioned together, here and by each worker of a cluster
DEFAULT_CHOICE = Choosing()
DEFAULT_SEARCH = Search()


class PhotoCaptioner:
    """A captioner with its words and what it sees with: the encoder that it was trained with, or a memory."""

    def __init__(self, model: models.Model, sight: Sight, device: torch.device):
        self.model, self.sight, self.device = model, sight, device

    @property
    def encoder(self) -> PhotoEncoder:
        """What looks at photos."""
        if not isinstance(self.sight, Eyes):
            raise UserError("this captioner remembers photos and has nothing to look at others with.")
        return self.sight.encoder

    @classmethod
    def from_pretrained(cls, name: str | Path = DEFAULT, *, device: str = "auto") -> PhotoCaptioner:
        """As `tellapart.load`: an embedded captioner, a model or run folder, or a hub id."""
        return load(name, device=device)

    def save_pretrained(
        self, folder: str | Path, *, card: str = "", metrics: Mapping[str, float] | None = None
    ) -> None:
        """Write a folder that `load` takes: config.json, vocabulary.json, model.safetensors and README.md.

        card     the whole text of README.md, the model card; default: what is known, with these metrics
        """
        sharing.save(self.model, Path(folder), card=card, metrics=metrics)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = False,
        token: str | None = None,
        card: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> str:
        """Put such a folder onto the Hugging Face hub as owner/name; returns the address of the commit."""
        return sharing.push(self.model, name, private=private, token=token, card=card, metrics=metrics)

    @overload
    def caption(  # type: ignore[overload-overlap]
        self,
        photos: Source,
        *,
        search: Search = DEFAULT_SEARCH,
        among: Iterable[Path | str] | Collection | None = None,
        retriever: str | Path = RETRIEVER,
        how: Choosing = DEFAULT_CHOICE,
    ) -> Caption: ...

    @overload
    def caption(
        self,
        photos: Iterable[Source],
        *,
        search: Search = DEFAULT_SEARCH,
        among: Iterable[Path | str] | Collection | None = None,
        retriever: str | Path = RETRIEVER,
        how: Choosing = DEFAULT_CHOICE,
    ) -> Iterator[Caption]: ...

    def caption(
        self,
        photos: Source | Iterable[Source],
        *,
        search: Search = DEFAULT_SEARCH,
        among: Iterable[Path | str] | Collection | None = None,
        retriever: str | Path = RETRIEVER,
        how: Choosing = DEFAULT_CHOICE,
    ) -> Caption | Iterator[Caption]:
        """One photo -> its caption, or `BadPhoto`.  Several -> captions in order; of a bad one, the `error`.

        search     how captions are looked for; with `n_best`, a `Caption` has the others as `candidates`
        among      photos of a collection: each caption is the one that best tells its photo apart from its look-alikes
                   there (itself and exact copies left out)
        retriever  who must find a photo by its caption: a name from `tellapart models`, or a run folder
        how        the choice among candidates
        """
        one = isinstance(photos, str | os.PathLike | Image.Image)
        sources: Iterable[Source] = [photos] if one else photos  # type: ignore[list-item, assignment]
        captions: Iterator[Caption]
        if among is None:
            proposed = self.propose(sources, search)
            captions = (likeliest(one, listed=search.n_best > 1) for one in proposed)
        else:
            if search.n_best > 1:
                raise ValueError("n_best lists captions, and among chooses one: not both at once")
            if search.groups > 1 and how.contrast == "words":
                raise ValueError("contrast at each word knows no groups")
            if not isinstance(among, Collection):
                among = Collection.of(load_retriever(retriever), [str(file) for file in among])
            captions = self._told_apart(list(sources), search, among, how)
        if not one:
            return captions
        (caption,) = captions
        if caption.error:
            raise BadPhoto(caption.file, caption.error)
        return caption

    def propose(
        self, sources: Iterable[Source], search: Search, *, samples: int = 0, temperature: float = 1.0
    ) -> Iterator[Proposed]:
        """Captions of each photo to choose from, in order: the beam's best; with samples, the whole beam too."""
        for batch in batched(ordered_map(self._read, sources), BATCH):
            good = [photo for _, photo in batch if isinstance(photo, Look)]
            said = iter(self._speak(good, search, samples, temperature) if good else [])
            for file, photo in batch:
                if isinstance(photo, BadPhoto):
                    yield Proposed(file, error=photo.reason)
                else:
                    yield Proposed(file, next(said), sha256=photo.sha256)

    def _told_apart(self, sources: list[Source], search: Search, among: Collection, how: Choosing) -> Iterator[Caption]:
        among.retriever.reader.require_words_of(self.model.tokenizer)
        seen = see(among.retriever, sources)
        if how.contrast == "words":
            proposed = self._propose_by_words(sources, search, seen, among, how)
        else:
            wide = replace(search, beam=max(search.beam, how.beam))
            proposed = self.propose(sources, wide, samples=how.samples, temperature=how.temperature)
        yield from tell_apart(proposed, seen, among, how)

    def _propose_by_words(
        self, sources: list[Source], search: Search, seen: Mapping[str, Tensor], among: Collection, how: Choosing
    ) -> Iterator[Proposed]:
        """One caption of each photo, contrasted at each word: the best without a flaw, if there is one."""
        for batch in batched(ordered_map(self._read, sources), BATCH):
            good = [photo for _, photo in batch if isinstance(photo, Look) and photo.sha256 in seen]
            own = [seen[photo.sha256] for photo in good]
            said = self._contrast(good, torch.stack(own), search, among, how) if good else []
            by_photo = dict(zip((photo.sha256 for photo in good), said, strict=True))
            for file, photo in batch:
                if isinstance(photo, BadPhoto):
                    yield Proposed(file, error=photo.reason)
                else:
                    found = by_photo.get(photo.sha256, [])
                    flawless = [one for one in found if not flaws(split_words(one.text))]
                    yield Proposed(file, (flawless or found)[:1], sha256=photo.sha256)

    @torch.inference_mode()
    def _contrast(
        self, read: list[Look], own: Tensor, search: Search, among: Collection, how: Choosing
    ) -> list[list[Candidate]]:
        """The beam's captions of each photo, best first.  own (B, E): the photos as the listener sees them"""
        words = self.model.tokenizer
        best = contrastive_search(
            self.model.captioner,
            self._memory(read),
            among.listener(own, among.others([photo.sha256 for photo in read]), words),
            weight=how.listener_weight,
            floor=how.floor,
            beam=search.width,
            n_best=search.width,
            bos=words.bos,
            eos=words.eos,
            pad=words.pad,
            max_words=MAX_WORDS,
            banned=words.banned_ids,
            min_words=search.min_words,
            no_repeat=search.no_repeat,
        )
        return in_words(best.tokens, best.logp, best.mask, words)

    def _memory(self, read: list[Look]) -> Any:
        return self.model.captioner.encode(self.sight.inputs(read))

    def _read(self, source: Source) -> tuple[str, Look | BadPhoto]:
        name = _name(source) if isinstance(source, Image.Image) else os.fspath(source)
        try:
            return name, self.sight.look(source)
        except BadPhoto as error:
            return name, error

    @torch.inference_mode()
    def _speak(self, read: list[Look], search: Search, samples: int, temperature: float) -> list[list[Candidate]]:
        """The candidates of each photo."""
        return candidates(
            self.model.captioner,
            self._memory(read),
            self.model.tokenizer,
            beam=search.width,
            max_words=MAX_WORDS,
            n_best=search.n_best,
            min_words=search.min_words,
            no_repeat=search.no_repeat,
            groups=search.groups,
            diversity=search.diversity,
            samples=samples,
            temperature=temperature,
            seeds=[int(photo.sha256[:15], 16) for photo in read],
        )


def likeliest(proposed: Proposed, *, listed: bool = False) -> Caption:
    """The candidate that is best by itself, and the others too if they are to be listed."""
    if proposed.error or not proposed.candidates:
        return Caption(proposed.file, error=proposed.error or "nothing was said of it")
    best = proposed.candidates[0]
    candidates = tuple(proposed.candidates) if listed else ()
    return Caption(proposed.file, best.text, best.logp, sha256=proposed.sha256, candidates=candidates)


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
            with suppress(BadPhoto):
                photo = photos.from_image(source, encoder.config.image_size, encoder.fit)
                seen[photo.sha256] = retriever.embed_pixels(photo.pixels[None])[0]
    return seen


def _name(image: Image.Image) -> str:
    return str(getattr(image, "filename", "") or "image")


def load(
    name: str | Path = DEFAULT, *, device: str = "auto", features: Path | None = None, paths: Iterable[str] = ()
) -> PhotoCaptioner:
    """The embedded default, another embedded captioner, a model or run folder, an exported one, or a hub id.

    features, paths   stored features that it need not make, or cannot: their folder, and the data files to caption
    """
    chosen = numerics.choose_device(device)
    model = models.load(name, chosen)
    return PhotoCaptioner(model, sight_of(model, chosen, features, paths), chosen)
