"""The Triton kernel as `choose` sees it: which calls it runs, and why it does not run others."""

import importlib.util
from functools import cache

import torch
from torch import Tensor

from lem.kernels.choose import NOT_PREFERRED, Call, Kernel, Reason
from lem.kernels.cpu.library import inside_forward_mode, inside_transform
from lem.kernels.triton import operator
from lem.kernels.triton.paths import OLDEST, Card, mode_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OLDEST_TRITON = (3, 2)
"""The oldest release with everything that the kernels use. torch 2.6 brings it along."""
WRONG_TRITON: tuple[str, ...] = ()
"""Releases that compile the kernels wrongly."""
UPGRADE = "Install the release that your torch asks for: pip install --upgrade torch."


class TritonLEM(Kernel):
    """Run LEM on NVIDIA and AMD GPUs."""

    backend = "triton"
    computes = ("project", "step", "time_steps")
    takes_timing = True

    def refuse(self, call: Call) -> Reason | None:
        """Refuse other devices and types, and machines on which Triton cannot run the kernels."""
        cell, u = call.cell, call.u
        if u.device.type == "cpu":
            if cell.backend == "auto":
                return ON_CPU
            return Reason("device", "the Triton kernel runs on GPUs and the input is on the CPU", TO_GPU)
        if u.device.type != "cuda":
            return Reason("device", f"no kernel of {type(cell).__name__} runs on {u.device}", TO_CPU)
        tensors = (u, cell.weight_u, cell.weight_y, cell.weight_z, cell.bias, *call.state)
        found = _tensors(tensors) or _transforms()
        if found is None and not torch.compiler.is_compiling():
            found = installation() or card_refusal(operator.card(u))
        return found

    def describe(self, call: Call) -> str:
        """Return the path, how the products are computed, and the release of Triton."""
        import triton

        kind = operator.types_of(call.u, call.cell.precision)[0]
        card = operator.card(call.u)
        timed = call.elapsed is not None or call.resets is not None
        path = operator.path_of(torch.empty(0, device=call.u.device, dtype=kind), call.cell.hidden_size, timed)
        return f"{path.kind} path, products in {mode_of(kind, card.vendor)}, Triton {triton.__version__}"

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all steps on the device."""
        cell = call.cell
        (mask,) = cell.prepare(call.u.shape[1]) or (None,)
        weights = cell.weight_u, cell.weight_y, cell.weight_z, cell.bias
        y_0, z_0 = call.state
        start = None if cell.y_0 is None else (cell.y_0, cell.z_0)
        out, y, z = operator.sequence(
            call.u, *weights, y_0, z_0, mask, call.lengths, call.elapsed, call.resets, start,
            dt=cell.dt, clip=cell.clip, reverse=call.reverse, memory=cell.memory, precision=cell.precision,
        )  # fmt: skip
        return out, (y, z)


ON_CPU = Reason(NOT_PREFERRED, "the Triton kernel runs on GPUs")
TO_GPU = 'Move the layer and its input to a GPU: .to("cuda").'
TO_CPU = "Move the layer and its input to the CPU or to a CUDA or ROCm GPU to use a kernel."


def _tensors(tensors: tuple[Tensor | None, ...]) -> Reason | None:
    given = [t for t in tensors if t is not None]
    for t in given:
        if t.device != given[0].device:
            return Reason("devices", f"the tensors are on different devices, {given[0].device} and {t.device}")
        if t.dtype not in DTYPES:
            text = (
                f"the Triton kernel supports float32, bfloat16 and float16, not {str(t.dtype).removeprefix('torch.')}"
            )
            return Reason("dtype", text, "Convert the layer and its input to float32 to use the kernel.")
        if t.dtype != given[0].dtype and not torch.is_autocast_enabled("cuda"):
            return Reason("mixed dtypes", f"the tensors have different types, {given[0].dtype} and {t.dtype}")
    if given[0].numel() == 0:
        return Reason("empty", "the input has no elements")
    return None


def _transforms() -> Reason | None:
    if torch.compiler.is_compiling():
        return None
    if inside_transform():
        return Reason("transform", "the Triton kernel does not support torch.func transforms")
    if inside_forward_mode():
        return Reason("forward mode", "the Triton kernel has no forward-mode derivative")
    return None


@cache
def installation() -> Reason | None:
    """Return what is wrong with Triton on this machine, or None. This imports it."""
    if importlib.util.find_spec("triton") is None:
        remedy = "In a checkout, run: pip install '.[gpu]'."
        return Reason("triton missing", "Triton is not installed", remedy)
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    from lem.kernels.triton.resident import forward

    numbers = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if numbers < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        return Reason("triton version", f"Triton {triton.__version__} is older than {oldest}", UPGRADE)
    if triton.__version__ in WRONG_TRITON:
        return Reason("triton version", f"Triton {triton.__version__} compiles the kernels wrongly", UPGRADE)
    if isinstance(forward, InterpretedFunction):
        remedy = "Unset it and start Python again."
        return Reason("triton interpreter", "TRITON_INTERPRET=1 is set, which runs Triton's kernels on the CPU", remedy)
    return None


def card_refusal(card: Card) -> Reason | None:
    """Return why the kernels cannot run on a card, or None."""
    if card.vendor == "cuda" and int(card.architecture.removeprefix("sm_")) < OLDEST:
        needed = f"Triton needs an NVIDIA GPU of compute capability {OLDEST / 10} or later"
        return Reason("architecture", f"{needed}, and this one is {card.architecture}")
    return None
