"""Promises of the lines of each table, as checks that the tests run on ours, and `tellapart check` on plugins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isfunction

from capscore.errors import UserError
from tellapart.hub import reason


class Case:
    """A line of a table at work.  Each public method is a check, which raises where its docstring is not true."""

    notes: Sequence[str] = ()  # checks that need not hold, but of which the author should know

    @classmethod
    def checks(cls) -> list[str]:
        """Their names, in the order of the code, without the notes."""
        methods = (name for name, method in vars(cls).items() if isfunction(method) and not name.startswith("_"))
        return [name for name in methods if name not in cls.notes]

    def failures(self, names: Sequence[str]) -> list[str]:
        """A sentence for each of these checks that does not hold."""
        checks = [getattr(self, name) for name in names]
        return [sentence for check in checks if (sentence := failure(check.__doc__, check))]


def failure(promise: str, check: Callable[[], object]) -> str:
    """A sentence if the check fails, with the first line of its promise; else nothing."""
    try:
        check()
    except UserError as error:
        return str(error)
    except Exception as error:  # it is code of the user's own, and may fail in any way
        detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {reason(error)}"
        return f"not so: {promise.splitlines()[0].rstrip('.')}" + (f" ({detail})" if detail else "")
    return ""
