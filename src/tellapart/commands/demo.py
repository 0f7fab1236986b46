"""tellapart demo: caption the embedded album and make a page of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.commands.arguments import Parser
from tellapart.errors import UserError
from tellapart.progress import Progress

if TYPE_CHECKING:
    from tellapart.caption import Caption
    from tellapart.data.examples import Example


def parser() -> Parser:
    parser = Parser(
        "demo",
        "Caption the embedded album, photos in groups that look alike.\n"
        "Prints the captions and writes DIR/captions.jsonl and DIR/report.html.",
        "tellapart demo --out demo",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("demo"), help="folder to write to (default: demo)"
    )
    return parser


def main(arguments: list[str]) -> int:
    out: Path = parser().parse_args(arguments).out
    try:
        out.mkdir(parents=True, exist_ok=True)  # before the work, so that a folder that cannot be does not cost it
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--out {out}: there is a file of this name, or on the way to it; name a folder.") from None
    except OSError as error:
        raise UserError(f"--out {out}: the folder cannot be made ({error.strerror}).") from None

    from tellapart import album, files
    from tellapart.album.page import Row, write_page
    from tellapart.captioning import load
    from tellapart.data import examples

    photos = examples.read(album.HERE / "album.json").examples
    began = time.monotonic()
    captions: list[Caption] = []
    with Progress("captions", len(photos)) as bar:
        for caption in load().caption([photo.file for photo in photos]):
            captions.append(caption)
            bar.advance()
    seconds = time.monotonic() - began

    show(photos, captions)
    rows = [Row(p.file, c.text, p.extra["group"], c.error) for p, c in zip(photos, captions, strict=True)]
    files.replace(out / "captions.jsonl", "".join(json.dumps(caption.row()) + "\n" for caption in captions).encode())
    write_page(rows, out / "report.html", title="The album, captioned", credit=credit(photos))
    different = len({caption.text for caption in captions if not caption.error})
    plural = "" if different == 1 else "s"
    print(f"\n{different} different caption{plural} for {len(photos)} photos, in {seconds:.1f} seconds")
    print(out / "report.html")
    return 1 if any(caption.error for caption in captions) else 0


def show(photos: list[Example], captions: list[Caption]) -> None:
    """The captions in their groups on stdout; what went wrong on stderr."""
    group = None
    for photo, caption in zip(photos, captions, strict=True):
        if photo.extra["group"] != group:
            group = photo.extra["group"]
            print(f"\n{group or 'other photos'}")
        print(f"  {photo.file.name}  {caption.text}")
        if caption.error:
            print(f"{photo.file}: {caption.error}", file=sys.stderr)


def credit(photos: list[Example]) -> str:
    """What the photos' licences ask for; the page may be handed on without the package's CREDITS.md."""
    free = ", ".join(str(photo.id) for photo in photos if photo.extra["license"] == 7)
    return (
        "Photos: via COCO, by the ids in their names, scaled down; CC BY 2.0 (creativecommons.org/licenses/by/2.0)"
        + (f", except {free}: no known copyright restrictions" if free else "")
        + ".  Captions: made by tellapart."
    )
