"""tellapart evaluate: models side by side on the photos of data sets."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from capscore.command import TRAINING
from capscore.printable import print_message, print_problems, print_row
from tellapart.commands.arguments import ATTENTION, DEVICE, Parser, between, check, stated

if TYPE_CHECKING:
    from tellapart.evaluation.evaluate import Evaluation


def parser() -> Parser:
    from tellapart.detectors import KINDS
    from tellapart.retrievers import DEFAULT

    parser = Parser(
        "evaluate",
        "Caption the photos of a split with each model and compare the captions: accuracy, fluency, and how well they\n"
        "tell the photos apart.\n"
        "\n"
        "  MODEL   from `tellapart models`, a run folder, a file of captions (as `tellapart score` reads them), or\n"
        "          human: the references; A,B,C: runs of one recipe with different seeds, and a row with their mean;\n"
        "          runs of taggers have a table of their own: average precision of their words\n"
        "\n"
        "Prints a table for each data set; for several also P@1/100, BLEU-4, METEOR and CIDEr-D side by side.\n"
        "In DIR: results.json ({data: {model: {metric: value}}}, fractions),\n"
        "details.json (intervals, differences, signatures), report.html, TREC run and qrels files, and the captions.\n"
        "Run it again with the same DIR to resume.\n"
        "Exit 1: some photos or captions could not be used; each is named.",
        "tellapart evaluate plain human --data flickr8k.json coco.json --retriever word judge --out evaluation",
        f"""
        MODEL...          a row of the table
        --data DATA...!   data files, or folders of photos (no references)
        --split NAME      the part of a data file (default: test); or DATA.json:NAME
        --text KEY        compare with another kind of text of the data, such as Concadia's descriptions (default:
                          captions)
        --photos N        use at most N photos per data set, sampled at random
        --retriever R...  retrievers, from `tellapart models`, a run folder or a hub id (default: {DEFAULT}); minilm,
                          which only reads, makes the TT columns
        --detector FILE   {KINDS}, of COCO's classes: for precision (ObjPrec) and recall (ObjRec) of the objects in
                          captions, and for models that were trained with its boxes
        --against MODEL   the row that the others are compared with (default: the first)
        --metrics A,B     as in `tellapart score`, each a column (default: all that need no Java)
        --training DATA...  {TRAINING}
        --near-duplicates COSINE  hard distractors have at most this similarity to the photo (default: only exact copies
                          are left out)
        --self-retrieval  also retrieve photos by each captioner's own log p(caption | photo); takes minutes
        --words           print the adjectives and nouns most associated with each model's captions
        --all-columns     print every measure, not just the main ones
        --features DIR    folder with cached or imported features of DATA
        --out DIR         folder to write to
        {DEVICE}
        """,
        model={"dest": "models"},
        retriever={"dest": "retrievers"},
        near_duplicates=between(-1, 1),
    )
    return parser.options(ATTENTION)


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from tellapart.models.parts import is_tagger

    if all(is_tagger(Path(name)) for name in request.models):
        return _taggers(request)

    from capscore import scoring
    from tellapart.evaluation import table
    from tellapart.evaluation.evaluate import REPORT, evaluate

    check(request, [("attention", "out", "the folder for the pictures")])
    if request.words:
        table.tagger()  # before anything takes time
    for note in scoring.notes(request.metrics):
        print_message(note)
    options = {name: value for name, value in stated(**vars(request)).items() if name not in ("words", "all_columns")}
    evaluation = evaluate(**options, show=partial(_print, all_columns=request.all_columns, words=request.words))
    if request.out:
        print_row(str(request.out / REPORT))
    return print_problems(evaluation.problems)


def _taggers(request: Namespace) -> int:
    """Runs that give photos words instead of captions have a table of their own."""
    from tellapart.evaluation import table
    from tellapart.evaluation.taggers import evaluate

    results = evaluate(
        request.models,
        request.data,
        **stated(split=request.split),
        photos=request.photos,
        features=request.features,
        out=request.out,
        device=request.device,
    )
    for result in results:
        metrics = result.metrics.values()
        rows = {name: [f"{100 * value:.1f}" for value in of_row.values()] for name, of_row in result.metrics.items()}
        print(f"{result.name}, average precision:\n{table.text_table(list(next(iter(metrics))), rows)}")
    return print_problems([problem for result in results for problem in result.problems])


def _print(evaluation: Evaluation, *, all_columns: bool, words: bool) -> None:
    from tellapart.evaluation import table

    grids = evaluation.grids
    for place, (grid, differences) in enumerate(zip(grids, evaluation.differences, strict=True)):
        columns = table.all_columns(grid) if all_columns else table.main_columns(grid)
        is_last = place == len(grids) - 1  # what columns mean is said once
        print(("\n" if place else "") + table.for_terminal(grid, differences, columns, meanings=is_last))
        for sentence in table.left_out(grid):
            print_message(f"{grid.split.name}: {sentence}")
        if words:
            print(f"\n{table.word_table(table.words_of_grid(grid))}")
    if len(grids) > 1 and (side_by_side := table.across(grids)):
        print(f"\n{side_by_side}")
