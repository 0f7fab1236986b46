"""The mean of several captioners that grew from the same weights, as a model folder: see `tellapart.models.averaging`.

python scripts/average_models.py runs/ranks_0 runs/ranks_1 runs/ranks_2 --out runs/ranks
python scripts/average_models.py runs/scst runs/ranks --shares 1 3 --out runs/between
python scripts/average_models.py runs/ranks runs/views_xe runs/plain_xe --shares 1 0.5 -0.5 --out runs/with_views
"""

import argparse
import sys
from pathlib import Path

from capscore.errors import UserError
from tellapart import models
from tellapart.models.averaging import average

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("models", nargs="+", help="model or run folders, or names")
parser.add_argument("--shares", nargs="+", type=float, help="how much each counts (default: all alike)")
parser.add_argument("--out", type=Path, required=True, help="model folder to write")
request = parser.parse_args()
try:
    average([models.find(name) for name in request.models], request.out, request.shares)
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
