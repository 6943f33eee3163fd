"""EigenWorms: which of five strains a worm is of, from 17,984 steps of its six posture coordinates.

The archive's 128 training and 131 test series are stacked and split again. Two protocols:

- "paper": 181 / 39 / 39, by scikit-learn's `train_test_split` with random_state 1234, twice, as in the authors' code.
- "deduplicated": repeated series are removed, then one of five random 70 / 15 / 15 splits, as in later papers.

Some series stand in the archive more than once; how many test series the model has seen in training is counted and
noted with every run.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lem.tasks.base import DataFacts, Task
from lem.tasks.cache import checksum, prepared
from lem.tasks.fetch import Download, Source, fetch
from lem.tasks.uea import class_numbers, padded, read_series
from lem.training.data import ArraySplit, mix

FOLDS = 5


def _source(kind: str) -> Source:
    return Source(
        "eigenworms",
        "https://www.timeseriesclassification.com/description.php?Dataset=EigenWorms",
        "the terms of the UEA archive",
        (
            Download(
                (
                    "https://www.timeseriesclassification.com/aeon-toolkit/EigenWorms.zip",
                    "https://www.timeseriesclassification.com/Downloads/EigenWorms.zip",
                ),
                {f"ucr_uea/EigenWorms/EigenWorms_{part}.{kind}": None for part in ("TRAIN", "TEST")},
                None,
                folder="ucr_uea/EigenWorms",
                unpacked=4_000_000_000,
                pattern=f"*.{kind}",
            ),
        ),
    )


SOURCE = _source("ts")


def _load() -> tuple[Tensor, Tensor, str]:
    """Return all series (259, 17984, 6), their classes, and the checksum of the files."""
    arff = _source("arff")
    files = fetch(arff if arff.present() and not SOURCE.present() else SOURCE)
    paths: list[Path] = list(files.values())
    key = checksum(paths)

    def make() -> dict[str, Tensor]:
        parts = [read_series(path) for path in paths]
        inputs, _ = padded([values for part in parts for values in part.values])
        labels, _ = class_numbers([label for part in parts for label in part.labels])
        return {"inputs": inputs, "labels": labels}

    tensors = prepared("eigenworms", {"source": key, "version": 1}, make)
    return tensors["inputs"], tensors["labels"], key


def paper_split(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of the authors' split, without needing scikit-learn for it."""

    def halves(total: int, held: int) -> tuple[np.ndarray, np.ndarray]:
        # What train_test_split does: the first `held` of a permutation are the test part.
        order = np.random.RandomState(1234).permutation(total)
        return order[held:], order[:held]

    train, rest = halves(count, -(-count * 3 // 10))
    valid, test = halves(len(rest), -(-len(rest) // 2))
    return train, rest[valid], rest[test]


def groups(inputs: Tensor) -> Tensor:
    """Number the series so that equal ones have the same number, that of the first."""
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(row.numpy().tobytes(), i) for i, row in enumerate(inputs)])


def eigenworms(protocol: str = "paper", fold: int = 0, data_seed: int = 1234) -> Task:
    """Make the EigenWorms task.

    Args:
        protocol: "paper" or "deduplicated".
        fold: which of the five splits of "deduplicated", 0 to 4.
        data_seed: draws those splits.
    """
    if protocol not in ("paper", "deduplicated"):
        raise ValueError(f"`protocol` of eigenworms must be 'paper' or 'deduplicated'; got {protocol!r}.")
    if not 0 <= fold < FOLDS:
        raise ValueError(f"`fold` of eigenworms must be 0 to {FOLDS - 1}; got {fold}.")
    inputs, labels, key = _load()
    twins = groups(inputs)
    unique = twins.unique()
    if protocol == "paper":
        train, valid, test = (torch.from_numpy(part) for part in paper_split(len(inputs)))
    else:
        shuffled = unique[torch.randperm(len(unique), generator=torch.Generator().manual_seed(mix(data_seed, fold)))]
        ends = [len(unique) * 70 // 100, len(unique) * 85 // 100]
        train, valid, test = (part.clone() for part in shuffled.tensor_split(ends))
    seen = int(torch.isin(twins[test], torch.cat([twins[train], twins[valid]])).sum())
    return Task(
        ArraySplit(inputs[train], labels[train]),
        ArraySplit(inputs[valid], labels[valid]),
        lambda: ArraySplit(inputs[test], labels[test]),
        input_size=inputs.shape[2],
        output_size=int(labels.max()) + 1,
        loss="cross_entropy",
        metric="accuracy",
        facts=DataFacts(
            split=protocol,
            fold=fold if protocol == "deduplicated" else None,
            folds=FOLDS if protocol == "deduplicated" else None,
            samples=len(inputs),
            distinct=len(unique),
            test_samples=len(test),
            test_seen=seen,
            checksum=key[:16],
        ),
    )
