"""Few cases in place of a whole product: each pair of values of any two parameters still occurs in one of them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*values: Iterable[Any], allowed: Callable[..., bool] | None = None) -> list[tuple[Any, ...]]:
    """Rows with a value of each parameter, the same in every run: next comes always who brings most new pairs.

    A fault that a single value or two together bring out is found as by the whole product; one that needs three may be
    missed.  Rows that are not `allowed` are left out, with the pairs that occur nowhere else.
    """
    given: list[Sequence[Any]] = [list(one) for one in values]
    rows = [  # of places, as values may lack a hash
        row for row in product(*(range(len(one)) for one in given)) if allowed is None or allowed(*_row(given, row))
    ]
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        chosen.append(best)
        missing -= _pairs(best)
    return [_row(given, row) for row in chosen]


def _row(given: list[Sequence[Any]], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(one[place] for one, place in zip(given, places, strict=True))


def _pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(row), min(2, len(row))))
