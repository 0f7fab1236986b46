"""Our nearest neighbours beside faiss (pip install faiss-cpu), in one run and on the same number of threads.

    python benchmarks/neighbours.py [--full]

exact    the 10 nearest of each of 20,000 vectors of 512 numbers among themselves, beside IndexFlatIP and IndexFlatL2.
         `clustered`: fifty or so around each of many centres.  `photos`: few strong directions and many weak ones, and
         a common mean, as in embeddings of photos.  The medians of three turns; the seconds are those of the processor.
index    200,000 vectors of 128 numbers: our inverted file with the number of lists that it chose, beside exact search.
--full   exact search of 113,287 vectors, as many as COCO has photos to train with; once, and with the memory it takes.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from timing import table

from tellapart.neighbours.search import Metric, build_index, nearest

try:
    import faiss
except ImportError:
    faiss = None

K = 10
Vectors = NDArray[np.float32]


def clustered(count: int, size: int) -> Vectors:
    random = np.random.default_rng(0)
    centres = random.standard_normal((count // 50, size), np.float32)
    return _unit(centres[random.integers(0, len(centres), count)] + random.standard_normal((count, size), np.float32))


def photos(count: int, size: int) -> Vectors:
    random = np.random.default_rng(1)
    strength = np.arange(1, size + 1, dtype=np.float32) ** -0.5
    return _unit(random.standard_normal((count, size), np.float32) * strength + 0.5 * strength)


def _unit(vectors: Vectors) -> Vectors:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def theirs(vectors: Vectors, metric: Metric) -> NDArray[np.int64]:
    """Each finds itself first, unless another is exactly the same."""
    index = (faiss.IndexFlatIP if metric == "cosine" else faiss.IndexFlatL2)(vectors.shape[1])
    index.add(vectors)
    return index.search(vectors, K + 1)[1][:, 1:]


def seconds(part: Callable[..., object], *arguments: object, **named: object) -> float:
    """Of the processor: other work on the machine counts less than with a clock on the wall."""
    began = time.process_time()
    part(*arguments, **named)
    return time.process_time() - began


def exact(count: int, turns: int) -> None:
    rows = []
    for name, make in (("clustered", clustered), ("photos", photos)):
        vectors = make(count, 512)
        nearest(vectors[:3000], K)  # compiles
        for metric in ("cosine", "euclidean"):
            took: dict[str, list[float]] = {"ours": [], "faiss": []}
            for _ in range(turns):
                took["ours"].append(seconds(nearest, vectors, K, metric=metric))
                if faiss:
                    took["faiss"].append(seconds(theirs, vectors, metric))
            ours = statistics.median(took["ours"])
            row = {"vectors": f"{count} x 512, {name}", "metric": metric, "ours, s": f"{ours:.1f}"}
            if faiss:
                other = statistics.median(took["faiss"])
                row |= {"faiss, s": f"{other:.1f}", "ours / faiss": f"{ours / other:.2f}"}
                part = vectors[:20_000]
                same = (nearest(part, K, metric=metric).indices == theirs(part, metric)).mean()
                row |= {"same neighbours": f"{same:.3%}"}
            rows.append(row)
    table("Exact nearest neighbours" + ("" if faiss else " (faiss is not installed)"), rows)


def memory(count: int) -> None:
    rows = []
    for name in ("ours", "faiss") if faiss else ("ours",):
        done = subprocess.run([sys.executable, __file__, "--one", name, str(count)], check=True, capture_output=True)
        found = json.loads(done.stdout)
        rows.append({"": name, "largest, MB": f"{found['megabytes']:.0f}", "seconds": f"{found['seconds']:.0f}"})
    table(f"Memory: {count} x 512, of which {count * 512 * 4 / 1e6:.0f} MB are the vectors", rows)


def one(name: str, count: int) -> None:
    vectors = clustered(count, 512)
    took = seconds(nearest, vectors, K) if name == "ours" else seconds(theirs, vectors, "cosine")
    print(json.dumps({"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "seconds": took}))


def inverted_file(count: int) -> None:
    rows = []
    for name, make in (("clustered", clustered), ("photos", photos)):
        vectors = make(count, 128)
        began = time.process_time()
        index = build_index(vectors, K)
        built = time.process_time() - began
        sample = vectors[::20]
        row = {"vectors": f"{count} x 128, {name}", "build, s": f"{built:.1f}", "recall@10": f"{index.recall:.3f}"}
        row |= {"lists looked into": f"{index.probes} of {len(index.centres)}"}
        row |= {"search, s": f"{seconds(index.search, K, sample):.1f}"}
        row |= {"exact, s": f"{seconds(nearest, vectors, K, queries=sample):.1f}"}
        rows.append(row)
    table(f"Index: searching {len(sample)} queries", rows)


if __name__ == "__main__":
    if faiss:
        faiss.omp_set_num_threads(torch.get_num_threads())
    if "--one" in sys.argv:
        one(sys.argv[2], int(sys.argv[3]))
    else:
        exact(20_000, turns=3)
        inverted_file(200_000)
        if "--full" in sys.argv:
            memory(113_287)
