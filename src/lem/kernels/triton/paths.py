"""Which kernels serve a call: a static table by width, precision and card. Nothing is tuned at run time.

A row of the table is offered on a card if its shared memory fits there. `tools/compile_kernels.py` compiles every row
for the cards of CARDS; the tests hold that none spills in its time loop or needs more shared memory than stated here.
"""

from functools import cache
from typing import NamedTuple

import torch


class Card(NamedTuple):
    """A GPU: "cuda" or "hip", its architecture, and the shared memory that one program may have, in bytes."""

    vendor: str
    architecture: str
    shared: int


CARDS = {
    "sm_80": Card("cuda", "sm_80", 166_912),
    "sm_86": Card("cuda", "sm_86", 101_376),
    "sm_90": Card("cuda", "sm_90", 232_448),
    "gfx942": Card("hip", "gfx942", 65_536),
}
"""The cards for which the table is compiled in the tests: A100, RTX 30 and 40, H100, MI300."""

OLDEST = 80
"""The oldest NVIDIA architecture that Triton's matrix products support."""


class Path(NamedTuple):
    """How a call runs.

    `kind` is "resident" (weights stay on the chip), "streamed" (weights are read in blocks at every step) or
    "alternating" (two products and two pointwise kernels a step). `product` is the type of the products' operands and
    `precision` how float32 operands are multiplied, in Triton's words. With `project` the resident kernel reads the
    input itself. The other fields are the configuration of the kernels.
    """

    kind: str
    width: int
    warps: int
    product: torch.dtype
    precision: str
    rows: int = 16
    block: int = 16
    stages: int = 3
    project: bool = True


class Row(NamedTuple):
    """A configuration for one width, and the shared memory that its kernels take in each mode of the products.

    `project` is what the forward kernel takes if it reads the input itself.
    """

    kind: str
    width: int
    warps: int
    shared: dict[str, int]
    project: dict[str, int] = {}
    block: dict[str, int] = {}
    stages: int = 3


HALF = ("bfloat16", "float16")
NVIDIA = ("tf32x3", "tf32", *HALF)
AMD = ("ieee", *HALF)


def _each(modes: tuple[str, ...], *values: int) -> dict[str, int]:
    """Return a value for each mode; the last one holds for those that remain."""
    return {mode: values[min(i, len(values) - 1)] for i, mode in enumerate(modes)}


TABLE: dict[str, tuple[Row, ...]] = {
    "cuda": (
        Row("resident", 16, 4, _each(NVIDIA, 10_240, 6_144, 4_096), _each(NVIDIA, 18_432, 9_216, 4_608)),
        Row("resident", 32, 4, _each(NVIDIA, 36_864, 20_480, 12_288), _each(NVIDIA, 53_248, 26_624, 13_312)),
        Row("resident", 64, 8, _each(NVIDIA, 139_264, 73_728, 40_960), _each(NVIDIA, 172_032, 86_016, 43_008)),
        Row("streamed", 64, 8, _each(NVIDIA, 26_624), block=_each(HALF, 32)),
        Row("resident", 128, 8, _each(HALF, 147_456), _each(HALF, 159_744)),
        Row("streamed", 128, 8, _each(NVIDIA, 51_200), block=_each(HALF, 32)),
        Row("streamed", 256, 8, _each(NVIDIA, 100_352, 100_352, 49_664)),
    ),
    "hip": (
        Row("resident", 16, 4, _each(AMD, 2_048), _each(AMD, 2_048)),
        Row("resident", 32, 4, _each(AMD, 4_096), _each(AMD, 4_096)),
        Row("resident", 64, 4, _each(AMD, 16_384, 8_192), _each(AMD, 16_384, 8_192)),
        Row("streamed", 128, 8, _each(AMD, 25_600), block=_each(HALF, 32), stages=2),
        Row("streamed", 256, 8, _each(AMD, 50_176), block=_each(HALF, 32), stages=2),
    ),
}


SPILLS = {("sm_90", 256, "tf32x3")}
"""Rows that would spill registers on one card: architecture, width, mode. They take the next path there."""

TIMED_SPILLS = {("sm_80", 256, "tf32x3"), ("sm_86", 256, "tf32x3"), ("sm_90", 256, "tf32")}
"""Rows that would only with elapsed times or restarts."""


def mode_of(dtype: torch.dtype, vendor: str) -> str:
    """Return how the products of a call in this type are computed.

    float32 follows `torch.get_float32_matmul_precision()`: "highest" keeps float32's accuracy (three products in TF32
    on NVIDIA), "high" rounds the operands to TF32 (float32 on AMD), "medium" rounds them to bfloat16.
    """
    if dtype != torch.float32:
        return str(dtype).removeprefix("torch.")
    asked = torch.get_float32_matmul_precision()
    if asked == "medium":
        return "bfloat16"
    if vendor == "hip":
        return "ieee"
    return "tf32x3" if asked == "highest" else "tf32"


def choose(d: int, mode: str, card: Card, timed: bool = False) -> Path:
    """Return the first row of the table that is wide enough and fits on the card, or the alternating path.

    `timed` calls have elapsed times or restarts.
    """
    product = getattr(torch, mode) if mode in HALF else torch.float32
    precision = "ieee" if mode in HALF else mode
    # AMD's other architectures differ in the size of a wavefront and in their matrix units; nothing was compiled there.
    known = card.vendor == "cuda" or card.architecture in CARDS
    for row in TABLE[card.vendor] if known else ():
        if row.width < d or row.shared.get(mode, card.shared + 1) > card.shared:
            continue
        if (card.architecture, row.width, mode) in (SPILLS | TIMED_SPILLS if timed else SPILLS):
            continue
        project = row.kind == "resident" and row.project.get(mode, card.shared + 1) <= card.shared
        return Path(
            row.kind, row.width, row.warps, product, precision, block=row.block.get(mode, 16),
            stages=row.stages, project=project,
        )  # fmt: skip
    return Path("alternating", d, 4, product, precision)


@cache
def card_of(index: int) -> Card:
    """Return the card behind a CUDA or ROCm device."""
    from triton.runtime import driver

    shared = driver.active.utils.get_device_properties(index)["max_shared_mem"]
    found = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return Card("hip", found.gcnArchName.split(":")[0], shared)
    return Card("cuda", f"sm_{found.major}{found.minor}", shared)
