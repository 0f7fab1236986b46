"""tellapart study: the human studies of the papers, from caption files to tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from capscore import files
from capscore.errors import UserError
from capscore.printable import print_message, print_problems, print_row, printable
from tellapart.commands.arguments import Parser, add_address, number, positive

_EXAMPLE = "tellapart study new choose plain.jsonl distinctive.jsonl human --data album.json --out study"


def _between(least: float, most: float) -> Callable[[str], float]:
    return partial(number, least=least, most=most)


def _count(text: str) -> int:
    return int(number(text, 0, 2**32 - 1))


_share, _open_share = _between(0, 1), _between(1e-6, 1 - 1e-6)


def main(arguments: list[str]) -> int:
    action, rest = (arguments or ["--help"])[0], arguments[1:]
    if action in ("-h", "--help"):
        _overview().parse_args(["--help"])
    if action not in _ACTIONS:
        raise UserError(f"there is no study {action}; use {', '.join(_ACTIONS)}.")
    try:
        return _ACTIONS[action](rest)
    except ModuleNotFoundError as error:
        if error.name in ("fastapi", "uvicorn", "sqlalchemy", "scipy"):
            raise UserError(f"this needs {error.name}; install it with: pip install 'tellapart[study]'") from None
        raise


def _overview() -> Parser:
    parser = Parser(
        "study",
        "Human studies of captions.  tellapart study ACTION --help shows the options of an action.\n"
        "  new       make a study from caption files\n"
        "  serve     show it to people on a web page\n"
        "  results   tables, tests, and the answers as files\n"
        "  simulate  what the study would find with people of known accuracy\n"
        "  size      how many photos a difference needs",
        _EXAMPLE,
    )
    parser.add_argument("action", metavar="ACTION", choices=list(_ACTIONS))
    return parser


def _new(arguments: list[str]) -> int:
    from tellapart.study.design import CONSENT, DISTRACTORS, Plan, make
    from tellapart.study.folder import KINDS

    plan = Plan(KINDS[0])
    parser = Parser(
        "study new",
        "Make a study folder.  Every caption gets the same number of answers, a person sees a photo once, and\n"
        "all is drawn by the seed.",
        _EXAMPLE,
    )
    parser.add_argument(
        "kind",
        metavar="KIND",
        choices=KINDS,
        help="order: a caption, its photo and the 20 others that it fits best; people put the ten most fitting in "
        "order (GEG's first study).  compare: two captions of a photo; which is more accurate, which is more "
        "informative (GEG's second).  choose: a caption and ten photos that look alike; which one is meant "
        "(DiscriTune)",
    )
    parser.add_argument(
        "captions",
        metavar="CAPTIONS",
        nargs="+",
        help="caption files, or human: the captions of DATA; all are compared with the first",
    )
    parser.add_argument("--data", metavar="DATA", required=True, help="the photos: a data file or a folder")
    parser.add_argument("--split", metavar="NAME", default="test", help="split of a data file (default: test)")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the study folder")
    parser.add_argument("--sets", metavar="N", type=positive, help="photos to ask about (default: all)")
    parser.add_argument(
        "--distractors",
        metavar="N",
        type=positive,
        help=f"other photos of a question (default: order {DISTRACTORS['order']}, choose {DISTRACTORS['choose']})",
    )
    parser.add_argument(
        "--near-duplicates",
        metavar="COSINE",
        type=_between(-1, 1),
        help="other photos have at most this similarity to the photo by the retriever (DiscriTune: 0.8 by CLIP; "
        "default: near-duplicates as `tellapart lookalikes` finds them are left out)",
    )
    for option, type, default, meaning in (
        ("--per-person", positive, plan.per_person, "photos that a person sees"),
        ("--answers", positive, plan.answers, "answers per caption"),
        ("--catch", _count, plan.catch, "attention checks per person"),
    ):
        help = f"{meaning} (default: %(default)s)"
        parser.add_argument(option, metavar="N", type=type, default=default, help=help)
    parser.add_argument("--retriever", metavar="R", help="chooses the other photos (default: the embedded retriever)")
    parser.add_argument("--seed", type=_count, default=plan.seed, help="default: %(default)s")
    parser.add_argument("--title", default=plan.title, help="of the page")
    parser.add_argument("--consent", metavar="F", type=Path, help="a text file with your consent text")
    parser.add_argument(
        "--completion-code", metavar="CODE", help="shown at the end, as Prolific asks for (default: random)"
    )
    _add_device(parser)
    request = parser.parse_args(arguments)

    from tellapart.neighbours.collection import source

    for option in ("distractors", "near_duplicates"):
        if request.kind == "compare" and getattr(request, option) is not None:
            raise UserError(f"--{option.replace('_', '-')} is for order and choose; compare shows one photo.")
    fields = {name: getattr(request, name) for name in vars(plan)}
    consent = files.read_text(request.consent, most=1 << 20) if request.consent else CONSENT
    plan = Plan(**fields | {"consent": consent})
    vectors = None if plan.kind == "compare" else source(request.retriever, request.device)
    study = make(request.captions, request.data, request.split, vectors, plan, request.out)
    asked = sum(not trial.catch for session in study.sessions for trial in session)
    print_message(
        f"{request.out}: {len(study.sessions)} people, {asked} answers; completion code {study.completion_code}"
    )
    print_message(f"next: tellapart study serve {request.out}")
    return 0


def _serve(arguments: list[str]) -> int:
    parser = Parser(
        "study serve",
        "Show a study to people on a web page.  An answer is on the disk before the page goes on; a server that is\n"
        "stopped and started again loses none.  On Prolific, give the study the address\n"
        "  http://HOST:PORT/?PROLIFIC_PID={{%PROLIFIC_PID%}}&STUDY_ID={{%STUDY_ID%}}&SESSION_ID={{%SESSION_ID%}}",
        "tellapart study serve study --port 8080",
    )
    _add_study(parser)
    add_address(parser)
    _add_database(parser)
    request = parser.parse_args(arguments)

    from tellapart.study.server import serve

    serve(request.study, request.host, request.port, request.database)
    return 0


def _results(arguments: list[str]) -> int:
    from tellapart.study import results
    from tellapart.study.folder import ANSWERS, Answers, load

    parser = Parser(
        "study results",
        "Print the table of the paper, intervals, tests, agreement of people with each other and with automatic\n"
        "measures, and a table of people.  --out writes answers.jsonl and answers.csv (columns as in jsPsych),\n"
        "TREC run and qrels files, and results.json.",
        "tellapart study results study --out results",
    )
    _add_study(parser)
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the files")
    parser.add_argument(
        "--floor",
        metavar="MS",
        type=_between(0, 1e7),
        default=results.FLOOR,
        help="answers that came faster do not count (default: %(default)g)",
    )
    parser.add_argument(
        "--catch",
        metavar="SHARE",
        type=_share,
        default=results.CATCH,
        help="people who pass fewer attention checks do not count (default: %(default)g)",
    )
    parser.add_argument(
        "--retriever",
        metavar="R",
        nargs="+",
        default=["judge"],
        help="retrievers of the automatic measures; none: no such measures (default: judge)",
    )
    _add_device(parser)
    _add_database(parser)
    request = parser.parse_args(arguments)

    study = load(request.study)
    if request.database is None and not files.is_file(request.study / ANSWERS):
        raise UserError(f"{request.study}: there are no answers yet; `tellapart study serve` collects them.")
    people, answers = Answers(request.study, request.database).all()
    analysed = results.analyse(study, people, answers, floor=request.floor, catch=request.catch)
    if request.retriever != ["none"]:
        values, left_out = results.measure(study, request.study, request.retriever, request.device)
        analysed.figures["agreement"] = results.agreement(analysed, values)
        for name, why in left_out.items():
            print_message(f"{name} is left out: {why}")
    for line in results.tables(analysed):
        print(line)
    if request.out:
        results.write(analysed, request.out)
    return print_problems(analysed.problems)


def _simulate(arguments: list[str]) -> int:
    parser = Parser(
        "study simulate",
        "Run a study with simulated people, many times.  Says how often the interval holds the true accuracy, and how\n"
        "often the paired test finds a difference.  Nothing is stored.",
        "tellapart study simulate study --accuracy plain=0.43 --accuracy distinctive=0.48 --studies 100",
    )
    _add_study(parser)
    parser.add_argument(
        "--accuracy", metavar="[MODEL=]A", action="append", required=True, help="true accuracy of all models, or of one"
    )
    parser.add_argument(
        "--spread",
        metavar="S",
        type=_between(0, 10),
        default=0.0,
        help="how much people and photos differ, in units of an answer's noise (default: 0)",
    )
    parser.add_argument("--studies", metavar="N", type=positive, default=100, help="default: %(default)s")
    parser.add_argument("--seed", type=_count, default=0, help="default: %(default)s")
    request = parser.parse_args(arguments)

    from tellapart.study.folder import load
    from tellapart.study.simulate import repeated

    study = load(request.study)
    accuracies: dict[str, float] = {}
    for text in request.accuracy:
        model, is_named, value = text.rpartition("=")
        if is_named and model not in study.models:
            raise UserError(f"--accuracy {text}: the models of the study are {', '.join(study.models)}.")
        try:
            accuracies |= dict.fromkeys([model] if is_named else study.models, _share(value))
        except argparse.ArgumentTypeError as error:
            raise UserError(f"--accuracy {text}: {error}.") from None
    if missing := [model for model in study.models if model not in accuracies]:
        raise UserError(f"--accuracy: there is none for {', '.join(missing)}.")
    for line in repeated(study, accuracies, request.studies, spread=request.spread, seed=request.seed):
        print(printable(line))
    return 0


def _size(arguments: list[str]) -> int:
    parser = Parser(
        "study size",
        "How many photos a study needs to find the difference of two accuracies.",
        "tellapart study size 0.476 0.428",
    )
    parser.add_argument("accuracies", metavar="A", nargs=2, type=_open_share, help="the two accuracies, from 0 to 1")
    parser.add_argument(
        "--discordant",
        metavar="SHARE",
        type=_share,
        default=1 / 3,
        help="photos for which one model's answer is right and the other's is not (default: 1/3)",
    )
    parser.add_argument("--level", type=_open_share, default=0.05, help="of the test (default: 0.05)")
    parser.add_argument("--power", type=_open_share, default=0.8, help="chance to find the difference (default: 0.8)")
    request = parser.parse_args(arguments)

    from tellapart.study.statistics import size

    first, second = request.accuracies
    needed = size(first, second, request.discordant, level=request.level, power=request.power)
    print_row("paired", str(needed.paired), "photos, each with an answer for both models")
    print_row("unpaired", str(needed.unpaired), "photos for each model")
    return 0


def _add_study(parser: Parser) -> None:
    parser.add_argument("study", metavar="STUDY", type=Path, help="a study folder")


def _add_device(parser: Parser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")


def _add_database(parser: Parser) -> None:
    parser.add_argument(
        "--database",
        metavar="URL",
        help="where answers are, such as postgresql+pg8000://... (default: STUDY/answers.db)",
    )


_ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "new": _new,
    "serve": _serve,
    "results": _results,
    "simulate": _simulate,
    "size": _size,
}
