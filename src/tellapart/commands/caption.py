"""tellapart caption: photos, clips, folders or a data file -> one caption each."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from tellapart.captioning.ray_cluster import Cluster
from tellapart.commands.caption_options import check, parser
from tellapart.data.unusable import Unusable
from tellapart.errors import UserError
from tellapart.printable import print_message, print_row
from tellapart.progress import notice

if TYPE_CHECKING:
    from tellapart.captioning.candidates_file import CandidatesFile
    from tellapart.captioning.captioner import PhotoCaptioner
    from tellapart.captioning.contrast_prompt import ContrastConfig
    from tellapart.captioning.endpoint import Endpoint
    from tellapart.captioning.rerank import Collection
    from tellapart.captioning.sources import CaptionSource
    from tellapart.data.captions import Caption
    from tellapart.data.items import Input
    from tellapart.detectors.detector import Detector


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    check(request)

    from tellapart.captioning import coco_results
    from tellapart.captioning.rows import CaptionsFile
    from tellapart.captioning.segments import segmented, widened
    from tellapart.captioning.subtitles import SUFFIXES
    from tellapart.captioning.writing import write
    from tellapart.data.items import gather

    titles = request.out if request.out and request.out.suffix in SUFFIXES else None
    results = request.out if request.out and request.out.suffix == coco_results.SUFFIX else None
    file = coco_results.rows_beside(results) if results else request.out
    out = CaptionsFile(file) if file and not titles else None
    source = _source(request)  # before any photo is looked at: a wrong file or address should not cost an hour
    inputs, problems = gather(request.paths, request.split)
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
        failed = write(source_of_captions, inputs, out) if out else show(source_of_captions, inputs)
    if results and out:
        coco_results.write(out.rows, inputs, results)
    for problem in dict.fromkeys([*problems, *collection_problems, *source_of_captions.leftovers(inputs)]):
        print_message(problem)
    return 1 if failed or problems or collection_problems else 0


def _collection(request: argparse.Namespace, captioned: set[str]) -> tuple[Collection | None, list[str]]:
    """The photos to be told apart from, and a sentence for whatever of them could not be used.

    Those that are captioned as well are named then.
    """
    if not request.among:
        return None, []
    from tellapart.captioning.rerank import Collection
    from tellapart.data.items import gather
    from tellapart.models.retrievers import load
    from tellapart.retrievers import DEFAULT

    found, problems = gather(request.among, request.split)
    if request.segments:
        from tellapart.captioning.segments import segmented

        found = segmented(found, request.segments)
    collection = Collection.of(load(request.retriever or DEFAULT, device=request.device), [one.file for one in found])
    unusable = Unusable(problems.append)
    for file, reason in collection.photos.failed.items():
        if file not in captioned:
            unusable.add(file, reason)
    unusable.rest()
    return collection, problems


def _source(request: argparse.Namespace) -> CandidatesFile | Endpoint | PhotoCaptioner:
    """Where captions come from."""
    if request.candidates:
        from tellapart.captioning.candidates_file import CandidatesFile

        return CandidatesFile(request.candidates)
    if request.endpoint:
        from tellapart.captioning.endpoint import Endpoint

        settings = {"prompt": request.prompt, "max_tokens": request.max_tokens, "max_requests": request.max_requests}
        settings["sheet"] = request.sheet
        return Endpoint(
            request.endpoint,
            request.endpoint_model,
            candidates=(request.answers or 5) if request.among else 1,
            timeout=request.timeout,
            at_once=request.requests,
            api_key=_api_key(request.api_key_env),
            notify=notice,
            **_given(settings),
        )
    from tellapart.album import DEFAULT
    from tellapart.captioning.captioner import load

    if request.ray:
        from tellapart.captioning.ray_workers import ClusterCaptioner

        return ClusterCaptioner(request.model or DEFAULT, Cluster(request.ray), device=request.device)
    return load(
        request.model or DEFAULT,
        device=request.device,
        features=request.features,
        paths=request.paths,
        detector=request.detector,
        prompt=request.prompt,
        dtype=request.dtype,
    )


def _api_key(variable: str | None) -> str:
    """Only a key that is meant for this program or this server: those of other programs go to nobody."""
    key = os.environ.get(variable or "TELLAPART_API_KEY", "").strip()
    if variable and not key:
        raise UserError(f"--api-key-env {variable}: this environment variable is not set, or empty.")
    return key


def _speaker(
    request: argparse.Namespace, source: CandidatesFile | Endpoint | PhotoCaptioner, collection: Collection | None
) -> CaptionSource:
    from tellapart.captioning.candidates_file import CandidatesFile
    from tellapart.captioning.endpoint import Endpoint
    from tellapart.captioning.rerank import RerankConfig
    from tellapart.captioning.sources import of_candidates, of_captioner, of_endpoint
    from tellapart.decoding.search import Search

    chosen = {"k": request.k, "strength": request.strength, "contrast": request.contrast, "fluency": request.fluency}
    how = RerankConfig(**_given(chosen))
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
    )


def _contrast(request: argparse.Namespace) -> tuple[ContrastConfig | None, Detector | None]:
    """How a model is shown what to tell apart, and what checks its answers; none: it is not shown."""
    if request.contrast != "prompt" and (request.contrast or not request.endpoint):
        return None, None
    from tellapart.captioning.contrast_prompt import ContrastConfig
    from tellapart.detectors.loading import load
    from tellapart.metrics.object_words import CLASSES

    given = {"prompt": request.contrast_prompt, "answers": request.answers, "images": request.images}
    detector = load(request.detector, CLASSES) if request.detector else None
    return ContrastConfig(**_given(given)), detector


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what was not asked for, which has defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def _subtitle(request: argparse.Namespace, source_of_captions: CaptionSource, inputs: list[Input]) -> int:
    """Subtitles in a file.  Returns how many segments failed."""
    from tellapart.captioning.segments import cues
    from tellapart.captioning.subtitles import Reading, write
    from tellapart.progress import Progress

    captions = []
    with Progress("captions", len(inputs)) as bar:
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
    return len(failed)


def _words(caption: Caption) -> list[str]:
    """What it shows of the attributes, if that was asked for."""
    if caption.attributes is None:
        return []
    return [", ".join(f"{word} {chance:.2f}" for word, chance in caption.attributes)]


def show(source_of_captions: CaptionSource, inputs: list[Input]) -> int:
    """Lines on stdout, as they come.  Returns how many photos failed."""
    failed = Unusable(print_message)
    for caption in source_of_captions.caption([photo.file for photo in inputs]):
        if caption.error:
            failed.add(caption.file, caption.error)
        else:
            for text in [one.text for one in caption.candidates] or [caption.text]:
                print_row(caption.file, text, *_words(caption))
    failed.rest(" (--out F.jsonl names each)")
    return len(failed)
