"""The fused CPU kernel: find it, say whether it can serve, and run it as the torch operator `lem::sequence`.

This is the only Python file that knows the C++ library (`native/`, C interface in `native/lem.h`), hence long. The
library is optional: without it everything runs on the loop, and `refusal` says why. One call runs LEM over a whole
sequence and one its adjoint; both follow `torch.get_num_threads()`. `LEM_TARGET` overrides the instruction set.

The operator has a first derivative only. Second derivatives, forward mode and torch.func transforms need the loop;
`backend="auto"` takes it where it can know, and a second derivative through the kernel raises an error that says so.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lem.shapes import Float, Int

KEEP = {"nothing": 0, "store": 1, "recompute": 2, "bounded": 3}
"""What the forward pass leaves for the backward pass; numbered as in native/lem.h."""

_TEAM = (
    0  # threads that share the hidden units of one group of rows; 0: the library chooses. For tests and measurements.
)
_ITEM = {torch.float32: 4, torch.float64: 8}
_STATUS = {
    1: "a size, a flag or a length is out of range",
    2: "a buffer is too small",
    3: "what the forward pass kept belongs to another problem or another target",
}


class _Problem(ctypes.Structure):
    """The struct `lem_problem` of native/lem.h, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("struct_bytes", "item_bytes", "steps", "batch", "inputs", "hidden")),
        *((name, ctypes.c_int64) for name in ("gated", "clipped", "reverse", "threads", "team", "keep", "segment")),
        *((name, ctypes.c_double) for name in ("dt", "clip_low", "clip_high")),
        ("u", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("u_time", "u_row")),
        *((name, ctypes.c_void_p) for name in ("weight_u", "weight_y", "weight_z", "bias", "y_0", "z_0", "mask")),
        *((name, ctypes.c_void_p) for name in ("lengths", "out", "y_n", "z_n", "saved")),
        ("saved_bytes", ctypes.c_int64),
        ("work", ctypes.c_void_p),
        ("work_bytes", ctypes.c_int64),
        ("grad_out", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("grad_out_time", "grad_out_row")),
        *((name, ctypes.c_void_p) for name in ("grad_y_n", "grad_z_n", "grad_u", "grad_weight_u", "grad_weight_y")),
        *((name, ctypes.c_void_p) for name in ("grad_weight_z", "grad_bias", "grad_y_0", "grad_z_0")),
    ]


# --- the library --------------------------------------------------------------------------------------------


