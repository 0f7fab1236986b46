"""tellapart lint: faults of captions that accessibility checkers flag."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from capscore.errors import UserError
from capscore.printable import counted, print_message, print_row
from tellapart.commands.arguments import Parser

if TYPE_CHECKING:
    from tellapart.desk.lint import Finding, Shared

_NEAREST = 5  # photos that count as the look-alikes of one


def parser() -> Parser:
    from tellapart.desk.lint import RULES

    width = max(map(len, RULES))
    listed = "".join(f"  {name:<{width}}  {meaning}\n" for name, meaning in RULES.items())
    return Parser(
        "lint",
        "Check captions and alt texts for what accessibility checkers flag:\n"
        "\n"
        f"{listed}"
        "\n"
        "Prints FILE<TAB>RULE<TAB>CAPTION lines, and the number of each rule on stderr.\n"
        "Exit 0: nothing found; 1: something found, or unreadable photos; 2: wrong arguments.",
        "tellapart lint captions.jsonl --among holiday/ --ignore one-word,opening",
        """
        CAPTIONS      {id: caption}, COCO results [{image_id, caption}], or a file of `tellapart caption --out`
        --among PATH  the photos, as a folder or DATA.json: reports photos without a caption, allows exact copies to
                      share one, and reports look-alikes (by the default retriever) that share one separately
        --ignore A,B  rules to ignore
        --out F.json  write the findings to this file, with the pictures that share a caption
        """,
        ignore={"type": rules, "default": []},
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from capscore import caption_files, files
    from tellapart.desk.lint import check, shared_captions

    path = Path(request.captions)
    if request.out and files.real(request.out) == files.real(path):
        raise UserError(f"--out {request.out}: this is the input file; choose another name.")
    broken: list[str] = []
    read = caption_files.read(path, broken)
    captions = read.by_id
    missing = [name for name in read.failed if name not in captions]
    problems: list[str] = []
    shared = shared_captions(captions)
    if request.among:
        photos, problems = _photos_by_name(request.among, [*captions, *missing], path)
        missing = list(dict.fromkeys([*missing, *(name for name in photos if name not in captions)]))
        if shared:  # or nothing depends on what the photos show
            contents, neighbours, unread = _compare_photos(photos)
            shared = shared_captions(captions, contents=contents, neighbours=neighbours)
            problems += unread
    problems = broken + problems
    findings = [finding for finding in check(captions, shared, missing) if finding.rule not in request.ignore]
    if request.out:
        files.replace(request.out, _json(findings, shared), by_user=True)
    else:
        for finding in findings:
            print_row(finding.file, finding.rule, finding.caption)
    for problem in problems:
        print_message(problem)
    counts = [f"{count} {rule}" for rule, count in Counter(finding.rule for finding in findings).items()]
    number = len(captions) + len(missing)
    print_message(f"{counted(number, 'picture')}: {', '.join(counts) or 'nothing found'}")
    return 1 if findings or problems else 0


def rules(text: str) -> list[str]:
    """Names of rules, for --ignore."""
    from tellapart.desk.lint import RULES

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in RULES:
            raise argparse.ArgumentTypeError(f"there is no rule {name!r}; the rules are {', '.join(RULES)}")
    return names


def _photos_by_name(among: str, names: Iterable[str], source: Path) -> tuple[dict[str, str], list[str]]:
    """The files of the photos in `among` by what the captions call them: id, file, or path below the folder.

    A photo that the captions do not know goes by its file.  The second part: a sentence for each problem.
    """
    from tellapart.data.items import gather

    inputs, problems = gather([among])
    by_name = set(names)
    by_file = {_real(name): name for name in by_name}
    below = f"{Path(among)}/"
    photos = {}
    for photo in inputs:
        spellings = [str(photo.id), photo.file, photo.file.removeprefix(below)]
        name = next((name for name in spellings if name in by_name), by_file.get(_real(photo.file)))
        photos[name or photo.file] = photo.file
    if not by_name & photos.keys():
        raise UserError(f"{source} and {among} have no photo in common; captions must have the id or file of a photo.")
    return photos, problems


def _real(name: str) -> str:
    from capscore.files import real

    try:
        return str(real(Path(name)))
    except ValueError:  # an id may hold what no file's name can
        return name


def _compare_photos(photos: dict[str, str]) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """Each photo's content (by name), each content's look-alikes, and a sentence for each photo that cannot be read."""
    from tellapart.models import retrievers
    from tellapart.neighbours.search import nearest
    from tellapart.retrievers import retriever

    embedded = retriever.embed_photos(retrievers.load(), list(photos.values()))
    content_of = dict(zip(embedded.files, embedded.sha256, strict=True))
    # copies are no look-alikes: one of each content
    rows = {content: row for row, content in enumerate(embedded.sha256)}
    contents = list(rows)
    near = nearest(embedded.vectors[list(rows.values())], _NEAREST).indices
    neighbours = {content: [contents[row] for row in line] for content, line in zip(contents, near, strict=True)}
    problems = [f"{file}: {why}" for file, why in embedded.failed.items()]
    return {name: content_of[file] for name, file in photos.items() if file in content_of}, neighbours, problems


def _json(findings: list[Finding], shared: list[Shared]) -> bytes:
    content = {
        "counts": Counter(finding.rule for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "shared": [
            {"caption": next(iter(group.captions.values())), "files": group.files, "look_alikes": group.look_alikes}
            for group in shared
        ],
    }
    return (json.dumps(content, indent=1) + "\n").encode("ascii")
