"""How far automatic measures agree with people: of two captions that people did not find equal, which does one prefer?

    choose, order  every two captions, one of which brought people to its photo more often (order: by reciprocal rank);
                   and of these, those of the same photo
    compare        the two captions of a question, by the answers to it

The share of pairs in which a measure prefers the same caption; 50 % is chance, and a measure that finds both equal
counts as a half.  Intervals are by a bootstrap over photos.  The measures are those of `evaluate`, among the photos of
the study as it shows them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.data.examples import Example
from tellapart.evaluation.evaluate import text_reader
from tellapart.evaluation.grid import Known, embed, embed_captions, photo_retrievers_of
from tellapart.evaluation.models import HUMAN, Split
from tellapart.metrics import retrieval
from tellapart.metrics.retrieval import Name
from tellapart.models import retrievers as retriever_models
from tellapart.retrievers.retriever import Retriever
from tellapart.study import folder as folders
from tellapart.study.design import CRITERIA
from tellapart.study.folder import Study
from tellapart.study.results import Results

Caption = tuple[str, str]  # photo, model
Values = dict[str, dict[Caption, float]]  # measure -> caption -> value; higher is better
Floats = NDArray[np.float64]

REFERENCES = "references"  # of the settings: photo -> captions by people
_SAMPLES = 1000
_TIE = 1e-9


def captions_of(study: Study) -> dict[Caption, str]:
    trials = (trial for trial in study.trials().values() if not trial.catch)
    return {(t.set, model): text for t in trials for model, text in zip(t.models, t.captions, strict=True)}


def measure(study: Study, folder: Path, names: Sequence[str], device: str = "auto") -> tuple[Values, dict[str, str]]:
    """What each measure gives to each caption, and why others are left out."""
    references, ids = study.settings.get(REFERENCES) or {}, sorted(study.photos)
    photos = [Example(id, folders.photo(folder, id), captions=tuple(references.get(id, ()))) for id in ids]
    retrievers = [retriever_models.load(name, device=device) for name in names]
    reader, left_out = text_reader(retrievers, device)
    seeing = [retriever for retriever in retrievers if retriever.sees == "photos"]
    split, embedded = embed(seeing, Split(study.title, str(folder), photos, []))
    row_of = {str(photo.id): row for row, photo in enumerate(split.photos)}
    spoken = {caption: text for caption, text in captions_of(study).items() if caption[0] in row_of}
    values: Values = {}
    for one in photo_retrievers_of(seeing, embedded, split, None):
        name, own = one.retriever.name, np.array([row_of[photo] for photo, _ in spoken], np.int64)
        vectors = embed_captions(one.retriever, list(spoken.values()))
        found = retrieval.find(vectors, own, one.gallery, f"captions by {name}")
        fit = (vectors * one.gallery.photos[own]).sum(1)
        for measured, column in (
            (str(Name("R", 1, name)), found.ranks == 0),
            (str(Name("GEG-Avg", retriever=name)), found.average),
            (f"Cosine[{name}]", fit),
        ):
            values[measured] = dict(zip(spoken, column.astype(float).tolist(), strict=True))
    if reader is not None and any(photo.captions for photo in split.photos):
        values[str(Name("TT R", 1))] = _text_to_text(split, spoken, row_of, reader)
    elif reader is not None:
        left_out = {"TT": "the study has no references."}
    return values, left_out


def _text_to_text(
    split: Split, spoken: dict[Caption, str], row_of: dict[str, int], reader: Retriever
) -> dict[Caption, float]:
    """Whether a caption finds its photo by the references of all; a person's is compared with those of the others."""
    known, found = Known(split, reader), dict[Caption, float]()
    place_of = {row: place for place, row in enumerate(known.photos)}
    for of_people in (False, True):
        own = [
            caption
            for caption in spoken
            if (caption[1] == HUMAN) == of_people and len(split.photos[row_of[caption[0]]].captions) > of_people
        ]
        places = np.array([place_of[row_of[photo]] for photo, _ in own], np.int64)
        vectors = known.embed([spoken[caption] for caption in own])
        read = retrieval.text_to_text(vectors, places, known.vectors, known.counts, of_people=of_people)
        found |= zip(own, (read.ranks == 0).astype(float).tolist(), strict=True)
    return found


def agreement(results: Results, values: Values) -> dict[str, dict[str, dict[str, float]]]:
    """measure -> pairs of captions -> {value, low, high, pairs}"""
    compare = results.study.kind == "compare"
    return {name: _preferences(results, own) if compare else _successes(results, own) for name, own in values.items()}


def _successes(results: Results, values: dict[Caption, float]) -> dict[str, dict[str, float]]:
    shares: dict[Caption, list[float]] = defaultdict(list)
    for row in results.counted:
        shares[row.trial.set, row.trial.models[0]].append(1 / row.rank if row.rank else 0.0)
    captions = sorted(shares.keys() & values)
    _, photo_of = np.unique([photo for photo, _ in captions], return_inverse=True)
    people = np.array([np.mean(shares[caption]) for caption in captions])
    measured = np.array([values[caption] for caption in captions])
    of_photo = np.eye(photo_of.max(initial=-1) + 1)[photo_of]  # (captions, photos)
    better = (people[:, None] - people > _TIE).astype(float)
    right = better * _preferred(measured[:, None] - measured)
    pairs, agreed = (of_photo.T @ matrix @ of_photo for matrix in (better, right))
    found = {"all captions": _share(agreed, pairs)}
    if len(results.study.models) > 1:
        found["of the same photo"] = _share(np.diag(agreed.diagonal()), np.diag(pairs.diagonal()))
    return found


def _preferences(results: Results, values: dict[Caption, float]) -> dict[str, dict[str, float]]:
    found, photos = {}, sorted({row.trial.set for row in results.counted})
    for criterion in CRITERIA:
        agreed, pairs = np.zeros((2, len(photos)))
        for first, second in combinations(results.study.models, 2):
            wins: dict[str, float] = defaultdict(float)
            for row in results.counted:
                if {*row.trial.models} == {first, second}:
                    wins[row.trial.set] += row.outcome(criterion, first)
            for place, photo in enumerate(photos):
                if wins[photo] and {(photo, first), (photo, second)} <= values.keys():
                    gap = np.sign(wins[photo]) * (values[photo, first] - values[photo, second])
                    agreed[place] += _preferred(np.array(gap))
                    pairs[place] += 1
        found[criterion] = _share(np.diag(agreed), np.diag(pairs))
    return found


def _preferred(gaps: NDArray[Any]) -> NDArray[Any]:
    """1: the measure prefers the same, 0.5: neither, 0: the other."""
    return np.where(np.abs(gaps) <= _TIE, 0.5, (gaps > 0).astype(float))


def _share(agreed: Floats, pairs: Floats) -> dict[str, float]:
    """Of pairs (photos, photos) of captions, those in which they agree; pairs of one photo are on the diagonal."""
    if not pairs.sum():
        return {"value": np.nan, "low": np.nan, "high": np.nan, "pairs": 0}
    count = len(pairs)
    times = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _SAMPLES).astype(float)
    # pairs of one photo come as often as the photo, and not as often as pairs of it with itself
    right, total = (
        (times @ matrix * times).sum(1) - (times**2 - times) @ matrix.diagonal() for matrix in (agreed, pairs)
    )
    low, high = np.percentile(right[total > 0] / total[total > 0], [2.5, 97.5])
    return {"value": agreed.sum() / pairs.sum(), "low": float(low), "high": float(high), "pairs": int(pairs.sum())}
