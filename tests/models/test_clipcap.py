"""The authors' checkpoints: files of their layout, written here, become model folders that say the same."""

import pytest
import torch
from scripts import import_clipcap as clipcap
from torch import nn

from capscore.errors import UserError
from support import tiny_language_models as tiny
from tellapart import models
from tellapart.data.streams import region_inputs

D, WIDTH, PREFIX, TOKENS, LAYERS = 6, 32, 3, 2, 2
IDENTITY = {"name": "clip", "image_size": 224, "grid": 1, "pooling": "projected", "weights_sha256": "0"}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("gpt2"), "gpt2")


class Named(nn.Module):
    """Modules under the names of the authors' program."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


def mapper_layer():
    queries, both = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
    attention = Named(to_queries=queries, to_keys_values=both, project=nn.Linear(WIDTH, WIDTH))
    mlp = Named(fc1=nn.Linear(WIDTH, 2 * WIDTH), fc2=nn.Linear(2 * WIDTH, WIDTH))
    return Named(norm1=nn.LayerNorm(WIDTH), attn=attention, norm2=nn.LayerNorm(WIDTH), mlp=mlp)


def original(mapper, gpt2):
    from transformers import GPT2LMHeadModel

    torch.manual_seed(3)
    if mapper == "mlp":
        size = WIDTH * PREFIX
        project = Named(model=nn.Sequential(nn.Linear(D, size // 2), nn.Tanh(), nn.Linear(size // 2, size)))
    else:
        transformer = Named(layers=nn.ModuleList(mapper_layer() for _ in range(LAYERS)))
        project = Named(transformer=transformer, linear=nn.Linear(D, TOKENS * WIDTH))
        project.prefix_const = nn.Parameter(torch.randn(PREFIX, WIDTH))
    return Named(clip_project=project, gpt=GPT2LMHeadModel.from_pretrained(gpt2)).eval()


def prefix_of(network, seen):
    """The prefix embeddings, as ClipCap's paper has them: attention written out head by head."""
    project = network.clip_project
    if hasattr(project, "model"):
        return project.model(seen).view(len(seen), PREFIX, WIDTH)
    x = torch.cat(
        [project.linear(seen).view(len(seen), TOKENS, WIDTH), project.prefix_const.expand(len(seen), -1, -1)], 1
    )
    for layer in project.transformer.layers:
        y, heads = layer.norm1(x), []
        keys, values = layer.attn.to_keys_values(y).split(WIDTH, 2)
        for head in range(8):
            own = slice(head * WIDTH // 8, (head + 1) * WIDTH // 8)
            score = layer.attn.to_queries(y)[..., own] @ keys[..., own].mT / (WIDTH / 8) ** 0.5
            heads.append(score.softmax(2) @ values[..., own])
        x = x + layer.attn.project(torch.cat(heads, 2))
        x = x + layer.mlp.fc2(torch.relu(layer.mlp.fc1(layer.norm2(x))))
    return x[:, TOKENS:]


def stored(network, file):
    """As older versions of transformers wrote it, with tables of which words see which."""
    tables = {f"gpt.transformer.h.{i}.attn.bias": torch.ones(1, 1, 64, 64, dtype=torch.uint8) for i in range(2)}
    tables |= {f"gpt.transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
    torch.save(dict(network.state_dict()) | tables, file)
    return file


@pytest.mark.parametrize("mapper", ["mlp", "transformer"])
@torch.no_grad()
def test_a_checkpoint_of_the_authors_says_the_same_as_a_folder_of_ours(mapper, gpt2, tmp_path):
    theirs = original(mapper, gpt2)
    file = stored(theirs, tmp_path / "theirs.pt")
    clipcap.read(file, gpt2, IDENTITY, tmp_path / "model", heads=2)
    loaded = models.load(tmp_path / "model", torch.device("cpu"))
    seen, tokens = torch.randn(2, D), torch.randint(300, (2, 5))
    embedded = torch.cat([prefix_of(theirs, seen), theirs.gpt.transformer.wte(tokens[:, 1:])], 1)
    expected = theirs.gpt(inputs_embeds=embedded).logits[:, PREFIX - 1 :]
    memory = loaded.captioner.encode(region_inputs(seen[:, None]))
    torch.testing.assert_close(loaded.captioner.forward(tokens, memory), expected, atol=1e-5, rtol=0)
    assert loaded.tokenizer.decode([*loaded.tokenizer.encode("a red bus"), loaded.tokenizer.eos]) == "a red bus"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("clip_project.model.0.weight"), "lacks GPT-2 or a mapper"),
        (lambda weights: weights.pop("gpt.transformer.wte.weight"), "lacks GPT-2 or a mapper"),
        (lambda weights: weights.pop("gpt.transformer.h.0.ln_1.weight"), "ln_1.weight is absent there"),
        (lambda weights: weights.update({"optimizer.state": torch.zeros(1)}), "it has 'optimizer.state'"),
        (lambda weights: weights.update({"epoch": 3}), "is not a checkpoint of ClipCap"),
    ],
    ids=["no mapper", "no words", "incomplete", "more", "no tensors"],
)
def test_other_checkpoints_are_refused(change, message, gpt2, tmp_path):
    weights = dict(original("mlp", gpt2).state_dict())
    change(weights)
    torch.save(weights, tmp_path / "theirs.pt")
    with pytest.raises(UserError, match=message):
        clipcap.read(tmp_path / "theirs.pt", gpt2, IDENTITY, tmp_path / "model", heads=2)
    assert not (tmp_path / "model").exists()


class Program:
    def __reduce__(self):
        return (print, ("a program ran",))


def test_programs_in_a_checkpoint_are_not_run_and_another_tokenizer_is_refused(gpt2, tmp_path, capsys):
    torch.save({"gpt.": Program()}, tmp_path / "theirs.pt")
    with pytest.raises(UserError, match="not a checkpoint of weights alone"):
        clipcap.read(tmp_path / "theirs.pt", gpt2, IDENTITY, tmp_path / "model")
    assert capsys.readouterr().out == ""
    file = stored(original("mlp", gpt2), tmp_path / "theirs.pt")
    other = tiny.save(tmp_path / "other", "gpt2", vocab_size=280)
    with pytest.raises(UserError, match=r"the model has 300 tokens, the tokenizer of .* 280"):
        clipcap.read(file, other, IDENTITY, tmp_path / "model", heads=2)
