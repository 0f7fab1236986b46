"""tellapart compare: finished runs side by side."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from capscore.printable import print_message, print_row
from tellapart.commands.arguments import Parser, add_attention, check_attention, positive

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from tellapart.evaluation.captions import Captioners
    from tellapart.evaluation.compare import Changes, Evaluation, Findings, Run
    from tellapart.evaluation.grid import Grid
    from tellapart.evaluation.models import Split
    from tellapart.retrievers.retriever import Retriever

_PHOTOS = 200
Found = TypeVar("Found")


def parser() -> Parser:
    parser = Parser(
        "compare",
        "Compare training runs: a table of their results, and the settings in which their recipes differ.\n"
        "\n"
        "  RUN   a folder that `tellapart train` wrote; changes are shown from the first run to the last\n"
        "\n"
        "Writes DIR/report.html and DIR/figures/*.svg: curves of validation and rewards, and n-gram weights.\n"
        "With --data: captions that changed, failures, and rewards of words.\n"
        "With --evaluation: recall against batch size, for runs that differ in it.\n"
        "Exit 1: some photos could not be used; each is reported.",
        "tellapart compare runs/plain_xe runs/plain_scst --data flickr8k.json --out comparison",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run folder; one column of the table")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder for the report and figures (default: print a table only)"
    )
    parser.add_argument("--data", metavar="DATA", help="a data file with photos for the runs to caption")
    parser.add_argument("--split", metavar="NAME", help="split of the data file (default: test)")
    parser.add_argument(
        "--photos", metavar="N", type=positive, help=f"number of photos, sampled at random (default: {_PHOTOS})"
    )
    parser.add_argument(
        "--evaluation",
        metavar="DIR",
        nargs="+",
        type=Path,
        default=[],
        help="folders of `tellapart evaluate --out`; their captions are reused",
    )
    add_attention(parser)
    parser.add_argument("--features", metavar="DIR", type=Path, help="folder with cached or imported features of DATA")
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")
    return parser


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    _check(request)

    from capscore import files
    from tellapart.evaluation import compare
    from tellapart.evaluation.compare import Findings

    findings = Findings(compare.read_runs(request.runs))
    findings.evaluations = [compare.read_evaluation(folder, findings.runs) for folder in request.evaluation]
    _print(findings.runs)
    problems: list[str] = []
    if request.out:
        with files.held(request.out, "another comparison writes here; wait, or name another folder."):
            problems = _analyse(request, findings)
            compare.write_page(findings, request.out)
        print_row(str(request.out / "report.html"))
    for sentence in [*findings.left_out, *problems]:
        print_message(sentence)
    return 1 if problems else 0


def _check(request: Namespace) -> None:
    """What the arguments cannot say of each other by themselves."""
    from capscore.errors import UserError

    for name in ("data", "evaluation"):
        if getattr(request, name) and not request.out:
            raise UserError(f"--{name} needs --out, the folder for the figures.")
    for name in ("split", "photos", "features", "attention"):
        if getattr(request, name) and not request.data:
            raise UserError(f"--{name} needs --data, the file with the photos.")
    check_attention(request)


def _print(runs: Sequence[Run]) -> None:
    from tellapart.evaluation import compare
    from tellapart.evaluation.compare import caution

    names, width = [run.name for run in runs], shutil.get_terminal_size((100, 24)).columns
    print(compare.text_table(compare.facts(runs), names, width))
    if sentence := caution(runs):
        print(f"\n{sentence}")
    if differ := compare.differences(runs):
        print(f"\nwhere the recipes differ\n{compare.text_table(differ, names, width)}")


def _analyse(request: Namespace, findings: Findings) -> list[str]:
    """Look at what the runs say and learned from; returns what could not be used."""
    from tellapart.evaluation import models
    from tellapart.evaluation.compare import by_batch_size
    from tellapart.evaluation.local_reward import LocalReward
    from tellapart.models.retrievers import load

    runs, problems = findings.runs, list[str]()
    if request.data:
        (split,) = models.splits([request.data], request.split or "test")
        changed, captioners, problems = _captions(request, split, runs, findings.evaluations)
        findings.find_regions = captioners.word_regions
        if request.attention:
            photos = [photo.file for photo in changed.photos]
            captions = {name: dict(zip(photos, texts, strict=True)) for name, texts in changed.captions.items()}
            findings.attention = captioners.attention(captions, request.attention, request.word or "")
        retriever = _unless(findings, "what a listener makes of captions", lambda: load(device=request.device))
        findings.changes, findings.grid = changed, _retrieved(changed, split, runs, retriever, findings)
    speaking = [run for run in runs if not run.recipe.retriever]
    rewarded = [run for run in speaking if "ld" in run.rewards] or speaking
    if rewarded:
        findings.local = _unless(findings, "what words weigh and earn", lambda: LocalReward.of_run(rewarded[-1]))
    if request.evaluation and not by_batch_size(runs, findings.evaluations):
        findings.left_out.append(
            "recall against batch size is left out: it takes evaluations of two runs that are trained for the same and "
            "differ in batch_size."
        )
    return problems


def _retrieved(
    changes: Changes, split: Split, runs: Sequence[Run], retriever: Retriever | None, findings: Findings
) -> Grid:
    """The photos and what runs say of them, as a retriever embeds them; or as they are."""
    from capscore.errors import UserError
    from tellapart.evaluation import grid as run
    from tellapart.evaluation import models

    photos = models.Split(split.name, split.source, changes.photos, [])
    captions = [
        models.ModelCaptions(
            models.Model(str(one.folder), one.name, "captioner"),
            {photo: [text] for photo, text in enumerate(changes.captions[one.name])},
        )
        for one in runs
    ]

    def photo_retrievers_of() -> list[run.PhotoRetriever]:
        if retriever is None:
            return []
        seen, embedded = run.embed([retriever], photos)
        if len(seen.photos) < len(photos.photos):
            raise UserError(seen.problems[0])
        return run.photo_retrievers_of([retriever], embedded, photos, None)

    photo_retrievers = _unless(findings, "look-alikes, and places by a retriever,", photo_retrievers_of) or []
    everything = list(range(len(changes.photos)))
    return run.measure(photos, captions, everything, photo_retrievers, None, against=runs[0].name, metrics="CIDEr-D")


def _captions(
    request: Namespace, split: Split, runs: Sequence[Run], evaluations: Sequence[Evaluation]
) -> tuple[Changes, Captioners, list[str]]:
    """What each run says of some photos of a split: as it was evaluated, or made now and kept in DIR/captions.

    Also the captioners, who know what the words rest on, and what could not be used.
    """
    from capscore.errors import UserError
    from tellapart.evaluation import compare
    from tellapart.evaluation.captions import Captioners
    from tellapart.evaluation.compare import evaluated
    from tellapart.evaluation.models import Model

    drawn = compare.drawn_photos(split, request.photos or _PHOTOS)
    captioners = Captioners(request.out / "captions", request.device, request.features, [request.data])
    wanted = [str(photo.file) for photo in drawn.photos]
    captions, problems = dict[str, dict[str, str]](), list(split.problems)
    for run in runs:
        model = Model(str(run.folder), run.name, "captioner")
        texts = evaluated(run, split.name, evaluations)
        if not set(wanted) <= texts.keys():
            made = captioners.captions_of(model, drawn).of_photo
            texts = {wanted[row]: texts[0] for row, texts in made.items()}
        else:
            with suppress(UserError):  # its captions are there; a captioner that cannot be loaded costs but the overlay
                captioners.load(model)
        captions[run.name] = {file: texts[file] for file in wanted if file in texts}
        problems += [f"{file}: {run.name} has no caption of it." for file in wanted if file not in texts]
    return compare.compare_captions(split, drawn.photos, captions), captioners, problems


def _unless(findings: Findings, what: str, find: Callable[[], Found]) -> Found | None:
    """A figure that cannot be made should not cost the others."""
    from capscore.errors import UserError

    try:
        return find()
    except UserError as error:
        findings.left_out.append(f"{what} left out: {error}")
        return None
