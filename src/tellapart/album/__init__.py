"""The embedded default: captioners and photos that come with the package."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
EMBEDDED = {"plain": HERE / "plain"}  # name: model folder
DEFAULT = "plain"
TUNE = HERE / "tune.yaml"  # the recipe of `tellapart demo --train`
