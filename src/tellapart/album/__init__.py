"""The embedded default: captioners and photos that come with the package."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
EMBEDDED = {name: HERE / name for name in ("plain", "distinctive")}  # name: model folder
DEFAULT = "distinctive"
TUNE = HERE / "tune.yaml"  # the recipe of `tellapart demo --train`
