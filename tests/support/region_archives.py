"""Archives of region features as other programs write them."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEIGHT = 40, 20


def photo(seed: int, regions: int, size: int = 8) -> dict[str, np.ndarray]:
    """Features (R, D) that half precision holds exactly, and boxes (R, 4) in pixels."""
    draw = np.random.default_rng(seed)
    features = draw.integers(0, 64, (regions, size)).astype(np.float32) / 8
    left, top = draw.integers(0, WIDTH // 2, regions), draw.integers(0, HEIGHT // 2, regions)
    boxes = np.stack([left, top, left + draw.integers(1, WIDTH // 2, regions), top + HEIGHT // 4], 1)
    return {"features": features, "boxes": boxes.astype(np.float32)}


def line(id: object, features: np.ndarray, boxes: np.ndarray) -> str:
    """Of a TSV archive of bottom-up attention."""
    cells = [id, WIDTH, HEIGHT, len(features), *(base64.b64encode(x.tobytes()).decode() for x in (boxes, features))]
    return "\t".join(map(str, cells)) + "\n"


def lxmert_line(id: object, features: np.ndarray, boxes: np.ndarray) -> str:
    coded = [base64.b64encode(x.tobytes()).decode() for x in (boxes, features)]
    return "\t".join(map(str, [id, HEIGHT, WIDTH, "", "", "", "", len(features), *coded])) + "\n"


def as_tsv(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    path.with_suffix(".tsv").write_text("".join(line(id, **arrays) for id, arrays in photos.items()))
    return [path.with_suffix(".tsv")]


def as_two_tsv(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    half = len(photos) // 2
    parts = dict(list(photos.items())[:half]), dict(list(photos.items())[half:])
    return [as_tsv(path.with_name(f"{path.name}{i}"), part)[0] for i, part in enumerate(parts)]


def as_lxmert_tsv(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    head = "img_id\timg_h\timg_w\tobjects_id\tobjects_conf\tattrs_id\tattrs_conf\tnum_boxes\tboxes\tfeatures\n"
    path.with_suffix(".tsv").write_text(head + "".join(lxmert_line(id, **arrays) for id, arrays in photos.items()))
    return [path.with_suffix(".tsv")]


def _flat(photos: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    sizes = {"image_w": np.array(WIDTH), "image_h": np.array(HEIGHT)}
    return {f"{id}/{name}": array for id, arrays in photos.items() for name, array in (arrays | sizes).items()}


def as_npz(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    np.savez_compressed(path.with_suffix(".npz"), **_flat(photos))
    return [path.with_suffix(".npz")]


def as_safetensors(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    save_file(_flat(photos), path.with_suffix(".safetensors"))
    return [path.with_suffix(".safetensors")]


def as_folder_of_npz(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    """Filled up to a hundred, as some programs do, with the number of those that count."""
    path.mkdir()
    for id, arrays in photos.items():
        filled = {name: np.concatenate([array, np.full((100 - len(array), array.shape[1]), 7, np.float32)])
                  for name, array in arrays.items()}  # fmt: skip
        sizes = {"num_boxes": len(arrays["boxes"]), "image_w": WIDTH, "image_h": HEIGHT}
        np.savez(path / f"{id}.npz", x=filled["features"], bbox=filled["boxes"], **sizes)
    return [path]


def as_folder_of_safetensors(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    path.mkdir()
    for id, arrays in photos.items():
        fractions = arrays["boxes"] / np.array([WIDTH, HEIGHT] * 2, np.float32)
        save_file({"feat": arrays["features"].astype(np.float16), "boxes": fractions}, path / f"{id}.safetensors")
    return [path]


WITH_BOXES = {
    "tsv": as_tsv,
    "two tsv": as_two_tsv,
    "lxmert tsv": as_lxmert_tsv,
    "npz": as_npz,
    "safetensors": as_safetensors,
    "folder of npz": as_folder_of_npz,
    "folder of safetensors": as_folder_of_safetensors,
}


def as_folder_of_npy(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    path.mkdir()
    for id, arrays in photos.items():
        np.save(path / f"{id}.npy", arrays["features"])
    return [path]


def as_folder_of_feat(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    """As ImageCaptioning.pytorch keeps them (cocobu_att)."""
    path.mkdir()
    for id, arrays in photos.items():
        np.savez_compressed(path / f"{id}.npz", feat=arrays["features"])
    return [path]


def as_bare_npz(path: Path, photos: dict[str, dict[str, np.ndarray]]) -> list[Path]:
    np.savez(path.with_suffix(".npz"), **{id: arrays["features"] for id, arrays in photos.items()})
    return [path.with_suffix(".npz")]


WITHOUT_BOXES = {"folder of npy": as_folder_of_npy, "folder of feat": as_folder_of_feat, "bare npz": as_bare_npz}
