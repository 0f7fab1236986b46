"""A step of distinctive training: where its time goes, what distinctive rewards add, and how the field's scripts do it.

    python benchmarks/objectives.py [CAPTIONS.json] [--repeats 5]

16 photos with 5 sampled captions each, one thread, CPU time, features given.  References are those of CAPTIONS.json, or
the thousand photos of tests/golden.  Two captioners: Up-Down (TDA) at the width of the GLD paper, 36 regions of 2048
numbers and 9,487 words, taught by a few steps of cross-entropy so that its captions end as captions do; and the
Transformer of `plain` on photos of the album.

parts   of one step, in milliseconds and as a share: Table VI of the GLD paper for all of it.  "reward" is every term;
        all hear the same captions once, so that the first term that asks the listener pays for it.
steps   whole steps of `PolicyGradient` with the rewards of the papers' rows, beside that of SCST.
weights a step of SCST with the gradient of a weight that every word uses made in one product over all words, and by
        autograd word by word.
sharing a step of SCST with captions that begin alike as one row until they part, and with a row for each.
script  a step of SCST, one with GD beside CIDEr-D and one of GLD, as scripts for self-critical training write them:
        the features of a photo are copied for each of its captions, words are drawn by torch.multinomial, the greedy
        caption (in GLD's program a second sample) is decoded for every copy, tokens become strings, CIDEr-D and LD are
        computed from dictionaries of n-grams that are made anew for every caption and every reference, and the
        retriever hears one caption at a time.  The captioner is ours in both.  The rewards and the loss of the same
        captions must agree, or the timing means nothing.

The learning rate is 0, so that every repetition has the same captioner; each repetition has another seed, and all that
is compared within it has the same one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from step_script import Script, must_agree
from step_settings import (
    PHOTOS,
    ROWS,
    SAMPLES,
    Setting,
    captions,
    transformer,
    up_down,
)
from timing import side_by_side, table

from tellapart.captioners.transformer import Transformer
from tellapart.data.streams import region_inputs
from tellapart.decoding.sample import sample
from tellapart.decoding.score import score
from tellapart.objectives import baselines
from tellapart.objectives.policy_gradient import policy_gradient


def parts(setting: Setting, repeats: int) -> list[dict[str, str]]:
    took: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        took[part].append(time.process_time() - began)

    captioner, rules = setting.captioner, setting.rules
    at_once = getattr(captioner, "parallel_forward", False)
    for turn in range(repeats + 1):  # the first warms up
        torch.manual_seed(turn)
        with timed("encode"):
            memory = captioner.encode(region_inputs(setting.features, setting.mask))
        with timed("sample"), torch.set_grad_enabled(not at_once):
            rollout = sample(captioner, memory, rules, samples=SAMPLES)
        logp = rollout.logp
        if at_once:
            with timed("score"):
                logp = score(captioner, memory, rollout.tokens, rollout.mask, bos=rules.bos)
        said, rewards = setting.said(rollout.tokens), {}
        with torch.no_grad():
            for name, term in setting.terms.items():
                with timed(f"reward: {name}"):
                    rewards[name] = term(said)
            with timed("reward: geg_avg, alone"):
                setting.terms["geg_avg"](setting.said(rollout.tokens))
        with timed("backward"):
            baseline = baselines.leave_one_out(rewards["ld"], SAMPLES)
            above = baselines.advantage(rewards["ld"], baseline, said.words.shape[1])
            policy_gradient(logp, above, said.mask)[0].backward()
        with timed("clip and AdamW"):
            torch.nn.utils.clip_grad_norm_(captioner.parameters(), 1.0)
            setting.optimizer.step()
            setting.optimizer.zero_grad()
    seconds = {part: statistics.median(values[1:]) for part, values in took.items()}
    whole = sum(value for part, value in seconds.items() if not part.startswith("reward"))
    kept = ("cider_d", "ld", "gd")
    seconds["CIDEr-D + GD + LD"] = sum(seconds[f"reward: {name}"] for name in kept)
    seconds["CIDEr-D + GEG"] = seconds["reward: cider_d"] + seconds["reward: geg_avg, alone"]
    whole += seconds["CIDEr-D + GD + LD"]
    return [
        {
            "part": part,
            "ms": f"{1000 * value:.1f}",
            "range": f"{1000 * min(took[part][1:]):.1f} to {1000 * max(took[part][1:]):.1f}" if part in took else "",
            "% of a GLD step": f"{100 * value / whole:.2f}",
        }
        for part, value in seconds.items()
    ]


# What distinctive rewards add to a step


def seeded(ways: dict[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """The same draws for all in every turn, others in the next."""

    def with_seed(way: Callable[[], object], turn: Iterator[int]) -> None:
        torch.manual_seed(next(turn))
        way()

    return {name: partial(with_seed, way, iter(range(1000))) for name, way in ways.items()}


def steps(setting: Setting, baseline: str, repeats: int) -> dict[str, str]:
    took = side_by_side(
        seeded({name: setting.step(terms, baseline) for name, terms in ROWS.items()}),
        repeats=repeats,
        clock=time.process_time,
    )
    row = {"captioner": setting.name, "baseline": baseline}
    row |= {f"{name}, ms": f"{1000 * seconds:.0f}" for name, seconds in took.items()}
    return row | {f"{name} / SCST": f"{took[name] / took['SCST']:.3f}" for name in ("GLD", "GEG")}


# What it saves to make the gradients of weights at once


def word_by_word(step: Callable[[], None]) -> Callable[[], None]:
    """With autograd left to itself."""
    sampling = import_module("tellapart.decoding.sample")  # `decoding.sample` is the function

    def patched() -> None:
        with mock.patch.object(sampling, "DeferredWeightGradients", nullcontext):
            step()

    return patched


def weights(setting: Setting, repeats: int) -> list[dict[str, str]]:
    step = setting.step(ROWS["SCST"], "leave_one_out")
    ways = {"at once": step, "word by word": word_by_word(step)}
    took = side_by_side(seeded(ways), repeats=repeats, clock=time.process_time)
    row = {"captioner": setting.name} | {f"{way}, ms": f"{1000 * seconds:.0f}" for way, seconds in took.items()}
    return [row | {"word by word / at once": f"{took['word by word'] / took['at once']:.2f}"}]


def apart(step: Callable[[], None]) -> Callable[[], None]:
    """With a row of its own for every caption from its second word on."""
    sampling = import_module("tellapart.decoding.sample")

    def patched() -> None:
        with (
            mock.patch.object(sampling, "_same_for_all", return_value=False),
            mock.patch.object(Transformer, "shares_prefixes", False),
        ):
            step()

    return patched


def sharing(setting: Setting, temperature: float, repeats: int) -> dict[str, str]:
    step = setting.step(ROWS["SCST"], "leave_one_out", temperature)
    took = side_by_side(seeded({"shared": step, "apart": apart(step)}), repeats=repeats, clock=time.process_time)
    row = {"captioner": setting.name, "temperature": f"{temperature:g}"}
    row |= {f"{way}, ms": f"{1000 * seconds:.0f}" for way, seconds in took.items()}
    return row | {"apart / shared": f"{took['apart'] / took['shared']:.2f}"}


SCRIPTS = {"SCST": ("cider_d",), "GD": ("cider_d", "gd"), "GLD": ("ld", "gd")}


def script(setting: Setting, row: str, repeats: int) -> dict[str, str]:
    theirs, terms = Script(setting, row), SCRIPTS[row]
    must_agree(setting, theirs, terms)
    same = "second_sample" if row == "GLD" else "greedy"
    ways = {"script": theirs, "same baseline": setting.step(terms, same), "ours": setting.step(terms, "leave_one_out")}
    took = side_by_side(seeded(ways), repeats=repeats, clock=time.process_time)
    line = {"captioner": setting.name, "row": row, "rewards": " + ".join(terms)}
    line |= {f"{name}, ms": f"{1000 * seconds:.0f}" for name, seconds in took.items()}
    return line | {f"script / {name}": f"{took['script'] / took[name]:.2f}" for name in list(ways)[1:]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    request = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    texts = captions(request.captions)
    settings = [up_down(texts), transformer(texts)]
    for setting in settings:
        title = f"{setting.name}: parts of a step, {PHOTOS} photos x {SAMPLES} samples"
        table(title, parts(setting, request.repeats))
    rows = [
        steps(setting, baseline, request.repeats)
        for setting in settings
        for baseline in ("leave_one_out", "second_sample")
    ]
    table("Whole steps: SCST (CIDEr-D), GLD (LD + GD), GEG (CIDEr-D + G_avg)", rows)
    table("Gradients of weights that every word uses", weights(settings[0], request.repeats))
    rows = [sharing(setting, temperature, request.repeats) for setting in settings for temperature in (1.0, 0.7)]
    table("Captions that begin alike: as one row until they part, and each by itself", rows)
    rows = [script(setting, row, request.repeats) for setting in settings for row in SCRIPTS]
    table("A step of a script and ours", rows)
