"""Compile the Triton kernels for cards that are not here, and read what the machine code needs. No GPU is needed.

`python tools/compile_kernels.py found.jsonl` compiles every row that the table of paths offers on each card, in every
variant; `--cards sm_80` takes one card, `--one` one row of each path. `--pin` writes what the tests hold and the
documentation shows.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path as File
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lem.kernels.triton import alternating, coefficients, resident, streamed
from lem.kernels.triton.gates import UNSPECIALIZED
from lem.kernels.triton.paths import AMD, CARDS, HALF, NVIDIA, TABLE, Path, choose

MODULES = {"resident": resident, "streamed": streamed, "coefficients": coefficients, "alternating": alternating}
PINNED = File(__file__).parent.parent / "tests/kernels/triton/compiled.json"
TIMING = {"ELAPSED": True, "RESETS": True, "PACE": True}
ALL = {"CLIP": True, "MASK": True, "LENGTHS": True, "REVERSE": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {}, "all": ALL, "single": {"SINGLE": True, "MASK": True, "LENGTHS": True},
    "project": {"PROJECT": True}, "project, all": {"PROJECT": True, **ALL},
    "timing": TIMING, "timing, all": {**ALL, **TIMING}, "project, timing, all": {"PROJECT": True, **ALL, **TIMING},
}  # fmt: skip
OWN = ("plain", "all", "single", "timing, all")
POINTWISE = (
    "coefficients.deltas",
    *(f"alternating._{n}" for n in ("forward_z", "forward_y", "adjoint_y", "adjoint_z")),
)
TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
BINARIES = File(triton.__file__).parent / "backends/nvidia/bin"
TENSOR_CORE = ("HMMA", "HGMMA", "QGMMA")


def target_of(card: str) -> GPUTarget:
    """Return Triton's name of a card."""
    return GPUTarget("cuda", int(card[3:]), 32) if card.startswith("sm_") else GPUTarget("hip", card, 64)


def source(kernel: Any, constants: dict[str, Any], call: str, product: str) -> ASTSource:
    """Describe the arguments of a kernel as a call of this type passes them; `constants` are compile-time."""
    types, divisible = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            types[name] = "constexpr"
            continue
        if name == "lengths_ptr":
            types[name] = "*i64"
        elif name == "resets_ptr":
            types[name] = "*i8"
        elif name in ("w_ptr", "v_ptr", "s_ptr"):
            types[name] = "*" + TYPES[product]
        elif name in STATES:
            types[name] = "*fp32"
        elif name.endswith("_ptr"):
            types[name] = "*" + TYPES[call]
        else:
            types[name] = "fp32" if name in ("dt", "low", "high", "forget") else "i32"
        if types[name] != "fp32" and name not in UNSPECIALIZED:
            divisible[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, types, constexprs=constants, attrs=divisible)


STATES = (
    "yn_ptr", "zn_ptr", "c_ptr", "c_last_ptr", "g_ptr", "gy_ptr", "gz_ptr", "gy0_ptr", "gz0_ptr", "y_ptr", "gate_ptr",
    "elapsed_ptr", "gystart_ptr", "gzstart_ptr", "g_all_ptr",
)  # fmt: skip
"""Arguments that are float32 in every call."""


