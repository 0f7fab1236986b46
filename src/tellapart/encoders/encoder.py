"""EfficientNet-Lite as a frozen encoder, pixels as they are, and any encoder for frames of clips or for views.

S pixels a side, B photos, R regions: the cells of the grid, D feature size.  An encoder is known by its name, its
settings and the hash of its weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from capscore.errors import UserError
from tellapart import encoders, onnx
from tellapart.data.media import clips, photos
from tellapart.data.media.photos import LEAST_SIDE, SQUEEZE, Fit, Photo, fitted
from tellapart.encoders import ENCODERS, PhotoEncoder, Published, efficientnet_lite, pretrained, unknown, weights_file
from tellapart.recipe import EncoderConfig, Pooling


class Features(NamedTuple):
    grid: Tensor  # (B, R, D), row by row from the top left; the cells of a second grid follow
    pooled: Tensor  # (B, D), the mean of the network's own map
    counts: Tensor | None = None  # (B,) how many of the first regions exist; none: all of them


@dataclass(frozen=True)
class Part:
    """A model that another one uses, and that a model folder carries."""

    folder: Path
    sha256: str


@dataclass(frozen=True)
class Tuned:
    """An EfficientNet-Lite that was trained further.

    base     its name in the table
    weights  all of them, in half precision, as the bundled ones are
    folder   of the run, or of the model that carries it; none where the package brings it
    """

    base: str
    weights: dict[str, Tensor]
    folder: Path | None


class Encoder:
    """A frozen EfficientNet-Lite with its settings.  Call it with pixels.

    On a CPU onnxruntime runs it, where it is installed and the network's graph is bundled: it is two to three times as
    quick as torch, with the same numbers but for rounding.
    """

    fit = photos.SQUEEZE

    def __init__(self, config: EncoderConfig, device: str | torch.device = "cpu", tuned: Tuned | None = None):
        name = tuned.base if tuned else config.name
        entry = ENCODERS.get(name)
        if not isinstance(entry, Published):
            raise unknown(name)
        check(config, least_size=efficientnet_lite.STRIDE)
        self.config, self.device, self.tuned = config, torch.device(device), tuned
        self.regions = config.cells
        self.feature_size = self.pooled_size = efficientnet_lite.FEATURE_SIZE
        graph = encoders.BUNDLED / f"{name}.onnx"  # has no weights of its own, and so is that of any which was tuned
        by_graph = self.device.type == "cpu" and graph.exists() and onnx.is_installed()
        if tuned:
            self.weights_sha256 = pretrained.sha256(tuned.weights)
        else:
            file = weights_file(name, entry)
            self.weights_sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        self.feature_map: FeatureMap
        if by_graph:
            self.feature_map = _by_graph(graph, tuned)
        else:
            weights = tuned.weights if tuned else read_weights(file)
            self.feature_map = _by_torch(entry.variant, weights, self.device)

    @property
    def part(self) -> Part | None:
        """The part that a model must carry to use it; none where the package brings it."""
        return Part(self.tuned.folder, self.weights_sha256) if self.tuned and self.tuned.folder else None

    @property
    def identity(self) -> dict[str, Any]:
        """Name, settings and the hash of the weights."""
        tuned = {"tuned": self.tuned.base} if self.tuned else {}
        return self.config.identity | tuned | {"weights_sha256": self.weights_sha256}

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        return pool(self.feature_map(pixels), self.config)


def bundled_tuned(config: EncoderConfig, device: torch.device) -> Encoder:
    """A tuned encoder that comes with the package: NAME_tuned.safetensors has the blocks that differ from NAME's."""
    base, _, _ = config.name.rpartition("_")
    weights, tuned = (load_file(encoders.BUNDLED / f"{name}.safetensors") for name in (base, config.name))
    return Encoder(config, device, Tuned(base, weights | tuned, None))


FeatureMap = Callable[[NDArray[np.uint8] | Tensor], Tensor]  # pixels (B, H, W, 3) -> (B, D, H / 32, W / 32)


