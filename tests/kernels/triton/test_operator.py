"""`lem::sequence` by Triton: through the dispatcher, with autograd, shapes, autocast and memory modes.

There is no GPU here, so the implementation for CUDA tensors stands in for the one for CPU tensors while a test runs.
"""

import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode

pytest.importorskip("triton", reason="Triton is not installed: pip install '.[gpu]'")

from lem.kernels.cpu import lem as definition
from lem.kernels.cpu.library import KEEP
from lem.kernels.triton import lem, memory, operator
from lem.kernels.triton.paths import CARDS
from tests.close import assert_close
from tests.kernels.triton.problems import Case, Result, as_on_a_gpu, assert_same


@pytest.fixture
def on_cpu(monkeypatch):
    """Run the operator by Triton on CPU tensors, as on an A100."""
    with as_on_a_gpu(monkeypatch):
        yield


def arguments(case, requires_grad=True):
    p = case.problem()
    tensors = [None if t is None else t.clone().requires_grad_(requires_grad) for t in p[:7]]
    named = {"mask": p.mask, "lengths": p.lengths, "dt": p.dt, "clip": p.clip, "reverse": p.reverse}
    elapsed = None if p.elapsed is None else p.elapsed.clone().requires_grad_(requires_grad)
    start = None if p.y_start is None else tuple(s.clone().requires_grad_(requires_grad) for s in p[-2:])
    return tensors, named | {"elapsed": elapsed, "resets": p.resets, "start": start}


def run(case, **options):
    tensors, named = arguments(case)
    values = operator.sequence(*tensors, **named, **options)
    total = sum((value * weight).sum() for value, weight in zip(values, case.weights))
    leaves = [t for t in (*tensors, named["elapsed"], *(named["start"] or ())) if t is not None]
    return Result(tuple(v.detach() for v in values), torch.autograd.grad(total, leaves))


TIMED = "lengths reverse elapsed resets projected"


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("variant", ["plain", "clip mask lengths reverse", "single", TIMED])
def test_gradients_through_the_dispatcher(variant):
    case = Case((3, 3, 2, 5), variant)
    assert_same(run(case), case.loop())


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("option", ["store", "recompute", "bounded", 1, 1 << 40])
@pytest.mark.parametrize("variant", ["plain", TIMED])
def test_memory_modes_give_the_same(option, variant):
    case = Case((5, 2, 2, 5), variant)
    assert_same(run(case, memory=option), case.loop())


@pytest.mark.usefixtures("on_cpu")
def test_the_operator_keeps_its_contract():
    for keep, variant in ((keep, variant) for keep in KEEP.values() for variant in ("lengths", TIMED)):
        case = Case((3, 2, 2, 5), variant)
        tensors, named = arguments(case, requires_grad=keep > 0)
        times = named["elapsed"], named["resets"], *(named["start"] or (None, None))
        rest = named["mask"], named["lengths"], named["dt"], None, False, keep, 2, *times
        tests = ("test_schema", "test_faketensor") + (("test_autograd_registration",) if keep else ())
        torch.library.opcheck(torch.ops.lem.sequence.default, (*tensors, *rest), test_utils=tests)


@pytest.mark.usefixtures("on_cpu")
def test_without_gradients_nothing_is_kept():
    case = Case((3, 2, 2, 5))
    tensors, named = arguments(case, requires_grad=False)
    rest = named["mask"], named["lengths"], named["dt"], None, False, KEEP["nothing"], 1
    assert not torch.ops.lem.sequence(*tensors, *rest)[3].numel()


def test_fakes_on_a_gpu_do_not_ask_the_cpu_library(monkeypatch):
    monkeypatch.setattr(definition, "library", lambda: pytest.fail("the CPU library was asked"))
    for keep, shape in ((0, (0,)), (1, (6, 3, 5)), (2, (6, 3, 5)), (3, (2, 3, 3, 5))):
        with FakeTensorMode():
            u, w = torch.empty(6, 3, 2, device="cuda"), torch.empty(20, 2, device="cuda")
            wy, wz, s = (
                torch.empty(15, 5, device="cuda"),
                torch.empty(5, 5, device="cuda"),
                torch.empty(3, 5, device="cuda"),
            )
            found = torch.ops.lem.sequence(u, w, wy, wz, None, s, s, None, None, 1.0, None, False, keep, 2)
        assert [tuple(t.shape) for t in found] == [(6, 3, 5), (3, 5), (3, 5), shape]
        assert {t.device.type for t in found} == {"cuda"}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kind", [torch.float16])
