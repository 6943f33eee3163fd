"""The table of other libraries says what was seen, and what was not run."""

import json
import runpy
from pathlib import Path

import torch

from lem import LEM
from tests.close import assert_close

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


def test_the_subclass_for_pytorch_forecasting_accepts_rows_of_length_zero():
    layer = PEERS["adapter"]("pytorch_forecasting_layer.py", "Layer")(3, 5, 2, batch_first=True)
    plain = LEM(3, 5, 2, batch_first=True)
    plain.load_state_dict(layer.state_dict())
    x, initial = torch.randn(3, 7, 3), tuple(torch.randn(2, 3, 5) for _ in range(2))
    outputs, (y, z) = layer(x, initial, torch.tensor([7, 0, 4]), enforce_sorted=False)
    for row, length in ((0, 7), (2, 4)):
        alone, (y_n, z_n) = plain(x[row, :length], tuple(s[:, row] for s in initial))
        assert_close(outputs[row, :length], alone, "float32")
        assert_close(y[:, row], y_n, "float32")
        assert_close(z[:, row], z_n, "float32")
    for field, first in zip((y, z), initial):
        assert torch.equal(field[:, 1], first[:, 1])
    for field in layer(x, lengths=torch.tensor([7, 0, 4]))[1]:
        assert not field[:, 1].any()
    assert layer.repeat_interleave((y, z), 2)[0].shape == (2, 6, 5)
    assert_close(layer(x, initial)[0], plain(x, initial)[0], "exact")
