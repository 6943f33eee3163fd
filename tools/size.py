"""Print the lines of code of every part; fail above the budgets of decision 7: `python tools/size.py`."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = {
    "library (Python)": ("src/lem", "*.py", 21_400),
    "library (C++)": ("native", "*.[ch]*", 3_700),
    "tests": ("tests", "*.py", 17_500),
    "benchmarks": ("benchmarks", "*.py", 2_500),
    "reproduction": ("reproduction", "*.py", 400),
}
"""Folder, pattern and the most lines of code. To raise a budget, say why in docs/decisions/0007-size.md."""
LONGEST_FILE = 400
"""A longer file of the library fails, unless its first paragraph contains the word "long" and says why."""


def code_lines(path: Path) -> int:
    """Count the lines that are neither blank, nor only a comment, nor part of a docstring."""
    text = path.read_text()
    lines = text.splitlines()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return sum(1 for line in map(str.strip, lines) if line and not line.startswith(("#", "//")))


def explains_itself(path: Path) -> bool:
    """Return whether the first paragraph of a file says why it is long."""
    return "long" in path.read_text().partition("\n\n")[0].split()


def main() -> int:
    failures = []
    for part, (folder, pattern, budget) in PARTS.items():
        sizes = {path: code_lines(path) for path in sorted((ROOT / folder).rglob(pattern))}
        total = sum(sizes.values())
        print(f"{part:18} {total:6,} lines in {len(sizes)} files; the budget is {budget:,}")
        if total > budget:
            failures.append(f"{part} has {total:,} lines; its budget is {budget:,}")
        if part.startswith("library"):
            long = [(path, size) for path, size in sizes.items() if size > LONGEST_FILE and not explains_itself(path)]
            failures += [f"{path.relative_to(ROOT)} has {size} lines; at most {LONGEST_FILE}" for path, size in long]
    for failure in failures:
        print(f"  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
