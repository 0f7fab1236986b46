"""The captioner that people use: photos in, captions out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from PIL import Image

from capscore.errors import UserError
from capscore.stop_words import flaws
from tellapart import models, numerics
from tellapart.album import CLIPS, DEFAULT, EMBEDDED
from tellapart.captioners import Captioner
from tellapart.captioners.vision_language import Generates
from tellapart.captioning.rerank import Collection, PhotoVectors, RerankConfig, rerank, stacked
from tellapart.data.captions import Candidate, Caption, Proposed
from tellapart.data.items import gather
from tellapart.data.media.clips import named_as_clip
from tellapart.data.streams import ATTRIBUTES
from tellapart.data.tokenizers import split_words
from tellapart.decoding.candidates import candidates, contrastive_search, in_words
from tellapart.decoding.rules import Rules, Search
from tellapart.encoders import PhotoEncoder
from tellapart.errors import BadPhoto
from tellapart.features.extracted import read_item
from tellapart.features.sources import Item as Source  # part of what `caption` takes
from tellapart.features.sources import LoadedPhoto, Sources
from tellapart.models import card as sharing
from tellapart.models.retrievers import load as load_retriever
from tellapart.models.sources import of_model
from tellapart.parallel import batched, ordered_map
from tellapart.retrievers import DEFAULT as RETRIEVER
from tellapart.retrievers.retriever import Retriever, embed_photos

if TYPE_CHECKING:
    from tellapart.adapting.adapt import Adapted

Among = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Collection  # photos to be told apart from

MAX_WORDS = 20
BATCH = 16  # photos that are captioned together, here and by each worker of a cluster
DEFAULT_CHOICE = RerankConfig()
DEFAULT_SEARCH = Search()
_log = logging.getLogger(__name__)


class PhotoCaptioner:
    """A captioner with its words and what it is given of photos: streams of encoders, or stored features.

    for_clips  the embedded captioner that takes clips in its place; empty: none does

    Example:
        >>> captioner = tellapart.load()
        >>> [row.text for row in captioner.caption(["holiday/a.jpg", "holiday/b.jpg"])]
        ['a ...', 'a ...']
    """

    def __init__(self, model: models.Model, visual_input: Sources, device: torch.device, for_clips: str = ""):
        self.model, self.visual_input, self.device, self.for_clips = model, visual_input, device, for_clips

    @property
    def identity(self) -> str:
        """What captions depend on beside the photo and the search."""
        clips_too = f" {models.weights_sha256(models.find(self.for_clips))}" if self.for_clips else ""
        return f"{self.model.sha256} {self.visual_input.identity}{clips_too}"

    @cached_property
    def _of_clips(self) -> PhotoCaptioner:
        return load(self.for_clips, device=str(self.device))

    def _captioner_of(self, source: Source) -> PhotoCaptioner:
        if not self.for_clips or isinstance(source, Image.Image) or not named_as_clip(source):
            return self
        return self._of_clips

    @property
    def encoder(self) -> PhotoEncoder:
        """What makes regions of photos."""
        if self.visual_input.encoder is None:
            raise UserError("this captioner takes imported features, and has no encoder for other photos.")
        return self.visual_input.encoder

    @classmethod
    def from_pretrained(cls, name: str | Path | None = None, *, device: str = "auto") -> PhotoCaptioner:
        """As `tellapart.load`: an embedded captioner, a model or run folder, or a hub id.

        Example:
            >>> captioner = tellapart.PhotoCaptioner.from_pretrained("plain")
        """
        return load(name, device=device)

    def save_pretrained(
        self, folder: str | Path, *, card: str = "", metrics: Mapping[str, float] | None = None
    ) -> None:
        """Write a folder that `load` takes: config.json, vocabulary.json, model.safetensors and README.md.

        card     the whole text of README.md, the model card; default: what is known, with these metrics

        Example:
            >>> tellapart.load("plain").save_pretrained("mine", metrics={"CIDEr-D": 0.61})
            >>> captioner = tellapart.load("mine")
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

    def adapt(self, photos: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **settings: Any) -> Adapted:
        """Fine-tune on photos without captions, as `tellapart.adapt` does, whose settings it takes.

        Example:
            >>> adapted = tellapart.load("plain").adapt("holiday/", out="runs/holiday")  # doctest: +SKIP
            >>> captioner = adapted.captioner() if adapted.kept else tellapart.load("plain")  # doctest: +SKIP
        """
        # By name: training and evaluation are built on this module.
        adapt: Callable[..., Adapted] = import_module("tellapart.adapting.adapt").adapt
        return adapt(photos, model=self, **settings)

    @overload
    def caption(  # type: ignore[overload-overlap]
        self,
        photos: Source,
        *,
        search: Search = DEFAULT_SEARCH,
        among: Among | None = None,
        retriever: str | Path = RETRIEVER,
        how: RerankConfig = DEFAULT_CHOICE,
    ) -> Caption: ...

    @overload
    def caption(
        self,
        photos: Iterable[Source],
        *,
        search: Search = DEFAULT_SEARCH,
        among: Among | None = None,
        retriever: str | Path = RETRIEVER,
        how: RerankConfig = DEFAULT_CHOICE,
    ) -> Iterator[Caption]: ...

    def caption(
        self,
        photos: Source | Iterable[Source],
        *,
        search: Search = DEFAULT_SEARCH,
        among: Among | None = None,
        retriever: str | Path = RETRIEVER,
        how: RerankConfig = DEFAULT_CHOICE,
    ) -> Caption | Iterator[Caption]:
        """One photo -> its caption, or `BadPhoto`.  Several -> captions in order; of a bad one, the `error`.

        search     how captions are decoded; with `n_best`, a `Caption` has the others as `candidates`
        among      a collection: photos, folders of photos or data files, one or several.  Each caption is the one that
                   best tells its photo apart from its look-alikes there (itself, exact copies and near-duplicates such
                   as the frames of a burst left out)
        retriever  who must find a photo by its caption: a name from `tellapart models`, or a run folder
        how        the choice among candidates

        Example:
            >>> captioner = tellapart.load()
            >>> captioner.caption("holiday/a.jpg").text
            'a ...'
            >>> for row in captioner.caption(["holiday/a.jpg", "holiday/b.jpg"], among="holiday/"):
            ...     print(row.file, row.text, row.look_alikes, row.gap)
            holiday/a.jpg a ... ('holiday/b.jpg',) ...
            holiday/b.jpg a ... ('holiday/a.jpg',) ...
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
            sources = list(sources)
            if not isinstance(among, Collection):
                named = {os.fspath(source) for source in sources if not isinstance(source, Image.Image)}
                among = _collection(among, retriever, named, self.device)
            captions = self._rerank(sources, search, among, how)
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
        for batch in self._batches(sources):
            captions = {
                captioner: iter(captioner._decode(good, search, samples, temperature))
                for captioner, good in _by_captioner(batch)
            }
            for one in batch:
                if isinstance(one.photo, BadPhoto):
                    yield Proposed(one.file, error=one.photo.reason)
                else:
                    yield Proposed(one.file, next(captions[one.captioner]), sha256=one.photo.sha256)

    def _rerank(self, sources: list[Source], search: Search, among: Collection, how: RerankConfig) -> Iterator[Caption]:
        among.retriever.reader.require_words_of(self.model.tokenizer)
        if how.contrast == "words" and isinstance(self.model.captioner, Generates):
            raise UserError("this model is asked by transformers' generate, which knows no contrast at each word.")
        seen = see(among.retriever, sources)
        if how.contrast == "words":
            proposed = self._propose_by_words(sources, search, seen, among, how)
        else:
            wide = replace(search, beam=max(search.beam, how.beam))
            proposed = self.propose(sources, wide, samples=how.samples, temperature=how.temperature)
        yield from rerank(proposed, seen, among, how)

    def _propose_by_words(
        self,
        sources: list[Source],
        search: Search,
        seen: Mapping[str, PhotoVectors],
        among: Collection,
        how: RerankConfig,
    ) -> Iterator[Proposed]:
        """One caption of each photo, contrasted at each word: the best without a flaw, if there is one."""
        for batch in self._batches(sources):
            by_photo = dict[str, list[Candidate]]()
            for captioner, read in _by_captioner(batch):
                good = [photo for photo in read if photo.sha256 in seen]
                vectors = [seen[photo.sha256] for photo in good]
                captions = captioner._contrast(good, vectors, search, among, how) if good else []
                by_photo |= zip((photo.sha256 for photo in good), captions, strict=True)
            for item in batch:
                if isinstance(item.photo, BadPhoto):
                    yield Proposed(item.file, error=item.photo.reason)
                else:
                    found = by_photo.get(item.photo.sha256, [])
                    flawless = [one for one in found if not flaws(split_words(one.text))]
                    yield Proposed(item.file, (flawless or found)[:1], sha256=item.photo.sha256)

    @torch.inference_mode()
    def _contrast(
        self, read: list[LoadedPhoto], seen: list[PhotoVectors], search: Search, among: Collection, how: RerankConfig
    ) -> list[list[Candidate]]:
        """The beam's captions of each photo, best first.  seen: the photos as the listener sees them"""
        words = self.model.tokenizer
        own, features = stacked(seen)
        best = contrastive_search(
            *self._shown(read),
            among.listener(own, among.others([photo.sha256 for photo in read], features), words),
            self._rules(search),
            weight=how.listener_weight,
            floor=how.floor,
            beam=search.width,
            n_best=search.width,
        )
        return in_words(best.tokens, best.logp, best.mask, words)

    def with_attributes(self, captions: Iterable[Caption]) -> Iterator[Caption]:
        """The same captions, with the words that the captioner was given of each photo.

        They are computed once more: few ask for them.
        """
        source = self.visual_input.get(ATTRIBUTES)
        if source is None:
            raise UserError("this captioner uses no attributes, so there are none to show.")
        for batch in batched(captions, BATCH):
            files = [caption.file for caption in batch if not caption.error]
            words = iter(source.named([source.load(file) for file in files]) if files else ())
            for one in batch:
                yield one if one.error else replace(one, attributes=tuple(next(words)))

    def _rules(self, search: Search) -> Rules:
        words = self.model.tokenizer
        longest = getattr(self.model.captioner, "max_words", MAX_WORDS)  # sub-words are shorter than words
        return Rules.of(
            words,
            max_words=longest,
            min_words=search.min_words,
            no_repeat=search.no_repeat,
            length_penalty=search.length_penalty,
        )

    def _shown(self, read: list[LoadedPhoto]) -> tuple[Captioner, Any]:
        """The captioner, and its memory of the photos."""
        return self.model.captioner, self.model.captioner.encode(self.visual_input.inputs(read))

    def _batches(self, sources: Iterable[Source]) -> Iterator[list[_Item]]:
        """Items in order, read by threads before they are asked for."""
        each = ((self._captioner_of(source), source) for source in sources)
        return batched(ordered_map(_read, each), BATCH)

    @torch.inference_mode()
    def _decode(
        self, read: list[LoadedPhoto], search: Search, samples: int, temperature: float
    ) -> list[list[Candidate]]:
        """The candidates of each photo."""
        with numerics.memory_of(self.device, "captioning"):
            return candidates(
                *self._shown(read),
                self.model.tokenizer,
                self._rules(search),
                beam=search.width,
                n_best=search.n_best,
                groups=search.groups,
                diversity=search.diversity,
                samples=samples,
                temperature=temperature,
                seeds=[int(photo.sha256[:15], 16) for photo in read],
            )


