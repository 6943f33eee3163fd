"""What the adjoint recurrence needs of every step, computed for all steps of a chunk at once.

Let a be the pre-activations of equation (3), s = sigmoid(a) for a gate and h_y, h_z = tanh(a) for the targets. The
adjoints g of y and h of z at one step are multiplied by these numbers to give the adjoints of the pre-activations::

    of y:  g c_y    c_y = dt_y (1 - h_y^2)         of the gate of y:  g c_2    c_2 = (h_y - y) dt_y (1 - s_2)
    of z:  h c_z    c_z = dt_z (1 - h_z^2)         of the gate of z:  h c_1    c_1 = (h_z - z) dt_z (1 - s_1)

With elapsed times dt_y and dt_z are those of the step, h = 1 - (1 - g)^e for a gate g, and their slopes e (1 - h) /
(1 - g) times those of the gate. A clipped gate has no slope: its coefficient is zero. The states themselves pass on
1 - dt_y and 1 - dt_z. The forward pass keeps y and z only: the pre-activations are computed again, by products over all
steps in parallel.
"""

import triton
import triton.language as tl

from lem.kernels.triton.gates import UNSPECIALIZED, load_pair, log_rest, sigmoid, stretch, tanh


@triton.jit
def _gate(a, dt, low, high, CLIP: tl.constexpr):
    """Return a gate and its derivative with respect to the pre-activation."""
    s = sigmoid(a)
    g = dt * s
    slope = g * (1.0 - s)
    if CLIP:
        slope = tl.where((g >= low) & (g <= high), slope, 0.0)
        g = tl.minimum(tl.maximum(g, low), high)
    return g, slope


@triton.jit
def _paced(a, g, slope, elapsed, dt):
    """Return a gate and its derivative after an elapsed time, and the derivative with respect to that time."""
    h = stretch(g, elapsed)
    s = sigmoid(a)
    # (1 - s) / (1 - dt s) is 1 where dt is 1, at a gate of 1 too.
    share = tl.where(dt == 1.0, 1.0, 1.0 - s) / tl.where(dt == 1.0, 1.0, 1.0 - dt * s)
    slope = tl.where(slope == 0.0, 0.0, elapsed * (1.0 - h) * dt * s * share)
    by_time = tl.where(g < 1.0, (h - 1.0) * log_rest(g), 0.0)
    return h, slope, by_time


