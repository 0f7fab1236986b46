"""A captioner as ONNX: two graphs, written once against the protocol, so that every captioner exports.

encode   features (B, R, D), mask (B, R); NAME and NAME_mask of a further stream -> memory_0 ..., state_0 ...
step     token (B, K), state_0 (B, K, ...) ..., memory_0 ...    -> logits (N, V), next_0 (N, ...) ...

B photos, K captions of each, N = B*K, R regions and what grows with each word may have any size: the graphs are the
same for one photo and for a beam of many.  Memory and state are the captioner's own, flattened into a list.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from tellapart import files, models, paths
from tellapart.captioners import CAPTIONERS, Captioner, select
from tellapart.data.streams import ATTRIBUTES, BOXES, REGIONS, RELATIONS, Inputs, Stream
from tellapart.errors import UserError
from tellapart.models import card as sharing
from tellapart.models.onnx.captioner import ENCODE, INSTALL, STEP, ExportedCaptioner, from_graph, graph_names, to_graph
from tellapart.models.onnx.int8 import quantised
from tellapart.models.parts import carry, parts_in
from tellapart.progress import Progress

if TYPE_CHECKING:
    from onnx import ModelProto

FeatureSizes = Mapping[str, int]  # D of each stream

LONGEST = 64  # words that a caption may have; some captioners keep a table of places
_FEWEST_WORDS = 4  # of any vocabulary: the tokens that are no words
TOLERANCE = 1e-4  # of the largest value that is compared
INT8_TOLERANCE = 0.1  # of the spread of the logits, on average


class Graphs(NamedTuple):
    encode: ModelProto
    step: ModelProto


class Difference(NamedTuple):
    """What the graphs say against what the captioner says, over several batches and steps."""

    largest: float  # of any number
    scale: float  # the largest number itself, at least 1
    relative: float  # root mean square of the logits' differences against their spread


class Sizes(NamedTuple):
    photos: int = 2  # B
    captions: int = 3  # K
    regions: int = 5  # R
    words: int = 2  # so far


def export(model: str | Path, out: Path, *, int8: bool = False) -> Difference:
    """Write a folder with the graphs and all else that captioning needs; nothing is left if they are not right."""
    _require_onnx()
    folder = models.find(model)
    config = models.read_config(folder, "captioner")
    if (folder / STEP).exists():
        raise UserError(f"{folder} is exported already; give the folder that it was exported from.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: exists already; choose another name, or remove it first.")
    captioner, _ = models.rebuild(folder, CAPTIONERS, "captioner", config)
    tokenizer = models.load_tokenizer(folder, config.settings)
    sizes = {name: _size(captioner, name) for name in models.streams_of(config.name)}
    feature_sizes = {name: size for name, size in sizes.items() if size}  # of streams that it is given
    with Progress("exporting", 3, unit="part") as bar:
        made = graphs(captioner, feature_sizes, done=bar.advance)
        if int8:
            made = Graphs(quantised(made.encode, but_rows=set(feature_sizes.values())), quantised(made.step))
        encode, step = (graph.SerializeToString() for graph in made)
        difference = compare(captioner, ExportedCaptioner(encode, step), feature_sizes)  # type: ignore[arg-type]
        bar.advance()
    refuse(difference, int8=int8)
    card = sharing.read_card(folder) or sharing.model_card(config, title=out.resolve().name, words=len(tokenizer))
    with _whole_or_nothing(out) as unfinished:
        models.describe(unfinished, config.name, captioner, tokenizer, config.inputs)
        carry(parts_in(folder), unfinished)
        files.replace(unfinished / sharing.CARD, (card + _note(difference, int8=int8)).encode())
        files.replace(unfinished / ENCODE, encode)
        files.replace(unfinished / STEP, step)
    return difference


def _note(difference: Difference, *, int8: bool) -> str:
    """What is added to the card of the model that was exported."""
    numbers = "large matrices in 8 bits, the rest in single precision" if int8 else "single precision"
    return f"""
## As ONNX

Instead of its weights this folder has the captioner as two graphs for onnxruntime, {ENCODE} and {STEP}: {numbers}.
Against the original, logits are off by {100 * difference.relative:.2g} % of their spread.
"""


def graphs(captioner: nn.Module, feature_sizes: FeatureSizes, *, done: Callable[[], None] = lambda: None) -> Graphs:
    """The captioner's `encode` with `start`, and its `step`; `done` is called after each."""
    _require_onnx()
    if not getattr(captioner, "exports", True):
        raise UserError("a captioner over a language model of transformers cannot be exported as ONNX.")
    captioner = captioner.eval().requires_grad_(False)
    with torch.no_grad():
        _say(captioner, feature_sizes, Sizes(1, 1, 1, LONGEST))  # tables that grow with a caption grow now
        encode = _encode_graph(captioner, feature_sizes)
        done()
        step = _step_graph(captioner, feature_sizes)
        done()
    return Graphs(encode, step)


