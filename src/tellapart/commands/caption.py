"""tellapart caption: photos, folders or a data file -> one caption each."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.commands.arguments import Parser, positive
from tellapart.parallel import batched
from tellapart.progress import Progress

if TYPE_CHECKING:
    from tellapart.captioning import Caption, PhotoCaptioner
    from tellapart.captions_file import CaptionsFile, Row
    from tellapart.data.inputs import Input

_SAVED_TOGETHER = 16  # rows; a kill loses at most so many


def parser() -> Parser:
    parser = Parser(
        "caption",
        "Caption photos, folders of photos (with the folders in them) or a data file.\n"
        "Prints FILE<TAB>CAPTION lines, or writes rows to --out; a run that is started again with the same --out goes\n"
        "on where it stopped.  Exit 1: some photos could not be used; each is named with its reason.",
        "tellapart caption holiday/ --out captions.jsonl",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a photo, a folder of photos, or DATA.json")
    parser.add_argument(
        "--model", default="", help="from `tellapart models`, or a run folder (default: the embedded one)"
    )
    parser.add_argument("--beam", type=positive, default=3, help="width of the beam search; 1: greedy (default: 3)")
    parser.add_argument("--split", metavar="NAME", help="the part of a data file to caption (default: all)")
    parser.add_argument("--out", metavar="F", type=Path, help="write rows to F.jsonl or F.csv")
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")
    return parser


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from tellapart.album import DEFAULT
    from tellapart.captioning import load
    from tellapart.captions_file import CaptionsFile
    from tellapart.data.inputs import gather

    out = CaptionsFile(request.out) if request.out else None
    inputs, problems = gather(request.paths, request.split)
    captioner = load(request.model or DEFAULT, device=request.device)
    failed = write(captioner, inputs, out, request.beam) if out else show(captioner, inputs, request.beam)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if failed or problems else 0


def show(captioner: PhotoCaptioner, inputs: list[Input], beam: int) -> int:
    """Lines on stdout, as they come.  Returns how many photos failed."""
    failed = 0
    for caption in captioner.caption((photo.file for photo in inputs), beam=beam):
        if caption.error:
            failed += 1
            print(f"{one_line(caption.file)}: {caption.error}", file=sys.stderr)
        else:
            print(f"{one_line(caption.file)}\t{caption.text}", flush=True)
    return failed


def write(captioner: PhotoCaptioner, inputs: list[Input], out: CaptionsFile, beam: int) -> int:
    """Rows in a file, those that are there already left as they are.  Returns how many photos failed."""
    settings = f"{captioner.model.sha256} {captioner.encoder.weights_sha256} beam={beam}"
    wanted = {photo.file: photo for photo in inputs}
    others = [row for row in out.rows if row["file"] not in wanted]  # of earlier requests: not ours to throw away
    there = {row["file"]: row for row in out.rows if row["file"] in wanted and _is_done(row, settings)}
    out.keep([*others, *there.values()])
    todo = [file for file in wanted if file not in there]
    failed = 0
    with Progress("captions", len(wanted), done=len(there)) as bar:
        for batch in batched(captioner.caption(todo, beam=beam), _SAVED_TOGETHER):
            out.append(_row(wanted[caption.file], caption, settings) for caption in batch)
            for caption in batch:
                if caption.error:
                    failed += 1
                    bar.message(f"{one_line(caption.file)}: {caption.error}")
            bar.advance(len(batch))
    rows = {row["file"]: row for row in out.rows}
    out.keep([*others, *(rows[file] for file in wanted)])
    counts = [f"{len(wanted) - failed} captions in {out.path}"]
    counts += [f"{len(there)} of them from before"] if there else []
    counts += [f"{failed} photos could not be used"] if failed else []
    counts += [f"{len(others)} rows of other photos kept"] if others else []
    print("; ".join(counts), file=sys.stderr)
    return failed


def _row(photo: Input, caption: Caption, settings: str) -> Row:
    row: Row = caption.row() | ({} if photo.id is None else {"id": photo.id})
    return row if caption.error else row | {"key": _key(caption.sha256, settings)}


def _is_done(row: Row, settings: str) -> bool:
    """Whether the row was made of the photo as it is now, by the same model with the same settings."""
    from tellapart.data import photos
    from tellapart.errors import BadPhoto

    try:
        return "key" in row and bool(row["key"] == _key(photos.sha256(row["file"]), settings))
    except BadPhoto:
        return False


def _key(photo: str, settings: str) -> str:
    return hashlib.sha256(f"{photo} {settings}".encode()).hexdigest()[:16]


def one_line(text: str) -> str:
    """A file's name may hold a tab or a line break; a line of output may not."""
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
