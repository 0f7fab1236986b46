"""LD, the local discriminative reward (GLD paper, Eq. 9-10): rare words that the references have too earn more.

Every word of a caption gets the caption's CIDEr-D, R_C.  A word w whose own weight is above one threshold gets a bonus
besides, from the distinct n-grams ω of the caption that contain it and weigh more than another:

    10 / references · Σ_references Σ_n Σ_ω∋w  min(g_ω(caption), g_ω(reference)) · g_ω(reference) / (‖g‖ ‖g‖)

g is the tf-idf weight, and the norms are those of all n-grams of one length.  As in the authors' program this is summed
over n, where CIDEr-D takes the mean, and CIDEr-D's penalty on a difference in length applies.  Their program scores the
captions of its first call for ever, since a list is never cleared; here nothing remains between calls.

The bonus alone can make captions ever longer: the end token never gets it, and a word that is used twice is paid twice.
`LocalConfig` has the remedies.  It also holds down informative words that are frequent; `qualify="contrast"` does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.ngrams import ORDERS
from capscore.overlap import SIGMA
from capscore.sentences import Sentences
from tellapart.recipe import Frequency, LocalConfig
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.agreement import Consensus

_SCALE = 10.0  # that of CIDEr-D

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


class LocalDiscriminative:
    """CIDEr-D for the sentence, and for each of its words the bonus of LD.

    consensus    CIDEr-D with the references that words are compared with
    look_alikes  (P, k)  for "contrast": photos that each photo must differ from; -1 where there are fewer.  Those
                         without references say nothing, and a photo without look-alikes has nothing to differ from:
                         its words get no bonus
    stop_words   (V,)    for "contrast": True at tokens that are no content words

    A caption that is one of its photo's references (`SampledCaptions.reference`) is compared with the others only.
    """

    def __init__(
        self,
        consensus: Consensus,
        config: LocalConfig,
        *,
        look_alikes: NDArray[np.integer] | None = None,
        stop_words: Tensor | None = None,
    ):
        self._consensus, self._config = consensus, config
        self._look_alikes = None
        if config.qualify == "contrast":
            assert look_alikes is not None
            has_references = (look_alikes >= 0) & (consensus.references.sizes[look_alikes] > 0)
            self._look_alikes = np.where(has_references, look_alikes, -1).astype(np.int64)
        self._stop_words = None if stop_words is None else stop_words.cpu().numpy()

    def __call__(self, sampled: SampledCaptions) -> Reward:
        """sentence (N,): R_C.  words (N, T): bonuses; 0 for words that do not qualify, the end and what follows it."""
        consensus, config = self._consensus, self._config
        captions = consensus.sentences(sampled.ids)
        sentence = consensus.scores(captions, sampled.photos, sampled.reference)
        photos = rows = sampled.photos.cpu().numpy().astype(np.int64)
        references = consensus.references
        if sampled.reference is not None:
            references = references.without(photos, sampled.reference.cpu().numpy().astype(np.int64))
            rows = np.arange(len(photos))

        gains, weights = references.word_gains(
            captions,
            rows,
            threshold=config.threshold if config.qualify == "rare" else -np.inf,
            normalised=config.tf == "normalised",
            sigma=SIGMA if config.length_penalty else np.inf,
        )
        width = gains.shape[1]
        inside = np.arange(width) < captions.lengths[:, None]
        tokens = np.where(inside, captions.tokens.reshape(sampled.words.shape)[:, :width], consensus.end)
        if self._look_alikes is None:
            qualifies = weights > config.word_threshold
        else:
            qualifies = references.occurrences(captions, rows) > 0
            qualifies &= self._tells_apart(captions, self._look_alikes[photos])
            if self._stop_words is not None:
                qualifies &= ~self._stop_words[tokens]
        qualifies &= tokens != consensus.end

        bonus = np.where(qualifies, _SCALE * gains, 0.0)
        if config.at_most_references:
            earlier = np.tril(tokens[:, :, None] == tokens[:, None, :], -1).sum(2)  # how often it has had the word
            bonus[earlier >= references.occurrences(captions, rows)] = 0
        if config.share:
            total = bonus.sum(1)
            bonus *= np.divide(config.share * sentence, total, out=np.zeros_like(total), where=total > 0)[:, None]
        if config.centre and qualifies.any():
            bonus[qualifies] -= bonus[qualifies].mean()

        words = np.zeros(sampled.words.shape)
        words[:, :width] = config.bonus * bonus
        return sampled.reward(sentence, words)

    def _tells_apart(self, captions: Sentences, others: Longs) -> Bools:
        """(N, T): do fewer than half of the photo's look-alikes have this word in a reference?

        others  (N, k)  the look-alikes of each caption's photo
        """
        count, k = others.shape
        each = captions[np.repeat(np.arange(count), k)]
        have = self._consensus.references.occurrences(each, np.maximum(others, 0).ravel()) > 0
        present = others >= 0
        having = (have.reshape(count, k, captions.lengths.max(initial=0)) & present[:, :, None]).sum(1)
        tells: Bools = 2 * having < present.sum(1)[:, None]
        return tells


@dataclass(frozen=True)
class Differences:
    """LD-Diff: word t gets what it adds, R_C of the first t words less that of the first t - 1; the sentence its R_C.

    A prefix has no end token but for the last, the whole caption; that of no words gets 0.  So a caption's words
    sum up to its R_C.
    """

    consensus: Consensus

    def __call__(self, sampled: SampledCaptions) -> Reward:
        """sentence (N,), words (N, T); 0 after the end."""
        captions = self.consensus.sentences(sampled.ids)
        count, width = sampled.words.shape
        owner = np.repeat(np.arange(count), captions.lengths)  # of each prefix that has a word
        place = np.arange(len(owner)) - np.repeat(np.cumsum(captions.lengths) - captions.lengths, captions.lengths)
        prefixes = Sentences(captions.tokens, captions.starts[owner], place + 1)
        rows = torch.from_numpy(owner).to(sampled.photos.device)
        reference = None if sampled.reference is None else sampled.reference[rows]
        scores = np.zeros((count, width + 1))
        scores[owner, place + 1] = self.consensus.scores(prefixes, sampled.photos[rows], reference)
        words = np.zeros((count, width))
        words[owner, place] = scores[owner, place + 1] - scores[owner, place]
        return sampled.reward(scores[np.arange(count), captions.lengths], words)


def ngram_weights(consensus: Consensus, n: int, *, tf: Frequency = "count") -> tuple[NDArray[np.int32], Floats]:
    """(M, n) n-grams of the references, (M,) their weights (Eq. 9): once for each time that a reference has one."""
    ids, weights = consensus.references.own_weights(n, normalised=tf == "normalised")
    return consensus.references.spelt(ids, n), weights


def with_thresholds(config: LocalConfig, consensus: Consensus) -> LocalConfig:
    """The same settings with λ and η chosen by their quantiles, where there are any.

    By what the references' own n-grams (n = 1..4 together) and words weigh: the smallest weight that at least this
    share of all does not exceed.  It is one of them, so that `>` leaves it out.
    """
    if config.ngram_quantile:
        weights = np.concatenate([ngram_weights(consensus, n, tf=config.tf)[1] for n in range(1, ORDERS + 1)])
        config = replace(config, threshold=_quantile(weights, config.ngram_quantile))
    if config.word_quantile:
        words, weights = ngram_weights(consensus, 1, tf=config.tf)
        config = replace(config, word_threshold=_quantile(weights[words[:, 0] != consensus.end], config.word_quantile))
    return config


def _quantile(weights: Floats, share: float) -> float:
    return float(np.quantile(weights, share, method="inverted_cdf"))
