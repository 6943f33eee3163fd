"""Choose the kernel that runs a sequence. This is the only place that decides.

A cell class lists its kernels in the order of preference, as `Cell.kernels`. `choose` takes the first one that does
not refuse the call; if all refuse, the sequence runs on the Python loop. To add a kernel, write one `Kernel` and list
it in the cell's class. Kernels never import `lem.nn`: they see a cell through the `Call`.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

BACKENDS = ("auto", "native", "triton", "torch", "loop")
"""The values of `backend`: any kernel, the C++ kernel, the Triton kernel, torch's own kernel, or the Python loop."""


class Reason(NamedTuple):
    """Why a kernel does not run a call."""

    code: str
    """A short name that programs can compare."""
    text: str
    """What is in the way, without a full stop."""
    remedy: str = ""
    """What the user can do about it, as a sentence; empty if nothing."""


class Call(NamedTuple):
    """One run of a cell over a sequence."""

    cell: Any
    u: Tensor
    state: tuple[Tensor, ...]
    lengths: Tensor | None = None
    reverse: bool = False
    elapsed: Tensor | None = None
    resets: Tensor | None = None
    fresh: bool = False
    """Whether `state` is the cell's own initial state."""


class Kernel:
    """A faster way to run whole sequences of a cell, with the same results as its loop."""

    backend: str
    """The value of `backend` that selects this kernel."""

    computes: tuple[str, ...] = ("project", "step")
    """The methods of the cell that the kernel replaces. A subclass that overrides one of them runs on the loop."""

    takes_timing: bool = False
    """Whether the kernel takes elapsed times and resets."""

    def refuse(self, call: Call) -> Reason | None:
        """Return why the kernel cannot run this call, or None if it can."""
        raise NotImplementedError

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs of all steps and the final state."""
        raise NotImplementedError

    def describe(self, call: Call) -> str:
        """Return how the kernel would run, for `backend_for`."""
        return f"{type(self).__name__}"


NOT_PREFERRED = "not preferred"
"""The code of a kernel that could run the call but leaves it to a faster one."""

LOOP_ONLY = Reason("loop only", "the call is inside `lem.kernels.loop_only()`")
LOOP_REQUESTED = Reason("loop requested", "backend='loop'")


def choose(call: Call) -> tuple[Kernel | None, Reason | None]:
    """Return the kernel that runs the call and None, or None and the reason why the loop runs it.

    Raises:
        RuntimeError: if the cell's `backend` names a kernel that cannot run the call.
    """
    kernel, reason = _first_that_runs(call)
    if reason is not None:
        wanted = call.cell.backend
        if wanted not in ("auto", "loop"):
            remedy = reason.remedy or "Use backend='auto' or backend='loop'."
            raise RuntimeError(f"backend={wanted!r} cannot run this call: {reason.text}. {remedy}")
        if reason.remedy and not torch.compiler.is_compiling():
            warn_once(type(call.cell).__name__, reason)
    return kernel, reason


def backend_for(call: Call) -> tuple[str, str]:
    """Return the name of the backend that would run the call, and how or why."""
    kernel, reason = _first_that_runs(call)
    if kernel is not None:
        return kernel.backend, kernel.describe(call)
    assert reason is not None
    return "loop", f"{reason.text}. {reason.remedy}" if reason.remedy else reason.text


def _first_that_runs(call: Call) -> tuple[Kernel | None, Reason | None]:
    cell = call.cell
    if cell.backend == "loop":
        return None, LOOP_REQUESTED
    if loop_requested():
        return None, LOOP_ONLY
    found: Reason | None = None
    for kernel, changed in zip(cell.kernels, cell.overridden):
        if cell.backend not in ("auto", kernel.backend):
            continue
        if changed is not None:
            reason: Reason | None = Reason("overridden", f"{type(cell).__name__} overrides `{changed}`")
        elif not kernel.takes_timing and not (call.elapsed is None and call.resets is None):
            reason = Reason("timing", f"the kernel of {type(cell).__name__} takes neither `elapsed` nor `resets`")
        else:
            reason = kernel.refuse(call)
        if reason is None:
            return kernel, None
        if found is None and reason.code != NOT_PREFERRED:
            found = reason
    if found is None:
        which = "" if cell.backend == "auto" else f" for backend={cell.backend!r}"
        found = Reason("no kernel", f"{type(cell).__name__} has no kernel{which}")
    return None, found


def overridden_methods(cls: type[Any]) -> tuple[str | None, ...]:
    """Return, for each kernel of a cell class, the first method it replaces that a subclass has changed, or None.

    The class that lists the kernels is the one whose equation they compute.
    """
    owner = next(base for base in cls.__mro__ if "kernels" in vars(base))
    changed = []
    for kernel in cls.kernels:
        names = (name for name in kernel.computes if getattr(cls, name) is not getattr(owner, name))
        changed.append(next(names, None))
    return tuple(changed)


# --- warnings --------------------------------------------------------------------------------------------------------


class LoopWarning(UserWarning):
    """A sequence runs on the slow loop for a reason that the user can change.

    Examples:
        >>> import warnings
        >>> from lem.kernels import LoopWarning
        >>> warnings.simplefilter("ignore", LoopWarning)  # accept the loop silently
    """


_warned: set[str] = set()


def warn_once(name: str, reason: Reason) -> None:
    """Warn that a cell runs on the loop, once per process for each reason."""
    if reason.code in _warned:
        return
    _warned.add(reason.code)
    warnings.warn(
        f"{name} runs on the Python loop, which is slow: {reason.text}. {reason.remedy} "
        "To silence this warning, pass backend='loop'.",
        LoopWarning,
        stacklevel=6,
    )


def forget_warnings() -> None:
    """Warn again about reasons that were reported before."""
    _warned.clear()


# --- the loop on request ---------------------------------------------------------------------------------------------

_loop_only = 0  # how many `loop_only` blocks are active; a plain number, because torch.compile reads it


@contextmanager
def loop_only() -> Iterator[None]:
    """Run all sequences, in all threads, on the Python loop inside this block. The loop has every derivative.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.kernels import loop_only
        >>> with loop_only():
        ...     outputs, _ = LEM(3, 16)(torch.randn(20, 4, 3))
    """
    global _loop_only
    _loop_only += 1
    try:
        yield
    finally:
        _loop_only -= 1


def loop_requested() -> bool:
    """Return whether a `loop_only` block is active."""
    return _loop_only > 0


# --- programs that need no kernel ------------------------------------------------------------------------------------

_portable = 0


@contextmanager
def portable() -> Iterator[None]:
    """Trace sequences as torch's own operator `scan` inside this block.

    What `torch.export.export` makes inside the block has a free time axis and runs where this library is not
    installed, in Python or, as an AOTInductor package, without it. Outside of it, LEM is traced as its kernel
    `lem::sequence`, which is faster and needs `import lem`. `torch.onnx.export` does the same without this block.
    Sequences that run without tracing are not affected.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.kernels import portable
        >>> with portable():
        ...     program = torch.export.export(LEM(3, 16), (torch.randn(20, 4, 3),))
        >>> "scan" in str(program.graph)
        True
    """
    global _portable
    _portable += 1
    try:
        yield
    finally:
        _portable -= 1


def portable_requested() -> bool:
    """Return whether sequences must be traced without kernels: in a `portable` block or for ONNX."""
    return _portable > 0 or torch.onnx.is_in_onnx_export()


def check_tracer(name: str) -> None:
    """Raise if the exporter that is tracing cannot write a sequence."""
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            f"torch.onnx.export(dynamo=False) cannot export {name}: TorchScript has no loop over time that it could "
            "record. Call torch.onnx.export(..., dynamo=True)."
        )
