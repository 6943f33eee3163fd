"""The FitzHugh-Nagumo system: predict a two-time-scale oscillator one step ahead.

    v' = v - v^3 / 3 - w + I        fast
    w' = tau (v + a - b w)          slow

with tau = 0.02, I = 0.5, a = 0.7, b = 0.8, v(0) uniform in [-1, 1], w(0) = 0. The input is v at 1000 equally spaced
times of [0, 400], the target v one step later. 128 training, 128 validation and 1024 test sequences.
"""

import numpy as np
import torch

from lem.extras import extra
from lem.tasks.base import Task
from lem.tasks.cache import prepared
from lem.training.data import ArraySplit, mix

TAU, CURRENT, A, B = 0.02, 0.5, 0.7, 0.8
END, SAMPLES = 400.0, 1001
SIZES = (128, 128, 1024)


def trajectories(v_0: torch.Tensor) -> torch.Tensor:
    """Solve the system from each start value by SciPy's RK45 at its default tolerances: (count, 1001)."""
    solve_ivp = extra("scipy.integrate", "The fitzhugh_nagumo task needs").solve_ivp

    def slope(_: float, state: np.ndarray) -> list[float]:
        v, w = state.tolist()
        return [v - v**3 / 3.0 - w + CURRENT, TAU * (v + A - B * w)]

    times = np.linspace(0.0, END, SAMPLES)
    solutions = [solve_ivp(slope, (0.0, END), [v, 0.0], t_eval=times).y[0] for v in v_0.tolist()]
    return torch.from_numpy(np.stack(solutions)).float()


def fitzhugh_nagumo(data_seed: int = 1234, sizes: tuple[int, int, int] = SIZES) -> Task:
    """Make the FitzHugh-Nagumo task.

    Args:
        data_seed: the seed of the start values.
        sizes: the number of training, validation and test sequences.
    """

    if min(sizes) < 1:
        raise ValueError(f"`sizes` of fitzhugh_nagumo must be positive numbers of sequences; got {sizes}.")

    def split(which: int) -> ArraySplit:
        generator = torch.Generator().manual_seed(mix(data_seed, which))
        v_0 = 2.0 * torch.rand(sizes[which], dtype=torch.float64, generator=generator) - 1.0
        key = {
            "version": 1,
            "seed": data_seed,
            "split": which,
            "system": [TAU, CURRENT, A, B, END, SAMPLES, sizes[which]],
        }
        v = prepared("fitzhugh-nagumo", key, lambda: {"v": trajectories(v_0)})["v"][:, :, None]
        return ArraySplit(v[:, :-1], v[:, 1:], every_step=True)

    return Task(
        split(0), split(1), lambda: split(2), input_size=1, output_size=1, loss="mse", metric="rmse", every_step=True
    )
