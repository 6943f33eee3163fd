"""The card of a forecast, and its picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lem.atomic import save_figure
from lem.environment import environment
from lem.extras import pyplot
from lem.readable import format_duration
from lem.timeseries.intervals import coverages

if TYPE_CHECKING:
    from lem.timeseries.dated_forecast import ForecastFile

MOST_PANELS = 4
SHOWN = 5
"""The history drawn, in horizons."""


def card(done: "ForecastFile", name: str) -> str:
    """Return the card as Markdown: what was forecast, how well, and how to do it again."""
    predictor, data = done.forecaster.predictor_, done.data
    notes = predictor.notes
    lines = [f"# {name}", "", f"Forecasts the next {predictor.horizon} steps of {', '.join(data.columns.target)}."]
    lines += [f"Trained on `{notes['file']}`: {notes['data']}.", "", *[f"- {note}" for note in data.notes]]
    lines += ["", "## How well", ""]
    if done.backtest is None:
        lines += [f"Not measured: {done.why_no_backtest}.", ""]
    else:
        lines += ["Rolling origins over the end of the series, which the scored model had not seen:", ""]
        lines += ["```text", *done.backtest.lines(), "```", ""]
        if len(data.columns.target) > 1:
            method = next(iter(done.backtest.scores))
            lines += ["| target | MAE | RMSE |", "|---|---|---|"]
            each = done.backtest.by_channel[method]
            for target, mae, rmse in zip(data.columns.target, each["MAE"], each["RMSE"]):
                lines.append(f"| {target} | {mae:.4g} | {rmse:.4g} |")
            lines.append("")
        lines += ["The delivered model was then trained on everything; it was not scored itself.", ""]
    lines += ["## How to use it", "", "```", f"lem forecast NEW.csv --model {name}.safetensors --out next.csv", "```"]
    lines += ["", f"NEW.csv needs the columns {', '.join(_columns(done))}.", "", "## How it was made", ""]
    rows = {
        "model": ", ".join(f"{k} {v}" for k, v in predictor.architecture.items() if isinstance(v, str | int | float)),
        "season": notes.get("season", ""),
        "parameters": f"{notes['parameters']:,}" if "parameters" in notes else "",
        "epochs": f"{notes.get('best_epoch')} of {notes.get('epochs')}",
        "intervals": f"corrected by {notes['calibrated']} forecasts" if notes.get("calibrated") else "not corrected",
        "time": format_duration(done.seconds),
        **{key: str(value) for key, value in environment().items() if key in ("lem", "torch", "cpu", "threads")},
    }
    return "\n".join([*lines, "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items() if v != "")]) + "\n"


def _columns(done: "ForecastFile") -> list[str]:
    columns = done.data.columns
    names = [columns.series, columns.time, *columns.target, *columns.past, *columns.static]
    return [f"`{name}`" for name in names if name is not None]


def picture(done: "ForecastFile", path: Path) -> Path:
    """Draw the end of the history, the last forecast of the backtest against the truth, and the forecast."""
    plt, data = pyplot(), done.data
    panels = [(i, k) for i in range(len(data.names)) for k in range(len(data.columns.target))][:MOST_PANELS]
    chart, axes = plt.subplots(
        len(panels), 1, figsize=(9, 2.6 * len(panels) + 0.6), layout="constrained", squeeze=False
    )
    for axis, (i, k) in zip(axes[:, 0], panels):
        _panel(axis, done, i, k)
        name = data.columns.target[k]
        axis.set_ylabel(name if len(data.names) == 1 else f"{name}, {data.names[i]}")
        axis.margins(x=0.01)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    chart.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    save_figure(chart, path)
    plt.close(chart)
    return path


def _panel(axis: Any, done: "ForecastFile", i: int, k: int) -> None:
    data, quantiles = done.data, done.quantiles[i, :, k]
    horizon, values = len(quantiles), data.values[i][k]
    times = data.times[i].astype("datetime64[ns]")
    shown = min(len(values), max(SHOWN * horizon, 4 * getattr(done.forecaster, "season_", 1), 40))
    axis.plot(times[-shown:], values[-shown:], color="0.2", linewidth=1, label="history")
    if done.backtest is not None:
        own = np.flatnonzero(done.backtest.series == i)
        if len(own):
            last = own[np.argmax(done.backtest.steps[own])]
            span = done.backtest.steps[last] + np.arange(done.backtest.horizon)
            found = done.backtest.quantiles
            point = next(iter(done.backtest.forecasts.values()))[last, :, k]
            if found is not None:
                low, high = found[last, :, k, _place(done, -1)], found[last, :, k, _place(done, 1)]
                axis.fill_between(times[span], low, high, color="tab:orange", alpha=0.25, linewidth=0)
            axis.plot(times[span], point, color="tab:orange", linewidth=1.2, label="backtest: last forecast")
    ahead = done.ahead[i].astype("datetime64[ns]")
    middle = quantiles.shape[1] // 2
    if quantiles.shape[1] > 1:
        for place, coverage in reversed(list(enumerate(coverages(_levels(done)), start=1))):
            low, high = quantiles[:, middle - place], quantiles[:, middle + place]
            shade = 0.35 if place == 1 else 0.18
            label = f"{100 * coverage:g} %"
            axis.fill_between(ahead, low, high, color="tab:blue", alpha=shade, linewidth=0, label=label)
    axis.plot(ahead, quantiles[:, middle], color="tab:blue", linewidth=1.4, label="forecast")


def _levels(done: "ForecastFile") -> tuple[float, ...]:
    from lem.timeseries.forecasting import network_of

    return network_of(done.forecaster.predictor_).quantiles


def _place(done: "ForecastFile", side: int) -> int:
    """Return the quantile at the lower (-1) or upper (1) end of the narrowest interval of the backtest."""
    assert done.backtest is not None
    return len(done.backtest.levels) // 2 + side
