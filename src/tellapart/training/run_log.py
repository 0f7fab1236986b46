"""log.jsonl of a run folder: what was measured at which step."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

from capscore import files
from capscore.errors import UserError

_UNSEEN = ("step", "epoch", "words", "dtype")  # of a log line: where it is, how much it is about, and in what numbers

Curves = dict[str, list[tuple[int, float]]]  # what is measured -> step, value


def curves(file: Path) -> tuple[Curves, Curves, int]:
    """Validations, all else, and the last step."""
    if not files.is_file(file):
        raise UserError(f"{file.parent}: there is no log.jsonl; the run has logged nothing yet.")
    validations: Curves = defaultdict(list)
    training: Curves = defaultdict(list)
    step = -1
    for number, text in enumerate(files.read_lines(file), 1):
        try:
            line = json.loads(text)
            step = line["step"]
            numbers = [value for name, value in line.items() if name != "dtype"]
            if not isinstance(step, int) or not all(isinstance(value, int | float) for value in numbers):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{file}: line {number} is damaged; it must be an object of numbers with a step.") from None
        for name, value in line.items():
            if name not in _UNSEEN and math.isfinite(value):
                curves = validations if name.startswith("val/") else training
                curves[name.removeprefix("val/")].append((step, value))
    if step < 0:
        raise UserError(f"{file} has no line yet: there is nothing to compare.")
    return dict(validations), dict(training), step
