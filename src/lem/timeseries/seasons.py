"""The season of a series, the windows and segments that follow from it, and calendar features of its times."""

from collections.abc import Iterable

import numpy as np

DAY = 86400.0
YEAR = 365.2425 * DAY
LONGEST = 30
"""The longest history that is read, in seasons."""
FEWEST_SEGMENTS = 16
CALENDAR = {"day": DAY, "week": 7 * DAY, "year": YEAR}
"""Calendar cycles, in seconds."""


def season_of(interval: float) -> int:
    """Return the number of steps of the usual season for steps of this many seconds: 1 if there is none."""
    for length, steps in ((DAY, DAY / interval), (7 * DAY, 7 * DAY / interval), (YEAR, YEAR / interval)):
        # Weekly, monthly and quarterly steps do not divide a year exactly.
        close = abs(steps - round(steps)) < 0.02 * steps if length < YEAR else True
        if round(steps) >= 2 and close:
            return round(steps)
    return 1


def season_from_values(series: Iterable[np.ndarray], longest: int = 400) -> int:
    """Return the lag of the highest peak of the autocorrelation of detrended series; 1 if there is no clear peak.

    Args:
        series: each (time, channel), NaN where missing.
        longest: the longest lag considered.
    """
    total, count = np.zeros(longest + 2), np.zeros(longest + 2)
    for values in series:
        steps = len(values)
        if steps < 12:
            continue
        for column in values.T:
            known = ~np.isnan(column)
            if known.sum() < 12 or np.ptp(column[known]) == 0.0:
                continue
            x = np.where(known, column, column[known].mean())
            x = np.diff(x)
            x = (x - x.mean()) / max(x.std(), 1e-300)
            spectrum = np.abs(np.fft.rfft(x, 2 * len(x))) ** 2
            correlation = np.fft.irfft(spectrum)[: min(longest + 2, len(x) // 3 + 1)]
            correlation = correlation / (len(x) - np.arange(len(correlation)))
            total[: len(correlation)] += correlation
            count[: len(correlation)] += 1
    if not count[:4].all():
        return 1
    mean = total[count > 0] / count[count > 0]
    inside = np.arange(2, len(mean) - 1)
    peaks = [lag for lag in inside if mean[lag] >= mean[lag - 1] and mean[lag] >= mean[lag + 1] and mean[lag] > 0.2]
    if not peaks:
        return 1
    best = max(mean[lag] for lag in peaks)
    return int(next(lag for lag in peaks if mean[lag] > 0.9 * best))


def plan(season: int, lengths: np.ndarray, horizon: int) -> tuple[int, int]:
    """Return the look-back and the segment length for series of these lengths.

    The history spans up to 30 seasons, but no more than half of the typical series and an eighth of all steps; a
    season is cut into as many equal segments as give at least 16 of them. Without a season the history spans two
    horizons, in 32 segments.
    """
    room = max((int(np.median(lengths)) - horizon) // 2, 2)
    room = min(room, max(int(lengths.sum()) // 8, 2 * season, 8))
    if season < 2:
        look_back = min(max(4 * FEWEST_SEGMENTS, 2 * horizon), LONGEST * 24, room)
        segment = max(look_back // (2 * FEWEST_SEGMENTS), 1)
        return look_back - look_back % segment, segment
    if room < season:
        return room, 1
    look_back = season * min(LONGEST, room // season)
    longest = min(season, max(look_back // FEWEST_SEGMENTS, 1))
    segment = max(part for part in range(1, longest + 1) if season % part == 0)
    if segment == 1 and look_back > 4 * FEWEST_SEGMENTS:  # a season of prime length
        segment = max(look_back // (2 * FEWEST_SEGMENTS), 1)
        look_back -= look_back % segment
    return look_back, segment


def calendar_cycles(interval: float, span: float) -> tuple[str, ...]:
    """Return the calendar cycles that steps of `interval` seconds show and series of `span` seconds contain twice."""
    return tuple(name for name, length in CALENDAR.items() if interval * 1.9 < length and 2.0 * length <= span)


def calendar_features(seconds: np.ndarray, cycles: Iterable[str]) -> np.ndarray:
    """Return features (time, feature) of seconds since 1970: sine and cosine of each cycle, and the weekend."""
    columns: list[np.ndarray] = []
    seconds = np.asarray(seconds, dtype=np.float64)
    for name in cycles:
        phase = 2.0 * np.pi * (seconds % CALENDAR[name]) / CALENDAR[name]
        columns += [np.sin(phase), np.cos(phase)]
        if name == "week":  # 1970 began on a Thursday
            columns.append(((np.floor(seconds / DAY) + 3) % 7 >= 5).astype(np.float64))
        if name in ("day", "year"):
            columns += [np.sin(2.0 * phase), np.cos(2.0 * phase)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(seconds), 0))


def calendar_width(cycles: Iterable[str]) -> int:
    """Return the number of calendar features."""
    return sum(3 if name == "week" else 4 for name in cycles)
