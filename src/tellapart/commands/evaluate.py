"""tellapart evaluate: models side by side on the photos of data sets."""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import ArgumentTypeError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.commands.arguments import Parser, positive
from tellapart.commands.score import TRAINING
from tellapart.printable import print_message, print_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tellapart.captioning.captioner import PhotoCaptioner
    from tellapart.detectors.yolox import Detector
    from tellapart.evaluation.grid import Differences, Grid
    from tellapart.evaluation.models import Model, Said, Split
    from tellapart.evaluation.pages.cards import WordRegions
    from tellapart.evaluation.pages.report import Plane
    from tellapart.evaluation.training_runs import Run
    from tellapart.metrics.training_captions import TrainingCaptions
    from tellapart.retrievers.retriever import Retriever

_BEAM = 3


def parser() -> Parser:
    from tellapart.retrievers import DEFAULT

    parser = Parser(
        "evaluate",
        "Caption the photos of a split with each model and compare: can the photos be told by their captions, and are\n"
        "the captions right?\n"
        "\n"
        "  MODEL   from `tellapart models`, a run folder, a file of captions (as `tellapart score` reads them), or\n"
        "          human: what people said; A,B,C are runs of one recipe with several seeds: a row with their means\n"
        "\n"
        "Prints a table for each data set.  In DIR: results.json ({data: {model: {metric: value}}}, fractions),\n"
        "details.json (intervals, differences, signatures), report.html, TREC run and qrels files, and the captions.\n"
        "A run that is started again with the same DIR goes on where it stopped.\n"
        "Exit 1: some photos or captions could not be used; each is named.",
        "tellapart evaluate plain human --data flickr8k.json coco.json --retriever word judge --out evaluation",
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="a row of the table")
    parser.add_argument(
        "--data", metavar="DATA", nargs="+", required=True, help="data files, or folders of photos (no references)"
    )
    parser.add_argument("--split", default="test", metavar="NAME", help="the part of a data file (default: test)")
    parser.add_argument(
        "--photos", metavar="N", type=positive, help="at most so many of a data set's photos, drawn by chance"
    )
    parser.add_argument(
        "--retriever",
        metavar="R",
        nargs="+",
        help=f"who has to find the photos: from `tellapart models`, a run folder or a hub id (default: {DEFAULT})",
    )
    parser.add_argument(
        "--detector",
        metavar="FILE.onnx",
        help="a YOLOX export of COCO's classes: is what captions name seen (ObjPrec), is what is seen named (ObjRec)?",
    )
    parser.add_argument(
        "--against", metavar="MODEL", help="the row that the others are compared with (default: the first)"
    )
    parser.add_argument(
        "--metrics", metavar="A,B", help="measures of text, as in `tellapart score` (default: all that need no Java)"
    )
    parser.add_argument("--training", metavar="DATA", nargs="+", help=TRAINING)
    parser.add_argument(
        "--near-duplicates",
        metavar="COSINE",
        type=_cosine,
        help="hard distractors have at most this similarity to the photo (default: only exact copies are left out)",
    )
    parser.add_argument(
        "--self-retrieval", action="store_true", help="let each captioner find its own photos too: takes minutes"
    )
    parser.add_argument("--all-columns", action="store_true", help="print every measure, not just the main ones")
    parser.add_argument(
        "--features", metavar="DIR", type=Path, help="what captioners saw of DATA, cached or imported there: saves time"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder to write to")
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")
    return parser


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from tellapart import files
    from tellapart.errors import UserError
    from tellapart.evaluation import models as rows
    from tellapart.evaluation import objects
    from tellapart.metrics import scoring

    for note in scoring.notes(request.metrics):  # which also refuses a misspelt name before it costs minutes
        print_message(note)
    training = scoring.as_training(request.training)
    models = rows.models(request.models)
    against = _row_of(request.against, models) if request.against else models[0].recipe or models[0].name
    splits = rows.splits(request.data, request.split)
    if request.photos:
        splits = [split.some(request.photos) for split in splits]
    problems: list[str] = []
    if request.self_retrieval and not any(model.kind == "captioner" for model in models):
        raise UserError("--self-retrieval: none of the models is a captioner.")
    detector = objects.load(request.detector) if request.detector else None
    with ExitStack() as stack:
        if request.out:
            stack.enter_context(
                files.held(request.out, "another evaluation writes here; wait, or name another folder.")
            )
        out = request.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tellapart-")))
        captioners = Captioners(out / "captions", request.device, request.features, request.data)
        for model in models:
            captioners.check(model)
        retrievers = _retrievers(request.retriever, request.device)
        reader, left_out = text_reader(retrievers, request.device)
        seeing = [retriever for retriever in retrievers if retriever.sees == "photos"]
        grids: list[Grid] = []
        for split in splits:
            grid, sentences = grid_of(
                split,
                models,
                captioners,
                seeing,
                reader,
                against=against,
                near_duplicates=request.near_duplicates,
                metrics=request.metrics,
                detector=detector,
                training=training,
                alone=len(splits) == 1,
            )
            problems += sentences
            if grid is not None:
                grid.skipped.update(left_out)
                grids.append(grid)
                if request.self_retrieval:
                    _self_retrieval(grid, captioners)
        for model in models:
            if not any(model.name in grid.rows for grid in grids):
                what = "reference" if model.kind == "human" else "caption"
                raise UserError(f"{model.given}: has no {what} for the photos of {', '.join(s.name for s in splits)}.")
        differences = [grid.differences() for grid in grids]
        _print(grids, differences, all_columns=request.all_columns)
        if request.out:
            _write(grids, differences, out, models, captioners, plane_of(seeing))
    for problem in problems:
        print_message(problem)
    return 1 if problems else 0


def grid_of(
    split: Split,
    models: Sequence[Model],
    captioners: Captioners,
    retrievers: Sequence[Retriever],
    reader: Retriever | None,
    *,
    against: str,
    near_duplicates: float | None = None,
    metrics: str | None = None,
    detector: Detector | None = None,
    training: TrainingCaptions | None = None,
    alone: bool = True,
) -> tuple[Grid | None, list[str]]:
    """Caption a split with each model, and measure.  None where no model speaks of it; and what could not be used.

    against   the row that others are compared with, or the first there is
    detector  of objects, whether captions name them
    alone     there is no other split that the captions of a file could be of
    """
    from tellapart.errors import UserError
    from tellapart.evaluation import grid as run
    from tellapart.evaluation import models as rows
    from tellapart.evaluation import objects
    from tellapart.evaluation.look_alike_groups import groups_of
    from tellapart.metrics import retrieval

    readable, embedded = run.embed(retrievers, split)
    seen = None
    if detector is not None:
        readable, seen = objects.see(detector, readable)
    said = [captioners.said(model, readable) for model in models]
    there, measured, sentences = rows.taking_part(said, readable, alone=alone)
    problems = readable.problems + sentences
    if not there:
        return None, problems
    listeners = run.listen(retrievers, embedded, readable, near_duplicates)
    names = [name for one in there for name in (one.model.recipe, one.model.name) if name]
    base = against if against in names else names[0]
    groups, without_groups = None, {}
    if reader is not None:
        try:
            groups = groups_of(readable)
        except UserError as error:  # the judge is not in this installation
            without_groups = {f"TT@{retrieval.GROUP + 1}": str(error)}
    grid = run.measure(
        readable,
        there,
        measured,
        listeners,
        reader,
        against=base,
        metrics=metrics,
        training=training,
        groups=groups,
    )
    grid.skipped.update(without_groups)
    if seen is not None:
        for row in grid.rows.values():
            objects.add(row, seen, measured)
    return grid, problems


def _cosine(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 2.0
    if not -1 <= value <= 1:
        raise ArgumentTypeError(f"must be a number between -1 and 1, not {text!r}")
    return value


def _row_of(given: str, models: Sequence[Model]) -> str:
    """The row that --against names, as the model was given or as the row is called."""
    from tellapart.errors import UserError

    for model in models:
        if given in (model.given, model.name):
            return model.name
        if model.recipe and given in (model.recipe, _together(model.recipe, models)):
            return model.recipe
    raise UserError(f"--against {given}: this is none of the models: {', '.join(model.given for model in models)}.")


def _together(recipe: str, models: Sequence[Model]) -> str:
    """Runs of a recipe as they were given."""
    return ",".join(model.given for model in models if model.recipe == recipe)


class Captioners:
    """Captions of models; those that are made are kept in a folder, so that a second run need not make them again."""

    def __init__(self, folder: Path, device: str, features: Path | None, data: Sequence[str]):
        """features  where features of these data are stored"""
        self._folder, self._device, self._features, self._data = folder, device, features, data
        self._loaded: dict[str, PhotoCaptioner] = {}

    def check(self, model: Model) -> None:
        """A model that cannot be read should not cost the time that the others take."""
        if model.kind == "captioner":
            self.load(model)
        elif model.kind == "file":
            from tellapart.metrics import caption_files

            caption_files.read(model.given)

    def load(self, model: Model) -> PhotoCaptioner:
        from tellapart.captioning.captioner import load

        if model.name not in self._loaded:
            self._loaded[model.name] = load(model.given, device=self._device, features=self._features, paths=self._data)
        return self._loaded[model.name]

    def said(self, model: Model, split: Split) -> Said:
        from tellapart.captioning.rerank import RerankConfig
        from tellapart.captioning.rows import CaptionsFile
        from tellapart.captioning.sources import of_captioner
        from tellapart.captioning.writing import write
        from tellapart.data.items import Input
        from tellapart.decoding.search import Search
        from tellapart.evaluation import models as rows
        from tellapart.evaluation.trec import file_name

        if model.kind == "human":
            return rows.by_people(model, split)
        if model.kind == "file":
            return rows.from_file(model, split)
        self._folder.mkdir(parents=True, exist_ok=True)
        file = CaptionsFile(self._folder / f"{file_name(split.name)}.{file_name(model.name)}.jsonl")
        inputs = {str(photo.file): Input(str(photo.file), photo.id) for photo in split.photos}
        write(of_captioner(self.load(model), Search(_BEAM), None, RerankConfig()), list(inputs.values()), file)
        texts = {row["file"]: row["caption"] for row in file.rows if "caption" in row}
        photos = enumerate(split.photos)
        return rows.Said(model, {row: [texts[str(photo.file)]] for row, photo in photos if str(photo.file) in texts})

    def looked(self, speaker: str, photo: Path, caption: str) -> WordRegions | None:
        """Which part of a photo the words of a caption rest on; nobody knows it of captions from a file."""
        from tellapart.evaluation.pages.word_regions import looked

        return looked(self._loaded[speaker], photo, caption) if speaker in self._loaded else None


def _retrievers(given: Sequence[str] | None, device: str) -> list[Retriever]:
    """Those asked for, or the default."""
    from tellapart.errors import UserError
    from tellapart.models.retrievers import load
    from tellapart.retrievers import DEFAULT

    names = given or [DEFAULT]
    retrievers = [load(name, device=device) for name in names]
    called = [retriever.name for retriever in retrievers]
    if twice := next((name for name in called if called.count(name) > 1), None):
        raise UserError(f"--retriever: there are two that are called {twice!r}, and figures go by that name.")
    return retrievers


def text_reader(retrievers: list[Retriever], device: str) -> tuple[Retriever | None, dict[str, str]]:
    """The text-to-text encoder: one that was asked for, or MiniLM where it is installed; else why there is none."""
    from tellapart.errors import UserError
    from tellapart.models.retrievers import load
    from tellapart.retrievers import MINILM

    readers = [retriever for retriever in retrievers if retriever.sees == "references"]
    if len(readers) > 1:
        names = " and ".join(retriever.name for retriever in readers)
        raise UserError(f"--retriever: {names} both go by references; name one of them.")
    if readers:
        return readers[0], {}
    try:
        return load(MINILM, device=device), {}
    except UserError as error:
        return None, {"TT": str(error)}


def _self_retrieval(grid: Grid, captioners: Captioners) -> None:
    from tellapart.evaluation import self_retrieval

    for row in grid.rows.values():
        if row.said.model.kind == "captioner":
            self_retrieval.add(row, captioners.load(row.said.model), grid.split, grid.measured)


def _print(grids: Sequence[Grid], differences: Sequence[Differences], *, all_columns: bool) -> None:
    from tellapart.evaluation import table

    width = shutil.get_terminal_size((100, 24)).columns
    for number, (grid, found) in enumerate(zip(grids, differences, strict=True)):
        columns = table.all_columns(grid) if all_columns else table.main_columns(grid)
        blank = "\n" if number else ""
        print(f"{blank}{table.table(grid, found, columns=columns, width=width)}\n")
        meant = columns if number == len(grids) - 1 else []  # once, below the last table
        sentences = [*table.which_to_believe(grid, columns), *table.notes(grid, columns)]
        print(table.in_lines(sentences, meant, width=width))
        for sentence in table.left_out(grid):
            print_message(f"{grid.split.name}: {sentence}")


def plane_of(retrievers: Sequence[Retriever]) -> Plane | None:
    """How the first of the retrievers lays out captions."""
    from tellapart.evaluation.changes import plane

    return (lambda said: (retrievers[0].name, plane(said, retrievers[0]))) if retrievers else None


def _write(
    grids: Sequence[Grid],
    differences: Sequence[Differences],
    out: Path,
    models: Sequence[Model],
    captioners: Captioners,
    plane: Plane | None,
) -> None:
    from tellapart import files
    from tellapart.evaluation import trec
    from tellapart.evaluation.pages import report

    results = {grid.split.name: grid.scores for grid in grids}
    files.replace(out / "results.json", _json(results))
    details = {grid.split.name: grid.details(found) for grid, found in zip(grids, differences, strict=True)}
    files.replace(out / "details.json", _json(details))
    for grid in grids:
        for name, lines in trec.of_grid(grid):
            files.replace(out / name, "".join(lines).encode("ascii"))
    report.write(grids, differences, out / "report.html", captioners.looked, plane, trained=trained(models))
    print_row(str(out / "report.html"))


def trained(models: Sequence[Model]) -> list[Run]:
    """Those of the models that are run folders with a log, under the names that they have here."""
    from dataclasses import replace

    from tellapart import files
    from tellapart.errors import UserError
    from tellapart.evaluation import training_runs

    found = []
    for model in models:
        if all(files.is_file(Path(model.given) / name) for name in training_runs.NEEDED):
            with suppress(UserError):  # a log that is damaged, or empty as yet, is no reason to have no page
                found.append(replace(training_runs.read([model.given])[0], name=model.name))
    return found


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("ascii")
