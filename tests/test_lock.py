"""The locked requirements are the versions that are tested, and each has a hash."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINE = re.compile(r"([a-z0-9_.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def name_of(text):
    return re.sub(r"[-_.]+", "-", text).lower()


def test_the_lock_has_what_the_package_needs_at_the_tested_versions():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), lines
    locked = {name_of(match[1]): match[2].partition("+")[0] for match in matches}
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    tested = {name_of(name): version for name, version in tested.items()}
    assert locked == {name: tested.get(name, locked[name]) for name in locked}
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {name_of(re.match(r"[\w.-]+", need)[0]) for need in needs} <= set(locked)
