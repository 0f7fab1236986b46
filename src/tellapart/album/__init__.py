"""The embedded default: captioners and photos that come with the package."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
DEFAULT = "distinctive"
CLIPS = "clips"  # the default of clips
# name: model folder.  Without the captioner of clips, the default describes a clip by its middle frame.
EMBEDDED = {name: HERE / name for name in ("plain", DEFAULT, CLIPS) if name != CLIPS or (HERE / CLIPS).is_dir()}
TUNE = HERE / "tune.yaml"  # the recipe of `tellapart demo --train`
