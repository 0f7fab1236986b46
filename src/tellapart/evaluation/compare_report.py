"""The page of a comparison, with the figures of the GLD paper; each figure is a file of its own besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tellapart import files
from tellapart.data.examples import Example
from tellapart.data.tokenizers import split_words
from tellapart.errors import BadPhoto
from tellapart.evaluation import plots
from tellapart.evaluation.changes import Changes
from tellapart.evaluation.compare import Evaluation, Run, by_batch_size, caution, differences, facts, in_units
from tellapart.evaluation.local_reward import Earned, LocalReward
from tellapart.evaluation.plots import Mark, Series
from tellapart.evaluation.step_time import time_table
from tellapart.evaluation.trec import file_name
from tellapart.pages import counted, escaped, page, thumbnail

_CHANGED = 12  # photos whose captions gained most
_FAILED = 8  # and lost most
_WORD_REWARDS = 3  # photos whose words' rewards are drawn


@dataclass
class Findings:
    """All that is shown; what is none has no section."""

    runs: list[Run]
    evaluations: list[Evaluation] = field(default_factory=list)
    changes: Changes | None = None
    local: LocalReward | None = None
    plane: tuple[str, dict[str, NDArray[np.float64]]] | None = None  # the retriever, and run -> (P, 2)
    times: dict[str, dict[str, float]] = field(default_factory=dict)  # run -> part of a step -> milliseconds
    left_out: list[str] = field(default_factory=list)  # figures that could not be made, and why


def write(findings: Findings, out: Path) -> None:
    drawn: dict[str, str] = {}
    sections = [
        _runs(findings.runs),
        _times(findings.runs, findings.times),
        _curves(findings.runs, drawn),
        _batch_sizes(findings.runs, findings.evaluations, drawn),
        _changed(findings.runs, findings.changes),
        _word_rewards(findings.runs, findings.changes, findings.local, drawn),
        _weights(findings.local, drawn),
        _plane(findings.runs, findings.changes, findings.plane, drawn),
        "".join(f'<p class="notes">{escaped(sentence)}</p>\n' for sentence in findings.left_out),
    ]
    for name, chart in drawn.items():
        files.replace(out / "figures" / f"{file_name(name)}.svg", plots.standalone(chart))
    subtitle = ", ".join(run.name for run in findings.runs)
    body = "".join(sections)
    files.replace(out / "report.html", page("Runs side by side", subtitle, body, style=plots.STYLE + _STYLE))


def _section(title: str, note: str, body: str) -> str:
    """Nothing where there is nothing to show."""
    said = f'<p class="notes">{escaped(note)}</p>\n' if note else ""
    return f"<section>\n<h2>{escaped(title)}</h2>\n{said}{body}</section>\n" if body else ""


def _charts(charts: Mapping[str, str], drawn: dict[str, str]) -> str:
    """Charts side by side; `drawn` keeps them by name for the files."""
    drawn |= charts
    inside = "".join(f"<figure>{chart}</figure>\n" for chart in charts.values())
    return f'<div class="charts">\n{inside}</div>\n' if inside else ""


def _table(table: Mapping[str, Sequence[str]], names: Sequence[str], *, colours: Sequence[int]) -> str:
    """A column for each run."""
    both = zip(colours, names, strict=True)
    head = "".join(f'<th scope="col" dir="auto">{_dot(colour)}{escaped(name)}</th>' for colour, name in both)
    body = "".join(
        f'<tr><th scope="row">{escaped(key)}</th>{"".join(f"<td>{escaped(cell)}</td>" for cell in cells)}</tr>\n'
        for key, cells in table.items()
    )
    return f'<div class="wide"><table>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _dot(run: int) -> str:
    """A run's colour."""
    circle = f'<circle class="c{run % plots.COLOURS}" cx="5" cy="5" r="4"/>'
    return f'<svg class="chart dot-of" viewBox="0 0 10 10">{circle}</svg>'


# Recipes and logs


