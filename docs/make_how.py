"""Draw how LEM works, with a fresh layer and two waves as input: `python docs/make_how.py`."""

import math
from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lem import LEM
from lem.analysis.bounds import parts

ROOT = Path(__file__).parent.parent
STEPS, UNITS = 360, 16


def run() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the input (time,), and z and dt_z after each step (time, units)."""
    torch.manual_seed(1)
    time = torch.arange(STEPS)
    u = (torch.sin(2 * torch.pi * time / 10) + 2.0 * torch.sin(2 * torch.pi * time / 180))[:, None]
    cell = LEM(1, UNITS, t_max=200.0).cells[0]
    with torch.no_grad():  # the chrono rule draws the scales evenly; here they are spread by equal factors
        cell.bias[:UNITS] = -torch.log(torch.logspace(math.log10(2.0), math.log10(200.0), UNITS) - 1.0)
    state, states, gates = cell.init_state(1), [], []
    with torch.no_grad():
        for value in u:
            gates.append(parts(cell, value[None], state[0]).dt_z[0])
            state = cell(value[None], state)
            states.append(state[1][0])
    return u[:, 0].numpy(), torch.stack(states).numpy(), torch.stack(gates).numpy()


def draw(path: Path) -> None:
    u, z, dt = run()
    constants = 1 / np.exp(np.log(dt).mean(0))
    order = np.argsort(-constants)
    between = [unit for unit in order if 15 < constants[unit] < 60]
    slow = max(between, key=lambda unit: np.ptp(z[:, unit]))
    fast = max(order[-3:], key=lambda unit: np.ptp(np.diff(z[:, unit])))
    chart, axes = plt.subplots(
        4, 1, figsize=(7.6, 7.4), sharex=True, layout="constrained", height_ratios=(1, 1, 1.4, 1)
    )
    axes[0].plot(u, color="0.3", lw=1)
    axes[0].set(title="Input: a fast wave on a slow one", ylabel="u")
    for unit, colour in ((fast, "#ff7f0e"), (slow, "#1f77b4")):
        label = f"{'slow' if unit == slow else 'fast'} unit, about {constants[unit]:.0f} steps"
        axes[1].plot(z[:, unit], color=colour, lw=1.4, label=label)
        axes[3].plot(dt[:, unit], color=colour, lw=1.4)
    axes[1].set(title="State of two units: the slow one smooths the fast wave away", ylabel="z", ylim=(-0.7, 1.0))
    axes[1].legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    image = axes[2].imshow(
        (z / np.abs(z).max(0))[:, order].T, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest"
    )
    axes[2].set(title="State of all units, the slowest at the top", ylabel="unit")
    chart.colorbar(image, ax=axes[2], label="z / max |z|", shrink=0.9)
    axes[3].set(title="Time steps of the two units: small holds, large reacts", ylabel="dt_z", xlabel="step")
    axes[3].set_yscale("log")
    chart.savefig(path, dpi=130)
    plt.close(chart)


if __name__ == "__main__":
    draw(ROOT / "docs" / "images" / "how.png")
