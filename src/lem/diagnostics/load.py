"""How busy other programs keep this machine while something is measured."""

import os
import time
from pathlib import Path

LOADED = 0.15
"""Processors used by other programs from which on a measurement is marked as made on a loaded machine."""


class Watch:
    """Count the processor time that other programs take from now on.

    On Linux it is what all programs took less what this process took. Elsewhere it is the system's load average less
    one for this process, which lags behind by a minute.
    """

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        try:
            fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        except OSError:
            return None
        user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
        ticks = user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()

    def others(self) -> float:
        """Return how many processors other programs have used on average since the start."""
        now = self._now()
        if now is None or self._start is None:
            return max(0.0, os.getloadavg()[0] - 1.0)
        machine, ours, seconds = (b - a for a, b in zip(self._start, now))
        return max(0.0, machine - ours) / max(seconds, 1e-9)


def is_loaded(others: float) -> bool:
    """Return whether other programs used so much processor time that a timing is not reliable."""
    return others > LOADED
