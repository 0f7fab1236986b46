"""Make the embedded album: photos, album.json and CREDITS.md, from a COCO data file that knows its photos' licences.

    python scripts/make_album.py coco/captions.json

Only photos of the test split with COCO's licence 4 or 7 may be in it: those we are free to hand on, and no captioner
was trained on them.  Groups are photos that an ordinary captioner captions alike; they were chosen by eye among
neighbours in the encoder's features and in the words of the reference captions.
"""

import io
import sys
from pathlib import Path

from PIL import Image

from capscore import files
from tellapart.album import HERE
from tellapart.data import examples
from tellapart.data.examples import DataSet, Example
from tellapart.data.media import photos

LICENCES = {
    4: "[CC BY 2.0](https://creativecommons.org/licenses/by/2.0/)",
    7: "[no known copyright restrictions](https://www.flickr.com/commons/usage/)",
}
GROUPS = {  # look-alikes: COCO ids
    "surfers": [480747, 10684, 73333, 159044, 536028, 288491],
    "buses": [406329, 293841, 449403, 87912, 517296, 571821, 396350],
    "baseball games": [339426, 199122, 432657, 498439, 522273, 232243],
    "pizzas": [150080, 95062, 557731, 35975, 157789],
    "clock towers": [16599, 209935, 448697, 8218, 438535, 378545],  # the first two are one tower, by day and by night
    "cats": [358976, 581033, 460505, 559047],
    "stop signs": [167510, 110369, 393583, 518530],
    "bathrooms": [66879, 364783, 252610, 484587, 136780, 192440],
    "kitchens": [205577, 397404, 48905, 370138, 133515, 223094],
    "bedrooms": [452724, 330439, 255631, 225715],
    "cooks": [295837, 323100, 504747, 242365, 320480],
    "plates of food": [55010, 268215, 209808, 295614, 136911],
    "skiers": [326555, 107541, 490878, 420579, 86516],
    "tennis players": [390475, 270738, 346934, 400317, 243213],
    "trains": [550452, 191893, 89558, 27226, 288799],
    "airplanes": [377314, 393869, 344397, 541627, 355370],
    "": [539678, 278550, 516750, 436252, 462640, 534444, 25286, 139094],  # like no other photo of the album
}
SHORT_SIDE = 224
MOST_BYTES = 3_000_000

CREDITS = """# Credits of the album

The photos come from [COCO](https://cocodataset.org) (Lin et al., 2014) and are named by their COCO ids.  They were
scaled down to a short side of 224 pixels and stored as WebP without metadata.  The reference captions in `album.json`
are COCO's, under [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/).

| file | credit | licence |
|---|---|---|
"""


def small(data: bytes, file: Path) -> bytes:
    """The photo as small WebP without metadata; its own bytes, if that is what it is already."""
    with Image.open(io.BytesIO(data)) as image:
        hidden = {"exif", "xmp", "icc_profile"} & image.info.keys()
        if image.format == "WEBP" and min(image.size) <= SHORT_SIDE and not hidden:
            return data
    photo = photos.decode(data, file)
    scale = min(1.0, SHORT_SIDE / min(photo.size))
    photo = photo.resize((round(photo.width * scale), round(photo.height * scale)), Image.Resampling.LANCZOS)
    bare, out = Image.frombytes("RGB", photo.size, photo.tobytes()), io.BytesIO()
    bare.save(out, "WEBP", quality=80, method=6)
    return out.getvalue()


def main(source: Path) -> None:
    coco = {example.id: example for example in examples.read(source).examples}
    album, credits, total = [], [], 0
    for group, ids in GROUPS.items():
        for id in ids:
            photo = coco[id]
            licence = photo.extra["license"]
            if photo.split != "test" or licence not in LICENCES:
                sys.exit(f"photo {id} may not be in the album: split {photo.split!r}, licence {licence}")
            file = HERE / "photos" / f"coco_{id:012}.webp"
            data = small(photos.read_bytes(photo.file), photo.file)
            files.replace(file, data)
            total += len(data)
            album.append(Example(id, file, "test", photo.captions, {"license": licence, "group": group}))
            credits.append(f"| {file.name} | photo {id}, via COCO | {LICENCES[licence]} |\n")
    if total > MOST_BYTES:
        sys.exit(f"the photos have {total:,} bytes; {MOST_BYTES:,} is the most that the package should carry")
    for old in set((HERE / "photos").iterdir()) - {example.file for example in album}:
        old.unlink()  # chosen once, not any more
    examples.write(DataSet("album", album), HERE / "album.json")
    files.replace(HERE / "CREDITS.md", (CREDITS + "".join(credits)).encode())
    print(f"{len(album)} photos, {total:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
