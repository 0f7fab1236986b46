"""Model folders with a real encoder and vocabulary and random weights: they say nonsense, and quickly."""

from functools import cache

import numpy as np
import torch
from PIL import Image

WORDS = ("a", "man", "riding", "wave", "red", "bus", "street", "cat", "on", "the", "bed")


def captioner(folder):
    from tellapart import models
    from tellapart.captioners.transformer import TINY
    from tellapart.data.tokenizers import WordTokenizer

    tokenizer, encoder = WordTokenizer([*WORDS]), small_encoder()
    torch.manual_seed(0)
    sizes = {"regions": encoder.feature_size}
    network = models.build_captioner("transformer", TINY, vocab_size=len(tokenizer), feature_sizes=sizes)
    with torch.no_grad():
        network.word_bias[tokenizer.eos] = -3.0  # or it has nothing to say
    return _saved(folder, "transformer", network, tokenizer, encoder.identity)


def retriever(folder, name="word_tower", words=(*WORDS, "dog"), seed=0, **settings):
    """No good judge, but a quick one."""
    from tellapart import models
    from tellapart.data.tokenizers import WordTokenizer
    from tellapart.retrievers import RETRIEVERS

    tokenizer, encoder, entry = WordTokenizer([*words]), small_encoder(), RETRIEVERS[name]
    settings = (settings or entry.tiny) | {"vocab_size": len(tokenizer), "feature_size": encoder.feature_size}
    torch.manual_seed(seed)
    network = models.build(RETRIEVERS, "retriever", name, settings)
    identity = encoder.identity if entry.sees == "photos" else {}
    return _saved(folder, name, network, tokenizer, identity, "retriever")


@cache
def small_encoder():
    from tellapart.encoders.encoder import Encoder
    from tellapart.recipe import EncoderConfig

    return Encoder(EncoderConfig(image_size=64, grid=2))


def _saved(folder, name, network, tokenizer, identity, *kind):
    from tellapart import models

    folder.mkdir(parents=True, exist_ok=True)
    models.describe(folder, name, network, tokenizer, {"regions": identity}, *kind)
    models.save_weights(folder / "model.safetensors", network)
    return folder


def photos(folder, count=6, name="{}.png"):
    """Different small photos."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(count):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((40 + i, 32), Image.Resampling.NEAREST).save(folder / name.format(i))
    return folder
