"""tellapart compare: finished runs side by side."""

from __future__ import annotations

from capscore.printable import print_message, print_problems, print_row
from tellapart import journals
from tellapart.commands.arguments import ATTENTION, DEVICE, Parser, check, stated

_NEEDS = (  # options, the one that they need, and why
    ("data evaluation", "out", "the folder for the figures"),
    ("split photos features attention", "data", "the file with the photos"),
    ("word", "attention", "the number of captions to draw"),
)


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
        f"""
        RUN...               a run folder; one column of the table
        --out DIR            folder for the report and figures (default: print a table only)
        --data DATA          a data file with photos for the runs to caption
        --split NAME         split of the data file (default: test)
        --photos N           number of photos, sampled at random (default: 200)
        --evaluation DIR...  folders of `tellapart evaluate --out`; their captions are reused
        --features DIR       folder with cached or imported features of DATA
        {DEVICE}
        """,
        evaluation={"default": []},
    )
    return parser.options(ATTENTION)


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    check(request, _NEEDS)

    from tellapart.evaluation import compare

    runs = compare.read_runs(request.run)
    evaluations = [compare.read_evaluation(folder, runs) for folder in request.evaluation]
    print(compare.for_terminal(runs))
    findings = compare.Findings(runs, evaluations)
    if request.out:
        with journals.held(request.out, "another comparison writes here; wait, or name another folder."):
            compare.analyse(
                findings,
                request.out,
                data=request.data,
                features=request.features,
                device=request.device,
                **stated(split=request.split, photos=request.photos, attention=request.attention, word=request.word),
            )
            compare.write_page(findings, request.out)
        print_row(str(request.out / "report.html"))
    for sentence in findings.left_out:
        print_message(sentence)
    return print_problems(findings.problems)