def _collection(among: object, retriever: str | Path, captioned: set[str], device: torch.device) -> Collection:
    """The collection that a caller names, as the command does; what of it could not be used is logged.

    captioned  photos whose own rows tell why they could not be used
    """
    named = [among] if isinstance(among, str | os.PathLike) or not isinstance(among, Iterable) else list(among)
    paths = [str(os.fspath(path)) for path in named if isinstance(path, str | os.PathLike)]
    if wrong := [path for path in named if not isinstance(path, str | os.PathLike)]:
        raise TypeError(f"among: must name photos, folders of photos or data files, not {type(wrong[0]).__name__}")
    if not paths:
        raise UserError("among: the collection has no photo to tell others apart from.")
    inputs, problems = gather(paths)
    collection = Collection.of(load_retriever(retriever, device=str(device)), [photo.file for photo in inputs])
    problems += [f"{file}: {why}" for file, why in collection.photos.failed.items() if file not in captioned]
    if problems and not collection.photos.files:
        raise UserError(f"among: no photo of the collection can be used ({problems[0]}).")
    for problem in problems:
        _log.warning("among: %s", problem)
    return collection


def likeliest(proposed: Proposed, *, listed: bool = False) -> Caption:
    """The candidate that is best by itself, and the others too if they are to be listed."""
    if proposed.error or not proposed.candidates:
        return Caption(proposed.file, error=proposed.error or "no caption was generated")
    best = proposed.candidates[0]
    candidates = tuple(proposed.candidates) if listed else ()
    return Caption(proposed.file, best.text, best.logp, sha256=proposed.sha256, candidates=candidates)


