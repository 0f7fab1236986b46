"""tellapart caption: photos, clips, folders or a data file -> one caption each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capscore.errors import UserError
from capscore.printable import print_message, print_row
from capscore.progress import notice
from tellapart.captioning.ray_cluster import Cluster
from tellapart.commands.caption_options import check, parser
from tellapart.data.items import Unusable
from tellapart.desk.languages import tag_of

if TYPE_CHECKING:
    from tellapart.captioning.captioner import PhotoCaptioner
    from tellapart.captioning.rerank import Collection
    from tellapart.data.captions import Caption
    from tellapart.data.items import Input
    from tellapart.desk.candidates_file import CandidatesFile
    from tellapart.desk.contrast_prompt import ContrastConfig
    from tellapart.desk.endpoint import Endpoint
    from tellapart.desk.rows import CaptionsFile
    from tellapart.desk.sources import CaptionSource
    from tellapart.detectors.detector import Detector
    from tellapart.retrievers.retriever import Retriever


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    if request.watch:
        request.among = request.among or request.paths
    check(request)
    if request.language and not tag_of(request.language):
        print_message(f"--language {request.language}: rows will not say it, for its tag (such as de) is not known.")

    from tellapart.data.items import gather
    from tellapart.desk import coco_results
    from tellapart.desk.candidates_file import CandidatesFile
    from tellapart.desk.rows import CaptionsFile
    from tellapart.desk.segments import segmented, widened
    from tellapart.desk.subtitles import SUFFIXES
    from tellapart.desk.writing import write

    titles = request.out if request.out and request.out.suffix in SUFFIXES else None
    results = request.out if request.out and request.out.suffix == coco_results.SUFFIX else None
    file = coco_results.rows_beside(results) if results else request.out
    out = CaptionsFile(file) if file and not titles else None
    source = _source(request)  # before any photo is read: a wrong file or address should not cost an hour
    if request.watch and out:
        return _watch(request, source, out)
    inputs, problems = gather(request.paths, request.split)
    if isinstance(source, CandidatesFile):
        problems += source.problems
    if results:
        coco_results.require_ids(inputs, results)
    if titles and len(inputs) > 1:
        raise UserError(f"--out {titles}: subtitles are those of one clip, not of {len(inputs)}.")
    if request.segments:
        inputs = segmented(inputs, request.segments)
    collection, collection_problems = _collection(request, {photo.file for photo in inputs})
    source_of_captions = _speaker(request, source, collection)
    if request.segments and collection:
        source_of_captions = widened(source_of_captions, lambda others: _speaker(request, source, others), collection)
    if titles:
        failed = _subtitle(request, source_of_captions, inputs)
    else:
        failed = (
            write(source_of_captions, inputs, out, again=request.again) if out else show(source_of_captions, inputs)
        )
    if results and out:
        coco_results.write(out.rows, inputs, results)
    for problem in dict.fromkeys([*problems, *collection_problems, *source_of_captions.leftovers(inputs)]):
        print_message(problem)
    return 1 if failed or problems or collection_problems or (out and out.rejected) else 0


def _watch(request: argparse.Namespace, source: CandidatesFile | Endpoint | PhotoCaptioner, out: CaptionsFile) -> int:
    from tellapart.desk.watch import INTERVAL, Arrivals, in_folders, watch
    from tellapart.desk.writing import write

    arrivals = Arrivals(in_folders(request.paths))
    retriever = _retriever(request)

    def caption(new: list[Input]) -> None:
        collection, _ = _collection(request, {photo.file for photo in new}, retriever, arrivals.unfinished)
        write(_speaker(request, source, collection), new, out, again=False)

    print_message(f"watching {', '.join(request.paths)}; Ctrl-C or SIGTERM stops it")
    watch(arrivals, caption, interval=request.interval or INTERVAL)
    print_message("stopped; the same command continues from here")
    return 1 if out.rejected or any("error" in row for row in out.rows) else 0


def _retriever(request: argparse.Namespace) -> Retriever:
    from tellapart.models.retrievers import load
    from tellapart.retrievers import DEFAULT

    return load(request.retriever or DEFAULT, device=request.device)


def _collection(
    request: argparse.Namespace,
    captioned: set[str],
    retriever: Retriever | None = None,
    unfinished: Set[str] = frozenset(),
) -> tuple[Collection | None, list[str]]:
    """The photos to be told apart from, and a sentence for each that could not be used.

    captioned   photos that are captioned as well, and named then
    retriever   if it is loaded already
    unfinished  photos that are still being written
    """
    if not request.among:
        return None, []
    from tellapart.captioning.rerank import Collection
    from tellapart.data.items import gather

    found, problems = gather(request.among, request.split)
    if request.segments:
        from tellapart.desk.segments import segmented

        found = segmented(found, request.segments)
    names = [one.file for one in found if one.file not in unfinished]
    collection = Collection.of(retriever or _retriever(request), names)
    unusable = Unusable(problems.append)
    for file, reason in collection.photos.failed.items():
        if file not in captioned:
            unusable.add(file, reason)
    unusable.rest()
    return collection, problems


def _source(request: argparse.Namespace) -> CandidatesFile | Endpoint | PhotoCaptioner:
    """Where captions come from."""
    if request.candidates:
        from tellapart.desk.candidates_file import CandidatesFile

        return CandidatesFile(request.candidates)
    if request.endpoint:
        from tellapart.desk.endpoint import Endpoint
        from tellapart.desk.endpoint.kept import KeptAnswers
        from tellapart.desk.styles import PROMPTS, in_language

        prompt = PROMPTS[request.style or "caption"] if request.prompt is None else request.prompt
        if request.language and not request.among:  # captions that are chosen by a retriever are translated afterwards
            prompt = in_language(prompt, request.language)
        settings = {"prompt": prompt, "max_tokens": request.max_tokens, "max_requests": request.max_requests}
        settings["sheet"] = request.sheet
        return Endpoint(
            request.endpoint,
            request.endpoint_model,
            candidates=(request.answers or 5) if request.among else 1,
            timeout=request.timeout,
            at_once=request.requests,
            api_key=_api_key(request.api_key_env),
            notify=notice,
            kept=KeptAnswers(request.endpoint, notice),
            **_given(settings),
        )
    return _captioner(request)


def _captioner(request: argparse.Namespace) -> PhotoCaptioner:
    from tellapart.captioning.captioner import load

    if request.ray:
        from tellapart.captioning.ray_workers import ClusterCaptioner

        return ClusterCaptioner(request.model or None, Cluster(request.ray), device=request.device)
    return load(
        request.model or None,
        device=request.device,
        features=request.features,
        paths=request.paths,
        detector=request.detector,
        prompt=request.prompt,
        dtype=request.dtype,
    )


def _api_key(variable: str | None) -> str:
    """Only a key that is meant for this program or this server: those of other programs are never sent."""
    key = os.environ.get(variable or "TELLAPART_API_KEY", "").strip()
    if variable and not key:
        raise UserError(f"--api-key-env {variable}: this environment variable is not set, or empty.")
    return key


def _speaker(
    request: argparse.Namespace, source: CandidatesFile | Endpoint | PhotoCaptioner, collection: Collection | None
) -> CaptionSource:
    from tellapart.desk.endpoint import Endpoint
    from tellapart.desk.styles import styled, translated

    speaker = _chooser(request, source, collection)
    if request.language and collection is not None and isinstance(source, Endpoint):
        speaker = translated(speaker, source.answers_to, request.language)
    if request.language:
        speaker = replace(speaker, language=tag_of(request.language))
    return styled(speaker, request.style) if request.style in ("alt", "tags") else speaker


def _chooser(
    request: argparse.Namespace, source: CandidatesFile | Endpoint | PhotoCaptioner, collection: Collection | None
) -> CaptionSource:
    from tellapart.captioning.rerank import RerankConfig
    from tellapart.decoding.rules import Search
    from tellapart.desk.candidates_file import CandidatesFile
    from tellapart.desk.context import Context
    from tellapart.desk.endpoint import Endpoint
    from tellapart.desk.sources import of_candidates, of_captioner, of_endpoint
    from tellapart.desk.styles import PROMPTS

    chosen = {"k": request.k, "strength": request.strength, "contrast": request.contrast}
    chosen |= {"fluency": request.fluency, "bursts": request.bursts}
    how = RerankConfig(**_given(chosen), context=Context(request.places) if request.context else None)
    if isinstance(source, CandidatesFile):
        return of_candidates(source, collection, how)
    contrast, detector = _contrast(request) if collection is not None else (None, None)
    if isinstance(source, Endpoint):
        return of_endpoint(source, collection, how, contrast, detector)
    searched = {"n_best": request.n_best, "min_words": request.min_words, "no_repeat": request.no_repeat}
    searched |= {"beam": request.beam, "groups": request.diverse, "diversity": request.diversity}
    searched |= {"length_penalty": request.length_penalty}
    return of_captioner(
        source,
        Search(**_given(searched)),
        collection,
        how,
        contrast,
        detector,
        show_attributes=request.show == "attributes",
        prompt=PROMPTS[request.style or "caption"] if request.prompt is None else request.prompt,
    )


def _contrast(request: argparse.Namespace) -> tuple[ContrastConfig | None, Detector | None]:
    """How a model is shown what to tell apart, and what checks its answers; none: it is not shown."""
    if request.contrast != "prompt" and (request.contrast or not request.endpoint):
        return None, None
    from capscore.object_words import CLASSES
    from tellapart.desk.contrast_prompt import ContrastConfig
    from tellapart.desk.styles import CONTRAST_PROMPTS
    from tellapart.detectors.loading import load

    usual = CONTRAST_PROMPTS[request.style or "caption"]
    prompt = usual if request.contrast_prompt is None else request.contrast_prompt
    given = {"prompt": prompt, "answers": request.answers, "images": request.images}
    detector = load(request.detector, CLASSES) if request.detector else None
    return ContrastConfig(**_given(given)), detector


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what was not asked for, which has defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def _subtitle(request: argparse.Namespace, source_of_captions: CaptionSource, inputs: list[Input]) -> int:
    """Subtitles in a file.  Returns how many segments failed."""
    from capscore.progress import Progress
    from tellapart.data.media import clips
    from tellapart.desk.segments import cues
    from tellapart.desk.subtitles import Reading, write

    captions = []
    with Progress("captions", len(inputs), unit=clips.unit(one.file for one in inputs)) as bar:
        failed = Unusable(bar.message)
        for caption in source_of_captions.caption([one.file for one in inputs]):
            if caption.error:
                failed.add(caption.file, caption.error)
            else:
                captions.append(caption)
            bar.advance(1)
        failed.rest()
    reading = Reading(**_given({"speed": request.reading_speed, "line": request.line_length}))
    if captions:
        write(list(cues(captions)), request.out, reading)
    source_of_captions.saved([caption.file for caption in captions])
    return len(failed)


def _words(caption: Caption) -> list[str]:
    """What it shows of the attributes, if that was asked for."""
    if caption.attributes is None:
        return []
    return [", ".join(f"{word} {chance:.2f}" for word, chance in caption.attributes)]


def show(source_of_captions: CaptionSource, inputs: list[Input]) -> int:
    """Lines on stdout, as they come.  Returns how many photos failed."""
    failed, shown = Unusable(print_message), list[str]()
    for caption in source_of_captions.caption([photo.file for photo in inputs]):
        if caption.error:
            failed.add(caption.file, caption.error)
        else:
            shown.append(caption.file)
            for text in [one.text for one in caption.candidates] or [caption.text]:
                print_row(caption.file, text, *_words(caption))
    failed.rest(" (--out F.jsonl names each)")
    source_of_captions.saved(shown)  # all at once: what a run that is stopped has shown, the next shows again
    return len(failed)
