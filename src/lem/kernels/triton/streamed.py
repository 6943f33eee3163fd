"""Kernels for widths whose weights do not fit on the chip: they are read from the cache in blocks at every step.

As in `resident`, one program runs all steps of its rows and the states stay in registers. A product needs all units of
a state as its left operand, block by block; the state is therefore written to a scratch of (planes, ROWS, WIDTH) that
belongs to this program alone. Two barriers a step order the scratch: each plane is written after a barrier that follows
its last reading, and read after a barrier that follows its writing.

Up to EARLY units, what a step needs of its input is loaded before the products, which hide the wait. Wider tiles have
no free registers for that and load it at its use.
"""

import triton
import triton.language as tl

from lem.kernels.triton.gates import (
    UNSPECIALIZED,
    add_where,
    load_maps,
    load_pair,
    load_row,
    load_weight,
    store_pair,
    stretch,
    tanh,
    time_step,
)

EARLY = tl.constexpr(128)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def forward(
    x_ptr, w_ptr, s_ptr, y0_ptr, z0_ptr, mask_ptr, lengths_ptr, elapsed_ptr, resets_ptr, ystart_ptr, zstart_ptr,
    out_ptr, z_ptr, yn_ptr, zn_ptr,
    x_time, x_row, T, B, d, start, dt, low, high,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr,
    CLIP: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, ELAPSED: tl.constexpr, RESETS: tl.constexpr,
    REVERSE: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Run T steps from (y0, z0), as `resident.forward` does. x is V u + b; w and s have the type of the products."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, WIDTH)
    k = tl.arange(0, BLOCK)
    MAPS: tl.constexpr = 2 if SINGLE else 4
    inside = (rows[:, None] < B) & (n[None, :] < d)
    at = rows[:, None].to(tl.int64) * d + n[None, :]
    y = tl.load(y0_ptr + at, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(z0_ptr + at, mask=inside, other=0.0).to(tl.float32)
    keep_at = mask_ptr + at if MASK else None
    if LENGTHS:
        length = tl.load(lengths_ptr + rows, mask=rows < B, other=0)
    # The scratch: plane 0 holds y as it enters the products, plane 1 holds z.
    own = s_ptr + tl.program_id(0).to(tl.int64) * (2 * ROWS * WIDTH) + tl.arange(0, ROWS)[:, None] * WIDTH
    s_y = own + n[None, :]
    s_z = own + ROWS * WIDTH + n[None, :]
    in_y = own + k[None, :]
    in_z = own + ROWS * WIDTH + k[None, :]
    kind = s_ptr.dtype.element_ty
    if RESETS:
        restart = load_row(resets_ptr, T - 1 if REVERSE else 0, B, rows, rows < B, 0) != 0
        y = tl.where(restart, tl.load(ystart_ptr + n, mask=n < d, other=0.0).to(tl.float32)[None, :], y)
        z = tl.where(restart, tl.load(zstart_ptr + n, mask=n < d, other=0.0).to(tl.float32)[None, :], z)
    y_in = y
    if MASK:
        y_in = y * tl.load(keep_at, mask=inside, other=0.0).to(tl.float32)
    tl.store(s_y, y_in.to(kind))
    tl.debug_barrier()
    x_at = rows[:, None].to(tl.int64) * x_row + n[None, :]
    x_step = tl.cast(x_time, tl.int64)
    step = tl.cast(B, tl.int64) * d
    if REVERSE:
        x_at += (T - 1) * x_step
        at += (T - 1) * step
        x_step = -x_step
        step = -step
    for i in range(T):
        t = (T - 1 - i) if REVERSE else i
        if WIDTH <= EARLY:
            x_1, x_2, x_z, x_y = load_maps(x_ptr, x_at, d, inside, SINGLE)
        a_1 = tl.zeros((ROWS, WIDTH), tl.float32)
        a_2 = tl.zeros((ROWS, WIDTH), tl.float32)
        a_z = tl.zeros((ROWS, WIDTH), tl.float32)
        for b in tl.range(0, d, BLOCK, num_stages=STAGES):
            part = tl.load(in_y + b)
            if not SINGLE:
                a_1 = tl.dot(part, load_weight(w_ptr, 0, n, b + k, WIDTH), a_1, input_precision=PRECISION)
                a_2 = tl.dot(part, load_weight(w_ptr, 1, n, b + k, WIDTH), a_2, input_precision=PRECISION)
            a_z = tl.dot(part, load_weight(w_ptr, MAPS - 2, n, b + k, WIDTH), a_z, input_precision=PRECISION)
        if WIDTH > EARLY:
            x_1, x_2, x_z, x_y = load_maps(x_ptr, x_at, d, inside, SINGLE)
        dt_z = time_step(a_1 + x_1, dt, low, high, SINGLE, CLIP)
        dt_y = time_step(a_2 + x_2, dt, low, high, SINGLE, CLIP)
        if ELAPSED:
            elapsed = load_row(elapsed_ptr, t, B, rows, rows < B, 1.0)
            if SINGLE:
                dt_z = elapsed
                dt_y = elapsed
            else:
                dt_z = stretch(dt_z, elapsed)
                dt_y = stretch(dt_y, elapsed)
        z_new = z + dt_z * (tanh(a_z + x_z) - z)
        tl.store(s_z, z_new.to(kind))
        tl.debug_barrier()
        a_y = tl.zeros((ROWS, WIDTH), tl.float32)
        for b in tl.range(0, d, BLOCK, num_stages=STAGES):
            part = tl.load(in_z + b)
            a_y = tl.dot(part, load_weight(w_ptr, MAPS - 1, n, b + k, WIDTH), a_y, input_precision=PRECISION)
        y_new = y + dt_y * (tanh(a_y + x_y) - y)
        shown = y_new
        if LENGTHS:
            here = (start + t < length)[:, None]
            shown = tl.where(here, y_new, 0.0)
            y_new = tl.where(here, y_new, y)
            z_new = tl.where(here, z_new, z)
        y = y_new
        z = z_new
        if RESETS:  # before the step that follows; after the last one nothing restarts
            after = t - 1 if REVERSE else t + 1
            restart = load_row(resets_ptr, after, B, rows, (rows < B) & (i + 1 < T), 0) != 0
            y = tl.where(restart, tl.load(ystart_ptr + n, mask=n < d, other=0.0).to(tl.float32)[None, :], y)
            z = tl.where(restart, tl.load(zstart_ptr + n, mask=n < d, other=0.0).to(tl.float32)[None, :], z)
        y_in = y
        if MASK:
            y_in = y * tl.load(keep_at, mask=inside, other=0.0).to(tl.float32)
        tl.store(s_y, y_in.to(kind))
        tl.debug_barrier()
        tl.store(out_ptr + at, shown.to(out_ptr.dtype.element_ty), mask=inside)
        if KEEP:
            tl.store(z_ptr + at, z_new.to(z_ptr.dtype.element_ty), mask=inside)
        x_at += x_step
        at += step
    at = rows[:, None].to(tl.int64) * d + n[None, :]
    tl.store(yn_ptr + at, y, mask=inside)
    tl.store(zn_ptr + at, z, mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def adjoint(
    c_ptr, w_ptr, s_ptr, grad_ptr, gy_ptr, gz_ptr, mask_ptr, lengths_ptr, elapsed_ptr, resets_ptr, gystart_ptr,
    gzstart_ptr, g_ptr, gy0_ptr, gz0_ptr,
    grad_time, grad_row, T, B, d, start, forget,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr,
    MASK: tl.constexpr, LENGTHS: tl.constexpr, ELAPSED: tl.constexpr, RESETS: tl.constexpr, REVERSE: tl.constexpr,
    GRAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Run the adjoint recurrence, as `resident.adjoint` does. w and s have the type of the products."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, WIDTH)
    k = tl.arange(0, BLOCK)
    MAPS: tl.constexpr = 2 if SINGLE else 4
    inside = (rows[:, None] < B) & (n[None, :] < d)
    # Offsets within the program's rows take 32 bits; one 64-bit number says where its rows begin.
    local = tl.arange(0, ROWS)[:, None] * d + n[None, :]
    origin = tl.program_id(0).to(tl.int64) * ROWS * d
    gy = tl.load(gy_ptr + origin + local, mask=inside, other=0.0).to(tl.float32)
    gz = tl.load(gz_ptr + origin + local, mask=inside, other=0.0).to(tl.float32)
    keep_at = mask_ptr + origin if MASK else None
    if LENGTHS:
        length = tl.load(lengths_ptr + rows, mask=rows < B, other=0)
    # The scratch: planes 0 and 1 hold what passes y's two maps, planes 2 and 3 what passes z's.
    PLANE: tl.constexpr = ROWS * WIDTH
    own = s_ptr + tl.program_id(0).to(tl.int64) * (4 * PLANE) + tl.arange(0, ROWS)[:, None] * WIDTH
    whole = own + n[None, :]
    parts = own + k[None, :]
    kind = s_ptr.dtype.element_ty
    grad_local = tl.arange(0, ROWS)[:, None].to(tl.int64) * grad_row + n[None, :]
    grad_at = tl.program_id(0).to(tl.int64) * ROWS * grad_row
    grad_step = tl.cast(grad_time, tl.int64)
    at = origin
    step = tl.cast(B, tl.int64) * d
    plane = step * T
    if not REVERSE:
        at += (T - 1) * step
        grad_at += (T - 1) * grad_step
        step = -step
        grad_step = -grad_step
    for i in range(T):
        t = i if REVERSE else (T - 1 - i)
        # Outside a row's length its coefficients are masked, so that the adjoints pass unchanged.
        here = (start + t < length)[:, None] if LENGTHS else inside
        if GRAD:
            gy += tl.load(grad_ptr + grad_at + grad_local, mask=inside & here, other=0.0).to(tl.float32)
        if SINGLE:
            c_y, c_z = load_pair(c_ptr + 2 * at, local, inside & here)
        else:
            c_y, c_2 = load_pair(c_ptr + 2 * at, local, inside & here)
            if WIDTH <= EARLY:
                c_z, c_1 = load_pair(c_ptr + 2 * (plane + at), local, inside & here)
                keep_y, keep_z = load_pair(c_ptr + 2 * (2 * plane + at), local, inside & here)
            tl.store(whole + PLANE, (gy * c_2).to(kind))
        tl.store(whole, (gy * c_y).to(kind))
        tl.debug_barrier()
        back = tl.zeros((ROWS, WIDTH), tl.float32)
        for b in tl.range(0, d, BLOCK, num_stages=STAGES):
            w = load_weight(w_ptr, MAPS - 1, n, b + k, WIDTH)
            gz = tl.dot(tl.load(parts + b), w, gz, input_precision=PRECISION)
            if not SINGLE:
                w = load_weight(w_ptr, 1, n, b + k, WIDTH)
                back = tl.dot(tl.load(parts + PLANE + b), w, back, input_precision=PRECISION)
        if not SINGLE and WIDTH > EARLY:
            c_z, c_1 = load_pair(c_ptr + 2 * (plane + at), local, inside & here)
        tl.store(whole + 2 * PLANE, (gz * c_z).to(kind))
        if not SINGLE:
            tl.store(whole + 3 * PLANE, (gz * c_1).to(kind))
        tl.debug_barrier()
        for b in tl.range(0, d, BLOCK, num_stages=STAGES):
            w = load_weight(w_ptr, MAPS - 2, n, b + k, WIDTH)
            back = tl.dot(tl.load(parts + 2 * PLANE + b), w, back, input_precision=PRECISION)
            if not SINGLE:
                w = load_weight(w_ptr, 0, n, b + k, WIDTH)
                back = tl.dot(tl.load(parts + 3 * PLANE + b), w, back, input_precision=PRECISION)
        if LENGTHS:
            store_pair(g_ptr + 2 * at, local, tl.where(here, gy, 0.0), tl.where(here, gz, 0.0), inside)
        else:
            store_pair(g_ptr + 2 * at, local, gy, gz, inside)
        if MASK:
            back = back * tl.load(keep_at + local, mask=inside, other=0.0).to(tl.float32)
        if SINGLE:
            keep_y = 1.0 - load_row(elapsed_ptr, t, B, rows, rows < B, 1.0) if ELAPSED else forget
            keep_z = keep_y
        elif WIDTH > EARLY:
            keep_y, keep_z = load_pair(c_ptr + 2 * (2 * plane + at), local, inside & here)
        if LENGTHS:
            gy = gy * tl.where(here, keep_y, 1.0) + back
            gz = gz * tl.where(here, keep_z, 1.0)
        else:
            gy = gy * keep_y + back
            gz = gz * keep_z
        if RESETS:
            restart = load_row(resets_ptr, t, B, rows, rows < B, 0) != 0
            add_where(gystart_ptr + origin, local, gy, restart & inside)
            add_where(gzstart_ptr + origin, local, gz, restart & inside)
            tl.debug_barrier()
            gy = tl.where(restart, 0.0, gy)
            gz = tl.where(restart, 0.0, gz)
        at += step
        grad_at += grad_step
    tl.store(gy0_ptr + origin + local, gy, mask=inside)
    tl.store(gz0_ptr + origin + local, gz, mask=inside)