def constants(kernel: Any, path: Path, variant: dict[str, Any]) -> dict[str, Any]:
    """Return the compile-time arguments of a kernel on a path; a variant says which of the options it has."""
    known = {
        "WIDTH": path.width, "ROWS": path.rows, "BLOCK": path.block, "STAGES": path.stages,
        "PRODUCT": getattr(tl, str(path.product).removeprefix("torch.")), "PRECISION": path.precision, "CHANNELS": 16,
        "SINGLE": False, "CLIP": False, "MASK": False, "LENGTHS": False, "REVERSE": False, "KEEP": True, "GRAD": True,
        "ELAPSED": False, "RESETS": False, "PACE": False,
        "BIAS": True, "PROJECT": False, "M": 32, "N": 32, "SIZE": 256, "FINISH": True,
        "BEGIN": True, "K": 16 if path.product == torch.float32 else 32,
    } | variant  # fmt: skip
    found = {name: known[name] for name in kernel.arg_names if name in known}
    starts = ["ystart_ptr", "zstart_ptr", "gystart_ptr", "gzstart_ptr"]
    absent = {
        "MASK": ["mask_ptr"], "LENGTHS": ["lengths_ptr"], "PROJECT": ["v_ptr", "b_ptr"], "ELAPSED": ["elapsed_ptr"],
        "RESETS": ["resets_ptr", *starts], "PACE": ["g_all_ptr"],
    }  # fmt: skip
    for flag, names in absent.items():
        if not known[flag] and (flag in kernel.arg_names or names[0] in kernel.arg_names):
            found |= dict.fromkeys(name for name in names if name in kernel.arg_names)
    return found


class Row(NamedTuple):
    """One kernel to compile: its name, for which card, on which path, in which type of call and variant."""

    kernel: str
    card: str
    path: Path
    call: str
    variant: str

    @property
    def mode(self) -> str:
        """How the products are computed."""
        product = str(self.path.product).removeprefix("torch.")
        return product if product in HALF else self.path.precision

    @property
    def name(self) -> str:
        """What tells the row from all others."""
        return f"{self.card} {self.kernel} {self.path.width} {self.mode} {self.call} {self.variant}"


def rows(cards: list[str]) -> list[Row]:
    """Return every kernel that the table offers on these cards."""
    found = []
    for card in cards:
        vendor = CARDS[card].vendor
        modes = NVIDIA if vendor == "cuda" else AMD
        for mode, width in itertools.product(modes, sorted({row.width for row in TABLE[vendor]})):
            own = mode if mode in HALF else "float32"
            for variant, direction in itertools.product(VARIANTS, ("forward", "adjoint")):
                timed = "timing" in variant
                path = choose(width, mode, CARDS[card], timed)
                if path.kind == "alternating":
                    continue
                # The others take fewer registers than float32 accuracy does; 256 units come close to all.
                near = mode != "float16" and (width == 256 or (path.kind, width) == ("resident", 128))
                if timed and mode != modes[0] and not near:
                    continue
                if "project" in variant and (direction == "adjoint" or not path.project):
                    continue
                # float16 differs from bfloat16 in the names of the instructions only.
                if mode != "float16" or variant == "plain":
                    found.append(Row(f"{path.kind}.{direction}", card, path, own, variant))
                if mode == "bfloat16" and variant == "plain":  # float32 with the precision "medium"
                    found.append(Row(f"{path.kind}.{direction}", card, path, "float32", variant))
        for mode in modes:
            path = choose(10_000, mode, CARDS[card])._replace(width=0)
            call = mode if mode in HALF else "float32"
            found += [Row("coefficients.coefficients", card, path, call, v) for v in OWN]
        path = choose(10_000, modes[0], CARDS[card])._replace(width=0)
        found += [Row(name, card, path, "float32", v) for name in POINTWISE for v in OWN]
    return found


def one_of_each(found: list[Row]) -> list[Row]:
    """Return one row of each path: the widest plain one of float32 accuracy, forward and backward."""
    plain = [row for row in found if row.variant == "plain" and row.path.product == torch.float32]
    return list({row.kernel: row for row in plain if row.path.precision != "tf32"}.values())


def compile_one(row: Row) -> dict[str, Any]:
    """Compile a row; return what its machine code needs."""
    module, function = row.kernel.split(".")
    kernel, path = getattr(MODULES[module], function), row.path
    options = {"num_warps": path.warps, "num_stages": 1 if module == "resident" else 3}
    started = time.perf_counter()
    given = constants(kernel, path, VARIANTS[row.variant])
    product = str(path.product).removeprefix("torch.")
    built = triton.compile(source(kernel, given, row.call, product), target=target_of(row.card), options=options)
    found = {"name": row.name, "kernel": row.kernel, "card": row.card, "shared": built.metadata.shared}
    found |= {"width": path.width, "mode": row.mode, "call": row.call, "variant": row.variant}
    found["seconds"] = round(time.perf_counter() - started, 1)
    read = _nvidia if row.card.startswith("sm_") else _amd
    return found | read(built)