@triton.jit
def _store_two(ptr, at, first, second, inside, M: tl.constexpr, N: tl.constexpr):
    """Store pairs side by side; the last axis of the memory has length two."""
    both = tl.join(first, second)
    place = at[:, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    tl.store(ptr + place, both, mask=tl.broadcast_to(inside[:, :, None], (M, N, 2)))


@triton.jit(do_not_specialize=UNSPECIALIZED)
def coefficients(
    u_ptr, wu_ptr, b_ptr, wy_ptr, wz_ptr, out_ptr, z_ptr, y0_ptr, z0_ptr, mask_ptr, lengths_ptr, elapsed_ptr,
    resets_ptr, ystart_ptr, zstart_ptr, c_ptr, yin_ptr, u_time, u_row, T, B, d, m, start, dt, low, high,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr, CLIP: tl.constexpr,
    BIAS: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, ELAPSED: tl.constexpr, RESETS: tl.constexpr,
    PACE: tl.constexpr, REVERSE: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write c, pairs (c_y, c_2), (c_z, c_1), (1 - dt_y, 1 - dt_z) of (3, T, B, d, 2); with SINGLE only (c_y, c_z).

    Also writes y as it entered the products of each step, (T, B, d). (y0, z0) is the state before the first step. With
    PACE one more pair of planes is what the state gains from a longer elapsed time; with SINGLE, by a longer time step.
    """
    at = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    n = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    MAPS: tl.constexpr = 2 if SINGLE else 4
    wide = tl.cast(d, tl.int64)
    total = tl.cast(T, tl.int64) * B
    t = at // B
    row = at % B
    real = at < total
    if REVERSE:
        first = t == T - 1
        before = at + B
    else:
        first = t == 0
        before = at - B
    given = real
    if LENGTHS:
        length = tl.load(lengths_ptr + row, mask=real, other=0)
        given = real & (start + t < length)
        if REVERSE:  # Rows begin at their own end.
            first = first | (start + t + 1 >= length)
    y_from = tl.where(first, y0_ptr + row * d, out_ptr + before * d)
    z_from = tl.where(first, z0_ptr + row * d, z_ptr + before * d)
    if RESETS:
        restart = tl.load(resets_ptr + at, mask=real, other=0) != 0
        y_from = tl.where(restart, ystart_ptr, y_from)
        z_from = tl.where(restart, zstart_ptr, z_from)
    if ELAPSED:
        elapsed = tl.load(elapsed_ptr + at, mask=real, other=1.0)[:, None]
    a_1 = tl.zeros((M, N), tl.float32)
    a_2 = tl.zeros((M, N), tl.float32)
    a_z = tl.zeros((M, N), tl.float32)
    a_y = tl.zeros((M, N), tl.float32)
    for b in tl.range(0, m, K, num_stages=STAGES):
        k = b + tl.arange(0, K)
        u_at = u_ptr + t[:, None] * u_time + row[:, None] * u_row + k[None, :]
        u = tl.load(u_at, mask=given[:, None] & (k[None, :] < m), other=0.0).to(PRODUCT)
        v_at = wu_ptr + n[None, :] * m + k[:, None]
        v_in = (n[None, :] < d) & (k[:, None] < m)
        if not SINGLE:
            a_1 = tl.dot(u, tl.load(v_at, mask=v_in, other=0.0).to(PRODUCT), a_1, input_precision=PRECISION)
            v_2 = tl.load(v_at + wide * m, mask=v_in, other=0.0).to(PRODUCT)
            a_2 = tl.dot(u, v_2, a_2, input_precision=PRECISION)
        v_z = tl.load(v_at + (MAPS - 2) * wide * m, mask=v_in, other=0.0).to(PRODUCT)
        a_z = tl.dot(u, v_z, a_z, input_precision=PRECISION)
        v_y = tl.load(v_at + (MAPS - 1) * wide * m, mask=v_in, other=0.0).to(PRODUCT)
        a_y = tl.dot(u, v_y, a_y, input_precision=PRECISION)
    for b in tl.range(0, d, K, num_stages=STAGES):
        k = b + tl.arange(0, K)
        inner = real[:, None] & (k[None, :] < d)
        y = tl.load(y_from[:, None] + k[None, :], mask=inner, other=0.0)
        if MASK:
            y = y * tl.load(mask_ptr + row[:, None] * d + k[None, :], mask=inner, other=0.0)
        y = y.to(PRODUCT)
        w_at = wy_ptr + n[None, :] * d + k[:, None]
        w_in = (n[None, :] < d) & (k[:, None] < d)
        if not SINGLE:
            a_1 = tl.dot(y, tl.load(w_at, mask=w_in, other=0.0).to(PRODUCT), a_1, input_precision=PRECISION)
            w_2 = tl.load(w_at + wide * d, mask=w_in, other=0.0).to(PRODUCT)
            a_2 = tl.dot(y, w_2, a_2, input_precision=PRECISION)
        w_z = tl.load(w_at + (MAPS - 2) * wide * d, mask=w_in, other=0.0).to(PRODUCT)
        a_z = tl.dot(y, w_z, a_z, input_precision=PRECISION)
        z = tl.load(z_ptr + at[:, None] * d + k[None, :], mask=inner, other=0.0).to(PRODUCT)
        w_y = tl.load(wz_ptr + n[None, :] * d + k[:, None], mask=w_in, other=0.0).to(PRODUCT)
        a_y = tl.dot(z, w_y, a_y, input_precision=PRECISION)
    if BIAS:
        if not SINGLE:
            a_1 += tl.load(b_ptr + n, mask=n < d, other=0.0)[None, :]
            a_2 += tl.load(b_ptr + d + n, mask=n < d, other=0.0)[None, :]
        a_z += tl.load(b_ptr + (MAPS - 2) * d + n, mask=n < d, other=0.0)[None, :]
        a_y += tl.load(b_ptr + (MAPS - 1) * d + n, mask=n < d, other=0.0)[None, :]
    inside = real[:, None] & (n[None, :] < d)
    y = tl.load(y_from[:, None] + n[None, :], mask=inside, other=0.0).to(tl.float32)
    z = tl.load(z_from[:, None] + n[None, :], mask=inside, other=0.0).to(tl.float32)
    h_y = tanh(a_y)
    h_z = tanh(a_z)
    place = at[:, None] * d + n[None, :]
    if SINGLE:
        h = elapsed if ELAPSED else dt
        _store_two(c_ptr, place, h * (1.0 - h_y * h_y), h * (1.0 - h_z * h_z), inside, M, N)
        if PACE:
            _store_two(c_ptr, total * d + place, h_y - y, h_z - z, inside, M, N)
    else:
        dt_z, slope_z = _gate(a_1, dt, low, high, CLIP)
        dt_y, slope_y = _gate(a_2, dt, low, high, CLIP)
        if ELAPSED:
            dt_z, slope_z, time_z = _paced(a_1, dt_z, slope_z, elapsed, dt)
            dt_y, slope_y, time_y = _paced(a_2, dt_y, slope_y, elapsed, dt)
        plane = total * d
        if PACE:
            _store_two(c_ptr, 3 * plane + place, (h_y - y) * time_y, (h_z - z) * time_z, inside, M, N)
        _store_two(c_ptr, place, dt_y * (1.0 - h_y * h_y), (h_y - y) * slope_y, inside, M, N)
        _store_two(c_ptr, plane + place, dt_z * (1.0 - h_z * h_z), (h_z - z) * slope_z, inside, M, N)
        _store_two(c_ptr, 2 * plane + place, 1.0 - dt_y, 1.0 - dt_z, inside, M, N)
    if MASK:
        y = y * tl.load(mask_ptr + row[:, None] * d + n[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(yin_ptr + place, y.to(yin_ptr.dtype.element_ty), mask=inside)


@triton.jit
def deltas(
    c_ptr, g_ptr, delta_ptr, count, d, SINGLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the adjoints of the pre-activations, (T, B, maps d) in the order of the weights' rows. count is T B d."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    MAPS: tl.constexpr = 2 if SINGLE else 4
    to = delta_ptr + (at // d) * (MAPS * d) + at % d
    kind = delta_ptr.dtype.element_ty
    g, h = load_pair(g_ptr, at, inside)
    if SINGLE:
        c_y, c_z = load_pair(c_ptr, at, inside)
    else:
        c_y, c_2 = load_pair(c_ptr, at, inside)
        c_z, c_1 = load_pair(c_ptr, count + at, inside)
        tl.store(to, (h * c_1).to(kind), mask=inside)
        tl.store(to + d, (g * c_2).to(kind), mask=inside)
    tl.store(to + (MAPS - 2) * d, (h * c_z).to(kind), mask=inside)
    tl.store(to + (MAPS - 1) * d, (g * c_y).to(kind), mask=inside)
