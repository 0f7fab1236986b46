import pytest
import torch
from torch import nn

from tellapart.captioners.lora import add_lora, lora_parameters, merge_lora


def language_model(kind):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=16, n_layer=2, n_head=2, n_positions=32)).eval()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=23, num_key_value_heads=1, **sizes)).eval()


TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def logits(network):
    with torch.no_grad():
        return network(input_ids=TOKENS).logits


def learned(network):
    """As after training: B is not 0."""
    draw = torch.Generator().manual_seed(1)
    for _, weight in lora_parameters(network):
        weight.data = 0.3 * torch.randn(weight.shape, generator=draw)
    return network


def test_a_layer_by_hand():
    network = nn.Sequential(nn.Linear(2, 2, bias=False))
    network[0].weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    add_lora(network, rank=1, alpha=2.0, targets=["0"])
    network[0].lora_a.data, network[0].lora_b.data = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5], [2.0]])
    # W + 2 B A = [[1, 2], [3, 4]] + [[1, -1], [4, -4]]
    torch.testing.assert_close(network(torch.tensor([[1.0, 10.0]])), torch.tensor([[12.0, 7.0]]))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_new_lora_changes_nothing_and_a_learned_one_is_the_same_when_merged(kind):
    network = language_model(kind)
    names, original = set(network.state_dict()), logits(network)
    add_lora(network, rank=2, alpha=4.0)
    assert torch.equal(logits(network), original)
    unmerged = logits(learned(network))
    assert (unmerged - original).abs().max() > 0.1
    merge_lora(network)
    torch.testing.assert_close(logits(network), unmerged, atol=1e-5, rtol=0)
    assert set(network.state_dict()) == names


def test_only_what_lora_brings_learns():
    network = language_model("llama")
    add_lora(network, rank=2, alpha=4.0, targets=["q_proj", "v_proj"])
    learned(network)(input_ids=TOKENS).logits.square().sum().backward()
    moved = {name for name, weight in network.named_parameters() if weight.grad is not None}
    assert moved == {name for name, _ in lora_parameters(network)}
    assert len(moved) == 2 * 2 * 2  # A and B, of two layers, in two blocks


def test_the_weights_of_the_base_keep_their_names():
    network = language_model("gpt2")
    base = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    add_lora(network, rank=2, alpha=4.0)
    result = network.load_state_dict({name: tensor + 1 for name, tensor in base.items()}, strict=False)
    assert not result.unexpected_keys
    assert all("lora_" in name for name in result.missing_keys)
    assert torch.equal(network.transformer.h[0].attn.c_attn.weight, base["transformer.h.0.attn.c_attn.weight"] + 1)


def test_a_name_that_no_layer_has_is_refused():
    with pytest.raises(ValueError, match="no linear layer query"):
        add_lora(language_model("gpt2"), rank=2, alpha=4.0, targets=["query"])
