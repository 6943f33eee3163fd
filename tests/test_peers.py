"""The table of other libraries says what was seen, and what was not run."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = runpy.run_path(str(ROOT / "tools" / "peers.py"))


def test_the_page_shows_what_was_seen():
    results = json.loads((ROOT / "tools" / "peers.json").read_text())
    assert set(results) <= set(PEERS["PEERS"])
    head, mark, shown = (ROOT / "docs" / "peers.md").read_text().partition(PEERS["MARK"])
    assert head
    assert mark
    assert shown.strip() == PEERS["table"](results).strip()


def test_every_library_is_pinned_and_has_a_row():
    table = PEERS["table"]({})
    for name, (packages, fit) in PEERS["PEERS"].items():
        assert all("==" in package for package in packages)
        assert f"| {name} | not run |" in table
        assert fit.__doc__
    failed = {"skorch": {"works": False, "seen": "ValueError: x", "date": "2026-01-01"}}
    assert "| skorch | fails | ValueError: x |" in PEERS["table"](failed)
