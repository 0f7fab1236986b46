"""A blind sheet to read two captioners' captions beside their photos, and, once it is read, the counts.

    tellapart caption coco/captions.json --split val --model plain --out plain.coco.jsonl    # and so on
    python scripts/reading_sheet.py draw plain.*.jsonl distinctive.*.jsonl --photos 50 --seed 3 --out reading
    python scripts/reading_sheet.py count reading

`draw` takes as many photos at random from each pair of files (first halves against second halves of the list).  It
writes sheet.csv, which says nothing of who wrote A and B, who.csv, which does, and pages of photos with both captions
to read from: page1.png ...  The reader fills read.csv: number, A, B (right, partly or wrong), not idiomatic (A, B, AB
or nothing) and better (A, B or equal).  `count` joins the three to key.csv and prints the counts.
"""

import argparse
import csv
import json
import random
import sys
import textwrap
from collections import Counter
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

COLUMNS, ROWS, WIDTH, HEIGHT, TEXT = 3, 3, 420, 300, 130  # of a page


def draw(request: argparse.Namespace) -> None:
    if len(request.files) % 2:
        sys.exit("give as many files of the second captioner as of the first.")
    if (request.out / "sheet.csv").exists():  # what a person has read of it would belong to other photos
        sys.exit(f"{request.out} has a sheet already; name another --out.")
    half = len(request.files) // 2
    chance, items = random.Random(request.seed), []
    for one, other in zip(request.files[:half], request.files[half:], strict=True):
        first, second = map(captions_of, (one, other))
        photos = chance.sample(sorted(first.keys() & second.keys()), request.photos // half)
        items += [(photo, first[photo], second[photo]) for photo in photos]
    chance.shuffle(items)
    request.out.mkdir(parents=True, exist_ok=True)
    names = [Path(files[0]).name.split(".")[0] for files in (request.files[:half], request.files[half:])]
    sheet, who = [], []
    for number, (photo, *captions) in enumerate(items, 1):
        order = chance.sample((0, 1), 2)
        data = Path(photo).parts[-3] if len(Path(photo).parts) > 2 else ""
        sheet.append([number, data, Path(photo).name, *(captions[i] for i in order)])
        who.append([number, names[order[0]]])
    write(request.out / "sheet.csv", ["number", "data", "photo", "A", "B"], sheet)
    write(request.out / "who.csv", ["number", "A is"], who)
    size = COLUMNS * ROWS
    for start in range(0, len(items), size):
        page(sheet[start : start + size], [item[0] for item in items[start : start + size]]).save(
            request.out / f"page{start // size + 1}.png"
        )


def captions_of(file: str) -> dict[str, str]:
    """By photo; one that could not be read has none."""
    rows = map(json.loads, Path(file).read_text().splitlines())
    return {row["file"]: row["caption"] for row in rows if "caption" in row}


def page(rows: list[list], photos: list[str]) -> Image.Image:
    """Photos with number and both captions below each."""
    sheet = Image.new("RGB", (COLUMNS * WIDTH, ROWS * (HEIGHT + TEXT)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=17)
    for place, (row, photo) in enumerate(zip(rows, photos, strict=True)):
        x, y = place % COLUMNS * WIDTH, place // COLUMNS * (HEIGHT + TEXT)
        with Image.open(photo) as picture:
            picture = picture.convert("RGB")
            picture.thumbnail((WIDTH - 10, HEIGHT - 10))
            scale = min((WIDTH - 10) / picture.width, (HEIGHT - 10) / picture.height)
            sheet.paste(picture.resize((int(picture.width * scale), int(picture.height * scale))), (x + 5, y + 5))
        lines = [f"{row[0]}"]
        for letter, caption in zip("AB", row[3:], strict=True):
            lines += textwrap.wrap(f"{letter}: {caption}", 46)
        pen.multiline_text((x + 5, y + HEIGHT), "\n".join(lines), fill="black", font=font)
    return sheet


def count(request: argparse.Namespace) -> None:
    who = {row["number"]: row["A is"] for row in read(request.out / "who.csv")}
    names, joined = sorted(set(who.values())), []
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    for row in read(request.out / "read.csv"):
        is_ = {"A": who[row["number"]], "B": next(name for name in names if name != who[row["number"]])}
        for letter, name in is_.items():
            counts[name][row[letter]] += 1
            counts[name]["not idiomatic"] += letter in row["not idiomatic"]
            counts[name]["better"] += row["better"] == letter
        better = is_.get(row["better"], "equal")
        odd = " and ".join(name for letter, name in is_.items() if letter in row["not idiomatic"])
        joined.append([row["number"], is_["A"], row["A"], row["B"], odd, better])
    header = ["number", "A is", "A was read as", "B was read as", "not idiomatic", "better"]
    write(request.out / "key.csv", header, joined)
    for name in names:
        print(name, dict(counts[name]))
    print("equal", sum(row[-1] == "equal" for row in joined), "of", len(joined))


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def write(file: Path, header: list[str], rows: list[list]) -> None:
    with file.open("w", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerows([header, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(required=True)
    drawing = what.add_parser("draw")
    drawing.add_argument("files", nargs="+", help="captions of the first captioner, then of the second")
    drawing.add_argument("--photos", type=int, default=50)
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--out", type=Path, default=Path("reading"))
    drawing.set_defaults(do=draw)
    counting = what.add_parser("count")
    counting.add_argument("out", type=Path)
    counting.set_defaults(do=count)
    request = parser.parse_args()
    request.do(request)


if __name__ == "__main__":
    main()
