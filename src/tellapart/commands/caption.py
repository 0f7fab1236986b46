"""tellapart caption: photos, clips, folders or a data file -> one caption each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capscore.errors import UserError
from capscore.printable import print_message, print_row
from capscore.progress import Progress, notice
from tellapart.commands.arguments import (
    DEVICE,
    RAY,
    RAY_HELP,
    Parser,
    between,
    check,
    is_set,
    number,
    option,
    positive,
    stated,
)
from tellapart.data.items import Unusable
from tellapart.detectors import KINDS

if TYPE_CHECKING:
    from tellapart.captioning.captioner import PhotoCaptioner
    from tellapart.captioning.pipeline import CaptionSource, Proposer, RerankConfig
    from tellapart.captioning.rerank import Collection
    from tellapart.data.items import Input
    from tellapart.desk.candidates_file import CandidatesFile
    from tellapart.desk.captions_file import CaptionsFile
    from tellapart.desk.endpoint import Endpoint
    from tellapart.retrievers.retriever import Retriever

    Model = CandidatesFile | Endpoint | PhotoCaptioner  # that captions come from

SUBTITLES, RESULTS = (".srt", ".vtt"), ".json"  # endings of --out beside files of rows

strength, seconds = between(0, 1000), between(0.001, 86400)


def segments(text: str) -> str | float:
    return text if text == "shots" else number(text, 0.1, 86400)


def parser() -> Parser:
    parser = Parser(
        "caption",
        "Caption photos, clips, folders of them (with the folders in them) or a data file.\n"
        "Prints FILE<TAB>CAPTION lines, or writes rows to --out; run it again with the same --out to\n"
        "resume.  Captions that you edit there are kept; delete a row to make it again, or --again for all.\n"
        "Exit 1: some photos could not be used; each is named with its reason.\n"
        "\n"
        "With --among, the caption of a photo is the candidate that best tells the photo apart from its\n"
        "look-alikes in a collection; rows then name those look-alikes, and the gap between them and the photo.\n"
        "\n"
        "With --segments, each clip gets one caption per shot or per N seconds; --out F.srt or F.vtt are subtitles.\n"
        "With --n-best N, rows list N captions of a photo, and N lines are printed; --candidates reads such rows.\n"
        "With --watch, photos get captions as they appear, told apart from those that are there (or --among).",
        "tellapart caption holiday/ --among holiday/ --out captions.jsonl",
        f"""
        PATH...            a photo, a clip, a folder of them, or DATA.json
        --model MODEL      from `tellapart models`, a run folder, or a vision-language model of transformers (BLIP, GIT,
                           LLaVA ...) by folder or hub id; A+B: an ensemble that averages word probabilities (default:
                           the embedded one)
        --split NAME       split of a data file (default: all)
        --out F            rows to F.jsonl or F.csv, COCO results to F.json, or subtitles of a clip to F.srt or F.vtt
        --again            make captions anew that --out has; those that a person edited or approved stay.  Without
                           this, captions are made of new and changed photos, and of all if the model or its settings
                           are others
        --features DIR     folder with cached or imported features of DATA.json: needed by models that were trained on
                           imported features, saves time for others
        --show attributes  also show, in rows too, the words that the model was given of a photo
        --detector FILE    for a model that was trained with the boxes of a detector: {KINDS}
        {DEVICE}
        --dtype fp32|bf16  number type of a vision-language model
        --prompt TEXT      prompt of a vision-language model or a server for each photo (default: that of its training,
                           or one that asks for a caption of one sentence)
        --ray ADDRESS      {RAY_HELP}; rows are in order of completion
        --watch            run until Ctrl-C or SIGTERM, and caption photos as they appear in the folders; needs --out.
                           A photo is read when its size and time are the same in two polls and it can be decoded
        --interval SECONDS  time between two polls of --watch (default: 5)
        """,
        ray=RAY,
        interval=seconds,
    )
    parser.options(
        """
        --beam N=3          width of the beam search; 1: greedy
        --n-best N          list the N best captions; the beam is at least N wide
        --min-words N       minimum number of words
        --no-repeat N       no sequence of N words occurs twice; 1: no word does
        --length-penalty P  0: rank by log p (default); 1: by perplexity
        --diverse GROUPS    search in groups that avoid each other's words, for --n-best or --among; the beam, if need
                            be wider, is shared out evenly
        --diversity S       penalty in log p for words of other groups (default: 0.5)
        """,
        "decoding",
        diverse=positive,
        length_penalty=strength,
        diversity=strength,
    )
    parser.options(
        """
        --among PATH...  the collection: photos, folders, or DATA.json
        --retriever R    retriever that finds photos by captions (default: the embedded one)
        --k N            number of look-alikes in a row (default: 5)
        --strength S     weight of the retriever against the captioner (default: 0.4)
        --fluency W      weight of a language model of captions, such as 0.1 (default: 0)
        --contrast captions|words|prompt  re-rank whole captions; weigh each word by the retriever; or show the model
                         the photos that a first caption is confused with, and ask for a sentence that fits this
                         photo alone (default: captions; with --endpoint: prompt)
        --bursts own|share  near-duplicates, such as frames of a burst: each its own caption, or all the caption of the
                         first (default: own).  Copies always share a caption; look-alikes have different ones
        --candidates F.jsonl  choose from captions of another program
        """,
        "tell photos apart",
        strength=strength,
        fluency=strength,
    )
    parser.options(
        """
        --context        use what is known of a photo: the note in its folder (context.txt or note.txt), the names of
                         file and folder, and its EXIF date.  It goes into the prompt of a server or a vision-language
                         model, and captions with its words are slightly preferred
        --style alt|caption|tags  alt: alternative text of at most 125 characters; tags: words separated by commas
                         (default: caption)
        --language NAME  of the captions, such as German; only with --endpoint (default: English)
        """,
        "context and style",
    )
    parser.options(
        """
        --segments shots|SECONDS  one caption per shot, or per this many seconds
        --reading-speed N         characters of a subtitle per second, at most (default: 17)
        --line-length N           characters of a subtitle's line, at most (default: 32)
        """,
        "clips",
        "A segment is named FILE#t=START,END, in seconds.  With --among, a segment that no caption tells apart from\n"
        "the others is described by more of the video around it.",
        segments=segments,
        reading_speed=seconds,
    )
    return parser.options(
        """
        --endpoint URL          such as http://localhost:8080/v1
        --endpoint-model NAME   name of the model on the server
        --api-key-env NAME      the environment variable whose key is sent (default: TELLAPART_API_KEY)
        --max-tokens N          maximum tokens of an answer; reasoning models need more (default: 2048)
        --contrast-prompt TEXT  prompt with look-alikes; may hold {caption}, {count} and {others}
        --answers N             candidate captions of a photo, with --among (default: 3, or 5)
        --images N              photos in a request, the photo itself included (default: 4)
        --sheet                 send them as one picture, a contact sheet
        --max-requests N        stop after N requests (default: no limit)
        --timeout SECONDS=60    seconds for an answer
        --requests N=4          maximum number of parallel requests, if the server answers them in time
        """,
        "captions from a server with the OpenAI API",
        "Each photo goes to URL, and to no other host, as a JPEG of at most 768 pixels a side without\n"
        "metadata, together with the prompt, to which --context adds what is known of the photo.  A photo is one\n"
        "request.  With --among, one whose caption fits others is sent again with those others: two requests more, or\n"
        "three if the server gives one answer at a time; and --language translates the chosen caption: one more.\n"
        "Failed requests are repeated.  A key is sent only if TELLAPART_API_KEY holds one or\n"
        "--api-key-env names its variable.  A line at the end says how many requests and tokens it was.",
        sheet={"default": None},
        timeout=seconds,
    )


# Which options go together: those that no Python call takes together; the others are refused by the calls below

_NEEDS = (  # options, the one that they need, and why
    ("retriever k strength fluency contrast bursts candidates", "among", "photos that others are told apart from"),
    ("api_key_env max_tokens max_requests sheet", "endpoint", "the server that it is about"),
    ("language", "endpoint", "for other captioners write in the language that they learned"),
    ("endpoint", "endpoint_model", "the model to ask there"),
    ("endpoint_model", "endpoint", "where the server is"),
    ("interval", "watch", "between whose polls it is the time"),
    ("diversity", "diverse", "the number of groups"),
    ("again", "out", "a file whose captions are to be made anew"),
)
_DECODING = "n_best min_words no_repeat length_penalty diverse diversity"
_EXCLUDES = (  # an option, others that it cannot be combined with, and why
    ("candidates", f"model endpoint prompt dtype features show {_DECODING}", "the captions are already written"),
    ("endpoint", f"model dtype features show {_DECODING}", "the server makes the captions"),
    ("ray", "candidates endpoint features detector prompt dtype show context", "workers encode the photos"),
    ("watch", "candidates ray segments features n_best split again", "photos are captioned as they appear"),
    ("n_best", "among", "one lists captions and the other chooses: list them first, then give --candidates"),
    ("n_best", "context style", "captions are listed as they are found"),
    ("show", "context", "attributes are those of captions without it"),
)


def _check(request: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    check(request, _NEEDS, _EXCLUDES)
    suffix = request.out.suffix if request.out else ""
    for name in ("reading_speed", "line_length"):
        if is_set(request, name) and suffix not in SUBTITLES:
            raise UserError(f"{option(name)} is about subtitles: --out F.srt or F.vtt.")
    for name in ("contrast_prompt", "answers", "images"):
        if is_set(request, name) and not request.endpoint and request.contrast != "prompt":
            raise UserError(f"{option(name)} needs --contrast prompt, or --endpoint.")
    if request.again and suffix in SUBTITLES:
        raise UserError("--again needs --out F.jsonl or F.csv, a file whose captions are to be made anew.")
    if request.watch and suffix not in (".jsonl", ".csv"):
        raise UserError("--watch needs --out F.jsonl or F.csv, a file that rows can be added to.")
    if request.candidates and request.contrast in ("words", "prompt"):
        raise UserError(f"--contrast {request.contrast} needs a model; --candidates are already written.")
    if request.contrast == "words" and (request.endpoint or request.ray):
        raise UserError("--contrast words needs a captioner in this process that can be asked word by word: a --model.")
    if request.out and request.candidates and request.out.resolve() == request.candidates.resolve():
        raise UserError(f"--out {request.out}: this is the file of candidates; choose another name.")


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    if request.watch:
        request.among = request.among or request.path
    _check(request)

    from tellapart.data.items import gather

    if request.language and not _tag(request.language):
        print_message(f"--language {request.language}: rows will not say it, for its tag (such as de) is not known.")
    suffix, out = request.out.suffix if request.out else "", None
    if request.out and suffix not in SUBTITLES:
        from tellapart.desk import captions_file

        out = captions_file.CaptionsFile(
            captions_file.rows_of_results(request.out) if suffix == RESULTS else request.out
        )
    model: Any = _model(request)  # before any photo is read: a wrong file or address should not cost an hour
    config = _config(request)
    proposer = _proposer(request, model, config)
    if request.watch and out:
        return _watch(request, model, out)
    inputs, problems = gather(request.path, request.split)
    if suffix == RESULTS:
        captions_file.require_ids(inputs, request.out)
    if suffix in SUBTITLES and len(inputs) > 1:
        raise UserError(f"--out {request.out}: subtitles are those of one clip, not of {len(inputs)}.")
    if request.segments:
        from tellapart.desk.subtitles import segmented

        inputs = segmented(inputs, request.segments)
    collection, collection_problems = _collection(request, {photo.file for photo in inputs})
    source = _source(request, model, proposer, collection, config)
    if out:
        from tellapart.desk.resume import write

        failed = write(source, inputs, out, again=request.again)
    else:
        failed = _subtitle(request, source, inputs) if suffix in SUBTITLES else show(source, inputs)
    if suffix == RESULTS and out:
        captions_file.write_results(out.rows, inputs, request.out)
    problems = [*problems, *getattr(model, "problems", ()), *collection_problems]
    unused = model.unused([photo.file for photo in inputs]) if request.candidates else []
    for problem in dict.fromkeys([*problems, *unused]):
        print_message(problem)
    return 1 if failed or problems or (out and out.rejected) else 0


def _watch(request: argparse.Namespace, model: Model, out: CaptionsFile) -> int:
    from tellapart.desk.resume import write
    from tellapart.desk.watch import INTERVAL, Arrivals, in_folders, watch

    arrivals = Arrivals(in_folders(request.path))
    retriever = _retriever(request)

    def caption(new: list[Input]) -> None:
        collection, _ = _collection(request, {photo.file for photo in new}, retriever, arrivals.unfinished)
        config = _config(request)  # context is read anew: notes may have changed
        source = _source(request, model, _proposer(request, model, config), collection, config)
        write(source, new, out, again=False)

    print_message(f"watching {', '.join(request.path)}; Ctrl-C or SIGTERM stops it")
    watch(arrivals, caption, interval=request.interval or INTERVAL)
    print_message("stopped; the same command continues from here")
    return 1 if out.rejected or any("error" in row for row in out.rows) else 0


# From the model to captions


def _model(request: argparse.Namespace) -> Model:
    if request.candidates:
        from tellapart.desk.candidates_file import CandidatesFile

        return CandidatesFile(request.candidates)
    if request.endpoint:
        return _endpoint(request)
    if request.ray:
        from tellapart.captioning.cluster import Cluster, ClusterCaptioner

        return ClusterCaptioner(request.model, Cluster(request.ray), device=request.device)
    from tellapart.captioning.captioner import load

    return load(
        request.model,
        device=request.device,
        features=request.features,
        paths=request.path,
        detector=request.detector,
        prompt=request.prompt,
        dtype=request.dtype,
    )


def _endpoint(request: argparse.Namespace) -> Endpoint:
    from tellapart.desk.asking import PROMPTS, in_language
    from tellapart.desk.endpoint import Endpoint, KeptAnswers

    prompt = PROMPTS[request.style or "caption"] if request.prompt is None else request.prompt
    if request.language and not request.among:  # captions that are chosen by a retriever are translated afterwards
        prompt = in_language(prompt, request.language)
    # Only a key that is meant for this program or this server: those of other programs are never sent.
    key = os.environ.get(request.api_key_env or "TELLAPART_API_KEY", "").strip()
    if request.api_key_env and not key:
        raise UserError(f"--api-key-env {request.api_key_env}: this environment variable is not set, or empty.")
    return Endpoint(
        request.endpoint,
        request.endpoint_model,
        prompt,
        candidates=(request.answers or 5) if request.among else 1,
        timeout=request.timeout,
        at_once=request.requests,
        api_key=key,
        notify=notice,
        kept=KeptAnswers(request.endpoint, notice),
        **stated(max_tokens=request.max_tokens, max_requests=request.max_requests, sheet=request.sheet),
    )


def _config(request: argparse.Namespace) -> RerankConfig:
    from tellapart.captioning.pipeline import RerankConfig

    context = None
    if request.context:
        from tellapart.desk.context import Context

        context = Context()
    contrast = request.contrast or ("prompt" if request.endpoint and request.among else None)
    settings = stated(k=request.k, strength=request.strength, contrast=contrast)
    return RerankConfig(**settings, **stated(fluency=request.fluency, bursts=request.bursts), context=context)


def _proposer(request: argparse.Namespace, model: Any, config: RerankConfig) -> Proposer:
    proposer: Proposer = model
    if request.candidates:
        return proposer
    from tellapart.captioning.captioner import CaptionerProposer
    from tellapart.decoding.rules import Search

    searched = stated(n_best=request.n_best, min_words=request.min_words, no_repeat=request.no_repeat)
    searched |= stated(groups=request.diverse, diversity=request.diversity, length_penalty=request.length_penalty)
    search = Search(beam=request.beam, **searched)
    if not (request.endpoint or request.context or config.contrast == "prompt"):
        return CaptionerProposer(model, search, config)
    from tellapart.desk import asking

    prompt = asking.PROMPTS[request.style or "caption"] if request.prompt is None else request.prompt
    if config.contrast == "prompt":
        default = asking.CONTRAST_PROMPTS[request.style or "caption"]
        shown = asking.ContrastConfig(
            default if request.contrast_prompt is None else request.contrast_prompt,
            **stated(answers=request.answers, images=request.images),
        )
        return asking.contrast_prompt(
            model, shown, search=search, detector=_detector(request), context=config.context, prompt=prompt
        )
    if request.endpoint:
        return asking.Asking(model.answers_to, model.identity, config.context, model.prompt)
    if (ask := asking.model_asked(model, search)) is not None:
        answers = config.beam if request.among else 1
        return asking.Asking(ask, f"{model.identity} {search} {prompt}", config.context, prompt, answers)
    return CaptionerProposer(model, search, config)


def _detector(request: argparse.Namespace) -> Any:
    """Checks what a model says that was shown look-alikes."""
    if not request.detector:
        return None
    from capscore.objects import CLASSES
    from tellapart.detectors import load

    return load(request.detector, CLASSES)


def _source(
    request: argparse.Namespace, model: Any, proposer: Proposer, collection: Collection | None, config: RerankConfig
) -> CaptionSource:
    from tellapart.captioning.pipeline import tell_apart

    if request.segments and collection is not None:
        from tellapart.desk.subtitles import widened

        source = widened(proposer, collection, config)
    else:
        source = tell_apart(proposer, collection, config, listed=(request.n_best or 1) > 1)
    if request.show:
        source = model.with_attributes(source)
    if request.endpoint:
        source = replace(source, saved=model.kept.forget)
    if request.language:
        from tellapart.desk.asking import translated

        if collection is not None:
            source = translated(source, model.answers_to, request.language)
        source = replace(source, language=_tag(request.language))
    if request.style in ("alt", "tags"):
        from tellapart.desk.asking import styled

        source = styled(source, request.style)
    return source


def _tag(language: str) -> str:
    from tellapart.desk.captions_file import tag_of

    return tag_of(language)


# The collection


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

    photos, problems = gather(request.among, request.split)
    if request.segments:
        from tellapart.desk.subtitles import segmented

        photos = segmented(photos, request.segments)
    names = [photo.file for photo in photos if photo.file not in unfinished]
    collection = Collection.of(retriever or _retriever(request), names)
    return collection, [*problems, *collection.problems(captioned)]


# Captions on stdout, or as subtitles


def _subtitle(request: argparse.Namespace, source: CaptionSource, inputs: list[Input]) -> int:
    """Subtitles in a file.  Returns how many segments failed."""
    from tellapart.data.media import clips
    from tellapart.desk.subtitles import Reading, cues, write

    captions = []
    with Progress("captions", len(inputs), unit=clips.unit(photo.file for photo in inputs)) as bar:
        failed = Unusable(bar.message)
        for caption in source.caption([photo.file for photo in inputs]):
            if caption.error:
                failed.add(caption.file, caption.error)
            else:
                captions.append(caption)
            bar.advance(1)
        failed.rest()
    reading = Reading(**stated(speed=request.reading_speed, line=request.line_length))
    if captions:
        write(list(cues(captions)), request.out, reading)
    source.saved([caption.file for caption in captions])
    return len(failed)


def show(source: CaptionSource, inputs: list[Input]) -> int:
    """Lines on stdout, as they come.  Returns how many photos failed."""
    failed, shown = Unusable(print_message), list[str]()
    for caption in source.caption([photo.file for photo in inputs]):
        if caption.error:
            failed.add(caption.file, caption.error)
            continue
        shown.append(caption.file)
        words = [f"{word} {chance:.2f}" for word, chance in caption.attributes or ()]
        for text in [candidate.text for candidate in caption.candidates] or [caption.text]:
            print_row(caption.file, text, *([] if caption.attributes is None else [", ".join(words)]))
    failed.rest(" (--out F.jsonl names each)")
    source.saved(shown)  # all at once: what a run that is stopped has shown, the next shows again
    return len(failed)
