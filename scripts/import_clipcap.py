"""A checkpoint of the authors' ClipCap program as a model folder.

python scripts/import_clipcap.py coco_weights.pt --gpt2 GPT2_FOLDER --clip CLIP_FOLDER --out models/clipcap
tellapart caption holiday/ --model models/clipcap
"""

import argparse
from pathlib import Path

import torch

from tellapart.captioners import language_models
from tellapart.encoders.loading import load
from tellapart.models import clipcap
from tellapart.recipe import EncoderConfig

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("checkpoint", type=Path, help="a .pt file of the authors' program, with either mapper")
parser.add_argument("--gpt2", default="openai-community/gpt2", help="folder or hub id, for the tokenizer")
parser.add_argument("--clip", default="openai/clip-vit-base-patch32", help="folder or hub id")
parser.add_argument("--out", type=Path, required=True)
given = parser.parse_args()

encoder = load(EncoderConfig(given.clip, 224, 1, "projected"), torch.device("cpu"))
clipcap.read(given.checkpoint, language_models.find(given.gpt2), encoder.identity, given.out)
