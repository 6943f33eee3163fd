"""The fused CPU kernel: the only part of the package that knows the C++ library.

`library` finds it, chooses the instruction set (`LEM_TARGET` overrides) and says whether it can serve; `operator` runs
it as the torch operator `lem::sequence` on `torch.get_num_threads()` threads; `memory` forecasts what a call needs and
`pages` keeps buffers between calls; `stepper` advances a stream by one step; `units` runs UnICORNN and IndRNN, whose
units do not see each other, `coupled` the other cells whose step is one product; `once` ends their derivatives.
"""

from lem.native.library import loop_only, peak, refusal, set_target, target, targets, threads, using_target
from lem.native.memory import Forecast, check_options, memory_forecast
from lem.native.operator import sequence
from lem.native.pages import release_memory
from lem.native.stepper import Stepper

__all__ = [
    "Forecast",
    "Stepper",
    "check_options",
    "loop_only",
    "memory_forecast",
    "peak",
    "refusal",
    "release_memory",
    "sequence",
    "set_target",
    "target",
    "targets",
    "threads",
    "using_target",
]