def _load() -> tuple[ctypes.CDLL | None, str]:
    path = Path(__file__).with_name("_native.so")
    if not path.exists():
        return None, "the kernel is not built; install again with a C++ compiler (GCC or Clang) present"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"the kernel cannot be loaded: {error}"
    pointer, number = ctypes.POINTER(_Problem), ctypes.c_int64
    for name, result, arguments in (
        ("lem_saved_bytes", number, [pointer]),
        ("lem_work_bytes", number, [pointer, number]),
        ("lem_forward", number, [pointer]),
        ("lem_backward", number, [pointer]),
        ("lem_packed_bytes", number, [pointer]),
        ("lem_pack", number, [pointer, ctypes.c_void_p]),
        ("lem_step", number, [pointer, ctypes.c_void_p]),
        ("lem_target_name", ctypes.c_char_p, [number]),
        ("lem_target_supported", number, [number]),
        ("lem_target_vector_bytes", number, [number]),
        ("lem_target_choose", number, [number]),
        ("lem_target_chosen", number, []),
        ("lem_peak", ctypes.c_double, [number, number]),
        ("lem_function", number, [number, number, ctypes.c_void_p, ctypes.c_void_p, number]),
        ("lem_openmp", number, []),
        ("lem_pages", ctypes.c_void_p, [number]),
        ("lem_pages_free", None, [ctypes.c_void_p, number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library, ""


_LIBRARY, _MISSING = _load()


def _library() -> ctypes.CDLL:
    if _LIBRARY is None:
        raise RuntimeError(f"`backend` must be 'loop' here: {_MISSING}.")
    return _LIBRARY


def _all_targets() -> list[str]:
    names: list[str] = []
    while _LIBRARY is not None and (name := _LIBRARY.lem_target_name(len(names))) is not None:
        names.append(name.decode())
    return names


def targets() -> list[str]:
    """Return the targets of the library that this processor can run, the widest last; empty where it is not built."""
    return [name for i, name in enumerate(_all_targets()) if _library().lem_target_supported(i)]


def target() -> str:
    """Return the target that runs."""
    return _all_targets()[_library().lem_target_chosen()]


def set_target(name: str) -> None:
    """Choose the target for all following calls."""
    if name not in targets():
        raise ValueError(f"`LEM_TARGET` must be one of {', '.join(targets())} on this processor; got {name!r}.")
    _library().lem_target_choose(_all_targets().index(name))


@contextmanager
def using_target(name: str) -> Iterator[None]:
    """Run the body with another target; a backward pass must run with the target of its forward pass."""
    before = target()
    set_target(name)
    try:
        yield
    finally:
        set_target(before)


if _LIBRARY is not None and os.environ.get("LEM_TARGET"):
    set_target(os.environ["LEM_TARGET"])

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def threads() -> int:
    """Return how many threads a call may use: torch's number, and one in a forked child, whose pool did not survive."""
    return 1 if _forked else torch.get_num_threads()


def peak(dtype: torch.dtype = torch.float32) -> float:
    """Measure the multiply-add peak of the target that runs, in GFLOP/s on `threads()` threads."""
    return float(_library().lem_peak(_ITEM[dtype], threads()))


# --- may it serve? ------------------------------------------------------------------------------------------


def refusal(*tensors: Tensor | None) -> str | None:
    """Return why the kernel cannot run on these tensors, or None where it can."""
    if _LIBRARY is None:
        return _MISSING
    given = [t for t in tensors if t is not None]
    for t in given:
        if t.device.type != "cpu":
            return f"the kernel runs on the CPU; got a tensor on {t.device}"
        if t.dtype not in _ITEM or t.dtype != given[0].dtype:
            return f"the kernel takes float32 or float64, one for all tensors; got {t.dtype} beside {given[0].dtype}"
    if given and given[0].numel() == 0:
        return "the kernel needs at least one step, one row and one input"
    if torch.is_autocast_enabled("cpu"):
        return "the kernel does not take part in autocast"
    if not torch.compiler.is_compiling():
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return "the kernel does not take part in torch.func transforms"
        if torch.autograd.forward_ad._current_level >= 0:
            return "the kernel has no forward-mode derivative"
    return None


# --- memory that is kept and reused -------------------------------------------------------------------------
# A fresh page costs more than writing it: handing large buffers back to the system after every call would take a third
# of a training step. Blocks are kept when their tensor dies, up to a limit.

_SMALL = 1 << 18


class _Block:
    """Pages behind one tensor; they go back to the cache with the last reference."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def __del__(self) -> None:
        _cache.give_back(self.address, self.size)


class _Cache:
    def __init__(self) -> None:
        self.limit = 1 << 30
        self.free: list[tuple[int, int]] = []
        self.returned: deque[tuple[int, int]] = deque()
        self.lock = threading.Lock()

    def give_back(self, address: int, size: int) -> None:
        self.returned.append((size, address))  # atomic: this may run inside the garbage collector, even in `take`
        if self.lock.acquire(blocking=False):
            try:
                self._settle(self.limit)
            finally:
                self.lock.release()

    def _settle(self, limit: int) -> None:
        while self.returned:
            self.free.append(self.returned.popleft())
        held = sum(size for size, _ in self.free)
        while self.free and held > limit:  # the oldest goes first
            size, address = self.free.pop(0)
            held -= size
            _library().lem_pages_free(address, size)

    def take(self, size: int) -> _Block:
        size = -(-size // (1 << 21)) * (1 << 21) if size >= 1 << 21 else -(-size // 4096) * 4096
        with self.lock:
            self._settle(self.limit)
            fitting = [block for block in self.free if size <= block[0] <= 2 * size]
            if fitting:
                best = min(fitting)
                self.free.remove(best)
                return _Block(best[1], best[0])
        address = _library().lem_pages(size)
        if not address:
            self.release()
            address = _library().lem_pages(size)
        if not address:
            raise MemoryError(f"the LEM kernel needs {size:,} bytes more than there are; try memory='bounded'.")
        return _Block(address, size)

    def release(self) -> None:
        with self.lock:
            self._settle(0)


_cache = _Cache()


def release_memory() -> None:
    """Give the buffers that are kept for reuse back to the system."""
    _cache.release()


class _Array:
    """A block seen as an array, for torch.from_numpy; the view keeps it alive."""

    def __init__(self, block: _Block, shape: tuple[int, ...], kind: str) -> None:
        self.block = block
        self.__array_interface__ = {"version": 3, "data": (block.address, False), "shape": shape, "typestr": kind}


_KIND = {torch.float32: "<f4", torch.float64: "<f8", torch.uint8: "|u1"}


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    import numpy

    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize < _SMALL:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(numpy.asarray(_Array(_cache.take(count * dtype.itemsize), shape, _KIND[dtype])))


# --- the operator -------------------------------------------------------------------------------------------


def _inner(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _problem(
    u: Tensor,
    weight_u: Tensor,
    weight_y: Tensor,
    weight_z: Tensor,
    bias: Tensor | None,
    y_0: Tensor,
    z_0: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    dt: float,
    clip: list[float] | None,
    reverse: bool,
    keep: int,
    segment: int,
) -> tuple[_Problem, list[Tensor]]:
    """Fill the struct; also return the tensors its pointers point to, which must outlive the call."""
    (steps, batch, m), d = u.shape, weight_z.shape[0]
    maps = weight_y.shape[0] // d + 1
    shapes = {
        "weight_u": (weight_u, (maps * d, m)),
        "weight_y": (weight_y, ((maps - 1) * d, d)),
        "weight_z": (weight_z, (d, d)),
        "bias": (bias, (maps * d,)),
        "y_0": (y_0, (batch, d)),
        "z_0": (z_0, (batch, d)),
        "mask": (mask, (batch, d)),
        "lengths": (lengths, (batch,)),
    }
    p = _Problem(ctypes.sizeof(_Problem), u.dtype.itemsize, steps, batch, m, d, maps == 4, clip is not None, reverse)
    p.threads, p.team, p.keep, p.segment, p.dt = threads(), _TEAM, keep, segment, dt
    if clip is not None:
        p.clip_low, p.clip_high = clip
    u = _inner(u)
    p.u, p.u_time, p.u_row = u.data_ptr(), u.stride(0), u.stride(1)
    alive = [u]
    for name, (tensor, shape) in shapes.items():
        if tensor is None:
            continue
        wanted = torch.int64 if name == "lengths" else u.dtype
        if tuple(tensor.shape) != shape or maps not in (2, 4) or tensor.device.type != "cpu":
            raise ValueError(f"`{name}` of lem::sequence must have shape {shape}; got {tuple(tensor.shape)}.")
        if tensor.dtype != wanted:
            raise TypeError(f"`{name}` of lem::sequence must be {wanted}; got {tensor.dtype}.")
        tensor = tensor.contiguous()
        alive.append(tensor)
        setattr(p, name, tensor.data_ptr())
    return p, alive


def _check(status: int) -> None:
    if status:
        raise ValueError(f"the LEM kernel refused a call: {_STATUS.get(status, status)}.")


def _with_work(p: _Problem, backward: bool) -> Tensor:
    size = _library().lem_work_bytes(p, backward)
    _check(max(0, -size))
    work = _empty((size,), torch.uint8)
    p.work, p.work_bytes = work.data_ptr(), size
    return work


_INPUTS = (
    "Tensor u, Tensor weight_u, Tensor weight_y, Tensor weight_z, Tensor? bias, Tensor y_0, Tensor z_0, "
    "Tensor? mask, Tensor? lengths"
)
_OPTIONS = "float dt, float[]? clip, bool reverse, int keep, int segment"
torch.library.define("lem::sequence", f"({_INPUTS}, {_OPTIONS}) -> (Tensor out, Tensor y_n, Tensor z_n, Tensor saved)")
torch.library.define(
    "lem::sequence_backward",
    f"(Tensor? grad_out, Tensor? grad_y_n, Tensor? grad_z_n, {_INPUTS}, Tensor? out, Tensor saved, {_OPTIONS}, "
    "bool input_gradient) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl("lem::sequence", "CPU")
def _forward(u: Tensor, weight_u: Tensor, weight_y: Tensor, weight_z: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    p, alive = _problem(u, weight_u, weight_y, weight_z, *rest)
    d = weight_z.shape[0]
    out = _empty((p.steps, p.batch, d), u.dtype)
    y_n, z_n = u.new_empty(p.batch, d), u.new_empty(p.batch, d)
    size = _library().lem_saved_bytes(p)
    _check(max(0, -size))
    saved = _empty((size,), torch.uint8)
    p.out, p.y_n, p.z_n, p.saved, p.saved_bytes = (
        out.data_ptr(), y_n.data_ptr(), z_n.data_ptr(), saved.data_ptr(), size,
    )  # fmt: skip
    work = _with_work(p, False)
    _check(_library().lem_forward(p))
    del work, alive
    return out, y_n, z_n, saved


@torch.library.register_fake("lem::sequence")
def _forward_shapes(u: Tensor, weight_u: Tensor, weight_y: Tensor, weight_z: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    keep, segment = rest[-2:]
    (steps, batch), d = u.shape[:2], weight_z.shape[0]
    lanes = _library().lem_target_vector_bytes(_library().lem_target_chosen()) // u.dtype.itemsize
    item = -(-d // max(lanes, 1)) * max(lanes, 1) * u.dtype.itemsize * batch
    header = 64 if keep else 0
    kept = (0, 5 * steps, steps, 2 * ((steps + segment - 1) // max(segment, 1)))[keep]
    states = u.new_empty(batch, d), u.new_empty(batch, d)
    return u.new_empty(steps, batch, d), *states, u.new_empty(header + kept * item, dtype=torch.uint8)


@torch.library.impl("lem::sequence_backward", "CPU")
def _backward(
    grad_out: Tensor | None, grad_y_n: Tensor | None, grad_z_n: Tensor | None, u: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    inputs, (out, saved), options, input_gradient = rest[:8], rest[8:10], rest[10:-1], rest[-1]
    weight_u, weight_y, weight_z, bias, y_0, z_0 = inputs[:6]
    p, alive = _problem(u, *inputs, *options)
    if saved.data_ptr() % 64:
        saved = saved.clone()
    p.saved, p.saved_bytes = saved.data_ptr(), saved.numel()
    if out is not None:
        out = out.contiguous()
        p.out = out.data_ptr()
    if grad_out is not None:
        grad_out = _inner(grad_out)
        p.grad_out, p.grad_out_time, p.grad_out_row = grad_out.data_ptr(), grad_out.stride(0), grad_out.stride(1)
    for name, given in (("grad_y_n", grad_y_n), ("grad_z_n", grad_z_n)):
        if given is not None:
            alive.append(given.contiguous())
            setattr(p, name, alive[-1].data_ptr())
    grad_u = _empty(tuple(u.shape), u.dtype) if input_gradient else u.new_empty(0)
    grads = [torch.empty(w.shape, dtype=u.dtype) for w in (weight_u, weight_y, weight_z)]
    grads.append(u.new_empty(0) if bias is None else torch.empty(bias.shape, dtype=u.dtype))
    grads += [torch.empty(s.shape, dtype=u.dtype) for s in (y_0, z_0)]
    names = ("weight_u", "weight_y", "weight_z", "bias", "y_0", "z_0")
    for name, grad in zip(("u", *names), (grad_u, *grads)):
        setattr(p, f"grad_{name}", grad.data_ptr() if grad.numel() else None)
    work = _with_work(p, True)
    _check(_library().lem_backward(p))
    del work, alive
    return grad_u, *grads


@torch.library.register_fake("lem::sequence_backward")
def _backward_shapes(
    grad_out: Tensor | None, grad_y_n: Tensor | None, grad_z_n: Tensor | None, u: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    weight_u, weight_y, weight_z, bias, y_0, z_0 = rest[:6]
    like = [u if rest[-1] else None, weight_u, weight_y, weight_z, bias, y_0, z_0]
    return tuple(u.new_empty(0) if x is None else u.new_empty(x.shape) for x in like)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options, keep = inputs[9:], inputs[12]
    # A bounded run does not hold on to the outputs: it computes them again.
    out = None if keep == KEEP["bounded"] else output[0]
    ctx.save_for_backward(*inputs[:9], out, output[3])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.options[3] == KEEP["nothing"]:
        raise RuntimeError("the LEM kernel kept nothing for a backward pass; call it where gradients are enabled.")
    result = torch.ops.lem.sequence_backward(
        *grads[:3], *ctx.saved_tensors, *ctx.options, input_gradient=ctx.needs_input_grad[0]
    )
    needed = [g if need else None for g, need in zip(result, ctx.needs_input_grad)]
    return (*needed, *(None,) * (len(ctx.needs_input_grad) - len(needed)))


def _no_second(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("the LEM kernel has no second derivative; build the layer with backend='loop' for it.")


torch.library.register_autograd("lem::sequence", _differentiate, setup_context=_remember)
torch.library.register_autograd("lem::sequence_backward", _no_second)


def sequence(
    u: Float[Tensor, "time batch input"],
    weight_u: Float[Tensor, "rows_u input"],
    weight_y: Float[Tensor, "rows_y hidden"],
    weight_z: Float[Tensor, "hidden hidden"],
    bias: Float[Tensor, "rows_u"] | None,
    y_0: Float[Tensor, "batch hidden"],
    z_0: Float[Tensor, "batch hidden"],
    mask: Float[Tensor, "batch hidden"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
    *,
    dt: float = 1.0,
    clip: tuple[float, float] | None = None,
    reverse: bool = False,
    memory: str | int = "auto",
) -> tuple[Float[Tensor, "time batch hidden"], Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]:
    """Run LEM over a sequence in one call; return the outputs and the final y and z. Parameters as in `LEMCell`."""
    tensors = (u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask)
    keep, segment = "nothing", 1
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        keep, segment = _plan(u, weight_z.shape[0], len(weight_y) == len(weight_z), memory)
    if lengths is not None:
        lengths = lengths.to(device="cpu", dtype=torch.int64)
    out, y_n, z_n, _ = torch.ops.lem.sequence(
        *tensors, lengths, dt, None if clip is None else list(clip), reverse, KEEP[keep], segment
    )
    return out, y_n, z_n


# --- how much memory ----------------------------------------------------------------------------------------


class Forecast(NamedTuple):
    """Bytes that one layer adds to the input and the weights between the start of forward and the end of backward."""

    outputs: int
    kept: int
    work: int
    gradients: int

    @property
    def peak(self) -> int:
        """The largest sum at any moment."""
        return sum(self)


def memory_forecast(
    steps: int,
    batch: int,
    input_size: int,
    hidden_size: int,
    *,
    memory: str = "store",
    dtype: torch.dtype = torch.float32,
    single_scale: bool = False,
    input_gradient: bool = False,
) -> Forecast:
    """Forecast the memory of forward and backward through the kernel, with a gradient for every output.

    `memory` is "store", "recompute", "bounded", or "nothing" for a forward pass alone.
    """
    if memory not in KEEP:
        raise ValueError(f"`memory` of memory_forecast must be one of {', '.join(KEEP)}; got {memory!r}.")
    item, d = dtype.itemsize, hidden_size
    p = _Problem(ctypes.sizeof(_Problem), item, steps, batch, input_size, d, not single_scale)
    p.threads, p.keep, p.segment = threads(), KEEP[memory], _segment(steps)
    p.grad_u = 1 if input_gradient else None  # only whether it is null counts here
    kept, forward = _library().lem_saved_bytes(p), _library().lem_work_bytes(p, 0)
    if kept < 0:
        raise ValueError(f"sizes of memory_forecast must be positive; got {(steps, batch, input_size, hidden_size)}.")
    outputs, maps = steps * batch * d * item, 2 if single_scale else 4
    if memory == "nothing":
        return Forecast(outputs, 0, forward, 0)
    weights = (maps * d * (d + input_size + 1) + 2 * batch * d) * item
    gradients = outputs + weights + (steps * batch * input_size * item if input_gradient else 0)
    return Forecast(outputs, kept, max(forward, _library().lem_work_bytes(p, 1)), gradients)


def _segment(steps: int) -> int:
    # 2 states per T / S segments and 6 values per S steps: the sum is least at S = sqrt(T / 3).
    return max(1, round((steps / 3) ** 0.5))


def _plan(u: Tensor, d: int, single_scale: bool, memory: str | int) -> tuple[str, int]:
    """Return what to keep and the steps of a segment: as asked for, or the fastest that fits into the budget."""
    if memory == "bounded":
        return "bounded", _segment(u.shape[0])
    if memory in ("store", "recompute") or torch.compiler.is_compiling():
        return ("recompute" if memory == "recompute" else "store"), 1
    steps, batch, m = u.shape
    # Below a gigabyte nobody needs to be asked.
    if memory == "auto" and 6 * steps * batch * (d + 16) * u.dtype.itemsize < 1 << 30:
        return "store", 1
    budget = memory if isinstance(memory, int) else _available() // 2
    for keep in ("store", "recompute"):
        forecast = memory_forecast(
            steps, batch, m, d, memory=keep, dtype=u.dtype, single_scale=single_scale, input_gradient=u.requires_grad
        )
        if forecast.peak <= budget:
            return keep, 1
    return "bounded", _segment(steps)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 1 << 62


def check_options(backend: str, memory: str | int) -> None:
    """Refuse a `backend` or a `memory` that LEMCell does not know."""
    if backend not in ("auto", "native", "loop"):
        raise ValueError(f"`backend` of LEMCell must be 'auto', 'native' or 'loop'; got {backend!r}.")
    known = memory in ("auto", "store", "recompute", "bounded")
    if not known and not (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        raise ValueError(
            f"`memory` of LEMCell must be 'auto', 'store', 'recompute', 'bounded' or a budget in bytes; got {memory!r}."
        )


# --- streaming ----------------------------------------------------------------------------------------------


class Stepper:
    """One step at a time with the least overhead: write into `u`, call `step()`, read `y` and `z`.

    All three are tensors that stay where they are. `advance` steps tensors of the caller's instead, with any number of
    rows. The weights are read once, here; `reload` reads them again.
    """

    def __init__(self, cell: Any, batch: int = 1) -> None:
        weights = (cell.weight_u, cell.weight_y, cell.weight_z, cell.bias)
        if (reason := refusal(*weights)) is not None:
            raise RuntimeError(f"`cell` of Stepper cannot run on the kernel: {reason}.")
        like = cell.weight_z.detach()
        self.u = like.new_zeros(batch, cell.input_size)
        self.y, self.z = (s.detach().clone() for s in cell.init_state(batch))
        self._cell, self._clip = cell, None if cell.clip is None else list(cell.clip)
        self.reload()

    def reload(self) -> None:
        """Read the weights of the cell again."""
        cell, library = self._cell, _library()
        weight_u, weight_y, weight_z = (w.detach() for w in (cell.weight_u, cell.weight_y, cell.weight_z))
        bias = None if cell.bias is None else cell.bias.detach()
        p, alive = _problem(
            self.u[None], weight_u, weight_y, weight_z, bias, self.y, self.z, None, None,
            dt=cell.dt, clip=self._clip, reverse=False, keep=KEEP["nothing"], segment=1,
        )  # fmt: skip
        p.threads = 1
        p.y_0 = p.y_n = self.y.data_ptr()
        p.z_0 = p.z_n = self.z.data_ptr()
        self._packed = torch.empty(library.lem_packed_bytes(p) + 64, dtype=torch.uint8)
        self._work = _with_work(p, False)
        address = -(-self._packed.data_ptr() // 64) * 64
        _check(library.lem_pack(p, address))
        self._problem, self._address, self._call = p, ctypes.c_void_p(address), library.lem_step
        self._pointer = ctypes.byref(p)
        self._given, self._given_work = _Problem.from_buffer_copy(p), self._work
        self._alive = alive

    def step(self) -> None:
        """Advance `y` and `z` by one step with the input in `u`."""
        _check(self._call(self._pointer, self._address))

    def advance(
        self, u: Float[Tensor, "rows input"], y: Float[Tensor, "rows hidden"], z: Float[Tensor, "rows hidden"]
    ) -> None:
        """Advance `y` and `z` in place by one step with the input `u`; all three must be contiguous."""
        p, rows = self._given, len(u)
        for name, tensor, size in (("u", u, p.inputs), ("y", y, p.hidden), ("z", z, p.hidden)):
            if tensor.shape != (rows, size) or tensor.dtype != self.u.dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"`{name}` of Stepper.advance must be a contiguous {self.u.dtype} tensor of shape {(rows, size)}; "
                    f"got {tensor.dtype} of shape {tuple(tensor.shape)}."
                )
        if rows != p.batch:
            p.batch = rows
            if _library().lem_work_bytes(p, 0) > p.work_bytes:
                self._given_work = _with_work(p, False)
        p.u, p.y_0, p.z_0 = u.data_ptr(), y.data_ptr(), z.data_ptr()
        p.y_n, p.z_n = p.y_0, p.z_0
        _check(self._call(ctypes.byref(p), self._address))
