"""Learn a language model from captions of COCO photos with odd ids, for the measures `Fluency` and `Unidiomatic`.

python scripts/build_language_model.py captions.json.gz --held-out data.json \
    --out src/tellapart/metrics/data/coco_language_model.npz

Photos of the splits val and test, of either file, are left out: by id, and by two captions that they share with another
photo (as `data.exclude` of a recipe does).  Photos with even ids are for the language models of rewards and decoders.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from tellapart import files
from tellapart.data import examples
from tellapart.data.examples import Example
from tellapart.metrics.kneser_ney import KneserNey
from tellapart.metrics.scoring_inputs import ScoringInputs
from tellapart.training.data import Exclusion

HELD_OUT = ("val", "test")


def chosen(source: Path, held_out: list[Path]) -> list[Example]:
    """The photos whose captions the model may see."""
    with tempfile.TemporaryDirectory() as folder:
        left_out = []
        for number, path in enumerate([source, *held_out]):
            content = files.read_json_value(path)
            content["images"] = [photo for photo in content["images"] if photo.get("split") in HELD_OUT]
            left_out.append(Path(folder) / f"{number}.json")
            left_out[-1].write_text(json.dumps(content))
        without = Exclusion([str(path) for path in left_out])
    data = examples.read(source, needs_files=False)
    return [one for one in data.examples if int(one.id) % 2 and not without.has(one, data.name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", type=Path, help="a data file; photos are not needed")
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="data files with more photos to leave out")
    parser.add_argument("--out", type=Path, required=True)
    request = parser.parse_args()
    photos = chosen(request.captions, request.held_out)
    words = ScoringInputs([], [photo.captions for photo in photos]).reference_words
    model = KneserNey.of([caption for captions in words for caption in captions])
    model.save(request.out, photos=np.array([int(photo.id) for photo in photos]))
    print(
        f"{request.out}: {len(photos)} photos, {sum(map(len, words))} captions, {len(model.words)} words, "
        f"{len(model.ngrams)} sequences of four, {request.out.stat().st_size / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main()
