"""Models side by side on data sets: `tellapart.evaluate`, and what it gives back."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from capscore import files, scoring
from capscore.caption_files import TrainingCaptions
from capscore.errors import UserError
from capscore.objects import CLASSES
from tellapart import journals
from tellapart.detectors import load as load_detector
from tellapart.detectors.detector import Detector
from tellapart.evaluation import grid as run
from tellapart.evaluation import models as rows
from tellapart.evaluation import report, table, trec
from tellapart.evaluation.attention import FOLDER as ATTENTION
from tellapart.evaluation.attention import Picture, file_names
from tellapart.evaluation.captions import Captioners
from tellapart.evaluation.cards import FindRegions, no_regions
from tellapart.evaluation.compare import NEEDED, Run, read_runs
from tellapart.evaluation.grid import Differences, Grid
from tellapart.evaluation.models import Model, Split
from tellapart.metrics import retrieval
from tellapart.models import retrievers as retriever_models
from tellapart.retrievers import DEFAULT, MINILM
from tellapart.retrievers.retriever import Retriever

REPORT = "report.html"
Name = str | os.PathLike[str]  # of a model, or of a file or folder


@dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`.  A notebook shows the tables; `print` does so in a terminal.

    grids     the models side by side, one grid for each data set
    models    as they were named
    problems  a sentence for each photo or caption that could not be used
    """

    grids: list[Grid]
    models: list[Model]
    problems: list[str]
    word_regions: FindRegions = field(default=no_regions, repr=False)  # what the words of a caption rest on
    attention: Sequence[Picture] = field(default=(), repr=False)  # what words attend to

    @property
    def scores(self) -> dict[str, dict[str, dict[str, float]]]:
        """{data set: {model: {metric: value}}}, fractions."""
        return {grid.split.name: grid.scores for grid in self.grids}

    @cached_property
    def differences(self) -> list[Differences]:
        """The models' differences from the one that they are compared with, of each grid."""
        return [grid.differences() for grid in self.grids]

    def write(self, folder: Name) -> None:
        """results.json (the scores), details.json, report.html, and TREC run and qrels files."""
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        files.replace(out / "results.json", _json(self.scores))
        of_grids = zip(self.grids, self.differences, strict=True)
        details = {grid.split.name: grid.details(differences) for grid, differences in of_grids}
        files.replace(out / "details.json", _json(details))
        for grid in self.grids:
            for name, lines in trec.of_grid(grid):
                files.replace(out / name, "".join(lines).encode("ascii"))
        for name, picture in zip(file_names(self.attention), self.attention, strict=True):
            files.replace(out / ATTENTION / name, picture.png)
        self.write_report(out)

    def write_report(self, folder: Path, **options: Any) -> None:
        """report.html alone.  The options are those of `report.write`: a title, photos before the tables ..."""
        report.write(
            self.grids,
            self.differences,
            folder / REPORT,
            self.word_regions,
            trained=trained(self.models),
            attention=self.attention,
            **options,
        )

    def __repr__(self) -> str:
        on = ", ".join(f"{grid.split.name} ({len(grid.measured)} photos)" for grid in self.grids)
        return f"<Evaluation of {', '.join(model.name for model in self.models)} on {on}>"

    def __str__(self) -> str:
        return "\n\n".join(
            f"{grid.split.name}\n\n{table.table(grid, differences, columns=table.main_columns(grid))}"
            for grid, differences in zip(self.grids, self.differences, strict=True)
        )

    def _repr_html_(self) -> str:
        return "".join(report.summary(*of_grid) for of_grid in zip(self.grids, self.differences, strict=True))


