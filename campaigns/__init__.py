"""Attacks on the whole program that go on for as long as one likes: `make campaign`, or `python -m campaigns --help`.

Each campaign first has to find faults that are planted for it.  What it finds after that is a fault of ours.
"""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_PLACES = [str(_ROOT / "src"), str(_ROOT / "tests")]  # hostile files and small models are made by code of the tests
sys.path[:0] = [place for place in _PLACES if place not in sys.path]
os.environ["PYTHONPATH"] = os.pathsep.join([*_PLACES, str(_ROOT)])
os.environ["OMP_NUM_THREADS"] = "1"
