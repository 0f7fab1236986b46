"""Where things are: what we keep between runs, and the files of packages that are installed beside us."""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from pathlib import Path


def cache() -> Path | None:
    """A folder for what can be computed again: $TELLAPART_CACHE, else the user's cache; None without a home."""
    if chosen := os.environ.get("TELLAPART_CACHE"):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):
        return (caches if caches.is_absolute() else Path.home() / ".cache") / "tellapart"
    return None


def encoders() -> list[Path]:
    """Folders of networks that the user lets models see with: $TELLAPART_ENCODERS, with : between them."""
    return [Path(folder) for folder in os.environ.get("TELLAPART_ENCODERS", "").split(os.pathsep) if folder]


def package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec else None
    return Path(next(iter(folders))) if folders else None
