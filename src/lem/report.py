"""Run folders to tables and figures. Reports read; they never train."""

from pathlib import Path
from typing import Any

from lem.experiment import RunFolder
from lem.metrics import METRICS


def result_rows(folders: list[RunFolder]) -> list[tuple[str, str]]:
    """Return a run's result as (what, value) rows, beside what the paper says of it."""
    rows: list[tuple[str, str]] = []
    for folder in folders:
        result, paper = folder.result(), folder.recipe().paper
        unit = METRICS[result["metric"]].unit
        shortened = f", shortened: {result['shortened']}" if result["shortened"] else ""
        rows += [
            ("run", str(folder.path)),
            (f"test {result['metric']}", figure(result["test"], unit)),
            ("paper", figure(paper["figure"], unit) if "figure" in paper else "missing"),
            ("valid", f"{figure(result['valid'], unit)} at epoch {result['best_epoch']} (the best, chosen)"),
            ("epochs", f"{result['epochs']} of {result['epochs_planned']}{shortened}"),
            ("parameters", f"{result['parameters']['cell_and_readout']:,} with the readout"),
            ("time", duration(result["seconds"])),
        ]
    return rows


def figure(value: float, unit: str = "") -> str:
    """Write a figure of merit with three significant digits."""
    text = f"{value:.4g}" if unit == "%" else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Write a time span in the unit a reader would use."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def learning_curve(folder: RunFolder, path: Path) -> Path:
    """Draw a run's training loss and validation metric over its epochs, with the paper's figure as a line."""
    pyplot = _pyplot()
    records, result, paper = folder.metrics(), folder.result(), folder.recipe().paper
    judge = METRICS[result["metric"]]
    epochs = [record["epoch"] for record in records]
    chart, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot(epochs, [record["loss"] for record in records], color="0.25", linewidth=1)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    right.plot(epochs, [record["valid"] for record in records], linewidth=1, label="validation")
    right.plot(result["best_epoch"], result["test"], "o", label=f"test {figure(result['test'], judge.unit)}")
    if "figure" in paper:
        label = f"paper {figure(paper['figure'], judge.unit)}"
        right.axhline(paper["figure"], color="tab:red", linestyle="--", linewidth=1, label=label)
    right.set(xlabel="epoch", ylabel=result["metric"], yscale="linear" if judge.higher_is_better else "log")
    right.legend(frameon=False)
    chart.suptitle(f"{result['recipe']}, seed {result['seed']}")
    chart.savefig(path, dpi=150)
    pyplot.close(chart)
    return path


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'long-expressive-memory[plot]'.") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
