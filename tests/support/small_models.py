"""Model folders with a real encoder and vocabulary and random weights: they say nonsense, and quickly."""

import numpy as np
import torch
from PIL import Image

WORDS = ("a", "man", "riding", "wave", "red", "bus", "street", "cat", "on", "the", "bed")


def captioner(folder):
    from tellapart import models
    from tellapart.captioners.transformer import TINY
    from tellapart.data.tokenizers import WordTokenizer
    from tellapart.encoders.encoder import Encoder
    from tellapart.recipe import EncoderConfig

    tokenizer, encoder = WordTokenizer([*WORDS]), Encoder(EncoderConfig(image_size=64, grid=2))
    torch.manual_seed(0)
    network = models.build_captioner(
        "transformer", TINY, vocab_size=len(tokenizer), feature_sizes={"regions": encoder.feature_size}
    )
    with torch.no_grad():
        network.word_bias[tokenizer.eos] = -3.0  # or it has nothing to say
    models.describe(folder, "transformer", network, tokenizer, {"regions": encoder.identity})
    models.save_weights(folder / "model.safetensors", network)
    return folder


def retriever(folder):
    """No good judge, but a quick one."""
    from tellapart import models
    from tellapart.data.tokenizers import WordTokenizer
    from tellapart.encoders.encoder import Encoder
    from tellapart.recipe import EncoderConfig
    from tellapart.retrievers import RETRIEVERS

    tokenizer, encoder = WordTokenizer([*WORDS, "dog"]), Encoder(EncoderConfig(image_size=64, grid=2))
    torch.manual_seed(0)
    settings = RETRIEVERS["word_tower"].tiny | {"vocab_size": len(tokenizer), "feature_size": encoder.feature_size}
    network = models.build(RETRIEVERS, "retriever", "word_tower", settings)
    models.describe(folder, "word_tower", network, tokenizer, {"regions": encoder.identity}, "retriever")
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
