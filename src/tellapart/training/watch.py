"""Is a policy collapsing?  Simple statistics of its captions show it early."""

from __future__ import annotations

import math

from tellapart.recipe import WatchConfig

_NORMAL = 1.959964  # deviations that 95 % of a normal distribution lie within


class Watch:
    """photos  how many captions a validation goes by"""

    def __init__(self, config: WatchConfig, photos: int):
        self._config, self._photos = config, photos

    @property
    def stops(self) -> bool:
        return self._config.action == "stop"

    def check(self, first: dict[str, float], now: dict[str, float]) -> str:
        """What looks wrong in a validation, in words; nothing: an empty string."""
        if self._config.action == "off" or not first:
            return ""
        config, found = self._config, []
        if now["unique"] < config.unique * first["unique"] and self._rose(now["unique"], first["unique"]):
            found.append(
                f"{_percent(now['unique'])} of the captions are different ({_percent(first['unique'])} before)"
            )
        ratio = now["length"] / max(first["length"], 1e-9)
        if not 1 / config.length <= ratio <= config.length and self._other_length(first["length"], now["length"]):
            found.append(f"captions have {now['length']:.1f} words ({first['length']:.1f} before)")
        for name, most, what in (
            ("Rep", config.repetition, "repeat a word"),
            ("BadEnd", config.ending, "break off"),
            ("Stutter", config.stutter, "stutter"),
            ("UnusualOrder", config.unusual_order, "have an unusual order of words"),
        ):
            if now[name] > first[name] + most and self._rose(first[name], now[name]):
                found.append(f"{_percent(now[name])} of the captions {what} ({_percent(first[name])} before)")
        return "captions collapse: " + ", ".join(found) if found else ""

    def _rose(self, before: float, now: float) -> bool:
        """Whether a share of the captions rose by more than chance: Newcombe's interval (1998, method 10)."""
        low, _ = wilson(now, self._photos)
        _, high = wilson(before, self._photos)
        return now - before > math.hypot(now - low, high - before)

    def _other_length(self, before: float, now: float) -> bool:
        """Whether the mean length changed by more than chance.

        Lengths of captions vary less than a Poisson number does: as if they did as much is to be careful.
        """
        return abs(now - before) > _NORMAL * math.sqrt((before + now) / self._photos)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was found among so many (Wilson, 1927).

    >>> [round(end, 3) for end in wilson(1 / 50, 50)]
    [0.004, 0.105]
    """
    square = _NORMAL**2 / count
    middle, half = share + square / 2, _NORMAL * math.sqrt(share * (1 - share) / count + square / count / 4)
    return (middle - half) / (1 + square), (middle + half) / (1 + square)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
