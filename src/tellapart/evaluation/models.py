"""Models as a user names them, splits of data sets on which they are compared, and each model's captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np

from capscore import caption_files, files
from capscore.errors import UserError
from capscore.printable import first_few
from tellapart.album import EMBEDDED
from tellapart.data import items
from tellapart.data.examples import Example, clean
from tellapart.models import members

HUMAN = "human"
_FILES = (".json", ".jsonl", ".csv")
_SHOWN = 5  # ids that a message lists
_SEED = 0  # of photos that are drawn


@dataclass(frozen=True)
class Model:
    source: str  # as the user named it
    name: str  # of its row
    kind: Literal["captioner", "file", "human"]
    recipe: str = ""  # what it and others are runs of, which have a row together


def models(sources: Sequence[str]) -> list[Model]:
    """Each with the shortest name that no other could have: its file's or folder's, longer where that is not enough.

    A,B,C are runs of one recipe, which is called by what their names begin with.
    """
    runs = [[text] if "," not in text or files.is_file(Path(text)) else text.split(",") for text in sources]
    for text, together in zip(sources, runs, strict=True):
        if len(together) > 1 and not all(together):
            raise UserError(f"{text}: a run has no name before or after a comma.")
    named = _named([text for together in runs for text in together])
    names, left = {model.name for model in named}, iter(named)
    result: list[Model] = []
    for together in runs:
        of_recipe = [next(left) for _ in together]
        if len(of_recipe) > 1:
            columns = zip(*(model.name for model in of_recipe), strict=False)
            alike = takewhile(lambda letters: len(set(letters)) == 1, columns)
            recipe = "".join(letters[0] for letters in alike).rstrip("0123456789_-. ")
            recipe = recipe if recipe and recipe not in names else ",".join(model.name for model in of_recipe)
            names.add(recipe)
            of_recipe = [replace(model, recipe=recipe) for model in of_recipe]
        result += of_recipe
    return result


def _named(sources: Sequence[str]) -> list[Model]:
    real = [text if _is_named(text) else str(files.real(Path(text))) for text in sources]
    if twice := next((text for text, path in zip(sources, real, strict=True) if real.count(path) > 1), None):
        raise UserError(f"{twice} is named twice.")
    candidates = [_names(text) for text in sources]
    times = Counter(name for names in candidates for name in set(names))
    return [
        Model(text, next((name for name in names if times[name] == 1), text), _kind(text))
        for text, names in zip(sources, candidates, strict=True)
    ]


def _is_named(source: str) -> bool:
    return source == HUMAN or source in EMBEDDED


def _names(source: str) -> list[str]:
    """Possible names of a model, from short to long."""
    if _is_named(source):
        return [source]
    if _kind(source) == "captioner" and len(together := members(source)) > 1:
        of_members = [_names(member) for member in together]
        longest = max(map(len, of_members))
        return ["+".join(names[min(i, len(names) - 1)] for names in of_members) for i in range(longest)]
    parts = files.real(Path(source)).parts[1:]
    longer = ["/".join(parts[-length:]) for length in range(1, len(parts) + 1)]
    return [Path(parts[-1].removesuffix(".gz")).stem, *longer] if _kind(source) == "file" else longer


def _kind(source: str) -> Literal["captioner", "file", "human"]:
    if source == HUMAN:
        return "human"
    is_file = Path(source.removesuffix(".gz")).suffix in _FILES and not _is_named(source)
    return "file" if is_file else "captioner"


@dataclass(frozen=True)
class Split:
    """Photos of a data set on which models are compared."""

    name: str  # of the data set
    source: str  # as the user named it
    photos: list[Example]
    problems: list[str]  # records that cannot be used

    def without(self, broken: Mapping[str, str]) -> Split:
        """Without the photos of these files, which cannot be read for the reasons given."""
        left = [photo for photo in self.photos if str(photo.file) not in broken]
        if not left:
            file, why = next(iter(broken.items()))
            raise UserError(f"{self.source}: none of its photos can be read; the first is {file}: {why}")
        sentences = [f"{file}: {why}" for file, why in broken.items()]
        return replace(self, photos=left, problems=[*self.problems, *sentences])

    def some(self, count: int) -> Split:
        """At most so many photos, drawn by a seed, in the order of the data."""
        chosen = np.random.default_rng(_SEED).permutation(len(self.photos))[:count]
        return replace(self, photos=[self.photos[place] for place in sorted(chosen.tolist())])


def splits(sources: Sequence[str], split: str, text: str = "") -> list[Split]:
    """The photos of each data set; a folder of photos is one, without references.

    sources  DATA.json:NAME is a split of its own, such as a domain of nocaps
    text     the key of another kind of text that stands for the captions
    """
    parts = []
    for path in sources:
        source, colon, part = path.rpartition(":")
        if not colon or not items.is_data_file(source) or files.is_file(Path(path)):
            source, part = path, ""
        if not files.is_folder(Path(source)) and not items.is_data_file(source):
            raise UserError(f"{source}: --data takes a data file (DATA.json) or a folder of photos.")
        opened = items.open_path(source, split=part or split)
        examples = _by_text(opened.examples, text, source) if text else opened.examples
        parts.append(Split(f"{opened.name} {part}" if part else opened.name, source, examples, opened.problems))
    name, times = Counter(part.name for part in parts).most_common(1)[0]
    if times > 1:
        both = " and ".join(part.source for part in parts if part.name == name)
        raise UserError(f'{both} are both called {name!r}; results go by that name ("dataset" in the file).')
    return parts


def _by_text(examples: Sequence[Example], key: str, source: str) -> list[Example]:
    """Examples with the texts that they have under another key as captions."""
    result = []
    for example in examples:
        value = example.captions if key == "captions" else example.extra.get(key, ())
        texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
        cleaned = (clean(text) for text in texts if isinstance(text, str))
        result.append(replace(example, captions=tuple(filter(None, cleaned))))
    if not any(example.captions for example in result):
        raise UserError(f"{source}: --text {key}: no photo has a text under this key.")
    return result


@dataclass(frozen=True)
class ModelCaptions:
    """One model's captions of a split.

    of_photo   photo -> its captions: one, or all references of people
    of_people  the captions are the references themselves
    """

    model: Model
    of_photo: dict[int, list[str]]
    of_people: bool = False

    def first(self, photo: int) -> str:
        return self.of_photo[photo][0]


def by_people(model: Model, split: Split) -> ModelCaptions:
    references = {row: list(photo.captions) for row, photo in enumerate(split.photos) if photo.captions}
    return ModelCaptions(model, references, of_people=True)


def from_file(model: Model, split: Split) -> ModelCaptions:
    """The first caption of each id of the split that the file has."""
    read = caption_files.read(model.source)
    of_files = {caption_files.place(str(photo.file)): str(photo.id) for photo in split.photos}
    of_ids = {str(photo.id): row for row, photo in enumerate(split.photos)}
    ids = caption_files.photos_meant(read.by_id, of_ids, of_files)
    of_photo: dict[int, list[str]] = {}
    for name, texts in read.by_id.items():
        row = of_ids[ids[name]] if name in ids else None
        if row is not None and texts:
            if row in of_photo:
                raise UserError(f"{model.source}: two of its captions are of one photo of {split.source}: {name!r}.")
            of_photo[row] = texts[:1]
    return ModelCaptions(model, of_photo)


def taking_part(
    captions: Sequence[ModelCaptions], split: Split, *, alone: bool
) -> tuple[list[ModelCaptions], list[int], list[str]]:
    """The models that can be compared on a split, the photos that all of them captioned, and sentences on the others.

    Ids of two data sets may be alike by chance, so where there are several (not `alone`), a model has to caption half
    of the photos to be a row.
    """
    photos, problems, kept = len(split.photos), [], []
    for model in captions:
        name, count = model.model.source, len(model.of_photo)
        if count == 0 or (not alone and 2 * count < photos):
            problems.append(f"{name}: has captions of {count} of the {photos} photos of {split.name}; left out.")
            continue
        kept.append(model)
        if missing := [repr(photo.id) for row, photo in enumerate(split.photos) if row not in model.of_photo]:
            what, ids = "reference" if model.of_people else "caption", first_few(missing, _SHOWN)
            problems.append(
                f"{name}: no {what} for {len(missing)} photos of {split.name}: {ids}; all are measured without them."
            )
    common = sorted(set.intersection(*(set(model.of_photo) for model in kept))) if kept else []
    if kept and not common:
        raise UserError(f"{split.source} has no photo with captions of all of them.")
    return kept, common, problems
