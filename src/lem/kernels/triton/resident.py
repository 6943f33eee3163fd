"""Kernels whose weights stay on the chip: one program runs all steps of 16 rows of the batch.

The states stay in registers and the weights in shared memory for the whole sequence. Nothing passes between threads
through global memory, and no two programs share anything.
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


@triton.jit(do_not_specialize=UNSPECIALIZED)
def forward(
    x_ptr, v_ptr, b_ptr, w_ptr, y0_ptr, z0_ptr, mask_ptr, lengths_ptr, elapsed_ptr, resets_ptr, ystart_ptr,
    zstart_ptr, out_ptr, z_ptr, yn_ptr, zn_ptr,
    x_time, x_row, T, B, d, m, start, dt, low, high,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, PROJECT: tl.constexpr, SINGLE: tl.constexpr,
    CLIP: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, ELAPSED: tl.constexpr, RESETS: tl.constexpr,
    REVERSE: tl.constexpr, KEEP: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Run T steps from (y0, z0); write the outputs, the final state, and with KEEP every z.

    With PROJECT, x is the input u (T, B, m), v and b are V and b of all maps, padded to (maps, WIDTH, CHANNELS) and
    (maps, WIDTH); otherwise x is V u + b, (T, B, maps d). Time step 0 is step `start` of the whole sequence.
    elapsed and resets, (T, B), are what each step sees of them; with SINGLE, elapsed is the time step itself.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, WIDTH)
    MAPS: tl.constexpr = 2 if SINGLE else 4
    inside = (rows[:, None] < B) & (n[None, :] < d)
    at = rows[:, None].to(tl.int64) * d + n[None, :]
    y = tl.load(y0_ptr + at, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(z0_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if MASK:
        keep = tl.load(mask_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if LENGTHS:
        length = tl.load(lengths_ptr + rows, mask=rows < B, other=0)
    if RESETS:
        y_start = tl.load(ystart_ptr + n, mask=n < d, other=0.0).to(tl.float32)[None, :]
        z_start = tl.load(zstart_ptr + n, mask=n < d, other=0.0).to(tl.float32)[None, :]
    if not SINGLE:
        w_1 = load_weight(w_ptr, 0, n, n, WIDTH)
        w_2 = load_weight(w_ptr, 1, n, n, WIDTH)
    w_z = load_weight(w_ptr, MAPS - 2, n, n, WIDTH)
    w_y = load_weight(w_ptr, MAPS - 1, n, n, WIDTH)
    if PROJECT:
        k = tl.arange(0, CHANNELS)
        v_at = v_ptr + n[None, :] * CHANNELS + k[:, None]
        PLANE: tl.constexpr = WIDTH * CHANNELS
        if not SINGLE:
            v_1 = tl.load(v_at)
            v_2 = tl.load(v_at + PLANE)
            b_1 = tl.load(b_ptr + n)[None, :]
            b_2 = tl.load(b_ptr + WIDTH + n)[None, :]
        v_z = tl.load(v_at + (MAPS - 2) * PLANE)
        v_y = tl.load(v_at + (MAPS - 1) * PLANE)
        b_z = tl.load(b_ptr + (MAPS - 2) * WIDTH + n)[None, :]
        b_y = tl.load(b_ptr + (MAPS - 1) * WIDTH + n)[None, :]
        x_at = rows[:, None].to(tl.int64) * x_row + k[None, :]
        x_inside = (rows[:, None] < B) & (k[None, :] < m)
    else:
        x_at = rows[:, None].to(tl.int64) * x_row + n[None, :]
    x_step = tl.cast(x_time, tl.int64)
    step = tl.cast(B, tl.int64) * d
    if REVERSE:
        x_at += (T - 1) * x_step
        at += (T - 1) * step
        x_step = -x_step
        step = -step
    # The input of the next step is loaded during this one; the last step loads its own again.
    if PROJECT:
        u = tl.load(x_ptr + x_at, mask=x_inside, other=0.0)
    else:
        x_1, x_2, x_z, x_y = load_maps(x_ptr, x_at, d, inside, SINGLE)
    for i in range(T):
        t = (T - 1 - i) if REVERSE else i
        x_at += tl.where(i + 1 < T, x_step, 0)
        if LENGTHS:
            here = (start + t < length)[:, None]
        if PROJECT:
            u_in = u
            if LENGTHS:
                u_in = tl.where(here, u, 0.0)
            u_in = u_in.to(PRODUCT)
            u = tl.load(x_ptr + x_at, mask=x_inside, other=0.0)
            a_z = tl.dot(u_in, v_z, input_precision=PRECISION) + b_z
            a_y = tl.dot(u_in, v_y, input_precision=PRECISION) + b_y
            if not SINGLE:
                a_1 = tl.dot(u_in, v_1, input_precision=PRECISION) + b_1
                a_2 = tl.dot(u_in, v_2, input_precision=PRECISION) + b_2
        else:
            a_1 = x_1
            a_2 = x_2
            a_z = x_z
            a_y = x_y
            x_1, x_2, x_z, x_y = load_maps(x_ptr, x_at, d, inside, SINGLE)
        if RESETS:
            restart = load_row(resets_ptr, t, B, rows, rows < B, 0) != 0
            y = tl.where(restart, y_start, y)
            z = tl.where(restart, z_start, z)
        y_in = y
        if MASK:
            y_in = y * keep
        y_in = y_in.to(PRODUCT)
        a_z = tl.dot(y_in, w_z, a_z, input_precision=PRECISION)
        if ELAPSED:
            elapsed = load_row(elapsed_ptr, t, B, rows, rows < B, 1.0)
        if SINGLE:
            dt_z = elapsed if ELAPSED else dt
            dt_y = dt_z
        else:
            dt_z = time_step(tl.dot(y_in, w_1, a_1, input_precision=PRECISION), dt, low, high, SINGLE, CLIP)
            dt_y = time_step(tl.dot(y_in, w_2, a_2, input_precision=PRECISION), dt, low, high, SINGLE, CLIP)
            if ELAPSED:
                dt_z = stretch(dt_z, elapsed)
                dt_y = stretch(dt_y, elapsed)
        z_new = z + dt_z * (tanh(a_z) - z)
        a_y = tl.dot(z_new.to(PRODUCT), w_y, a_y, input_precision=PRECISION)
        y_new = y + dt_y * (tanh(a_y) - y)
        shown = y_new
        if LENGTHS:
            shown = tl.where(here, y_new, 0.0)
            y_new = tl.where(here, y_new, y)
            z_new = tl.where(here, z_new, z)
        y = y_new
        z = z_new
        tl.store(out_ptr + at, shown.to(out_ptr.dtype.element_ty), mask=inside)
        if KEEP:
            tl.store(z_ptr + at, z.to(z_ptr.dtype.element_ty), mask=inside)
        at += step
    at = rows[:, None].to(tl.int64) * d + n[None, :]
    tl.store(yn_ptr + at, y, mask=inside)
    tl.store(zn_ptr + at, z, mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def adjoint(
    c_ptr, w_ptr, grad_ptr, gy_ptr, gz_ptr, mask_ptr, lengths_ptr, elapsed_ptr, resets_ptr, gystart_ptr, gzstart_ptr,
    g_ptr, gy0_ptr, gz0_ptr,
    grad_time, grad_row, T, B, d, start, forget,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, SINGLE: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    ELAPSED: tl.constexpr, RESETS: tl.constexpr, REVERSE: tl.constexpr, GRAD: tl.constexpr, PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Run the adjoint recurrence against the direction of the forward pass, from the gradients (gy, gz).

    c holds the coefficients of every step in pairs (see `coefficients`), grad the gradient of the outputs, w the
    transposed weights. Writes g (T, B, d, 2), the adjoints of y and z at every step, and those of the initial state;
    adds those of the states that a restart puts in place to gystart and gzstart, (B, d).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, WIDTH)
    MAPS: tl.constexpr = 2 if SINGLE else 4
    inside = (rows[:, None] < B) & (n[None, :] < d)
    at = rows[:, None].to(tl.int64) * d + n[None, :]
    own = at
    gy = tl.load(gy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gz = tl.load(gz_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if MASK:
        keep = tl.load(mask_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if LENGTHS:
        length = tl.load(lengths_ptr + rows, mask=rows < B, other=0)
    if not SINGLE:
        w_1 = load_weight(w_ptr, 0, n, n, WIDTH)
        w_2 = load_weight(w_ptr, 1, n, n, WIDTH)
    w_z = load_weight(w_ptr, MAPS - 2, n, n, WIDTH)
    w_y = load_weight(w_ptr, MAPS - 1, n, n, WIDTH)
    grad_at = rows[:, None].to(tl.int64) * grad_row + n[None, :]
    grad_step = tl.cast(grad_time, tl.int64)
    step = tl.cast(B, tl.int64) * d
    plane = step * T
    if not REVERSE:
        at += (T - 1) * step
        grad_at += (T - 1) * grad_step
        step = -step
        grad_step = -grad_step
    for i in range(T):
        t = i if REVERSE else (T - 1 - i)
        g = gy
        h = gz
        if GRAD:
            g += tl.load(grad_ptr + grad_at, mask=inside, other=0.0).to(tl.float32)
        if LENGTHS:
            here = (start + t < length)[:, None]
            g = tl.where(here, g, 0.0)
            h = tl.where(here, h, 0.0)
        if SINGLE:
            c_y, c_z = load_pair(c_ptr, at, inside)
            h = tl.dot((g * c_y).to(PRODUCT), w_y, h, input_precision=PRECISION)
            back = tl.dot((h * c_z).to(PRODUCT), w_z, input_precision=PRECISION)
            keep_y = 1.0 - load_row(elapsed_ptr, t, B, rows, rows < B, 1.0) if ELAPSED else forget
            keep_z = keep_y
        else:
            c_y, c_2 = load_pair(c_ptr, at, inside)
            c_z, c_1 = load_pair(c_ptr, plane + at, inside)
            keep_y, keep_z = load_pair(c_ptr, 2 * plane + at, inside)
            h = tl.dot((g * c_y).to(PRODUCT), w_y, h, input_precision=PRECISION)
            back = tl.dot((g * c_2).to(PRODUCT), w_2, input_precision=PRECISION)
            back = tl.dot((h * c_z).to(PRODUCT), w_z, back, input_precision=PRECISION)
            back = tl.dot((h * c_1).to(PRODUCT), w_1, back, input_precision=PRECISION)
        store_pair(g_ptr, at, g, h, inside)
        if MASK:
            back = back * keep
        g = g * keep_y + back
        h = h * keep_z
        if LENGTHS:
            g = tl.where(here, g, gy)
            h = tl.where(here, h, gz)
        if RESETS:
            restart = load_row(resets_ptr, t, B, rows, rows < B, 0) != 0
            add_where(gystart_ptr, own, g, restart & inside)
            add_where(gzstart_ptr, own, h, restart & inside)
            tl.debug_barrier()
            g = tl.where(restart, 0.0, g)
            h = tl.where(restart, 0.0, h)
        gy = g
        gz = h
        at += step
        grad_at += grad_step
    tl.store(gy0_ptr + own, gy, mask=inside)
    tl.store(gz0_ptr + own, gz, mask=inside)
