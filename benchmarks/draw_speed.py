"""Draw the figure of the README from a file of `lem bench --json`: `python benchmarks/draw_speed.py FILE FIGURE`."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TASKS = {
    (17984, 8, 6, 32): "EigenWorms",
    (4000, 32, 2, 128): "heart rate",
    (2000, 50, 2, 128): "adding problem",
    (1000, 100, 96, 128): "noisy CIFAR-10",
    (1000, 32, 1, 16): "FitzHugh-Nagumo",
    (784, 128, 1, 128): "sequential MNIST",
    (150, 128, 200, 1024): "Penn Treebank, characters",
    (125, 100, 80, 128): "speech commands",
    (70, 64, 256, 256): "Penn Treebank, words",
}
COLOURS = {"lem": "#1f77b4", "gru": "#c7c7c7"}
NAMES = {"lem": "LEM", "gru": "nn.GRU"}


def draw(result: Path, figure: Path) -> None:
    content = json.loads(result.read_text())
    rows = {tuple(row["shape"]): row["x_both"] for row in content["speed"]}  # medians of the ratios of each round
    shapes = [shape for shape in TASKS if shape in rows][::-1]
    chart, axis = plt.subplots(figsize=(7.6, 0.4 * len(shapes) + 0.8), layout="constrained")
    for place, name in enumerate(NAMES):
        ratios = [rows[shape]["lstm"] / rows[shape].get(name, 1.0) for shape in shapes]
        heights = [row + 0.4 * (0.5 - place) for row in range(len(shapes))]
        axis.barh(heights, ratios, 0.38, color=COLOURS[name], label=NAMES[name])
        if name == "lem":
            for height, ratio in zip(heights, ratios):
                axis.text(ratio + 0.06, height, f"{ratio:.1f}x", va="center", fontsize=8)
    labels = [f"{TASKS[s]}\n{s[0]:,} steps, {s[3]:,} units" for s in shapes]
    axis.set_yticks(range(len(shapes)), labels, fontsize=8)
    axis.set_xlabel(
        f"speed of a training step relative to nn.LSTM ({content['machine']['target']}, float32)", fontsize=9
    )
    axis.axvline(1.0, color="0.3", linewidth=1.0, linestyle="--", label="nn.LSTM")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    chart.savefig(figure, dpi=160)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
