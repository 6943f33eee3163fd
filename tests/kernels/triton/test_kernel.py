"""Which calls the Triton kernel runs. The GPU is torch's fake one: its tensors have a device and no numbers."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch._subclasses import FakeTensorMode

pytest.importorskip("triton", reason="Triton is not installed: pip install '.[gpu]'")

import triton

from lem import LEM, LEMCell
from lem.kernels import LoopWarning, choose
from lem.kernels.choose import Call
from lem.kernels.triton import kernel, operator
from lem.kernels.triton.paths import CARDS, Card
from tests.close import assert_close
from tests.kernels.triton.problems import as_on_a_gpu

TRITON = kernel.TritonLEM()


@pytest.fixture
def gpu(monkeypatch):
    """An A100 with a Triton that compiles."""
    monkeypatch.setattr(kernel, "installation", lambda: None)
    monkeypatch.setattr(operator, "card", lambda u: CARDS["sm_80"])
    monkeypatch.setattr(LEMCell, "reset_parameters", lambda self: None)  # needs a torch with a generator for GPUs
    choose.forget_warnings()
    with FakeTensorMode(), torch.no_grad():  # autograd asks for the streams of a real device
        yield


def call(dtype=torch.float32, backend="auto", cell_type=LEMCell, **changes):
    cell = cell_type(2, 4, backend=backend, device="cuda", dtype=dtype)
    u = torch.zeros(3, 2, 2, device="cuda", dtype=dtype)
    return Call(cell, u, cell.init_state(2))._replace(**changes)


@contextmanager
def autocast(kind):
    """torch.autocast("cuda", kind), which refuses to be switched on without a GPU."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", kind)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dtype", kernel.DTYPES)
def test_auto_takes_it_on_a_gpu(dtype):
    found, reason = choose.choose(call(dtype))
    assert (found.backend, reason) == ("triton", None)


@pytest.mark.usefixtures("gpu")
def test_it_says_how_a_call_runs():
    given = call()
    assert given.cell.backend_for(given.u) == (
        "triton", f"resident path, products in tf32x3, Triton {triton.__version__}"
    )  # fmt: skip


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("precision", "dtype", "runs"),
    [("auto", torch.float16, torch.float16), ("float32", torch.float16, torch.float32),
     ("bfloat16", torch.float32, torch.bfloat16)],
)  # fmt: skip
def test_precision_sets_the_type_that_a_call_runs_in(precision, dtype, runs):
    given = call(dtype)
    assert operator.types_of(given.u, precision) == (runs, dtype)
    given.cell.precision = precision
    assert given.cell.sequence(given.u)[0].dtype == dtype


@pytest.mark.usefixtures("gpu")
def test_a_call_gives_tensors_of_the_right_shapes_on_the_gpu():
    given = call()
    outputs, final = given.cell.sequence(given.u)
    assert outputs.shape == (3, 2, 4)
    assert {t.device.type for t in (outputs, *final)} == {"cuda"}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_autocast_gives_its_type(kind):
    given = call()
    with autocast(kind):
        outputs, final = given.cell.sequence(given.u)
    assert {t.dtype for t in (outputs, *final)} == {kind}


@pytest.mark.usefixtures("gpu")
def test_float64_runs_on_the_loop_with_one_warning():
    given = call(torch.float64)
    with pytest.warns(LoopWarning, match=r"not float64\. Convert the layer and its input to float32"):
        found, reason = choose.choose(given)
    assert found is None
    assert reason.code == "dtype"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose.choose(given)


@pytest.mark.usefixtures("gpu")
def test_forward_mode_and_transforms_run_on_the_loop():
    given = call()
    with torch.autograd.forward_ad.dual_level():
        assert TRITON.refuse(given).code == "forward mode"
    codes = []
    torch.func.vmap(lambda x: codes.append(TRITON.refuse(given).code) or x)(torch.zeros(2, device="cuda"))
    assert codes == ["transform"]


@pytest.mark.usefixtures("gpu")
def test_other_tensors_are_refused():
    given = call()
    assert TRITON.refuse(call(state=(torch.zeros(2, 4), torch.zeros(2, 4)))).code == "devices"
    half = tuple(torch.zeros(2, 4, device="cuda", dtype=torch.float16) for _ in "yz")
    assert TRITON.refuse(given._replace(state=half)).code == "mixed dtypes"
    with autocast(torch.float16):
        assert TRITON.refuse(given._replace(state=half)) is None
    assert TRITON.refuse(given._replace(u=torch.zeros(3, 0, 2, device="cuda"))).code == "empty"


