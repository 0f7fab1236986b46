"""What captioners promise (`captioners.Captioner`), at a tiny size.

B photos, K captions of each, T words, V vocabulary, R rows of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tellapart import models
from tellapart.captioners import CAPTIONERS, select
from tellapart.captioners.stepping import by_steps
from tellapart.data.streams import REGIONS, Inputs, Stream, region_inputs
from tellapart.data.tokenizers import WordTokenizer
from tellapart.decoding import Rules, beam_search, greedy, sample, score
from tellapart.protocols import Check

WORDS = WordTokenizer(["a", "red", "bus", "cat", "on", "the", "bed"])
B, K, R, T, V = 3, 2, 5, 6, len(WORDS)
FEATURES = 8
CLIPS = {"words": 6, "actions": 5, "classes": 4, "sound": 3}
SIZES = {REGIONS: FEATURES, "attributes": 2, "boxes": 4, "relations": 3, **CLIPS}  # of the streams there are
_TOLERANCE = 1e-5  # of logits near 1


@dataclass(frozen=True)
class Case:
    captioner: Any  # a module that is a `Captioner`
    photos: Inputs  # (B, R, ...): the second has three rows in each stream, the third one
    tokens: Tensor  # (B*K, T)

    def logits(self, tokens: Tensor | None = None, photos: Inputs | None = None) -> Tensor:
        memory = self.captioner.encode(self.photos if photos is None else photos)
        found: Tensor = self.captioner.forward(self.tokens if tokens is None else tokens, memory)
        return found


def case(name: str) -> Case:
    features = torch.randn(B, R, FEATURES, generator=torch.Generator().manual_seed(1))
    photos = every_stream(features, torch.arange(R) < torch.tensor([[R], [3], [1]]))
    tokens = torch.randint(V, (B * K, T), generator=torch.Generator().manual_seed(2))
    return Case(tiny(name), photos, tokens)


def tiny(name: str, vocab_size: int = V, seed: int = 0, **settings: Any) -> Any:
    """A captioner of the table, with fresh weights and without dropout."""
    torch.manual_seed(seed)
    _, config = CAPTIONERS[name].load()
    known = {field.name for field in fields(config)}
    still = {"dropout": 0.0} if "dropout" in known else {}
    settings = getattr(import_module(CAPTIONERS[name].module), "TINY", {}) | still | settings
    return models.build_captioner(name, settings, vocab_size=vocab_size, feature_sizes=sizes_of(name)).eval()


def sizes_of(name: str) -> dict[str, int]:
    """Of the streams that a captioner takes."""
    return {stream: SIZES[stream] for stream in models.streams_of(name)}


def every_stream(features: Tensor, mask: Tensor | None = None) -> Inputs:
    """All streams that any captioner takes: these regions, and further ones with a row for each region.

    The box of a region follows from its features, wherever it stands.  Each is related to the one behind it.

    features (B, R, FEATURES), mask (B, R)
    """
    inputs = region_inputs(features, mask)
    draw = torch.Generator().manual_seed(7)
    photos, rows = inputs[REGIONS].mask.shape
    ids = torch.rand(photos, V, generator=draw).argsort(1)[:, :rows]
    values = torch.stack([ids.float(), 0.05 + 0.9 * torch.rand(photos, rows, generator=draw)], 2)
    corner, size = features[..., :2].sigmoid() * 0.7, features[..., 2:4].sigmoid() * 0.5
    boxes = torch.cat([corner, corner + size], 2)
    mask = inputs[REGIONS].mask
    behind = torch.arange(rows).expand(photos, -1)
    relations = torch.stack([behind, (behind + 1) % rows, behind % 21], 2).float()
    of_clips = {name: Stream(features[..., -size:].sigmoid(), mask) for name, size in CLIPS.items()}
    ours = {"attributes": values, "boxes": boxes, "relations": relations}
    return Inputs(inputs | {name: Stream(own, mask.clone()) for name, own in ours.items()} | of_clips)


def padded(inputs: Inputs, more: int, filler: float) -> Inputs:
    """The same items in streams with more rows; whatever stands where no row is."""
    result = Inputs()
    for name, (values, mask) in inputs.items():
        behind = torch.full((len(values), more, values.shape[2]), filler)
        wider = torch.cat([mask, torch.zeros(len(values), more, dtype=torch.bool)], 1)
        result[name] = Stream(torch.cat([values.masked_fill(~mask[..., None], filler), behind], 1), wider)
    return result


def without_second(photos: Inputs) -> Inputs:
    """The same photos, but nothing was found in the second."""
    kept = torch.tensor([[True], [False], [True]])
    return Inputs((name, Stream(values, mask & kept)) for name, (values, mask) in photos.items())


def _same(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape, f"{tuple(found.shape)} and {tuple(expected.shape)}"
    found, expected = found.detach(), expected.detach()
    off, scale = float((found - expected).abs().max()), max(1.0, float(expected.abs().max()))
    assert off <= _TOLERANCE * scale, f"{off:.2g} apart"


def forward_gives_logits(case: Case) -> None:
    """`forward` gives each word of each caption a finite logit."""
    logits = case.logits()
    assert logits.shape == (B * K, T, V), f"{tuple(logits.shape)}, not {(B * K, T, V)}"
    assert logits.isfinite().all()


def every_weight_learns(case: Case) -> None:
    """The gradient of cross-entropy reaches all weights."""
    case.captioner.zero_grad()
    logits = case.logits()
    F.cross_entropy(logits.flatten(0, 1), case.tokens.flatten()).backward()  # type: ignore[no-untyped-call]
    learns = ((name, weight) for name, weight in case.captioner.named_parameters() if weight.requires_grad)
    still = [name for name, weight in learns if weight.grad is None or not weight.grad.any()]
    case.captioner.zero_grad()
    assert not still, f"none for {', '.join(still[:3])}"


def steps_are_forward(case: Case) -> None:
    """`step` says what `forward` says."""
    memory = case.captioner.encode(case.photos)
    _same(by_steps(case.captioner, case.tokens, memory, B), case.captioner.forward(case.tokens, memory))


def state_is_all_earlier_words(case: Case) -> None:
    """A state is as good as all words anew, at any length."""
    stepped = by_steps(case.captioner, case.tokens, case.captioner.encode(case.photos), B)
    for length in range(1, T + 1):
        _same(stepped[:, length - 1], case.logits(case.tokens[:, :length])[:, -1])


def photos_are_apart(case: Case) -> None:
    """Photos of a batch do not affect each other."""
    together = case.logits()
    for i in range(B):
        rows = slice(i * K, (i + 1) * K)
        _same(together[rows], case.logits(case.tokens[rows], case.photos.select([i])))


def photos_matter(case: Case) -> None:
    """What is said depends on the photo."""
    first, second, third = case.logits(case.tokens[:1].expand(B, -1))
    assert not torch.allclose(first, second, atol=1e-4)
    assert not torch.allclose(second, third, atol=1e-4)


def words_come_in_order(case: Case) -> None:
    """No word sees a later one, and each sees the earlier ones."""
    changed = case.tokens.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % V
    before, after = case.logits(), case.logits(changed)
    _same(after[:, :3], before[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def padding_of_captions_is_left_out(case: Case) -> None:
    """`forward` with a mask gives the logits of the words that it marks."""
    memory = case.captioner.encode(case.photos)
    mask = torch.arange(T) < torch.tensor([6, 1, 4, 3, 6, 2])[:, None]
    _same(
        case.captioner.forward(case.tokens, memory, mask),
        case.captioner.forward(case.tokens, memory)[mask],
    )


def padding_of_rows_changes_nothing(case: Case) -> None:
    """Padding of regions changes nothing, whatever stands there and however much of it there is."""
    for filler in (1e3, -7.0):
        _same(case.logits(photos=padded(case.photos, 2, filler)), case.logits())


def photos_without_rows_are_captioned(case: Case) -> None:
    """A photo in which nothing was found is captioned all the same, and leaves others and gradients as they are."""
    words = case.tokens[:K]
    together = case.logits(words.repeat(B, 1), without_second(case.photos))
    for places in (0, 1, 4):
        mask = torch.zeros(1, places, dtype=torch.bool)
        nothing = Inputs((name, Stream(torch.zeros(1, places, SIZES[name]), mask)) for name in case.photos)
        alone = case.logits(words, nothing)
        assert alone.isfinite().all()
        _same(together[K : 2 * K], alone)
    _same(together[:K], case.logits(words, case.photos.select([0])))
    together.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in case.captioner.parameters() if weight.grad is not None]
    case.captioner.zero_grad()
    assert all(gradient.isfinite().all() for gradient in gradients)


def order_of_photos_is_kept(case: Case) -> None:
    """Answers come in the order of the batch."""
    order = torch.tensor([2, 0, 1])
    rows = (order[:, None] * K + torch.arange(K)).flatten()
    _same(case.logits()[rows], case.logits(case.tokens[rows], case.photos.select(order)))


def rows_can_be_chosen(case: Case) -> None:
    """Memory and state are rows of which some can be chosen."""
    order, first, second = torch.tensor([2, 0]), case.tokens[::K, 0], case.tokens[::K, 1]
    memory = case.captioner.encode(case.photos)
    _, state = case.captioner.step(first, case.captioner.start(memory), memory)
    whole, _ = case.captioner.step(second, state, memory)
    chosen, _ = case.captioner.step(second[order], select(state, order), select(memory, order))
    _same(chosen, whole[order])


def greedy_says_the_likeliest(case: Case) -> None:
    """Greedy decoding says the likeliest word again and again."""
    said = greedy(case.captioner, case.captioner.encode(case.photos), rules=_rules())
    assert not torch.isin(said.tokens[said.mask], torch.tensor(list(WORDS.banned_ids))).any()
    for row in range(B):
        words = [WORDS.bos]
        for _ in range(int(said.mask[row].sum())):
            logits = case.logits(torch.tensor([words]), case.photos.select([row]))[0, -1].detach().clone()
            logits[list(WORDS.banned_ids)] = -torch.inf
            words.append(int(logits.argmax()))
        assert words[1:] == said.tokens[row][said.mask[row]].tolist()


def samples_have_their_log_p(case: Case) -> None:
    """Samples come with their log-probability."""
    memory, draw = case.captioner.encode(case.photos), torch.Generator().manual_seed(0)
    rules = Rules(bos=WORDS.bos, eos=WORDS.eos, pad=WORDS.pad, max_words=T)
    drawn = sample(case.captioner, memory, samples=4, generator=draw, rules=rules)
    assert len(drawn.tokens) == 4 * B
    _same(drawn.logp, score(case.captioner, memory, drawn.tokens, drawn.mask, bos=WORDS.bos))


def beams_are_as_likely_as_greedy(case: Case) -> None:
    """A beam finds captions at least as likely as greedy decoding, with their log-probability."""
    memory = case.captioner.encode(case.photos)
    best = beam_search(case.captioner, memory, beam=4, n_best=4, rules=_rules())
    simple = greedy(case.captioner, memory, rules=_rules())
    assert (best.logp[:, 0] >= simple.logp.sum(1) - _TOLERANCE).all()
    for k in range(4):
        again = score(case.captioner, memory, best.tokens[:, k], best.mask[:, k], bos=WORDS.bos).sum(1)
        _same(best.logp[:, k], again)


def _rules() -> Rules:
    return Rules(bos=WORDS.bos, eos=WORDS.eos, pad=WORDS.pad, max_words=T, banned=WORDS.banned_ids)


CHECKS: Sequence[Check] = (
    forward_gives_logits,
    every_weight_learns,
    steps_are_forward,
    state_is_all_earlier_words,
    photos_are_apart,
    photos_matter,
    words_come_in_order,
    padding_of_captions_is_left_out,
    padding_of_rows_changes_nothing,
    photos_without_rows_are_captioned,
    order_of_photos_is_kept,
    rows_can_be_chosen,
    greedy_says_the_likeliest,
    samples_have_their_log_p,
    beams_are_as_likely_as_greedy,
)
