"""Load the C++ library (`native/`, C interface in `native/lem.h`), choose its target, and check what it can run.

The library is optional: without it everything runs on the loop, and `refusal` returns the reason.
"""

import ctypes
import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lem.kernels.choose import LOOP_ONLY, Reason, loop_requested

KEEP = {"nothing": 0, "store": 1, "recompute": 2, "bounded": 3}
"""What the forward pass keeps for the backward pass: the names and numbers of `lem_keep` in native/lem.h."""

ITEM = {torch.float32: 4, torch.float64: 8}
_STATUS = {
    1: "a size, a flag or a length is out of range",
    2: "a buffer is too small",
    3: "what the forward pass kept belongs to another problem or another target",
    4: "the weights were packed for another problem or another target; call `reload` of the Stepper",
}


class Problem(ctypes.Structure):
    """The struct `lem_problem` of native/lem.h, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("struct_bytes", "item_bytes", "steps", "batch", "inputs", "hidden")),
        *((name, ctypes.c_int64) for name in ("outputs", "gated", "clipped", "reverse", "threads", "team")),
        *((name, ctypes.c_int64) for name in ("keep", "segment", "bfloat16")),
        *((name, ctypes.c_double) for name in ("dt", "clip_low", "clip_high")),
        ("u", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("u_time", "u_row")),
        *((name, ctypes.c_void_p) for name in ("weight_u", "weight_y", "weight_z", "bias", "y_0", "z_0", "mask")),
        *((name, ctypes.c_void_p) for name in ("lengths", "elapsed", "resets", "y_start", "z_start")),
        *((name, ctypes.c_void_p) for name in ("out", "y_n", "z_n", "saved")),
        ("saved_bytes", ctypes.c_int64),
        ("work", ctypes.c_void_p),
        ("work_bytes", ctypes.c_int64),
        ("grad_out", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("grad_out_time", "grad_out_row")),
        *((name, ctypes.c_void_p) for name in ("grad_y_n", "grad_z_n", "grad_u", "grad_weight_u", "grad_weight_y")),
        *((name, ctypes.c_void_p) for name in ("grad_weight_z", "grad_bias", "grad_y_0", "grad_z_0")),
        *((name, ctypes.c_void_p) for name in ("grad_elapsed", "grad_y_start", "grad_z_start", "stop")),
    ]


def is_whole(path: Path) -> bool:
    """Return whether an ELF file is as long as its header declares; loading a shorter one ends the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":  # another format: its loader decides
        return True
    if len(header) < 64:
        return False
    (sections,), (size, count) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
    return path.stat().st_size >= sections + size * count


NOT_BUILT = Reason("not built", "the C++ kernel is not built", "Install again with a C++ compiler (GCC or Clang).")


def broken(why: str) -> Reason:
    """Return the reason for a library that is there but cannot be used."""
    return Reason("broken", f"the C++ kernel cannot be loaded: {why}", "Install the package again.")


