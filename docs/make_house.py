"""Draw the packages of the library and their layers: `python docs/make_house.py` writes docs/images/house.png."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parent.parent
LAYERS = [
    [("cli", "the command line")],
    [("diagnostics", "lem doctor, lem bench")],
    [("experiments", "recipes, runs, tuning, reports"), ("timeseries", "your own series: estimators, files, export")],
    [("analysis", "bounds, certificates, time scales")],
    [("tasks", "the paper's data")],
    [("training", "the training loop and what it needs")],
    [("nn", "cells, layers, models")],
    [("kernels", "which kernel runs; C++, Triton, torch")],
]


def draw(path: Path) -> None:
    chart, axis = plt.subplots(figsize=(8.4, 5.6), layout="constrained")
    height = len(LAYERS)
    for level, rooms in enumerate(LAYERS):
        bottom, width = height - 1 - level, 10 / len(rooms)
        for place, (name, purpose) in enumerate(rooms):
            box = plt.Rectangle((place * width + 0.05, bottom + 0.06), width - 0.1, 0.86, fc="#e8f1fa", ec="#1f77b4")
            axis.add_patch(box)
            middle = place * width + width / 2
            axis.text(middle, bottom + 0.63, f"lem.{name}", ha="center", va="center", fontsize=11, weight="bold")
            axis.text(middle, bottom + 0.3, purpose, ha="center", va="center", fontsize=8.5)
    axis.annotate("", xy=(10.35, 0.2), xytext=(10.35, height - 0.2), arrowprops={"arrowstyle": "->", "color": "0.4"})
    axis.text(10.5, height / 2, "imports point down only", rotation=270, va="center", fontsize=9, color="0.3")
    axis.set(xlim=(0, 10.9), ylim=(0, height))
    axis.axis("off")
    chart.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(ROOT / "docs" / "images" / "house.png")
