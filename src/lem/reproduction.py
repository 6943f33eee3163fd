"""The paper's tables with our figures beside them: `paper.toml` and published runs to Markdown."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lem.metrics import METRICS
from lem.report import Group, duration, figure

TABLES = Path(__file__).parent / "paper.toml"


@dataclass(frozen=True)
class Row:
    """A row of a table of the paper, and our runs of the same model: None where there are none."""

    printed: dict[str, Any]
    ours: Group | None

    def cells(self) -> list[str]:
        """Write model, the paper's figure, units and parameters, then ours; what we lack is called missing."""
        paper = figure(self.printed["figure"]) + (f" ± {self.printed['spread']}" if "spread" in self.printed else "")
        size = f"{self.printed['units']} / {_thousands(self.printed['parameters'])}"
        if self.ours is None:
            return [self.printed["model"], paper, size, "missing", "", "", "", f"`{self.printed['recipe']}`"]
        result = self.ours.results[0]
        counts = result["parameters"]
        ours = f"{self.ours.recipe.model['hidden_size']} / {_thousands(counts['cell_and_readout'])}"
        spent = duration(sum(r["seconds"] for r in self.ours.results) / len(self.ours.results))
        seeds = str(len(self.ours.folders))
        recipe = f"`{self.ours.recipe.name}`" + (f" with {self.ours.changes}" if self.ours.changes else "")
        return [self.printed["model"], paper, size, self.ours.score(), seeds, ours, spent, recipe]


COLUMNS = ["model", "paper", "units / parameters", "here", "seeds", "units / parameters here", "time a run", "recipe"]


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    title: str
    metric: str
    source: str
    rows: list[Row]

    @property
    def heading(self) -> str:
        """The title with what is measured."""
        judge = METRICS[self.metric]
        unit = f" in {judge.unit}" if judge.unit else ""
        return f"{self.title}: test {self.metric}{unit}, {'more' if judge.higher_is_better else 'less'} is better"


def paper_tables(groups: list[Group]) -> list[Table]:
    """Return every table of the paper; of several variants of a recipe, ours is the one least cut short."""
    best: dict[str, Group] = {}
    for group in groups:
        known = best.get(group.recipe.name)
        if known is None or _trust(group) > _trust(known):
            best[group.recipe.name] = group
    return [
        Table(
            table["title"],
            table["metric"],
            table["source"],
            [Row(row, best.get(row["recipe"])) for row in table["rows"]],
        )
        for table in tomllib.loads(TABLES.read_text(encoding="utf-8"))["table"]
    ]


def _trust(group: Group) -> tuple[bool, bool, int, int]:
    epochs = max(result["epochs"] for result in group.results)
    return not group.changes, not group.shortened, epochs, len(group.folders)


def reproduction(groups: list[Group]) -> str:
    """Write all tables as one Markdown page."""
    tables = paper_tables(groups)
    rows = [row for table in tables for row in table.rows]
    lines = [
        "# Reproduction",
        "",
        "The rows of the paper's tables and ours beside them, made by `lem report --paper` from the run folders in",
        "`results/`: do not edit. A figure is the test metric at the best validation epoch, the mean over the seeds",
        "with its standard deviation; a run shorter than its recipe says so in the cell; what was not run is printed",
        "as missing. Our parameters count one bias a map and the readout. The time is that of one run on the machine",
        f"named in its `env.json`. {sum(row.ours is not None for row in rows)} of {len(rows)} rows have a figure.",
    ]
    for table in tables:
        lines += ["", f"## {table.heading}", "", f"The paper's {table.source}.", ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells()) + " |" for row in table.rows]
    others = [group for group in groups if group.recipe.name not in {row.printed["recipe"] for row in rows}]
    if others:
        lines += [
            "",
            "## Runs of recipes the paper has no row for",
            "",
            "| recipe | metric | here | seeds |",
            "|---|---|---|---|",
        ]
        for group in others:
            changes = f" with {group.changes}" if group.changes else ""
            lines.append(
                f"| `{group.recipe.name}`{changes} | {group.metric} | {group.score()} | {len(group.folders)} |"
            )
    notes = sorted({(group.recipe.name, note) for group in groups for r in group.results for note in r["notes"]})
    if notes:
        lines += ["", "## Notes of the runs", ""] + [f"- `{name}`: {note}" for name, note in notes]
    return "\n".join(lines) + "\n"


def _thousands(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:.3g}M"
    return f"{count / 1e3:.3g}k" if count >= 1000 else str(count)
