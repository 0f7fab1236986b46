"""What the lines of each table promise, as checks: the tests run them on ours, `tellapart check` on those of plugins.

A check is a function of a case that raises where its docstring is not true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from capscore.errors import UserError
from tellapart.hub import reason

Check = Callable[[Any], None]


def failures(checks: Sequence[Check], case: object) -> Iterator[str]:
    """A sentence for each check that does not hold."""
    for check in checks:
        try:
            check(case)
        except UserError as error:
            yield str(error)
        except Exception as error:  # it is code of the user's own, and may fail in any way
            said = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {reason(error)}"
            yield f"not so: {promise(check)}" + (f" ({said})" if said else "")


def promise(check: Check) -> str:
    """What a check is about, as the first line of its docstring says."""
    return (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
