"""Learn a language model from captions of COCO photos: with odd ids, for the measures `Fluency` and `Unidiomatic`.

python scripts/build_language_model.py captions.json.gz --held-out data.json \
    --out packages/capscore/src/capscore/data/coco_language_model.npz

With --even, from the other half, for the reward `fluency` and for decoding (coco_even_language_model.npz).  Photos of
the splits val and test, of either file, are left out: by id, and by two captions that they share with another photo (as
`data.exclude` of a recipe does).
"""

import argparse
from pathlib import Path

import numpy as np

from capscore.fluency import KneserNey
from capscore.scoring import ScoringInputs
from tellapart.data.examples import Example, Exclusion
from tellapart.data.tokenizers import split_words
from tellapart.rewards.language_model import readable


def chosen(source: Path, held_out: list[Path], *, odd: bool = True) -> list[Example]:
    """The photos whose captions the model may see."""
    without = Exclusion.of_files(map(str, held_out), lambda photo: photo.split in ("val", "test"))
    return readable([str(source)], [without], odd=odd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", type=Path, help="a data file; photos are not needed")
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="data files with more photos to leave out")
    parser.add_argument("--even", action="store_true", help="photos with even ids and not those with odd ones")
    parser.add_argument("--out", type=Path, required=True)
    request = parser.parse_args()
    photos = chosen(request.captions, request.held_out, odd=not request.even)
    # The words of measures are those of the COCO evaluation, and the words of rewards those of captioners.
    words = ScoringInputs([], [photo.captions for photo in photos]).reference_words
    if request.even:
        words = [[split_words(text) for text in photo.captions] for photo in photos]
    model = KneserNey.of([caption for captions in words for caption in captions])
    model.save(request.out, photos=np.array([int(photo.id) for photo in photos]))
    print(
        f"{request.out}: {len(photos)} photos, {sum(map(len, words))} captions, {len(model.words)} words, "
        f"{len(model.ngrams)} sequences of four, {request.out.stat().st_size / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main()
