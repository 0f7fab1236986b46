"""Readers: data sets as their authors publish them, into the one schema.

A new format is a function `read(source, photos) -> DataSet` and a line in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capscore.errors import UserError
from capscore.measures import Table
from tellapart.data.examples import DataSet, Example
from tellapart.plugins import defined, place

Read = Callable[[Path, Path | None], DataSet]


@dataclass(frozen=True)
class Entry:
    """A line of the table: the function that reads the format, and what `tellapart prepare --help` says of it."""

    module: str
    description: str
    function: str = "read"

    def load(self) -> Read:
        read: Any = defined(self.module, self.function)

        def checked(source: Path, photos: Path | None = None) -> DataSet:
            dataset = read(source, photos)
            if isinstance(dataset, DataSet) and all(isinstance(example, Example) for example in dataset.examples):
                return dataset
            kind = "DataSet of something else" if isinstance(dataset, DataSet) else type(dataset).__name__
            raise UserError(f"{place(self.module)}: `{self.function}` must return a DataSet of Examples, not a {kind}.")

        return checked


_JSON, _TEXT = "tellapart.data.readers.annotations", "tellapart.data.readers.lines"
READERS = Table(
    "reader",
    {
        "karpathy": Entry(
            _JSON,
            "dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json with Karpathy's splits",
            "read_karpathy",
        ),
        "coco": Entry(
            _JSON, "COCO annotations such as captions_val2014.json, or a folder with several of them", "read_coco"
        ),
        "flickr": Entry(
            _TEXT,
            "Flickr8k.token.txt, results_20130124.token, or captions as CSV (captions.txt, results.csv)",
            "read_flickr",
        ),
        "nocaps": Entry(
            _JSON, "nocaps_val_4500_captions.json; the splits are its domains: in, near, out", "read_nocaps"
        ),
        "conceptual": Entry(
            _TEXT,
            "Conceptual Captions (TSV: caption, URL) with photos that you have; nothing is fetched",
            "read_conceptual",
        ),
        "concadia": Entry(
            _JSON,
            "Concadia's wiki_split.json; descriptions are a second text (`evaluate --text descriptions`)",
            "read_concadia",
        ),
        "msrvtt": Entry(
            _JSON, "videodatainfo_2016.json of MSR-VTT, or a folder with its parts; the papers' splits", "read_msrvtt"
        ),
        "msvd": Entry(
            _TEXT, "video_corpus.csv or AllVideoDescriptions.txt of MSVD; English; the papers' splits", "read_msvd"
        ),
        "folder": Entry(
            "tellapart.data.readers.folder", "a folder of photos and clips with the folders in it; no captions"
        ),
    },
    Entry,
)