def evaluate(
    models: Name | Sequence[Name],
    data: Name | Sequence[Name],
    *,
    split: str = "test",
    text: str = "",
    photos: int | None = None,
    retrievers: Name | Sequence[Name] | None = None,
    detector: Name | None = None,
    against: Name | None = None,
    metrics: str | Sequence[str] | None = None,
    training: scoring.Training | None = None,
    near_duplicates: float | None = None,
    self_retrieval: bool = False,
    features: Name | None = None,
    attention: int = 0,
    word: str = "",
    out: Name | None = None,
    device: str = "auto",
    show: Callable[[Evaluation], None] | None = None,
) -> Evaluation:
    """Caption the photos of data sets with each model, and measure: accuracy, distinctiveness, wording.

    models           from `tellapart models`, run folders, files of captions, or "human": the references themselves
    data             data files, or folders of photos (no references)
    split            the part of a data file; DATA.json:NAME has its own
    text             the key of another kind of text that stands for the references, such as "descriptions"
    photos           at most so many of a data set's photos, drawn by a fixed seed
    retrievers       who has to find the photos by their captions (default: the embedded one)
    detector         a YOLOX .onnx of COCO's classes, or a DETR by folder or hub id, for ObjPrec and ObjRec, and for
                     captioners whose regions are a detector's
    against          the model that the others are compared with (default: the first)
    metrics          measures of text, as in `score`
    training         files with the captions that the models were trained on, for measures that need them
    near_duplicates  hard distractors have at most this cosine to the photo (default: only exact copies are left out)
    self_retrieval   each captioner finds its own photos too, by the likelihood of the caption: takes minutes
    features         folder with cached or imported features of the data
    attention        draw what the words of so many captions of each model attend to, as PNG files and in the report
    word             of this word, in captions that have it
    out              folder for the results, the report and the captions; a second call continues where it stopped
    show             called with what was measured, before the report is written

    Example:
        >>> list(tellapart.evaluate(["plain", "distinctive"], "holiday", metrics="AvgLen").scores["holiday"])
        ['plain', 'distinctive']
    """
    scoring.chosen(metrics)  # a misspelt name should not cost minutes
    training_captions, named = scoring.as_training(training), rows.models(_texts(models, "model"))
    base = _row_of(os.fspath(against), named) if against else named[0].recipe or named[0].name
    if word and not attention:
        raise UserError("--word needs --attention, the number of captions to draw.")
    if photos is not None and photos < 1:
        raise UserError(f"photos must be 1 or more, not {photos}.")
    splits = [part.some(photos) if photos else part for part in rows.splits(_texts(data, "data file"), split, text)]
    if self_retrieval and not any(model.kind == "captioner" for model in named):
        raise UserError("--self-retrieval: none of the models is a captioner.")
    objects_in = load_detector(os.fspath(detector), CLASSES) if detector else None
    with _folder(out) as folder:
        sources = [part.source for part in splits]
        captioners = Captioners(folder / "captions", device, Path(features) if features else None, sources, detector)
        for model in named:
            captioners.check(model)
        loaded = _retrievers(None if retrievers is None else _texts(retrievers, "retriever"), device)
        reader, left_out = text_reader(loaded, device)
        grids, problems = list[Grid](), list[str]()
        for part in splits:
            grid, sentences = grid_of(
                part,
                named,
                captioners,
                [retriever for retriever in loaded if retriever.sees == "photos"],
                reader,
                against=base,
                near_duplicates=near_duplicates,
                metrics=metrics,
                detector=objects_in,
                training=training_captions,
                alone=len(splits) == 1,
            )
            problems += sentences
            if grid is None:
                continue
            grid.skipped.update(left_out)
            grids.append(grid)
            for row in grid.rows.values() if self_retrieval else ():
                if (model := row.captions.model).kind == "captioner":
                    run.add_self_retrieval(row, captioners.load(model), grid.split, grid.measured)
        for model in named:
            if not any(model.name in grid.rows for grid in grids):
                what = "reference" if model.kind == "human" else "caption"
                names = ", ".join(part.name for part in splits)
                raise UserError(f"{model.source}: has no {what} for the photos of {names}.")
        drawn = (captioners.attention(grid.first_captions(), attention, word) for grid in grids)
        pictures = [picture for of_grid in drawn for picture in of_grid]
        result = Evaluation(grids, named, problems, captioners.word_regions, pictures)
        if show:
            show(result)
        if out:
            result.write(out)
    return result


def _texts(given: Name | Sequence[Name], what: str) -> list[str]:
    """One name, or several, as they would stand on the command line."""
    names = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not names:
        raise UserError(f"evaluate: there is no {what}.")
    return [os.fspath(name) for name in names]


