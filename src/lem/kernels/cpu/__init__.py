"""The C++ kernel. Nothing outside this folder uses the library.

`library` loads it, chooses the instruction set (`LEM_TARGET` overrides) and reports what it can run; `lem` runs LEM as
the torch operator `lem::sequence`; `coupled` runs the cells whose step is one product, `units` the cells whose units do
not see each other. `memory` forecasts what a call needs, `buffers` keeps memory between calls, `stepper` advances a
stream by one step, and `first_order` raises on a second derivative.
"""

from lem.kernels.cpu.buffers import release_memory
from lem.kernels.cpu.library import library_missing, peak, refusal, set_target, target, targets, threads, using_target
from lem.kernels.cpu.memory import Forecast, memory_forecast
from lem.kernels.cpu.stepper import Stepper

__all__ = [
    "Forecast",
    "Stepper",
    "library_missing",
    "memory_forecast",
    "peak",
    "refusal",
    "release_memory",
    "set_target",
    "target",
    "targets",
    "threads",
    "using_target",
]
