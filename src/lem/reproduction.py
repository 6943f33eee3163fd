"""The paper's tables with ours beside them: `paper.toml` and published runs to Markdown and figures."""

import re
import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lem.extras import pyplot
from lem.metrics import METRICS
from lem.report import Group, duration, figure
from lem.run_folder import RunFolder
from lem.studies import draw_curves, draw_sweep

TABLES = Path(__file__).parent / "paper.toml"


@dataclass(frozen=True)
class Row:
    """A row of a table, the paper's unless it has no `figure`, and our runs of it: None where there are none."""

    printed: dict[str, Any]
    ours: Group | None
    absent: str = "missing"

    @property
    def of_the_paper(self) -> bool:
        """Whether the paper has this row; the others are recipes of our own."""
        return "figure" in self.printed

    def cells(self) -> list[str]:
        """Write model, the paper's figure, units and parameters, then ours; what we lack is called missing."""
        paper, size = self.printed.get("says", "-"), "-"
        if self.of_the_paper:
            spread = f" ± {self.printed['spread']}" if "spread" in self.printed else ""
            paper = figure(self.printed["figure"]) + spread
            size = f"{self.printed['units']} / {_thousands(self.printed['parameters'])}"
        if self.ours is None:
            return [self.printed["model"], paper, size, self.absent, "", "", "", f"`{self.printed['recipe']}`"]
        tests, results = self.ours.tests, self.ours.results
        score = self.ours.score() + (f", median {figure(statistics.median(tests))}" if len(tests) > 2 else "")
        ours = f"{self.ours.recipe.model['hidden_size']} / {_thousands(results[0]['parameters']['cell_and_readout'])}"
        spent = duration(statistics.fmean(result["seconds"] for result in results))
        recipe = f"`{self.ours.recipe.name}`" + (f" with {self.ours.changes}" if self.ours.changes else "")
        return [self.printed["model"], paper, size, score, str(len(tests)), ours, spent, recipe]


COLUMNS = ["model", "paper", "units / parameters", "here", "seeds", "units / parameters here", "time a run", "recipe"]


@dataclass(frozen=True)
class Table:
    """One table of the paper, or of ours."""

    title: str
    metric: str
    source: str
    text: str
    """Where ours differ, and why."""
    log: list[tuple[int, float]]
    """The validation metric of LEM after so many epochs, in the authors' log."""
    rows: list[Row]

    @property
    def heading(self) -> str:
        """The title with what is measured."""
        judge = METRICS[self.metric]
        unit = f" in {judge.unit}" if judge.unit else ""
        return f"{self.title}: test {self.metric}{unit}, {'more' if judge.higher_is_better else 'less'} is better"

    @property
    def image(self) -> str:
        """The name of its figure."""
        return "reproduction-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") + ".png"

    @property
    def drawn(self) -> list[Row]:
        """The rows with a curve: runs of one epoch have none."""
        return [row for row in self.rows if row.ours is not None and len(row.ours.folders[0].metrics()) > 1]


def paper_tables(groups: list[Group]) -> list[Table]:
    """Return every table of the paper; of several variants of a recipe, ours is the one least cut short."""
    return [
        Table(
            table["title"],
            table["metric"],
            table["source"],
            table.get("text", "").strip(),
            table.get("log", []),
            [Row(row, _ours(row, groups), table.get("absent", "missing")) for row in table["rows"]],
        )
        for table in _read()["table"]
    ]


def _read() -> dict[str, Any]:
    return tomllib.loads(TABLES.read_text(encoding="utf-8"))


def _ours(row: dict[str, Any], groups: list[Group]) -> Group | None:
    """Return our runs of a row: those of its recipe, with the value of the task that the row names."""
    task = row.get("task", {})
    return max(
        (g for g in groups if g.recipe.name == row["recipe"] and task.items() <= g.recipe.task.items()),
        key=_trust,
        default=None,
    )


def _trust(group: Group) -> tuple[bool, bool, int, int]:
    epochs = max(result["epochs"] for result in group.results)
    return not group.changes, not group.shortened, epochs, len(group.folders)


