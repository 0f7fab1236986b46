"""The embedded default: captioners and photos that come with the package."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
EMBEDDED = {"plain": HERE / "plain"}  # name: model folder
DEFAULT = "plain"
