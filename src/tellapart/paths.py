"""Where things are: what we keep between runs, and the networks that a user lets models see with."""

from __future__ import annotations

import os
from pathlib import Path

from capscore import system


def cache() -> Path | None:
    """A folder for what can be computed again: $TELLAPART_CACHE, else the user's cache; None without a home."""
    return system.cache("tellapart")


def encoders() -> list[Path]:
    """Folders of networks that the user lets models see with: $TELLAPART_ENCODERS, with : between them."""
    return [Path(folder) for folder in os.environ.get("TELLAPART_ENCODERS", "").split(os.pathsep) if folder]