def reproduction(groups: list[Group]) -> str:
    """Write all tables as one Markdown page, which finds its figures in the folder images/ beside it."""
    tables = paper_tables(groups)
    rows = [row for table in tables for row in table.rows if row.of_the_paper]
    lines = [
        "# Reproduction",
        "",
        "The rows of the paper's tables and ours beside them, made by `lem report --paper` from the run folders in",
        "`results/`: do not edit. A figure is the test metric at the best validation epoch, the mean over the seeds",
        "with its standard deviation, and the median of three or more; a run shorter than its recipe says so in the",
        "cell; what was not run is printed as missing. A row without the paper's figure is a recipe of our own. Our",
        "parameters count one bias a map and the readout. The time is that of one run on the machine named in its",
        f"`env.json`. {sum(row.ours is not None for row in rows)} of {len(rows)} rows have a figure.",
        "",
        "## In short",
        "",
        _read()["summary"].strip(),
    ]
    for table in tables:
        lines += ["", f"## {table.heading}", "", table.source, ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells()) + " |" for row in table.rows]
        lines += ["", table.text] if table.text else []
        lines += ["", f"![{table.title}: {table.metric} over training](images/{table.image})"] if table.drawn else []
    shown = [row.ours for table in tables for row in table.rows]
    if others := [group for group in groups if group not in shown]:
        lines += ["", "## Other runs", "", "Variants of the recipes above, and recipes the paper has no row for.", ""]
        lines += ["| recipe | metric | here | seeds |", "|---|---|---|---|"]
        for group in others:
            changes = f" with {group.changes}" if group.changes else ""
            lines.append(
                f"| `{group.recipe.name}`{changes} | {group.metric} | {group.score()} | {len(group.folders)} |"
            )
    notes: dict[str, set[str]] = {}
    for group in groups:
        for note in (note for result in group.results for note in result["notes"]):
            notes.setdefault(note, set()).add(f"`{group.recipe.name}`")
    if notes:
        lines += ["", "## Notes of the runs", ""]
        lines += [f"- {', '.join(sorted(names))}: {note}" for note, names in sorted(notes.items())]
    return "\n".join(lines) + "\n"


EXCERPT = "| task | model | paper | here | seeds |"


def renew_excerpt(readme: str, tables: list[Table]) -> str:
    """Return `readme` with the table under the heading EXCERPT made anew: the run rows marked `readme = true`."""
    before, heading, rest = readme.partition(EXCERPT + "\n")
    if not heading:
        raise ValueError(f"`readme` of renew_excerpt must hold a table with the heading {EXCERPT!r}; got none.")
    lines = [EXCERPT, "|---|---|---|---|---|"]
    for table in tables:
        for row in (row for row in table.rows if row.printed.get("readme") and row.ours is not None):
            model, paper, _, here, seeds, *_ = row.cells()
            lines.append(f"| {table.title} | {model} | {paper} | {here} | {seeds} |")
    return before + "\n".join(lines) + "".join(rest.partition("\n\n")[1:])


def draw_table(table: Table, path: Path) -> Path:
    """Draw the validation metric of every row over its epochs, LEM's of the authors' log, the paper's test figure."""
    plt = pyplot()
    judge = METRICS[table.metric]
    wrong = judge.unit == "%"  # what is missing to 100 % tells 98.9 from 99.4

    def height(value: float) -> float:
        return 100.0 - value if wrong else value

    chart, axes = plt.subplots(figsize=(7.5, 4.0), layout="constrained")
    runs = [[folder.metrics() for folder in row.ours.folders] for row in table.drawn if row.ours is not None]
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
            text = f"LEM, the paper's test {figure(row.printed['figure'], judge.unit)}"
            axes.axhline(height(row.printed["figure"]), color="k", ls="--", lw=1, label=text)
    ylabel = ("validation error in %" if wrong else f"validation {table.metric}") + (", best so far" if many else "")
    axes.set(xlabel="epoch", ylabel=ylabel, title=table.title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.dataLim.x1 > 30:
        axes.set_xscale("log")
    if axes.dataLim.y1 > 3 * axes.dataLim.y0 > 0 and (wrong or not judge.higher_is_better):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        low, high = axes.get_ylim()
        marked = "236" if high < 100 * low else ""  # few decades: more than their powers of ten have a number
        axes.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in marked else "")
    axes.xaxis.set_major_formatter("{x:g}")
    chart.legend(frameon=False, fontsize=8, loc="outside right center")
    chart.savefig(path, dpi=150)
    plt.close(chart)
    return path


def _thousands(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:.3g}M"
    return f"{count / 1e3:.3g}k" if count >= 1000 else str(count)


def draw_studies(root: Path, images: Path) -> list[Path]:
    """Draw the studies that `paper.toml` lists, from their runs below `root`; one that lacks a run is left as it is."""
    drawn = []
    for study in _read()["study"]:
        folders = [RunFolder(path) for pattern in study["runs"] for path in sorted(root.glob(pattern))]
        if len(folders) >= study["count"]:
            draw = draw_curves if study["curves"] else draw_sweep
            drawn.append(draw(folders, study["over"], images / study["file"]))
    return drawn
