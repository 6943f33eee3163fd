"""Write `requirements.lock`: what the package needs, with the sha256 of every file: `python tools/lock.py`.

The versions are those of constraints.txt, the files those that pip chooses here: Python 3.11 on Linux x86-64, with
torch for the CPU. To install what is locked, and nothing else:

    pip install --require-hashes -r requirements.lock --extra-index-url https://download.pytorch.org/whl/cpu
    pip install --no-deps .
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "# Written by tools/lock.py, which says how to use it. Python 3.11, Linux x86-64, torch for the CPU.\n"


def main() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), "-c", str(ROOT / "constraints.txt"), *needs], check=True)
        found = json.loads(report.read_text())["install"]
    lines = {
        f"{item['metadata']['name'].lower()}=={item['metadata']['version']}"
        f" --hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}\n"
        for item in found
    }
    (ROOT / "requirements.lock").write_text(HEAD + "".join(sorted(lines)))


if __name__ == "__main__":
    main()
