"""The FitzHugh-Nagumo data against an independent, much finer integration."""

import numpy as np
import torch

from lem.tasks.fitzhugh_nagumo import SIZES, fitzhugh_nagumo, trajectories
from tests.close import assert_close


def runge_kutta_4(v, steps_per_sample=20):
    """Classical fourth order with fixed steps, in NumPy."""

    def slope(x):
        v, w = x
        return np.array([v - v**3 / 3 - w + 0.5, 0.02 * (v + 0.7 - 0.8 * w)])

    x, h, samples = np.array([v, 0.0]), 0.4 / steps_per_sample, [v]
    for _ in range(1000):
        for _ in range(steps_per_sample):
            k1 = slope(x)
            k2 = slope(x + h / 2 * k1)
            k3 = slope(x + h / 2 * k2)
            k4 = slope(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        samples.append(x[0])
    return np.array(samples)


def test_the_first_cycle_agrees_with_a_finer_solver():
    # Later the phase error of the default tolerances shows at the steep flanks: that is the paper's protocol.
    got = trajectories(torch.tensor([0.3], dtype=torch.float64))[0]
    assert got.shape == (1001,)
    assert_close(got[:80], runge_kutta_4(0.3)[:80], "ode solver")


def test_the_target_is_the_input_one_step_later():
    task = fitzhugh_nagumo(sizes=(4, 6, 8))
    batch = task.valid.batch(0, 6)
    assert torch.equal(batch.inputs[1:], batch.targets[:-1])
    assert batch.inputs[0].abs().max() <= 1.0
    assert (len(task.train), len(task.valid), len(task.test())) == (4, 6, 8)
    assert SIZES == (128, 128, 1024)
