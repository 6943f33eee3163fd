"""PhysioNet 2012: does a patient die in hospital? From the first 48 hours of an intensive-care stay, 37 parameters.

Set A of the challenge: 4,000 stays with their outcomes, one text file a stay with a line for each measurement. The
measurements come at irregular times, and most parameters are absent at most times. `times` selects what a model sees:

- "elapsed": one step per time of measurement, and the time since the previous one as `elapsed`, in units of the median
  gap of the training stays;
- "channel": the same steps, with this gap as one more input channel;
- "ignore": the same steps, without any times;
- "hourly": one step per hour, with the mean of each parameter in that hour.

Each step has 37 values, carried forward from the last measurement (the mean, 0, before the first one), 37 channels that
mark what was measured at this step, and 9 channels that describe the stay. Values are cut to the range between the 0.5
and 99.5 percent quantiles of the training stays and standardised by these.

Five folds, stratified by outcome: a fifth is the test split, a tenth of all stays is for validation.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lem.tasks.base import DataFacts, Task
from lem.tasks.cache import checksum, prepared
from lem.tasks.fetch import Download, Source, fetch
from lem.training.data import ArraySplit, DataError, mix
from lem.wording import check_choice

FOLDS, STAYS, HOURS = 5, 4000, 48
TIMES = ("elapsed", "channel", "ignore", "hourly")
PARAMETERS = (
    "ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine", "DiasABP", "FiO2", "GCS",
    "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "NIDiasABP", "NIMAP", "NISysABP", "Na",
    "PaCO2", "PaO2", "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC",
    "Weight", "pH",
)  # fmt: skip
GENERAL = ("Age", "Gender", "Height", "ICUType")
STATIC = 9
"""Age, gender, height, whether gender and height are known, and one channel for each of the four units."""
_PLACE = {name: i for i, name in enumerate(PARAMETERS)}
_FOLDER = "timeseries/physionet2012"

SOURCE = Source(
    "physionet2012",
    "https://physionet.org/content/challenge-2012/1.0.0/",
    "ODC-By 1.0",
    (
        Download(
            ("https://physionet.org/files/challenge-2012/1.0.0/set-a.zip",),
            {f"{_FOLDER}/set-a/132539.txt": None},
            None,
            folder=_FOLDER,
            unpacked=200_000_000,
            pattern="*.txt",
        ),
        Download(
            ("https://physionet.org/files/challenge-2012/1.0.0/Outcomes-a.txt",),
            {f"{_FOLDER}/Outcomes-a.txt": None},
            None,
        ),
    ),
)


class Stay(NamedTuple):
    """One stay.

    Attributes:
        record: its number.
        general: age, gender, height and type of unit; NaN where unknown.
        minutes: (time,) since admission, ascending, without repetitions.
        values: (time, 37) in the order of `PARAMETERS`; NaN where nothing was measured.
    """

    record: int
    general: np.ndarray
    minutes: np.ndarray
    values: np.ndarray


def read_stay(path: Path) -> Stay:
    """Read the file of one stay; of several values of one parameter at one time, the last is kept."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} must be UTF-8 text: {error}.") from error
    if not lines or lines[0].strip() != "Time,Parameter,Value":
        raise DataError(f"{path.name} must start with the line 'Time,Parameter,Value'.")
    record, general = -1, np.full(len(GENERAL), np.nan)
    rows: dict[int, np.ndarray] = {}
    latest = 0
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        minute, name, value = _measurement(line, f"{path.name}, line {number}")
        if minute < latest:
            raise DataError(f"{path.name}, line {number}: the times must not decrease; got {line.split(',')[0]}.")
        latest = minute
        row = rows.setdefault(minute, np.full(len(PARAMETERS), np.nan))
        if name == "RecordID":
            record = int(value)
        elif name in GENERAL:
            general[GENERAL.index(name)] = np.nan if value < 0.0 else value
        elif name in _PLACE:
            # The files write -1 for an unknown weight.
            row[_PLACE[name]] = np.nan if name == "Weight" and value < 0.0 else value
        elif name:
            raise DataError(f"{path.name}, line {number}: {name!r} is not a parameter of the challenge.")
    if record < 0:
        raise DataError(f"{path.name} must have a line with its RecordID.")
    return Stay(record, general, np.array(list(rows)), np.stack(list(rows.values())))


