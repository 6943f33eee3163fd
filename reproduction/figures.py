"""The figures of the page: curves of each table, and the comparisons that `paper.toml` lists."""

import statistics
from fnmatch import fnmatch
from pathlib import Path

from lem.atomic import save_figure
from lem.experiments.comparison import draw_curves, draw_scores
from lem.experiments.record import RunRecord
from lem.extras import pyplot
from lem.readable import format_score
from lem.training.metrics import METRICS
from reproduction.tables import Table, read_paper


def draw_table(table: Table, path: Path) -> Path:
    """Draw the validation metric of every row over its epochs, LEM's of the authors' log, the paper's test score."""
    plt = pyplot()
    metric = METRICS[table.metric]
    wrong = metric.unit == "%"  # what is missing to 100 % tells 98.9 from 99.4

    def height(value: float) -> float:
        return 100.0 - value if wrong else value

    figure, axes = plt.subplots(figsize=(7.5, 4.0), layout="constrained")
    runs = [[run.metrics for run in row.ours.runs] for row in table.drawn if row.ours is not None]
    many = max(len(records) for group in runs for records in group) > 100  # a constant rate's jumps would cover all
    for number, (row, group) in enumerate(zip(table.drawn, runs)):
        series = [
            {record["epoch"]: height(record["best" if many else "valid"]) for record in records} for records in group
        ]
        epochs = sorted(set.intersection(*(set(run) for run in series)))
        means = [statistics.fmean(run[epoch] for run in series) for epoch in epochs]
        label = f"{row.printed['model']}, {'1 seed' if len(series) == 1 else f'{len(series)} seeds'}"
        (line,) = axes.plot(
            epochs,
            means,
            marker="." if len(epochs) < 40 else "",
            ls="-" if number < 10 else "--",  # there are ten colours
            lw=2.2 if row.printed["model"] == "LEM" else 1.2,
            label=label,
        )
        if len(series) > 1:
            low, high = ([pick(run[epoch] for run in series) for epoch in epochs] for pick in (min, max))
            axes.fill_between(epochs, low, high, color=line.get_color(), alpha=0.15, lw=0)
    if table.log:
        axes.plot(
            *zip(*((epoch, height(value)) for epoch, value in table.log)),
            "kx",
            markersize=6,
            label="LEM, the authors' log",
        )
    for row in table.rows:
        if row.of_the_paper and row.printed["model"] == "LEM":
            text = f"LEM, the paper's test {format_score(row.printed['score'], metric.unit)}"
            axes.axhline(height(row.printed["score"]), color="k", ls="--", lw=1, label=text)
    ylabel = ("validation error in %" if wrong else f"validation {table.metric}") + (", best so far" if many else "")
    axes.set(xlabel="epoch", ylabel=ylabel, title=table.title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.dataLim.x1 > 30:
        axes.set_xscale("log")
    if axes.dataLim.y1 > 3 * axes.dataLim.y0 > 0 and (wrong or not metric.higher_is_better):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        low, high = axes.get_ylim()
        marked = "236" if high < 100 * low else ""  # few decades: more than their powers of ten have a number
        axes.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in marked else "")
    axes.xaxis.set_major_formatter("{x:g}")
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    save_figure(figure, path)
    plt.close(figure)
    return path


def draw_comparisons(runs: list[RunRecord], images: Path) -> list[Path]:
    """Draw the comparisons that `paper.toml` lists; one that lacks a run is left as it is."""
    drawn = []
    for comparison in read_paper()["comparison"]:
        chosen = [run for run in runs if any(fnmatch(run.name, pattern) for pattern in comparison["runs"])]
        if len(chosen) >= comparison["count"]:
            draw = draw_curves if comparison["curves"] else draw_scores
            drawn.append(draw(chosen, comparison["over"], images / comparison["file"]))
    return drawn
