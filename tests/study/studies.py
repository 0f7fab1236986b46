"""Small studies, made from photos of one colour and vectors that say which are alike."""

import json
from dataclasses import replace

import numpy as np
from PIL import Image

from tellapart.neighbours.collection import CollectionVectors
from tellapart.study.design import Plan, make

PHOTOS = 24


class Vectors:
    """Photo i and the caption "caption i ..." lie at angle i: neighbours in number are neighbours in sight."""

    name, sha256, duplicates_above, sees_photos = "angles", "0" * 64, 0.9999, True

    def of_photos(self, examples):
        ids = [int(example.id) for example in examples]
        return CollectionVectors(np.arange(len(ids)), self._at(ids), [str(id) for id in ids], {})

    def of_captions(self, captions):
        return self._at([int(caption.split()[1]) for caption in captions])

    def _at(self, numbers):
        angles = np.array(numbers) * 0.05
        return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def data(folder, photos=PHOTOS):
    folder.mkdir(exist_ok=True)
    for number in range(photos):
        Image.new("RGB", (40, 30), (number * 10, 80, 120)).save(folder / f"{number}.png")
    images = [
        {"id": n, "file": f"{n}.png", "split": "test", "captions": [f"caption {n} by people"]} for n in range(photos)
    ]
    (folder / "data.json").write_text(json.dumps({"dataset": "colours", "images": images}))
    for name in ("plain", "rich"):
        (folder / f"{name}.json").write_text(json.dumps({n: f"caption {n} by {name}" for n in range(photos)}))
    return folder


def store(database, made, persons, answers):
    """Simulated people and answers, as if they had come by the page."""
    for person in persons:
        stored = database.join(len(made.sessions), person.subject_id)
        of_person = [answer for answer in answers if answer.person == person.id]
        database.add(*(replace(a, person=stored.id, received=stored.started + a.received) for a in of_person))


def study(folder, kind, captions=("plain.json", "rich.json"), photos=PHOTOS, **plan):
    data(folder, photos)
    files = [name if name == "human" else str(folder / name) for name in captions]
    return make(files, str(folder / "data.json"), "test", Vectors(), Plan(kind, **plan), folder / "study")