def _by_torch(variant: int, weights: dict[str, Tensor], device: torch.device) -> FeatureMap:
    network = efficientnet_lite.EfficientNetLite(variant)
    network.load_state_dict(weights)
    network.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def feature_map(pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        images = torch.as_tensor(pixels).to(device).permute(0, 3, 1, 2)  # channels last in memory, as it came
        return network((images.float() - 127) / 128)  # type: ignore[no-any-return]

    return feature_map


def _by_graph(file: Path, tuned: Tuned | None) -> FeatureMap:
    if tuned:
        weights = {name: tensor.contiguous().numpy() for name, tensor in tuned.weights.items()}
        session = onnx.session(file.read_bytes(), file.name, weights)
    else:
        session = onnx.session(file, file.name)

    def feature_map(pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"pixels": torch.as_tensor(pixels).contiguous().cpu().numpy()})[0])

    return feature_map


def check(config: EncoderConfig, least_size: int) -> None:
    """Refuses settings out of range."""
    for field, least, most in (("image_size", least_size, 2048), ("grid", 1, 64), ("coarse", 0, 64)):
        if not least <= (value := getattr(config, field)) <= most:
            raise UserError(f"encoder: {field} must be from {least} to {most}, not {value}.")
    if config.pooling not in get_args(Pooling):
        raise UserError(f"encoder: pooling must be {' or '.join(get_args(Pooling))}, not {config.pooling!r}.")
    if config.pooling == "projected":
        raise UserError(f"encoder: pooling {config.pooling} is for CLIP and SigLIP by folder or hub id.")


def pool(feature_map: Tensor, config: EncoderConfig) -> Features:
    """A network's own map (B, D, H, W) as the cells that a captioner looks at: fewer, as many, or more."""
    resize, grids = F.adaptive_max_pool2d if config.pooling == "max" else F.adaptive_avg_pool2d, list[Tensor]()
    for side in config.grids:
        grid = feature_map if feature_map.shape[2:] == (side, side) else resize(feature_map, side)
        grids.append(grid.flatten(2).transpose(1, 2))  # (B, side * side, D), row by row
    return Features(torch.cat(grids, 1) if len(grids) > 1 else grids[0], feature_map.mean((2, 3)))


def read_weights(file: Path) -> dict[str, Tensor]:
    """Of an EfficientNet-Lite, in single precision."""
    if file.suffix == ".safetensors":  # ours: folded already, half precision
        return {name: tensor.float() for name, tensor in load_file(file).items()}
    return efficientnet_lite.fold(torch.load(file, weights_only=True, map_location="cpu"))


