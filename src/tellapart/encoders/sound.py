"""The sound of a clip as a stream: the log-mel spectrum in windows evenly in time; silent windows do not exist.

A row is the mean and the deviation, over the window, of the level in each mel band, in decibels.  Clips without sound,
silent ones and photos have no rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tellapart.data.examples import segment_of
from tellapart.data.media import clips
from tellapart.data.media.photos import SQUEEZE, Photo
from tellapart.encoders.encoder import Features
from tellapart.recipe import EncoderConfig

RATE = 16000
BANDS = 64
WINDOWS = 16  # of a clip, where the recipe does not say
_LENGTH, _HOP, _FFT = 400, 160, 512  # samples: 25 ms every 10 ms
_LOWEST, _HIGHEST = 50.0, 7600.0  # Hz
_FLOOR = -100.0  # dB of full scale
_SILENT = -60.0  # dB; ...
_SHARE = 0.05  # ... a window that is louder in less than this share of its time is silent
_DEVIATION = 40.0  # dB at most
_STEPS = 255
_BLOCK = 1000  # spectra that are computed together


class LogMel:
    """Reads the sound of clips; has no weights."""

    fit, counts_regions = SQUEEZE, True
    feature_size = pooled_size = 2 * BANDS

    def __init__(self, config: EncoderConfig):
        self.config, self.regions = config, config.frames or WINDOWS
        settings = f"log-mel 1 {RATE} {BANDS} {_LENGTH} {_HOP} {_LOWEST} {_HIGHEST} {_FLOOR} {_SILENT} {_SHARE}"
        self.weights_sha256 = hashlib.sha256(settings.encode()).hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        return self.config.identity | {"weights_sha256": self.weights_sha256}

    def read(self, source: clips.Source) -> Photo:
        """(N, 2 * BANDS) in 256 steps; a row of zeros is a silent window"""
        with clips.open_clip(source) as clip:
            duration = clip.duration
        rows = np.zeros((self.regions, 2 * BANDS), np.uint8)
        if not isinstance(source, Image.Image) and duration > 0 and clips.is_clip(source):
            rows = self._windows(source, duration)
        return Photo(rows, clips.sha256(source))

    def _windows(self, file: Any, duration: float) -> NDArray[np.uint8]:
        total, squares = np.zeros((2, self.regions, BANDS))
        counts, loud = np.zeros((2, self.regions))
        for first, samples in _blocks(file, duration):
            levels, loudness = log_mel(samples)
            moments = (first + _LENGTH / 2 + np.arange(len(levels)) * _HOP) / RATE
            window = np.minimum((moments / duration * self.regions).astype(np.int64), self.regions - 1)
            np.add.at(total, window, levels)
            np.add.at(squares, window, levels**2)
            np.add.at(counts, window, 1)
            np.add.at(loud, window, loudness > _SILENT)
        audible = (counts > 0) & (loud >= _SHARE * counts)
        mean = total / np.maximum(counts, 1)[:, None]
        deviation = np.sqrt(np.maximum(squares / np.maximum(counts, 1)[:, None] - mean**2, 0))
        rows = np.concatenate([(mean - _FLOOR) / -_FLOOR, deviation / _DEVIATION], 1).clip(0, 1) * (_STEPS - 1) + 1
        return np.where(audible[:, None], rows.round(), 0).astype(np.uint8)

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """(B, N, 2 * BANDS): the windows that are not silent first, in their order; then zeros"""
        rows = torch.as_tensor(pixels)
        exists = rows.any(2)
        order = (~exists).byte().sort(dim=1, stable=True).indices
        values = ((rows.float() - 1) / (_STEPS - 1)).clamp(min=0) * exists[..., None]
        grid = values.gather(1, order[..., None].expand_as(values))
        counts = exists.sum(1)
        return Features(grid, grid.sum(1) / counts.clamp(min=1)[:, None], counts)


def log_mel(samples: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Levels (T, BANDS) in dB, where a sine of full scale in a band has about 0, and the loudness (T,) of all bands."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, _LENGTH)[::_HOP]
    power = np.abs(np.fft.rfft(frames * _TAPER, _FFT)) ** 2 / (_TAPER.sum() / 2) ** 2  # (T, 257); 1 for such a sine
    levels = 10 * np.log10(np.maximum(power @ _FILTERS.T, 10 ** (_FLOOR / 10)))
    loudness = 10 * np.log10(np.maximum((frames.astype(np.float64) ** 2).mean(1), 10 ** (_FLOOR / 10)))
    return levels, loudness


def _mel(hertz: Any) -> Any:
    return 2595 * np.log10(1 + np.asarray(hertz) / 700)


def _filters() -> NDArray[np.float64]:
    """Triangles that overlap by half, evenly on the mel scale.  (BANDS, 257)"""
    edges = np.linspace(_mel(_LOWEST), _mel(_HIGHEST), BANDS + 2)
    bins = _mel(np.arange(_FFT // 2 + 1) * RATE / _FFT)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles: NDArray[np.float64] = np.minimum(rising, falling).clip(0, None)
    return triangles


_FILTERS = _filters()
_TAPER = np.hanning(_LENGTH)


def _blocks(file: Any, duration: float) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Samples at RATE, in mono, that spectra are made of, block by block, and the number of a block's first one."""
    start = found.start if (found := segment_of(file)) is not None else 0.0
    rest, place = np.zeros(0, np.float32), 0  # samples that wait for more, and the number of the first of them
    most = _HOP * (_BLOCK - 1) + _LENGTH
    for time, piece in _decoded(file, start):
        if not len(rest):
            place = round(time * RATE)
        rest = np.concatenate([rest, piece])
        while len(rest) >= most or (place >= duration * RATE and len(rest)):
            if place >= duration * RATE:
                return
            yield place, rest[:most]
            rest, place = rest[_HOP * _BLOCK :], place + _HOP * _BLOCK
    last = rest[: max(round(duration * RATE) - place, 0)]
    if len(last) >= _LENGTH:
        yield place, last


def _decoded(file: Any, start: float) -> Iterator[tuple[float, NDArray[np.float32]]]:
    """Pieces of the sound from a time on, each with its own time from there; none where there is no sound."""
    import av

    with clips.opened(file) as (container, _):
        stream = next(iter(container.streams.audio), None)
        if stream is None or not clips.has_decoder(stream):
            return
        stream.codec_context.thread_count = 1
        begin = clips.start_of(container)
        if start:
            container.seek(round((start + begin) * 1_000_000))
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        for packet in clips.packets(container, stream):
            try:
                frames = packet.decode()
            except av.FFmpegError:  # one damaged piece
                continue
            for frame in frames:
                time = float(frame.pts * frame.time_base) - begin - start if frame.pts is not None else 0.0
                for part_of_it in resampler.resample(frame):
                    samples = part_of_it.to_ndarray().reshape(-1).astype(np.float32)
                    before = min(max(round(-time * RATE), 0), len(samples))  # of what was not asked for
                    if before < len(samples):
                        yield max(time, 0.0), samples[before:]