def compare(captioner: Captioner, exported: ExportedCaptioner, feature_sizes: FeatureSizes) -> Difference:
    """Both say the same random words of the same random photos."""
    generator = torch.Generator().manual_seed(0)
    largest, scale, error, spread = 0.0, 1.0, 0.0, 0.0
    with torch.no_grad():
        for sizes in (Sizes(1, 1, 1, 2), Sizes(1, 3, 9, 6), Sizes(4, 1, 4, 3), Sizes(3, 5, 7, 4)):
            photos = _photos(feature_sizes, sizes, generator)
            memory, other_memory = captioner.encode(photos), exported.encode(photos)
            state, other_state = captioner.start(memory), exported.start(other_memory)
            token = torch.zeros(sizes.photos, dtype=torch.long)
            for _ in range(sizes.words):
                logits, state = captioner.step(token, state, memory)
                other_logits, other_state = exported.step(token, other_state, other_memory)
                for one, other in zip([logits, *_leaves(state)], [other_logits, *_leaves(other_state)], strict=True):
                    if one.shape != other.shape:
                        raise UserError(
                            f"the exported graph is wrong: {list(other.shape)} in place of {list(one.shape)}."
                        )
                    if one.numel():
                        largest = max(largest, float((one - other).abs().max()))
                        scale = max(scale, float(one.abs().max()))
                error += float((logits - other_logits).square().mean())
                spread += float(logits.var(correction=0))
                if len(token) == sizes.photos:
                    rows = torch.arange(sizes.photos).repeat_interleave(sizes.captions)
                    state, other_state = select(state, rows), select(other_state, rows)
                token = torch.randint(logits.shape[1], (sizes.photos * sizes.captions,), generator=generator)
    return Difference(largest, scale, (error / max(spread, 1e-30)) ** 0.5)


def refuse(difference: Difference, *, int8: bool) -> None:
    """An error if the graphs are not what they were made from."""
    right = difference.relative <= INT8_TOLERANCE if int8 else difference.largest <= TOLERANCE * difference.scale
    if not right:  # also when it is not a number
        raise UserError(
            "the exported graphs do not say what the captioner says: the largest difference is "
            f"{difference.largest:.2g} in numbers up to {difference.scale:.2g}; nothing was written."
        )


