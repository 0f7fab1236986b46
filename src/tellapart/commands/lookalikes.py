"""tellapart lookalikes: which photos of a collection look alike, and which are the same."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.commands.arguments import Parser, positive
from tellapart.errors import UserError
from tellapart.printable import print_message, print_row

if TYPE_CHECKING:
    from tellapart.neighbours.collection import Collection
    from tellapart.neighbours.groups import Groups

_SUFFIXES = (".json", ".json.gz", ".html")


def parser() -> Parser:
    parser = Parser(
        "lookalikes",
        "Find the photos that look most like each photo of a collection, within its split.\n"
        "Exact copies (same bytes) and near-duplicates are told apart from look-alikes and not counted among them.\n"
        "Prints FILE<TAB>KIND<TAB>OTHER FILE<TAB>SIMILARITY lines (kind: look-alike, near-duplicate, exact copy), or\n"
        "writes the groups to --out.  Exit 1: some photos could not be used; each is named with its reason.",
        "tellapart lookalikes holiday/ --out sheet.html",
    )
    parser.add_argument("data", metavar="DATA", nargs="+", help="a data file, or folders of photos")
    parser.add_argument("--k", type=positive, default=5, help="look-alikes of a photo (default: 5)")
    parser.add_argument(
        "--by",
        choices=("image", "caption"),
        default="image",
        help="image: photos whose vectors are nearest (default); caption: photos one of whose captions fits best",
    )
    parser.add_argument(
        "--metric",
        choices=("cosine", "euclidean"),
        default="cosine",
        help="how vectors of photos are compared (default: cosine); with euclidean, SIMILARITY is the distance",
    )
    parser.add_argument(
        "--retriever",
        metavar="R",
        help="a retriever or an encoder from `tellapart models`, or a folder (default: the embedded retriever)",
    )
    parser.add_argument("--split", metavar="NAME", help="only this part of a data file (default: each part by itself)")
    parser.add_argument(
        "--duplicates-above",
        metavar="T",
        type=_cosine,
        help="photos with a cosine above T are near-duplicates; 1: none are (default: 0.95)",
    )
    parser.add_argument("--out", metavar="F", type=Path, help="groups: F.json, F.json.gz; contact sheet: F.html")
    parser.add_argument(
        "--most", metavar="N", type=positive, default=100, help="rows of the contact sheet (default: 100)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")
    return parser


def _cosine(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -2.0
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a number from -1 to 1, not {text!r}")
    return value


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    if request.out and not request.out.name.endswith(_SUFFIXES):
        raise UserError(f"--out {request.out}: the name must end in .json, .json.gz or .html.")

    from tellapart import files
    from tellapart.neighbours.collection import DUPLICATES_ABOVE, collect, group
    from tellapart.neighbours.groups import Rule, save
    from tellapart.neighbours.sheet import write_sheet
    from tellapart.neighbours.vectors import source

    if request.by == "caption" and request.metric != "cosine":
        raise UserError("--metric euclidean is for --by image: a caption and a photo are compared by the cosine.")
    if request.out and files.real(request.out) in [files.real(Path(path)) for path in request.data]:
        raise UserError(f"--out {request.out}: this is what is to be read; choose another name.")
    if request.out and files.is_folder(request.out):
        raise UserError(f"--out {request.out}: this is a folder; give the name of a file.")
    collection = collect(request.data, request.split)
    above = DUPLICATES_ABOVE if request.duplicates_above is None else request.duplicates_above
    rule = Rule(request.by, request.metric, request.k, above)
    groups = group(collection, source(request.retriever, request.device), rule)
    if request.out is None:
        _print(groups)
    elif request.out.suffix == ".html":
        shown = write_sheet(groups, request.out, most=request.most)
        more = "; --most shows more" if shown == request.most < len(groups) else ""
        print_message(f"{request.out}: {shown} of {len(groups)} photos have a row{more}")
    else:
        save(groups, request.out)
    for line in [*collection.problems, *_summary(groups, collection)]:
        print_message(line)
    return 1 if groups.failed or collection.problems else 0


def _print(groups: Groups) -> None:
    for group in groups:
        lines = [(file, "exact copy", "1") for file in group.copies]
        lines += [(other.file, "near-duplicate", f"{other.similarity:.4f}") for other in group.near_duplicates]
        lines += [(other.file, "look-alike", f"{other.similarity:.4f}") for other in group.look_alikes]
        for other, kind, similarity in lines:
            print_row(group.file, kind, other, similarity)


def _summary(groups: Groups, collection: Collection) -> list[str]:
    """What was found, what was left out, and why."""
    count, rule = len(groups), groups.rule
    have = (groups.indices >= 0).sum(1)
    full, none = int((have == rule.k).sum()), int((have == 0).sum())
    lines = [f"{count} photos; {_share(full, count)} have {rule.k} look-alikes by {rule.retriever}"]
    if count - full - none:
        lines.append(f"{_share(count - full - none, count)} have fewer: there are no more other photos in their split")
    if none:
        lines.append(f"{_share(none, count)} have none: their split has no other photo to compare that is no duplicate")
    if groups.copies:
        lines.append(f"{_share(len(groups.copies), count)} have exact copies, which are left out")
    splits: dict[str, set[str]] = {}
    for photo in groups.photos:
        splits.setdefault(photo.sha256, set()).add(photo.split)
    if shared := sum(len(splits[photo.sha256]) > 1 for photo in groups.photos):
        lines.append(f"{_share(shared, count)} have an exact copy in another split")
    if groups.near_duplicates:
        found = _share(len(groups.near_duplicates), count)
        lines.append(f"{found} have near-duplicates (cosine above {rule.duplicates_above:g}), which are left out")
    if rule.by == "caption":
        silent = sum(not e.captions for e in collection.examples if str(e.file) not in groups.failed)
        if silent:
            lines.append(f"{_share(silent, count)} have no caption and so are nobody's look-alikes")
    if groups.failed:
        lines.append(f"{_share(len(groups.failed), len(collection.examples))} could not be used")
    if groups.recall is not None:
        from tellapart.neighbours.index import MEASURED_ON

        lines.append(f"found by an index: recall {groups.recall:.3f}, measured on {MEASURED_ON} photos")
    return lines


def _share(number: int, count: int) -> str:
    return f"{number} ({number / max(count, 1):.1%})"
