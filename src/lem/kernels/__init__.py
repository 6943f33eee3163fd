"""How a network is fast: `choose` picks the kernel of a call, and `cpu` has the C++ kernel.

Nothing here imports `lem.nn`.
"""

from lem.kernels.choose import LoopWarning, loop_only, portable
from lem.kernels.cpu import Forecast, memory_forecast, release_memory

__all__ = ["Forecast", "LoopWarning", "loop_only", "memory_forecast", "portable", "release_memory"]
