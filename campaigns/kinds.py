"""What is fuzzed: for each kind of file, valid ones, and the code that reads them.

A reader may do two things with a file: take it, or raise a `UserError` of one line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaigns import binary, mutate, text

Mutate = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Kind:
    """seeds  writes valid files into a folder; read  takes one of them, of the same name
    plant   a fault, and what it is called
    share   how many of the inputs are of this kind; two thirds are photos
    needs   a module that is imported once, and not in each process
    folder  the other files, whole, are beside it"""

    name: str
    seeds: Callable[[Path], None]
    read: Callable[[Path], object]
    mutate: Mutate = mutate.of_bytes
    plant: tuple[str, Callable[[], None]] | None = None
    share: int = 1
    needs: str = "tellapart.data.examples"
    folder: bool = False


def _by_content(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return (mutate.of_json if data[:1] in (b"{", b"[") else mutate.of_bytes)(draw, data, others)


_OF_PHOTOS = ("what decoders raise is not explained", binary.bare_photos)
_OF_XMP = ("broken XML is not explained", text.bare_sidecars)
_OF_SETTINGS = ("a removed check of settings", binary.any_settings)
_OF_GRAPHS = ("a damaged graph is not explained", binary.any_graph)
_OF_YAML = ("broken YAML is not explained", text.bare_yaml)
_OF_STORES = ("a store's journal unchecked", binary.any_journal)
_MEDIA, _WRITING, _RECIPES = "tellapart.data.media.identity", "tellapart.desk.alt", "tellapart.commands.train"

KINDS = (
    Kind("photos", binary.photos, binary.read_photo, mutate.of_bytes, _OF_PHOTOS, 48, _MEDIA),
    Kind("photos that are written into", binary.writable_photos, binary.read_metadata, share=12, needs=_WRITING),
    Kind("clips", binary.clips, binary.read_clip, plant=("a removed limit of clips", binary.unbounded_clips), share=2),
    Kind("data files", text.data, text.read_data, mutate.of_json, ("JSON without checks", text.bare_json), 3),
    Kind("caption files", text.captions, text.read_captions, mutate.of_json, share=3, needs="tellapart.desk.resume"),
    Kind("tables", text.tables, text.read_table, mutate.of_text, ("a removed check of bytes", text.any_text), 2),
    Kind("other data sets", text.readers, text.read_reader, mutate.of_json, share=2),
    Kind("groups", text.groups, text.read_groups, mutate.of_json, needs="tellapart.neighbours.groups"),
    Kind("studies", text.studies, text.read_study, mutate.of_json, needs="tellapart.study.folder"),
    Kind("sidecars", text.sidecars, text.read_sidecar, mutate.of_text, _OF_XMP, 3, _WRITING),
    Kind("pages", text.pages, text.read_page, mutate.of_text, needs=_WRITING),
    Kind("journals of write", text.journals, text.read_journal, mutate.of_json, needs=_WRITING),
    Kind("model folders", binary.model, binary.read_model, _by_content, _OF_SETTINGS, 2, "tellapart.models", True),
    Kind("ONNX", binary.graphs, binary.read_graph, mutate.of_bytes, _OF_GRAPHS, 2, "tellapart.detectors.yolox"),
    Kind("stores", binary.stores, binary.read_store, _by_content, _OF_STORES, 2, "tellapart.features.extracted", True),
    Kind("region archives", binary.archives, binary.read_archive, share=2, needs="tellapart.features.importing"),
    Kind("document frequencies", binary.frequencies, binary.read_frequencies, needs="capscore.ngrams"),
    Kind("recipes", text.recipes, text.read_recipe, mutate.of_text, _OF_YAML, 2, _RECIPES),
)
