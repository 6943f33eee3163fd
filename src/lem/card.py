"""What is said of a trained model: its card in words and its picture."""

from pathlib import Path
from typing import Any

import numpy as np

from lem.experiment import environment
from lem.extras import pyplot
from lem.predictor import Predictor
from lem.report import duration


def card(predictor: Predictor, name: str, results: dict[str, str]) -> str:
    """Return the model card as Markdown: data, training, results, environment."""
    notes, model = predictor.notes, predictor.architecture
    low, high = notes["lengths"]
    rows = {
        "kind": predictor.kind,
        "answers": _answers(predictor),
        "series": f"{notes['series']}, of which {notes['held_out']} held out to choose the epoch",
        "channels": str(notes["channels"]),
        "lengths": str(low) if low == high else f"{low} to {high}",
        "missing values": "marked by a mask channel" if predictor.missing == "mask" else "refused",
        "cell": f"{model['cell']}, {model['num_layers']} x {model['hidden_size']} units",
        "dt": "none" if notes["dt"] is None else f"{notes['dt']:.3g}",
        "parameters": f"{notes['parameters']:,}",
        "epochs": f"{notes['epochs']}, the best was {notes['best_epoch']}",
        "training time": duration(notes["seconds"]),
        **results,
        **{key: str(value) for key, value in environment().items() if key in ("lem", "torch", "cpu", "threads")},
    }
    lines = [f"# {name}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    return "\n".join(lines) + "\n"


def _answers(predictor: Predictor) -> str:
    if predictor.kind == "classifier":
        assert predictor.labels is not None
        return f"{len(predictor.labels)} classes: {', '.join(map(str, predictor.labels))}"
    if predictor.kind == "forecaster":
        return f"the next {predictor.horizon} steps"
    return f"{predictor.outputs} number(s)"


def picture(
    path: Path, history: list[dict[str, Any]], best: int, truth: Any, answer: Any, judged_by: str = "validation"
) -> Path:
    """Draw the learning curve, and answers against the truth: a confusion matrix for labels, points for numbers."""
    plt = pyplot()
    chart, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    epochs = [record["epoch"] for record in history]
    left.plot(epochs, [record["loss"] for record in history], color="0.25", linewidth=1, label="training loss")
    left.plot(epochs, [record["valid"] for record in history], linewidth=1, label=judged_by)
    left.axvline(best, color="0.7", linewidth=1, linestyle="--", label=f"kept: epoch {best}")
    left.set(xlabel="epoch")
    left.legend(frameon=False)
    if truth is not None:
        truth, answer = np.asarray(truth), np.asarray(answer)
        if answer.dtype.kind == "f" and truth.dtype.kind == "f":
            right.plot(truth.ravel(), answer.ravel(), ".", markersize=3)
            ends = [min(truth.min(), answer.min()), max(truth.max(), answer.max())]
            right.plot(ends, ends, color="0.7", linewidth=1, zorder=0)
            right.set(xlabel="truth", ylabel="answer")
        else:
            _confusion(right, truth.astype(str), answer.astype(str))
    else:
        right.axis("off")
    chart.savefig(path, dpi=150)
    plt.close(chart)
    return path


def _confusion(axis: Any, truth: np.ndarray, answer: np.ndarray) -> None:
    labels = sorted(set(truth) | set(answer))
    table = np.array([[int(((truth == t) & (answer == a)).sum()) for a in labels] for t in labels])
    axis.imshow(table, cmap="Blues")
    if len(labels) <= 12:
        for (row, column), count in np.ndenumerate(table):
            colour = "white" if count > table.max() / 2 else "black"
            axis.text(column, row, count, ha="center", va="center", color=colour, fontsize=8)
    axis.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set(xlabel="answer", ylabel="truth")
