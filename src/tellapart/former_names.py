"""What recipes of earlier versions call otherwise: still read, with a note."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from tellapart import plain_yaml
from tellapart.errors import UserError
from tellapart.printable import print_message

_REWARDS = {"usage": "unusual_order"}
_METRICS = {"Odd": "UnusualOrder"}
_WATCHED = {"odd": "unusual_order"}
_FIELDS = {  # where former names may stand, by the names of now
    "data": {"without": "exclude"},
    "objective.policy": {"best": "top_q"},
    "objective.rewards": {
        "listener": "image_retriever",
        "reader": "text_retriever",
        "terms": "weights",
        "factors": "dataset_weights",
        "group": "group_size",
        "per_photo": "weight_by_closeness",
        "local": "ld",
    },
    "optim": {"average": "ema_decay", "final": "final_lr_ratio"},
    "validation.watch": _WATCHED,
    "validation.metric": _METRICS,
    "objective.rewards.weights": _REWARDS,
    "objective.rewards.dataset_weights": _REWARDS,
    "objective.rewards.unbalanced": _REWARDS,
}


def renewed(content: Any, name: str = "") -> tuple[Any, list[str]]:
    """A recipe, as plain values, with the names of this version; and a sentence for each that was another.

    name  the part of a recipe that it is; "": the whole

    >>> renewed({"validation": {"metric": "Odd"}})
    ({'validation': {'metric': 'UnusualOrder'}}, ['validation.metric: Odd is called UnusualOrder now.'])
    """
    names = _FIELDS.get(name, {})
    if isinstance(content, str) and content in names:
        return names[content], [_note(name, content, names[content])]
    if isinstance(content, list):
        return [names.get(item, item) if isinstance(item, str) else item for item in content], [
            _note(name, item, names[item]) for item in content if isinstance(item, str) and item in names
        ]
    if not isinstance(content, dict):
        return content, []
    found: dict[Any, Any] = {}
    notes: list[str] = []
    for key, value in content.items():
        now = names.get(key, key) if isinstance(key, str) else key
        if now != key:
            notes.append(_note(name, key, now))
            if now in content:
                raise UserError(f"{name} has both {key} and {now}, which is its name now; leave out {key}.")
        if (name, now) == ("", "stages") and isinstance(value, list):
            found[now], more = _renewed_stages(value)
        else:
            found[now], more = renewed(value, f"{name}.{now}" if name else str(now))
        notes += more
    return found, notes


def _renewed_stages(stages: list[Any]) -> tuple[list[Any], list[str]]:
    """Each stage has the fields of a recipe."""
    found, notes = list[Any](), list[str]()
    for number, stage in enumerate(stages, 1):
        renamed, more = renewed(stage)
        found.append(renamed)
        notes += [f"stage {number}: {note}" for note in more]
    return found, notes


def renewed_name(name: str) -> tuple[str, list[str]]:
    """The same of the name of a field, such as optim.average."""
    path, notes = "", list[str]()
    for key in name.split("."):
        now = _FIELDS.get(path, {}).get(key, key)
        notes += [_note(path, key, now)] if now != key else []
        path = f"{path}.{now}" if path else now
    return path, notes


def renewed_option(name: str, text: str) -> tuple[str, str, list[str]]:
    """The same of `--name text` on the command line, where the text may be a whole section: `{terms: {...}}`."""
    path, notes = renewed_name(name)
    if not any(place == path or place.startswith(f"{path}.") for place in _FIELDS):
        return path, text, notes
    value, more = renewed(plain_yaml.parse(text, f"--{name}"), path)
    if more:
        text = value if isinstance(value, str) else plain_yaml.dump(value)
    return path, text, notes + more


def announce(notes: Iterable[str]) -> None:
    """Print them, once if several processes train together."""
    if os.environ.get("RANK", "0") == "0":
        for note in notes:
            print_message(note)


def _note(name: str, former: str, now: str) -> str:
    return f"{name}: {former} is called {now} now."
