"""`lem report`: finished runs as a table or a page."""

import argparse
from pathlib import Path
from typing import Any

from lem.experiments import report
from lem.experiments.page import write_page
from lem.experiments.record import find_runs, with_test_score


def add(commands: Any) -> None:
    """Add this topic's commands."""
    reported = commands.add_parser("report")
    reported.add_argument("run", type=Path, nargs="*", help="run folders, or folders of them (default runs)")
    reported.add_argument("--html", type=Path, metavar="DIR", help="write a static page with figures to this folder")
    reported.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    places = options.run or [Path("runs")]
    for place in options.run:
        if not place.is_dir():
            raise ValueError(f"RUN must be a run folder or a folder of them; {place} is not a directory.")
    groups = report.group_runs(with_test_score(find_runs(places)))
    if not groups:
        raise ValueError(f"No finished run is in {', '.join(map(str, places))}; train one first.")
    if options.html:
        print(write_page(groups, options.html))
        return 0
    rows = [{key: value for key, value in row.items() if key != "hardware"} for row in report.summary_rows(groups)]
    table = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(rows[0]))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return 0
