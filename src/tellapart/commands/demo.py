"""tellapart demo: the whole story on the embedded album."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from capscore.errors import UserError
from capscore.printable import print_problems, print_row
from tellapart.commands.arguments import Parser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tellapart.captioning.captioner import PhotoCaptioner
    from tellapart.data.examples import Example
    from tellapart.evaluation.grid import Grid

_METRICS = "CIDEr-D,Unidiomatic,Rep,BadEnd,Prec,UniCap,AvgLen"
_SHOWN = "trains"  # the look-alikes that the terminal shows
_AMONG = "told apart"
_TUNED = "tuned"
_FIRST = 6  # photos that the page opens with
_SUBTITLE = (
    "{photos} photos, most of them in groups that look alike. An ordinary captioner gives several of them the same "
    "caption; a distinctive one says what only this photo shows."
)


def parser() -> Parser:
    return Parser(
        "demo",
        "Caption the embedded album (groups of look-alike photos) with each embedded captioner, measure how well the\n"
        "captions tell photos apart, and re-rank those of one group.  Writes DIR/report.html and DIR/captions.",
        "tellapart demo --out demo",
        """
        --out DIR=demo  output folder
        --train         first fine-tune the default captioner on the album; takes a minute
        """,
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    out: Path = request.out
    try:  # before the work, so that a folder that cannot be does not cost it
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--out {out}: this, or a folder above it, is a file; choose another folder.") from None
    except OSError as error:
        raise UserError(f"--out {out}: the folder cannot be made ({error.strerror}).") from None

    from tellapart import album, journals, retrievers
    from tellapart.evaluation import models as rows
    from tellapart.evaluation import table
    from tellapart.evaluation.captions import Captioners
    from tellapart.evaluation.evaluate import Evaluation, grid_of, text_reader
    from tellapart.models.retrievers import load

    began = time.monotonic()
    with journals.held(out, "another demo writes here; wait, or name another folder."):
        (split,) = rows.splits([str(album.HERE / "album.json")], "test")
        loaded = [load(name) for name in retrievers.EMBEDDED]
        reader, left_out = text_reader(loaded, "auto")
        captioners = Captioners(out / "captions", "auto", None, [])
        tuned = [str(_tune(split.photos, out))] if request.train else []
        models = rows.models([*(name for name in album.EMBEDDED if name != album.CLIPS), *tuned])
        grid, problems = grid_of(split, models, captioners, loaded, reader, against=models[0].name, metrics=_METRICS)
        if grid is None:  # which no photo of an album that is whole can be the reason of
            raise UserError(f"{album.HERE}: the album could not be captioned; install tellapart again.")
        grid.skipped.update(left_out)
        _show(grid, _rerank(captioners.load(models[-1]), grid.split.photos))
        result = Evaluation([grid], models, problems, captioners.word_regions)
        columns = table.main_columns(grid)
        print(f"\n{table.for_terminal(grid, result.differences[0], columns, above=table.in_short(grid, columns))}")
        for why in left_out.values():
            print(f"TT is left out: {why}")
        result.write_report(
            out,
            title="The album, told apart",
            subtitle=_SUBTITLE.format(photos=len(grid.split.photos)),
            footer=credit(grid.split.photos),
            examples=len(grid.split.photos),
            first=_FIRST,
        )
    print(f"\n{time.monotonic() - began:.0f} seconds")
    print_row(str(out / "report.html"))
    return print_problems(problems)


def _tune(photos: Sequence[Example], out: Path) -> Path:
    """The default captioner, trained on the photos that have look-alikes: the folder of the run.

    Its captions are rewarded by what a retriever makes of them; no reference takes part, but in the validation.
    """
    from capscore import files
    from tellapart import album, models
    from tellapart.commands.train import parse, train
    from tellapart.data import examples
    from tellapart.data.examples import DataSet
    from tellapart.data.streams import REGIONS
    from tellapart.recipe import EncoderConfig

    run = out / _TUNED
    assigned = [replace(photo, split="train" if photo.extra["group"] else "val") for photo in photos]
    files.refuse_link(out / "album.json")
    examples.write(DataSet("album", assigned), out / "album.json")
    config = models.read_config(models.find(album.DEFAULT), "captioner")
    settings = {key: value for key, value in config.settings.items() if not models.is_size(key)}
    encoder = {key: value for key, value in config.inputs[REGIONS].items() if key in EncoderConfig.__dataclass_fields__}
    recipe, _, _ = parse(
        [
            str(album.TUNE),
            f"--data={out / 'album.json'}",
            f"--data.features={out / 'features'}",
            f"--init_from={album.DEFAULT}",
            f"--captioner={config.name}",
            f"--model={json.dumps(settings)}",
            f"--encoder={json.dumps(encoder)}",
        ]
    )
    train(recipe, run, resume=run.exists())
    return run


def _rerank(captioner: PhotoCaptioner, photos: Sequence[Example]) -> dict[str, str]:
    """One group, each photo told apart from the others of it: file -> caption."""
    files = [str(photo.file) for photo in photos if photo.extra["group"] == _SHOWN]
    return {row.file: row.text or row.error for row in captioner.caption(files, among=files)}


def _show(grid: Grid, told_apart: Mapping[str, str]) -> None:
    """The captions of one group, photo by photo."""
    width = max(map(len, [*grid.rows, _AMONG]))
    print(f"{_SHOWN}, each by itself, and re-ranked among the others (`tellapart caption PHOTOS --among PHOTOS`)")
    for number in grid.measured:
        photo = grid.split.photos[number]
        if photo.extra["group"] == _SHOWN:
            print(f"\n  {photo.file.name}")
            for name, row in grid.rows.items():
                print(f"    {name:<{width}}  {row.captions.of_photo[number][0]}")
            print(f"    {_AMONG:<{width}}  {told_apart[str(photo.file)]}")


def credit(photos: Sequence[Example]) -> str:
    """The credit that the photos' licences ask for; the page may be handed on without the package's CREDITS.md."""
    free = ", ".join(str(photo.id) for photo in photos if photo.extra["license"] == 7)
    return (
        "Photos: via COCO, by the ids in their names, scaled down; CC BY 2.0 (creativecommons.org/licenses/by/2.0)"
        + (f", except {free}: no known copyright restrictions" if free else "")
        + ".  Captions: made by tellapart."
    )
