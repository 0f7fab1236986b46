"""Language models of transformers at a tiny size, saved with a tokenizer; padding is the end, as in GPT-2."""

import json

import torch

from support.subwords import byte_pairs

CAPTIONS = ["A red bus on the road .", "a small cat on the bed", "two dogs run in the grass.", "a man rides a horse"]


def save(folder, kind="gpt2", vocab_size=300, seed=0, captions=CAPTIONS, **more):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    tokenizer = byte_pairs(captions, vocab_size=vocab_size)
    eos = tokenizer.eos
    ids = {"eos_token_id": eos, "bos_token_id": eos, "pad_token_id": eos, "vocab_size": len(tokenizer)} | more
    torch.manual_seed(seed)
    if kind == "gpt2":
        network = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **ids))
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        network = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, tie_word_embeddings=True, **sizes, **ids))
    network.save_pretrained(folder)
    tokenizer._tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def edit(folder, **changes):
    """Change config.json; None takes a key out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
