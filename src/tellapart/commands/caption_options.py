"""The options of `tellapart caption`, and which of them go together."""

from __future__ import annotations

import argparse
from pathlib import Path

from capscore.errors import UserError
from tellapart.captioning.ray_cluster import HELP, LOCAL
from tellapart.commands.arguments import Parser, number, positive
from tellapart.detectors import KINDS

_DECODING = ("n_best", "min_words", "no_repeat", "length_penalty", "diverse", "diversity")


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
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a photo, a clip, a folder of them, or DATA.json")
    parser.add_argument(
        "--model",
        default="",
        help="from `tellapart models`, a run folder, or a vision-language model of transformers (BLIP, GIT, LLaVA ...) "
        "by folder or hub id; A+B: an ensemble that averages word probabilities (default: the embedded one)",
    )
    parser.add_argument("--split", metavar="NAME", help="split of a data file (default: all)")
    parser.add_argument(
        "--out",
        metavar="F",
        type=Path,
        help="rows to F.jsonl or F.csv, COCO results to F.json, or subtitles of a clip to F.srt or F.vtt",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="make captions anew that --out has; those that a person edited or approved stay.  Without this, captions "
        "are made of new and changed photos, and of all if the model or its settings are others",
    )
    parser.add_argument(
        "--features",
        metavar="DIR",
        type=Path,
        help="folder with cached or imported features of DATA.json: needed by models that were trained on imported "
        "features, saves time for others",
    )
    parser.add_argument(
        "--show",
        choices=("attributes",),
        help="also show, in rows too, the words that the model was given of a photo",
    )
    parser.add_argument(
        "--detector", metavar="FILE", help=f"for a model that was trained with the boxes of a detector: {KINDS}"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")
    parser.add_argument(
        "--dtype",
        choices=("fp32", "bf16"),
        help="number type of a vision-language model",
    )
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="prompt of a vision-language model or a server for each photo (default: that of its training, or one "
        "that asks for a caption of one sentence)",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", nargs="?", const=LOCAL, help=f"{HELP}; rows are in order of completion"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="run until Ctrl-C or SIGTERM, and caption photos as they appear in the folders; needs --out.  A photo "
        "is read when its size and time are the same in two polls and it can be decoded",
    )
    parser.add_argument(
        "--interval", type=seconds, metavar="SECONDS", help="time between two polls of --watch (default: 5)"
    )
    _add_decoding(parser)
    _add_among(parser)
    _add_context(parser)
    _add_clips(parser)
    _add_server(parser)
    return parser


def _add_decoding(parser: Parser) -> None:
    decoding = parser.add_argument_group("decoding")
    decoding.add_argument("--beam", type=positive, default=3, help="width of the beam search; 1: greedy (default: 3)")
    decoding.add_argument(
        "--n-best", type=positive, metavar="N", help="list the N best captions; the beam is at least N wide"
    )
    decoding.add_argument("--min-words", type=positive, metavar="N", help="minimum number of words")
    decoding.add_argument(
        "--no-repeat", type=positive, metavar="N", help="no sequence of N words occurs twice; 1: no word does"
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
        "--diversity", type=strength, metavar="S", help="penalty in log p for words of other groups (default: 0.5)"
    )


def _add_among(parser: Parser) -> None:
    among = parser.add_argument_group("tell photos apart")
    among.add_argument("--among", metavar="PATH", nargs="+", help="the collection: photos, folders, or DATA.json")
    among.add_argument(
        "--retriever", metavar="R", help="retriever that finds photos by captions (default: the embedded one)"
    )
    among.add_argument("--k", type=positive, help="number of look-alikes in a row (default: 5)")
    among.add_argument(
        "--strength", type=strength, metavar="S", help="weight of the retriever against the captioner (default: 0.4)"
    )
    among.add_argument(
        "--fluency", type=strength, metavar="W", help="weight of a language model of captions, such as 0.1 (default: 0)"
    )
    among.add_argument(
        "--contrast",
        choices=("captions", "words", "prompt"),
        help="re-rank whole captions; weigh each word by the retriever; or show the model the photos that a first "
        "caption is confused with, and ask for a sentence that fits this photo alone (default: captions; with "
        "--endpoint: prompt)",
    )
    among.add_argument(
        "--bursts",
        choices=("own", "share", "stem"),
        help="near-duplicates, such as frames of a burst: each its own caption, all the caption of the first, or that "
        "one with what a frame adds (default: own).  Copies always share a caption; look-alikes have different ones",
    )
    among.add_argument("--candidates", metavar="F.jsonl", type=Path, help="choose from captions of another program")


