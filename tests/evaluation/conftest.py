import numpy as np
import pytest

from evaluation import world


@pytest.fixture
def data(tmp_path):
    return world.make(tmp_path / "world")


@pytest.fixture
def grid(monkeypatch):
    """Measure captions, {model: {photo's number: text}}, on a data file, by retrievers that see words."""
    from tellapart.evaluation import grid as run
    from tellapart.evaluation import models
    from tellapart.evaluation.grid import LookAlikes

    monkeypatch.setattr(run, "embed_photos", world.embed_photos)

    def measure(data, captions, *, retrievers=("word",), reader=True, human=False, alike=None, **options):
        (split,) = models.splits([str(data)], "test")
        listening = [world.WordRetriever(name) for name in retrievers]
        split, embedded = run.embed(listening, split)
        said = [
            models.ModelCaptions(
                models.Model(name, name, "file"), {int(photo): [text] for photo, text in texts.items()}
            )
            for name, texts in captions.items()
        ]
        said += [models.by_people(models.Model("human", "human", "human"), split)] if human else []
        there, measured, _ = models.taking_part(said, split, alone=True)
        listeners = run.photo_retrievers_of(listening, embedded, split, None)
        options = {
            "against": there[0].model.name,
            "metrics": "CIDEr-D,BLEU,Rep,BadEnd,Stutter,UnusualOrder,Prec,UniCap,AvgLen",
        } | options
        text_reader = world.WordRetriever("minilm", "references") if reader else None
        if alike is not None:
            options["groups"] = LookAlikes(np.array(alike), "toy")
        return run.measure(split, there, measured, listeners, text_reader, **options)

    return measure
