"""Where things are: what is kept between runs, and the files of packages that are installed beside us."""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from pathlib import Path


def cache(program: str = "capscore") -> Path | None:
    """A folder for what can be computed again: $CAPSCORE_CACHE, else the user's cache; None without a home."""
    if chosen := os.environ.get(f"{program.upper()}_CACHE"):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):
        return (caches if caches.is_absolute() else Path.home() / ".cache") / program
    return None


def package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec else None
    return Path(next(iter(folders))) if folders else None
