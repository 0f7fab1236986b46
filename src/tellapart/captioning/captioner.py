"""The captioner that people use: photos in, captions out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from PIL import Image

from capscore.errors import UserError
from capscore.words import flaws
from tellapart import models, numerics
from tellapart.album import CLIPS, DEFAULT, EMBEDDED
from tellapart.captioners import Captioner
from tellapart.captioners.vision_language import Generates
from tellapart.captioning.pipeline import CaptionSource, RerankConfig, tell_apart
from tellapart.data.captions import Candidate, Caption, Proposed
from tellapart.data.items import gather
from tellapart.data.media.clips import named_as_clip
from tellapart.data.streams import ATTRIBUTES
from tellapart.data.tokenizers import Tokenizer, split_words
from tellapart.decoding.candidates import candidates, contrastive_search, in_words
from tellapart.decoding.rules import Rules, Search
from tellapart.encoders import PhotoEncoder
from tellapart.errors import BadPhoto
from tellapart.features.sources import Item as Source  # part of what `caption` takes
from tellapart.features.sources import Loaded, Sources
from tellapart.models.sources import of_model
from tellapart.parallel import batched, ordered_map
from tellapart.retrievers import DEFAULT as RETRIEVER

if TYPE_CHECKING:
    from tellapart.adapting.adapt import Adapted
    from tellapart.captioning.rerank import Collection, Scene

    Among = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Collection  # photos to be told apart from

MAX_WORDS = 20
BATCH = 16  # photos that are captioned together, here and by each worker of a cluster
DEFAULT_RERANK = RerankConfig()
DEFAULT_SEARCH = Search()
_log = logging.getLogger(__name__)
Photo = dict[str, Loaded]  # or clip, as it was read for each stream


class PhotoCaptioner:
    """A captioner with its words and what it is given of photos: streams of encoders, or stored features.

    for_clips  the embedded captioner that takes clips in its place; empty: none does

    Example:
        >>> captioner = tellapart.load()
        >>> [row.text for row in captioner.caption(["holiday/a.jpg", "holiday/b.jpg"])]
        ['a ...', 'a ...']
    """

    def __init__(self, model: models.Model, streams: Sources, device: torch.device, for_clips: str = ""):
        self.model, self.streams, self.device, self.for_clips = model, streams, device, for_clips

    @property
    def network(self) -> Captioner:
        return self.model.captioner

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def identity(self) -> str:
        """Everything that captions depend on beside the photo and the search."""
        clips_too = f" {models.weights_sha256(models.find(self.for_clips))}" if self.for_clips else ""
        return f"{self.model.sha256} {self.streams.identity}{clips_too}"

    @cached_property
    def _of_clips(self) -> PhotoCaptioner:
        return load(self.for_clips, device=str(self.device))

    @property
    def encoder(self) -> PhotoEncoder:
        """The network that makes regions of photos."""
        if self.streams.encoder is None:
            raise UserError("this captioner takes imported features, and has no encoder for other photos.")
        return self.streams.encoder

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
        from tellapart.models import card as sharing

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
        from tellapart.models import card as sharing

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
        rerank: RerankConfig = DEFAULT_RERANK,
    ) -> Caption: ...

    @overload
    def caption(
        self,
        photos: Iterable[Source],
        *,
        search: Search = DEFAULT_SEARCH,
        among: Among | None = None,
        retriever: str | Path = RETRIEVER,
        rerank: RerankConfig = DEFAULT_RERANK,
    ) -> Iterator[Caption]: ...

    def caption(
        self,
        photos: Source | Iterable[Source],
        *,
        search: Search = DEFAULT_SEARCH,
        among: Among | None = None,
        retriever: str | Path = RETRIEVER,
        rerank: RerankConfig = DEFAULT_RERANK,
    ) -> Caption | Iterator[Caption]:
        """One photo -> its caption, or `BadPhoto`.  Several -> captions in order; of a bad one, the `error`.

        search     how captions are decoded; with `n_best`, a `Caption` has the others as `candidates`
        among      a collection: photos, folders of photos or data files, one or several.  Each caption is the one that
                   best tells its photo apart from its look-alikes there (itself, exact copies and near-duplicates such
                   as the frames of a burst left out)
        retriever  who must find a photo by its caption: a name from `tellapart models`, or a run folder
        rerank     the choice among candidates

        Example:
            >>> captioner = tellapart.load()
            >>> captioner.caption("holiday/a.jpg").text
            'a ...'
            >>> for row in captioner.caption(["holiday/a.jpg", "holiday/b.jpg"], among="holiday/"):
            ...     print(row.file, row.text, row.look_alikes, row.gap)
            holiday/a.jpg a ... ('holiday/b.jpg',) ...
            holiday/b.jpg a ... ('holiday/a.jpg',) ...
        """
        single = isinstance(photos, str | os.PathLike | Image.Image)
        sources: Iterable[Source] = [photos] if single else photos  # type: ignore[list-item, assignment]
        collection = None
        if among is not None:
            sources = list(sources)
            collection = _collection(among, retriever, sources, self.device)
        proposer = CaptionerProposer(self, search, rerank)
        captions = tell_apart(proposer, collection, rerank, listed=search.n_best > 1).caption(sources)
        if not single:
            return captions
        (caption,) = captions
        if caption.error:
            raise BadPhoto(caption.file, caption.error)
        return caption

    def propose(
        self, sources: Iterable[Source], search: Search, *, samples: int = 0, temperature: float = 1.0
    ) -> Iterator[Proposed]:
        """Captions of each photo to choose from, in order: the beam's best; with samples, the whole beam too."""
        return self._proposed(
            sources, lambda captioner, photos: captioner._decode(photos, search, samples, temperature)
        )

    def propose_by_words(
        self, sources: Iterable[Source], search: Search, scene: Scene, config: RerankConfig
    ) -> Iterator[Proposed]:
        """One caption of each photo, contrasted at each word: the best without a flaw, if there is one."""
        return self._proposed(sources, lambda captioner, photos: captioner._contrast(photos, search, scene, config))

    def _proposed(
        self,
        sources: Iterable[Source],
        decode: Callable[[PhotoCaptioner, list[Photo]], list[list[Candidate]]],
    ) -> Iterator[Proposed]:
        """The candidates of each photo, in order; photos are read by threads before they are asked for."""
        for batch in batched(ordered_map(self._read, sources), BATCH):
            by_place = dict[int, list[Candidate]]()
            for captioner in dict.fromkeys(captioner for _, captioner, _ in batch):
                mine = [place for place, (_, who, _) in enumerate(batch) if who is captioner]
                loaded = {place: photo for place in mine if not isinstance(photo := batch[place][2], BadPhoto)}
                if loaded:
                    by_place |= zip(loaded, decode(captioner, list(loaded.values())), strict=True)
            for place, (file, _, photo) in enumerate(batch):
                if isinstance(photo, BadPhoto):
                    yield Proposed(file, error=photo.reason)
                else:
                    yield Proposed(file, by_place[place], sha256=_sha256(photo))

    def _read(self, source: Source) -> tuple[str, PhotoCaptioner, Photo | BadPhoto]:
        """A photo or clip by its name, and who captions it."""
        if isinstance(source, Image.Image):
            name, captioner = str(getattr(source, "filename", "") or "image"), self
        else:
            name = os.fspath(source)
            captioner = self._of_clips if self.for_clips and named_as_clip(source) else self
        try:
            return name, captioner, captioner.streams.load(source)
        except BadPhoto as error:
            return name, captioner, error

    @torch.inference_mode()
    def _contrast(
        self, photos: list[Photo], search: Search, scene: Scene, config: RerankConfig
    ) -> list[list[Candidate]]:
        """One caption of each photo that is in the scene: the beam's best without a flaw, or its best."""
        words, among = self.model.tokenizer, scene.collection
        visible = [photo for photo in photos if _sha256(photo) in scene]
        if not visible:
            return [[] for _ in photos]
        hashes = [_sha256(photo) for photo in visible]
        embeddings, features = scene.vectors(hashes)
        others = among.others(hashes, among.near_duplicates(hashes, features))
        best = contrastive_search(
            *self._shown(visible),
            among.listener(embeddings, others, words),
            self._rules(search),
            weight=config.listener_weight,
            floor=config.floor,
            beam=search.width,
            n_best=search.width,
        )
        chosen = dict[str, list[Candidate]]()
        for photo, beam in zip(visible, in_words(best.tokens, best.logp, best.mask, words), strict=True):
            flawless = [candidate for candidate in beam if not flaws(split_words(candidate.text))]
            chosen[_sha256(photo)] = (flawless or beam)[:1]
        return [chosen.get(_sha256(photo), []) for photo in photos]

    def with_attributes(self, source: CaptionSource) -> CaptionSource:
        """A source whose captions have the words that the captioner was given of each photo.

        They are computed once more: few ask for them.
        """
        stream = self.streams.get(ATTRIBUTES)
        if stream is None:
            raise UserError("this captioner uses no attributes, so there are none to show.")

        def captions(photos: Iterable[Any]) -> Iterator[Caption]:
            for batch in batched(source.caption(photos), BATCH):
                loaded = [stream.load(caption.file) for caption in batch if not caption.error]
                words = iter(stream.named(loaded) if loaded else ())
                for caption in batch:
                    yield caption if caption.error else replace(caption, attributes=tuple(next(words)))

        return replace(source, caption=captions, identity=f"{source.identity} with attributes")

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

    def _shown(self, photos: list[Photo]) -> tuple[Captioner, Any]:
        """The captioner, and its memory of the photos."""
        return self.model.captioner, self.model.captioner.encode(self.streams.inputs(photos))

    @torch.inference_mode()
    def _decode(self, photos: list[Photo], search: Search, samples: int, temperature: float) -> list[list[Candidate]]:
        """The candidates of each photo."""
        with numerics.memory_of(self.device, "captioning"):
            return candidates(
                *self._shown(photos),
                self.model.tokenizer,
                self._rules(search),
                beam=search.width,
                n_best=search.n_best,
                groups=search.groups,
                diversity=search.diversity,
                samples=samples,
                temperature=temperature,
                seeds=[int(_sha256(photo)[:15], 16) for photo in photos],
            )


