"""tellapart study: the human studies of the papers, from caption files to tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from capscore import files
from capscore.errors import UserError
from capscore.printable import print_message, print_problems, print_row, printable
from tellapart.commands.arguments import ADDRESS, DEVICE, Parser, between, extra, is_set, number, option, port

_EXAMPLE = "tellapart study new choose plain.jsonl distinctive.jsonl human --data album.json --out study"


_STUDY = "STUDY  a study folder"
_DATABASE = "--database URL  where answers are, such as postgresql+pg8000://... (default: STUDY/answers.db)"
_share, _open_share = between(0, 1), between(1e-6, 1 - 1e-6)


def _count(text: str) -> int:
    return int(number(text, 0, 2**32 - 1))


def main(arguments: list[str]) -> int:
    action, rest = (arguments or ["--help"])[0], arguments[1:]
    if action in ("-h", "--help"):
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
        parser.parse_args(["--help"])
    if action not in _ACTIONS:
        raise UserError(f"there is no study {action}; use {', '.join(_ACTIONS)}.")
    with extra("study"):
        return _ACTIONS[action](rest)


def _new(arguments: list[str]) -> int:
    from tellapart.study.design import CONSENT, DISTRACTORS, Plan, make
    from tellapart.study.folder import KINDS

    plan = Plan(KINDS[0])
    parser = Parser(
        "study new",
        "Make a study folder.  Every caption gets the same number of answers, a person sees a photo once, and\n"
        "all is drawn by the seed.",
        _EXAMPLE,
        f"""
        KIND             order: a caption, its photo and the 20 others that it fits best; people put the ten most
                         fitting in order (GEG's first study).  compare: two captions of a photo; which is more
                         accurate, which is more informative (GEG's second).  choose: a caption and ten photos that
                         look alike; which one is meant (DiscriTune)
        CAPTIONS...      caption files, or human: the captions of DATA; all are compared with the first
        --data DATA!     the photos: a data file or a folder
        --split NAME=test  split of a data file
        --out DIR!       the study folder
        --sets N         photos to ask about (default: all)
        --distractors N  other photos of a question (default: order {DISTRACTORS["order"]}, choose
                         {DISTRACTORS["choose"]})
        --near-duplicates COSINE  other photos have at most this similarity to the photo by the retriever (DiscriTune:
                         0.8 by CLIP; default: near-duplicates as `tellapart lookalikes` finds them are left out)
        --per-person N={plan.per_person}  photos that a person sees
        --answers N={plan.answers}  answers per caption
        --catch N={plan.catch}  attention checks per person
        --retriever R    chooses the other photos (default: the embedded retriever)
        --seed N={plan.seed}  of all that is drawn
        --title TITLE    of the page
        --consent F      a text file with your consent text
        --completion-code CODE  shown at the end, as Prolific asks for (default: random)
        {DEVICE}
        """,
        kind={"choices": KINDS},
        near_duplicates=between(-1, 1),
        catch=_count,
        seed=_count,
        title={"default": plan.title},
    )
    request = parser.parse_args(arguments)

    from tellapart.neighbours.collection import source

    for name in ("distractors", "near_duplicates"):
        if request.kind == "compare" and is_set(request, name):
            raise UserError(f"{option(name)} is for order and choose; compare shows one photo.")
    fields = {name: getattr(request, name) for name in vars(plan)}
    consent = files.read_text(request.consent, most=1 << 20) if request.consent else CONSENT
    plan = Plan(**fields | {"consent": consent})
    vectors = None if plan.kind == "compare" else source(request.retriever, request.device)
    study = make(request.captions, request.data, request.split, vectors, plan, request.out)
    answers = sum(not trial.catch for session in study.sessions for trial in session)
    print_message(
        f"{request.out}: {len(study.sessions)} people, {answers} answers; completion code {study.completion_code}"
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
    parser.options(_STUDY, study=Path).options(ADDRESS, port=port).options(_DATABASE)
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
        f"""
        {_STUDY}
        --out DIR         folder for the files
        --floor MS={results.FLOOR:g}  answers that came faster do not count
        --catch SHARE={results.CATCH:g}  people who pass fewer attention checks do not count
        --retriever R...  retrievers of the automatic measures; none: no such measures (default: judge)
        {DEVICE}
        {_DATABASE}
        """,
        study=Path,
        floor=between(0, 1e7),
        catch=_share,
        retriever={"default": ["judge"]},
    )
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
        f"""
        {_STUDY}
        --accuracy A  true accuracy of all models, or of one
        --spread S=0     how much people and photos differ, in units of an answer's noise
        --studies N=100  how often
        --seed N=0       of all that is drawn
        """,
        study=Path,
        accuracy={"metavar": "[MODEL=]A", "action": "append", "required": True},
        spread=between(0, 10),
        seed=_count,
    )
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
        """
        A                   the two accuracies, from 0 to 1
        --discordant SHARE  photos for which one model's answer is right and the other's is not (default: 1/3)
        --level P=0.05      of the test
        --power P=0.8       chance to find the difference
        """,
        a={"dest": "accuracies", "nargs": 2, "type": _open_share},
        discordant={"type": _share, "default": 1 / 3},
        level=_open_share,
        power=_open_share,
    )
    request = parser.parse_args(arguments)

    from tellapart.study.statistics import size

    first, second = request.accuracies
    needed = size(first, second, request.discordant, level=request.level, power=request.power)
    print_row("paired", str(needed.paired), "photos, each with an answer for both models")
    print_row("unpaired", str(needed.unpaired), "photos for each model")
    return 0


_ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "new": _new,
    "serve": _serve,
    "results": _results,
    "simulate": _simulate,
    "size": _size,
}
