"""Count in how many photos' captions each n-gram is, for `--df`: the table that is bundled was made of COCO captions.

python scripts/build_document_frequencies.py captions.json.gz \
    --out packages/capscore/src/capscore/data/coco_frequencies.npz
"""

import argparse
from pathlib import Path

from capscore import ngrams
from capscore.scoring import document_frequencies

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("references", help="{id: [captions]}, COCO annotations, or a data file")
parser.add_argument("--out", type=Path, required=True)
request = parser.parse_args()

table = document_frequencies(request.references)
ngrams.save(table, request.out)
size = request.out.stat().st_size / 1e6
print(f"{request.out}: {len(table.ngrams.counts)} n-grams of {table.ngrams.documents} documents, {size:.2f} MB")
