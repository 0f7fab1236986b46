"""`tellapart prepare`: a data set as its authors publish it, into the one schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from capscore.errors import UserError
from capscore.files import is_file
from capscore.printable import counted, first_few, print_problems, print_row
from tellapart.commands.arguments import Parser
from tellapart.data.examples import DataSet, clean, file_of, write
from tellapart.data.items import KIND_OF
from tellapart.data.readers import READERS
from tellapart.data.readers.photos import SPLITS, with_splits


def parser() -> Parser:
    width = max(map(len, READERS))
    formats = "\n".join(f"  {name:<{width}}  {entry.description}" for name, entry in READERS.items())
    parser = Parser(
        "prepare",
        f"Convert a data set to the JSON format that all other commands read.\n\nformats:\n{formats}",
        "tellapart prepare karpathy dataset_coco.json --photos coco/ --out coco.json",
        """
        FORMAT           one of the formats above
        SOURCE...        the file or folder to read; several parts of one data set, such as train and val, become one
                         file
        --out DATA.json!  output file (or .json.gz)
        --photos DIR     folder of photos or clips (default: near SOURCE)
        """,
        format={"choices": READERS},
        source=Path,
        out=Path,
    )
    return parser.options(
        """
        --split NAME     assign all photos to this split
        --split-file LIST...  lists of photo names, one per line; the file name gives the split (trainImages.txt,
                         val.txt ...)
        """,
        exclusive=True,
        split_file={"type": Path, "action": "extend", "default": []},
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    for source in request.source:
        if is_file(request.out) and is_file(source) and request.out.samefile(source):
            raise UserError(f"{request.out}: --out would overwrite the source.")
    read = READERS[request.format].load()
    dataset = joined({source: read(source, request.photos) for source in request.source})
    if request.split is not None:
        dataset = replace(dataset, examples=[replace(e, split=clean(request.split)) for e in dataset.examples])
    if request.split_file:
        dataset = with_splits(dataset, request.split_file)
    write(dataset, request.out)

    code = print_problems(dataset.problems + missing_photos(dataset))
    print_row(f"{request.out}: {summary(dataset)}")
    return code


def joined(parts: Mapping[Path, DataSet]) -> DataSet:
    """Parts of one data set, by their sources, as a whole."""
    (first, whole), *others = parts.items()
    owners = {str(example.id): first for example in whole.examples}
    for source, part in others:
        if (part.name, part.kind) != (whole.name, whole.kind):
            raise UserError(f"{first} and {source} are not parts of one data set: {whole.name} and {part.name}.")
        for example in part.examples:
            if (owner := owners.setdefault(str(example.id), source)) != source:
                raise UserError(f"{owner} and {source} both have a photo with the id {example.id!r}.")
        examples, problems = [*whole.examples, *part.examples], [*whole.problems, *part.problems]
        whole = replace(whole, examples=examples, problems=problems)
    return whole


def missing_photos(dataset: DataSet) -> list[str]:
    """At most one sentence: a data set with photos in other folders would fill the screen otherwise."""
    missing = [str(example.file) for example in dataset.examples if not is_file(file_of(example.file))]
    if not missing:
        return []
    count = f"{len(missing):,} of {counted(len(dataset.examples), thing(dataset))}"
    hint = "; --photos DIR says where they are" if len(missing) == len(dataset.examples) else ""
    return [f"{count} cannot be found: {first_few(missing)}{hint}."]


def summary(dataset: DataSet) -> str:
    """8,829 photos, 44,175 captions (6,329 train, 500 val, 2,000 test)."""
    photos = Counter(example.split for example in dataset.examples)
    captions = sum(len(example.captions) for example in dataset.examples)
    order = list(dict.fromkeys(SPLITS.values()))  # train, val, test, then all others
    splits = sorted(photos, key=lambda split: (order.index(split) if split in order else len(order), split))
    by_split = ", ".join(f"{photos[split]:,} {split or 'without a split'}" for split in splits)
    return (
        f"{counted(len(dataset.examples), thing(dataset))}, {counted(captions, 'caption')} ({by_split or 'no splits'})"
    )


def thing(dataset: DataSet) -> str:
    return KIND_OF[dataset.kind].removesuffix("s")
