"""A map of captions (Fig. 9 of the GLD paper): t-SNE of their embeddings, a colour for each model, as an SVG file.

    pip install openTSNE
    tellapart evaluate runs/scst runs/gld --data flickr8k.json --out results
    python scripts/caption_map.py results/captions/*.jsonl --retriever runs/vse --out map.svg

Takes files of captions as `tellapart score` reads them.  Captions that say alike lie together, and many on one spot
tell no photo apart; directions and distances across the map mean nothing.  Point at a dot to read its caption.
"""

import argparse
from html import escape
from pathlib import Path

import numpy as np
from openTSNE import TSNE

from capscore import caption_files, files
from tellapart.models.retrievers import load

SIZE, MARGIN = 640, 24
COLOURS = ("#3b6fb6", "#c8553d", "#4f9d69", "#8b5fbf", "#c9a227", "#3aa6a6", "#a0526d", "#6b6b6b")


def layout(vectors: np.ndarray, seed: int) -> np.ndarray:
    """(N, 2), the same for the same captions."""
    return np.asarray(
        TSNE(
            perplexity=min(30, (len(vectors) - 1) / 3),
            metric="euclidean",  # of unit vectors: as cosines, and defined where a caption says nothing
            neighbors="exact",
            negative_gradient_method="bh",
            random_state=seed,
            n_jobs=1,  # the sum over threads depends on their order
        ).fit(vectors)
    )


def drawn(captions: dict[str, list[str]], points: np.ndarray) -> str:
    low, high = points.min(0), points.max(0)
    places = MARGIN + (points - low) / np.maximum(high - low, 1e-9) * (SIZE - 2 * MARGIN)
    rows = iter(places.tolist())
    parts = []
    for number, (name, texts) in enumerate(captions.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<text x="{MARGIN}" y="{SIZE + 18 * (number + 1)}" fill="{colour}">{escape(name)}</text>')
        for text in texts:
            x, y = next(rows)
            title = f"<title>{escape(f'{name}: {text}')}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity=".7">{title}</circle>')
    height = SIZE + 18 * (len(captions) + 1)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {height}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>\n"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", metavar="CAPTIONS", nargs="+", type=Path)
    parser.add_argument("--retriever", metavar="R", default="word", help="name, run folder or hub id (default: word)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("map.svg"))
    request = parser.parse_args()
    captions = {
        file.stem: [texts[0] for texts in caption_files.read(file).by_id.values() if texts] for file in request.captions
    }
    embedded = load(request.retriever).embed_captions([text for texts in captions.values() for text in texts])
    files.replace(request.out, drawn(captions, layout(embedded.numpy(force=True), request.seed)).encode())
    print(request.out)