def see(retriever: Retriever, sources: Sequence[Source]) -> dict[str, PhotoVectors]:
    """Photos as a retriever sees them, by the hash of the photo, for pictures in memory have no names.

    Those that cannot be read are left out.
    """
    files = [os.fspath(source) for source in sources if not isinstance(source, Image.Image)]
    embedded = embed_photos(retriever, files)
    vectors = torch.from_numpy(embedded.vectors).to(retriever.device)
    seen = {sha256: PhotoVectors(vector) for sha256, vector in zip(embedded.sha256, vectors, strict=True)}
    if embedded.features is not None:
        features = torch.from_numpy(embedded.features).to(retriever.device)
        for sha256, row in zip(embedded.sha256, features, strict=True):
            seen[sha256] = replace(seen[sha256], features=row)
    for source in sources:
        if isinstance(source, Image.Image) and retriever.encoder is not None:
            encoder = retriever.encoder
            with suppress(BadPhoto):
                photo = read_item(encoder, source)
                pooled = encoder(photo.pixels[None]).pooled
                seen[photo.sha256] = PhotoVectors(retriever.embed_images(pooled)[0], pooled[0].to(retriever.device))
    return seen


@dataclass(frozen=True)
class _Item:
    """A photo or clip, and who captions it."""

    file: str
    captioner: PhotoCaptioner
    photo: LoadedPhoto | BadPhoto