def _add_context(parser: Parser) -> None:
    context = parser.add_argument_group("context and style")
    context.add_argument(
        "--context",
        action="store_true",
        help="use what is known of a photo: the note in its folder (context.txt or note.txt), the names of file and "
        "folder, its EXIF date, and its place (--places).  It goes into the prompt of a server or a vision-language "
        "model, and captions with its words are slightly preferred",
    )
    context.add_argument(
        "--places", metavar="F.csv", type=Path, help="names of places for GPS positions: name, latitude, longitude"
    )
    context.add_argument(
        "--style",
        choices=("alt", "caption", "tags"),
        help="alt: alternative text of at most 125 characters; tags: words separated by commas (default: caption)",
    )
    context.add_argument(
        "--language", metavar="NAME", help="of the captions, such as German; only with --endpoint (default: English)"
    )


def _add_clips(parser: Parser) -> None:
    from tellapart.desk.subtitles import Reading

    clips = parser.add_argument_group(
        "clips",
        "A segment is named FILE#t=START,END, in seconds.  With --among, a segment that no caption tells apart from\n"
        "the others is described by more of the video around it.",
    )
    clips.add_argument(
        "--segments", type=segments, metavar="shots|SECONDS", help="one caption per shot, or per this many seconds"
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
    from tellapart.desk.endpoint import LONGEST_SIDE, MAX_TOKENS

    server = parser.add_argument_group(
        "captions from a server with the OpenAI API",
        f"Each photo goes to URL, and to no other host, as a JPEG of at most {LONGEST_SIDE} pixels a side without\n"
        "metadata, together with the prompt, to which --context adds what is known of the photo.  A photo is one\n"
        "request.  With --among, one whose caption fits others is sent again with those others: two requests more, or\n"
        "three if the server gives one answer at a time; and --language translates the chosen caption: one more.\n"
        "Failed requests are repeated.  A key is sent only if TELLAPART_API_KEY holds one or\n"
        "--api-key-env names its variable.  A line at the end says how many requests and tokens it was.",
    )
    server.add_argument("--endpoint", metavar="URL", help="such as http://localhost:8080/v1")
    server.add_argument("--endpoint-model", metavar="NAME", help="name of the model on the server")
    server.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable whose key is sent (default: TELLAPART_API_KEY)"
    )
    server.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help=f"maximum tokens of an answer; reasoning models need more (default: {MAX_TOKENS})",
    )
    server.add_argument(
        "--contrast-prompt", metavar="TEXT", help="prompt with look-alikes; may hold {caption}, {count} and {others}"
    )
    server.add_argument(
        "--answers", type=positive, metavar="N", help="candidate captions of a photo, with --among (default: 3, or 5)"
    )
    server.add_argument(
        "--images", type=positive, metavar="N", help="photos in a request, the photo itself included (default: 4)"
    )
    server.add_argument("--sheet", action="store_true", default=None, help="send them as one picture, a contact sheet")
    server.add_argument("--max-requests", type=positive, metavar="N", help="stop after N requests (default: no limit)")
    server.add_argument("--timeout", type=seconds, default=60.0, help="seconds for an answer (default: 60)")
    server.add_argument(
        "--requests",
        type=positive,
        default=4,
        help="maximum number of parallel requests, if the server handles them in parallel (default: 4)",
    )


def strength(text: str) -> float:
    return number(text, 0, 1000)


def seconds(text: str) -> float:
    return number(text, 0.001, 86400)


def segments(text: str) -> str | float:
    return text if text == "shots" else number(text, 0.1, 86400)


