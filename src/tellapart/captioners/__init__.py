"""Captioners: features in, words out.  The protocol that all of them share, and the table of those there are.

B items (photos or clips), N = B*K captions grouped by item, T tokens, V vocabulary.

A captioner's *memory* has one row per photo, its *state* one row per caption; K is always N // B.  So several captions
of a photo (references, samples, beams) share its memory, and nothing is copied to give each its own.
Memory and state are nested tuples of tensors whose first dimension counts those rows: `select` reorders either.  A
state may also hold an object with a method `select_rows(rows)`, such as the key-value cache of a language model.

Two attributes are optional, and only make a policy gradient quicker: `parallel_forward`, where `forward` is quicker
than as many steps, and `shares_prefixes`, where `forward` takes `SharedPrefixes` in place of `token_mask`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from capscore.errors import UserError
from capscore.measures import Table
from tellapart.plugins import defined, place

if TYPE_CHECKING:  # the table can be read without loading torch
    from torch import Tensor, nn

    from tellapart.data.streams import Inputs

_WORDS = 3
_TOLERANCE = 1e-2  # of the spread of the logits; a GPU's short numbers are off by a tenth of this

Tree = TypeVar("Tree")


class Captioner(Protocol):
    """Four verbs.  A captioner knows no vocabulary, no loss and no reward; decoding and training know only these."""

    def encode(self, inputs: Inputs) -> Any:
        """Named streams of B items -> memory with B rows, computed once per item."""

    def start(self, memory: Any) -> Any:
        """The state before the first word, one row per photo."""

    def step(self, token: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any]:
        """One word: token (N,) in, logits (N, V) of the next word and the next state out."""

    def forward(self, tokens: Tensor, memory: Any, token_mask: Tensor | None = None) -> Tensor:
        """Teacher forcing: tokens (N, T) -> logits (N, T, V).

        With `token_mask` (N, T), True at the words and False at the padding behind them: (M, V) at the M words only.
        """


def select(tree: Tree, rows: Tensor) -> Tree:
    """The given rows (a tensor of indices) of a memory or a state, in that order."""
    if hasattr(tree, "select_rows"):
        return tree.select_rows(rows)  # type: ignore[no-any-return]
    if not isinstance(tree, tuple):
        return tree.index_select(0, rows)  # type: ignore[attr-defined, no-any-return]
    parts = [select(part, rows) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def by_steps(captioner: Captioner, tokens: Tensor, memory: object, photos: int) -> Tensor:
    """tokens (N, T) of captions of so many photos -> logits (N, T, V), one word after another"""
    import torch

    of_photo = torch.arange(photos, device=tokens.device).repeat_interleave(len(tokens) // photos)
    state = select(captioner.start(memory), of_photo)
    logits = []
    for token in tokens.unbind(1):
        out, state = captioner.step(token, state, memory)
        logits.append(out)
    return torch.stack(logits, 1)


def require_agreement(name: str, captioner: nn.Module, inputs: Inputs, tokens: Tensor) -> None:
    """Refuses a captioner that would learn one thing and say another, by the first words of some captions (N, T).

    `step`, which decodes, and `forward`, which learns, must give words the same logits.

    name  for the message
    """
    import torch

    tokens, training = tokens[:, :_WORDS], captioner.training
    captioner.eval()
    try:
        with torch.no_grad():
            memory = captioner.encode(inputs)  # type: ignore[operator]
            whole = captioner.forward(tokens, memory)
            stepped = by_steps(captioner, tokens, memory, inputs.items_count)  # type: ignore[arg-type]
    finally:
        captioner.train(training)
    if whole.shape != stepped.shape:
        shapes = f"{tuple(stepped.shape)} and {tuple(whole.shape)}"
        raise UserError(f"{name}: `step` and `forward` give logits of different shapes, {shapes}.")
    off, spread = float((whole - stepped).abs().max()), float(whole.float().std())
    if not off <= _TOLERANCE * spread:
        raise UserError(
            f"{name}: `step` and `forward` give the same words different logits ({off:.2g} apart, where logits spread "
            f"by {spread:.2g}); it would learn one thing and say another."
        )


@dataclass(frozen=True)
class Entry:
    """A line of the table: where the captioner is defined, and what `tellapart models` says of it."""

    module: str
    name: str  # of the class; its settings are the dataclass `<name>Config` beside it
    description: str
    methods: tuple[str, ...] = ("encode", "start", "step", "forward")  # that it must have

    def load(self) -> tuple[Callable[..., Any], Any]:
        """The captioner's class and the dataclass of its settings."""
        make: Any = defined(self.module, self.name)
        config: Any = defined(self.module, f"{self.name}Config")
        if lacks := [method for method in self.methods if not callable(getattr(make, method, None))]:
            raise UserError(f"{place(self.module)}: the captioner {self.name} has no method {lacks[0]!r}.")
        if not is_dataclass(config):
            raise UserError(f"{place(self.module)}: {self.name}Config must be a dataclass (@dataclass).")
        if "vocab_size" not in {field.name for field in fields(config)}:
            raise UserError(f"{place(self.module)}: {self.name}Config has no field 'vocab_size'.")
        return make, config


_OURS = {  # each in the file of its name: its class, and what it is
    "transformer": ("Transformer", "Transformer over a grid or regions, with a key-value cache (Vaswani et al., 2017)"),
    "up_down": (
        "UpDown",
        "Up-Down, Top-Down Attention (TDA): one LSTM for attention, one for the words (Anderson et al., 2018)",
    ),
    "attention": (
        "Attention",
        "Show, Attend and Tell, soft attention: an LSTM that attends to the photo at every word (Xu et al., 2015)",
    ),
    "show_tell": ("ShowTell", "Show-Tell (ST): an LSTM that gets the photo once, as one vector (Vinyals et al., 2015)"),
    "meshed_memory": (
        "MeshedMemory",
        "Meshed-Memory Transformer: learned memory slots, attention to every encoder layer (Cornia et al., 2020)",
    ),
    "x_lan": ("XLan", "X-LAN: an LSTM with X-linear attention, bilinear over regions and channels (Pan et al., 2020)"),
    "gcn_lstm": ("GcnLstm", "GCN-LSTM: Up-Down over a graph of the regions; needs boxes (Yao et al., 2018)"),
    "lstm_a3": ("LstmA3", "LSTM-A3: an LSTM that gets the attributes first, then the photo (Yao et al., 2017)"),
    "glied": ("Glied", "GLIED: attention to regions and attributes, distilled globally and locally (Liu et al., 2019)"),
    "gl_rg": ("GlRg", "GL-RG: an LSTM over the fused words, actions and classes of a clip (Yan et al., 2022)"),
    "clipcap": (
        "ClipCap",
        "ClipCap: the photo as a prefix of a causal language model, GPT-2 or SmolLM2 (Mokady et al., 2021)",
    ),
}
CAPTIONERS = Table("captioner", {name: Entry(f"{__name__}.{name}", *line) for name, line in _OURS.items()}, Entry)
