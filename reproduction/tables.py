"""The paper's tables, from `paper.toml`, with our runs of each row."""

import re
import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lem.experiments.report import Group
from lem.readable import format_duration, format_score
from lem.training.metrics import METRICS

PAPER = Path(__file__).parent / "paper.toml"


@dataclass(frozen=True)
class Row:
    """A row of a table, the paper's unless it has no `score`, and our runs of it: None where there are none."""

    printed: dict[str, Any]
    ours: Group | None
    absent: str = "missing"

    @property
    def of_the_paper(self) -> bool:
        """Whether the paper has this row; the others are recipes of our own."""
        return "score" in self.printed

    def cells(self) -> list[str]:
        """Write model, the paper's score, units and parameters, then ours; what we lack is called missing."""
        paper, size = self.printed.get("says", "-"), "-"
        if self.of_the_paper:
            spread = f" ± {self.printed['spread']}" if "spread" in self.printed else ""
            paper = format_score(self.printed["score"]) + spread
            size = f"{self.printed['units']} / {_thousands(self.printed['parameters'])}"
        if self.ours is None:
            return [self.printed["model"], paper, size, self.absent, "", "", "", f"`{self.printed['recipe']}`"]
        scores, results = self.ours.scores, self.ours.results
        score = self.ours.score()
        if len(scores) > 2:
            score += f", median {format_score(statistics.median(scores))}"
        ours = f"{self.ours.recipe.model['hidden_size']} / {_thousands(results[0]['parameters']['cell_and_readout'])}"
        spent = format_duration(self.ours.seconds())
        return [self.printed["model"], paper, size, score, str(len(scores)), ours, spent, recipe_cell(self.ours)]


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
    """LEM's validation metric by epoch, in the authors' log."""
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
        return [row for row in self.rows if row.ours is not None and len(row.ours.runs[0].metrics) > 1]


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
        for table in read_paper()["table"]
    ]


def read_paper() -> dict[str, Any]:
    """Read `paper.toml`."""
    return tomllib.loads(PAPER.read_text(encoding="utf-8"))


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
    return not group.changes, not group.shortfall, epochs, len(group.runs)


def recipe_cell(group: Group) -> str:
    """Write a group's recipe, and what was changed in it, as Markdown."""
    return "`" + group.title("` with ") + ("" if group.changes else "`")


def _thousands(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:.3g}M"
    return f"{count / 1e3:.3g}k" if count >= 1000 else str(count)
