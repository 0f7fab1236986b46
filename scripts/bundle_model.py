"""Put a model or a finished run's best weights into the package as an embedded captioner or retriever, in 8 bits.

    python scripts/bundle_model.py runs/plain plain
    python scripts/bundle_model.py runs/clips clips
    python scripts/bundle_model.py runs/judge judge

Its encoder is from then on the bundled one, whose weights are the published ones in half precision.  The model card,
README.md in the same folder, is written by hand.
"""

import sys
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import save

from capscore import files
from tellapart import album, models, retrievers
from tellapart.captioners import CAPTIONERS
from tellapart.encoders.loading import load
from tellapart.models import weights
from tellapart.recipe import EncoderConfig

run, name = Path(sys.argv[1]), sys.argv[2]
kind, table = ("retriever", retrievers.RETRIEVERS) if name in retrievers.EMBEDDED else ("captioner", CAPTIONERS)
folder = retrievers.EMBEDDED.get(name) or album.HERE / name
config = models.read_config(run, kind)
network = models.build(table, kind, config.name, config.settings)
models.load_weights(run, network)
seen_with = {
    key: config.inputs["regions"][key]
    for key in (f.name for f in fields(EncoderConfig))
    if key in config.inputs["regions"]
}
if "tuned" in config.inputs["regions"]:  # from then on that of the package, if it is the same
    seen_with["name"] = f"{config.inputs['regions']['tuned']}_tuned"
encoder = load(EncoderConfig(**seen_with), torch.device("cpu"))
if "tuned" in config.inputs["regions"] and encoder.weights_sha256 != config.inputs["regions"]["weights_sha256"]:
    sys.exit(f"{run} learned from another encoder; first: python scripts/bundle_encoder.py {seen_with['name']} RUN")

folder.mkdir(exist_ok=True)
models.describe(
    folder, config.name, network, models.load_tokenizer(run, config.settings), {"regions": encoder.identity}, kind
)
files.replace(folder / "model.safetensors", save(weights.packed(network.state_dict())))
print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB from {run}")