def _sha256(photo: Photo) -> str:
    return next(iter(photo.values())).sha256


def _collection(among: Among, retriever: str | Path, captioned: Sequence[Source], device: torch.device) -> Collection:
    """The collection that a caller names, as the command does; photos of it that could not be used are logged.

    captioned  photos whose captions tell why they could not be used
    """
    from tellapart.captioning.rerank import Collection
    from tellapart.models.retrievers import load as load_retriever

    if isinstance(among, Collection):
        return among
    listed = [among] if isinstance(among, str | os.PathLike) or not isinstance(among, Iterable) else list(among)
    paths = [str(os.fspath(path)) for path in listed if isinstance(path, str | os.PathLike)]
    if wrong := [path for path in listed if not isinstance(path, str | os.PathLike)]:
        raise TypeError(f"among: must name photos, folders of photos or data files, not {type(wrong[0]).__name__}")
    if not paths:
        raise UserError("among: the collection has no photo to tell others apart from.")
    inputs, problems = gather(paths)
    collection = Collection.of(load_retriever(retriever, device=str(device)), [photo.file for photo in inputs])
    named = {os.fspath(source) for source in captioned if not isinstance(source, Image.Image)}
    problems += collection.problems(named)
    if problems and not collection.photos.files:
        raise UserError(f"among: no photo of the collection can be used ({problems[0]}).")
    for problem in problems:
        _log.warning("among: %s", problem)
    return collection


