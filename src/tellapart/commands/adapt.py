"""tellapart adapt: fine-tune a captioner on photos without captions."""

from __future__ import annotations

from pathlib import Path

from capscore.printable import print_message, print_problems, print_row
from tellapart.commands.arguments import DEVICE, Parser, between
from tellapart.detectors import KINDS


def parser() -> Parser:
    from tellapart.album import DEFAULT
    from tellapart.retrievers import DEFAULT as RETRIEVER

    return Parser(
        "adapt",
        "Fine-tune a captioner on your photos; no captions are needed (DiscriTune).  A retriever has to find each\n"
        "photo of a batch by its caption: that is the reward.\n"
        "\n"
        "Half of the photos (at most 400) are held out, by what they show: on them the captioner is compared before\n"
        "and after.  The model is kept only if the judge, a second retriever that rewarded nothing, finds more of\n"
        "them (the 95 % interval lies above 0) and the guards hold: length, repetition, unusual word order,\n"
        "unidiomatic words, objects (with --detector) and the divergence from the model before.  Otherwise the\n"
        "report says which guard, and by how much, and DIR holds the report only.\n"
        "\n"
        "With --feedback, what people prefer is rewarded too: a model of words and length, learned from captions that\n"
        "they approved, rejected or edited, or from their choices in a study.  The model is then kept if the captions\n"
        "of the photos held out are more to their liking, the judge does not find fewer of them, and the guards hold.\n"
        "Decisions that do not predict each other are not used.\n"
        "\n"
        "A call that was stopped continues when it is repeated.  Exit 1: some photos could not be used; each is named.",
        "tellapart adapt holiday/ --out runs/holiday\n  tellapart caption holiday/ --model runs/holiday",
        f"""
        FOLDER...            folders, photos, or data files without captions
        --model M={DEFAULT}  the captioner to start from
        --retriever R={RETRIEVER}  who has to find the photos
        --out DIR=runs/adapted  folder
        --minutes N=15       time for features, training and the report together
        --detector FILE      {KINDS}, of COCO's classes: named objects must still be seen (ObjPrec)
        --feedback CAPTIONS|STUDY  a captions file with reviews (review: approved, rejected or edited), or a study
                             folder with answers
        {DEVICE}
        """,
        minutes=between(0.5, 100_000),
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from tellapart.adapting import verdict
    from tellapart.adapting.adapt import REPORT, adapt
    from tellapart.desk import feedback
    from tellapart.evaluation import table

    adapted = adapt(
        request.folder if len(request.folder) > 1 else request.folder[0],
        model=request.model,
        retriever=request.retriever,
        out=request.out,
        minutes=request.minutes,
        detector=request.detector,
        device=request.device,
        feedback=feedback.read(Path(request.feedback)) if request.feedback else (),
    )
    if adapted.evaluation is None:
        print_message(f"{request.out}: this was done before.")
    for grid in adapted.evaluation.grids if adapted.evaluation else ():
        print(table.for_terminal(grid, grid.differences(), verdict.columns(grid)))
        for sentence in table.left_out(grid):
            print_message(sentence)
    if adapted.feedback:
        print_message(f"--feedback {request.feedback}: {adapted.feedback}")
    for check in adapted.checks:
        print_row(f"{'yes' if check.passed else 'no '}  {check.sentence}")
    print_row(adapted.summary)
    print_row(str(request.out / REPORT))
    return print_problems(adapted.problems)
