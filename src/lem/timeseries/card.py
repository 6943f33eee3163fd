"""The card of a trained model, and its picture."""

from pathlib import Path
from typing import Any

import numpy as np

from lem.atomic import save_figure
from lem.environment import environment
from lem.extras import pyplot
from lem.readable import format_duration
from lem.timeseries.predictor import Predictor
from lem.timeseries.schema import Schema
from lem.timeseries.scores import Scores
from lem.timeseries.supervised import TRAINED_ONLY
from lem.timeseries.times import show_span


def card(predictor: Predictor, name: str, scores: Scores | None, scored_on: str, seconds: float) -> str:
    """Return the model card as Markdown: what the model does, its data, its scores, how to use it, how it was made."""
    notes, model = predictor.notes, predictor.architecture
    schema = Schema.from_plain(notes["schema"], predictor.channels)
    lines = [f"# {name}", "", f"{_purpose(predictor, schema)} Trained on `{notes['file']}`: {notes['data']}.", ""]
    lines += ["## How well", ""]
    if scores is None:
        lines += ["Not measured: no series were kept for scoring.", ""]
    else:
        lines += [f"On {scored_on}:", "", "```text", *scores.lines(), "```", ""]
    lines += ["## How to use it", "", "```", f"lem predict {name}.safetensors NEW.csv --out answers.csv"]
    lines += [f"lem evaluate {name}.safetensors LABELLED.csv", "```", "", *_needs(schema), ""]
    low, high = notes.get("lengths", (None, None))
    options = notes.get("estimator", {})
    if model.get("network") == "frozen":
        options = {key: value for key, value in options.items() if key not in TRAINED_ONLY}
    rows = {
        "answers": _answers(predictor),
        "lengths": "unknown" if low is None else str(low) if low == high else f"{low} to {high} steps",
        "missing values": "marked for the model" if predictor.missing == "mask" else "refused",
        "model": ", ".join(f"{key} {value}" for key, value in model.items() if isinstance(value, str | int | float)),
        "parameters": f"{notes['parameters']:,}" if "parameters" in notes else "unknown",
        "training": _training(notes, seconds),
        "options": ", ".join(f"{key}={value}" for key, value in options.items()),
        **{key: str(value) for key, value in environment().items() if key in ("lem", "torch", "cpu", "threads")},
    }
    table = ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items() if value)]
    return "\n".join([*lines, "## How it was made", "", *table]) + "\n"


def _purpose(predictor: Predictor, schema: Schema) -> str:
    what = f"`{schema.target}`" if schema.target else "the target"
    if predictor.kind == "classifier":
        assert predictor.labels is not None
        labels = ", ".join(map(str, predictor.labels[:12])) + (", ..." if len(predictor.labels) > 12 else "")
        return f"Classifies time series: {what} is one of {labels}."
    if predictor.kind == "forecaster":
        return f"Continues time series by {predictor.horizon} steps."
    return f"Predicts {what}, a number, for each time series."


def _needs(schema: Schema) -> list[str]:
    """Say which columns a file must have."""
    if schema.layout == "array":
        return ["The file has no column names: channels are taken in the order of the training file."]
    row = "one step" if schema.layout == "long" else "one series"
    lines = [f"A file must have these columns, in any order ({row} a row):", ""]
    if schema.series:
        lines.append(f"- `{schema.series}`: which series a row belongs to")
    if schema.time:
        span = None if schema.interval is None else show_span(schema.interval, schema.time_kind or "number")
        step = "" if span is None else f", one step every {span}"
        rules = f"irregular times: {schema.gaps}, repeated times: {schema.duplicates}"
        lines.append(f"- `{schema.time}`: time{step}; {rules}")
    shown = schema.columns if len(schema.columns) <= 20 else (*schema.columns[:3], "...", schema.columns[-1])
    lines.append(f"- values: {', '.join(f'`{column}`' for column in shown)}")
    if schema.static:
        lines.append(f"- one value per series: {', '.join(f'`{column}`' for column in schema.static)}")
    return lines


def _training(notes: dict[str, Any], seconds: float) -> str:
    parts = [f"{notes['series']} series"] if "series" in notes else []
    if notes.get("held_out"):
        parts.append(f"of which {notes['held_out']} held out to choose the epoch")
    if notes.get("epochs"):
        parts.append(f"{notes['epochs']} epochs, the best was {notes['best_epoch']}")
    return ", ".join([*parts, format_duration(seconds)])


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
    if history:
        epochs = [record["epoch"] for record in history]
        left.plot(epochs, [record["loss"] for record in history], color="0.25", linewidth=1, label="training loss")
        left.plot(epochs, [record["valid"] for record in history], linewidth=1, label=judged_by)
        left.axvline(best, color="0.7", linewidth=1, linestyle="--", label=f"kept: epoch {best}")
        left.set(xlabel="epoch")
        left.legend(frameon=False)
    else:
        left.axis("off")
    if truth is not None:
        truth, answer = np.asarray(truth), np.asarray(answer)
        if answer.dtype.kind == "f" and truth.dtype.kind == "f":
            right.plot(truth.ravel(), answer.ravel(), ".", markersize=3)
            ends = [min(truth.min(), answer.min()), max(truth.max(), answer.max())]
            right.plot(ends, ends, color="0.7", linewidth=1, zorder=0)
            right.set(xlabel="truth", ylabel="answer")
        else:
            _confusion(right, list(map(str, truth)), list(map(str, answer)))
    else:
        right.axis("off")
    save_figure(chart, path)
    plt.close(chart)
    return path


def _confusion(axis: Any, truth: list[str], answer: list[str]) -> None:
    labels = sorted(set(truth) | set(answer))
    if len(labels) > 200:
        axis.text(0.5, 0.5, f"{len(labels)} classes: too many to draw", ha="center", transform=axis.transAxes)
        axis.axis("off")
        return
    place, table = {label: k for k, label in enumerate(labels)}, np.zeros((len(labels), len(labels)), dtype=np.int64)
    for pair in zip(truth, answer):
        table[place[pair[0]], place[pair[1]]] += 1
    axis.imshow(table, cmap="Blues")
    if len(labels) <= 12:
        for (row, column), count in np.ndenumerate(table):
            colour = "white" if count > table.max() / 2 else "black"
            axis.text(column, row, count, ha="center", va="center", color=colour, fontsize=8)
    axis.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set(xlabel="answer", ylabel="truth")
