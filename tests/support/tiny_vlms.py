"""Folders of tiny vision-language models with random weights, in the form in which transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from support import small_models

SIZE, PATCH = 32, 16
WORDS = [*small_models.WORDS, "dog", "photo", "picture", "of", "caption"]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[DEC]", "<image>", "<|image_pad|>", "<|video_pad|>")
PAD, UNK, CLS, SEP, DEC, IMAGE, IMAGE_PAD, VIDEO_PAD = range(len(SPECIAL))
VOCABULARY = len(SPECIAL) + len(WORDS)
TEXT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TOWER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
VISION = TOWER | {"image_size": SIZE, "patch_size": PATCH}
LLAMA = TEXT | {
    "vocab_size": VOCABULARY + 3,  # more than there are words, as many models have
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "bos_token_id": CLS,
    "eos_token_id": SEP,
    "pad_token_id": PAD,
}
ENDS = {"bos_token_id": CLS, "eos_token_id": SEP, "pad_token_id": PAD}


def words(ends: bool = True, **special: str) -> Any:
    """
    ends     whether texts begin with [CLS] and end with [SEP], as BERT's do
    special  names of tokens that a processor asks for
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate((*SPECIAL, *WORDS))}, "[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if ends:
        pairs = [("[CLS]", CLS), ("[SEP]", SEP)]
        library.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=pairs)
    return PreTrainedTokenizerFast(
        tokenizer_object=library,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        bos_token="[CLS]",
        eos_token="[SEP]",
        **{"extra_special_tokens": special} if special else {"additional_special_tokens": list(SPECIAL[DEC:])},
    )


def save(folder: Path, network: Any, processor: Any) -> Path:
    """With weights that say different things of different photos."""
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.4)
    network.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def blip(folder: Path) -> Path:
    from transformers import BlipConfig, BlipForConditionalGeneration, BlipImageProcessorPil, BlipProcessor

    ends = {"bos_token_id": DEC, "eos_token_id": CLS, "sep_token_id": SEP, "pad_token_id": PAD}
    text = TEXT | ends | {"vocab_size": VOCABULARY, "encoder_hidden_size": 16, "max_position_embeddings": 64}
    network = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=VISION))
    photos = BlipImageProcessorPil(size={"height": SIZE, "width": SIZE})
    return save(folder, network, BlipProcessor(photos, words()))


def git(folder: Path) -> Path:
    from transformers import CLIPImageProcessorPil, GitConfig, GitForCausalLM, GitProcessor

    text = TEXT | ENDS | {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "vision_config": VISION}
    photos = CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    return save(folder, GitForCausalLM(GitConfig(**text)), GitProcessor(photos, words()))


def llava(folder: Path) -> Path:
    from transformers import CLIPImageProcessorPil, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **VISION},
        text_config={"model_type": "llama", **LLAMA},
        image_token_index=IMAGE,
        **ENDS,
    )
    photos = CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    processor = LlavaProcessor(
        photos,
        words(ends=False),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
    )
    return save(folder, LlavaForConditionalGeneration(config), processor)


def idefics3(folder: Path) -> Path:
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
    )

    config = Idefics3Config(
        vision_config=VISION | {"patch_size": 8},
        text_config={"model_type": "llama", **LLAMA},
        image_token_id=IMAGE,
        scale_factor=2,
        **ENDS,
    )
    edge = {"longest_edge": SIZE}
    photos = Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=True)
    processor = Idefics3Processor(photos, words(ends=False), image_seq_len=4)
    return save(folder, Idefics3ForConditionalGeneration(config), processor)


def qwen2_vl(folder: Path) -> Path:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil

    config = Qwen2VLConfig(
        vision_config={"depth": 2, "embed_dim": 16, "hidden_size": 24, "num_heads": 2, "patch_size": 8, "mlp_ratio": 2},
        text_config=LLAMA
        | {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}},
        image_token_id=IMAGE_PAD,
        video_token_id=VIDEO_PAD,
        vision_start_token_id=DEC,
        vision_end_token_id=DEC,
        **ENDS,
    )
    network = Qwen2VLForConditionalGeneration(config)
    save(folder, network, words(ends=False))
    Qwen2VLImageProcessorPil(patch_size=8, min_pixels=16 * 16, max_pixels=96 * 96).save_pretrained(folder)
    return folder


TINY = {"blip": blip, "git": git, "llava": llava, "idefics3": idefics3, "qwen2_vl": qwen2_vl}
