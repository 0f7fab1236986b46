"""Figures that pages share: how runs went, what words earn and weigh by the local discriminative reward, and where
captions lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tellapart.data.examples import Example
from tellapart.data.media.thumbnails import LONG_SIDE
from tellapart.evaluation.local_reward import Earned, LocalReward
from tellapart.evaluation.pages import plots
from tellapart.evaluation.pages.cards import Pictures
from tellapart.evaluation.pages.plots import Mark, Series
from tellapart.evaluation.training_runs import Curves, Run, caution, in_units
from tellapart.html import escaped

_WORD_REWARDS = 3  # photos whose words' rewards are drawn


class Figure(NamedTuple):
    title: str
    note: str  # text
    body: str  # HTML


def side_by_side(charts: Mapping[str, str], drawn: dict[str, str]) -> str:
    """Charts in rows; `drawn` keeps them by name, for those who want files of them."""
    drawn |= charts
    inside = "".join(f"<figure>{chart}</figure>\n" for chart in charts.values())
    return f'<div class="charts">\n{inside}</div>\n' if inside else ""


def dot(speaker: int) -> str:
    """A speaker's colour."""
    circle = f'<circle class="c{speaker % plots.COLOURS}" cx="5" cy="5" r="4"/>'
    return f'<svg class="chart dot-of" viewBox="0 0 10 10">{circle}</svg>'


def over_steps(runs: Sequence[Run], drawn: dict[str, str]) -> list[Figure]:
    """How runs went (Fig. 6 of the GLD paper), as far as their logs say."""

    def validations(run: Run) -> Curves:
        return {
            name: [(step, in_units(name, value)) for step, value in curve] for name, curve in run.validations.items()
        }

    def rewards(run: Run) -> Curves:
        return {name: curve for name, curve in run.training.items() if name.split("/")[0] == "reward"}

    made = [
        Figure("Validation over steps", caution(runs), side_by_side(_curves(runs, validations, "validation"), drawn)),
        Figure(
            "Rewards over steps",
            "Of the captions that are learned from, before any weight; reward is the weighted sum.",
            side_by_side(_curves(runs, rewards, "training"), drawn),
        ),
    ]
    return [figure for figure in made if figure.body]


def _curves(runs: Sequence[Run], of: Callable[[Run], Curves], prefix: str) -> dict[str, str]:
    curves = [of(run) for run in runs]
    names = dict.fromkeys(name for own in curves for name in own)
    return {
        f"{prefix}.{name.replace('/', '.')}": plots.lines(
            name,
            [
                Series(run.name, own[name], n)
                for n, (run, own) in enumerate(zip(runs, curves, strict=True))
                if name in own
            ],
            x="step",
        )
        for name in names
    }


def weights(local: LocalReward, drawn: dict[str, str]) -> Figure:
    """How much n-grams weigh, and examples (Figs. 3-4 of the GLD paper)."""
    found = local.weights()
    series = []
    for one in found:
        centres = ((one.edges[1:] + one.edges[:-1]) / 2).tolist()
        series.append(
            Series(f"n = {one.order}", list(zip(centres, (100 * one.shares).tolist(), strict=True)), one.order + 3)
        )
    marks = [Mark(local.config.word_threshold, "η, words"), Mark(local.config.threshold, "λ, n-grams")]
    chart = plots.lines("Share of n-grams (%) by weight", series, x="TF-IDF weight", marks=marks)
    lines = "".join(
        f'<tr><th scope="row">n = {one.order}</th>'
        + "".join(f'<td class="said">{escaped(text)} <small>{weight:.2f}</small></td>' for weight, text in one.examples)
        + "</tr>\n"
        for one in found
    )
    examples = f'<h3>Frequent ones, from light to heavy</h3>\n<div class="wide"><table>\n{lines}</table></div>\n'
    return Figure("What n-grams weigh", local.sources, side_by_side({"weights": chart}, drawn) + examples)


def word_rewards(
    local: LocalReward,
    photos: Sequence[Example],
    captions: Mapping[str, Sequence[str]],
    pictures: Pictures,
    drawn: dict[str, str],
) -> Figure:
    """What each word of a caption gets (Fig. 5), of the photos where a word of the last speaker gets most."""
    references = [photo.captions for photo in photos]
    earned = {name: local.earned(own, references) for name, own in captions.items()}
    last, best = list(earned.items())[-1]
    parts = []
    for number in sorted(range(len(best)), key=lambda number: -best[number].most)[:_WORD_REWARDS]:
        charts = dict(_earned(photos[number], {name: own[number] for name, own in earned.items()}))
        picture = f'<div class="photos">{pictures.show(photos[number].file, LONG_SIDE)}</div>'
        parts.append(f"<article>\n{picture}{side_by_side(charts, drawn)}</article>\n")
    note = (
        "What LD, the local discriminative reward, gives each word of a caption; dashed: CIDEr-D, which all words get. "
        f"Shown are the photos where a word of {last} gets most. {local.sources}"
    )
    return Figure("What words earn", note, "".join(parts))


def _earned(photo: Example, earned: Mapping[str, Earned]) -> Iterable[tuple[str, str]]:
    for number, (name, own) in enumerate(earned.items()):
        if own.words:
            each = [(float(place), value) for place, value in enumerate(own.each)]
            flat = [(float(place), own.sentence) for place in range(len(each))]
            series = [Series("LD", each, number), Series("CIDEr-D", flat, number, dashed=True)]
            yield f"words.{photo.id}.{name}", plots.lines(name, series, x="word", words=own.words)


STYLE = """
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.charts figure { min-width: 0; }
.chart { display: block; width: 100%; }
.dot-of { display: inline-block; height: .65em; margin-right: .4em; width: .65em; }
article .charts figure { border: 0; }
article .charts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
section > .charts:has(> figure:only-child) { grid-template-columns: minmax(0, 40rem); }
"""
