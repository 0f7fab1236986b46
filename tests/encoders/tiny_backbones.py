"""Folders of tiny vision backbones with random weights, in the form in which transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path

import torch

SIZE, PATCH = 64, 16
TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VIT = TOWER | {"image_size": SIZE, "patch_size": PATCH}
CONVOLUTIONS = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
SETTINGS = {
    "resnet": CONVOLUTIONS | {"embedding_size": 8},
    "convnext": CONVOLUTIONS,
    "swin": {"embed_dim": 8, "depths": [1] * 4, "num_heads": [1] * 4, "window_size": 2, "image_size": SIZE},
    "vit": VIT,
    "dinov2_with_registers": VIT,
    "clip_vision_model": VIT,
    "siglip_vision_model": VIT,
    "bert": TOWER,
}


def network(kind: str):
    """With statistics of their own in the batch normalisations: fresh ones would hide a wrong order."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    made = AutoModel.from_config(AutoConfig.for_model(kind, **SETTINGS[kind])).eval()
    for name, buffer in made.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return made


def save(folder: Path, kind: str, **processor: object) -> Path:
    """processor  what preprocessor_config.json says; nothing: there is none"""
    network(kind).save_pretrained(folder)
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder
