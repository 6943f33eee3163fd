"""LEM over a whole sequence on a GPU, on plain tensors: a forward pass, and a backward pass in chunks of time.

The forward pass keeps y, which is the output, and z. The backward pass takes one chunk of time after the other: it
computes the gates of all its steps again by large products, runs the adjoint recurrence over the chunk, and adds its
share of the weights' gradients by large products. With checkpoints it runs the chunk's forward pass again first.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from lem.kernels.triton import alternating, resident, streamed
from lem.kernels.triton.coefficients import coefficients, deltas
from lem.kernels.triton.memory import chunk_of, work_per_step
from lem.kernels.triton.paths import Path
from lem.kernels.triton.timing import Timing, seen, stretch

CHANNELS = 16
"""Inputs of up to this many channels are projected inside the resident kernel, which then reads 4 d / m times less."""

_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


class Problem(NamedTuple):
    """The inputs of `lem::sequence` on one device. `lengths` are 64-bit integers on that device.

    After `tidy`, y is as wide as z, and `elapsed` and `resets` are what each step sees of them.
    """

    u: Tensor
    weight_u: Tensor
    weight_y: Tensor
    weight_z: Tensor
    bias: Tensor | None
    y_0: Tensor
    z_0: Tensor
    mask: Tensor | None
    lengths: Tensor | None
    dt: float
    clip: tuple[float, float] | None
    reverse: bool
    elapsed: Tensor | None = None
    resets: Tensor | None = None
    y_start: Tensor | None = None
    z_start: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The steps, the rows of the batch, the input channels and the units."""
        steps, batch, m = self.u.shape
        return steps, batch, m, self.weight_z.shape[1]

    @property
    def single(self) -> bool:
        """Whether both gates are fixed."""
        return self.weight_y.shape[0] == self.weight_z.shape[1]

    @property
    def timed(self) -> bool:
        """Whether there are elapsed times or restarts."""
        return self.elapsed is not None or self.resets is not None

    @property
    def maps(self) -> int:
        """The number of affine maps."""
        return 2 if self.single else 4

    def chunks(self, length: int) -> list[tuple[int, int]]:
        """Split time into chunks of up to this many steps, in the order of the forward pass."""
        steps = self.u.shape[0]
        found = [(first, min(first + length, steps)) for first in range(0, steps, length)]
        return found[::-1] if self.reverse else found

    def tidy(self) -> "Problem":
        """Return the problem with every tensor laid out as the kernels read it."""
        p = self.squared()
        elapsed, resets = seen(p.elapsed, p.resets, p.lengths, p.reverse)
        if resets is not None:
            d, kind = p.weight_z.shape[1], p.u.dtype
            starts = (p.u.new_zeros(d) if s is None else s.to(kind) for s in (p.y_start, p.z_start))
            y_start, z_start = starts
            p = p._replace(y_start=y_start, z_start=z_start)
        rest = p._replace(u=None, elapsed=None, resets=None)._asdict()  # type: ignore[arg-type]
        whole: dict[str, Any] = {name: t.contiguous() for name, t in rest.items() if isinstance(t, Tensor)}
        return p._replace(**whole | {"u": _inner(p.u), "elapsed": elapsed, "resets": resets})

    def squared(self) -> "Problem":
        """Return the problem with y as wide as z: units that `proj_size` leaves out have no weights and stay zero."""
        d_y, d_z = self.weight_z.shape
        if d_y == d_z:
            return self
        more = d_z - d_y

        def rows(x: Tensor | None) -> Tensor | None:  # of all affine maps
            return None if x is None else torch.cat([_longer(part, more * of_y) for part, of_y in self.parts(x)])

        def wider(x: Tensor | None) -> Tensor | None:
            return None if x is None else functional.pad(x, (0, more))

        found = {"weight_u": rows(self.weight_u), "weight_y": wider(rows(self.weight_y)), "bias": rows(self.bias)}
        found |= {name: wider(getattr(self, name)) for name in ("y_0", "mask", "y_start")}
        return self._replace(weight_z=_longer(self.weight_z, more), **found)  # type: ignore[arg-type]

    def parts(self, x: Tensor) -> list[tuple[Tensor, bool]]:
        """Split the rows of weight_u, weight_y or bias into those of each map; the flag marks the maps of y."""
        d_y, d_z = self.weight_z.shape
        of_y = (False, True) if self.single else (False, True, False, True)
        sizes = [d_y if y else d_z for y in of_y]
        if sum(sizes) > len(x):  # weight_y has no rows of the last map
            sizes.pop()
        return list(zip(x.split(sizes), of_y))


def _longer(x: Tensor, more: int) -> Tensor:
    return torch.cat([x, x.new_zeros(more, *x.shape[1:])]) if more else x