@pytest.mark.usefixtures("gpu")
def test_times_restarts_and_narrow_outputs_run_on_the_gpu():
    layer = LEM(2, 4, proj_size=3, learn_initial_state=True, backend="triton", device="cuda")
    u, elapsed = torch.zeros(3, 2, 2, device="cuda"), torch.ones(3, 2, device="cuda")
    # Reading a value of a fake tensor raises, as it would make the host wait.
    outputs, (y, z) = layer(u, lengths=torch.tensor([3, 2], device="cuda"), elapsed=elapsed, resets=elapsed > 2)
    assert [tuple(t.shape) for t in (outputs, y, z)] == [(3, 2, 3), (1, 2, 3), (1, 2, 4)]
    assert {t.device.type for t in (outputs, y, z)} == {"cuda"}


class Twice(LEMCell):
    def step(self, x, state, *mask):
        return super().step(2 * x, state, *mask)


@pytest.mark.usefixtures("gpu")
def test_a_subclass_with_another_equation_runs_on_the_loop():
    found, reason = choose.choose(call(cell_type=Twice))
    assert found is None
    assert reason.code == "overridden"


def test_named_on_the_cpu_it_says_what_to_do():
    layer = LEM(2, 4, backend="triton")
    with pytest.raises(RuntimeError, match=r"runs on GPUs and the input is on the CPU\. Move .*\.to\(\"cuda\"\)"):
        layer(torch.zeros(3, 2, 2))


def test_on_the_cpu_the_other_kernels_reasons_are_given():
    with torch.autograd.forward_ad.dual_level():
        backend, why = LEMCell(2, 4).backend_for(torch.zeros(3, 2, 2))
    assert backend == "loop"
    assert "C++" in why


@pytest.mark.usefixtures("gpu")
def test_another_device_names_both_ways_out():
    found = TRITON.refuse(Call(LEMCell(2, 4, device="meta"), torch.zeros(3, 2, 2, device="meta"), ()))
    assert found.code == "device"
    assert "CPU" in found.remedy


def test_an_old_card_is_refused():
    assert "sm_75" in kernel.card_refusal(Card("cuda", "sm_75", 65_536)).text
    assert kernel.card_refusal(CARDS["sm_80"]) is None
    assert kernel.card_refusal(Card("hip", "gfx1030", 65_536)) is None


@pytest.fixture
def fresh():
    kernel.installation.cache_clear()
    yield
    kernel.installation.cache_clear()


@pytest.mark.usefixtures("fresh")
class TestInstallation:
    def test_the_interpreter_left_on(self):
        """It is on in these tests."""
        found = kernel.installation()
        assert found.code == "triton interpreter"
        assert "Unset" in found.remedy

    def test_triton_missing(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert ".[gpu]" in kernel.installation().remedy

    def test_an_old_triton(self, monkeypatch):
        monkeypatch.setattr(triton, "__version__", "3.1.0")
        assert "3.1.0 is older than 3.2" in kernel.installation().text

    def test_a_triton_that_is_known_to_be_wrong(self, monkeypatch):
        monkeypatch.setattr(kernel, "WRONG_TRITON", (triton.__version__,))
        assert "wrongly" in kernel.installation().text


@pytest.mark.parametrize("options", [{}, {"p": 3}], ids=["plain", "timed"])
def test_the_whole_layer_by_triton(monkeypatch, options):
    """CPU tensors that pass for a GPU's: the layer, both directions, lengths and gradients, against the loop."""
    with as_on_a_gpu(monkeypatch):
        layer = LEM(
            2, 5, 2, batch_first=True, bidirectional=True, learn_initial_state=True, proj_size=options.get("p", 0)
        )
        u, lengths = torch.randn(3, 4, 2), torch.tensor([4, 1, 2])
        times = {"elapsed": 2 * torch.rand(3, 4) + 0.1, "resets": torch.rand(3, 4) < 0.3} if options else {}
        if options:
            times["resets"] &= torch.arange(4) < lengths[:, None]
        results = []
        for backend in ("triton", "loop"):
            for cell in layer.cells:
                cell.backend = backend
            layer.zero_grad()
            outputs, state = layer(u, lengths=lengths, **times)
            (outputs.square().sum() + state[1].sum()).backward()
            results.append(([outputs, *state], [p.grad for p in layer.parameters()]))
    for kind, (found, expected) in zip(("float32", "float32 gradient"), zip(*results)):
        for a, b in zip(found, expected):
            assert_close(a, b, kind)
