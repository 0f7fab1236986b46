"""Learn from captions what people go on with after three words, for the measure `UnusualOrder`.

python scripts/build_unusual_order.py captions.json.gz \
    --out packages/capscore/src/capscore/data/coco_unusual_order.txt.gz
"""

import argparse
from pathlib import Path

from capscore import caption_files
from capscore.scoring import ScoringInputs
from capscore.words import END, WordOrder, roles

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("references", help="{id: [captions]}, COCO annotations, or a data file")
parser.add_argument("--out", type=Path, required=True)
request = parser.parse_args()

references = list(caption_files.read_references(request.references).by_id.values())
captions = [[*roles(words), END] for texts in ScoringInputs([], references).reference_words for words in texts]
WordOrder.of(captions).save(request.out)
print(f"{request.out}: of {len(captions)} captions, {request.out.stat().st_size / 1e3:.0f} kB")
