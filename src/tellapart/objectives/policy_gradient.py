"""Policy gradient: a sampled caption becomes likelier by how far its reward is above the baseline.

REINFORCE (Williams, 1992) for captions, self-critical training (SCST; Rennie et al., 2017) and what grew out of them:
where captions come from, what they are compared with, how advantages are scaled and how the loss is summed up are
choices that combine freely (`PolicyConfig`).  The first words of captions may be a reference's and learned by
cross-entropy, which is an advantage of 1 (MIXER; Ranzato et al., 2016).

What we leave out on purpose: ratios and clipping (PPO, GRPO), for every batch is learned from once, so that the ratio
is 1; and a discount, for a caption is short and its reward comes at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tellapart.captioners import Captioner, select
from tellapart.data.batches import Batch
from tellapart.data.tokenizers import Tokenizer
from tellapart.decoding.beam import beam_search
from tellapart.decoding.rules import Rules
from tellapart.decoding.sample import Rollout, greedy, sample, tempered
from tellapart.decoding.score import log_probabilities, opening, score
from tellapart.objectives import StepInfo, StepResult, baselines
from tellapart.objectives.cross_entropy import hide_some
from tellapart.recipe import PolicyConfig, Reduction
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.combine import Combined
from tellapart.rewards.words import WordView, content_words, spread


def policy_gradient(
    logp: Tensor, advantage: Tensor, mask: Tensor, reduction: Reduction = "words"
) -> tuple[Tensor, float]:
    """REINFORCE: the loss, and its weight among the losses of other shares of a batch.

    logp, advantage, mask  (N, T)  nothing where the mask is False is learned from

    words          the mean over all words of the batch, so that long captions count more
    sentence_mean  the mean over captions of the mean over their words (length-normalised)
    sentence_sum   the mean over captions of the sum over their words: the gradient of the expected reward itself
    """
    each = -logp.masked_fill(~mask, 0.0) * advantage.detach().masked_fill(~mask, 0.0)
    if reduction == "words":
        count = int(mask.sum())
        return each.sum() / max(count, 1), float(count)
    sums = each.sum(1)
    if reduction == "sentence_mean":
        sums = sums / mask.sum(1).clamp(min=1)
    return sums.mean(), float(len(mask))


def divergence(logp: Tensor, reference_logp: Tensor, mask: Tensor, reduction: Reduction = "words") -> Tensor:
    """KL(policy || reference policy) in nats a word, estimated from samples.

    logp, reference_logp  (N, T)  of the words, by the policy and by the reference policy
    reduction             the mean over all words, or over captions of the mean over their words, as the loss has it

    Schulman's third estimator, r - 1 - ln r with r = p_reference / p: never negative, and with less noise than ln r.
    """
    log_ratio = (reference_logp - logp).masked_fill(~mask, 0.0)
    each, words = log_ratio.exp() - 1 - log_ratio, mask.sum(1)
    return each.sum() / words.sum().clamp(min=1) if reduction == "words" else (each.sum(1) / words.clamp(min=1)).mean()


class PolicyGradient:
    """A step of a policy gradient: from a batch to a loss and a log line.

    captioner         learns
    view              sampled tokens as words, which rewards measure
    reference_policy  the captioner as it was when training began, frozen; needed where `config.kl` is not 0
    total             of each of some numbers, the sum over all processes
    hide_regions      the chance of a region that the captioner does not see it in a step
    """

    def __init__(
        self,
        captioner: nn.Module,
        words: Tokenizer,
        scores: Combined,
        config: PolicyConfig,
        *,
        max_words: int,
        view: WordView,
        reference_policy: nn.Module | None = None,
        total: Callable[[Sequence[float]], list[float]] = list,
        hide_regions: float = 0.0,
    ):
        self._module, self._words, self._scores, self._config = captioner, words, scores, config
        self._captioner: Captioner = captioner  # type: ignore[assignment]
        self._reference_policy, self._view, self._hide_regions = reference_policy, view, hide_regions
        self._content = content_words(view.vocabulary)  # the log tells how many captions repeat one
        self._so_far, self._total = RunningMean(total), total
        self._two_passes = config.passes == "two" or (
            config.passes == "auto" and (config.chunk > 0 or getattr(captioner, "parallel_forward", False))
        )
        self._rules = Rules.of(words, max_words=max_words, no_repeat=config.no_repeat)

    def __call__(self, batch: Batch, moment: StepInfo) -> StepResult:
        config, progress = self._config, moment.progress
        if not len(batch.photos):
            self._scores.skip_batch()
            if config.baseline == "running_mean":
                self._so_far.then([])
            elif config.baseline in ("second_sample", "greedy", "references"):
                self._scores.skip_baseline()
            if config.whiten == "batch":
                nothing = torch.zeros(0, 0)
                baselines.whitened(nothing, nothing, total=self._total)
            names = ["loss", *self._scores.names, *SampleStats._fields, *(["kl"] if self._reference_policy else [])]
            return StepResult(torch.zeros((), device=batch.tokens.device), 0.0, dict.fromkeys(names, 0.0), captions=0)
        with self._mode():
            inputs = hide_some(batch.inputs, self._hide_regions)
            memory = self._captioner.encode(inputs)
            forced = self._forced(batch, progress)
            rollout, reference = self._roll_out(memory, forced), None
            if config.references:
                rollout, reference = self._beside_references(rollout, memory, batch)
            samples = len(rollout.tokens) // len(batch.photos)
            sampled, spans = self._in_words(rollout.tokens, rollout.mask, batch, progress, reference)
            with torch.no_grad():
                reward, line = self._scores(sampled, samples)
                baseline = self._baseline(reward, sampled, samples, memory, batch)
        above = baselines.advantage(reward, baseline, sampled.words.shape[1])  # (N, W)
        above = spread(above, reward.sentence - baseline.sentence, spans)  # (N, T)
        if config.whiten != "none":
            above = baselines.whitened(above, rollout.mask, samples if config.whiten == "photo" else 0, self._total)
        if forced is not None:
            above = torch.cat([torch.ones_like(above[:, : forced.shape[1]]), above[:, forced.shape[1] :]], 1)
        learned = rollout.mask & ~rollout.logp.isneginf()  # a reference may have words that are banned
        logp = rollout.logp.masked_fill(~learned, 0.0)
        loss, weight = policy_gradient(logp, above, learned, config.reduction)
        stats = sample_stats(sampled, samples, self._content, self._view.vocabulary.eos)
        line = {"loss": 0.0, **line, **stats._asdict()}
        if self._reference_policy is not None:
            policy: Captioner = self._reference_policy  # type: ignore[assignment]
            with torch.no_grad():
                reference_logp = self._scored(policy.encode(inputs), rollout, policy).logp
            kl = divergence(logp, reference_logp, learned, config.reduction)
            loss, line["kl"] = loss + config.kl * kl, kl.item()
        return StepResult(loss, weight, line | {"loss": loss.item()}, captions=len(rollout.tokens))

    def state(self) -> dict[str, Tensor]:
        """State that a checkpoint keeps beside the weights."""
        return {"so_far": self._so_far.state(), **{f"reward/{k}": v for k, v in self._scores.state().items()}}

    def restore(self, state: dict[str, Tensor]) -> None:
        self._so_far.restore(state["so_far"])
        self._scores.restore({k.removeprefix("reward/"): v for k, v in state.items() if k.startswith("reward/")})

    def _mode(self) -> AbstractContextManager[None]:
        return nullcontext() if self._config.dropout else _without_dropout(self._module)

    def _forced(self, batch: Batch, progress: float) -> Tensor | None:
        """(N, words) the first words of captions, those of references, ever fewer; none: nothing is forced"""
        count, samples = int(self._config.mixer * (1 - progress)), self._config.samples
        if not count:
            return None
        references = batch.tokens.view(len(batch.photos), -1, batch.tokens.shape[1])[:, :, :count]
        which = torch.arange(samples, device=references.device) % references.shape[1]
        return references[:, which].flatten(0, 1)

    def _roll_out(self, memory: Any, forced: Tensor | None = None) -> Rollout:
        """Captions with their log p, through which gradients flow."""
        config = self._config
        if config.sampler in ("beam", "diverse_beam"):
            return self._scored(memory, self._search(memory))
        # With words that may not be repeated, what a word was drawn from depends on those before it.
        if not self._two_passes or config.no_repeat or config.dropout:
            return self._draw(memory, config.samples, forced)
        with torch.no_grad():
            drawn = self._draw(memory, config.samples, forced)
        return self._scored(memory, drawn)

    def _draw(self, memory: Any, samples: int, forced: Tensor | None = None) -> Rollout:
        config = self._config
        if config.sampler == "greedy":
            return greedy(self._captioner, memory, self._rules)
        return sample(
            self._captioner,
            memory,
            self._rules,
            samples=samples,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            forced=forced,
        )

    def _search(self, memory: Any) -> Rollout:
        config = self._config
        beams = beam_search(
            self._captioner,
            memory,
            self._rules,
            beam=config.samples,
            n_best=config.samples,
            groups=config.groups if config.sampler == "diverse_beam" else 1,
            diversity=config.diversity,
        )
        tokens, mask = beams.tokens.flatten(0, 1), beams.mask.flatten(0, 1)
        return _unscored(tokens.masked_fill(~mask, self._words.pad), mask)

    def _scored(self, memory: Any, rollout: Rollout, captioner: Captioner | None = None) -> Rollout:
        """Captions with their log p by the policy that they are learned with.

        In chunks, what a backward pass needs is not kept but computed again, chunk by chunk (Chen et al., 2016).
        """
        policy = self._policy if self._config.sampler == "sample" else log_probabilities

        def scored(memory: Any, tokens: Tensor, mask: Tensor) -> Tensor:
            with self._mode():  # again in the backward pass, when the loop has long turned dropout on
                return score(captioner or self._captioner, memory, tokens, mask, bos=self._words.bos, policy=policy)

        photos = torch.arange(len(opening(memory, self._words.bos)), device=rollout.tokens.device)
        if not 0 < self._config.chunk < len(photos):
            return Rollout(rollout.tokens, scored(memory, rollout.tokens, rollout.mask), rollout.mask)
        each = len(rollout.tokens) // len(photos)
        parts = []
        for start in range(0, len(photos), self._config.chunk):
            some = photos[start : start + self._config.chunk]
            captions = slice(each * start, each * (start + len(some)))
            part = select(memory, some), rollout.tokens[captions], rollout.mask[captions]
            parts.append(checkpoint(scored, *part, use_reentrant=False))
        return Rollout(rollout.tokens, torch.cat(parts), rollout.mask)

    def _policy(self, logits: Tensor) -> Tensor:
        """Logits of the distribution that captions are drawn from."""
        never = torch.tensor(sorted(self._words.banned_ids), dtype=torch.long, device=logits.device)
        config = self._config
        return tempered(logits.index_fill(1, never, -torch.inf), config.temperature, config.top_k, config.top_p)

    def _beside_references(self, rollout: Rollout, memory: Any, batch: Batch) -> tuple[Rollout, Tensor]:
        """Captions of each photo and then its references, and which reference each is: (N,), -1 where it is none."""
        photos, wanted = len(batch.photos), self._config.references
        tokens, mask = (
            part.view(photos, -1, part.shape[1])[:, :wanted].flatten(0, 1) for part in (batch.tokens, batch.token_mask)
        )
        references = self._scored(memory, _unscored(tokens, mask))
        length = max(rollout.tokens.shape[1], references.tokens.shape[1])

        def together(sampled: Tensor, referenced: Tensor, filler: float) -> Tensor:
            longer = [F.pad(part, (0, length - part.shape[1]), value=filler) for part in (sampled, referenced)]
            return torch.cat([part.view(photos, -1, length) for part in longer], 1).flatten(0, 1)

        joined = Rollout(
            together(rollout.tokens, references.tokens, self._words.pad),
            together(rollout.logp, references.logp, 0.0),
            together(rollout.mask, references.mask, False),
        )
        assert batch.chosen is not None
        which = batch.chosen.view(photos, -1)[:, :wanted]
        none = which.new_full((photos, len(rollout.tokens) // photos), -1)
        return joined, torch.cat([none, which], 1).flatten()

    def _baseline(self, reward: Reward, sampled: SampledCaptions, samples: int, memory: Any, batch: Batch) -> Reward:
        """The reward that each caption's is compared with."""
        progress = sampled.progress
        match self._config.baseline:
            case "leave_one_out":
                return baselines.leave_one_out(reward, samples)
            case "mean":
                return baselines.mean(reward, samples)
            case "best":
                return baselines.mean_of_best(reward, sampled.mask, samples, self._config.top_q)
            case "running_mean":
                return baselines.constant(self._so_far.then(reward.per_caption(sampled.mask).tolist()), reward)
            case "none":
                return baselines.constant(0.0, reward)
            case "second_sample":
                other = self._draw(memory, samples)
                return self._scores.score_baseline(self._in_words(other.tokens, other.mask, batch, progress)[0])
            case "greedy":
                with _without_dropout(self._module):  # what would be said at test time (SCST)
                    if self._config.dropout:
                        memory = self._captioner.encode(batch.inputs)
                    other = greedy(self._captioner, memory, self._rules)
                others, _ = self._in_words(other.tokens, other.mask, batch, progress)
            case "references":
                others, _ = self._in_words(batch.tokens, batch.token_mask, batch, progress, batch.chosen)
        return baselines.of_photo(self._scores.score_baseline(others), len(batch.photos), samples)

    def _in_words(
        self, tokens: Tensor, mask: Tensor, batch: Batch, progress: float, reference: Tensor | None = None
    ) -> tuple[SampledCaptions, Tensor | None]:
        """Captions as words, and which word each token is part of (N, T)."""
        words = self._view(tokens, mask)
        photos = torch.as_tensor(batch.photos, device=batch.tokens.device)  # positions in the data
        photos = photos.repeat_interleave(len(tokens) // len(batch.photos))
        return SampledCaptions(words.ids, words.mask, photos, reference, progress, words.texts), words.spans


class RunningMean:
    """The mean of all rewards so far, of all processes, read before the new ones are added (DiscriTune)."""

    def __init__(self, total: Callable[[Sequence[float]], list[float]]):
        self._sum, self._count, self._total = 0.0, 0.0, total

    def then(self, values: Sequence[float]) -> float:
        mean = self._sum / max(self._count, 1)
        more, count = self._total([sum(values), len(values)])
        self._sum, self._count = self._sum + more, self._count + count
        return mean

    def state(self) -> Tensor:
        return torch.tensor([self._sum, self._count], dtype=torch.double)

    def restore(self, state: Tensor) -> None:
        self._sum, self._count = state.tolist()


class SampleStats(NamedTuple):
    """Statistics of sampled captions: a policy that goes astray shows it here first."""

    length: float  # words, without EOS
    unique: float  # different captions of a photo, as a share of its captions
    repeats: float  # captions that say a content word twice, as a share of all
    cut: float  # captions that were cut before they ended, as a share of all
    words: float  # learned from, in all


def sample_stats(sampled: SampledCaptions, samples: int, content: Tensor, eos: int) -> SampleStats:
    tokens = sampled.words.masked_fill(~sampled.mask, eos)
    same = (tokens[:, :, None] == tokens[:, None]) & content.to(tokens.device)[tokens][:, None]  # (N, T, T)
    twice = same.triu(1).flatten(1).any(1)
    ended = (tokens == eos).any(1)
    lengths = (tokens != eos).sum(1)
    return SampleStats(
        lengths.float().mean().item(),
        len({(i // samples, *caption) for i, caption in enumerate(tokens.tolist())}) / len(tokens),
        twice.float().mean().item(),
        1 - ended.float().mean().item(),
        float(sampled.mask.sum()),
    )


def _unscored(tokens: Tensor, mask: Tensor) -> Rollout:
    return Rollout(tokens, torch.zeros(tokens.shape, device=tokens.device), mask)


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
