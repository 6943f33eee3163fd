"""`lem report` and `lem publish`: what is shown of finished runs."""

import argparse
from pathlib import Path
from typing import Any

from lem import experiment, report
from lem.checkpoint import write_atomically
from lem.page import write_page
from lem.reproduction import EXCERPT, draw_studies, draw_table, paper_tables, renew_excerpt, reproduction


def add(commands: Any) -> None:
    """Add this topic's commands."""
    reported = commands.add_parser("report", help="show finished runs as a table, a page, or beside the paper's tables")
    reported.add_argument(
        "run", type=Path, nargs="*", help="run folders, or folders of them (default runs, or results)"
    )
    reported.add_argument("--html", type=Path, metavar="DIR", help="write a static page with figures to this folder")
    reported.add_argument("--paper", action="store_true", help="write the paper's tables and figures with ours")
    reported.add_argument(
        "--output", type=Path, default=Path("docs/reproduction.md"), help="of --paper (default docs/reproduction.md)"
    )
    reported.set_defaults(command=_report)

    publish = commands.add_parser("publish", help="copy finished runs, without weights, to a results folder")
    publish.add_argument("run", type=Path, nargs="+", help="run folders")
    publish.add_argument("--results", type=Path, default=Path("results"), help="where to (default results)")
    publish.set_defaults(command=_publish)


def _report(options: argparse.Namespace) -> int:
    places = options.run or [Path("results" if options.paper else "runs")]
    for place in options.run:
        if not place.is_dir():
            raise ValueError(f"`run` must be a run folder or a folder of them; got {place}, which is none.")
    groups = report.group_runs(report.find_runs(places))
    if options.paper:
        images = options.output.parent / "images"
        images.mkdir(parents=True, exist_ok=True)
        tables = paper_tables(groups)
        figures = [draw_table(table, images / table.image) for table in tables if table.drawn]
        figures += [path for place in places for path in draw_studies(place, images)]
        write_atomically(options.output, reproduction(groups).encode())
        written = [*figures, options.output]
        readme = options.output.parent.parent / "README.md"
        if readme.is_file() and EXCERPT in (text := readme.read_text(encoding="utf-8")):
            write_atomically(readme, renew_excerpt(text, tables).encode())
            written.append(readme)
        for path in written:
            print(path)
    if options.html:
        print(write_page(groups, options.html))
    if not (options.paper or options.html):
        if not groups:
            raise ValueError(f"No finished run is in {', '.join(map(str, places))}; train one first.")
        rows = [{key: value for key, value in row.items() if key != "hardware"} for row in report.summary_rows(groups)]
        table = [list(rows[0]), *(list(row.values()) for row in rows)]
        widths = [max(len(row[column]) for row in table) for column in range(len(rows[0]))]
        for row in table:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return 0


def _publish(options: argparse.Namespace) -> int:
    for run in options.run:
        print(experiment.publish(experiment.RunFolder(run), options.results))
    return 0
