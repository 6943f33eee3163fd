"""Any width: two products by torch's own library and two fused pointwise kernels a step.

Wider layers fill the device with a single step's product, so that a launch per product costs little. The states stay in
float32; the operands of the products have the type of the call.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lem.kernels.triton.gates import UNSPECIALIZED, add_where, load_pair, stretch, tanh, time_step

SIZE = 256
"""Numbers that one program of a pointwise kernel takes."""


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_z(
    p_ptr, x_ptr, z_ptr, lengths_ptr, elapsed_ptr, resets_ptr, zstart_ptr, zin_ptr, gate_ptr, keep_ptr, t, B, d, dt,
    low, high, SINGLE: tl.constexpr, CLIP: tl.constexpr, LENGTHS: tl.constexpr, ELAPSED: tl.constexpr,
    RESETS: tl.constexpr, KEEP: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Advance z, in place, from the products p of y; write it as an operand, and the gate of y.

    elapsed and resets are those of this step and each row; with SINGLE, elapsed is the time step itself.
    """
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < tl.cast(B, tl.int64) * d
    row = at // d
    MAPS: tl.constexpr = 2 if SINGLE else 4
    x_at = x_ptr + row * (MAPS * d) + at % d
    p_at = p_ptr + row * ((MAPS - 1) * d) + at % d
    z = tl.load(z_ptr + at, mask=inside, other=0.0)
    if RESETS:
        restart = tl.load(resets_ptr + row, mask=inside, other=0) != 0
        z = tl.where(restart, tl.load(zstart_ptr + at % d, mask=inside, other=0.0).to(tl.float32), z)
    if ELAPSED:
        elapsed = tl.load(elapsed_ptr + row, mask=inside, other=1.0)
    a_z = tl.load(p_at + (MAPS - 2) * d, mask=inside, other=0.0).to(tl.float32)
    a_z += tl.load(x_at + (MAPS - 2) * d, mask=inside, other=0.0).to(tl.float32)
    if SINGLE:
        dt_z = elapsed if ELAPSED else dt
    else:
        a_1 = tl.load(p_at, mask=inside, other=0.0).to(tl.float32) + tl.load(x_at, mask=inside, other=0.0)
        a_2 = tl.load(p_at + d, mask=inside, other=0.0).to(tl.float32) + tl.load(x_at + d, mask=inside, other=0.0)
        dt_z = time_step(a_1, dt, low, high, SINGLE, CLIP)
        dt_y = time_step(a_2, dt, low, high, SINGLE, CLIP)
        if ELAPSED:
            dt_z = stretch(dt_z, elapsed)
            dt_y = stretch(dt_y, elapsed)
        tl.store(gate_ptr + at, dt_y, mask=inside)
    z_new = z + dt_z * (tanh(a_z) - z)
    if LENGTHS:
        z_new = tl.where(t < tl.load(lengths_ptr + row, mask=inside, other=0), z_new, z)
    tl.store(z_ptr + at, z_new, mask=inside)
    tl.store(zin_ptr + at, z_new.to(zin_ptr.dtype.element_ty), mask=inside)
    if KEEP:
        tl.store(keep_ptr + at, z_new.to(keep_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_y(
    p_ptr, x_ptr, y_ptr, gate_ptr, mask_ptr, lengths_ptr, elapsed_ptr, resets_ptr, ystart_ptr, yin_ptr, out_ptr, t, B,
    d, dt, SINGLE: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, ELAPSED: tl.constexpr, RESETS: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Advance y, in place, from the product p of z; write the output and y as the next step's operand.

    resets are those of the next step, in whose first product y takes part.
    """
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < tl.cast(B, tl.int64) * d
    row = at // d
    MAPS: tl.constexpr = 2 if SINGLE else 4
    y = tl.load(y_ptr + at, mask=inside, other=0.0)
    a_y = tl.load(p_ptr + at, mask=inside, other=0.0).to(tl.float32)
    a_y += tl.load(x_ptr + row * (MAPS * d) + (MAPS - 1) * d + at % d, mask=inside, other=0.0).to(tl.float32)
    if SINGLE:
        dt_y = tl.load(elapsed_ptr + row, mask=inside, other=1.0) if ELAPSED else dt
    else:
        dt_y = tl.load(gate_ptr + at, mask=inside, other=0.0)
    y_new = y + dt_y * (tanh(a_y) - y)
    shown = y_new
    if LENGTHS:
        here = t < tl.load(lengths_ptr + row, mask=inside, other=0)
        shown = tl.where(here, y_new, 0.0)
        y_new = tl.where(here, y_new, y)
    if RESETS:
        restart = tl.load(resets_ptr + row, mask=inside, other=0) != 0
        y_new = tl.where(restart, tl.load(ystart_ptr + at % d, mask=inside, other=0.0).to(tl.float32), y_new)
    tl.store(y_ptr + at, y_new, mask=inside)
    tl.store(out_ptr + at, shown.to(out_ptr.dtype.element_ty), mask=inside)
    if MASK:
        y_new = y_new * tl.load(mask_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(yin_ptr + at, y_new.to(yin_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _adjoint_y(
    c_ptr, c_last_ptr, p_ptr, gy_ptr, g_ptr, grad_ptr, mask_ptr, lengths_ptr, elapsed_ptr, resets_ptr, gystart_ptr,
    g_all_ptr, delta_ptr, plane, grad_row, t, t_last, B, d, forget,
    FINISH: tl.constexpr, BEGIN: tl.constexpr, SINGLE: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    ELAPSED: tl.constexpr, RESETS: tl.constexpr, PACE: tl.constexpr, GRAD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Finish the step that ran last, `t_last`, with the product p; begin step t: one launch for both.

    gy is updated in place; g is the adjoint of y within a step, with the gradient of the output. elapsed and resets are
    those of `t_last`. With PACE, the adjoints of y are also written to g_all, (B, d, 2).
    """
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < tl.cast(B, tl.int64) * d
    row = at // d
    MAPS: tl.constexpr = 2 if SINGLE else 4
    gy = tl.load(gy_ptr + at, mask=inside, other=0.0)
    if LENGTHS:
        length = tl.load(lengths_ptr + row, mask=inside, other=0)
    if FINISH:
        back = tl.load(p_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if MASK:
            back = back * tl.load(mask_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if SINGLE:
            keep_y = 1.0 - tl.load(elapsed_ptr + row, mask=inside, other=1.0) if ELAPSED else forget
        else:
            keep_y, _ = load_pair(c_last_ptr, 2 * plane + at, inside)
        passed = tl.load(g_ptr + at, mask=inside, other=0.0) * keep_y + back
        if LENGTHS:
            passed = tl.where(t_last < length, passed, gy)
        gy = passed
        if RESETS:
            restart = tl.load(resets_ptr + row, mask=inside, other=0) != 0
            add_where(gystart_ptr, at, gy, restart & inside)
            gy = tl.where(restart, 0.0, gy)
        tl.store(gy_ptr + at, gy, mask=inside)
    if BEGIN:
        to = delta_ptr + row * (MAPS * d) + at % d
        kind = delta_ptr.dtype.element_ty
        g = gy
        if GRAD:
            g += tl.load(grad_ptr + row * grad_row + at % d, mask=inside, other=0.0).to(tl.float32)
        if LENGTHS:
            g = tl.where(t < length, g, 0.0)
        c_y, c_2 = load_pair(c_ptr, at, inside)
        tl.store(g_ptr + at, g, mask=inside)
        if PACE:
            tl.store(g_all_ptr + 2 * at, g, mask=inside)
        tl.store(to + (MAPS - 1) * d, (g * c_y).to(kind), mask=inside)
        if not SINGLE:
            tl.store(to + d, (g * c_2).to(kind), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _adjoint_z(
    c_ptr, p_ptr, gz_ptr, lengths_ptr, elapsed_ptr, resets_ptr, gzstart_ptr, g_all_ptr, delta_ptr, plane, t, B, d,
    forget, SINGLE: tl.constexpr, LENGTHS: tl.constexpr, ELAPSED: tl.constexpr, RESETS: tl.constexpr,
    PACE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add the product p of y's adjoint to gz and pass it on, in place; write the adjoints that depend on it."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < tl.cast(B, tl.int64) * d
    row = at // d
    MAPS: tl.constexpr = 2 if SINGLE else 4
    to = delta_ptr + row * (MAPS * d) + at % d
    kind = delta_ptr.dtype.element_ty
    gz = tl.load(gz_ptr + at, mask=inside, other=0.0)
    h = gz + tl.load(p_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if LENGTHS:
        here = t < tl.load(lengths_ptr + row, mask=inside, other=0)
        h = tl.where(here, h, 0.0)
    if SINGLE:
        _, c_z = load_pair(c_ptr, at, inside)
        keep_z = 1.0 - tl.load(elapsed_ptr + row, mask=inside, other=1.0) if ELAPSED else forget
    else:
        c_z, c_1 = load_pair(c_ptr, plane + at, inside)
        _, keep_z = load_pair(c_ptr, 2 * plane + at, inside)
        tl.store(to, (h * c_1).to(kind), mask=inside)
    tl.store(to + (MAPS - 2) * d, (h * c_z).to(kind), mask=inside)
    if PACE:
        tl.store(g_all_ptr + 2 * at + 1, h, mask=inside)
    h = h * keep_z
    if LENGTHS:
        h = tl.where(here, h, gz)
    if RESETS:
        restart = tl.load(resets_ptr + row, mask=inside, other=0) != 0
        add_where(gzstart_ptr, at, h, restart & inside)
        h = tl.where(restart, 0.0, h)
    tl.store(gz_ptr + at, h, mask=inside)


def _grid(numbers: int) -> tuple[int]:
    return (triton.cdiv(numbers, SIZE),)


def _at(x: Tensor | None, step: int) -> Tensor | None:
    return None if x is None else x[step]


def forward(
    x: Tensor, weight_y: Tensor, weight_z: Tensor, y: Tensor, z: Tensor, mask: Tensor | None, lengths: Tensor | None,
    elapsed: Tensor | None, resets: Tensor | None, y_start: Tensor | None, z_start: Tensor | None, out: Tensor,
    kept: Tensor | None, *, start: int, dt: float, clip: tuple[float, float] | None, reverse: bool,
) -> None:  # fmt: skip
    """Run over x = V u + b, (T, B, maps d); advance the float32 states y and z in place, write outputs and every z."""
    steps, batch, d = out.shape
    single, (low, high) = len(weight_y) == d, clip or (0.0, 0.0)
    grid = _grid(batch * d)
    if resets is not None and y_start is not None and steps:
        first = resets[-1 if reverse else 0, :, None] != 0
        y.copy_(torch.where(first, y_start.float(), y))
    y_in = (y if mask is None else y * mask).to(x.dtype)
    z_in, gate = torch.empty_like(y_in), torch.empty_like(y)
    wy, wz = weight_y.T, weight_z.T
    for i in range(steps):
        t = steps - 1 - i if reverse else i
        then = _at(resets, t - 1 if reverse else t + 1) if i + 1 < steps else None
        paces = {"ELAPSED": elapsed is not None, "LENGTHS": lengths is not None, "SINGLE": single, "SIZE": SIZE}
        _forward_z[grid](
            y_in @ wy, x[t], z, lengths, _at(elapsed, t), _at(resets, t), z_start, z_in, gate, _at(kept, t), start + t,
            batch, d, dt, low, high, CLIP=clip is not None, RESETS=resets is not None, KEEP=kept is not None, **paces,
        )  # fmt: skip
        _forward_y[grid](
            z_in @ wz, x[t], y, gate, mask, lengths, _at(elapsed, t), then, y_start, y_in, out[t], start + t, batch, d,
            dt, MASK=mask is not None, RESETS=then is not None, **paces,
        )  # fmt: skip


def adjoint(
    c: Tensor, weight_y: Tensor, weight_z: Tensor, grad: Tensor | None, gy: Tensor, gz: Tensor, mask: Tensor | None,
    lengths: Tensor | None, elapsed: Tensor | None, resets: Tensor | None, gy_start: Tensor | None,
    gz_start: Tensor | None, g_all: Tensor | None, delta: Tensor, *, start: int, dt: float, reverse: bool,
) -> None:  # fmt: skip
    """Run the adjoint recurrence; update the float32 gy and gz in place, write the adjoints of the pre-activations.

    Adds to gy_start and gz_start, (B, d), and writes all adjoints of y and z to g_all, (T, B, d, 2), where given.
    """
    _, steps, batch, d, _ = c.shape
    grid, plane = _grid(batch * d), steps * batch * d
    g, p = torch.empty_like(gy), gy
    flags = {
        "SINGLE": len(weight_y) == d, "LENGTHS": lengths is not None, "ELAPSED": elapsed is not None,
        "RESETS": resets is not None, "PACE": g_all is not None, "SIZE": SIZE,
    }  # fmt: skip
    t = t_last = 0
    for i in range(steps + 1):
        t_last, t = t, i if reverse else steps - 1 - i
        begin = i < steps
        at = min(max(t, 0), steps - 1)
        grad_row = 0 if grad is None else grad.stride(1)
        _adjoint_y[grid](
            c[0, at], c[0, t_last], p, gy, g, _at(grad, at), mask, lengths, _at(elapsed, t_last), _at(resets, t_last),
            gy_start, _at(g_all, at), delta[at], plane, grad_row, start + t, start + t_last, batch, d, 1.0 - dt,
            FINISH=i > 0, BEGIN=begin, MASK=mask is not None, GRAD=grad is not None, **flags,
        )  # fmt: skip
        if begin:
            p = delta[t, :, -d:] @ weight_z
            _adjoint_z[grid](
                c[0, t], p, gz, lengths, _at(elapsed, t), _at(resets, t), gz_start, _at(g_all, t), delta[t], plane,
                start + t, batch, d, 1.0 - dt, **flags,
            )  # fmt: skip
            p = delta[t, :, :-d] @ weight_y