def check(request: argparse.Namespace) -> None:
    """What the arguments cannot say of each other by themselves."""
    told_apart = {"--retriever": request.retriever, "--k": request.k, "--strength": request.strength}
    told_apart |= {"--contrast": request.contrast, "--candidates": request.candidates, "--bursts": request.bursts}
    told_apart |= {"--fluency": request.fluency}
    for name, value in told_apart.items():
        if value is not None and not request.among:
            raise UserError(f"{name} needs --among, the collection that photos are told apart from.")
    if request.again and (not request.out or request.out.suffix in (".srt", ".vtt")):
        raise UserError("--again needs --out, a file whose captions are to be made anew.")
    _check_watch(request)
    _check_context(request)
    if bool(request.endpoint) != bool(request.endpoint_model):
        raise UserError("--endpoint and --endpoint-model go together: where the server is, and which model to ask.")
    if request.dtype and (request.endpoint or request.candidates):
        raise UserError("--dtype is for a vision-language model, which --model names.")
    if request.prompt is not None and request.candidates:
        raise UserError("--prompt is for vision-language models and servers; --candidates are already written.")
    for name in ("contrast_prompt", "answers", "images"):
        if getattr(request, name) is not None and not request.endpoint and request.contrast != "prompt":
            raise UserError(f"--{name.replace('_', '-')} needs --contrast prompt, or --endpoint.")
    for name in ("api_key_env", "max_tokens", "max_requests", "sheet"):
        if getattr(request, name) is not None and not request.endpoint:
            raise UserError(f"--{name.replace('_', '-')} needs --endpoint, the server that it is about.")
    is_subtitle = bool(request.out) and request.out.suffix in (".srt", ".vtt")
    for name in ("reading_speed", "line_length"):
        if getattr(request, name) is not None and not is_subtitle:
            raise UserError(f"--{name.replace('_', '-')} is about subtitles: --out F.srt or F.vtt.")
    given = [name for name in ("model", "candidates", "endpoint") if getattr(request, name)]
    if len(given) > 1:
        raise UserError(f"captions come from one source: --{given[0]} or --{given[1]}, not both.")
    _check_decoding(request)
    if request.ray:
        _check_cluster(request)
    if request.show and (request.candidates or request.endpoint or request.ray):
        raise UserError("--show attributes needs a --model in this process, which is given attributes.")
    if request.features and (request.candidates or request.endpoint):
        raise UserError("--features is for a --model; nothing else reads features.")
    if request.contrast == "prompt" and request.candidates:
        raise UserError("--contrast prompt needs a model that can be asked; --candidates are already written.")
    if request.images == 1:
        raise UserError("--images 1: a photo must be shown beside at least one other.")
    if request.contrast == "words" and (request.candidates or request.endpoint):
        raise UserError("--contrast words needs a captioner that can be asked word by word: a --model.")
    if request.out and request.candidates and request.out.resolve() == request.candidates.resolve():
        raise UserError(f"--out {request.out}: this is the file of candidates; choose another name.")


def _check_watch(request: argparse.Namespace) -> None:
    if request.interval is not None and not request.watch:
        raise UserError("--interval is the time between two polls of --watch.")
    if not request.watch:
        return
    if not request.out or request.out.suffix not in (".jsonl", ".csv"):
        raise UserError("--watch needs --out F.jsonl or F.csv, a file that rows can be added to.")
    for name in ("candidates", "ray", "segments", "features", "n_best", "split", "again"):
        if getattr(request, name):
            raise UserError(f"--watch and --{name.replace('_', '-')} cannot be combined.")


def _check_context(request: argparse.Namespace) -> None:
    if request.places and not request.context:
        raise UserError("--places needs --context, which uses the place of a photo.")
    if request.language and not request.endpoint:
        raise UserError("--language needs --endpoint: other captioners write in the language that they learned.")
    for wish, name in (("context", "n_best"), ("context", "ray"), ("context", "show"), ("style", "n_best")):
        if getattr(request, wish) and getattr(request, name):
            raise UserError(f"--{wish} and --{name.replace('_', '-')} cannot be combined.")
    if request.context and request.contrast == "words":
        raise UserError("--context and --contrast words cannot be combined: context is for whole captions.")


def _check_decoding(request: argparse.Namespace) -> None:
    asked = [name for name in _DECODING if getattr(request, name) is not None]
    if asked and (request.candidates or request.endpoint):
        source = "--candidates" if request.candidates else "--endpoint"
        raise UserError(f"--{asked[0].replace('_', '-')} sets how a --model decodes captions, not {source}.")
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
    for name in ("candidates", "endpoint", "features", "detector", "prompt", "dtype"):
        if getattr(request, name):
            raise UserError(f"--ray and --{name} cannot be combined: workers encode the photos and caption them.")
    if request.contrast == "words":
        raise UserError("--ray and --contrast words cannot be combined: workers do not know the collection.")
