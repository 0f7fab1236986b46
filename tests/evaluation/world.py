"""A small world in which a photo shows the words of its file's name, and retrievers that see and hear just words."""

import hashlib
import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from capscore.errors import UserError
from tellapart.evaluation import grid
from tellapart.models import retrievers
from tellapart.retrievers.retriever import Embedded

SIZE = 64
THINGS = ("cat", "dog", "bus", "boat", "tree", "kite", "horse", "clock", "pizza", "child")
PLACES = ("street", "beach", "kitchen", "field", "roof", "river", "bench", "snow", "sofa", "market", "bridge", "garden")


@cache
def direction(word, seed):
    return np.random.default_rng(zlib.crc32(f"{seed} {word}".encode())).normal(size=SIZE)


def vector(text, seed):
    """The sum of a random direction for each word, of length 1; nothing of nothing."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    total = sum((direction(word, seed) for word in words if word not in ("a", "an", "the", "on")), np.zeros(SIZE))
    return (total / max(np.linalg.norm(total), 1e-12)).astype(np.float32)


class WordRetriever:
    """As tellapart.retrievers.Retriever: what evaluation needs of one."""

    encoder, size, scale = None, SIZE, 1.0

    def __init__(self, name="word", sees="photos"):
        self.name, self.sees = name, sees
        self.sha256 = hashlib.sha256(name.encode()).hexdigest()

    def embed_captions(self, captions):
        return torch.from_numpy(np.stack([vector(text, self.name) for text in captions]))

    def embed_references(self, references):
        return torch.stack([self.embed_captions(texts).mean(0) for texts in references])


def embed_photos(retriever, files):
    there = {file: Path(file).read_bytes() for file in files if Path(file).exists()}
    vectors = [vector(Path(file).stem, retriever.name) for file in there]
    hashes = [hashlib.sha256(data).hexdigest() for data in there.values()]
    failed = {file: "there is no such file" for file in files if file not in there}
    return Embedded(list(there), hashes, failed, np.array(vectors, np.float32).reshape(-1, SIZE))


def words_for_photos(monkeypatch):
    """Retrievers that see words take the place of all; minilm and text go by references."""

    def load(name, device="auto"):
        if "nothere" in str(name):
            raise UserError(f"there is no retriever {name!r}.")
        return WordRetriever(str(name), "references" if name in ("minilm", "text") else "photos")

    monkeypatch.setattr(retrievers, "load", load)
    monkeypatch.setattr(grid, "embed_photos", embed_photos)


def exact_and_vague(data, article="a"):
    """Captions that name a photo's thing and place, and those that name only its thing."""
    told = [record["captions"][0].split() for record in records_of(data)]
    exact = {i: f"a {words[1]} on {article} {words[-1]}" for i, words in enumerate(told)}
    return exact, {i: f"a {words[1]}" for i, words in enumerate(told)}


def make(folder, count=12, *, references=2, name="world"):
    """A data file of `count` photos, up to 120, each of its own thing and place."""
    folder.mkdir(exist_ok=True)
    records = []
    for i in range(count):
        thing, place = THINGS[i % 10], PLACES[i // 10]
        file = folder / f"{thing}-{place}.png"
        Image.new("RGB", (12, 9), (2 * i, 255 - i, i)).save(file)
        told = [f"a {thing} on the {place}", f"the {place} with a {thing}", f"{thing}"][:references]
        records.append({"id": f"{i}", "file": file.name, "split": "test", "captions": told})
    data = folder / "data.json"
    write(data, records, name)
    return data


def write(data, records, name="world"):
    data.write_text(json.dumps({"dataset": name, "images": records}))


def records_of(data):
    return json.loads(data.read_text())["images"]
