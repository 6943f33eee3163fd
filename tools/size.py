"""Print the lines of code of every part, and hold the budgets of the style guide: `python tools/size.py`."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = {
    "library (Python)": ("src/lem", "*.py"),
    "library (C++)": ("native", "*.[ch]*"),
    "tests": ("tests", "*.py"),
    "benchmarks": ("benchmarks", "*.py"),
}
LONGEST_FILE = 400


def code_lines(path: Path) -> int:
    """Count the lines that are neither blank, nor only a comment, nor part of a docstring."""
    text = path.read_text()
    lines = text.splitlines()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return sum(1 for line in map(str.strip, lines) if line and not line.startswith(("#", "//")))


def main() -> int:
    long_files = []
    for part, (folder, pattern) in PARTS.items():
        sizes = {path: code_lines(path) for path in sorted((ROOT / folder).rglob(pattern))}
        print(f"{part:18} {sum(sizes.values()):6,} lines in {len(sizes)} files")
        long_files += [(path, size) for path, size in sizes.items() if size > LONGEST_FILE]
    for path, size in long_files:
        print(f"  over {LONGEST_FILE} lines (its first paragraph must say why): {path.relative_to(ROOT)} {size}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
