"""tellapart caption: photos, clips, folders or a data file -> one caption each."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.captioning.ray_cluster import HELP, LOCAL, Cluster
from tellapart.commands.arguments import Parser, number, positive
from tellapart.data.unusable import Unusable
from tellapart.errors import UserError
from tellapart.printable import print_message, print_row
from tellapart.progress import notice

if TYPE_CHECKING:
    from tellapart.captioning.candidates_file import CandidatesFile
    from tellapart.captioning.captioner import PhotoCaptioner
    from tellapart.captioning.endpoint import Endpoint
    from tellapart.captioning.rerank import Collection
    from tellapart.captioning.sources import CaptionSource
    from tellapart.data.items import Input

_DECODING = ("n_best", "min_words", "no_repeat", "length_penalty", "diverse", "diversity")


def parser() -> Parser:
    parser = Parser(
        "caption",
        "Caption photos, clips, folders of them (with the folders in them) or a data file.\n"
        "Prints FILE<TAB>CAPTION lines, or writes rows to --out; a run that is started again with the same --out goes\n"
        "on where it stopped.  Captions that you edit there are kept; delete a row to have it made again.\n"
        "Exit 1: some photos could not be used; each is named with its reason.\n"
        "\n"
        "With --among, a photo's caption is the one, of several, that best tells it apart from its look-alikes\n"
        "in a collection; rows then name those look-alikes, and the gap between them and the photo.\n"
        "\n"
        "With --segments, each clip gets one caption per shot or per N seconds; --out F.srt or F.vtt are subtitles.\n"
        "With --n-best N, rows list N captions of a photo, and N lines are printed; --candidates reads such rows.",
        "tellapart caption holiday/ --among holiday/ --out captions.jsonl",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a photo, a clip, a folder of them, or DATA.json")
    parser.add_argument(
        "--model",
        default="",
        help="from `tellapart models`, or a run folder; A+B averages their words' probabilities (default: the "
        "embedded one)",
    )
    parser.add_argument("--split", metavar="NAME", help="the part of a data file to caption (default: all)")
    parser.add_argument("--out", metavar="F", type=Path, help="rows to F.jsonl or F.csv, subtitles to F.srt or F.vtt")
    parser.add_argument(
        "--features",
        metavar="DIR",
        type=Path,
        help="features of DATA.json that were cached or imported there; a model that learned from features made "
        "elsewhere needs them, others save time",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")
    parser.add_argument("--ray", metavar="ADDRESS", nargs="?", const=LOCAL, help=f"{HELP}; lines come as they are done")
    decoding = parser.add_argument_group("decoding")
    decoding.add_argument("--beam", type=positive, default=3, help="width of the beam search; 1: greedy (default: 3)")
    decoding.add_argument(
        "--n-best", type=positive, metavar="N", help="list the N best captions; the beam is at least N wide"
    )
    decoding.add_argument("--min-words", type=positive, metavar="N", help="captions have N words at least")
    decoding.add_argument(
        "--no-repeat", type=positive, metavar="N", help="no sequence of N words is said twice; 1: no word is"
    )
    decoding.add_argument(
        "--length-penalty", type=strength, metavar="P", help="0: rank by log p (default); 1: by perplexity"
    )
    decoding.add_argument(
        "--diverse",
        type=positive,
        metavar="GROUPS",
        help="search in groups that avoid each other's words, for --n-best or --among; the beam, if need be wider, is "
        "shared out evenly",
    )
    decoding.add_argument(
        "--diversity", type=strength, metavar="S", help="how much they avoid them, in log p (default: 0.5)"
    )
    among = parser.add_argument_group("told apart")
    among.add_argument("--among", metavar="PATH", nargs="+", help="the collection: photos, folders, or DATA.json")
    among.add_argument(
        "--retriever", metavar="R", help="who must find a photo by its caption (default: the embedded one)"
    )
    among.add_argument("--k", type=positive, help="look-alikes of a photo that a row names (default: 5)")
    among.add_argument(
        "--strength", type=strength, metavar="S", help="weight of being told apart against being likely (default: 0.4)"
    )
    among.add_argument(
        "--contrast",
        choices=("captions", "words"),
        help="choose among whole captions, or let the retriever have a say at each word (default: captions)",
    )
    among.add_argument("--candidates", metavar="F.jsonl", type=Path, help="choose among captions made elsewhere")
    _add_clips(parser)
    _add_server(parser)
    return parser


def _add_clips(parser: Parser) -> None:
    from tellapart.captioning.subtitles import Reading

    clips = parser.add_argument_group(
        "clips",
        "A segment is named FILE#t=START,END, in seconds.  With --among, a segment that no caption tells apart from\n"
        "the others is described by more of the video around it.",
    )
    clips.add_argument(
        "--segments", type=segments, metavar="shots|SECONDS", help="one caption per shot, or per so many seconds"
    )
    clips.add_argument(
        "--reading-speed",
        type=seconds,
        metavar="N",
        help=f"characters of a subtitle per second, at most (default: {Reading.speed:g})",
    )
    clips.add_argument(
        "--line-length",
        type=positive,
        metavar="N",
        help=f"characters of a subtitle's line, at most (default: {Reading.line})",
    )


def _add_server(parser: Parser) -> None:
    from tellapart.captioning.endpoint import LONGEST_SIDE, MAX_TOKENS

    server = parser.add_argument_group(
        "captions from a server that speaks the OpenAI protocol",
        f"Each photo goes to URL, and to no other host, as a JPEG of at most {LONGEST_SIDE} pixels a side without\n"
        "metadata, together with the prompt.  A photo is one request; with --among two, or five if the server gives\n"
        "one answer at a time; failed ones are repeated.  A key is sent only if TELLAPART_API_KEY holds one or\n"
        "--api-key-env names its variable.  A line at the end says how many requests and tokens it was.",
    )
    server.add_argument("--endpoint", metavar="URL", help="such as http://localhost:8080/v1")
    server.add_argument("--endpoint-model", metavar="NAME", help="the model to ask there")
    server.add_argument(
        "--prompt", metavar="TEXT", help="what to ask of each photo (default: a caption of one sentence)"
    )
    server.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable whose key is sent (default: TELLAPART_API_KEY)"
    )
    server.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help=f"length of an answer; models that think need more (default: {MAX_TOKENS})",
    )
    server.add_argument("--max-requests", type=positive, metavar="N", help="stop after N requests (default: no limit)")
    server.add_argument("--timeout", type=seconds, default=60.0, help="seconds for an answer (default: 60)")
    server.add_argument(
        "--requests",
        type=positive,
        default=4,
        help="requests at once, at most; more than one if the server works on them together (default: 4)",
    )


def strength(text: str) -> float:
    return number(text, 0, 1000)


def seconds(text: str) -> float:
    return number(text, 0.001, 86400)


def segments(text: str) -> str | float:
    return text if text == "shots" else number(text, 0.1, 86400)


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    _check(request)

    from tellapart.captioning.rows import CaptionsFile
    from tellapart.captioning.segments import segmented, widened
    from tellapart.captioning.subtitles import SUFFIXES
    from tellapart.captioning.writing import write
    from tellapart.data.items import gather

    titles = request.out if request.out and request.out.suffix in SUFFIXES else None
    out = CaptionsFile(request.out) if request.out and not titles else None
    source = _source(request)  # before any photo is looked at: a wrong file or address should not cost an hour
    inputs, problems = gather(request.paths, request.split)
    if titles and len(inputs) > 1:
        raise UserError(f"--out {titles}: subtitles are those of one clip, not of {len(inputs)}.")
    if request.segments:
        inputs = segmented(inputs, request.segments)
    collection, problems_there = _collection(request, {photo.file for photo in inputs})
    speaker = _speaker(request, source, collection)
    if request.segments and collection:
        speaker = widened(speaker, lambda others: _speaker(request, source, others), collection)
    if titles:
        failed = _subtitle(request, speaker, inputs)
    else:
        failed = write(speaker, inputs, out) if out else show(speaker, inputs)
    for problem in dict.fromkeys([*problems, *problems_there, *speaker.leftovers(inputs)]):
        print_message(problem)
    return 1 if failed or problems or problems_there else 0


def _check(request: argparse.Namespace) -> None:
    """What the arguments cannot say of each other by themselves."""
    told_apart = {"--retriever": request.retriever, "--k": request.k, "--strength": request.strength}
    told_apart |= {"--contrast": request.contrast, "--candidates": request.candidates}
    for name, value in told_apart.items():
        if value is not None and not request.among:
            raise UserError(f"{name} needs --among, the collection that photos are told apart from.")
    if bool(request.endpoint) != bool(request.endpoint_model):
        raise UserError("--endpoint and --endpoint-model go together: where the server is, and which model to ask.")
    for name in ("prompt", "api_key_env", "max_tokens", "max_requests"):
        if getattr(request, name) is not None and not request.endpoint:
            raise UserError(f"--{name.replace('_', '-')} needs --endpoint, the server that it is about.")
    is_subtitle = bool(request.out) and request.out.suffix in (".srt", ".vtt")
    for name in ("reading_speed", "line_length"):
        if getattr(request, name) is not None and not is_subtitle:
            raise UserError(f"--{name.replace('_', '-')} is about subtitles: --out F.srt or F.vtt.")
    given = [name for name in ("model", "candidates", "endpoint") if getattr(request, name)]
    if len(given) > 1:
        raise UserError(f"--{given[0]} and --{given[1]} cannot both be where captions come from.")
    _check_decoding(request)
    if request.ray:
        _check_cluster(request)
    if request.features and (request.candidates or request.endpoint):
        raise UserError("--features is what a --model remembers of photos; nothing else needs it.")
    if request.contrast == "words" and (request.candidates or request.endpoint):
        raise UserError("--contrast words needs a captioner that can be asked word by word: a --model.")
    if request.out and request.candidates and request.out.resolve() == request.candidates.resolve():
        raise UserError(f"--out {request.out}: this is the file of candidates; choose another name.")


def _check_decoding(request: argparse.Namespace) -> None:
    asked = [name for name in _DECODING if getattr(request, name) is not None]
    if asked and (request.candidates or request.endpoint):
        source = "--candidates" if request.candidates else "--endpoint"
        raise UserError(f"--{asked[0].replace('_', '-')} says how a --model looks for captions, not {source}.")
    if request.n_best and request.among:
        raise UserError("--n-best lists captions and --among chooses one: list them first, then give --candidates.")
    if request.diversity is not None and not request.diverse:
        raise UserError("--diversity needs --diverse, the number of groups.")
    if request.diverse and not (request.n_best or request.among):
        raise UserError("--diverse finds captions that differ: it needs --n-best, to list them, or --among, to choose.")
    if request.diverse and request.contrast == "words":
        raise UserError("--diverse and --contrast words are two ways to search; choose one.")
    if request.min_words:
        from tellapart.captioning.captioner import MAX_WORDS

        if request.min_words >= MAX_WORDS:
            raise UserError(f"--min-words {request.min_words}: captions have room for {MAX_WORDS - 1} words.")


def _check_cluster(request: argparse.Namespace) -> None:
    for name in ("candidates", "endpoint", "features"):
        if getattr(request, name):
            raise UserError(f"--ray and --{name} do not go together: workers look at photos and caption them.")
    if request.contrast == "words":
        raise UserError("--ray and --contrast words do not go together: workers do not know the collection.")


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

    there, problems = gather(request.among, request.split)
    if request.segments:
        from tellapart.captioning.segments import segmented

        there = segmented(there, request.segments)
    collection = Collection.of(load(request.retriever or DEFAULT, device=request.device), [one.file for one in there])
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
        return Endpoint(
            request.endpoint,
            request.endpoint_model,
            candidates=5 if request.among else 1,
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
    return load(request.model or DEFAULT, device=request.device, features=request.features, paths=request.paths)


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

    chosen = {"k": request.k, "strength": request.strength, "contrast": request.contrast}
    how = RerankConfig(**_given(chosen))
    if isinstance(source, CandidatesFile):
        return of_candidates(source, collection, how)
    if isinstance(source, Endpoint):
        return of_endpoint(source, collection, how)
    searched = {"n_best": request.n_best, "min_words": request.min_words, "no_repeat": request.no_repeat}
    searched |= {
        "length_penalty": request.length_penalty,
        "beam": request.beam,
        "groups": request.diverse,
        "diversity": request.diversity,
    }
    return of_captioner(source, Search(**_given(searched)), collection, how)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what was not asked for, which has defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def _subtitle(request: argparse.Namespace, speaker: CaptionSource, inputs: list[Input]) -> int:
    """Subtitles in a file.  Returns how many segments failed."""
    from tellapart.captioning.segments import cues
    from tellapart.captioning.subtitles import Reading, write
    from tellapart.progress import Progress

    captions = []
    with Progress("captions", len(inputs)) as bar:
        failed = Unusable(bar.message)
        for caption in speaker.caption([one.file for one in inputs]):
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


def show(speaker: CaptionSource, inputs: list[Input]) -> int:
    """Lines on stdout, as they come.  Returns how many photos failed."""
    failed = Unusable(print_message)
    for caption in speaker.caption([photo.file for photo in inputs]):
        if caption.error:
            failed.add(caption.file, caption.error)
        else:
            for text in [one.text for one in caption.candidates] or [caption.text]:
                print_row(caption.file, text)
    failed.rest(" (--out F.jsonl names each)")
    return len(failed)