@contextmanager
def _folder(out: Name | None) -> Iterator[Path]:
    """The folder for captions: that of the results, for this process alone, or one that is gone afterwards."""
    if out:
        with journals.held(Path(out), "another evaluation writes here; wait, or name another folder."):
            yield Path(out)
    else:
        with tempfile.TemporaryDirectory(prefix="tellapart-") as folder:
            yield Path(folder)


def _row_of(name: str, models: Sequence[Model]) -> str:
    """The row that --against names, as the model was given or as the row is called."""
    for model in models:
        if name in (model.source, model.name):
            return model.name
        together = ",".join(other.source for other in models if other.recipe == model.recipe)
        if model.recipe and name in (model.recipe, together):
            return model.recipe
    raise UserError(f"--against {name}: this is none of the models: {', '.join(model.source for model in models)}.")


def _retrievers(names: Sequence[str] | None, device: str) -> list[Retriever]:
    """The retrievers that were asked for, or the default."""
    retrievers = [retriever_models.load(name, device=device) for name in names or [DEFAULT]]
    called = [retriever.name for retriever in retrievers]
    if twice := next((name for name in called if called.count(name) > 1), None):
        raise UserError(f"--retriever: there are two that are called {twice!r}, and figures go by that name.")
    return retrievers


def text_reader(retrievers: Sequence[Retriever], device: str) -> tuple[Retriever | None, dict[str, str]]:
    """The text-to-text encoder: one that was asked for, or MiniLM where it is installed; else why there is none."""
    readers = [retriever for retriever in retrievers if retriever.sees == "references"]
    if len(readers) > 1:
        names = " and ".join(retriever.name for retriever in readers)
        raise UserError(f"--retriever: {names} both go by references; name one of them.")
    if readers:
        return readers[0], {}
    try:
        return retriever_models.load(MINILM, device=device), {}
    except UserError as error:
        return None, {"TT": str(error)}


def grid_of(
    split: Split,
    models: Sequence[Model],
    captioners: Captioners,
    retrievers: Sequence[Retriever],
    reader: Retriever | None,
    *,
    against: str,
    near_duplicates: float | None = None,
    metrics: str | Sequence[str] | None = None,
    detector: Detector | None = None,
    training: TrainingCaptions | None = None,
    alone: bool = True,
) -> tuple[Grid | None, list[str]]:
    """Caption a split with each model, and measure.  None where no model has captions of it; and the problems.

    against   the row that others are compared with, or the first there is
    detector  of objects, whether captions name them
    alone     there is no other split that the captions of a file could be of
    """
    readable, embedded = run.embed(retrievers, split)
    detected = None
    if detector is not None:
        readable, detected = run.detect_objects(detector, readable)
    captions = [captioners.captions_of(model, readable) for model in models]
    participants, measured, sentences = rows.taking_part(captions, readable, alone=alone)
    problems = readable.problems + sentences
    if not participants:
        return None, problems
    names = [name for captions in participants for name in (captions.model.recipe, captions.model.name) if name]
    groups, without_groups = None, {}
    if reader is not None:
        try:
            groups = run.groups_of(readable)
        except UserError as error:  # the judge is not in this installation
            without_groups = {f"TT@{retrieval.GROUP + 1}": str(error)}
    grid = run.measure(
        readable,
        participants,
        measured,
        run.photo_retrievers_of(retrievers, embedded, readable, near_duplicates),
        reader,
        against=against if against in names else names[0],
        metrics=metrics,
        training=training,
        groups=groups,
    )
    grid.skipped.update(without_groups)
    if detected is not None:
        for row in grid.rows.values():
            run.add_objects(row, detected, measured)
    return grid, problems


def trained(models: Sequence[Model]) -> list[Run]:
    """The models that are run folders with a log, under the names that they have here."""
    runs = []
    for model in models:
        if all(files.is_file(Path(model.source) / name) for name in NEEDED):
            with suppress(UserError):  # a log that is damaged, or empty as yet, is no reason to have no page
                runs.append(replace(read_runs([model.source])[0], name=model.name))
    return runs


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("ascii")
