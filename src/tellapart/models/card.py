"""Model folders that others can use: written whole, described by a model card, and put onto the Hugging Face hub.

A folder has config.json, vocabulary.json, model.safetensors and README.md, the card.  `tellapart.load` takes such a
folder, or its name on the hub.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from capscore import files
from capscore.errors import UserError
from tellapart import hub, models
from tellapart.captioners import CAPTIONERS
from tellapart.models.parts import carry, parts_in

CARD = "README.md"


def save(model: models.Model, folder: Path, *, card: str = "", metrics: Mapping[str, float] | None = None) -> None:
    """Write a model folder.

    card     the whole model card; default: one that says what is known
    metrics  figures that such a card shows, by name
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder.")
    if hasattr(model.captioner, "save_pretrained"):  # of transformers, and in its form
        model.captioner.save_pretrained(folder)
        return
    network, kind = model.captioner, type(model.captioner)
    if not isinstance(network, nn.Module):
        raise UserError("only a captioner with weights of its own can be shared so, not an ensemble.")
    entries = CAPTIONERS.items()
    name = next((n for n, entry in entries if (entry.module, entry.name) == (kind.__module__, kind.__name__)), "")
    if not name:
        raise UserError(f"{kind.__name__} is not one of the captioners that there are: {', '.join(CAPTIONERS)}.")
    config = models.Config(name, vars(network.config), model.inputs)
    models.describe(folder, name, network, model.tokenizer, model.inputs)
    carry((part for source in model.folders for part in parts_in(source)), folder)
    models.save_weights(folder / "model.safetensors", network, torch.float32)
    text = card or model_card(config, title=folder.resolve().name, words=len(model.tokenizer), metrics=metrics)
    files.replace(folder / CARD, text.encode())


def push(
    model: models.Model,
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    card: str = "",
    metrics: Mapping[str, float] | None = None,
) -> str:
    """Put a model onto the hub as owner/name; returns the address of the commit.

    token  of the hub's user; default: the one that `hf auth login` keeps, or HF_TOKEN
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, name.rsplit("/")[-1] or "model")
        save(model, folder, card=card, metrics=metrics)
        return hub.push(folder, name, models.PARTS, private=private, token=token)


def model_card(config: models.Config, *, title: str, words: int, metrics: Mapping[str, float] | None = None) -> str:
    """A card of the facts that need nobody who made the model."""
    settings = ", ".join(f"{key} {value}" for key, value in config.settings.items() if not models.is_size(key))
    rows = [("captioner", f"{config.name}: {settings}"), ("vocabulary", f"{words} words")]
    for stream, encoder in config.inputs.items():
        alone, size = len(config.inputs) == 1, encoder.get("image_size")
        grids = [encoder[key] for key in ("grid", "coarse") if encoder.get(key)]
        cells = " and ".join(f"{grid} x {grid} cells" for grid in grids)
        sees = f"{encoder.get('name')}{f' at {size} x {size} pixels, {cells}' if size and cells else ''}"
        rows.append(("photos are seen by" if alone else f"{stream} come from", sees))
        if sha256 := encoder.get("weights_sha256"):
            rows.append(("with weights", f"sha256 {sha256}"))
    rows += [(name, f"{value:.4g}") for name, value in (metrics or {}).items()]
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)
    return f"""---
library_name: tellapart
pipeline_tag: image-to-text
license: other
language: en
tags: [image-captioning, tellapart, {json.dumps(config.name)}]
---
# {title}

An image captioner, made with tellapart.

| | |
|---|---|
{table}

## Use

```python
import tellapart

captioner = tellapart.load("THIS_FOLDER_OR_HUB_ID")
captioner.caption("photo.jpg").text
```

The weights of an image encoder that was tuned are in `parts`.  Those of others are not in this folder; tellapart knows
where they come from, and refuses others.

## What it was trained on

Not stated.  Photos and captions have licences of their own, which the weights may inherit.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
