"""Where captions come from (a captioner, a file of candidates, a server), alone or told apart in a collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial

import numpy as np

from capscore.errors import UserError
from capscore.printable import counted
from tellapart.captioning.captioner import PhotoCaptioner, likeliest, see
from tellapart.captioning.rerank import Collection, RerankConfig, best_of, rerank
from tellapart.data.captions import PROMPT, Candidate, Caption, Proposed
from tellapart.data.items import Input
from tellapart.data.media import photos as media
from tellapart.decoding.rules import Search
from tellapart.desk.candidates_file import CandidatesFile
from tellapart.desk.chatter import caption_in, is_refusal
from tellapart.desk.context import Context
from tellapart.desk.contrast_prompt import Contrast, ContrastConfig, objects_by
from tellapart.desk.endpoint import Endpoint, Question, ServerCaptions, Usage
from tellapart.desk.endpoint.sheet import SHEET_PROMPT, contact_sheet
from tellapart.detectors.detector import Detector
from tellapart.errors import BadPhoto


@dataclass(frozen=True)
class CaptionSource:
    caption: Callable[[Sequence[str]], Iterator[Caption]]  # photos -> captions, in order
    settings: str  # what the captions depend on beside the photo
    remember: Callable[[Mapping[str, str]], None] = lambda _: (
        None
    )  # captions that stay, by file: look-alikes have others
    leftovers: Callable[[Sequence[Input]], list[str]] = lambda _: []  # sentences on what was not used
    language: str = ""  # a tag, where the captions are in one that was asked for
    saved: Callable[[Iterable[str]], None] = lambda _: None  # files whose captions a kill cannot take any more


def of_captioner(
    captioner: PhotoCaptioner,
    search: Search,
    collection: Collection | None,
    how: RerankConfig,
    contrast: ContrastConfig | None = None,
    detector: Detector | None = None,
    *,
    show_attributes: bool = False,
    prompt: str = PROMPT,
) -> CaptionSource:
    """prompt  what a vision-language model is asked where there is context of photos"""
    made_by = f"{captioner.identity} {search}"
    if collection is not None and contrast is not None:
        asking = Contrast(
            partial(_ask, captioner, search),
            collection,
            how,
            contrast,
            None if detector is None else objects_by(detector),
            prompt,
        )

        def contrasted(photos: Sequence[str]) -> Iterator[Caption]:
            return asking.captions(photos, see(collection.retriever, photos))

        made_by += f" {astuple(contrast)}" + ("" if detector is None else f" {detector.sha256}")
        return CaptionSource(contrasted, made_by + _rerank_settings(collection, how), collection.remember)
    if how.context is not None:
        if collection is not None:
            collection.retriever.reader.require_words_of(captioner.model.tokenizer)
        made_by += f" {prompt}" if _answering(captioner) else ""
        answers = 1 if collection is None else how.beam
        proposing = partial(_propose_in_context, captioner, search, how, how.context, prompt, answers)
        return CaptionSource(
            _chosen(proposing, collection, how), made_by + _rerank_settings(collection, how), _earlier(collection)
        )

    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        captions = captioner.caption(photos, search=search, among=collection, how=how)
        return captioner.with_attributes(captions) if show_attributes else captions

    made_by += " with attributes" if show_attributes else ""
    return CaptionSource(caption, made_by + _rerank_settings(collection, how), _earlier(collection))


def _answering(captioner: PhotoCaptioner) -> Callable[..., list[str]] | None:
    """How a vision-language model answers a question about a photo; none: it cannot be asked."""
    answer: Callable[..., list[str]] | None = getattr(captioner.model.captioner, "answer", None)
    return answer


def _propose_in_context(
    captioner: PhotoCaptioner,
    search: Search,
    how: RerankConfig,
    context: Context,
    prompt: str,
    answers: int,
    photos: Sequence[str],
) -> Iterator[Proposed]:
    """Candidates of a model; one that can be prompted gets the photo's context."""
    if _answering(captioner) is None:
        wide = replace(search, beam=max(search.beam, how.beam))
        yield from captioner.propose(photos, wide, samples=how.samples, temperature=how.temperature)
        return
    for file in photos:
        question = Question(file, prompt=context.prompt(prompt, file), answers=answers)
        for answer in _ask(captioner, search, [question]):
            yield Proposed(answer.file, list(map(Candidate, answer.captions)), answer.error, answer.sha256)


