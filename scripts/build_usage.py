"""Learn from captions what people go on with after three words, for the measure `Odd`: the bundled table is of COCO's.

python scripts/build_usage.py captions.json.gz --out src/tellapart/metrics/data/coco_usage.txt.gz
"""

import argparse
from pathlib import Path

from tellapart.metrics import caption_files
from tellapart.metrics.material import Material
from tellapart.metrics.usage import END, Usage, roles

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("references", help="{id: [captions]}, COCO annotations, or a data file")
parser.add_argument("--out", type=Path, required=True)
request = parser.parse_args()

told = Material([], list(caption_files.read_references(request.references).by_id.values())).told
captions = [[*roles(words), END] for texts in told for words in texts]
Usage.of(captions).save(request.out)
print(f"{request.out}: of {len(captions)} captions, {request.out.stat().st_size / 1e3:.0f} kB")
