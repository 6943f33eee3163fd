"""Heart rate (BIDMC32HR): beats per minute from 32 s of pulse oximetry (PPG) and ECG, 4000 steps of two channels.

Two sources. "archive" is the Monash archive's BIDMC32HR, as in the paper: its training and test files, stacked.
"recordings" rebuilds it from PhysioNet's 53 recordings: windows of 32 s every 3 s, the target being the monitor's heart
rate in the window's last second; 7,949 windows have one, which is the number of series in the archive, but their order
and the archive's own rule are not known, so such results are labelled. "auto" takes the first of the two that is there.

Two splits. "random" is the paper's: 5565 / 1192 / 1192 by `random_split` with seed 123456, twice. Neighbouring windows
overlap by 29 s, so training and test share recordings; "recording" keeps every recording in one split.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lem.tasks.base import DataFacts, Task
from lem.tasks.cache import checksum, prepared
from lem.tasks.fetch import Download, Source, fetch
from lem.tasks.uea import padded, read_series
from lem.training.data import ArraySplit, DataError, mix

RECORDINGS = 53
SECONDS, EVERY, RATE = 32, 3, 125

ARCHIVE = Source(
    "heart_rate",
    "https://zenodo.org/record/3902651",
    "CC BY 4.0 (the recordings: ODC-By 1.0)",
    tuple(
        Download(
            (f"https://zenodo.org/record/4001456/files/BIDMC32HR_{part}.ts",),
            {f"BIDMC32HR/BIDMC32HR_{part}.ts": None},
            None,
        )
        for part in ("TRAIN", "TEST")
    ),
)

RECORDED = Source(
    "heart_rate_recordings",
    "https://physionet.org/content/bidmc/1.0.0/",
    "ODC-By 1.0",
    tuple(
        Download(
            (f"https://physionet.org/files/bidmc/1.0.0/bidmc_csv/bidmc_{number:02d}_{part}.csv",),
            {f"bidmc_csv/bidmc_{number:02d}_{part}.csv": None},
            None,
        )
        for number in range(1, RECORDINGS + 1)
        for part in ("Signals", "Numerics")
    ),
)


def read_columns(path: Path, *names: str) -> np.ndarray:
    """Read columns of a recording's table by name: (row, column). Their order differs between recordings."""
    try:
        with path.open(encoding="utf-8") as lines:
            header = [name.strip() for name in lines.readline().split(",")]
            missing = [name for name in names if name not in header]
            if missing:
                raise DataError(f"{path.name} must have the columns {', '.join(names)}; got {', '.join(header)}.")
            rows = lines.readlines()
        if not rows:
            raise DataError(f"{path.name} has no rows.")
        return np.loadtxt(rows, delimiter=",", usecols=[header.index(name) for name in names], ndmin=2)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path.name} must be a table of numbers: {error}") from error


