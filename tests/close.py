"""The only tolerance table. Every comparison of numbers in the tests names a row of it."""

from typing import NamedTuple

import numpy as np
import torch


class Tolerance(NamedTuple):
    """|actual - expected| <= absolute + relative * |expected|, and why that much."""

    absolute: float
    relative: float
    reason: str


TABLE = {
    "exact": Tolerance(0.0, 0.0, "the same operations on the same numbers"),
    "float64": Tolerance(1e-12, 1e-12, "two voices in float64 over tens of steps; worst seen 4e-15"),
    "official": Tolerance(1e-14, 0.0, "the authors' form and ours differ in the order of two additions; seen 4e-16"),
    "float64 gradient": Tolerance(1e-10, 1e-10, "sums over time and batch of float64 products; seen 3e-14"),
    "float32": Tolerance(1e-5, 1e-5, "float32 rounding over tens of steps; seen 4e-7"),
    "float32 gradient": Tolerance(1e-4, 1e-4, "float32 sums over time and batch; seen 6e-6"),
    "vector ulp": Tolerance(
        3.0, 0.0, "the kernel's sigmoid and tanh, stated in native/vecmath.h; units in the last place"
    ),
    "scalar ulp": Tolerance(3.0, 0.0, "libm's exp and tanh, a sum and a division; units in the last place"),
    "stretch ulp": Tolerance(
        4.5,
        0.0,
        "1 - (1 - g)^e by the kernel's log and exp, stated in native/vecmath.h; seen 3.5 units in the last place",
    ),
    "stretch eps": Tolerance(6.0, 0.0, "1 - (1 - g)^e by torch's log1p and expm1, in units of epsilon; seen 2.5"),
    "memory forecast": Tolerance(
        4e6, 0.1, "a forecast is promised within a tenth; the interpreter itself moves by some MB"
    ),
    "tiny": Tolerance(1e-37, 0.0, "a sigmoid below the smallest normal float32 is zero"),
    "processes": Tolerance(1e-5, 1e-5, "one batch summed in another order over 50 updates; seen 3e-7 in float32"),
    "float16 products": Tolerance(3e-3, 3e-3, "operands of 11 bits over four steps; seen 3e-4"),
    "float16 products gradient": Tolerance(1e-2, 1e-2, "the same, summed over time and batch; seen 1.1e-3"),
    "float16 call": Tolerance(3e-3, 3e-3, "inputs, operands and results of 11 bits over four steps; seen 3e-4"),
    "float16 call gradient": Tolerance(1e-2, 1e-2, "the same, summed over time and batch; seen 1.2e-3"),
    "tf32x3 products": Tolerance(6e-7, 0.0, "operands of two 11-bit parts, to 5,000 steps; seen 6e-8"),
    "tf32x3 products gradient": Tolerance(3e-7, 0.0, "the same over 100 steps, relative to the norm; seen 3e-8"),
    "tf32 products": Tolerance(5e-4, 0.0, "operands of 11 bits, to 5,000 steps; seen 5e-5"),
    "tf32 products gradient": Tolerance(2e-4, 0.0, "the same over 100 steps, relative to the norm; seen 2e-5"),
    "bfloat16 products": Tolerance(5e-3, 0.0, "operands of 8 bits, to 5,000 steps; seen 5e-4"),
    "bfloat16 products gradient": Tolerance(1.2e-3, 0.0, "the same over 100 steps, relative to the norm; seen 1.2e-4"),
    "trained tf32x3 products": Tolerance(2e-6, 0.0, "trained weights are larger than fresh ones; seen 2e-7"),
    "trained tf32 products": Tolerance(4e-3, 0.0, "the same; seen 4e-4"),
    "trained bfloat16 products": Tolerance(3e-2, 0.0, "the same; seen 3e-3"),
    "bfloat16": Tolerance(5e-2, 5e-2, "8 bits of mantissa over ten steps; seen 9e-3"),
    "rounded operands": Tolerance(
        5e-2, 5e-2, "a last bit of float32 may decide how an operand is rounded, and the step after it; tens of steps"
    ),
    "rounded alike": Tolerance(
        1e-3, 0.3, "mean distance from the equation with rounded operands, in units of the distance of float32"
    ),
    "bfloat16 output": Tolerance(1e-2, 0.0, "128 units, 5,000 steps, outputs over their largest; seen 3.3e-3"),
    "bfloat16 gradient": Tolerance(3e-2, 0.0, "128 units, 5,000 steps, gradients over their largest"),
    "trained bfloat16 output": Tolerance(
        2e-2, 0.0, "128 units after training, to 5,000 steps, outputs over their largest; seen 5.9e-3"
    ),
    "trained bfloat16 gradient": Tolerance(4e-2, 0.0, "the same, gradients over their largest; seen 1.3e-2"),
    "shifted units": Tolerance(
        1e-3, 0.0, "an offset 1e11 times the signal leaves 5 of float64's 16 digits; two epochs"
    ),
    "stream": Tolerance(1e-6, 1e-6, "float32 in other chunks, batches and kernels; seen 1e-7"),
    "float64 features": Tolerance(
        1e-6, 1e-6, "float64 loops, then standardised by numbers kept in float32, as are weights; seen 6e-8"
    ),
    "features of rows": Tolerance(1e-3, 1e-4, "float32 statistics over their spread, which may be small; seen 1e-4"),
    "ridge": Tolerance(1e-8, 1e-8, "two ways to solve normal equations in float64; seen 1e-11"),
    "stream of features": Tolerance(1e-4, 0.0, "probabilities from thousands of float32 features; seen 1e-6"),
    "export": Tolerance(
        1e-5, 1e-5, "the promise of lem.timeseries.export: another runtime in float32, 1000 steps; seen 2e-7"
    ),
    "undamped export": Tolerance(
        1e-3, 1e-3, "the same for cells that keep or amplify rounding over 1000 steps; seen 1e-4"
    ),
    "convergence order": Tolerance(0.05, 0.0, "THEORY S0: first order, seen 0.998 to 1.001"),
    "construction": Tolerance(1e-9, 0.0, "weights of 1e4 undo factors of 1e-4; seen 1e-13"),
    "fitted": Tolerance(3e-4, 0.0, "the fit error of a network of width 60; seen 3e-5"),
    "three digits": Tolerance(5e-4, 0.0, "a published number given to three digits"),
    "quoted": Tolerance(0.0, 2e-3, "a figure of the design notes, given to three or four digits"),
    "halving": Tolerance(0.1, 0.0, "a first-order error at dt and dt / 2; seen 1.98 to 2.01 in 90 % of 80 draws"),
    "regime order": Tolerance(
        0.05, 0.0, "an exponent fitted over three octaves that still drifts; seen 0.03 off in 12 seeds"
    ),
    "estimate": Tolerance(0.0, 0.1, "the adviser stops within ten per cent of its target"),
    "same start": Tolerance(0.0, 0.05, "equal gates under another dt have another slope; memories seen within 0.024"),
    "features": Tolerance(2e-4, 0.0, "mel bands in float32 against float64, in decibels over their spread; seen 2e-5"),
    "ode solver": Tolerance(3e-3, 0.0, "RK45 at rtol 1e-3 against rtol 1e-10 on a relaxation oscillator; seen 1.1e-3"),
    "orthogonal": Tolerance(1e-6, 0.0, "a float64 exponential rounded to float32, 32 units, 100 updates; seen 3e-7"),
    "eigenvalues": Tolerance(1e-12, 0.0, "LAPACK's eigenvalues of a non-normal matrix; seen 1e-14"),
    "undone": Tolerance(1e-11, 0.0, "17,984 reversible steps forwards and backwards in float64; seen 7e-13"),
    "reconstructed gradient": Tolerance(1e-11, 1e-11, "states undone over 2,000 steps in float64; seen 2e-13"),
    "reconstructed float32": Tolerance(1e-4, 0.0, "states undone over 2,000 steps in float32; seen 4e-6"),
    "finite differences": Tolerance(1e-7, 1e-7, "central differences of step 1e-5; seen 2e-9"),
    "solver order": Tolerance(0.1, 0.0, "order of two solvers from two step widths; seen 0.02"),
    "normalised variance": Tolerance(1e-2, 0.0, "batch normalisation adds 1e-5 to a variance of about 0.02; seen 3e-4"),
    "initial spread": Tolerance(0.0, 0.1, "the standard deviation of a few hundred draws; seen 0.02"),
}


def assert_close(actual: object, expected: object, kind: str) -> None:
    """Fail, with the place and both values, where the two differ by more than the row `kind` allows."""
    limit = TABLE[kind]
    a, e = _array(actual), _array(expected)
    assert a.shape == e.shape, f"shapes differ: {a.shape} and {e.shape}"
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - e))
        allowed = limit.absolute + limit.relative * np.abs(e)
        wrong = ~same & ~((error <= allowed) & np.isfinite(a) & np.isfinite(e))
        excess = np.nan_to_num(np.where(wrong, error - allowed, -np.inf), nan=np.inf)
    if wrong.any():
        place = np.unravel_index(np.argmax(excess), error.shape)
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} values differ by more than {kind!r} allows ({limit.reason}): "
            f"largest at {tuple(int(i) for i in place)}: {a[place]!r}, expected {e[place]!r}"
        )


def _array(value: object) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().to(torch.float64).cpu().numpy()
    return np.asarray(value, dtype=np.float64)
