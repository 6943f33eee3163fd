"""A synthetic data set for the first steps: pumps, some of which have a fault."""

from pathlib import Path
from typing import Any

import numpy as np

from lem.timeseries.formats import write

PUMPS = 60
FAULTS = ("ok", "leak", "blockage")


def write_example(path: str | Path, seed: int = 0) -> Path:
    """Write synthetic measurements of pumps: pump_id, time, flow, pressure, temperature and fault, one step a row.

    Every pump is measured once a minute for 60 to 90 minutes. A leak makes the flow fall below what the pressure would
    give, a blockage makes the pressure rise in slow waves; both begin at a random time.

    Examples:
        >>> from lem.timeseries.example import write_example
        >>> path = write_example("pumps.csv")
        >>> path.read_text().splitlines()[0]
        'pump_id,time,flow,pressure,temperature,fault'
    """
    random = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("pump_id", "time", "flow", "pressure", "temperature", "fault")
    }
    start = np.datetime64("2024-03-01T08:00:00")
    for pump in range(PUMPS):
        fault, steps = FAULTS[pump % 3], int(random.integers(60, 91))
        minutes = np.arange(steps)
        after = np.clip(minutes - random.integers(10, 30), 0, None)
        demand = 1.0 + 0.15 * np.sin(2 * np.pi * minutes / random.uniform(25, 40) + random.uniform(0, 6))
        pressure = 4.0 * demand + random.normal(0, 0.08, steps)
        flow = 12.0 * np.sqrt(demand) + random.normal(0, 0.15, steps)
        if fault == "leak":
            flow = flow - 0.05 * after
        if fault == "blockage":
            pressure = pressure + 0.6 * np.sin(after / 6.0) * (after > 0) + 0.01 * after
        temperature = 40.0 + 6.0 * (1.0 - np.exp(-minutes / 30.0)) + random.normal(0, 0.2, steps)
        columns["pump_id"] += [f"pump{pump + 1:02d}"] * steps
        columns["time"] += [
            str(start + np.timedelta64(pump, "D") + np.timedelta64(k, "m")).replace("T", " ") for k in minutes
        ]
        columns["flow"] += [round(value, 3) for value in flow.tolist()]
        columns["pressure"] += [round(value, 3) for value in pressure.tolist()]
        columns["temperature"] += [round(value, 2) for value in temperature.tolist()]
        columns["fault"] += [fault] * steps
    return write(path, columns)