def _measurement(line: str, where: str) -> tuple[int, str, float]:
    parts = line.split(",")
    try:
        time, name, text = (part.strip() for part in parts)
        hours, minutes = (int(part) for part in time.split(":"))
        value = float(text)
    except ValueError as error:
        raise DataError(f"{where}: a line must be HH:MM,PARAMETER,NUMBER; got {line!r}.") from error
    if not (0 <= minutes < 60 and 0 <= 60 * hours + minutes <= 60 * HOURS):
        raise DataError(f"{where}: the time must lie between 00:00 and {HOURS}:00; got {time}.")
    if not np.isfinite(value):
        raise DataError(f"{where}: the value must be finite; got {text}.")
    return 60 * hours + minutes, name, value


def read_outcomes(path: Path) -> dict[int, int]:
    """Read which stays ended with a death in hospital: record -> 0 or 1."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header = [name.strip() for name in lines[0].split(",")] if lines else []
    if "RecordID" not in header or "In-hospital_death" not in header:
        raise DataError(f"{path.name} must have the columns RecordID and In-hospital_death; got {', '.join(header)}.")
    record, death = header.index("RecordID"), header.index("In-hospital_death")
    outcomes = {}
    for number, line in enumerate(lines[1:], start=2):
        parts = line.split(",")
        if len(parts) != len(header) or parts[death].strip() not in ("0", "1") or not parts[record].strip().isdecimal():
            raise DataError(f"{path.name}, line {number}: expected {len(header)} numbers and an outcome of 0 or 1.")
        outcomes[int(parts[record])] = int(parts[death])
    return outcomes


def hourly(stay: Stay) -> Stay:
    """Return a stay with one row per hour: the mean of the measurements in it."""
    hours = np.minimum(stay.minutes // 60, HOURS - 1)
    values = np.full((HOURS, len(PARAMETERS)), np.nan)
    for hour in np.unique(hours):
        chosen = stay.values[hours == hour]
        known = ~np.isnan(chosen)
        count = known.sum(0)
        total = np.where(known, chosen, 0.0).sum(0)
        values[hour, count > 0] = total[count > 0] / count[count > 0]
    return stay._replace(minutes=60 * np.arange(HOURS), values=values)


def folds(outcomes: np.ndarray, fold: int, data_seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of training (7/10), validation (1/10) and test (2/10), with equal shares of each outcome."""
    random = np.random.default_rng(mix(2012, data_seed))
    part = np.empty(len(outcomes), dtype=np.int64)
    start = 0
    for outcome in (0, 1):
        rows = random.permutation(np.flatnonzero(outcomes == outcome))
        part[rows] = (start + np.arange(len(rows))) % (2 * FOLDS)
        start += len(rows)
    test = (part == 2 * fold) | (part == 2 * fold + 1)
    valid = part == (2 * fold + 2) % (2 * FOLDS)
    return np.flatnonzero(~test & ~valid), np.flatnonzero(valid), np.flatnonzero(test)


def _load(bins: bool) -> tuple[dict[str, Tensor], str]:
    """Return all stays, padded, with their lengths and outcomes."""
    files = fetch(SOURCE)
    first, outcomes = files.values()
    paths = sorted(first.parent.glob("*.txt"))
    key = checksum([*paths, outcomes])

    def make() -> dict[str, Tensor]:
        stays, deaths = [read_stay(path) for path in paths], read_outcomes(outcomes)
        for stay in stays:
            if stay.record not in deaths:
                raise DataError(f"{outcomes.name} must have an outcome for record {stay.record}; it has none.")
        stays = [hourly(stay) for stay in stays] if bins else stays
        longest = max(len(stay.minutes) for stay in stays)
        values = np.full((len(stays), longest, len(PARAMETERS)), np.nan, dtype=np.float32)
        minutes = np.zeros((len(stays), longest), dtype=np.float32)
        for i, stay in enumerate(stays):
            values[i, : len(stay.values)], minutes[i, : len(stay.values)] = stay.values, stay.minutes
        return {
            "values": torch.from_numpy(values),
            "minutes": torch.from_numpy(minutes),
            "general": torch.from_numpy(np.stack([stay.general for stay in stays]).astype(np.float32)),
            "lengths": torch.tensor([len(stay.minutes) for stay in stays]),
            "deaths": torch.tensor([deaths[stay.record] for stay in stays]),
        }

    return prepared("physionet2012", {"source": key, "hourly": bins, "version": 1}, make), key