def cut_windows(signals: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut (sample, channel) signals into windows; keep those whose last second has a heart rate."""
    seconds = len(signals) // RATE
    if seconds < SECONDS:
        raise DataError(f"A recording must have at least {SECONDS} s; got {seconds}.")
    if len(rates) < seconds:
        raise DataError(f"A recording must have a heart rate for every second; got {len(rates)} of {seconds}.")
    starts = range(0, seconds - SECONDS + 1, EVERY)
    pairs = [(signals[s * RATE : (s + SECONDS) * RATE], rates[s + SECONDS - 1]) for s in starts]
    kept = [(window, rate) for window, rate in pairs if np.isfinite(rate)]
    return np.stack([window for window, _ in kept]), np.array([rate for _, rate in kept])


def _from_archive() -> dict[str, Tensor]:
    paths = list(fetch(ARCHIVE).values())

    def make() -> dict[str, Tensor]:
        parts = [read_series(path) for path in paths]
        inputs, lengths = padded([values for part in parts for values in part.values])
        if lengths is not None:
            raise DataError(
                "The series of BIDMC32HR must all have the same length. Delete the files and fetch them again."
            )
        return {"inputs": inputs, "targets": torch.tensor([float(v) for part in parts for v in part.labels])}

    return prepared("heart-rate-archive", {"source": checksum(paths), "version": 1}, make)


def _from_recordings() -> dict[str, Tensor]:
    files = fetch(RECORDED)

    def make() -> dict[str, Tensor]:
        inputs, targets, recordings = [], [], []
        for number in range(1, RECORDINGS + 1):
            stem = f"bidmc_csv/bidmc_{number:02d}"
            signals = read_columns(files[f"{stem}_Signals.csv"], "PLETH", "II").astype(np.float32)
            windows, rates = cut_windows(signals, read_columns(files[f"{stem}_Numerics.csv"], "HR")[:, 0])
            inputs.append(torch.from_numpy(windows))
            targets.append(torch.from_numpy(rates).float())
            recordings.append(torch.full((len(rates),), number))
        return {"inputs": torch.cat(inputs), "targets": torch.cat(targets), "recordings": torch.cat(recordings)}

    return prepared("heart-rate-recordings", {"source": checksum(files.values()), "version": 1}, make)


def random_split(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices of the authors' split: training, validation, test."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(123456))
    train = count * 5565 // 7949
    rest = order[train:][torch.randperm(count - train, generator=torch.Generator().manual_seed(123456))]
    test = len(rest) // 2
    return order[:train], rest[test:], rest[:test]


def recording_split(recordings: Tensor, data_seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices of a split that keeps recordings together: of 53, 37 for training, 8 and 8."""
    numbers = recordings.unique()
    order = numbers[torch.randperm(len(numbers), generator=torch.Generator().manual_seed(mix(data_seed, 1)))]
    held = len(numbers) * 15 // 100 + 1
    parts = order[2 * held :], order[:held], order[held : 2 * held]
    train, valid, test = (torch.isin(recordings, part).nonzero()[:, 0] for part in parts)
    return train, valid, test


def heart_rate(
    split: str = "random", source: str = "auto", data_seed: int = 123456, standardised: bool = False
) -> Task:
    """Make the heart-rate task.

    Args:
        split: "random", as in the paper, or "recording", with no recording in two splits.
        source: "archive", "recordings", or "auto": the first of them that is in the data folder, else the archive.
        data_seed: draws the split by recording.
        standardised: give targets of mean 0 and deviation 1 on the training split, so that the model need not
            learn the offset of about 90 beats; the metric stays in beats per minute. The paper's are not.
    """
    if split not in ("random", "recording"):
        raise ValueError(f"`split` of heart_rate must be 'random' or 'recording'; got {split!r}.")
    if source not in ("auto", "archive", "recordings"):
        raise ValueError(f"`source` of heart_rate must be 'auto', 'archive' or 'recordings'; got {source!r}.")
    if source == "auto":
        rebuilt = split == "recording" or (RECORDED.present() and not ARCHIVE.present())
        source = "recordings" if rebuilt else "archive"
    if split == "recording" and source == "archive":
        raise ValueError(
            "`source` of heart_rate must be 'recordings' if `split` is 'recording': the archive's "
            "series do not say which recording they are from."
        )
    tensors = _from_archive() if source == "archive" else _from_recordings()
    inputs, targets = tensors["inputs"], tensors["targets"][:, None]
    if split == "random":
        train, valid, test = random_split(len(inputs))
    else:
        train, valid, test = recording_split(tensors["recordings"], data_seed)
    mean, unit = 0.0, 1.0
    if standardised:
        mean, unit = float(targets[train].mean()), float(targets[train].std())
        targets = (targets - mean) / unit
    return Task(
        ArraySplit(inputs[train], targets[train]),
        ArraySplit(inputs[valid], targets[valid]),
        lambda: ArraySplit(inputs[test], targets[test]),
        input_size=2,
        output_size=1,
        loss="mse",
        metric="rmse",
        unit=unit,
        facts=DataFacts(
            split=split,
            source=source,
            rebuilt=source == "recordings",
            samples=len(inputs),
            shared_recordings=split == "random",
            target_mean=mean if standardised else None,
            target_scale=unit if standardised else None,
        ),
    )
