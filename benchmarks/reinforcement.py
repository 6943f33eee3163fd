"""The recurrent update of sb3-contrib and TorchRL with their LSTM and with LEM: `python benchmarks/reinforcement.py`.

Needs `pip install sb3-contrib==2.9.2 torchrl==0.14.1`. Forward and backward through one batch of rows whose episodes
begin at random steps, as after a rollout. sb3-contrib runs its LSTM one step at a time; TorchRL cuts the rows into one
row per episode. LEM reads the batch in one call with `resets`. The state at the end is no part of it. All are timed in
turn, by the processor time of one thread, and the answers of LEM are compared with episodes that run alone first.
"""

import argparse
import json
import os
import runpy
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.modules import LSTMModule, set_recurrent_mode

from lem import LEM
from lem.atomic import write_atomically
from lem.environment import environment

EXAMPLES = Path(__file__).parent.parent / "examples"
LEMPolicy = runpy.run_path(str(EXAMPLES / "adapters" / "t_maze.py"))["LEMPolicy"]
LEMModule = runpy.run_path(str(EXAMPLES / "adapters" / "torchrl_module.py"))["LEMModule"]
SIZES = [(16, 128, 16, 64, 20), (16, 128, 16, 256, 20), (16, 128, 16, 256, 100), (64, 32, 16, 64, 20)]
"""Rows, steps, inputs, units, and the mean number of steps of an episode."""
KEYS = {"in_keys": ["x", "h", "c"], "out_keys": ["y", ("next", "h"), ("next", "c")]}


def updates(rows: int, steps: int, inputs: int, units: int, episode: int) -> dict[str, Callable[[], Tensor]]:
    """Return, for each library and layer, a function that runs the layer over one batch: (rows, steps, units)."""
    torch.manual_seed(0)
    u, begins = torch.randn(rows, steps, inputs), torch.rand(rows, steps) < 1 / episode
    begins[:, 0] = True
    lstm, lem = nn.LSTM(inputs, units, batch_first=True), LEM(inputs, units, batch_first=True)
    time_major = [nn.LSTM(inputs, units), LEM(inputs, units)]
    for one, other in zip(time_major, (lstm, lem)):
        one.load_state_dict(other.state_dict())
    zeros = torch.zeros(1, rows, units)

    def sb3(policy: type, layer: nn.Module) -> Tensor:
        given = u.flatten(0, 1), (zeros, zeros), begins.flatten().float(), layer
        return policy._process_sequence(*given)[0].unflatten(0, (rows, steps))

    state = torch.zeros(rows, steps, 1, units)
    batch = TensorDict({"x": u, "is_init": begins[..., None], "h": state, "c": state}, [rows, steps])

    def torchrl(module: nn.Module) -> Tensor:
        with set_recurrent_mode(True):
            return module(batch.clone(False))["y"]

    found = {
        "sb3-contrib, LSTM": partial(sb3, RecurrentActorCriticPolicy, time_major[0]),
        "sb3-contrib, LEM": partial(sb3, LEMPolicy, time_major[1]),
        "TorchRL, LSTM": partial(torchrl, LSTMModule(lstm=lstm, **KEYS)),
        "TorchRL, LEM": partial(torchrl, LEMModule(lem, **KEYS)),
    }
    verify(found, lem, u, begins)
    return found


def verify(found: dict[str, Callable[[], Tensor]], lem: LEM, u: Tensor, begins: Tensor) -> None:
    expected = torch.empty(*u.shape[:2], lem.hidden_size)
    with torch.no_grad():
        for row in range(len(u)):
            for piece in torch.arange(u.shape[1]).tensor_split(begins[row].nonzero()[1:, 0].tolist()):
                expected[row, piece] = lem(u[row, piece])[0]
        for name, run in found.items():
            wanted = expected if name.endswith("LEM") else found["sb3-contrib, LSTM"]()
            torch.testing.assert_close(run(), wanted, rtol=1e-4, atol=1e-5)


def clock(run: Callable[[], Tensor]) -> float:
    start = time.process_time()
    run().square().mean().backward()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    versions = {name: version(name) for name in ("sb3-contrib", "torchrl", "torch")}
    print(f"{versions}, 1 thread, {options.repeats} repeats; milliseconds of processor time, medians (quartiles)")
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    for size in SIZES:
        runs = updates(*size)
        times = [[clock(run) for run in runs.values()] for _ in range(options.repeats + 1)][1:]
        row: dict[str, Any] = dict(zip(("rows", "steps", "inputs", "units", "episode"), size))
        for name, column in zip(runs, zip(*times)):
            low, middle, high = (1e3 * q for q in statistics.quantiles(column, n=4))
            row[name] = [low, middle, high]
            print(f"{' x '.join(map(str, size)):24} {name:18} {middle:8.1f} ({low:.1f} to {high:.1f})", flush=True)
        rows.append(row)
    if options.out:
        result = {
            "environment": environment(),
            "load": [load, os.getloadavg()[0]],
            "versions": versions,
            "repeats": options.repeats,
            "rows": rows,
        }
        write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
