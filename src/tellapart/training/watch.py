"""Is a policy going astray?  Captions that collapse are seen in how they look long before anybody reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WatchConfig:
    """Each validation is compared with the one before the first step.

    Args:
        action: what to do about captions that look wrong: say so, stop the run, or do not look
        unique: least share of different captions, of what it was
        length: most that captions may grow or shrink, as a factor
        repetition: most that the share of captions which repeat a content word may rise
        ending: most that the share of captions which break off, as "a dog on a" does, may rise
        stutter: most that the share of captions in which a word follows itself may rise
        odd: most that the share of captions may rise that are put together as people hardly ever do it
    """

    action: Literal["warn", "stop", "off"] = "warn"
    unique: float = 0.5
    length: float = 1.5
    repetition: float = 0.25
    ending: float = 0.05
    stutter: float = 0.02
    odd: float = 0.02


class Watch:
    def __init__(self, config: WatchConfig):
        self._config = config

    @property
    def stops(self) -> bool:
        return self._config.action == "stop"

    def look(self, first: dict[str, float], now: dict[str, float]) -> str:
        """What looks wrong in a validation, in words; nothing: an empty string."""
        if self._config.action == "off" or not first:
            return ""
        found = []
        if now["unique"] < self._config.unique * first["unique"]:
            found.append(
                f"{_percent(now['unique'])} of the captions are different ({_percent(first['unique'])} before)"
            )
        ratio = now["length"] / max(first["length"], 1e-9)
        if not 1 / self._config.length <= ratio <= self._config.length:
            found.append(f"captions have {now['length']:.1f} words ({first['length']:.1f} before)")
        if now["Rep"] > first["Rep"] + self._config.repetition:
            found.append(f"{_percent(now['Rep'])} of the captions repeat a word ({_percent(first['Rep'])} before)")
        if now["BadEnd"] > first["BadEnd"] + self._config.ending:
            found.append(f"{_percent(now['BadEnd'])} of the captions break off ({_percent(first['BadEnd'])} before)")
        if now["Stutter"] > first["Stutter"] + self._config.stutter:
            found.append(f"{_percent(now['Stutter'])} of the captions stutter ({_percent(first['Stutter'])} before)")
        if now["Odd"] > first["Odd"] + self._config.odd:
            found.append(f"{_percent(now['Odd'])} of the captions are oddly built ({_percent(first['Odd'])} before)")
        return "captions collapse: " + ", ".join(found) if found else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
