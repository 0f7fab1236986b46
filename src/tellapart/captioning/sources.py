"""Where captions come from (a captioner, a file of candidates, a server), alone or told apart in a collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from tellapart.captioning.candidates_file import CandidatesFile
from tellapart.captioning.captioner import PhotoCaptioner, likeliest, see
from tellapart.captioning.contrast_prompt import Contrast, ContrastConfig, objects_by
from tellapart.captioning.endpoint import Endpoint, Usage
from tellapart.captioning.rerank import Collection, RerankConfig, rerank
from tellapart.data.captions import Candidate, Caption, Proposed
from tellapart.data.items import Input
from tellapart.decoding.search import Search
from tellapart.detectors.detector import Detector


@dataclass(frozen=True)
class CaptionSource:
    caption: Callable[[Sequence[str]], Iterator[Caption]]  # photos -> captions, in order
    settings: str  # what the captions depend on beside the photo
    leftovers: Callable[[Sequence[Input]], list[str]] = lambda _: []  # sentences on what was not used


def of_captioner(
    captioner: PhotoCaptioner, search: Search, collection: Collection | None, how: RerankConfig
) -> CaptionSource:
    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        return captioner.caption(photos, search=search, among=collection, how=how)

    made_by = f"{captioner.model.sha256} {captioner.visual_input.identity} {search}"
    return CaptionSource(caption, made_by + _told_apart(collection, how))


def of_candidates(candidates: CandidatesFile, collection: Collection | None, how: RerankConfig) -> CaptionSource:
    def leftovers(inputs: Sequence[Input]) -> list[str]:
        unused = candidates.unused([photo.file for photo in inputs])
        shown = ", ".join(unused[:3]) + (" ..." if len(unused) > 3 else "")
        return [f"{candidates.path}: has captions of {len(unused)} other photos: {shown}"] if unused else []

    return CaptionSource(
        _chosen(candidates.propose, collection, how), candidates.sha256 + _told_apart(collection, how), leftovers
    )


def of_endpoint(
    server: Endpoint,
    collection: Collection | None,
    how: RerankConfig,
    contrast: ContrastConfig | None = None,
    detector: Detector | None = None,
) -> CaptionSource:
    """contrast  how the server is shown what to tell apart; none: it is only asked for several captions"""
    if collection is not None and contrast is not None:
        return _contrasted(server, collection, how, contrast, detector)

    def propose(photos: Iterable[str]) -> Iterator[Proposed]:
        for answer in server.candidates_of(photos):
            candidates = [Candidate(text) for text in answer.captions]
            yield Proposed(answer.file, candidates, answer.error, answer.sha256)

    made_by = f"{server.url} {server.model} {server.prompt} {server.candidates} {server.temperature}"
    return CaptionSource(_chosen(propose, collection, how), made_by + _told_apart(collection, how))


def _contrasted(
    server: Endpoint, collection: Collection, how: RerankConfig, contrast: ContrastConfig, detector: Detector | None
) -> CaptionSource:
    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        usage = Usage()
        one_each = replace(server, candidates=1)
        checked = None if detector is None else objects_by(detector)
        asking = Contrast(lambda asked: one_each.answers_to(asked, usage), collection, how, contrast, checked)
        try:
            yield from asking.captions(photos, see(collection.retriever, photos))
        finally:
            if usage.answers:
                server.notify(f"{server.url}: {usage}")

    made_by = f"{server.url} {server.model} {server.prompt} {server.temperature} {server.sheet} {astuple(contrast)}"
    made_by += "" if detector is None else f" {detector.sha256}"
    return CaptionSource(caption, made_by + _told_apart(collection, how))


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