def load(path: Path) -> tuple[ctypes.CDLL | None, Reason | None]:
    """Return the library with its functions' types and None, or None and the reason why it cannot be used."""
    if not path.exists():
        return None, NOT_BUILT
    if not is_whole(path):
        return None, broken(f"{path.name} is incomplete")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, broken(str(error))
    pointer, number = ctypes.POINTER(Problem), ctypes.c_int64
    for name, result, arguments in (
        ("lem_saved_bytes", number, [pointer]),
        ("lem_work_bytes", number, [pointer, number]),
        ("lem_forward", number, [pointer]),
        ("lem_backward", number, [pointer]),
        ("lem_units_forward", number, [ctypes.c_void_p]),
        ("lem_units_backward", number, [ctypes.c_void_p]),
        ("lem_coupled_trait", number, [number, number]),
        ("lem_coupled_work_bytes", number, [ctypes.c_void_p, number]),
        ("lem_coupled_forward", number, [ctypes.c_void_p]),
        ("lem_coupled_backward", number, [ctypes.c_void_p]),
        ("lem_interrupt_flag", ctypes.c_void_p, []),
        ("lem_packed_bytes", number, [pointer]),
        ("lem_pack", number, [pointer, ctypes.c_void_p]),
        ("lem_step", number, [pointer, ctypes.c_void_p]),
        ("lem_target_name", ctypes.c_char_p, [number]),
        ("lem_target_supported", number, [number]),
        ("lem_target_vector_bytes", number, [number]),
        ("lem_target_bfloat16", number, [number]),
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
            return None, broken(f"{path.name} is of another version, without {name}")
        function.restype, function.argtypes = result, arguments
    return library, None


LIBRARY, MISSING = load(Path(__file__).parent / "_native.so")


def library() -> ctypes.CDLL:
    """Return the library, or raise the reason why there is none."""
    if LIBRARY is None:
        reason = MISSING or NOT_BUILT
        raise RuntimeError(f"{reason.text}. {reason.remedy}")
    return LIBRARY


def library_missing() -> Reason | None:
    """Return why the library cannot be used, or None if it can."""
    return (MISSING or NOT_BUILT) if LIBRARY is None else None


def all_targets() -> list[str]:
    """Return the targets that were compiled, whether or not this processor can run them."""
    names: list[str] = []
    while LIBRARY is not None and (name := LIBRARY.lem_target_name(len(names))) is not None:
        names.append(name.decode())
    return names


def targets() -> list[str]:
    """Return the targets of the library that this processor can run, the widest last; empty if it is not built."""
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
        LIBRARY, MISSING = None, Reason("broken", f"the C++ kernel cannot be used: {error}", "Unset LEM_TARGET.")
        warnings.warn(f"LEM runs on the slow loop: {error}", stacklevel=2)

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def threads() -> int:
    """Return how many threads a call may use: torch's number, and one in a forked child, whose pool did not survive."""
    return 1 if _forked else torch.get_num_threads()


def describe() -> str:
    """Return the instruction set and the number of threads of a call."""
    return f"target {target()}, {threads()} threads"


def peak(dtype: torch.dtype = torch.float32) -> float:
    """Measure the multiply-add peak of the target that runs, in GFLOP/s on `threads()` threads."""
    return float(library().lem_peak(ITEM[dtype], threads()))


_INTERRUPTED = 5
_FLAG = None if LIBRARY is None else LIBRARY.lem_interrupt_flag()


def stop_flag() -> int | None:
    """Return the `stop` of a call, so that Ctrl-C ends it: in the main thread the address of a flag, else None."""
    return _FLAG if threading.get_ident() == threading.main_thread().ident else None


def run(function: Callable[[Any], int], problem: Any) -> None:
    """Make a call of the library whose problem has a `stop`, and raise what it returned if it is not 0.

    If Ctrl-C interrupts the call, Python runs the signal's handler as soon as the call has returned. The default
    handler raises KeyboardInterrupt. If a handler of the program's own does not raise, the call is made again.
    """
    while (status := function(problem)) == _INTERRUPTED:
        pass
    check(status)


def check(status: int) -> None:
    """Raise the error that a call of the library returned, if any."""
    if status:
        raise ValueError(f"the LEM kernel refused a call: {_STATUS.get(status, status)}.")


def refusal(*tensors: Tensor | None, converts: bool = False) -> Reason | None:
    """Return why the C++ kernel cannot run on these tensors, or None if it can.

    `converts`: whether the caller converts types of half the size, and what autocast mixes.
    """
    if LIBRARY is None:
        return library_missing()
    if loop_requested():
        return LOOP_ONLY
    given = [t for t in tensors if t is not None]
    autocast = torch.is_autocast_enabled("cpu")
    mixes = converts and autocast
    kind = given[0].dtype if given else None
    for t in given:
        if t.is_cpu and t.dtype == kind and kind in ITEM:
            continue  # by far the most frequent case, and the cheapest way to see it
        if t.device.type != "cpu":
            return Reason("device", f"the C++ kernel runs on the CPU and the tensors are on {t.device}", ON_CPU)
        if t.dtype not in ITEM and not (converts and t.dtype in (torch.bfloat16, torch.float16)):
            return Reason("dtype", f"the C++ kernel does not support {t.dtype}", IN_FLOAT32)
        if t.dtype != given[0].dtype and not (mixes and torch.float64 not in (t.dtype, given[0].dtype)):
            return Reason(
                "mixed dtypes", f"the tensors have different types, {given[0].dtype} and {t.dtype}", IN_FLOAT32
            )
    if given and given[0].numel() == 0:
        return Reason("empty", "the input has no elements")
    if autocast and not converts:
        return Reason("autocast", "the C++ kernel does not support autocast", "Run the layer outside of autocast.")
    if not torch.compiler.is_compiling():
        if inside_transform():
            return Reason("transform", "the C++ kernel does not support torch.func transforms")
        if inside_forward_mode():
            return Reason("forward mode", "the C++ kernel has no forward-mode derivative")
    return None


ON_CPU = "Move the layer and its input to the CPU to use the kernel."
IN_FLOAT32 = "Convert the layer and its input to float32 to use the kernel."


def inside_transform() -> bool:
    """Return whether a torch.func transform is active. torch has no public function for it."""
    functorch = getattr(torch._C, "_functorch", None)
    peek = getattr(functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def inside_forward_mode() -> bool:
    """Return whether forward-mode differentiation is active. torch has no public function for it."""
    return getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
