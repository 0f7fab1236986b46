"""Folders of tiny CLIPs and SigLIPs with random weights, in the form in which transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path

import torch

SIZE = 32  # pixels a side
LONGEST = 20  # tokens
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = ["a", "bus", "cat", "depicts", "on", "photo", "red", "street", "the", "two"]


def clip(folder: Path) -> Path:
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "re", "red</w>", "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[("r", "e"), ("re", "d</w>")], model_max_length=LONGEST)
    text = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": LONGEST,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    torch.manual_seed(0)
    network = CLIPModel(
        CLIPConfig(
            text_config=TOWER | text,
            vision_config=TOWER | {"image_size": SIZE, "patch_size": 8},
            projection_dim=16,
            logit_scale_init_value=3.0,
        )
    )
    processor = CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=SIZE)
    return _save(folder, network, tokenizer, processor)


def siglip(folder: Path) -> Path:
    """With words of a stand-in vocabulary: SigLIP's own tokenizer needs sentencepiece."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, SiglipConfig, SiglipModel
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    vocabulary = {word: id for id, word in enumerate(["<unk>", "</s>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>", pad_token="</s>", model_max_length=LONGEST
    )
    text = {"vocab_size": len(vocabulary), "max_position_embeddings": LONGEST, "bos_token_id": 1, "eos_token_id": 1}
    torch.manual_seed(0)
    network = SiglipModel(
        SiglipConfig(text_config=TOWER | text, vision_config=TOWER | {"image_size": SIZE, "patch_size": 8})
    )
    with torch.no_grad():
        network.logit_scale.fill_(2.0)
    processor = SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE}, resample=2)
    return _save(folder, network, tokenizer, processor)


def _save(folder: Path, network, tokenizer, processor) -> Path:
    for part in (network, tokenizer, processor):
        part.save_pretrained(folder)
    return folder


def change(folder: Path, file: str, **changes) -> None:
    """Other values in a JSON file; None removes a key."""
    content = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
