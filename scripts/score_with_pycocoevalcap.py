"""Caption a data file's photos and score them with the field's own scorer (needs Java and `pip install -e '.[score]'`).

python scripts/score_with_pycocoevalcap.py DATA.json --split test --model plain --beam 3
"""

import argparse
import json

import numpy as np
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from tellapart.captioning import load
from tellapart.data import examples
from tellapart.progress import Progress

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data")
parser.add_argument("--split", default="test")
parser.add_argument("--model", default="plain")
parser.add_argument("--beam", type=int, default=3)
parser.add_argument("--out", help="write the captions here, as {id: caption}")
request = parser.parse_args()

photos = examples.read(request.data).split(request.split)
captions = {}
with Progress("captions", len(photos)) as bar:
    rows = load(request.model).caption((photo.file for photo in photos), beam=request.beam)
    for photo, row in zip(photos, rows, strict=True):
        captions[str(photo.id)] = row.text
        bar.advance()
if request.out:
    with open(request.out, "w") as file:  # noqa: PTH123
        json.dump(captions, file)

tokenize = PTBTokenizer().tokenize
references = tokenize({str(p.id): [{"caption": text} for text in p.captions] for p in photos})
said = tokenize({key: [{"caption": text}] for key, text in captions.items()})
cider, each = Cider().compute_score(references, said)
bleu, _ = Bleu(4).compute_score(references, said, verbose=0)
draw = np.random.default_rng(0)
means = [draw.choice(each, len(each)).mean() for _ in range(1000)]
low, high = np.percentile(means, [2.5, 97.5])
print(f"{request.data} {request.split}, {len(photos)} photos, {request.model}, beam {request.beam}")
print(f"CIDEr-D {cider:.4f} [{low:.4f}, {high:.4f}], " + ", ".join(f"BLEU-{n} {b:.4f}" for n, b in enumerate(bleu, 1)))
words = np.mean([len(caption.split()) for caption in captions.values()])
print(f"{len(set(captions.values()))} different captions, {words:.2f} words each")
