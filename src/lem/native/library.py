"""The C++ library (`native/`, C interface in `native/lem.h`): find it, choose its target, say whether it can serve.

The library is optional: without it everything runs on the loop, and `refusal` says why.
"""

import ctypes
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

KEEP = {"nothing": 0, "store": 1, "recompute": 2, "bounded": 3}
"""What the forward pass leaves for the backward pass; numbered as in native/lem.h."""

ITEM = {torch.float32: 4, torch.float64: 8}
_STATUS = {
    1: "a size, a flag or a length is out of range",
    2: "a buffer is too small",
    3: "what the forward pass kept belongs to another problem or another target",
}


class Problem(ctypes.Structure):
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


def is_whole(path: Path) -> bool:
    """Return whether an ELF file is as long as its header says; the loader would die of what is missing."""
    with path.open("rb") as file:
        header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":  # another format: its loader decides
        return True
    if len(header) < 64:
        return False
    (sections,), (size, count) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
    return path.stat().st_size >= sections + size * count


def load(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library with its functions' types, or None and the reason."""
    if not path.exists():
        return None, "the kernel is not built; install again with a C++ compiler (GCC or Clang) present"
    if not is_whole(path):
        return None, f"the kernel cannot be loaded: {path.name} is cut short; install again"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"the kernel cannot be loaded: {error}"
    pointer, number = ctypes.POINTER(Problem), ctypes.c_int64
    for name, result, arguments in (
        ("lem_saved_bytes", number, [pointer]),
        ("lem_work_bytes", number, [pointer, number]),
        ("lem_forward", number, [pointer]),
        ("lem_backward", number, [pointer]),
        ("lem_units_forward", number, [ctypes.c_void_p]),
        ("lem_units_backward", number, [ctypes.c_void_p]),
        ("lem_coupled_work_bytes", number, [ctypes.c_void_p, number]),
        ("lem_coupled_forward", number, [ctypes.c_void_p]),
        ("lem_coupled_backward", number, [ctypes.c_void_p]),
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
        function = getattr(library, name, None)
        if function is None:
            return (
                None,
                f"the kernel cannot be loaded: {path.name} is of another version, without {name}; install again",
            )
        function.restype, function.argtypes = result, arguments
    return library, ""


LIBRARY, MISSING = load(Path(__file__).parents[1] / "_native.so")


def library() -> ctypes.CDLL:
    """Return the library, or raise the reason why there is none."""
    if LIBRARY is None:
        raise RuntimeError(f"`backend` must be 'loop' here: {MISSING}.")
    return LIBRARY


def all_targets() -> list[str]:
    """Return the targets that were compiled, whether or not this processor can run them."""
    names: list[str] = []
    while LIBRARY is not None and (name := LIBRARY.lem_target_name(len(names))) is not None:
        names.append(name.decode())
    return names


def targets() -> list[str]:
    """Return the targets of the library that this processor can run, the widest last; empty where it is not built."""
    return [name for i, name in enumerate(all_targets()) if library().lem_target_supported(i)]


def target() -> str:
    """Return the target that runs."""
    return all_targets()[library().lem_target_chosen()]


def set_target(name: str) -> None:
    """Choose the target for all following calls."""
    if name not in targets():
        raise ValueError(f"`LEM_TARGET` must be one of {', '.join(targets())} on this processor; got {name!r}.")
    library().lem_target_choose(all_targets().index(name))


@contextmanager
def using_target(name: str) -> Iterator[None]:
    """Run the body with another target; a backward pass must run with the target of its forward pass."""
    before = target()
    set_target(name)
    try:
        yield
    finally:
        set_target(before)


if LIBRARY is not None and os.environ.get("LEM_TARGET"):
    try:
        set_target(os.environ["LEM_TARGET"])
    except ValueError as error:  # importing lem must not fail: `lem doctor` has to say what is wrong
        LIBRARY, MISSING = None, f"the kernel cannot be loaded: {error}"
        warnings.warn(f"LEM runs on the slow loop: {error}", stacklevel=2)

_asked_for_loop = 0  # how many bodies of `loop_only` are running; a plain number, because torch.compile reads it


@contextmanager
def loop_only() -> Iterator[None]:
    """Run all sequences, of all threads, by the loop while the body runs; the loop has every derivative."""
    global _asked_for_loop
    _asked_for_loop += 1
    try:
        yield
    finally:
        _asked_for_loop -= 1


def loop_asked() -> bool:
    """Say whether the body of a `loop_only` is running."""
    return _asked_for_loop > 0


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
    return float(library().lem_peak(ITEM[dtype], threads()))


def check(status: int) -> None:
    """Raise what a call of the library returned, where it is not 0."""
    if status:
        raise ValueError(f"the LEM kernel refused a call: {_STATUS.get(status, status)}.")


def refusal(*tensors: Tensor | None) -> str | None:
    """Return why the kernel cannot run on these tensors, or None where it can."""
    if LIBRARY is None:
        return MISSING
    if _asked_for_loop:
        return "the loop was asked for"
    given = [t for t in tensors if t is not None]
    for t in given:
        if t.device.type != "cpu":
            return f"the kernel runs on the CPU; got a tensor on {t.device}"
        if t.dtype not in ITEM or t.dtype != given[0].dtype:
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
