"""Promises of captioners (`captioners.Captioner`), at a tiny size.

B photos, K captions of each, T words, V vocabulary, R rows of a stream.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tellapart import models
from tellapart.captioners import CAPTIONERS, by_steps, select
from tellapart.data.streams import REGIONS, Inputs, Stream, region_inputs
from tellapart.data.tokenizers import WordTokenizer
from tellapart.decoding import Rules, beam_search, greedy, sample, score
from tellapart.protocols import Case

WORDS = WordTokenizer(["a", "red", "bus", "cat", "on", "the", "bed"])
B, K, R, T, V = 3, 2, 5, 6, len(WORDS)
FEATURES = 8
CLIPS = {"words": 6, "actions": 5, "classes": 4, "sound": 3}
SIZES = {REGIONS: FEATURES, "attributes": 2, "boxes": 4, "relations": 3, **CLIPS}  # of the streams there are
_TOLERANCE = 1e-5  # of logits near 1


def tiny(name: str, vocab_size: int = V, seed: int = 0, **settings: Any) -> Any:
    """A captioner of the table, with fresh weights and without dropout."""
    torch.manual_seed(seed)
    _, config = CAPTIONERS[name].load()
    still = {"dropout": 0.0} if "dropout" in {field.name for field in fields(config)} else {}
    settings = getattr(import_module(CAPTIONERS[name].module), "TINY", {}) | still | settings
    return models.build_captioner(name, settings, vocab_size=vocab_size, feature_sizes=sizes_of(name)).eval()


def sizes_of(name: str) -> dict[str, int]:
    """Sizes of the streams that a captioner takes."""
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
    return Inputs(inputs | {name: Stream(rows, mask.clone()) for name, rows in ours.items()} | of_clips)


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


def _same(result: Tensor, expected: Tensor) -> None:
    assert result.shape == expected.shape, f"{tuple(result.shape)} and {tuple(expected.shape)}"
    result, expected = result.detach(), expected.detach()
    off, scale = float((result - expected).abs().max()), max(1.0, float(expected.abs().max()))
    assert off <= _TOLERANCE * scale, f"{off:.2g} apart"


def _rules() -> Rules:
    return Rules(bos=WORDS.bos, eos=WORDS.eos, pad=WORDS.pad, max_words=T, banned=WORDS.banned_ids)


class CaptionerCase(Case):
    """
    captioner  a module that is a `Captioner`
    photos     (B, R, ...): the second has three rows in each stream, the third one
    tokens     (B*K, T)
    """

    def __init__(self, name: str):
        features = torch.randn(B, R, FEATURES, generator=torch.Generator().manual_seed(1))
        self.photos = every_stream(features, torch.arange(R) < torch.tensor([[R], [3], [1]]))
        self.tokens = torch.randint(V, (B * K, T), generator=torch.Generator().manual_seed(2))
        self.captioner = tiny(name)

    def _logits(self, tokens: Tensor | None = None, photos: Inputs | None = None) -> Tensor:
        memory = self.captioner.encode(self.photos if photos is None else photos)
        logits: Tensor = self.captioner.forward(self.tokens if tokens is None else tokens, memory)
        return logits

    def forward_gives_logits(self) -> None:
        """`forward` gives each word of each caption a finite logit."""
        logits = self._logits()
        assert logits.shape == (B * K, T, V), f"{tuple(logits.shape)}, not {(B * K, T, V)}"
        assert logits.isfinite().all()

    def every_weight_learns(self) -> None:
        """The gradient of cross-entropy reaches all weights."""
        self.captioner.zero_grad()
        logits = self._logits()
        F.cross_entropy(logits.flatten(0, 1), self.tokens.flatten()).backward()  # type: ignore[no-untyped-call]
        learns = ((name, weight) for name, weight in self.captioner.named_parameters() if weight.requires_grad)
        still = [name for name, weight in learns if weight.grad is None or not weight.grad.any()]
        self.captioner.zero_grad()
        assert not still, f"none for {', '.join(still[:3])}"

    def steps_are_forward(self) -> None:
        """`step` says what `forward` says."""
        memory = self.captioner.encode(self.photos)
        _same(by_steps(self.captioner, self.tokens, memory, B), self.captioner.forward(self.tokens, memory))

    def state_is_all_earlier_words(self) -> None:
        """A state is as good as all words anew, at any length."""
        stepped = by_steps(self.captioner, self.tokens, self.captioner.encode(self.photos), B)
        for length in range(1, T + 1):
            _same(stepped[:, length - 1], self._logits(self.tokens[:, :length])[:, -1])

    def photos_are_apart(self) -> None:
        """Photos of a batch do not affect each other."""
        together = self._logits()
        for i in range(B):
            rows = slice(i * K, (i + 1) * K)
            _same(together[rows], self._logits(self.tokens[rows], self.photos.select([i])))

    def photos_matter(self) -> None:
        """What is said depends on the photo."""
        first, second, third = self._logits(self.tokens[:1].expand(B, -1))
        assert not torch.allclose(first, second, atol=1e-4)
        assert not torch.allclose(second, third, atol=1e-4)

    def words_come_in_order(self) -> None:
        """No word sees a later one, and each sees the earlier ones."""
        changed = self.tokens.clone()
        changed[:, 3:] = (changed[:, 3:] + 1) % V
        logits, others = self._logits(), self._logits(changed)
        _same(others[:, :3], logits[:, :3])
        assert not torch.allclose(logits[:, 3:], others[:, 3:])

    def padding_of_captions_is_left_out(self) -> None:
        """`forward` with a mask gives the logits of the words that it marks."""
        memory = self.captioner.encode(self.photos)
        mask = torch.arange(T) < torch.tensor([6, 1, 4, 3, 6, 2])[:, None]
        _same(self.captioner.forward(self.tokens, memory, mask), self.captioner.forward(self.tokens, memory)[mask])

    def padding_of_rows_changes_nothing(self) -> None:
        """Padding of regions changes nothing, whatever stands there and however much of it there is."""
        for filler in (1e3, -7.0):
            _same(self._logits(photos=padded(self.photos, 2, filler)), self._logits())

    def photos_without_rows_are_captioned(self) -> None:
        """A photo in which nothing was found is captioned all the same, and leaves others and gradients as they are."""
        words = self.tokens[:K]
        together = self._logits(words.repeat(B, 1), without_second(self.photos))
        for places in (0, 1, 4):
            mask = torch.zeros(1, places, dtype=torch.bool)
            nothing = Inputs((name, Stream(torch.zeros(1, places, SIZES[name]), mask)) for name in self.photos)
            alone = self._logits(words, nothing)
            assert alone.isfinite().all()
            _same(together[K : 2 * K], alone)
        _same(together[:K], self._logits(words, self.photos.select([0])))
        together.square().sum().backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad for weight in self.captioner.parameters() if weight.grad is not None]
        self.captioner.zero_grad()
        assert all(gradient.isfinite().all() for gradient in gradients)

    def order_of_photos_is_kept(self) -> None:
        """Answers come in the order of the batch."""
        order = torch.tensor([2, 0, 1])
        rows = (order[:, None] * K + torch.arange(K)).flatten()
        _same(self._logits()[rows], self._logits(self.tokens[rows], self.photos.select(order)))

    def rows_can_be_chosen(self) -> None:
        """Memory and state are rows of which some can be chosen."""
        order, first, second = torch.tensor([2, 0]), self.tokens[::K, 0], self.tokens[::K, 1]
        memory = self.captioner.encode(self.photos)
        _, state = self.captioner.step(first, self.captioner.start(memory), memory)
        whole, _ = self.captioner.step(second, state, memory)
        chosen, _ = self.captioner.step(second[order], select(state, order), select(memory, order))
        _same(chosen, whole[order])

    def greedy_says_the_likeliest(self) -> None:
        """Greedy decoding says the likeliest word again and again."""
        captions = greedy(self.captioner, self.captioner.encode(self.photos), rules=_rules())
        assert not torch.isin(captions.tokens[captions.mask], torch.tensor(list(WORDS.banned_ids))).any()
        for row in range(B):
            words = [WORDS.bos]
            for _ in range(int(captions.mask[row].sum())):
                logits = self._logits(torch.tensor([words]), self.photos.select([row]))[0, -1].detach().clone()
                logits[list(WORDS.banned_ids)] = -torch.inf
                words.append(int(logits.argmax()))
            assert words[1:] == captions.tokens[row][captions.mask[row]].tolist()

    def samples_have_their_log_p(self) -> None:
        """Samples come with their log-probability."""
        memory, draw = self.captioner.encode(self.photos), torch.Generator().manual_seed(0)
        rules = Rules(bos=WORDS.bos, eos=WORDS.eos, pad=WORDS.pad, max_words=T)
        drawn = sample(self.captioner, memory, samples=4, generator=draw, rules=rules)
        assert len(drawn.tokens) == 4 * B
        _same(drawn.logp, score(self.captioner, memory, drawn.tokens, drawn.mask, bos=WORDS.bos))

    def beams_are_as_likely_as_greedy(self) -> None:
        """A beam finds captions at least as likely as greedy decoding, with their log-probability."""
        memory = self.captioner.encode(self.photos)
        best = beam_search(self.captioner, memory, beam=4, n_best=4, rules=_rules())
        simple = greedy(self.captioner, memory, rules=_rules())
        assert (best.logp[:, 0] >= simple.logp.sum(1) - _TOLERANCE).all()
        for k in range(4):
            again = score(self.captioner, memory, best.tokens[:, k], best.mask[:, k], bos=WORDS.bos).sum(1)
            _same(best.logp[:, k], again)
