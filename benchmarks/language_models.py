"""Captions of a prefix captioner over SmolLM2, one photo at a time, beam 3: transformers' `generate` against ours.

    python benchmarks/language_models.py
    python benchmarks/language_models.py runs/smollm2_xe --data flickr8k/captions.json --features features

generate    transformers, in single precision, from the same prefix embeddings
ours fp32   `beam_search` with the same weights
ours int8   the same with the linear layers of the language model in 8 bits

All on one thread, in CPU time, captions of 12 tokens.  Without a model the mapper has random weights, which takes the
same time.  With --data, the CIDEr-D of a trained one in single precision and in 8 bits.
"""

from __future__ import annotations

import argparse
import copy
import time
from functools import partial
from pathlib import Path

import torch
from timing import side_by_side, table

from tellapart import models
from tellapart.captioners import language_models
from tellapart.captioners.int8 import to_int8
from tellapart.data import examples
from tellapart.data.streams import region_inputs
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules
from tellapart.features.extracted import FeatureStore, store_folder
from tellapart.metrics.scoring import score

BEAM, TOKENS, CPU = 3, 12, torch.device("cpu")
SETTINGS = {"language_model": "smollm2", "mapper": "transformer", "prefix": 8, "image_tokens": 0, "mapper_layers": 2}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", nargs="?")
parser.add_argument("--data", type=Path)
parser.add_argument("--split", default="val")
parser.add_argument("--features", type=Path, default=Path("features"))
parser.add_argument("--photos", type=int, default=200)
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
int8 = copy.deepcopy(exact)
to_int8(int8.language_model)
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
        "ours fp32": partial(ours, exact, seen, **length),
        "ours int8": partial(ours, int8, seen, **length),
    }
    took = side_by_side(parts, repeats=request.repeats, clock=time.process_time)
    row = {f"{name}, ms a caption": f"{1000 * seconds:.0f}" for name, seconds in took.items()}
    row |= {f"generate / {name}": f"{took['generate'] / took[name]:.1f}" for name in parts if name != "generate"}
    table("SmolLM2 behind a prefix: beam 3, one photo, 12 tokens", [row])
    if request.data and request.model:
        encoder, dataset = models.encoder_of(loaded, CPU), examples.read(request.data)
        chosen = [example for example in dataset.split(request.split) if example.captions][: request.photos]
        store = FeatureStore(store_folder(request.features, dataset.name, encoder), encoder)
        found = {}
        for name, captioner in {"fp32": exact, "int8": int8}.items():
            found[name] = [
                ours(captioner, region_inputs(store.grid([store.row(example)])), max_words=20)[0] for example in chosen
            ]
        references = {example.id: list(example.captions) for example in chosen}
        figures = {
            name: score(
                {one.id: text for one, text in zip(chosen, texts, strict=True)}, references, metrics=["CIDEr-D"]
            )
            for name, texts in found.items()
        }
        same = sum(one == other for one, other in zip(*found.values(), strict=True))
        row = {f"CIDEr-D {name}, x100": f"{100 * figure['CIDEr-D']:.2f}" for name, figure in figures.items()}
        table(f"{dataset.name} {request.split}", [row | {"same captions": f"{same} of {len(chosen)}"}])
