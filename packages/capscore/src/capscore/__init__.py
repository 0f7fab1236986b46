"""Scores of image captions: BLEU, METEOR, ROUGE-L, CIDEr-D and others, equal to pycocoevalcap's, without Java.

import capscore

capscore.score(captions, references)  # {"CIDEr-D": ..., ...}
capscore.measure(captions, references)  # per photo, intervals, paired tests, signatures
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capscore.errors import UserError
    from capscore.scoring import Scores, measure, score

__all__ = ["Scores", "UserError", "__version__", "measure", "score"]

__version__ = "0.1.0"

_HOME = {
    "Scores": "capscore.scoring",
    "UserError": "capscore.errors",
    "measure": "capscore.scoring",
    "score": "capscore.scoring",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: `import capscore` alone loads neither numpy nor numba."""
    if name not in _HOME:
        raise AttributeError(f"module 'capscore' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
