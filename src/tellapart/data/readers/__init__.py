"""Readers: data sets as their authors publish them, into the one schema.

A new format is a file here with `read(source, photos) -> DataSet` and a line in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capscore.errors import UserError
from capscore.table import Table
from tellapart.data.examples import DataSet, Example
from tellapart.plugins import defined, place

Read = Callable[[Path, Path | None], DataSet]


@dataclass(frozen=True)
class Entry:
    """A line of the table: the module whose `read` knows the format, and what `tellapart prepare --help` says of it."""

    module: str
    description: str

    def load(self) -> Read:
        read: Any = defined(self.module, "read")

        def checked(source: Path, photos: Path | None = None) -> DataSet:
            made = read(source, photos)
            if not isinstance(made, DataSet) or not all(isinstance(example, Example) for example in made.examples):
                raise UserError(f"{place(self.module)}: `read` must return a DataSet of Examples, not {_kind(made)}.")
            return made

        return checked


def _kind(made: object) -> str:
    return "a DataSet of something else" if isinstance(made, DataSet) else f"a {type(made).__name__}"


READERS = Table(
    "reader",
    {
        "karpathy": Entry(
            "tellapart.data.readers.karpathy",
            "dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json with Karpathy's splits",
        ),
        "coco": Entry(
            "tellapart.data.readers.coco",
            "COCO annotations such as captions_val2014.json, or a folder with several of them",
        ),
        "flickr": Entry(
            "tellapart.data.readers.flickr",
            "Flickr8k.token.txt, results_20130124.token, or captions as CSV (captions.txt, results.csv)",
        ),
        "nocaps": Entry(
            "tellapart.data.readers.nocaps",
            "nocaps_val_4500_captions.json; the splits are its domains: in, near, out",
        ),
        "conceptual": Entry(
            "tellapart.data.readers.conceptual",
            "Conceptual Captions (TSV: caption, URL) with photos that you have; nothing is fetched",
        ),
        "concadia": Entry(
            "tellapart.data.readers.concadia",
            "Concadia's wiki_split.json; descriptions are a second text (`evaluate --text descriptions`)",
        ),
        "msrvtt": Entry(
            "tellapart.data.readers.msrvtt",
            "videodatainfo_2016.json of MSR-VTT, or a folder with its parts; the papers' splits",
        ),
        "msvd": Entry(
            "tellapart.data.readers.msvd",
            "video_corpus.csv or AllVideoDescriptions.txt of MSVD; English; the papers' splits",
        ),
        "imagecode": Entry(
            "tellapart.data.readers.imagecode",
            "ImageCoDe's descriptions of neighbouring frames of MSR-VTT clips; the frames are cut anew (approximate)",
        ),
        "folder": Entry(
            "tellapart.data.readers.folder",
            "a folder of photos and clips with the folders in it; no captions",
        ),
    },
    Entry,
)
