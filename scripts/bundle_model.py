"""Put a finished run's best weights into the package as an embedded captioner or retriever, in half precision.

    python scripts/bundle_model.py runs/plain_xe plain
    python scripts/bundle_model.py runs/word word

The model card, README.md in the same folder, is written by hand.
"""

import shutil
import sys
from pathlib import Path

import torch

from tellapart import album, models, retrievers
from tellapart.captioners import CAPTIONERS

run, name = Path(sys.argv[1]), sys.argv[2]
if name in album.EMBEDDED:
    config, folder = models.read_config(run, "captioner"), album.EMBEDDED[name]
    network = models.build(CAPTIONERS, "captioner", config.name, config.settings)
else:
    config, folder = models.read_config(run, "retriever"), retrievers.EMBEDDED[name]
    network = models.build(retrievers.RETRIEVERS, "retriever", config.name, config.settings)
models.load_weights(run, network)
folder.mkdir(exist_ok=True)
for file in ("config.json", "vocabulary.json"):
    shutil.copyfile(run / file, folder / file)
models.save_weights(folder / "model.safetensors", network, torch.float16)
print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB from {run}")