def _inner(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


# --- forward -----------------------------------------------------------------------------------------------------


def forward(p: Problem, path: Path, keep: bool, segment: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs, the final y and z, and what the backward pass needs.

    That is z of every step with `keep`; with `segment` it is the float32 states before each segment of this many steps.
    """
    d_y = p.weight_z.shape[0]
    p = p.tidy()
    steps, batch, _, d = p.sizes
    out = p.u.new_empty(steps, batch, d)
    zs = p.u.new_empty(steps, batch, d) if keep and segment is None else None
    y, z = p.y_0.float(), p.z_0.float()
    segments = p.chunks(segment or steps)
    states = p.u.new_empty((2, len(segments) if segment else 0, batch, d), dtype=torch.float32)
    run = Forward(p, path)
    for index, (first, end) in enumerate(segments):
        if segment:
            states[0, index], states[1, index] = y, z
        y, z = run(first, end, y, z, out[first:end], None if zs is None else zs[first:end])
    saved = states if segment else p.u.new_empty(0) if zs is None else zs
    return out[..., :d_y].contiguous(), y[:, :d_y].to(p.u.dtype).contiguous(), z.to(p.u.dtype), saved


class Forward:
    """Forward passes over pieces of one problem; the weights are packed once."""

    def __init__(self, p: Problem, path: Path) -> None:
        self.p, self.path = p, path
        _, _, m, d = p.sizes
        self.elapsed = p.elapsed if p.elapsed is None or not p.single else stretch(p.dt, p.elapsed)[0]
        self.inside = path.kind == "resident" and path.project and m <= CHANNELS
        if path.kind != "alternating":
            self.weights = pack(p, path, transpose=False)
        if self.inside:
            self.v = _padded(p.weight_u.view(p.maps, d, m), (p.maps, path.width, CHANNELS), path.product)
            bias = p.weight_u.new_zeros(p.maps, d) if p.bias is None else p.bias.view(p.maps, d)
            self.b = _padded(bias, (p.maps, path.width), torch.float32)

    def __call__(
        self, first: int, end: int, y: Tensor, z: Tensor, out: Tensor, zs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the steps [first, end) from the float32 states; return the states after them."""
        p = self.p
        _, batch, _, d = p.sizes
        length = end - first
        if not self.inside:
            length = chunk_of(length, batch * p.maps * d * p.u.element_size())
        starts = list(range(first, end, length))
        for start in starts[::-1] if p.reverse else starts:
            stop = min(start + length, end)
            here = slice(start - first, stop - first)
            y, z = self._launch(start, stop, y, z, out[here], None if zs is None else zs[here])
        return y, z

    def _launch(
        self, start: int, stop: int, y: Tensor, z: Tensor, out: Tensor, zs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        p, path = self.p, self.path
        _, batch, m, d = p.sizes
        x = p.u[start:stop]
        if not self.inside:
            x = functional.linear(hide_padding(x, p.lengths, start), p.weight_u, p.bias)
        low, high = p.clip or (0.0, 0.0)
        elapsed, resets = (None if t is None else t[start:stop] for t in (self.elapsed, p.resets))
        fixed = p.mask, p.lengths, elapsed, resets, p.y_start, p.z_start
        if path.kind == "alternating":
            y, z = y.clone(), z.clone()
            alternating.forward(
                x, p.weight_y, p.weight_z, y, z, *fixed, out, zs, start=start, dt=p.dt, clip=p.clip, reverse=p.reverse,
            )  # fmt: skip
            return y, z
        y_n, z_n = torch.empty_like(y), torch.empty_like(z)
        grid = (triton.cdiv(batch, path.rows),)
        flags = {
            "WIDTH": path.width, "ROWS": path.rows, "SINGLE": p.single, "CLIP": p.clip is not None,
            "MASK": p.mask is not None, "LENGTHS": p.lengths is not None, "ELAPSED": elapsed is not None,
            "RESETS": resets is not None, "REVERSE": p.reverse, "KEEP": zs is not None, "PRECISION": path.precision,
            "num_warps": path.warps,
        }  # fmt: skip
        if path.kind == "resident":
            v, b = (self.v, self.b) if self.inside else (None, None)
            resident.forward[grid](
                x, v, b, self.weights, y, z, *fixed, out, zs, y_n, z_n, x.stride(0), x.stride(1), len(x),
                batch, d, m, start, p.dt, low, high, CHANNELS=CHANNELS, PROJECT=self.inside,
                PRODUCT=_TYPES[path.product], num_stages=1, **flags,
            )  # fmt: skip
        else:
            streamed.forward[grid](
                x, self.weights, scratch(p, path, 2), y, z, *fixed, out, zs, y_n, z_n, x.stride(0), x.stride(1),
                len(x), batch, d, start, p.dt, low, high, BLOCK=path.block, STAGES=path.stages, **flags,
            )  # fmt: skip
        return y_n, z_n


def hide_padding(u: Tensor, lengths: Tensor | None, start: int) -> Tensor:
    """Return u with zeros behind each row's end: what stands in the padding, NaN included, must reach nothing."""
    if lengths is None:
        return u
    outside = torch.arange(start, start + len(u), device=u.device)[:, None] >= lengths
    return u.masked_fill(outside[:, :, None], 0.0)


def scratch(p: Problem, path: Path, planes: int) -> Tensor:
    """Return the streamed kernels' scratch: some planes of (rows, width) for each program."""
    programs = triton.cdiv(p.u.shape[1], path.rows)
    return p.u.new_zeros((programs, planes, path.rows, path.width), dtype=path.product)


def _padded(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    wide = x.new_zeros(shape, dtype=dtype)
    wide[tuple(slice(size) for size in x.shape)] = x
    return wide


def pack(p: Problem, path: Path, transpose: bool) -> Tensor:
    """Return the recurrent weights (maps, width, width) in the type of the products, padded with zeros."""
    d = p.weight_z.shape[1]
    w = torch.cat([p.weight_y, p.weight_z]).view(p.maps, d, d)
    return _padded(w.mT if transpose else w, (p.maps, path.width, path.width), path.product)


# --- backward ----------------------------------------------------------------------------------------------------


def backward(
    grad_out: Tensor | None,
    grad_y: Tensor | None,
    grad_z: Tensor | None,
    p: Problem,
    out: Tensor | None,
    saved: Tensor,
    path: Path,
    segment: int | None,
    input_gradient: bool,
    elapsed_gradient: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of u, weight_u, weight_y, weight_z, bias, y_0, z_0, elapsed, y_start and z_start.

    Those not asked for are empty.
    """
    given_p, p = p, p.tidy()
    steps, batch, m, d = p.sizes
    d_y = given_p.weight_z.shape[0]
    if d_y < d:
        grad_out, grad_y, out = (
            None if t is None else functional.pad(t, (0, d - d_y)) for t in (grad_out, grad_y, out)
        )
    timing = Timing(p, batch, d, elapsed_gradient)
    # The recurrence updates these in place, so they must not be the caller's.
    gy, gz = (p.u.new_zeros((batch, d), dtype=torch.float32) for _ in "yz")
    for sum_, given in ((gy, grad_y), (gz, grad_z)):
        if given is not None:
            sum_.copy_(given)
    grad_out = None if grad_out is None else _inner(grad_out)
    grad_u = torch.empty_like(p.u, memory_format=torch.contiguous_format) if input_gradient else p.u.new_empty(0)
    sums = [torch.zeros_like(w, dtype=torch.float32) for w in (p.weight_u, p.weight_y, p.weight_z)]
    sum_b = p.u.new_zeros(0 if p.bias is None else len(p.bias), dtype=torch.float32)
    again = Forward(p, path) if segment else None
    weights = None if path.kind == "alternating" else pack(p, path, transpose=True)
    chunks = p.chunks(
        segment or chunk_of(steps, work_per_step(batch, d, p.single, p.u.element_size(), elapsed_gradient))
    )

    def learn(index: int, first: int, end: int) -> None:
        """Go back through one chunk; what it allocates is free again afterwards."""
        if again is not None:
            y, z = saved[0, index], saved[1, index]
            ys, zs = p.u.new_empty(end - first, batch, d), p.u.new_empty(end - first, batch, d)
            again(first, end, y, z, ys, zs)
            before = y.to(p.u.dtype), z.to(p.u.dtype)
        else:
            assert out is not None
            ys, zs = out[first:end], saved[first:end]
            before = _before(p, out, saved, first, end)
        grad = None if grad_out is None else grad_out[first:end]
        delta, y_in = _deltas(p, path, weights, ys, zs, before, grad, gy, gz, first, timing)
        rows = delta.view(-1, p.maps * d)
        sums[0] += rows.T @ hide_padding(p.u[first:end], p.lengths, first).reshape(-1, m)
        sums[1] += rows[:, :-d].T @ y_in.view(-1, d)
        sums[2] += rows[:, -d:].T @ zs.reshape(-1, d)
        if p.bias is not None:
            sum_b.add_(rows.sum(0, dtype=torch.float32))
        if input_gradient:
            torch.matmul(delta, p.weight_u, out=grad_u[first:end])

    for index, (first, end) in reversed(list(enumerate(chunks))):
        learn(index, first, end)
    found = [
        *_narrowed(given_p, p, sums, None if p.bias is None else sum_b),
        gy[:, :d_y],
        gz,
        *timing.gradients(given_p),
    ]
    kinds = [p.u.dtype] * 10
    kinds[6] = torch.float32 if given_p.elapsed is None else given_p.elapsed.dtype
    return grad_u, *(p.u.new_empty(0) if s is None else s.to(k).contiguous() for s, k in zip(found, kinds))


def _narrowed(given: Problem, p: Problem, sums: list[Tensor], sum_b: Tensor | None) -> list[Tensor | None]:
    """Return the weights' gradients without the rows and columns that `squared` added."""
    d_y, d = given.weight_z.shape
    if d_y == d:
        return [*sums, sum_b]

    def rows(x: Tensor) -> Tensor:
        return torch.cat([part[:d_y] if of_y else part for part, of_y in p.parts(x)])

    return [rows(sums[0]), rows(sums[1])[:, :d_y], sums[2][:d_y], None if sum_b is None else rows(sum_b)]


def _before(p: Problem, out: Tensor, zs: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Return the state before the first step that the chunk [first, end) runs."""
    place = end if p.reverse else first - 1
    if not 0 <= place < len(out):
        return p.y_0, p.z_0
    if p.lengths is None or not p.reverse:
        return out[place], zs[place]
    begun = (place < p.lengths)[:, None]
    return torch.where(begun, out[place], p.y_0), torch.where(begun, zs[place], p.z_0)


def _deltas(
    p: Problem,
    path: Path,
    weights: Tensor | None,
    ys: Tensor,
    zs: Tensor,
    before: tuple[Tensor, Tensor],
    grad: Tensor | None,
    gy: Tensor,
    gz: Tensor,
    start: int,
    timing: Timing,
) -> tuple[Tensor, Tensor]:
    """Return the pre-activations' adjoints over a chunk, and y as it entered the products; update gy, gz and timing."""
    length, batch, d = ys.shape
    u = p.u[start : start + length]
    pace, planes = timing.sum is not None, 1 if p.single else 3
    c = p.u.new_empty((planes + pace, length, batch, d, 2), dtype=torch.float32)
    elapsed, resets = timing.of(start, length)
    y_in = p.u.new_empty(length, batch, d)
    low, high = p.clip or (0.0, 0.0)
    flags = {
        "SINGLE": p.single, "MASK": p.mask is not None, "LENGTHS": p.lengths is not None, "REVERSE": p.reverse,
        "PRECISION": path.precision, "ELAPSED": elapsed is not None, "RESETS": resets is not None,
    }  # fmt: skip
    M, N = 32, 32
    K = 16 if path.product == torch.float32 else 32  # more would not fit into the registers
    coefficients[(triton.cdiv(length * batch, M), triton.cdiv(d, N))](
        u, p.weight_u, p.bias, p.weight_y, p.weight_z, ys, zs, *before, p.mask, p.lengths, elapsed, resets, p.y_start,
        p.z_start, c, y_in, u.stride(0), u.stride(1), length, batch, d, p.u.shape[2], start, p.dt, low, high, M=M, N=N,
        K=K, STAGES=2, PACE=pace, CLIP=p.clip is not None, BIAS=p.bias is not None, PRODUCT=_TYPES[path.product],
        num_warps=4, **flags,
    )  # fmt: skip
    fixed = p.mask, p.lengths, elapsed, resets, timing.starts[0], timing.starts[1]
    delta = p.u.new_empty(length, batch, p.maps * d)
    if path.kind == "alternating":
        g = p.u.new_empty((length, batch, d, 2), dtype=torch.float32) if pace else None
        alternating.adjoint(
            c, p.weight_y, p.weight_z, grad, gy, gz, *fixed, g, delta, start=start, dt=p.dt, reverse=p.reverse
        )
        if g is not None:
            timing.learn(start, g, c[-1])
        return delta, y_in
    g = p.u.new_empty((length, batch, d, 2), dtype=torch.float32)
    strides = (0, 0) if grad is None else (grad.stride(0), grad.stride(1))
    rest = grad, gy, gz, *fixed, g, gy, gz, *strides, length, batch, d, start, 1.0 - p.dt
    flags |= {
        "WIDTH": path.width, "ROWS": path.rows, "GRAD": grad is not None, "num_warps": path.warps,
    }  # fmt: skip
    grid = (triton.cdiv(batch, path.rows),)
    if path.kind == "resident":
        resident.adjoint[grid](c, weights, *rest, PRODUCT=_TYPES[path.product], num_stages=1, **flags)
    else:
        s = scratch(p, path, 4)
        streamed.adjoint[grid](c, weights, s, *rest, BLOCK=path.block, STAGES=path.stages, **flags)
    if pace:
        timing.learn(start, g, c[-1])
    count = length * batch * d
    deltas[(triton.cdiv(count, alternating.SIZE),)](c, g, delta, count, d, SINGLE=p.single, SIZE=alternating.SIZE)
    return delta, y_in