def _ask(captioner: PhotoCaptioner, search: Search, questions: Sequence[Question]) -> Iterator[ServerCaptions]:
    """The questions that a server gets, for a vision-language model on this machine; several photos are one sheet."""
    answer = _answering(captioner)
    if answer is None:
        raise UserError("--contrast prompt needs a vision-language model that answers questions, or a server.")
    if not any(question.prompt for question in questions):
        for one in captioner.propose([question.file for question in questions], search):
            yield ServerCaptions(one.file, [each.text for each in one.candidates[:1]], one.error, one.sha256)
        return
    for question in questions:
        try:
            shown, hashes = zip(*map(media.upright, (question.file, *question.beside)), strict=True)
        except BadPhoto as error:
            yield ServerCaptions(question.file, error=error.reason)
            continue
        seed = int(hashes[0][:15], 16)
        picture = contact_sheet(shown) if question.beside else shown[0]
        start = SHEET_PROMPT if question.beside else ""
        texts = answer(picture, start + question.prompt, max(question.answers, 1), seed)
        usable = [caption_in(text) for text in texts if not is_refusal(text)]
        yield ServerCaptions(question.file, [text for text in usable if text], sha256=hashes[0])


def of_candidates(candidates: CandidatesFile, collection: Collection | None, how: RerankConfig) -> CaptionSource:
    def leftovers(inputs: Sequence[Input]) -> list[str]:
        unused = candidates.unused([photo.file for photo in inputs])
        shown = ", ".join(unused[:3]) + (" ..." if len(unused) > 3 else "")
        return [f"{candidates.path}: has captions of {counted(len(unused), 'other photo')}: {shown}"] if unused else []

    return CaptionSource(
        _chosen(candidates.propose, collection, how),
        candidates.sha256 + _rerank_settings(collection, how),
        _earlier(collection),
        leftovers,
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
        for answer in server.answers_to(_question(file, server.prompt, how) for file in photos):
            candidates = [Candidate(text) for text in answer.captions]
            yield Proposed(answer.file, candidates, answer.error, answer.sha256)

    made_by = f"{server.url} {server.model} {server.prompt} {server.candidates} {server.temperature}"
    return CaptionSource(
        _chosen(propose, collection, how),
        made_by + _rerank_settings(collection, how),
        _earlier(collection),
        saved=_forgetting(server),
    )


def _forgetting(server: Endpoint) -> Callable[[Iterable[str]], None]:
    return (lambda _: None) if server.kept is None else server.kept.forget


def _question(file: str, prompt: str, how: RerankConfig) -> Question:
    """A photo's first question: the usual one, or with what is known of the photo."""
    return Question(file, prompt="" if how.context is None else how.context.prompt(prompt, file))


def _contrasted(
    server: Endpoint, collection: Collection, how: RerankConfig, contrast: ContrastConfig, detector: Detector | None
) -> CaptionSource:
    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        usage = Usage()
        one_each = replace(server, candidates=1)
        checked = None if detector is None else objects_by(detector)
        asking = Contrast(
            lambda asked: one_each.answers_to(asked, usage), collection, how, contrast, checked, server.prompt
        )
        try:
            yield from asking.captions(photos, see(collection.retriever, photos))
        finally:
            if usage.answers or usage.kept:
                server.notify(f"{server.url}: {usage}")

    made_by = f"{server.url} {server.model} {server.prompt} {server.temperature} {server.sheet} {astuple(contrast)}"
    made_by += "" if detector is None else f" {detector.sha256}"
    settings = made_by + _rerank_settings(collection, how)
    return CaptionSource(caption, settings, collection.remember, saved=_forgetting(server))


def _chosen(
    propose: Callable[[Sequence[str]], Iterator[Proposed]], collection: Collection | None, how: RerankConfig
) -> Callable[[Sequence[str]], Iterator[Caption]]:
    def caption(photos: Sequence[str]) -> Iterator[Caption]:
        if collection is None and how.context is not None:
            return (_alone(one, how) for one in propose(photos))
        if collection is None:
            return map(likeliest, propose(photos))
        return rerank(propose(photos), see(collection.retriever, photos), collection, how)

    return caption


def _alone(one: Proposed, how: RerankConfig) -> Caption:
    """The best candidate where nothing is to be told apart."""
    if one.error or not one.candidates:
        return likeliest(one)
    best = one.candidates[best_of(one, np.zeros(len(one.candidates)), how)]
    return Caption(one.file, best.text, best.logp, sha256=one.sha256)


def _earlier(collection: Collection | None) -> Callable[[Mapping[str, str]], None]:
    return (lambda _: None) if collection is None else collection.remember


def _rerank_settings(collection: Collection | None, how: RerankConfig) -> str:
    if collection is None:
        return "" if how.context is None else f" context={how.context.identity}"
    return f" among={collection.identity} {how.identity}"
