"""Calls with more elements than 32 bits count, in the interpreter: sparse files stand in for tensors that large."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install '.[gpu]'")

import triton.language as tl

from lem.kernels.triton import coefficients, lem, resident, streamed
from tests.close import assert_close
from tests.kernels.triton.problems import Case, path_of, twin

HUGE = 1 << 30
"""Rows of the batch: the second step of one unit already begins behind 2^30 elements, the third behind 2^31."""
STEPS, ROWS = 3, 16


class Sparse:
    """Numbers in a file of holes. The kernels see a tensor of its first few, and reach the others by their offsets."""

    def __init__(self, folder, name, count, dtype=np.float32):
        self.numbers = np.memmap(folder / name, dtype=dtype, mode="w+", shape=(count,))
        self.tensor = torch.from_numpy(self.numbers[:16])

    def at(self, places):
        return torch.from_numpy(np.array(self.numbers[places]))


@pytest.mark.parametrize("timed", [False, True])
def test_outputs_and_states_behind_32_bits(tmp_path, timed):
    """Only the first program runs: its 16 rows, of a batch of 2^30."""
    case = Case((STEPS, ROWS, 1, 1), "reverse elapsed resets" if timed else "reverse")
    p, path = case.problem(), path_of("resident", 1)
    expected, y_n, _, z = lem.forward(p, path, True)
    places = (np.arange(STEPS)[:, None] * HUGE + np.arange(ROWS)).reshape(-1)
    u = Sparse(tmp_path, "u", STEPS * HUGE)
    u.numbers[places] = p.u.reshape(-1).numpy()
    times = (None,) * 4
    if timed:
        seen = p.tidy()
        elapsed, resets = Sparse(tmp_path, "e", STEPS * HUGE), Sparse(tmp_path, "r", STEPS * HUGE, np.int8)
        elapsed.numbers[places], resets.numbers[places] = seen.elapsed.reshape(-1), seen.resets.reshape(-1)
        times = elapsed.tensor, resets.tensor, seen.y_start, seen.z_start
    for kernels in (resident, streamed):
        out, zs = (Sparse(tmp_path, f"{name} of {kernels.__name__}", STEPS * HUGE) for name in ("out", "z"))
        run_forward(kernels, p, path, u, out, zs, y := torch.empty(ROWS, 1), times)
        assert_close(out.at(places), expected.reshape(-1), "float32")
        assert_close(zs.at(places), z.reshape(-1), "float32")
        assert_close(y, y_n, "float32")


def run_forward(kernels, p, path, u, out, zs, y_n, times):
    timed = times[0] is not None
    run = lem.Forward(p, path)
    flags = {
        "WIDTH": 16, "ROWS": ROWS, "SINGLE": False, "CLIP": False, "MASK": False, "LENGTHS": False,
        "ELAPSED": timed, "RESETS": timed, "REVERSE": True, "KEEP": True, "PRECISION": "ieee",
    }  # fmt: skip
    sizes = STEPS, HUGE, 1
    rest = 0, p.dt, 0.0, 0.0
    if kernels is resident:
        resident.forward[(1,)](
            u.tensor, run.v, run.b, run.weights, p.y_0, p.z_0, None, None, *times, out.tensor, zs.tensor,
            y_n, torch.empty_like(y_n), HUGE, 1, *sizes, 1, *rest, CHANNELS=16, PROJECT=True, PRODUCT=tl.float32,
            **flags,
        )  # fmt: skip
        return
    x = torch.nn.functional.linear(p.u, p.weight_u, p.bias)
    streamed.forward[(1,)](
        x, run.weights, lem.scratch(p, path, 2), p.y_0, p.z_0, None, None, *times, out.tensor, zs.tensor, y_n,
        torch.empty_like(y_n), x.stride(0), x.stride(1), *sizes, *rest, BLOCK=16, STAGES=1, **flags,
    )  # fmt: skip


@pytest.mark.parametrize("kernels", [resident, streamed])
def test_coefficients_and_adjoints_behind_32_bits(kernels, tmp_path):
    small = Case((STEPS, ROWS, 1, 1))
    p, path = small.problem(), path_of(kernels.__name__.rpartition(".")[2], 1)
    c, g = torch.rand(3, STEPS, ROWS, 1, 2), torch.empty(STEPS, ROWS, 1, 2)
    weights = lem.pack(p, path, transpose=True)
    scratch = () if kernels is resident else (lem.scratch(p, path, 4),)
    grad = small.weights[0]
    flags = {
        "WIDTH": 16, "ROWS": ROWS, "SINGLE": False, "MASK": False, "LENGTHS": False, "ELAPSED": False, "RESETS": False,
        "REVERSE": False, "GRAD": True, "PRECISION": "ieee",
        **({"PRODUCT": tl.float32} if kernels is resident else {"BLOCK": 16, "STAGES": 1}),
    }  # fmt: skip

    def run(c, g, batch):
        gy, gz = (w.clone() for w in small.weights[1:])
        strides = grad.stride(0), grad.stride(1)
        sizes = *strides, STEPS, batch, 1, 0, 0.1
        kernels.adjoint[(1,)](c, weights, *scratch, grad, gy, gz, *[None] * 6, g, gy, gz, *sizes, **flags)
        return gy, gz

    expected = run(c, g, ROWS)
    places = (np.arange(3 * STEPS)[:, None] * HUGE + np.arange(ROWS)).reshape(-1)
    wide_c = Sparse(tmp_path, "c", 3 * STEPS * HUGE, np.int64)
    wide_g = Sparse(tmp_path, "g", STEPS * HUGE, np.int64)
    wide_c.numbers[places] = c.view(torch.int64).reshape(-1).numpy()
    found = run(wide_c.tensor.view(torch.float32), wide_g.tensor.view(torch.float32), HUGE)
    for a, b in zip(found, expected):
        assert_close(a, b, "exact")
    assert_close(wide_g.at(places[: STEPS * ROWS]).view(torch.float32), g.reshape(-1), "exact")


def test_gates_computed_again_behind_32_bits(tmp_path):
    """Programs that start at row 2^31 of all steps' rows, behind as many that are left out."""
    first = (1 << 31) // 32
    shifted = twin(coefficients, tmp_path, "tl.program_id(0).to", f"(tl.program_id(0) + {first}).to")
    small = Case((STEPS, ROWS, 1, 1))
    p, steps = small.problem(), (1 << 31) // ROWS + STEPS
    ys, zs = torch.rand(STEPS, ROWS, 1), torch.rand(STEPS, ROWS, 1)
    base = (1 << 31) - ROWS  # The step before the first that is looked at.
    places = np.arange(base, base + STEPS * ROWS)
    wide = {name: Sparse(tmp_path, name, base + STEPS * ROWS) for name in ("u", "y", "z", "y_in")}
    for name, values in (("u", p.u), ("y", ys), ("z", zs)):
        wide[name].numbers[places] = values.reshape(-1).numpy()
    total = steps * ROWS
    c = Sparse(tmp_path, "c", 3 * total, np.int64)
    flags = {
        "M": 32, "N": 32, "K": 16, "STAGES": 1, "SINGLE": False, "CLIP": False, "BIAS": True, "MASK": False,
        "LENGTHS": False, "ELAPSED": False, "RESETS": False, "PACE": False, "REVERSE": False, "PRODUCT": tl.float32,
        "PRECISION": "ieee",
    }  # fmt: skip

    def run(kernel, u, y, z, c, y_in, length):
        kernel[(1, 1)](
            u, p.weight_u, p.bias, p.weight_y, p.weight_z, y, z, p.y_0, p.z_0, *[None] * 6, c, y_in, ROWS, 1,
            length, ROWS, 1, 1, 0, p.dt, 0.0, 0.0, **flags,
        )  # fmt: skip

    handles = [wide[name].tensor for name in ("u", "y", "z")]
    run(shifted.coefficients, *handles, c.tensor.view(torch.float32), wide["y_in"].tensor, steps)
    expected, y_in = torch.zeros(3, STEPS, ROWS, 1, 2), torch.zeros(STEPS, ROWS, 1)
    run(coefficients.coefficients, p.u, ys, zs, expected, y_in, STEPS)
    last = np.arange(32)  # The two steps that follow a real one; the small call began with the initial state.
    found = [c.at((1 << 31) + plane * total + last[:16]).view(torch.float32).view(ROWS, 2) for plane in range(3)]
    assert_close(torch.stack(found), expected[:, 1, :, 0], "exact")
    assert_close(wide["y_in"].at((1 << 31) + last[:16]), y_in[1, :, 0], "exact")
