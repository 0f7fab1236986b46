"""Captions of a prefix captioner over SmolLM2, one photo at a time, beam 3: transformers' `generate` against ours.

    python benchmarks/language_models.py
    python benchmarks/language_models.py runs/smollm2_xe

generate    transformers, in single precision, from the same prefix embeddings
ours        `beam_search` with the same weights

Both on one thread, in single precision, in CPU time, captions of 12 tokens.  Without a model the mapper has random
weights, which takes the same time.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from timing import side_by_side, table

from tellapart import models
from tellapart.captioners import language_models
from tellapart.data.streams import region_inputs
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules

BEAM, TOKENS, CPU = 3, 12, torch.device("cpu")
SETTINGS = {"language_model": "smollm2", "mapper": "transformer", "prefix": 8, "image_tokens": 0, "mapper_layers": 2}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", nargs="?")
parser.add_argument("--repeats", type=int, default=5)
request = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
if request.model:
    loaded = models.load(request.model, CPU)
    words, exact = loaded.tokenizer, loaded.captioner
else:
    words = language_models.tokenizer("smollm2")
    made = models.build_captioner("clipcap", SETTINGS, vocab_size=len(words), feature_sizes={"regions": 1280})
    exact = models.for_inference(made)
theirs, _ = language_models.read("smollm2")
theirs.requires_grad_(False)
seen = region_inputs(torch.rand(1, 64, 1280))


def generate() -> object:
    (prefix,) = exact.encode(seen)
    return theirs.generate(
        inputs_embeds=prefix,
        attention_mask=torch.ones(prefix.shape[:2]),
        num_beams=BEAM,
        do_sample=False,
        min_new_tokens=TOKENS,
        max_new_tokens=TOKENS,
        pad_token_id=words.pad,
    )


def ours(captioner, inputs, **length) -> list[str]:
    best = beam_search(captioner, captioner.encode(inputs), Rules.of(words, **length), beam=BEAM)
    return [
        words.decode(caption[mask].tolist()) for caption, mask in zip(best.tokens[:, 0], best.mask[:, 0], strict=True)
    ]


with torch.inference_mode():
    length = {"min_words": TOKENS - 1, "max_words": TOKENS}
    parts = {
        "generate": generate,
        "ours": partial(ours, exact, seen, **length),
    }
    took = side_by_side(parts, repeats=request.repeats, clock=time.process_time)
    row = {f"{name}, ms a caption": f"{1000 * seconds:.0f}" for name, seconds in took.items()}
    row["generate / ours"] = f"{took['generate'] / took['ours']:.1f}"
    table("SmolLM2 behind a prefix: beam 3, one photo, 12 tokens", [row])