def _runs(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    note = f"Validations: the last, and the best with its step; times 100, but for loss and length. {caution(runs)}"
    colours = range(len(runs))
    parts = [_table(facts(runs), names, colours=colours)]
    if differ := differences(runs):
        parts.append(f"<h3>Where the recipes differ</h3>\n{_table(differ, names, colours=colours)}")
    return _section("Runs", note, "".join(parts))


def _times(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> str:
    if not times:
        return ""
    colours = [number for number, run in enumerate(runs) if run.name in times]
    note = "Milliseconds for a batch, the median of a few, measured here and now; without the optimiser."
    return _section("Time per part of a step", note, _table(time_table(times), list(times), colours=colours))


def _curves(runs: Sequence[Run], drawn: dict[str, str]) -> str:
    def validations(run: Run) -> dict[str, list[tuple[int, float]]]:
        return {
            name: [(step, in_units(name, value)) for step, value in curve] for name, curve in run.validations.items()
        }

    def rewards(run: Run) -> dict[str, list[tuple[int, float]]]:
        return {name: curve for name, curve in run.training.items() if name.split("/")[0] == "reward"}

    return _section(
        "Validation over steps", caution(runs), _charts(_over_steps(runs, validations, "validation"), drawn)
    ) + _section(
        "Rewards over steps",
        "Of the captions that are learned from, before any weight; reward is the weighted sum.",
        _charts(_over_steps(runs, rewards, "training"), drawn),
    )


def _over_steps(
    runs: Sequence[Run], of: Callable[[Run], Mapping[str, Sequence[tuple[float, float]]]], prefix: str
) -> dict[str, str]:
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


def _batch_sizes(runs: Sequence[Run], evaluations: Sequence[Evaluation], drawn: dict[str, str]) -> str:
    charts = {
        f"batch_size.{data}.{score}": plots.lines(
            f"{score}, {data}",
            [Series(label, points, n) for n, (label, points) in enumerate(of_labels.items())],
            x="batch size",
        )
        for (data, score), of_labels in by_batch_size(runs, evaluations).items()
    }
    return _section("Recall against batch size", "Times 100.", _charts(charts, drawn))


# Captions


def _changed(runs: Sequence[Run], changes: Changes | None) -> str:
    if changes is None:
        return ""
    count = counted(len(changes.photos), "photo")
    first, last = runs[0].name, runs[-1].name
    alone = len(runs) == 1
    scored = "Behind each caption is its CIDEr-D, times 100."
    marked = "" if alone else " Words that no other run says are marked: by a full line if a reference has them."
    gained = _section(
        "Captions that got better",
        f"Of {count} drawn by chance, those whose CIDEr-D rose most from {first} to {last}. {scored}{marked}",
        "".join(_photo(runs, changes, photo) for photo in changes.improved(_CHANGED)),
    )
    fell = f"those that score least by {last}" if alone else f"those whose CIDEr-D fell most from {first} to {last}"
    lost = _section(
        "Where it fails",
        f"Of {count} drawn by chance, {fell}. {scored}",
        "".join(_photo(runs, changes, photo) for photo in changes.failed(_FAILED)),
    )
    return gained + lost


def _photo(runs: Sequence[Run], changes: Changes, photo: int) -> str:
    told = changes.photos[photo].captions
    known = {word for text in told for word in split_words(text)}
    lines = []
    for number, run in enumerate(runs):
        own = changes.own_words(photo, run.name) if len(runs) > 1 else set()
        said = _marked(changes.said[run.name][photo], own, known)
        score = f"{100 * changes.scores[run.name][photo]:.0f}"
        name = f'<th scope="row" dir="auto">{_dot(number)}{escaped(run.name)}</th>'
        lines.append(f'<tr>{name}<td class="said" dir="auto">{said}</td><td>{score}</td></tr>\n')
    people = "".join(f'<li dir="auto">{escaped(text)}</li>' for text in told)
    table = f'<div class="wide"><table>\n{"".join(lines)}</table></div>'
    return f"<article>\n{_picture(changes.photos[photo].file)}<div>\n{table}\n<ul>{people}</ul>\n</div></article>\n"


def _marked(caption: str, own: set[str], known: set[str]) -> str:
    """A caption with the words that are a run's own marked, and whether a reference has them."""
    parts = []
    for text in caption.split():
        words = set(split_words(text)) & own
        kind = "told" if words <= known else "untold"
        parts.append(f'<mark class="{kind}">{escaped(text)}</mark>' if words else escaped(text))
    return " ".join(parts)


def _picture(file: Path) -> str:
    try:
        width, height, url = thumbnail(file)
    except BadPhoto as error:
        return f'<span class="none">no picture: {escaped(error.reason)}</span>\n'
    return f'<img src="{url}" width="{width}" height="{height}" alt="{escaped(file.name)}">\n'


def _plane(
    runs: Sequence[Run],
    changes: Changes | None,
    plane: tuple[str, dict[str, NDArray[np.float64]]] | None,
    drawn: dict[str, str],
) -> str:
    if changes is None or plane is None:
        return ""
    retriever, layout = plane
    series = [Series(run.name, list(map(tuple, layout[run.name].tolist())), n) for n, run in enumerate(runs)]
    chart = plots.scatter("Captions as a listener hears them", series, [changes.said[run.name] for run in runs])
    note = (
        f"t-SNE of the captions as {retriever} embeds them: captions that say alike lie together, and many on one spot "
        "tell no photo apart. Directions and distances across the map mean nothing."
    )
    return _section("Map of the captions", note, _charts({"captions": chart}, drawn))


# The local discriminative reward


def _weights(local: LocalReward | None, drawn: dict[str, str]) -> str:
    if local is None:
        return ""
    weights = local.weights()
    series = []
    for one in weights:
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
        for one in weights
    )
    examples = f'<h3>Frequent ones, from light to heavy</h3>\n<div class="wide"><table>\n{lines}</table></div>\n'
    note = f"By the training references and the vocabulary of {local.run.name}. {_whose(local)}"
    return _section("What n-grams weigh", note, _charts({"weights": chart}, drawn) + examples)


def _whose(local: LocalReward) -> str:
    config = local.config
    used = "are those of its reward" if local.is_used else "are those of its recipe, whose reward does not use them"
    return f"The thresholds λ = {config.threshold:.3g} and η = {config.word_threshold:.3g} {used}."


def _word_rewards(
    runs: Sequence[Run], changes: Changes | None, local: LocalReward | None, drawn: dict[str, str]
) -> str:
    if changes is None or local is None:
        return ""
    references = [photo.captions for photo in changes.photos]
    earned = {run.name: local.earned(changes.said[run.name], references) for run in runs}
    last = earned[runs[-1].name]
    parts = []
    for photo in sorted(range(len(last)), key=lambda photo: -last[photo].most)[:_WORD_REWARDS]:
        charts = dict(_earned(runs, changes.photos[photo], [earned[run.name][photo] for run in runs]))
        parts.append(f"<article>\n{_picture(changes.photos[photo].file)}{_charts(charts, drawn)}</article>\n")
    note = (
        "What LD, the local discriminative reward, gives each word of a caption; dashed: CIDEr-D, which all words get. "
        f"Shown are the photos where a word of {runs[-1].name} gets most; by the vocabulary of {local.run.name}. "
        f"{_whose(local)}"
    )
    return _section("What words earn", note, "".join(parts))


def _earned(runs: Sequence[Run], photo: Example, earned: Sequence[Earned]) -> Iterable[tuple[str, str]]:
    for number, (run, own) in enumerate(zip(runs, earned, strict=True)):
        if own.words:
            each = [(float(place), value) for place, value in enumerate(own.each)]
            flat = [(float(place), own.sentence) for place in range(len(each))]
            series = [Series("LD", each, number), Series("CIDEr-D", flat, number, dashed=True)]
            yield f"words.{photo.id}.{run.name}", plots.lines(run.name, series, x="word", words=own.words)


_STYLE = """
:root { --good: #1a7a4c; --bad: #b3372f; }
@media (prefers-color-scheme: dark) { :root { --good: #62c795; --bad: #ef8a80; } }
body { max-width: 80rem; overflow-wrap: normal; }
h3 { font-size: 1.05rem; font-weight: 600; margin: 1.6rem 0 .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .7rem; text-align: right; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
tr th:first-child { padding-left: 0; text-align: left; }
tbody tr:last-child > * { border-bottom: 0; }
section > .wide th:first-child { background: var(--paper); left: 0; position: sticky; }
section > .wide td { max-width: 18rem; overflow-wrap: break-word; }
td.said { min-width: 7rem; text-align: left; }
.notes { color: var(--soft); font-size: .85rem; margin: 0 0 1rem; max-width: 60rem; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.chart { display: block; width: 100%; }
.dot-of { display: inline-block; height: .65em; margin-right: .4em; width: .65em; }
article { align-items: start; background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  display: grid; gap: 1rem; grid-template-columns: 15rem minmax(0, 1fr); margin-bottom: 1rem; padding: .8rem; }
article > img { border-radius: .3rem; height: auto; max-height: 14rem; object-fit: contain; }
article table { width: 100%; } article td.said { width: 100%; }
article ul { color: var(--soft); font-size: .82rem; margin-top: .6rem; padding-left: 1.1rem; }
article figure { border: 0; }
article .charts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
section > .charts:has(> figure:only-child) { grid-template-columns: minmax(0, 40rem); }
mark { background: none; color: inherit; font-weight: 600; text-decoration: underline; text-decoration-thickness: 2px;
  text-underline-offset: 3px; }
mark.told { text-decoration-color: var(--good); }
mark.untold { text-decoration-color: var(--bad); text-decoration-style: dashed; }
@media (max-width: 48rem) { article { grid-template-columns: minmax(0, 1fr); } th, td { padding: .35rem .4rem; }
  section > .wide td { max-width: 9rem; min-width: 7rem; overflow-wrap: anywhere; } }
"""
