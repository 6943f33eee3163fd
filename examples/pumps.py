"""Classify the series of a CSV file, from the file to the confusion matrix: python examples/pumps.py

The file is the synthetic one that `lem example pumps.csv` writes: three channels, one row per minute, three faults.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from lem.timeseries import LEMClassifier
from lem.timeseries.example import write_example
from lem.timeseries.formats import read_table
from lem.timeseries.series import from_table


def main(figure: str = "") -> float:
    with tempfile.TemporaryDirectory() as folder:
        table = read_table(write_example(Path(folder, "pumps.csv")))
    X, y = from_table(table, "pump_id", time="time", target="fault")
    test = np.arange(len(X)) % 3 == np.arange(len(X)) // 3 % 3  # one pump of each three, all faults alike
    model = LEMClassifier(random_state=0).fit([x for x, held in zip(X, test) if not held], y[~test])
    answers = model.predict([x for x, held in zip(X, test) if held])
    accuracy = float((answers == y[test]).mean())
    print(f"{(~test).sum()} pumps to learn from, {test.sum()} to test on: accuracy {accuracy:.3f}")
    if figure:
        draw(figure, X, y, answers, y[test])
    return accuracy


def draw(path: str, X: list[np.ndarray], y: np.ndarray, answers: np.ndarray, truth: np.ndarray) -> None:
    from matplotlib import pyplot as plt

    names = list(np.unique(y))
    chart, axes = plt.subplots(1, 4, figsize=(9.0, 2.6), layout="constrained", width_ratios=(1, 1, 1, 1.1))
    for axis, name in zip(axes, names):
        series = X[int(np.flatnonzero(y == name)[0])]
        for values, channel in zip(series, ("flow", "pressure", "temperature")):
            axis.plot(values / values[:10].mean(), label=channel, lw=1.2)
        axis.set(title=name, xlabel="minute", ylim=(0.5, 1.5))
    axes[0].set(ylabel="relative to the start")
    axes[0].legend(frameon=False, fontsize=7)
    counts = np.array([[((truth == row) & (answers == column)).sum() for column in names] for row in names])
    axes[3].imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        axes[3].text(column, row, count, ha="center", va="center", color="w" if count > counts.max() / 2 else "k")
    axes[3].set_xticks(range(len(names)), names, fontsize=8)
    axes[3].set_yticks(range(len(names)), names, fontsize=8)
    axes[3].set(title="test pumps", xlabel="predicted", ylabel="true")
    chart.savefig(path, dpi=130)
    plt.close(chart)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
