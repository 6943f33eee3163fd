"""Single steps with the least overhead, for streams."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from lem.kernels.cpu.lem import fill, with_work
from lem.kernels.cpu.library import KEEP, Problem, check, library, refusal
from lem.shapes import Float


class Stepper:
    """One step at a time with the least overhead: write into `u`, call `step()`, read `y` and `z`.

    All three are tensors that stay where they are. `advance` steps tensors of the caller's instead, with any number of
    rows. The weights are read once, here; `reload` reads them again. They are packed for the target that runs: a step
    under another target raises, and `reload` packs them again.

    Examples:
        >>> import torch
        >>> from lem import LEMCell
        >>> from lem.kernels.cpu import Stepper
        >>> stepper = Stepper(LEMCell(3, 16), batch=2)
        >>> for sample in torch.randn(10, 2, 3):
        ...     _ = stepper.u.copy_(sample)
        ...     stepper.step()
        >>> stepper.y.shape
        torch.Size([2, 16])
    """

    def __init__(self, cell: Any, batch: int = 1) -> None:
        weights = (cell.weight_u, cell.weight_y, cell.weight_z, cell.bias)
        if (reason := refusal(*weights)) is not None:
            raise RuntimeError(f"`cell` of Stepper cannot run on the kernel: {reason.text}.")
        like = cell.weight_z.detach()
        self.u = like.new_zeros(batch, cell.input_size)
        self.y, self.z = (s.detach().clone() for s in cell.init_state(batch))
        self._cell, self._clip = cell, None if cell.clip is None else list(cell.clip)
        self.reload()

    def reload(self) -> None:
        """Read the weights of the cell again."""
        cell = self._cell
        weight_u, weight_y, weight_z = (w.detach() for w in (cell.weight_u, cell.weight_y, cell.weight_z))
        bias = None if cell.bias is None else cell.bias.detach()
        # Room for elapsed times, which not every step has.
        self._elapsed = None if cell.refuse_elapsed() else self.y.new_ones(1, len(self.u))
        p, alive = fill(
            "Stepper", self.u[None], weight_u, weight_y, weight_z, bias, self.y, self.z, None, None,
            dt=cell.dt, clip=self._clip, reverse=False, keep=KEEP["nothing"], segment=1, elapsed=self._elapsed,
        )  # fmt: skip
        p.threads = 1
        p.y_0 = p.y_n = self.y.data_ptr()
        p.z_0 = p.z_n = self.z.data_ptr()
        self._packed = torch.empty(library().lem_packed_bytes(p) + 64, dtype=torch.uint8)
        self._work = with_work(p, False)
        address = -(-self._packed.data_ptr() // 64) * 64
        check(library().lem_pack(p, address))
        self._problem, self._address, self._call = p, ctypes.c_void_p(address), library().lem_step
        self._pointer = ctypes.byref(p)
        self._given, self._given_work = Problem.from_buffer_copy(p), self._work
        self._alive, self._times = alive, p.elapsed
        p.elapsed = None

    def step(self, elapsed: float | None = None) -> None:
        """Advance `y` and `z` by one step with the input in `u`, `elapsed` times the usual length."""
        self._problem.elapsed = None
        if elapsed is not None:
            self._check_elapsed(elapsed > 0.0)
            assert self._elapsed is not None
            self._elapsed.fill_(elapsed)
            self._problem.elapsed = self._times
        check(self._call(self._pointer, self._address))

    def _check_elapsed(self, positive: bool) -> None:
        if (reason := self._cell.refuse_elapsed()) is not None:
            raise ValueError(f"`elapsed` of Stepper must be None: {reason}.")
        if not positive:
            raise ValueError("`elapsed` of Stepper must be positive.")

    def advance(
        self,
        u: Float[Tensor, "rows input"],
        y: Float[Tensor, "rows outputs"],
        z: Float[Tensor, "rows hidden"],
        elapsed: Float[Tensor, "rows"] | None = None,
    ) -> None:
        """Advance `y` and `z` in place by one step with the input `u`; all tensors must be contiguous.

        `elapsed` is the time since the step before, for each row, in units of the usual step.
        """
        p, rows = self._given, len(u)
        given: list[tuple[str, Tensor, tuple[int, ...]]]
        given = [("u", u, (rows, p.inputs)), ("y", y, (rows, p.outputs)), ("z", z, (rows, p.hidden))]
        if elapsed is not None:
            given.append(("elapsed", elapsed, (rows,)))
        for name, tensor, shape in given:
            plain = tensor.is_contiguous() and tensor.device.type == "cpu" and not tensor.is_neg()
            if tensor.shape != shape or tensor.dtype != self.u.dtype or not plain:
                raise ValueError(
                    f"`{name}` of Stepper.advance must be a contiguous {self.u.dtype} CPU tensor of shape {shape}; "
                    f"got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}."
                )
        p.elapsed = None
        if elapsed is not None:
            self._check_elapsed(bool((elapsed > 0.0).all()))
            p.elapsed = elapsed.data_ptr()
        if rows != p.batch or elapsed is not None:
            p.batch = rows
            if library().lem_work_bytes(p, 0) > p.work_bytes:
                self._given_work = with_work(p, False)
        p.u, p.y_0, p.z_0 = u.data_ptr(), y.data_ptr(), z.data_ptr()
        p.y_n, p.z_n = p.y_0, p.z_0
        check(self._call(ctypes.byref(p), self._address))
