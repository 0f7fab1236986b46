"""A small pool, and what its rewards must be: worked out from the retriever's own vectors by plain loops."""

import json

import numpy as np

from tellapart.models.retrievers import load
from tellapart.retrievers.retriever import embed_photos
from tellapart.rewards import pool

CAPTIONS = ("a red bus", "a man riding a wave", "the cat on the bed", "a dog", "a red street", "the man on the street")


def make(folder, photo_folder, retriever, *, captions=CAPTIONS, **options):
    """A pool of the photos 0.png ... 5.png, whose ids are photo0 ... photo5, each with a caption and a common one."""
    records = [
        {"id": f"photo{i}", "file": str(photo_folder / f"{i}.png"), "captions": [text, "a photo of the street"]}
        for i, text in enumerate(captions)
    ]
    data = folder / "data.json"
    data.write_text(json.dumps({"dataset": "six", "images": records}))
    pool.make(data, folder / "POOL", retriever=str(retriever), **options)
    return folder / "POOL"


class Expected:
    def __init__(self, pool, photo_folder, retriever):
        self.pool, self.folder, self.retriever = pool, photo_folder, load(retriever)
        self.retriever_folder = retriever
        self.images = embed_photos(self.retriever, [str(photo_folder / f"{i}.png") for i in range(6)]).vectors

    def similarity(self, text, photo):
        return float(np.dot(self.retriever.embed_captions([text]).numpy()[0], self.images[photo]))

    def log_probability(self, text, photo, among):
        scores = {other: self.retriever.scale * self.similarity(text, other) for other in among}
        return scores[photo] - np.log(sum(np.exp(score) for score in scores.values()))

    def nearest(self, photo, count):
        """The photos most like one, by cosine."""
        others = [other for other in range(6) if other != photo]
        return sorted(others, key=lambda other: -float(self.images[photo] @ self.images[other]))[:count]

    def gap(self, text, photo, count=5):
        group = [self.similarity(text, other) for other in self.nearest(photo, count)]
        return self.similarity(text, photo) - sum(group) / len(group)


def shifted(photos):
    """Each caption with the next one's photo: what a test must tell from the truth."""
    return [*photos[1:], photos[0]]
