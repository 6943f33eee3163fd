"""`python -m reproduction`, behind `make reproduction`: take run folders in, write page and figures."""

import argparse
import sys
from pathlib import Path

from lem.atomic import write_atomically
from lem.experiments.report import group_runs
from lem.experiments.run_folder import RunFolder
from reproduction.figures import draw_comparisons, draw_table
from reproduction.page import renew_excerpt, write_page
from reproduction.results import RESULTS, add_run, read_results
from reproduction.tables import paper_tables

ROOT = Path(__file__).parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="RUN", help="run folders to take in first")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="the folder of results (default: reproduction/results)"
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="where docs/ and README.md are (default: the repository)"
    )
    options = parser.parse_args(arguments)
    try:
        for path in options.add:
            print(f"added {add_run(RunFolder(path), options.results).name}")
    except (ValueError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    for path in write_all(options.results, options.root):
        print(path)
    return 0


def write_all(results: Path, root: Path) -> list[Path]:
    """Write the page, its figures and the README's excerpt; return their paths."""
    runs = read_results(results)
    groups = group_runs(runs)
    tables = paper_tables(groups)
    page, readme, images = root / "docs" / "reproduction.md", root / "README.md", root / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    figures = [draw_table(table, images / table.image) for table in tables if table.drawn]
    figures += draw_comparisons(runs, images)
    write_atomically(page, write_page(groups).encode())
    write_atomically(readme, renew_excerpt(readme.read_text(encoding="utf-8"), tables).encode())
    return [*figures, page, readme]


if __name__ == "__main__":
    sys.exit(main())