def _read(one: tuple[PhotoCaptioner, Source]) -> _Item:
    captioner, source = one
    name = _name(source) if isinstance(source, Image.Image) else os.fspath(source)
    try:
        return _Item(name, captioner, captioner.visual_input.load(source))
    except BadPhoto as error:
        return _Item(name, captioner, error)


def _by_captioner(batch: Sequence[_Item]) -> Iterator[tuple[PhotoCaptioner, list[LoadedPhoto]]]:
    """Each captioner with those of its items that could be read."""
    for captioner in dict.fromkeys(one.captioner for one in batch):
        good = [one.photo for one in batch if one.captioner is captioner and isinstance(one.photo, LoadedPhoto)]
        if good:
            yield captioner, good


def _name(image: Image.Image) -> str:
    return str(getattr(image, "filename", "") or "image")


def load(
    name: str | Path | None = None,
    *,
    device: str = "auto",
    features: Path | None = None,
    paths: Iterable[str] = (),
    detector: str | os.PathLike[str] | None = None,
    prompt: str | None = None,
    dtype: str | None = None,
) -> PhotoCaptioner:
    """The embedded default, another embedded captioner, a model or run folder, or a hub id.

    The default is `distinctive` for photos, with `clips` for clips; any other takes both, a clip by its middle frame or
    by as many frames as it was trained with.  A folder or hub id may also be a vision-language model of transformers,
    such as BLIP.

    features, paths   stored features that it need not make, or cannot: their folder, and the data files to caption
    detector          what finds the boxes of its regions, for a captioner that was trained with one
    prompt, dtype     of a vision-language model: what it is asked, and fp32 or bf16

    Example:
        >>> captioner = tellapart.load()  # or tellapart.load("plain"), tellapart.load("runs/mine")
        >>> captioner.caption("holiday/a.jpg").text
        'a ...'
    """
    chosen = numerics.choose_device(device)
    model = models.load(DEFAULT if name is None else name, chosen, prompt=prompt, dtype=dtype)
    for_clips = CLIPS if name is None and CLIPS in EMBEDDED else ""
    return PhotoCaptioner(model, of_model(model, chosen, features, paths, detector), chosen, for_clips)
