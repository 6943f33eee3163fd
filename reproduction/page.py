"""The page `docs/reproduction.md` and the README's excerpt of it."""

import statistics

from lem.experiments.report import Group, run_notes
from lem.readable import format_duration, format_score
from lem.training.metrics import METRICS
from reproduction.tables import COLUMNS, Row, Table, paper_tables, read_paper, recipe_cell


def write_page(groups: list[Group]) -> str:
    """Write all tables as one Markdown page, which expects its figures in the folder images/ next to it."""
    tables = paper_tables(groups)
    rows = [row for table in tables for row in table.rows if row.of_the_paper]
    lines = [
        "# Reproduction",
        "",
        "The rows of the paper's tables and our runs of them, written by `make reproduction` from the runs in",
        "`reproduction/results/`: do not edit. A score is the test metric at the best validation epoch, the mean over",
        "the seeds with its standard deviation, and the median of three or more; a run shorter than its recipe says so",
        "in the cell; what was not run is printed as missing. A row without the paper's score is a recipe of our own.",
        "Our parameters count one bias a map and the readout. The time is that of one run on the machine named in its",
        f"line of the results. {sum(row.ours is not None for row in rows)} of {len(rows)} rows have a score.",
        "",
        "## In short",
        "",
        *overview(tables),
        "",
        "Of several recipes of LEM, and of the other models, the one with the best validation score is shown.",
        "",
        read_paper()["summary"].strip(),
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
            lines.append(f"| {recipe_cell(group)} | {group.metric} | {group.score()} | {len(group.runs)} |")
    notes: dict[str, set[str]] = {}
    for group in groups:
        for note in (note for result in group.results for note in run_notes(result)):
            notes.setdefault(note, set()).add(f"`{group.recipe.name}`")
    if notes:
        lines += ["", "## Notes of the runs", ""]
        lines += [f"- {', '.join(sorted(names))}: {note}" for note, names in sorted(notes.items())]
    return "\n".join(lines) + "\n"


LEM_CELLS = ("lem", "lem-chrono", "lem-single-scale", "lem-clipped")


def overview(tables: list[Table]) -> list[str]:
    """Return a table with one line a task: the paper's LEM, ours, and the best of the other models here."""
    lines = [
        "| task | the paper's LEM | LEM here | best other model here | epochs | seeds | time a run |",
        "|---|---|---|---|---|---|---|",
    ]
    for table in tables:
        ran = [(row, row.ours) for row in table.rows if row.ours is not None]
        lem = [(row, ours) for row, ours in ran if ours.recipe.model["cell"] in LEM_CELLS]
        if not lem:
            continue
        papers = [row for row in table.rows if row.of_the_paper and row.printed["model"] == "LEM"]
        paper = format_score(papers[0].printed["score"]) if papers else "-"
        _, ours = best(table, lem)
        other = "missing"
        if others := [pair for pair in ran if pair not in lem]:
            row, group = best(table, others)
            other = f"{row.printed['model']}, {group.score()}"
        epochs, spent = ours.results[0]["epochs"], format_duration(ours.seconds())
        lines.append(f"| {table.title} | {paper} | {ours.score()} | {other} | {epochs} | {len(ours.runs)} | {spent} |")
    return lines


def best(table: Table, rows: list[tuple[Row, Group]]) -> tuple[Row, Group]:
    """Return the row with the best validation score: the test scores choose nothing."""
    sign = 1 if METRICS[table.metric].higher_is_better else -1
    return max(rows, key=lambda pair: sign * statistics.fmean(result["valid"] for result in pair[1].results))


EXCERPT = "| task | model | paper | here | seeds |"


def renew_excerpt(readme: str, tables: list[Table]) -> str:
    """Return `readme` with the table under EXCERPT written again from the rows marked `readme = true`."""
    before, heading, rest = readme.partition(EXCERPT + "\n")
    if not heading:
        raise ValueError(f"`readme` of renew_excerpt must hold a table with the heading {EXCERPT!r}; got none.")
    lines = [EXCERPT, "|---|---|---|---|---|"]
    for table in tables:
        for row in table.rows:
            if not row.printed.get("readme") or row.ours is None:
                continue
            model, paper, _, _, seeds, *_ = row.cells()
            metric = table.metric if table.metric in ("accuracy", "perplexity") else table.metric.upper()
            lines.append(f"| {table.title}, {metric} | {model} | {paper} | {row.ours.score()} | {seeds} |")
    return before + "\n".join(lines) + "".join(rest.partition("\n\n")[1:])