class _Encode(nn.Module):
    def __init__(self, captioner: nn.Module):
        super().__init__()
        self.captioner = captioner

    def forward(self, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
        captioner: Captioner = self.captioner  # type: ignore[assignment]
        memory = captioner.encode(from_graph(given))
        # A copy of each: what a captioner takes over as it is would be one output under two names.
        return tuple(leaf.clone() for leaf in (*_leaves(memory), *_leaves(captioner.start(memory))))


class _Step(nn.Module):
    """Takes B and K apart: that N is a multiple of B is then plain to the tracer."""

    def __init__(self, captioner: nn.Module, state: Any, memory: Any):
        super().__init__()
        self.captioner, self.state, self.memory = captioner, _shape(state), _shape(memory)

    def forward(self, token: Tensor, state: list[Tensor], memory: list[Tensor]) -> tuple[Tensor, ...]:
        captioner: Captioner = self.captioner  # type: ignore[assignment]
        state_rows = _rebuild(self.state, iter([leaf.flatten(0, 1) for leaf in state]))
        logits, following = captioner.step(token.flatten(), state_rows, _rebuild(self.memory, iter(memory)))
        return logits, *_leaves(following)


def _encode_graph(captioner: nn.Module, feature_sizes: FeatureSizes) -> ModelProto:
    inputs = _photos(feature_sizes, Sizes())
    memory = captioner.encode(inputs)  # type: ignore[operator]
    state = captioner.start(memory)  # type: ignore[operator]
    photos = torch.export.Dim("B")
    sizes = {name: torch.export.Dim(name) for name in sorted({_dimension(stream) for stream in inputs})}
    rows = {stream: sizes[_dimension(stream)] for stream in inputs}
    free: dict[str, dict[int, Any]] = {}
    for name in inputs:
        free |= {key: {0: photos, 1: rows[name]} for key in graph_names(name)}
    return _graph(
        _Encode(captioner),
        {"given": to_graph(inputs)},
        {"given": free},
        list(free),
        [*_names("memory", memory), *_names("state", state)],
    )


def _dimension(stream: str) -> str:
    """What the number of a stream's rows is called in a graph."""
    return "R" if stream in (REGIONS, BOXES) else f"R_{stream}"  # each region has one box


def _step_graph(captioner: nn.Module, feature_sizes: FeatureSizes) -> ModelProto:
    sizes = Sizes()
    state, memory = _say(captioner, feature_sizes, sizes)
    several = (sizes.photos, sizes.captions)
    inputs = {
        "token": torch.zeros(several, dtype=torch.long),
        "state": [leaf.reshape(*several, *leaf.shape[1:]).contiguous() for leaf in _leaves(state)],
        "memory": [leaf.contiguous() for leaf in _leaves(memory)],
    }
    photos, captions = torch.export.Dim("B"), torch.export.Dim("K")
    growing = _growing(captioner, feature_sizes)
    free = {
        "token": {0: photos, 1: captions},
        "state": [{0: photos, 1: captions} | {axis + 1: dim for axis, dim in axes.items()} for axes in growing[0]],
        "memory": [{0: photos} | axes for axes in growing[1]],
    }
    names = ["token", *_names("state", state), *_names("memory", memory)]
    return _graph(_Step(captioner, state, memory), inputs, free, names, ["logits", *_names("next", state)])


def _growing(captioner: nn.Module, feature_sizes: FeatureSizes) -> list[list[dict[int, Any]]]:
    """Of each leaf of state and memory, the axes (but the first) whose length depends on regions or words.

    Found by looking: the captioner is asked again with a region more, and with a word more.
    """
    base, known = Sizes(), dict[tuple[str, int], Any]()
    before = _say(captioner, feature_sizes, base)
    found: list[list[dict[int, Any]]] = [[{} for _ in _leaves(tree)] for tree in before]
    for what, more in (("regions", base._replace(regions=6)), ("words", base._replace(words=3))):
        after = _say(captioner, feature_sizes, more)
        for axes, tree, other in zip(found, before, after, strict=True):
            for free, leaf, grown in zip(axes, _leaves(tree), _leaves(other), strict=True):
                for axis, (old, new) in enumerate(zip(leaf.shape, grown.shape, strict=True)):
                    if old != new:
                        most = {"max": LONGEST - 1} if what == "words" else {}
                        name = f"{what}_{len(known)}"
                        free[axis] = known.setdefault((what, old), torch.export.Dim(name, min=0, **most))
    return found


def _say(captioner: nn.Module, feature_sizes: FeatureSizes, sizes: Sizes) -> tuple[Any, Any]:
    """State and memory after some words."""
    speaker: Captioner = captioner  # type: ignore[assignment]
    memory = speaker.encode(_photos(feature_sizes, sizes))
    rows = torch.arange(sizes.photos).repeat_interleave(sizes.captions)
    state = select(speaker.start(memory), rows)
    for _ in range(sizes.words):
        _, state = speaker.step(torch.zeros(len(rows), dtype=torch.long), state, memory)
    return state, memory


def _photos(feature_sizes: FeatureSizes, sizes: Sizes, generator: torch.Generator | None = None) -> Inputs:
    """Random streams with masks; all photos but the first have a row less.

    Each stream has a row more than the one before it, but for boxes, of which each region has one: that two streams are
    equally long must not become a part of a graph.
    """
    inputs, counts = Inputs(), dict[str, int]()
    for name, size in feature_sizes.items():
        rows = counts.setdefault(_dimension(name), sizes.regions + len(counts))
        values = torch.rand(sizes.photos, rows, size, generator=generator)
        if name == ATTRIBUTES:
            values[..., 0] = (_FEWEST_WORDS * values[..., 0]).floor()
        if name == RELATIONS:
            values = (sizes.regions * values).floor()
        mask = torch.ones(sizes.photos, rows, dtype=torch.bool)
        if rows > 1:
            mask[1:, -1] = False
        inputs[name] = Stream(values, mask)
    return inputs


def _size(captioner: nn.Module, stream: str) -> int:
    """D of a stream."""
    (setting,) = models.stream_sizes({stream: 0})
    return int(getattr(captioner.config, setting))


def _graph(
    module: nn.Module, inputs: dict[str, Any], free: dict[str, Any], names: list[str], outputs: list[str]
) -> ModelProto:
    with _quiet():
        # strict: len() of a tensor stays a size that may vary; the other way of tracing makes it a number
        program = torch.export.export(module.eval(), (), inputs, dynamic_shapes=free, strict=True)
        made = torch.onnx.export(program, dynamo=True, input_names=names, output_names=outputs, verbose=False)
    assert made is not None
    return made.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on its own insides."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@contextmanager
def _whole_or_nothing(out: Path) -> Iterator[Path]:
    """A folder that takes its place when all is in it."""
    target = files.real(out)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".tellapart-", dir=target.parent))
    except OSError as error:
        raise UserError(f"--out {out}: the folder cannot be made ({error.strerror}).") from None
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.replace(target)  # an empty folder may be there
    except OSError as error:
        raise UserError(f"--out {out}: the folder cannot be written ({error.strerror}).") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _require_onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if paths.package(package) is None:
            raise UserError(f"exporting needs {package}, which is not installed; `{INSTALL}` brings it.")


def _leaves(tree: Any) -> list[Tensor]:
    """The tensors of nested tuples, in order."""
    return [tree] if isinstance(tree, Tensor) else [leaf for part in tree for leaf in _leaves(part)]


def _names(name: str, tree: Any) -> list[str]:
    return [f"{name}_{i}" for i in range(len(_leaves(tree)))]


def _shape(tree: Any) -> Any:
    """The nested tuples without their tensors."""
    if isinstance(tree, Tensor):
        return None
    parts = [_shape(part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def _rebuild(shape: Any, leaves: Iterator[Tensor]) -> Any:
    """The nested tuples with tensors put in, in order."""
    if shape is None:
        return next(leaves)
    parts = [_rebuild(part, leaves) for part in shape]
    return type(shape)(*parts) if hasattr(shape, "_fields") else tuple(parts)
