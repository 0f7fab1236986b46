"""tellapart compare: finished runs side by side."""

from __future__ import annotations

import shutil
from pathlib import Path

from capscore.errors import UserError
from capscore.printable import print_message, print_row
from tellapart import journals
from tellapart.commands.arguments import Parser, add_attention, check_attention, positive

_PHOTOS = 200


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
    for name in ("data", "evaluation"):
        if getattr(request, name) and not request.out:
            raise UserError(f"--{name} needs --out, the folder for the figures.")
    for name in ("split", "photos", "features", "attention"):
        if getattr(request, name) and not request.data:
            raise UserError(f"--{name} needs --data, the file with the photos.")
    check_attention(request)

    from tellapart.evaluation import compare

    runs = compare.read_runs(request.runs)
    evaluations = [compare.read_evaluation(folder, runs) for folder in request.evaluation]
    names, width = [run.name for run in runs], shutil.get_terminal_size((100, 24)).columns
    print(compare.text_table(compare.facts(runs), names, width))
    if sentence := compare.caution(runs):
        print(f"\n{sentence}")
    if differences := compare.differences(runs):
        print(f"\nwhere the recipes differ\n{compare.text_table(differences, names, width)}")
    findings = compare.Findings(runs, evaluations)
    if request.out:
        with journals.held(request.out, "another comparison writes here; wait, or name another folder."):
            compare.analyse(
                findings,
                request.out,
                data=request.data,
                split=request.split or "test",
                photos=request.photos or _PHOTOS,
                features=request.features,
                attention=request.attention,
                word=request.word,
                device=request.device,
            )
            compare.write_page(findings, request.out)
        print_row(str(request.out / "report.html"))
    for sentence in [*findings.left_out, *findings.problems]:
        print_message(sentence)
    return 1 if findings.problems else 0
