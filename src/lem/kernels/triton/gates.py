"""Device functions that the kernels share: gate functions and the time steps of equation (3)."""

import triton
import triton.language as tl

UNSPECIALIZED = ("T", "B", "m", "start", "t", "t_last", "plane")
"""Arguments whose values do not trigger a new compilation: a new length or batch must not cost seconds."""


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent; small arguments keep their relative accuracy."""
    # The exponential of a negative number cannot overflow. Near zero 1 - e cancels, so there the series is taken.
    e = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - e) / (1.0 + e)
    large = tl.where(x < 0, -large, large)
    s = x * x
    small = x * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 - s * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.2, small, large)


@triton.jit
def time_step(a, dt, low, high, SINGLE: tl.constexpr, CLIP: tl.constexpr):
    """Return dt * sigmoid(a), clipped to [low, high] with CLIP; with SINGLE the constant dt."""
    if SINGLE:
        g = tl.zeros_like(a) + dt
    else:
        g = dt * sigmoid(a)
        if CLIP:
            g = tl.minimum(tl.maximum(g, low), high)
    return g


@triton.jit
def log_rest(g):
    """Return log(1 - g) for a gate below 1; small gates keep their relative accuracy."""
    # The series of -2 atanh(s). Hardware logarithms are accurate only away from 1, and there is no log1p.
    s = g / (2.0 - g)
    q = s * s
    small = 1.0 / 3.0 + q * (0.2 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * (1.0 / 13.0 + q / 15.0)))))
    return tl.where(g < 0.5, -2.0 * s * (1.0 + q * small), tl.log(tl.maximum(1.0 - g, 1e-30)))


@triton.jit
def stretch(g, elapsed):
    """Return 1 - (1 - g)^elapsed for gates up to 1; exact for gates of 1 and elapsed times of 1."""
    x = elapsed * log_rest(g)
    v = tl.maximum(x, -0.5)  # the series of exp(v) - 1
    rest = 1.0 + v * (0.2 + v * (1.0 / 30.0 + v * (1.0 / 210.0 + v * (1.0 / 1680.0 + v / 15120.0))))
    small = -v * (1.0 + v * (0.5 + v * (1.0 / 6.0 + v * (1.0 / 24.0 * rest))))
    h = tl.where(x > -0.5, small, 1.0 - tl.exp(x))
    return tl.where((elapsed == 1.0) | (g >= 1.0), g, h)


@triton.jit
def load_row(ptr, step, B, rows, inside, other):
    """Load what a step has for each row, from (T, B), as a column."""
    return tl.load(ptr + tl.cast(step, tl.int64) * B + rows, mask=inside, other=other)[:, None]


@triton.jit
def add_where(ptr, at, x, inside):
    """Add numbers to float32 ones that no other program touches; memory is touched only where `inside`."""
    tl.store(ptr + at, tl.load(ptr + at, mask=inside, other=0.0) + x, mask=inside)


@triton.jit
def load_weight(ptr, plane, n, k, WIDTH: tl.constexpr):
    """Load the (input, output) operand of one affine map from packed weights (maps, WIDTH, WIDTH), inputs innermost."""
    # With the inputs innermost, 32-bit operands are read from shared memory by matrix loads, which cannot transpose.
    return tl.load(ptr + plane * WIDTH * WIDTH + n[None, :] * WIDTH + k[:, None])


@triton.jit
def load_maps(ptr, at, d, inside, SINGLE: tl.constexpr):
    """Load the rows of all affine maps, in the order of the weights: gate of z, gate of y, z, y.

    With SINGLE there are no gates; the last two arguments are then unused.
    """
    MAPS: tl.constexpr = 2 if SINGLE else 4
    for_z = tl.load(ptr + at + (MAPS - 2) * d, mask=inside, other=0.0).to(tl.float32)
    for_y = tl.load(ptr + at + (MAPS - 1) * d, mask=inside, other=0.0).to(tl.float32)
    if SINGLE:
        gate_z = for_z
        gate_y = for_y
    else:
        gate_z = tl.load(ptr + at, mask=inside, other=0.0).to(tl.float32)
        gate_y = tl.load(ptr + at + d, mask=inside, other=0.0).to(tl.float32)
    return gate_z, gate_y, for_z, for_y


@triton.jit
def load_pair(ptr, at, inside):
    """Load two neighbouring float32 numbers as one 64-bit element; one change of layout instead of two."""
    both = tl.load(ptr.to(tl.pointer_type(tl.int64)) + at, mask=inside, other=0)
    first = both.to(tl.int32).to(tl.float32, bitcast=True)
    second = (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return first, second


@triton.jit
def store_pair(ptr, at, first, second, inside):
    """Store two float32 numbers side by side as one 64-bit element."""
    low = first.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    high = second.to(tl.int32, bitcast=True).to(tl.int64) << 32
    tl.store(ptr.to(tl.pointer_type(tl.int64)) + at, low | high, mask=inside)
