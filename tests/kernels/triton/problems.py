"""One call of LEM by the Triton kernels and by the loop, for comparison."""

import importlib.util
import itertools
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path as File
from typing import NamedTuple

import torch

from lem import LEMCell
from lem.kernels.cpu import lem as definition
from lem.kernels.triton import kernel, lem, operator
from lem.kernels.triton.paths import CARDS, Path
from tests.close import assert_close

KINDS = ("resident", "streamed", "alternating")

VARIANTS = {
    " ".join(name for name, on in zip(("single", "clip", "mask", "lengths", "reverse"), flags) if on) or "plain": flags
    for flags in itertools.product((False, True), repeat=5)
    if not (flags[0] and flags[1])  # a single scale has no gates to clip
}
"""Every combination of the variants of a call."""

EXTRAS = ("elapsed", "resets", "projected")
"""What a variant may name besides: elapsed times, restarts, and fewer units of y than of z."""


class Result(NamedTuple):
    """Outputs, the final state, and the gradients of the inputs in the order of `lem::sequence`."""

    values: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]


def path_of(kind: str, d: int, product: torch.dtype = torch.float32) -> Path:
    width = max(16, 1 << (d - 1).bit_length())
    return Path(kind, width, 4, product, "ieee", block=16)


class Case:
    """Random inputs, weights, states and output gradients of one call."""

    def __init__(self, sizes, variant="plain", *, bias=True, dt=0.9, dtype=torch.float32, scale=1.0):
        self.steps, self.batch, self.m, self.d = sizes
        names = variant.split()
        elapsed, resets, projected = (name in names for name in EXTRAS)
        single, clip, mask, lengths, self.reverse = VARIANTS[
            " ".join(name for name in names if name not in EXTRAS) or "plain"
        ]
        self.cell = LEMCell(
            self.m, self.d, bias, dt=dt, single_scale=single, clip=(0.2, 0.6) if clip else None, dtype=dtype,
            backend="loop", proj_size=(self.d + 1) // 2 if projected and self.d > 1 else 0,
            learn_initial_state=resets,
        )  # fmt: skip
        with torch.no_grad():
            for p in self.starts():
                p.uniform_(-0.5, 0.5)
        state, state_z = ((self.batch, size) for size in self.cell.state_sizes)
        self.elapsed = 3.0 * torch.rand(self.steps, self.batch) + 0.05 if elapsed else None
        if elapsed and self.batch:
            self.elapsed[0, 0] = 1.0
        self.resets = torch.rand(self.steps, self.batch) < 0.4 if resets else None
        self.mask = (torch.empty(state).bernoulli_(0.7) / 0.7).to(dtype) if mask else None
        self.cell.prepare = lambda batch: () if self.mask is None else (self.mask,)
        self.lengths = None
        if lengths:
            self.lengths = torch.randint(1, self.steps + 1, (self.batch,))
            self.lengths[0] = self.steps
            if resets:
                self.resets &= torch.arange(self.steps)[:, None] < self.lengths
        self.u = scale * torch.randn(self.steps, self.batch, self.m, dtype=dtype)
        self.state = [0.5 * torch.randn(size, dtype=dtype) for size in (state, state_z)]
        self.weights = [torch.randn(size, dtype=dtype) for size in ((self.steps, *state), state, state_z)]

    def parameters(self):
        cell = self.cell
        return [p for p in (cell.weight_u, cell.weight_y, cell.weight_z, cell.bias) if p is not None]

    def starts(self):
        return [p for p in (self.cell.y_0, self.cell.z_0) if p is not None]

    def loop(self, dtype=None) -> Result:
        """Run the loop with autograd, in another type if asked."""
        kind = dtype or self.u.dtype
        cell = self.cell.to(kind)
        u, *state = (t.to(kind, copy=True).requires_grad_() for t in (self.u, *self.state))
        mask, cell.prepare = self.mask, lambda batch: () if self.mask is None else (self.mask.to(kind),)
        elapsed = None if self.elapsed is None else self.elapsed.to(kind, copy=True).requires_grad_()
        outputs, final = cell.sequence(u, cell.state_type(*state), self.lengths, self.reverse, elapsed, self.resets)
        total = sum((value * weight.to(kind)).sum() for value, weight in zip((outputs, *final), self.weights))
        leaves = [u, *self.parameters(), *state, *([] if elapsed is None else [elapsed]), *self.starts()]
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        self.cell.to(self.u.dtype)
        self.mask = mask
        return Result((outputs.detach(), *(s.detach() for s in final)), gradients)

    def problem(self) -> lem.Problem:
        cell = self.cell
        weights = (None if p is None else p.detach() for p in (cell.weight_u, cell.weight_y, cell.weight_z, cell.bias))
        times = self.elapsed, self.resets, *([p.detach() for p in self.starts()] or (None, None))
        fixed = self.mask, self.lengths, cell.dt, cell.clip, self.reverse
        return lem.Problem(self.u, *weights, *self.state, *fixed, *times)

    def triton(self, path: Path, segment: int | None = None) -> Result:
        """Run forward and backward through the kernels of a path."""
        p = self.problem()
        out, y, z, saved = lem.forward(p, path, True, segment)
        kept = None if segment else out
        gradients = lem.backward(*self.weights, p, kept, saved, path, segment, True, self.elapsed is not None)
        return Result((out, y, z), tuple(g for g in gradients if g.numel()))


@contextmanager
def as_on_a_gpu(monkeypatch, card="sm_80"):
    """Run `lem::sequence` on CPU tensors by its implementation for CUDA tensors, as on a card."""
    monkeypatch.setattr(operator, "card", lambda u: CARDS[card])
    monkeypatch.setattr(kernel.TritonLEM, "refuse", lambda self, call: None)
    monkeypatch.setitem(definition.SAVED, "cpu", operator.saved)
    library = torch.library.Library("lem", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # torch says that there is one already
        library.impl("sequence", operator.forward, "CPU")
        library.impl("sequence_backward", operator.backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


def assert_same(found: Result, expected: Result, kind: str = "float32") -> None:
    for a, b in zip(found.values, expected.values, strict=True):
        assert_close(a, b, kind)
    for a, b in zip(found.gradients, expected.gradients, strict=True):
        assert_close(a, b, f"{kind} gradient")


def twin(module, folder: File, old: str, new: str):
    """Return a copy of a module in which the text `old`, which must be there, reads `new`."""
    text = File(module.__file__).read_text()
    assert old in text, f"{module.__name__} has no {old!r} to break"
    name = f"{module.__name__.rpartition('.')[2]}_twin_{abs(hash((old, new)))}"
    file = folder / f"{name}.py"
    file.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(name, file)
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found
