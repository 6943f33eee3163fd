"""Ctrl-C inside a call of the C++ kernels: it ends between two steps, and Python's handler decides what follows."""

import gc
import os
import signal
import threading
import time

import pytest
import torch

from lem import LEM, Recurrent
from lem.kernels import cpu
from lem.kernels.cpu import buffers, library
from lem.kernels.cpu import lem as operator
from tests.close import assert_close

FORWARD = ("lem_forward", "lem_units_forward", "lem_coupled_forward")
BACKWARD = ("lem_backward", "lem_units_backward", "lem_coupled_backward")
INTERRUPTED = 5

pytestmark = pytest.mark.skipif(library.LIBRARY is None, reason="the C++ kernel is not built")


class Calls:
    """Log what the library's calls return, and send one SIGINT into the next call of `aim`."""

    def __init__(self, monkeypatch):
        self.log, self.aim, self.inside, self.sent = [], (), threading.Event(), 0.0
        for name in (*FORWARD, *BACKWARD):
            monkeypatch.setattr(library.LIBRARY, name, self.logged(name, getattr(library.LIBRARY, name)))

    def logged(self, name, function):
        def call(problem):
            if name in self.aim:
                self.inside.set()
            status = "raised"
            try:
                status = function(problem)
            finally:
                self.inside.clear()
                self.log.append((name, status))
            return status

        return call

    def interrupt(self, aim, after=0.001):
        """Start the thread that sends the signal, as a terminal does: to the process, not to a thread."""

        def send():
            if self.inside.wait(60):
                self.aim = ()
                time.sleep(after)
                self.sent = time.process_time()
                os.kill(os.getpid(), signal.SIGINT)

        self.log.clear()
        self.inside.clear()
        self.aim = aim
        thread = threading.Thread(target=send)
        thread.start()
        return thread

    def until_hit(self, aim, run):
        """Run until a signal has met a call, and return what that run returned."""
        for attempt in range(100):
            thread = self.interrupt(aim, after=0.001 * (attempt % 4))
            found = run()
            thread.join()
            if any(status == INTERRUPTED and name in aim for name, status in self.log):
                return found
        raise AssertionError("no signal met a call")


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


