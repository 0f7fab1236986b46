"""tellapart lookalikes: which photos of a collection look alike, and which are the same."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from capscore.errors import UserError
from capscore.printable import counted, print_message, print_row
from tellapart.commands.arguments import DEVICE, Parser, between, number
from tellapart.neighbours.groups import embedded_thresholds

if TYPE_CHECKING:
    from tellapart.neighbours.collection import Collection
    from tellapart.neighbours.groups import Calibrated, Groups

_SUFFIXES = (".json", ".json.gz", ".html")


def parser() -> Parser:
    alike, duplicates = embedded_thresholds()
    return Parser(
        "lookalikes",
        "Find the photos that look like each photo of a collection, within its split.  A photo may have none:\n"
        "only photos that are similar enough count.\n"
        "Exact copies (same bytes) and near-duplicates (edits, bursts) are not look-alikes.  They form sets, and a\n"
        "set has one row, that of its first photo.\n"
        "Prints FILE<TAB>KIND<TAB>OTHER FILE<TAB>SIMILARITY lines (kind: look-alike, near-duplicate, exact copy), or\n"
        "writes the groups to --out.  Exit 1: some photos could not be used; each is reported with the reason, also\n"
        "in the output (kind: error, with the reason in place of OTHER FILE).",
        "tellapart lookalikes holiday/ --out sheet.html",
        f"""
        DATA...          a data file, or folders of photos
        --k N=5          maximum number of look-alikes per photo
        --by image|caption=image  image: nearest by image embedding (default); caption: nearest by how well their
                         captions fit the photo
        --metric cosine|euclidean=cosine  how image embeddings are compared (default: cosine); with euclidean,
                         SIMILARITY is the distance
        --retriever R    a retriever or an encoder from `tellapart models`, or a folder (default: the embedded
                         retriever)
        --split NAME     only this split of a data file (default: each split separately)
        --duplicates-above T  photos with a cosine above T are near-duplicates; 1: none (default: as measured for the
                         encoder, {duplicates:g} for the embedded one)
        --alike-above T  least cosine of look-alikes (with euclidean: greatest distance); none: always the K nearest
                         (default: as measured for the retriever, {alike:g} for the embedded one; for others, the value
                         that 0.5% of the collection's pairs reach)
        --captions F     captions for the contact sheet: a file of `tellapart caption --out` (default: those of DATA)
        --out F          write groups (F.json, F.json.gz) or a contact sheet (F.html)
        --most N=100     maximum rows of the contact sheet
        {DEVICE}
        """,
        duplicates_above=between(-1, 1),
        alike_above={"type": _threshold, "default": argparse.SUPPRESS},  # None is an answer
    )


def _threshold(text: str) -> float | None:
    """A cosine or a distance, or no threshold."""
    return None if text == "none" else number(text, -1, 1e9)


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    if request.out and not request.out.name.endswith(_SUFFIXES):
        raise UserError(f"--out {request.out}: the name must end in .json, .json.gz or .html.")

    from capscore import caption_files, files
    from tellapart.neighbours.collection import captions_of, collect, group, source
    from tellapart.neighbours.groups import Rule, save
    from tellapart.neighbours.mining import LARGE
    from tellapart.neighbours.search import has_index
    from tellapart.neighbours.sheet import write_sheet

    if request.by == "caption" and request.metric != "cosine":
        raise UserError("--metric euclidean needs --by image; captions and photos are compared by cosine.")
    if request.out and files.real(request.out) in [files.real(Path(path)) for path in request.data]:
        raise UserError(f"--out {request.out}: this is an input; choose another name.")
    if request.out and files.is_folder(request.out):
        raise UserError(f"--out {request.out}: this is a folder; name a file.")
    if request.captions and not (request.out and request.out.suffix == ".html"):
        raise UserError("--captions is for the contact sheet; it needs --out F.html.")
    alike_above: float | Calibrated | None = getattr(request, "alike_above", "calibrated")
    if request.metric == "cosine" and isinstance(alike_above, float) and alike_above > 1:
        raise UserError(f"--alike-above {alike_above:g}: a cosine is a number from -1 to 1.")
    broken: list[str] = []
    texts = caption_files.read(request.captions, broken).by_id if request.captions else None
    collection = collect(request.data, request.split)
    compared = [example.captions if request.by == "caption" else [""] for example in collection.examples]
    if sum(map(len, compared)) > LARGE and not has_index():
        print_message(
            "so many are compared one by one, which takes hours: `pip install 'tellapart[index]'` is quicker."
        )
    captions = captions_of(collection, texts)  # before the photos are read: a wrong file should not cost an hour
    groups = group(
        collection,
        source(request.retriever, request.device),
        Rule(request.by, request.metric, request.k),
        duplicates_above="calibrated" if request.duplicates_above is None else request.duplicates_above,
        alike_above=alike_above,
    )
    if request.out is None:
        _print(groups)
    elif request.out.suffix == ".html":
        shown, rows = write_sheet(groups, request.out, most=request.most, captions=captions)
        more = "; --most shows more" if shown < rows else ""
        print_message(f"{request.out}: {shown} of {rows} rows of look-alikes and duplicates{more}")
    else:
        save(groups, request.out)
    unusable = [f"{file}: {reason}" for file, reason in groups.failed.items()]
    for line in [*broken, *collection.problems, *unusable, *_summary(groups, collection)]:
        print_message(line)
    return 1 if groups.failed or collection.problems or broken else 0


def _print(groups: Groups) -> None:
    for first, *others in groups.rows():
        file = groups.photos[first].file
        for position in others:
            near = groups.near_duplicate_of(position, [first, *others])
            kind, similarity = ("exact copy", "1") if near is None else ("near-duplicate", f"{near:.4f}")
            print_row(file, kind, groups.photos[position].file, similarity)
        for position, nearness in groups.look_alikes(first):
            print_row(file, "look-alike", groups.photos[position].file, f"{nearness:.4f}")
    for file, reason in groups.failed.items():
        print_row(file, "error", reason, "")


def _summary(groups: Groups, collection: Collection) -> list[str]:
    """Sentences on what was found, what was left out, and why."""
    from tellapart.neighbours.search import MEASURED_ON

    count, rule, sets = len(groups), groups.rule, groups.sets()
    number_of = (groups.indices >= 0).sum(1)
    full, none = int((number_of == rule.k).sum()), int((number_of == 0).sum())
    limit = "distance up to" if rule.metric == "euclidean" else "cosine from"
    which = "" if rule.alike_above is None else f" that are similar enough ({limit} {rule.alike_above:.3g})"
    exact = sum(of_set.exact for of_set in sets)
    splits: dict[str, set[str]] = {}
    for photo in groups.photos:
        splits.setdefault(photo.sha256, set()).add(photo.split)
    shared = sum(len(splits[photo.sha256]) > 1 for photo in groups.photos)
    above = f"cosine above {rule.duplicates_above:g}"
    silent = sum(not e.captions for e in collection.examples if str(e.file) not in groups.failed)
    lines = [f"{counted(count, 'photo')}; {_share(full, count)} have {rule.k} look-alikes by {rule.retriever}"]

    def add(number: int, what: str, of: int = count) -> None:
        if number:
            lines.append(f"{_share(number, of)} {what}")

    add(count - full - none, f"have fewer: their split has no more other photos{which}")
    add(none, f"have none: beside duplicates their split has no other photos{which}")
    add(len(groups.copies), "have exact copies, which are left out")
    lines += [f"{counted(exact, 'set')} of exact copies"] if exact else []
    lines += [f"{counted(len(sets) - exact, 'set')} of near-duplicates, such as bursts"] if len(sets) > exact else []
    add(shared, "have an exact copy in another split")
    add(len(groups.near_duplicates), f"have near-duplicates ({above}), which are left out")
    add(silent if rule.by == "caption" else 0, "have no caption and so cannot be look-alikes")
    add(len(groups.failed), "could not be used", len(collection.examples))
    if groups.recall is not None:
        lines.append(f"found by an index: recall {groups.recall:.3f}, measured on {MEASURED_ON} photos")
    return lines


def _share(number: int, count: int) -> str:
    return f"{number} ({number / max(count, 1):.1%})"