@dataclass(frozen=True)
class CaptionerProposer:
    """Proposes what a captioner finds by its search; a `Proposer`."""

    captioner: PhotoCaptioner
    search: Search
    rerank: RerankConfig = DEFAULT_RERANK

    def __post_init__(self) -> None:
        """Refuses what does not go together, before any photo is read."""
        model, search, contrast = self.captioner.model.captioner, self.search, self.rerank.contrast
        if contrast == "prompt":
            raise UserError("--contrast prompt needs a vision-language model that answers questions, or a server.")
        if contrast == "words" and search.groups > 1:
            raise UserError("--diverse and --contrast words are two ways to search; choose one.")
        if contrast == "words" and isinstance(model, Generates):
            raise UserError("this model is asked by transformers' generate, which knows no contrast at each word.")
        longest = getattr(model, "max_words", MAX_WORDS)
        if search.min_words >= longest:
            raise UserError(f"--min-words {search.min_words}: captions have room for {longest - 1} words.")

    @property
    def identity(self) -> str:
        return f"{self.captioner.identity} {self.search}"

    def propose(self, photos: Iterable[Source], scene: Scene | None) -> Iterator[Proposed]:
        captioner, search, rerank = self.captioner, self.search, self.rerank
        if scene is None and rerank.context is None:
            if search.groups > 1 and search.n_best < 2:
                raise UserError(
                    "--diverse finds captions that differ: it needs --n-best, to list them, or --among, to choose."
                )
            return captioner.propose(photos, search)
        if scene is not None:
            scene.collection.retriever.reader.require_words_of(captioner.model.tokenizer)
            if rerank.contrast == "words":
                return captioner.propose_by_words(photos, search, scene, rerank)
        wide = replace(search, beam=max(search.beam, rerank.beam))
        return captioner.propose(photos, wide, samples=rerank.samples, temperature=rerank.temperature)


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
