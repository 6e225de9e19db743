"""How long the parts of a step take."""

from __future__ import annotations

import time


class Clock:
    """Seconds spent between laps."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Book the time since the last lap under a name; laps of one name add up."""
        now = time.perf_counter()
        self._times[f"time/{name}"] = self._times.get(f"time/{name}", 0.0) + now - self._last
        self._last = now

    def total(self) -> float:
        """Return the seconds of all laps."""
        return sum(self._times.values())

    def times(self) -> dict[str, float]:
        """Return time/<lap> and time/step."""
        return {**self._times, "time/step": self.total()}
