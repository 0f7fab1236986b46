"""tellapart write: captions into XMP sidecars, text files or the photos themselves."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from capscore.errors import UserError
from capscore.printable import counted, print_message, print_row
from tellapart.commands.arguments import Parser
from tellapart.errors import BadPhoto

if TYPE_CHECKING:
    from tellapart.desk.write import Writer


def parser() -> Parser:
    parser = Parser(
        "write",
        "Write captions where photo programs read them: into XMP sidecars (dc:description,\n"
        "tiff:ImageDescription and the IPTC alt text), into text files, or into the photos' own metadata.\n"
        "What is there stays, byte for byte.  A photo that has a text by a person, in the photo or a sidecar, gets\n"
        "ours only with --replace; one that tellapart wrote is replaced by the next run.  Pictures are never changed.\n"
        "\n"
        "Each change is noted in CAPTIONS.journal first; --undo takes all of them back.\n"
        "Exit 1: some photos could not be written for; each is named with its reason.",
        "tellapart write captions.jsonl --dry-run",
    )
    parser.options("CAPTIONS   rows of `tellapart caption --out`: .jsonl or .csv", captions=Path)
    parser.options(
        """
        --xmp      XMP sidecars (default)
        --txt      a text file beside each photo
        --in-file  into JPEG, PNG and WebP files; RAW photos and files signed by C2PA are refused
        """,
        exclusive=True,
        **{name: {"dest": "kind", "action": "store_const", "const": name} for name in ("xmp", "txt")},
        in_file={"dest": "kind", "action": "store_const", "const": "in-file"},
    )
    return parser.options(
        """
        --name auto|file|stem=auto  file: photo.jpg.xmp; stem: photo.xmp; auto: what there is already, else
                   photo.jpg.xmp and photo.txt
        --replace  replace texts that people wrote, too
        --dry-run  print FILE<TAB>ACTION<TAB>CAPTION and write nothing
        --undo     restore the files as they were; of files that changed since, only our texts are taken out
        """
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    if request.undo:
        if request.kind or request.replace or request.name != "auto":
            raise UserError("--undo takes back all that was written, and takes no other option but --dry-run.")
        return _undo(request.captions, dry_run=request.dry_run)

    from tellapart.desk.write import Captions, Writer

    captions = Captions.read(request.captions)
    for problem in captions.problems:
        print_message(problem)
    writer = Writer(captions, request.kind or "xmp", naming=request.name, replace=request.replace)
    if request.dry_run:
        writer.journal.read()
        code = _run(writer, len(captions.rows), captions.failed, dry_run=True)
    else:
        with writer.journal.held():
            code = _run(writer, len(captions.rows), captions.failed, dry_run=False)
    return 1 if captions.problems else code


def _run(writer: Writer, number: int, without: int, *, dry_run: bool) -> int:
    from capscore.progress import Progress
    from tellapart.data.items import Unusable

    counts = Counter[str]()
    with Progress("photos", number) as bar:
        failed, kept = Unusable(bar.message), Unusable(bar.message)
        for planned in writer.run(dry_run=dry_run):
            bar.advance(1)
            if isinstance(planned, BadPhoto):
                failed.add(planned.file, planned.reason)
                continue
            if dry_run:
                print_row(str(planned.target), planned.action, planned.caption)
            counts[planned.action] += 1
            if planned.merged.kept:
                kept.add(planned.photo, f"keeps a person's text ({', '.join(planned.merged.kept)})")
        failed.rest()
        kept.rest()
    parts = [f"{counts['write']} {'to write' if dry_run else 'written'}", f"{counts['unchanged']} unchanged"]
    if len(kept):
        parts.append(f"{len(kept)} keep a person's text (--replace replaces it)")
    if counts["withdraw"]:
        done = "to withdraw" if dry_run else "withdrawn"
        parts.append(f"in {counts['withdraw']} of them our earlier text {done}")
    parts += [f"{len(failed)} could not be written for"] if len(failed) else []
    parts += [f"{counted(without, 'row')} without a caption"] if without else []
    print_message("; ".join(parts))
    return 1 if len(failed) else 0


def _undo(path: Path, *, dry_run: bool) -> int:
    from tellapart.desk.write import Captions, Journal

    journal = Journal(path)
    if not journal.path.exists():
        raise UserError(f"{journal.path}: there is no such file, so there is nothing to undo.")
    captions = Captions(path)
    with suppress(UserError):  # what was written can be taken back without them, too
        captions = Captions.read(path)
    with nullcontext() if dry_run else journal.held():
        if dry_run:
            journal.read()
        undone = journal.undo(captions.shown_by, dry_run=dry_run)
    for name, paths in (("restore", undone.restored), ("withdraw", undone.withdrawn)):
        for file in paths if dry_run else ():
            print_row(str(file), name)
    for problem in undone.problems:
        print_message(problem)
    if not dry_run:
        parts = [f"{counted(len(undone.restored), 'file')} as before"]
        if undone.withdrawn:
            parts.append(f"{len(undone.withdrawn)} changed by others since, without our texts")
        print_message("; ".join([*parts, f"{counted(len(undone.problems), 'change')} not taken back"]))
    return 1 if undone.problems else 0
