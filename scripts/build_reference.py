"""The reference pages of the documentation, made from the program itself: python scripts/build_reference.py FOLDER

`make docs` makes them anew each time (scripts/docs_site.py), so they cannot be out of date.
"""

from __future__ import annotations

import html
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path

import tellapart
from capscore.measures import MEASURES, Score
from tellapart import recipe_files
from tellapart.__main__ import COMMANDS, main
from tellapart.commands.study import _ACTIONS
from tellapart.metrics import objects, retrieval
from tellapart.recipe import Recipe, RewardsConfig
from tellapart.rewards.registry import REWARDS


def pages() -> dict[str, str]:
    """Every page by its place among the documents."""
    made = {
        "commands": ("Commands", _commands),
        "python": ("Python", _python),
        "recipe_fields": ("Fields of a recipe", _recipe_fields),
        "measures": ("Measures", _measures),
        "rewards": ("Rewards", _rewards),
        "models": ("Captioners, retrievers, encoders and recipes", _models),
    }
    return {f"reference/{name}.md": f"# {title}\n\n{make()}\n" for name, (title, make) in made.items()}


def _printed(*arguments: str) -> str:
    """What a command prints."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100"
    try:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with redirect_stdout(out), suppress(SystemExit):
            main(list(arguments))
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    return out.buffer.getvalue().decode().strip()  # type: ignore[attr-defined]


def _commands() -> str:
    parts = ["What `tellapart COMMAND --help` prints.\n", _block(_printed("--help"))]
    for name, line in COMMANDS.items():
        parts.append(f"\n## tellapart {name}\n\n{_cell(line[0].upper() + line[1:])}.\n")
        text = _printed(name, "--help")
        if name == "train":  # they have a page
            text = text.partition("fields of a recipe:")[0].strip()
            parts.append("Any field of a recipe is an option too: [Fields of a recipe](recipe_fields.md).\n")
        parts.append(_block(text))
        if name == "study":
            for action in _ACTIONS:
                parts.append(f"\n### tellapart study {action}\n\n{_block(_printed(name, action, '--help'))}")
    return "\n".join(parts)


def _python() -> str:
    parts = ["What `import tellapart` gives. Names that are not here may change between versions.\n"]
    for name in tellapart.__all__:
        thing = getattr(tellapart, name)
        parts.append(f"\n## tellapart.{name}\n")
        if isinstance(thing, str):
            parts.append("The version, as a string.")
            continue
        parts.append(_described(name, thing))
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for member, method in inspect.getmembers(thing, callable):
                if not member.startswith("_") and member in vars(thing):
                    parts.append(f"\n### {name}.{member}\n\n{_described(member, method)}")
    return "\n".join(parts)


def _described(name: str, thing: object) -> str:
    """Signature and docstring, as they stand in the code."""
    shown = name
    if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, Exception)):
        parameters = inspect.signature(thing).parameters.values()
        shown = f"{name}({', '.join(map(_parameter, parameters))})"
        if len(shown) > 100:  # each in a line
            shown = f"{name}(\n" + "".join(f"    {_parameter(one)},\n" for one in parameters) + ")"
    return _block(shown, "python") + f"\n\n{_block(inspect.getdoc(thing) or '')}"


def _parameter(parameter: inspect.Parameter) -> str:
    """As in the code: annotations are kept as strings, and shown in quotes otherwise."""
    return re.sub(r": '([^']*)'", r": \1", str(parameter))


def _recipe_fields() -> str:
    parts = [
        "Every field, with its default. Set it in a recipe or on the command line: `--optim.lr 1e-4`. "
        "How recipes are written: [Recipes](../recipes.md)."
    ]
    rows: dict[str, list[tuple[str, ...]]] = {}
    for field in recipe_files.listed(Recipe()):
        section = field.name.rpartition(".")[0]
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        row = (f"`{field.name}`", field.meaning, field.kind, f"`{json.dumps(default, ensure_ascii=False)}`")
        rows.setdefault(section, []).append(row)
    for section, lines in rows.items():
        parts.append(f"\n\n## {section or 'The recipe itself'}\n")
        parts.append(_table(("field", "meaning", "values", "default"), lines))
    return "\n".join(parts)


def _measures() -> str:
    titles = {
        "By text": [score for measure in MEASURES.values() for score in measure.scores],
        "By retrieval (`tellapart evaluate`)": list(retrieval.SCORES.values()),
        "By a detector (`tellapart evaluate --detector`)": list(objects.SCORES.values()),
    }
    parts = ["Definitions, settings and tests are in [Measures of captions](../metrics.md).\n"]
    for title, scores in titles.items():
        parts.append(f"## {title}\n\n{_table(('name', 'meaning', 'better'), map(_score, scores))}\n")
    return "\n".join(parts)


def _score(score: Score) -> tuple[str, ...]:
    better = {True: "higher", False: "lower", None: ""}[score.higher_is_better]
    filled = score.description.replace("{by}", "the retriever").replace("{place}", "among the first K")
    return f"`{score.name}`", filled.replace("{k}", "K"), better


def _rewards() -> str:
    about = (
        "Names for `objective.rewards.weights` of a recipe, and for `tellapart.CaptionReward`. "
        "How they are combined: [Training for distinctive captions](../objectives.md).\n"
    )
    rows = [
        (f"`{name}`", entry.description, ", ".join(sorted(entry.needs(RewardsConfig()))))
        for name, entry in REWARDS.items()
    ]
    return f"{about}\n{_table(('reward', 'what is rewarded', 'needs, by default settings'), rows)}"


def _models() -> str:
    return "What `tellapart models` prints.\n\n" + _block(_printed("models"))


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text within a table: a bar would end the cell, and an angle bracket begin a tag."""
    quoted = text if text.startswith("`") else html.escape(text, quote=False)
    return quoted.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for place, text in pages().items():
        file = Path(sys.argv[1]) / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
