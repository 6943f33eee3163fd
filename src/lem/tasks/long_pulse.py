"""Long pulse: slow, middle or fast, from two minutes of pulse oximetry (PPG) and ECG, 15,000 steps of two channels.

Not in the paper. It replaces EigenWorms, whose data is not available everywhere, and is nearly as long (15,000 steps
to 17,984). Each of PhysioNet's 53 recordings (see heart_rate) gives 31 windows, one every 12 s. The label is the
third of all windows that the monitor's mean heart rate falls into. Channels are standardised by the mean and spread of
the training windows.

Two splits, as in heart_rate. "random": 1150 / 246 / 247 windows, in the way of EigenWorms; neighbours overlap by 108 of
120 s, so training and test share recordings. "recording" keeps every recording in one split.
"""

import numpy as np
import torch
from torch import Tensor

from lem.tasks.base import DataFacts, Task
from lem.tasks.cache import checksum, prepared
from lem.tasks.eigenworms import paper_split
from lem.tasks.fetch import fetch
from lem.tasks.heart_rate import RATE, RECORDED, RECORDINGS, read_columns, recording_split
from lem.training.data import ArraySplit, DataError

SECONDS, EVERY, WINDOWS, CLASSES = 120, 12, 31, 3


def cut(signals: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut (sample, channel) signals into windows; return them and the mean heart rate of each."""
    seconds = SECONDS + (WINDOWS - 1) * EVERY
    if len(signals) < seconds * RATE or len(rates) < seconds:
        raise DataError(
            f"A recording must have {seconds} s of signals and heart rates; "
            f"got {len(signals) // RATE} s and {len(rates)}."
        )
    starts = range(0, WINDOWS * EVERY, EVERY)
    read = np.stack([rates[start : start + SECONDS] for start in starts])
    if np.isnan(read).all(1).any():
        raise DataError(f"A recording must have a heart rate in every {SECONDS} s; got a window without one.")
    return np.stack([signals[s * RATE : (s + SECONDS) * RATE] for s in starts]), np.nanmean(read, 1)


def thirds(rates: Tensor) -> Tensor:
    """Number the rates 0, 1 or 2 by the third of all rates they fall into."""
    limits = torch.quantile(rates.double(), torch.tensor([1.0, 2.0], dtype=torch.float64) / CLASSES)
    return torch.bucketize(rates.double(), limits)


def _load() -> tuple[Tensor, Tensor, Tensor]:
    """Return all windows (1643, 15000, 2), their mean heart rates and the numbers of their recordings."""
    files = fetch(RECORDED)

    def make() -> dict[str, Tensor]:
        inputs, means = [], []
        for number in range(1, RECORDINGS + 1):
            stem = f"bidmc_csv/bidmc_{number:02d}"
            signals = read_columns(files[f"{stem}_Signals.csv"], "PLETH", "II").astype(np.float32)
            windows, rates = cut(signals, read_columns(files[f"{stem}_Numerics.csv"], "HR")[:, 0])
            inputs.append(torch.from_numpy(windows))
            means.append(torch.from_numpy(rates))
        numbers = torch.arange(1, RECORDINGS + 1).repeat_interleave(WINDOWS)
        return {"inputs": torch.cat(inputs), "rates": torch.cat(means), "recordings": numbers}

    tensors = prepared("long-pulse", {"source": checksum(files.values()), "version": 2}, make)
    return tensors["inputs"], tensors["rates"], tensors["recordings"]


def long_pulse(split: str = "random", data_seed: int = 1234) -> Task:
    """Make the long-pulse task.

    Args:
        split: "random", or "recording", with no recording in two splits.
        data_seed: draws the split by recording.
    """
    if split not in ("random", "recording"):
        raise ValueError(f"`split` of long_pulse must be 'random' or 'recording'; got {split!r}.")
    inputs, rates, recordings = _load()
    labels = thirds(rates)
    if split == "random":
        train, valid, test = (torch.from_numpy(part) for part in paper_split(len(inputs)))
    else:
        train, valid, test = recording_split(recordings, data_seed)
    inputs = (inputs - inputs[train].mean((0, 1))) / inputs[train].std((0, 1))
    return Task(
        ArraySplit(inputs[train], labels[train]),
        ArraySplit(inputs[valid], labels[valid]),
        lambda: ArraySplit(inputs[test], labels[test]),
        input_size=2,
        output_size=CLASSES,
        loss="cross_entropy",
        metric="accuracy",
        facts=DataFacts(split=split, shared_recordings=split == "random"),
    )
