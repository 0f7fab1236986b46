"""Where captions come from (a captioner, a file of candidates, a server), alone or told apart in a collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass

from tellapart.captioning.candidates_file import CandidatesFile
from tellapart.captioning.captioner import PhotoCaptioner, likeliest, see
from tellapart.captioning.endpoint import Endpoint
from tellapart.captioning.rerank import Collection, RerankConfig, rerank
from tellapart.data.captions import Candidate, Caption, Proposed
from tellapart.data.items import Input
from tellapart.decoding.search import Search


@dataclass(frozen=True)
class CaptionSource:
    caption: Callable[[Sequence[str]], Iterator[Caption]]  # photos -> captions, in order
    settings: str  # what the captions depend on beside the photo
    leftovers: Callable[[Sequence[Input]], list[str]] = lambda _: []  # sentences on what was not used


def of_captioner(
    captioner: PhotoCaptioner,
    search: Search,
    collection: Collection | None,
    how: RerankConfig,
    *,
    show_attributes: bool = False,
) -> CaptionSource:
    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        captions = captioner.caption(photos, search=search, among=collection, how=how)
        return captioner.with_attributes(captions) if show_attributes else captions

    made_by = f"{captioner.model.sha256} {captioner.visual_input.identity} {search}"
    made_by += " with attributes" if show_attributes else ""
    return CaptionSource(caption, made_by + _told_apart(collection, how))


def of_candidates(candidates: CandidatesFile, collection: Collection | None, how: RerankConfig) -> CaptionSource:
    def leftovers(inputs: Sequence[Input]) -> list[str]:
        unused = candidates.unused([photo.file for photo in inputs])
        shown = ", ".join(unused[:3]) + (" ..." if len(unused) > 3 else "")
        return [f"{candidates.path}: has captions of {len(unused)} other photos: {shown}"] if unused else []

    return CaptionSource(
        _chosen(candidates.propose, collection, how), candidates.sha256 + _told_apart(collection, how), leftovers
    )


def of_endpoint(server: Endpoint, collection: Collection | None, how: RerankConfig) -> CaptionSource:
    def propose(photos: Iterable[str]) -> Iterator[Proposed]:
        for spoken in server.candidates_of(photos):
            candidates = [Candidate(text) for text in spoken.captions]
            yield Proposed(spoken.file, candidates, spoken.error, spoken.sha256)

    made_by = f"{server.url} {server.model} {server.prompt} {server.candidates} {server.temperature}"
    return CaptionSource(_chosen(propose, collection, how), made_by + _told_apart(collection, how))


def _chosen(
    propose: Callable[[Sequence[str]], Iterator[Proposed]], collection: Collection | None, how: RerankConfig
) -> Callable[[Sequence[str]], Iterator[Caption]]:
    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        if collection is None:
            return map(likeliest, propose(photos))
        return rerank(propose(photos), see(collection.retriever, photos), collection, how)

    return caption


def _told_apart(collection: Collection | None, how: RerankConfig) -> str:
    return "" if collection is None else f" among={collection.identity} {astuple(how)}"
