"""Put a finished run's best weights into the package as an embedded captioner, in half precision.

    python scripts/bundle_model.py runs/plain_xe plain

The model card, README.md in the same folder, is written by hand.
"""

import shutil
import sys
from pathlib import Path

import torch

from tellapart import models
from tellapart.album import EMBEDDED

run, name = Path(sys.argv[1]), sys.argv[2]
model = models.load(run, torch.device("cpu"))
folder = EMBEDDED[name]
folder.mkdir(exist_ok=True)
for file in ("config.json", "vocabulary.json"):
    shutil.copyfile(run / file, folder / file)
models.save_weights(folder / "model.safetensors", model.captioner, torch.float16)  # type: ignore[arg-type]
print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB from {run}")
