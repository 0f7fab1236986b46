"""Photos, clips, models, graphs and stores to be fuzzed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

# Photos and clips


def photos(folder: Path) -> None:
    from PIL import Image

    from attacks import photos as attacks

    small = attacks.noise(24, 32)
    tags = Image.Exif()
    tags[0x0112], tags[0x010E] = 6, "a dog"
    settings: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "exif.jpg": (small, "JPEG", {"exif": tags, "comment": b"note", "icc_profile": b"\0" * 200}),
        "progressive.jpg": (small, "JPEG", {"progressive": True}),
        "inks.jpg": (small.convert("CMYK"), "JPEG", {}),
        "grey.jpg": (small.convert("L"), "JPEG", {}),
        "colour.png": (small, "PNG", {"exif": tags}),
        "palette.png": (small.convert("P"), "PNG", {"transparency": bytes(range(256))}),
        "bits.png": (small.convert("1"), "PNG", {}),
        "opacity.png": (small.convert("RGBA"), "PNG", {}),
        "lossy.webp": (small, "WEBP", {"exif": tags, "xmp": b"<x/>"}),
        "lossless.webp": (small.convert("RGBA"), "WEBP", {"lossless": True}),
        "palette.gif": (small.convert("P"), "GIF", {"transparency": 3}),
        "moving.gif": (small.convert("P"), "GIF", {"save_all": True, "append_images": [attacks.noise(24, 32, 1)]}),
        "colour.bmp": (small, "BMP", {}),
        "plain.tif": (small, "TIFF", {"tiffinfo": {0x0112: 6}}),
        "packed.tif": (small, "TIFF", {"compression": "tiff_lzw"}),
        "deflated.tif": (small.convert("RGBA"), "TIFF", {"compression": "tiff_adobe_deflate"}),
        "fax.tif": (small.convert("1"), "TIFF", {"compression": "group3"}),
        "jpeg.tif": (small, "TIFF", {"compression": "jpeg"}),
        "fractions.tif": (small.convert("F"), "TIFF", {}),
        "colour.avif": (small, "AVIF", {}),
    }
    for name, (image, format, more) in settings.items():
        image.save(folder / name, format, **more)
    for odd in ("sixteen-bit PNG", "colour that stands for transparent", "palette with half transparency"):
        attacks.ODD[odd](folder)


def read_photo(path: Path) -> None:
    from tellapart.data.media import identity, photos

    identity.identify(path)
    photos.read(path, 32)
    photos.read(path, 16, photos.Fit(crop=True, exact=True))


def bare_photos() -> None:
    from tellapart.data.media import photos

    photos._refusing = lambda file: nullcontext()  # type: ignore[assignment]


def writable_photos(folder: Path) -> None:
    from attacks import photos as attacks
    from tellapart.desk import xmp

    photos(folder)
    for path in folder.iterdir():
        if path.suffix not in (".jpg", ".png", ".webp"):
            path.unlink()
    small, packet = attacks.noise(24, 32), xmp.EMPTY.decode()
    for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        small.save(folder / f"{encoding}.jpg", xmp=packet.encode(encoding))
        small.save(folder / f"{encoding}.webp", xmp=packet.encode(encoding))
    caption = b"8BIM\x04\x04\0\0\0\0\0\x0a\x1c\x02\x78\0\x05a dog"
    resources = b"\xff\xed" + (len(caption) + 16).to_bytes(2, "big") + b"Photoshop 3.0\0" + caption
    (folder / "iptc.jpg").write_bytes(b"\xff\xd8" + resources + (folder / "grey.jpg").read_bytes()[2:])


def read_metadata(path: Path) -> None:
    """A caption is written into the photo: its picture stays the same, and once more changes nothing."""
    from capscore.errors import UserError
    from tellapart.data.media.identity import picture_sha256
    from tellapart.desk import in_file, xmp

    text, data = xmp.Text({"x-default": "a dog"}, False, "2026-01-01T00:00:00Z"), path.read_bytes()
    try:
        in_file.read(data, path.name)
        merged = in_file.merge(data, path.name, text, xmp.MergeOptions())
    except xmp.BadPacket as error:
        raise UserError(str(error)) from None
    assert picture_sha256(merged.data) == picture_sha256(data), "the picture changed"
    assert in_file.merge(merged.data, path.name, text, xmp.MergeOptions()).data == merged.data, (
        "a second time changes it"
    )


def clips(folder: Path) -> None:
    import numpy as np

    from support.clips import write_clip

    write_clip(folder / "a.mp4", 6)
    write_clip(folder / "b.mp4", 4, sound=np.sin(np.arange(4000) / 20), options={"movflags": "faststart"})
    write_clip(folder / "c.mkv", 5, codec="mpeg4", b_frames=0)
    write_clip(folder / "d.avi", 4, codec="mpeg4", b_frames=0)
    write_clip(folder / "e.ts", 5)


def read_clip(path: Path) -> None:
    from tellapart.data.media import clips

    with clips.open_clip(path) as clip:
        clip.frames(clip.evenly(3))


def unbounded_clips() -> None:
    """Frames are decoded whatever their size, and what FFmpeg raises is not explained."""
    import av

    from tellapart.data.media import clips

    class Bare:
        def __getattr__(self, name: str) -> Any:
            return type("Never", (Exception,), {}) if name.endswith("Error") else getattr(av, name)

    import sys

    sys.modules["av"] = Bare()  # type: ignore[assignment]
    clips.MAX_PIXELS = 1 << 40


# Models, graphs, stores


def model(folder: Path) -> None:
    from support import small_models

    small_models.captioner(folder)


def read_model(path: Path) -> None:
    """The other files of the folder are whole."""
    import torch

    from tellapart import models

    models.load(path.parent, torch.device("cpu"))


def any_settings() -> None:
    """A network is made with whatever a folder says."""
    from tellapart.models import networks

    networks.check_settings = lambda *_: None


def graphs(folder: Path) -> None:
    import numpy as np

    from detectors import tiny_yolox

    tiny_yolox.write(folder / "a.onnx", tiny_yolox.nothing())
    tiny_yolox.write(folder / "b.onnx", np.full((tiny_yolox.rows_of(), 8), 0.5, np.float32))


def read_graph(path: Path) -> None:
    from PIL import Image

    from tellapart.detectors import yolox

    detector = yolox.load(path)
    detector(detector.read(Image.new("RGB", (40, 30), (9, 99, 9))))


def any_graph() -> None:
    """A graph that is damaged is not explained."""
    import onnxruntime

    from tellapart import onnx

    onnx.session = lambda graph, name, weights=None: onnxruntime.InferenceSession(graph)


_PHOTO = {"file": "a.jpg", "sha256": "0" * 64, "bytes": 9, "mtime_ns": 1}


def stores(folder: Path) -> None:
    import torch

    store = _store(folder)
    entries = [{"id": str(n), **_PHOTO} for n in range(6)]
    store.append([torch.arange(48).reshape(6, 2, 4).half(), torch.ones(6, 4, dtype=torch.int32)], entries)


def _store(folder: Path) -> Any:
    from tellapart.data.store import Array, Store
    from tellapart.features.extracted import PHOTO_KEYS

    manifest = {"format": 1, "encoder": {"name": "x", "image_size": 64, "weights_sha256": "0"}}
    return Store(folder, manifest, {"grid": (2, 4), "count": Array((4,), "i32")}, PHOTO_KEYS)


def read_store(path: Path) -> None:
    import torch

    store = _store(path.parent)
    rows = [store.row_of(id) for id in store.lines]
    for name in store.arrays:
        assert len(store.read(name, rows)) == len(rows)
    with store.writing():
        store.append([torch.zeros(1, 2, 4), torch.zeros(1, 4)], [{"id": "new", **_PHOTO}])
    assert "new" in _store(path.parent).lines, "what was added is not there"


def any_journal() -> None:
    from tellapart.data.store import Store

    Store._parse = lambda self, line: json.loads(line)  # type: ignore[method-assign]


def archives(folder: Path) -> None:
    from support import region_archives

    photos = {str(n): region_archives.photo(n, 3) for n in range(3)}
    for make in ("as_tsv", "as_npz", "as_safetensors"):
        getattr(region_archives, make)(folder / make, photos)


def read_archive(path: Path) -> None:
    from tellapart.features import importing

    for one in importing.read([path], lambda id: True):
        assert isinstance(one, importing.Broken) or len(one.features) >= 0


def frequencies(folder: Path) -> None:
    from capscore import ngrams

    captions = [[["a", "dog", "in", "the", "snow"], ["a", "white", "dog"]]] * 3
    ngrams.save(ngrams.count(captions), folder / "table.npz")


def read_frequencies(path: Path) -> None:
    from capscore import ngrams

    ngrams.load(path)
