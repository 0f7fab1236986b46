"""Cross-entropy training: words per second of a step of the recipe album/plain_xe, on made-up features.

    python benchmarks/training.py

Beside it, the same step without leaving out the padding between captions.
"""

from __future__ import annotations

import numpy as np
import torch
from timing import side_by_side, table

from tellapart.captioners.transformer import Transformer, TransformerConfig
from tellapart.data.batches import Batch
from tellapart.data.streams import region_inputs
from tellapart.objectives.cross_entropy import cross_entropy_step

PHOTOS, CAPTIONS, LONGEST, WORDS = 24, 5, 17, 4000


class WithPadding(Transformer):
    """Computes every layer at every place of (N, T), padding included, and picks the words at the end."""

    def forward(self, tokens, memory, token_mask=None):  # type: ignore[no-untyped-def]
        logits = super().forward(tokens, memory)
        return logits if token_mask is None else logits[token_mask]


def make_batch() -> Batch:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, WORDS, (PHOTOS * CAPTIONS, LONGEST), generator=draw)
    lengths = torch.randint(8, LONGEST, (len(tokens),), generator=draw)  # mean 12, as in the COCO captions
    tokens[torch.arange(LONGEST) >= lengths[:, None]] = 0
    features = torch.randn(PHOTOS, 64, 1280, generator=draw)
    return Batch(np.arange(PHOTOS), region_inputs(features), tokens, tokens != 0)


if __name__ == "__main__":
    batch = make_batch()
    config = TransformerConfig(vocab_size=WORDS, feed_forward=1024)

    def stepper(kind: type[Transformer]):  # type: ignore[no-untyped-def]
        torch.manual_seed(0)
        model = kind(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            loss = cross_entropy_step(model, batch, bos=1, label_smoothing=0.1).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    took = side_by_side({"ours": stepper(Transformer), "with padding": stepper(WithPadding)})
    words = int((batch.tokens != 0).sum())
    rows = [
        {
            "step": name,
            "words/s": f"{words / seconds:.0f}",
            "seconds": f"{seconds:.2f}",
            "ratio": f"{took['with padding'] / seconds:.2f}",
        }
        for name, seconds in took.items()
    ]
    table(f"Cross-entropy step, {PHOTOS} photos x {CAPTIONS} captions, {words} words", rows)