def _nvidia(built: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        body = time_loop(_run("nvdisasm", "-c", file.name))
    registers, stack, local = (
        int(re.search(rf"{key}:(\d+)", usage).group(1))
        for key in ("REG", "STACK", "LOCAL")  # type: ignore[union-attr]
    )
    names = Counter(re.sub(r"^@!?U?P\w+\s+", "", line).split()[0].split(".")[0] for line in body)
    return {
        "registers": registers, "stack": stack, "local": local, "instructions": len(body), "barriers": names["BAR"],
        "local_accesses": names["LDL"] + names["STL"], "tensor_core": sum(names[n] for n in TENSOR_CORE),
        "copies": names["LDGSTS"], "loads": names["LDG"], "stores": names["STG"],
    }  # fmt: skip


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([str(BINARIES / tool), *arguments], capture_output=True, text=True, check=True).stdout


def time_loop(listing: str) -> list[str]:
    """Return the instructions between the farthest backward branch and where it goes to: one time step."""
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in listing.splitlines():
        if label := re.match(r"\s*\.?(L_x_\d+):", line):
            labels[label.group(1)] = len(code)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            code.append(instruction.group(1))
    spans = [
        (labels[to.group(1)], place)
        for place, line in enumerate(code)
        if (to := re.search(r"BRA\S*\s.*`\(\.?(L_x_\d+)\)", line)) and labels.get(to.group(1), place) < place
    ]
    first, last = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    return code[first : last + 1]


def _amd(built: Any) -> dict[str, Any]:
    text = built.asm["amdgcn"]

    def number(key: str) -> int:
        found = re.search(rf"\.{key}:?\s+(\d+)", text)
        return int(found.group(1)) if found else 0

    instructions = re.findall(r"^\t(?:s|v|ds|global)_\w+", text, re.MULTILINE)
    return {
        "registers": number("vgpr_count"), "stack": number("private_segment_fixed_size"),
        "local": number("vgpr_spill_count") + number("sgpr_spill_count"),
        "local_accesses": len(re.findall(r"\bscratch_(?:load|store)", text)), "tensor_core": text.count("v_mfma"),
        "barriers": text.count("s_barrier"), "instructions": len(instructions),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=File, help="where each row's figures go, one JSON object a line")
    parser.add_argument("--cards", nargs="+", choices=CARDS, default=list(CARDS))
    parser.add_argument("--one", action="store_true", help="one row of each path")
    parser.add_argument("--part", nargs=2, type=int, metavar=("I", "OF"), default=(0, 1), help="every OF-th row from I")
    parser.add_argument("--only", default="", help="only rows whose name contains this regular expression")
    parser.add_argument("--pin", action="store_true", help=f"also write the figures to {PINNED.name}")
    args = parser.parse_args()
    wanted = rows(args.cards)
    wanted = [row for row in (one_of_each(wanted) if args.one else wanted) if re.search(args.only, row.name)]
    found = []
    with args.file.open("w") as file:
        for row in wanted[args.part[0] :: args.part[1]]:
            found.append(compile_one(row))
            print(json.dumps(found[-1]), file=file, flush=True)
    if args.pin:
        pin(found)


def pin(found: list[dict[str, Any]]) -> None:
    """Write the figures that the tests hold and the documentation shows; rows not compiled keep theirs."""
    keys = ("shared", "registers", "instructions", "barriers")
    known = json.loads(PINNED.read_text())["rows"] if PINNED.exists() else {}
    known |= {row["name"]: [row[key] for key in keys] for row in found}
    names = [row.name for row in rows(list(CARDS))]
    lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in names if name in known]
    text = ",\n".join(lines)
    PINNED.write_text(f'{{"triton": "{triton.__version__}", "figures": {json.dumps(keys)}, "rows": {{\n{text}\n}}}}\n')


if __name__ == "__main__":
    main()
