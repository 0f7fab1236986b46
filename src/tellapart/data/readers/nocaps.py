"""nocaps' own annotations: nocaps_val_4500_captions.json, and the image lists without captions.

    {"images": [{"id": 0, "file_name": "0013ea2087020901.jpg", "domain": "in-domain", "open_images_id": "0013ea2087020901"}],
     "annotations": [{"id": 0, "image_id": 0, "caption": "A baby is standing in front of a house."}]}

The splits are the domains, `in`, `near` and `out`: figures are compared by domain.  A list without domains has the split
of its file's name.
"""  # noqa: E501  a record of the file

from __future__ import annotations

from pathlib import Path

from tellapart.data.examples import DataSet
from tellapart.data.readers import coco

DOMAINS = {"in-domain": "in", "near-domain": "near", "out-domain": "out"}


def read(source: Path, photos: Path | None = None) -> DataSet:
    return coco.read(source, photos, name="nocaps", pattern="nocaps_*.json", split_of=_split)


def _split(image: dict[str, object], otherwise: str) -> str:
    domain = image.get("domain")
    return DOMAINS.get(domain, domain) if isinstance(domain, str) else otherwise