class Patches:
    """Has no weights."""

    fit, weights_sha256 = SQUEEZE, "0" * 64

    def __init__(self, config: EncoderConfig, device: torch.device | None = None):
        if config.image_size % config.grid or config.coarse:
            raise UserError("encoder: patches need an image_size that is a multiple of the grid, and no coarse grid.")
        self.config, self.regions = config, config.cells
        self.feature_size = self.pooled_size = 3 * (config.image_size // config.grid) ** 2

    @property
    def identity(self) -> dict[str, Any]:
        return self.config.identity | {"weights_sha256": self.weights_sha256}

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255 -> (B, R, D) in -1..1"""
        grid, side = self.config.grid, self.config.image_size // self.config.grid
        values = torch.as_tensor(pixels).float() / 127.5 - 1
        cells = values.reshape(-1, grid, side, grid, side, 3).permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
        return Features(cells, cells.mean(1))


_BATCH = 16  # frames through the encoder at once; more is no faster on a CPU


def read_squares(source: clips.Source, segments: int, offsets: Sequence[int], size: int, fit: Fit) -> Photo:
    """Of each segment its middle frame and others around it.  (segments, offsets, S, S, 3)

    offsets  by how many frames they come after it; outside of the clip, its first or last frame
    """
    with clips.open_clip(source) as clip:
        last, sha256 = len(clip) - 1, clips.sha256(source)
        numbers = [min(max(key + offset, 0), last) for key in clip.evenly(segments) for offset in offsets]
        frames = clip.each(sorted(set(numbers)))
        squares = {number: fitted(Image.fromarray(frame), sha256, size, fit).pixels for number, frame in frames}
    pixels = np.stack([squares[number] for number in numbers])
    return Photo(pixels.reshape(segments, len(offsets), *pixels.shape[1:]), sha256)


class FrameEncoder:
    """An encoder of photos that sees several frames of a clip; the pooled features are the mean of the frames'.

    around  each frame stands between those so many before and after it; 0: alone
    """

    def __init__(self, encoder: PhotoEncoder, frames: int, around: int = 0):
        self.of_photos, self.part = encoder, getattr(encoder, "part", None)
        self.frames, self.offsets = frames, (-around, 0, around) if around else (0,)
        self.config = replace(encoder.config, frames=frames, around=around)
        self.fit, self.weights_sha256 = encoder.fit, encoder.weights_sha256
        self.regions = frames * len(self.offsets) * encoder.regions
        self.feature_size, self.pooled_size = encoder.feature_size, encoder.pooled_size

    @property
    def identity(self) -> dict[str, Any]:
        around = {"around": self.config.around} if self.config.around else {}
        return self.of_photos.identity | {"frames": self.frames} | around

    def read(self, source: clips.Source) -> Photo:
        """(N, S, S, 3)"""
        photo = read_squares(source, self.frames, self.offsets, self.config.image_size, self.fit)
        return Photo(photo.pixels.reshape(-1, *photo.pixels.shape[2:]), photo.sha256)

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, N, S, S, 3) in 0..255"""
        batch, frames, *shape = pixels.shape
        flat = np.asarray(pixels).reshape(batch * frames, *shape)
        # A frame like the one before, as in a photo, need not be seen twice.
        new = np.array([n % frames == 0 or not np.array_equal(flat[n], flat[n - 1]) for n in range(len(flat))])
        parts = [self.of_photos(flat[some]) for some in np.array_split(np.flatnonzero(new), -(-new.sum() // _BATCH))]
        rows = torch.from_numpy(np.cumsum(new) - 1)
        grid, pooled = torch.cat([part.grid for part in parts]), torch.cat([part.pooled for part in parts])
        rows = rows.to(grid.device)
        return Features(grid[rows].reshape(batch, self.regions, -1), pooled[rows].reshape(batch, frames, -1).mean(1))


def of_photos(encoder: PhotoEncoder) -> PhotoEncoder:
    """The encoder of single photos behind one of clips; else itself."""
    return encoder.of_photos if isinstance(encoder, FrameEncoder) else encoder


def with_frames(config: EncoderConfig, load: Callable[[EncoderConfig], PhotoEncoder]) -> PhotoEncoder:
    """An encoder of photos, with as many frames of clips as the settings ask for.

    load  settings -> the encoder; one that reads clips itself is given the frames, and knows which it needs
    """
    if not config.frames:
        return load(config)
    encoder = load(replace(config, frames=0, around=0))
    return load(config) if hasattr(encoder, "read") else FrameEncoder(encoder, config.frames, config.around)


def in_view(encoder: PhotoEncoder, number: int) -> PhotoEncoder:
    """An encoder that is shown the same view of each frame of a clip, or of a photo."""
    if isinstance(encoder, FrameEncoder):
        return FrameEncoder(InView(encoder.of_photos, number), encoder.frames, encoder.offsets[-1])
    if not hasattr(encoder, "read"):
        return InView(encoder, number)
    name = encoder.config.name
    raise UserError(f"{name}: has its own way to read photos and clips, and cannot be shown views of them.")


class InView:
    """The same network, shown another part of each photo.

    number  which of the photo's views (`data.views`), from 1
    """

    def __init__(self, encoder: PhotoEncoder, number: int):
        self._encoder = encoder
        self.config, self.weights_sha256 = encoder.config, encoder.weights_sha256
        self.regions, self.feature_size, self.pooled_size = encoder.regions, encoder.feature_size, encoder.pooled_size
        self.fit = replace(encoder.fit, view=number)
        self.identity = encoder.identity | {"view": number, "view_least": LEAST_SIDE}

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        return self._encoder(pixels)