def test_autocast_gives_its_type_to_outputs_and_states(kind):
    """As cuDNN's LSTM: everything in autocast's type; the parameters' gradients stay in theirs."""
    case = Case((3, 2, 2, 9))
    tensors, named = arguments(case)
    with torch.autocast("cpu", kind):
        values = operator.sequence(*tensors, **named)
    assert {v.dtype for v in values} == {kind}
    total = sum((value.float() * weight).sum() for value, weight in zip(values, case.weights))
    gradients = torch.autograd.grad(total, tensors)
    assert {g.dtype for g in gradients} == {torch.float32}
    assert_same(Result(tuple(v.detach() for v in values), gradients), case.loop(), "float16 call")


@pytest.mark.usefixtures("on_cpu")
def test_a_second_derivative_is_that_of_the_loop():
    case = Case((2, 2, 2, 3))
    tensors, named = arguments(case)

    def curvature(run):
        (slope,) = torch.autograd.grad(run()[0].square().sum(), tensors[0], create_graph=True)
        return torch.autograd.grad(slope.square().sum(), tensors[0])[0]

    found = curvature(lambda: operator.sequence(*tensors, **named))
    options = named["mask"], named["lengths"], named["dt"], named["clip"], named["reverse"]
    expected = curvature(lambda: definition.LOOP[0](*tensors, *options, None, None, None, None))
    assert_close(found, expected, "float32 gradient")


@pytest.mark.parametrize("option", ["store", "bounded"])
@pytest.mark.parametrize(
    ("sizes", "variant"),
    [((12, 8, 3, 48), "plain"), ((24, 4, 20, 32), "plain"), ((12, 8, 3, 48), "elapsed resets projected")],
)
def test_the_forecast_covers_what_is_allocated(sizes, variant, option, monkeypatch):
    """Count the tensors alive: the forecast is not exceeded, and not twice what is needed."""
    monkeypatch.setattr(memory, "WORK_BYTES", 1 << 16)
    steps, batch, m, d = sizes
    case = Case(sizes, variant)
    p = case.problem()
    paced, proj_size = case.elapsed is not None, case.cell.proj_size
    path = operator.choose(512, "ieee", CARDS["gfx942"])  # the alternating path, fastest in the interpreter
    segment = memory.segment_of(steps) if option == "bounded" else None
    with Alive() as alive:
        out, y, z, saved = lem.forward(p, path, True, segment)
        grads = lem.backward(*case.weights, p, None if segment else out, saved, path, segment, True, paced)
    forecast = memory.memory_forecast(
        steps, batch, m, d, memory=option, input_gradient=True, proj_size=proj_size, elapsed=paced
    )
    given = sum(t.numel() * t.element_size() for t in case.weights[:1])  # the gradient of the outputs is there before
    assert alive.peak <= forecast.peak - given <= 2 * alive.peak
    del out, y, z, saved, grads


class Alive(torch.utils._python_dispatch.TorchDispatchMode):
    """The bytes of all storages that were made inside and are still alive, and the most there ever were."""

    def __init__(self):
        super().__init__()
        self.storages, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        before = {
            id(t.untyped_storage()) for t in torch.utils._pytree.tree_leaves((args, kwargs)) if hasattr(t, "shape")
        }
        for t in torch.utils._pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in self.storages:
                self._add(t.untyped_storage())
        del before
        self.peak = max(self.peak, self._bytes())
        return result

    def _add(self, storage):
        self.storages[storage._cdata] = (torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes())

    def _bytes(self):
        self.storages = {key: pair for key, pair in self.storages.items() if not pair[0].expired()}
        return sum(size for _, size in self.storages.values())


def test_triton_is_not_imported_before_it_is_needed():
    program = "import sys, lem.nn, lem.kernels.triton.operator; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_outputs_that_differ_are_caught():
    with pytest.raises(AssertionError, match="values differ"):
        assert_close(torch.ones(2), torch.ones(2) * 1.01, "float32")
