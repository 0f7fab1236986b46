"""Hearing sampled captions with the embedded retriever, as a reward does, against a training step on the same batch.

    python benchmarks/retrievers.py

50 photos x 5 captions sampled from the embedded captioner.  *hear*: the captions' token ids to similarities with the 50
photos.  *step*: forward, backward and the optimiser's step of cross-entropy on the same captions.
"""

from __future__ import annotations

import numpy as np
import torch
from timing import side_by_side, table

from tellapart import models
from tellapart.album import DEFAULT
from tellapart.captioners import CAPTIONERS
from tellapart.data.batches import Batch
from tellapart.data.streams import region_inputs
from tellapart.decoding import Rules, sample
from tellapart.models.retrievers import load
from tellapart.objectives.cross_entropy import cross_entropy_step

PHOTOS, SAMPLES = 50, 5

if __name__ == "__main__":
    speaker, listener = models.load(DEFAULT, torch.device("cpu")), load(device="cpu")
    words = speaker.tokenizer
    draw = torch.Generator().manual_seed(0)
    features, mask = torch.randn(PHOTOS, 64, 1280, generator=draw), torch.ones(PHOTOS, 64, dtype=torch.bool)
    images = listener.embed_images(features.mean(1))
    with torch.inference_mode():
        memory = speaker.captioner.encode(region_inputs(features, mask))
        said = sample(speaker.captioner, memory, Rules.of(words), samples=SAMPLES, generator=draw)

    config = models.read_config(models.find(DEFAULT), "captioner")
    learner = models.build(CAPTIONERS, "captioner", config.name, config.settings).train()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-4, fused=True)
    batch = Batch(np.arange(PHOTOS), region_inputs(features, mask), said.tokens.clone(), said.mask)

    def step() -> None:
        loss = cross_entropy_step(learner, batch, bos=words.bos).loss  # type: ignore[arg-type]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def embed_sampled() -> None:
        listener.similarity(listener.embed_tokens(said.tokens, words), images)

    took = side_by_side({"hear": embed_sampled, "step": step}, repeats=9)
    rows = [
        {"what": name, "ms": f"{1000 * seconds:.1f}", "share of a step": f"{seconds / took['step']:.3f}"}
        for name, seconds in took.items()
    ]
    table(f"{PHOTOS} photos x {SAMPLES} sampled captions, {int(said.mask.sum())} words", rows)
