"""Photos that must not be learned from, in any data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tellapart.data import examples as data_files
from tellapart.data.examples import DataSet, Example
from tellapart.data.tokenizers import split_words

Which = Callable[[Example], bool]


class Exclusion:
    """Photos that a run must not learn from, such as those that another one is judged by.

    The same photo is known by its id in a data set of the same name, or by its file's name; and, because data sets
    name their photos differently, by two captions that they share.

    which  of the photos of these data sets; all unless it is given
    """

    def __init__(self, sets: Iterable[DataSet], which: Which = lambda example: True):
        self._names, self._captions = set[str](), set[str]()
        for dataset in sets:
            for example in filter(which, dataset.examples):
                self._names |= _names(example, dataset.name)
                self._captions.update(map(_same, example.captions))

    @classmethod
    def of_files(cls, files: Iterable[str], which: Which = lambda example: True) -> Exclusion:
        return cls((data_files.read(Path(file), needs_files=False) for file in files), which)

    def has(self, example: Example, dataset: str) -> bool:
        if not self._names.isdisjoint(_names(example, dataset)):
            return True
        captions = set(map(_same, example.captions))
        return len(captions & self._captions) >= min(2, max(len(captions), 1))


def _names(example: Example, dataset: str) -> set[str]:
    names = {f"{dataset}:{example.id}"} | ({example.file.stem} if example.file.name else set())
    return names | ({Path(example.id).stem} if isinstance(example.id, str) else set())


def _same(caption: str) -> str:
    return " ".join(split_words(caption))