def carried(values: np.ndarray) -> np.ndarray:
    """Carry values forward over time, (sample, time, parameter); NaN becomes 0 before the first one."""
    steps = np.arange(values.shape[1], dtype=np.int16)[None, :, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), np.int16(-1), steps), axis=1)
    found = np.take_along_axis(values, np.maximum(last, 0).astype(np.int64), axis=1)
    return np.where(last < 0, np.float32(0.0), found)


def _standardised(raw: np.ndarray, measured: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Cut each parameter to its usual range in the training stays, and give it mean 0 and spread 1 there."""
    values = np.empty_like(raw)
    for k in range(raw.shape[2]):
        known = raw[train, :, k][measured[train, :, k]]
        if len(known) == 0:  # a small training split may lack a parameter
            values[..., k] = np.where(measured[..., k], np.float32(0.0), np.float32(np.nan))
            continue
        low, high = np.quantile(known, [0.005, 0.995])
        known = np.clip(known, low, high)
        values[..., k] = (np.clip(raw[..., k], low, high) - known.mean()) / (known.std() or 1.0)
    return values


def _static(general: np.ndarray) -> np.ndarray:
    age, gender, height, unit = general.T
    known = [np.isfinite(gender), np.isfinite(height)]
    numbers = [(age - 60.0) / 20.0, gender - 0.5, np.clip((height - 170.0) / 15.0, -4.0, 4.0)]
    return np.stack([*(np.nan_to_num(x) for x in numbers), *known, *(unit == k for k in range(1, 5))], axis=1)


def physionet2012(times: str = "elapsed", fold: int = 0, data_seed: int = 0) -> Task:
    """Make the task of in-hospital mortality.

    Args:
        times: "elapsed", "channel", "ignore" or "hourly": what a model sees of the times of measurement.
        fold: which of the five test splits, from 0.
        data_seed: of the division into folds.
    """
    check_choice("physionet2012", "times", times, TIMES)
    if fold not in range(FOLDS):
        raise ValueError(f"`fold` of physionet2012 must lie in [0, {FOLDS}); got {fold}.")
    found, key = _load(times == "hourly")
    raw, minutes, lengths, deaths = found["values"].numpy(), found["minutes"].numpy(), found["lengths"], found["deaths"]
    parts = folds(deaths.numpy(), fold, data_seed)
    measured = ~np.isnan(raw)
    channels = [
        carried(_standardised(raw, measured, parts[0])),
        measured,
        np.repeat(_static(found["general"].numpy())[:, None], raw.shape[1], axis=1),
    ]
    inside = np.arange(raw.shape[1])[None, :] < lengths.numpy()[:, None]
    gaps = np.diff(minutes, axis=1, prepend=minutes[:, :1])
    later = inside & (np.arange(raw.shape[1]) > 0)
    usual = np.median(gaps[parts[0]][later[parts[0]]])
    elapsed = np.where(later, gaps / usual, 1.0).astype(np.float32)
    if times == "channel":
        channels.append(elapsed[..., None])
    inputs = torch.from_numpy(np.concatenate([c.astype(np.float32) for c in channels], axis=2) * inside[..., None])
    timed = torch.from_numpy(elapsed) if times == "elapsed" else None

    def split(rows: np.ndarray) -> ArraySplit:
        chosen = torch.from_numpy(rows)
        longest = int(lengths[chosen].max())
        return ArraySplit(
            inputs[chosen, :longest],
            deaths[chosen],
            lengths[chosen],
            elapsed=None if timed is None else timed[chosen, :longest],
        )

    return Task(
        train=split(parts[0]),
        valid=split(parts[1]),
        test=lambda: split(parts[2]),
        input_size=inputs.shape[2],
        output_size=2,
        loss="cross_entropy",
        metric="log_loss",
        facts=DataFacts(
            split="fold",
            fold=fold,
            folds=FOLDS,
            sizes=tuple(len(part) for part in parts),
            subset_of=None if len(raw) == STAYS else (STAYS,),
            samples=len(raw),
            checksum=key,
        ),
    )
