"""Field names of recipes of earlier versions, which run folders still have."""

from __future__ import annotations

from typing import Any

from capscore.errors import UserError

_REWARDS = {"usage": "unusual_order"}
_FIELDS = {  # former name -> name, by the part of a recipe
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
    "validation.watch": {"odd": "unusual_order"},
    "validation.metric": {"Odd": "UnusualOrder"},
    "objective.rewards.weights": _REWARDS,
    "objective.rewards.dataset_weights": _REWARDS,
    "objective.rewards.unbalanced": _REWARDS,
}


def renewed(content: Any, name: str = "") -> Any:
    """A recipe, as plain values, with the names of this version.

    name  the part of a recipe that it is; "": the whole

    >>> renewed({"validation": {"metric": "Odd"}})
    {'validation': {'metric': 'UnusualOrder'}}
    """
    names = _FIELDS.get(name, {})
    if isinstance(content, str):
        return names.get(content, content)
    if isinstance(content, list):
        return [renewed(item, "" if name == "stages" else name) for item in content]
    if not isinstance(content, dict):
        return content
    now = {key: names.get(key, key) for key in content}
    if both := next((key for key in content if now[key] != key and now[key] in content), None):
        raise UserError(f"{name} has both {both} and {now[both]}, which is its name now; leave out {both}.")
    return {now[key]: renewed(value, f"{name}.{now[key]}" if name else str(now[key])) for key, value in content.items()}