@pytest.fixture
def counted():
    """A handler of SIGINT that does not raise."""
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    yield seen
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def raises():
    """Python's own handler of SIGINT, whatever the test runner has installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def build(name, steps, batch, units, **options):
    layer = LEM(2, units, **options) if name == "lem" else Recurrent(name, 2, units, backend="native", **options)
    return layer, torch.randn(steps, batch, 2, requires_grad=True)


def gradients(layer, u, **more):
    layer.zero_grad()
    u.grad = None
    out, _ = layer(u, **more)
    out.square().sum().backward()
    return [out.detach(), u.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


def outputs(layer, u):
    with torch.no_grad():
        out, state = layer(u)
    return [out, *state]


@pytest.mark.parametrize("aim", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ["lem", "cornn", "fastrnn", "fastgrnn", "exprnn", "chrono-lstm", "unicornn", "indrnn"])
def test_every_kernel_stops_and_runs_again(name, aim, calls, counted):
    """With a handler that does not raise, the call is made again. Nothing of the interrupted one is in the results."""
    fast = name in ("fastrnn", "exprnn", "unicornn", "indrnn")
    layer, u = build(name, 30000 if fast else 8000, 2, 64)
    run = gradients if aim == BACKWARD else outputs
    expected = run(layer, u)
    assert {called for called, _ in calls.log} & {*aim}, "the cell runs on another kernel"
    found = calls.until_hit(aim, lambda: run(layer, u))
    assert counted
    assert calls.log[-1][1] == 0
    for a, b in zip(found, expected):
        assert_close(a, b, "exact")


@pytest.mark.parametrize(
    ("team", "memory", "aim"), [(2, "store", FORWARD), (2, "bounded", BACKWARD), (-2, "store", BACKWARD)]
)
def test_threads_that_share_a_row_leave_together(team, memory, aim, calls, counted, two_threads, monkeypatch):
    """A member that left alone would let the others wait for ever. The C++ test has all combinations."""
    monkeypatch.setattr(operator, "TEAM", team)
    layer, u = build("lem", 1000, 1, 96, memory=memory)
    expected = gradients(layer, u)
    found = calls.until_hit(aim, lambda: gradients(layer, u))
    for a, b in zip(found, expected):
        assert_close(a, b, "exact")


@pytest.mark.parametrize("target", cpu.targets())
def test_every_target_stops(target, calls, counted):
    steps = 300 if target == "scalar" else 6000
    with cpu.using_target(target):
        layer, u = build("lem", steps, 3, 64, bidirectional=True, memory="bounded")
        more = {
            "lengths": torch.tensor([steps, steps, steps // 2]), "elapsed": torch.rand(steps, 3) + 0.1,
            "resets": (torch.rand(steps, 3) < 0.01) & (torch.arange(steps) < steps // 2)[:, None],
        }  # fmt: skip
        expected = gradients(layer, u, **more)
        for aim in (FORWARD, BACKWARD):
            for a, b in zip(calls.until_hit(aim, lambda: gradients(layer, u, **more)), expected):
                assert_close(a, b, "exact")


def blocks():
    gc.collect()
    return sum(type(thing) is buffers._Block for thing in gc.get_objects())


@pytest.mark.parametrize("aim", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ["lem", "chrono-lstm", "unicornn"])
def test_ctrl_c_raises_at_once_and_frees_the_memory(name, aim, calls, raises, two_threads):
    """The half second is in processor time of two threads: a busy or a large machine does not count."""
    # The forward pass of the backward test runs to its end.
    layer, u = build(name, 1500 if aim == BACKWARD else 10000, 2, 6000 if name == "unicornn" else 512)
    held = blocks()
    thread = calls.interrupt(aim, after=0.002)
    with pytest.raises(KeyboardInterrupt):
        layer(u)[0].sum().backward()
    took = time.process_time() - calls.sent
    thread.join()
    assert calls.log[-1][0] in aim
    assert calls.log[-1][1] == "raised"
    assert took < 0.5
    assert blocks() == held
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with torch.no_grad():
        assert torch.isfinite(layer(u[:50])[0]).all()  # as if nothing had been


def test_other_threads_are_not_interrupted(calls, counted):
    """Python runs handlers in its main thread only; a call of another thread goes on."""
    layer, u = build("lem", 4000, 2, 64)
    expected = gradients(layer, u)
    thread = calls.interrupt(FORWARD)
    found = []
    worker = threading.Thread(target=lambda: found.extend(gradients(layer, u)))
    worker.start()
    worker.join()
    thread.join()
    assert counted
    assert [status for _, status in calls.log] == [0, 0]
    for a, b in zip(found, expected):
        assert_close(a, b, "exact")


def test_an_ignored_signal_stays_ignored(calls):
    """As in background jobs of a shell: nothing is installed, and the call runs to its end."""
    layer, u = build("lem", 4000, 2, 64)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        thread = calls.interrupt(FORWARD)
        gradients(layer, u)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert [status for _, status in calls.log] == [0, 0]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
@pytest.mark.parametrize("during", [False, True])
def test_the_default_action_is_not_replaced(during, calls):
    """SIG_DFL ends the process, in a call too: no handler may be there, during a call and after it."""
    layer, u = build("lem", 4000, 2, 64)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    caught = []
    try:
        thread = threading.Thread(target=lambda: calls.inside.wait(60) and caught.append(handler_installed()))
        calls.aim = FORWARD if during else ()
        thread.start()
        gradients(layer, u)
        calls.inside.set()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [False]


def handler_installed():
    """Whether this process has a handler of SIGINT, as the system sees it."""
    with open("/proc/self/status") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    return bool(mask >> (signal.SIGINT - 1) & 1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_during_a_call_can_be_interrupted_too(calls, counted):
    """The child inherits the handler of the call; it must neither call itself nor leave a flag behind."""
    layer, u = build("lem", 4000, 2, 64)
    expected = outputs(layer, u)
    children = []

    def fork():
        calls.inside.wait(60)
        child = os.fork()
        if child == 0:  # this thread is the child's main thread now
            torch.set_num_threads(1)
            signal.raise_signal(signal.SIGINT)
            calls.log.clear()
            found = outputs(layer, u)
            same = all(torch.equal(a, b) for a, b in zip(found, expected))
            os._exit(0 if same and [status for _, status in calls.log] == [0] else 1)
        children.append(child)

    calls.aim = FORWARD
    thread = threading.Thread(target=fork)
    thread.start()
    outputs(layer, u)
    thread.join()
    calls.aim = ()
    deadline = time.monotonic() + 300
    while (ended := os.waitpid(children[0], os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    if ended[0] == 0:
        os.kill(children[0], signal.SIGKILL)
    assert ended == (children[0], 0)
